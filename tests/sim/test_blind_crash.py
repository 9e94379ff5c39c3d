"""The power goes around the commits of blind jobs: all of a job, or nothing of it.

    job logged --> files --> others commit --> retargets, rows and born-dead rows in one record

The crashes are those of test_crash_points.py. The script's jobs meet keys that others have updated,
deleted and inserted meanwhile, so that every kind of node is in the records that are cut.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tests.sim import history
from tests.sim.history import (
    Change,
    Life,
    bulk_insert,
    create,
    delete,
    insert,
    open_on,
    update,
)
from tests.sim.moments import Lives, Point, live
from tests.sim.test_crash_points import MODES, crash_everywhere
from tests.unit.txn.blindjobs import begin_job

NAMES = ["id", "owner", "balance"]
KEYS = [1, 2, 3, 100, 101, 102, 200, 201]


def job(life: Life, mode: str, tag: str, *meanwhile: Change) -> None:
    """A job on KEYS; others commit while it runs."""
    named = [dict(zip(NAMES, (key, tag, key * 10), strict=True)) for key in KEYS]
    rows = pa.Table.from_pylist(named)
    given = rows.select(NAMES[:2]) if mode == "some" else rows
    running = begin_job(life.db, "accounts", "upsert" if mode == "some" else mode, given)
    for change in meanwhile:
        life.commit(change)
    state = copy.deepcopy(life.states[-1])
    accounts = {row[0]: row for row in state["accounts"]}
    for row in named:
        apply(mode, accounts, *row.values())
    state["accounts"] = sorted(accounts.values())
    life.states.append(state)
    life.highest = running.commit()
    life.stamps.append(life.highest)
    life.acked_at.append(len(life.files.operations))
    life._note_rowids()


def apply(
    mode: str, accounts: dict[int, tuple[Any, ...]], key: int, tag: str, balance: int
) -> None:
    if mode == "delete":
        accounts.pop(key, None)
    elif mode == "ignore":
        accounts.setdefault(key, (key, tag, balance))
    elif mode == "some":
        accounts[key] = (key, tag, accounts.get(key, (0, "", None))[2])
    else:
        accounts[key] = (key, tag, balance)


def blind_script(life: Life) -> None:
    life.open()
    life.commit(create("accounts"))
    life.commit(bulk_insert("accounts", *[(n, "bulk", n) for n in range(90, 110)]))
    life.commit(insert("accounts", (1, "ann", 1), (2, "bob", 2)))
    job(
        life,
        "upsert",
        "first",
        update("accounts", 1, balance=5),
        update("accounts", 100, balance=6),
        delete("accounts", 2, 101),
        insert("accounts", (200, "new", 7)),
    )
    job(
        life,
        "some",
        "second",
        update("accounts", 1, balance=8),
        delete("accounts", 100),
        delete("accounts", 200),
        insert("accounts", (200, "again", 9)),
    )
    life.close()
    life.open()
    job(life, "ignore", "third", delete("accounts", 1, 102))
    job(life, "delete", "", insert("accounts", (300, "x", 1)), update("accounts", 3, balance=4))
    job(life, "ignore", "fourth", insert("accounts", (3, "early", 1)))
    life.commit(update("accounts", 3, balance=77))


@pytest.fixture(autouse=True)
def objects_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"object_rows": 16, "row_group_rows": 8, "object_rows_min": 10}
    monkeypatch.setattr(history, "TINY", replace(history.TINY, **sizes))


def _is_object(point: Point) -> bool:
    return point.operation is not None and point.operation.path.endswith(".parquet")


def _around_commits(durability: str) -> Lives:
    """Crashes at what follows the last file of each job: its record, and the sync of it."""
    lives = live(durability, blind_script)
    puts = [point.number for point in lives if _is_object(point)]
    last = [put for put in puts if put + 1 not in puts and put + 2 not in puts]
    return {
        point: life
        for point, life in lives.items()
        if any(put < point.number <= put + 16 for put in last)
    }


def test_crash_around_the_commits_of_jobs() -> None:
    lives = _around_commits("sync")
    assert len(lives) > 30
    counts = crash_everywhere("sync", range(1), lives)
    assert counts["kept unacknowledged"]


def test_what_a_killed_job_wrote_is_removed_and_nothing_else() -> None:
    strays = 0
    lives = live("sync", blind_script)
    for point in [point for point in lives if _is_object(point)][::3]:
        files = lives[point].files.crash_image(all=True)
        db = open_on(files)
        before = set(files.objects.list())
        db.gc()
        tiers = [state.shape.tier for state in db.core.engine.tables.values()]
        used = {entry.key for tier in tiers for entry in tier.by_id.values()}
        left = {key for key in files.objects.list() if key.endswith(".parquet")}
        assert left == used, f"crash {point}"
        strays += len(before) - len(left)
        assert not db.check()
        db.close()
    assert strays


@pytest.mark.sim
@pytest.mark.parametrize("first", range(0, 6, 2))
@pytest.mark.parametrize("durability", MODES)
def test_crash_at_every_operation_of_blind_jobs(durability: str, first: int) -> None:
    seeds = range(first, first + 2)
    counts = crash_everywhere(durability, seeds, live(durability, blind_script))
    assert counts["kept unacknowledged"]

"""The power goes at every operation of a life that commits objects: all of a commit, or nothing.

    job logged --> files written --> commit record --> visible
        '---- a crash anywhere here leaves files that nobody refers to: GC removes them

The crashes are those of test_crash_points.py, the script is one of large inserts, updates, deletes
and TRUNCATE, some of which are given up.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.sim import history
from tests.sim.history import (
    Life,
    bulk_delete,
    bulk_insert,
    bulk_upsert,
    create,
    insert,
    open_on,
    truncate,
    update,
)
from tests.sim.moments import Lives, Point, live
from tests.sim.test_crash_points import MODES, crash_everywhere


def accounts(first: int, count: int, owner: str = "bulk") -> list[tuple[Any, ...]]:
    return [(n, owner, n) for n in range(first, first + count)]


def bulk_script(life: Life) -> None:
    """Every way a transaction brings objects, next to rows in memory."""
    life.open()
    life.commit(create("accounts"), create("ledger"), create("notes"), create("later"))
    life.commit(insert("accounts", (1, "ann", 1)), insert("ledger", (1, "first")))
    life.commit(bulk_insert("accounts", *accounts(100, 40)))
    life.commit(bulk_insert("ledger", *[(n, "many") for n in range(2, 22)]))
    life.roll_back(bulk_insert("accounts", *accounts(500, 30)))
    life.commit(
        bulk_upsert("accounts", *accounts(110, 50, "again")), update("accounts", 1, owner="x")
    )
    life.commit(bulk_delete("accounts", *range(100, 120)), insert("accounts", (2, "bob", 2)))
    life.collect()
    life.close()
    life.open()
    life.commit(update("accounts", 130, owner="one of them"))
    life.commit(
        bulk_insert("accounts", *accounts(600, 20)), bulk_delete("accounts", *range(605, 618))
    )
    life.commit(truncate("ledger"), bulk_insert("ledger", *[(n, "new") for n in range(50, 65)]))
    life.commit(truncate("accounts"), insert("accounts", (7, "the last", 7)))


@pytest.fixture(autouse=True)
def objects_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"object_rows": 16, "row_group_rows": 8, "object_rows_min": 10}
    monkeypatch.setattr(history, "TINY", replace(history.TINY, **sizes))


def _near_objects(durability: str) -> Lives:
    """Crashes at the writing of an object, and at the handful of operations after it."""
    lives = live(durability, bulk_script)
    puts = [point.number for point in lives if _is_object(point)]
    assert len(puts) > 15
    return {
        point: life
        for point, life in lives.items()
        if any(put <= point.number <= put + 3 for put in puts)
    }


def _is_object(point: Point) -> bool:
    return point.operation is not None and point.operation.path.endswith(".parquet")


@pytest.mark.parametrize("durability", MODES)
def test_crash_at_every_operation_near_an_object(durability: str) -> None:
    counts = crash_everywhere(durability, range(1), _near_objects(durability))
    assert counts["points"] > 40


@pytest.mark.sim
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("durability", MODES)
def test_crash_at_every_operation_of_bulk_commits(durability: str, seed: int) -> None:
    seeds = range(seed, seed + 1)
    counts = crash_everywhere(durability, seeds, live(durability, bulk_script))
    assert counts["kept unacknowledged"]


def test_what_a_crashed_job_wrote_is_removed_and_nothing_else() -> None:
    strays = 0
    for point, life in live("sync", bulk_script).items():
        if not _is_object(point):
            continue
        files = life.files.crash_image(all=True)
        db = open_on(files)
        before = set(files.objects.list())
        db.gc()
        tiers = [state.shape.tier for state in db.core.engine.tables.values()]
        used = {entry.key for tier in tiers for entry in tier.by_id.values()}
        left = {key for key in files.objects.list() if key.split("/")[0].isdecimal()}
        assert used <= left, f"crash {point}"
        assert {key for key in left if key.endswith(".parquet")} == used, f"crash {point}"
        strays += len(before - left)
        assert not db.check()
        db.close()
    assert strays

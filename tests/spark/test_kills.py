"""A load that is killed at any stage leaves none of its rows or all of them; run again with the
same token it leaves all of them, once; and what it had written for nothing goes with the next GC.

Drivers of their own are killed here (victim.py), in the long form after the commit too. A task that
fails is one of this session.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import halocline as hc
from halocline import spark as hs
from halocline.objects.shelf import object_key
from halocline.spark.task import shares
from tests.spark.victim import OPTIONS, ROWS, TOKEN, rows

REPOSITORY = Path(__file__).parents[2]
OLD = dict.fromkeys(range(0, ROWS * 2, 2), ("old", 0))
NEW = {n: ("job", n * 2) for n in range(ROWS)}


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "shop"
    with hc.open(folder, options=OPTIONS) as db:
        db.create_table("orders", {"id": int, "name": str, "amount": int}, primary_key="id")
        with db.begin() as txn:
            txn.insert("orders", [{"id": n, "name": "old", "amount": 0} for n in OLD])
    yield folder
    with hc.open(folder, options=OPTIONS) as db:
        assert db.check() == []


def now(db: hc.Database) -> dict[int, Any]:
    table = db.table("orders").to_arrow()
    found = {row["id"]: (row["name"], row["amount"]) for row in table.to_pylist()}
    assert len(found) == table.num_rows
    return found


def files(path: Path) -> set[str]:
    return {file.name for file in (path / "objects").rglob("*.parquet")}


def known(db: Any) -> set[str]:
    tiers = [state.shape.tier for state in db.core.engine.tables.values()]
    entries = [entry for tier in tiers for entry in tier.by_id.values()]
    kept = [Path(key).name for key in db.core.engine.kept_files]
    return {Path(entry.key).name for entry in entries} | set(kept)


@pytest.mark.more
@pytest.mark.parametrize(
    "stage", ["writing", "committing", pytest.param("acknowledged", marks=pytest.mark.sim)]
)
def test_a_driver_that_is_killed(spark: Any, path: Path, stage: str) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.spark.victim", str(path), stage]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, timeout=240, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()[-2000:]
    with hc.open(path, options=OPTIONS) as db:
        found = now(db)
        whole = found == OLD | NEW
        assert whole or found == OLD, f"{len(found)} rows after {stage}"
        assert whole == (stage != "writing") or stage == "committing"
        strays = files(path) - known(db)
        assert bool(strays) == (not whole)
        report = hs.load(rows(spark), db, "orders", on_conflict="upsert", token=TOKEN)
        assert report.already_committed == whole
        assert now(db) == OLD | NEW
        again = hs.load(rows(spark), db, "orders", on_conflict="upsert", token=TOKEN)
        assert again.already_committed
        assert again.commit_ts == report.commit_ts
        db.gc()
        assert files(path) <= known(db)
        assert now(db) == OLD | NEW


def test_a_task_that_fails_while_it_writes(spark: Any, path: Path) -> None:
    with hc.open(path, options=OPTIONS) as db:
        state = db.core.state_of("orders", db.visible_ts)
        assert state is not None
        (path / "objects" / str(state.table_id)).mkdir(parents=True, exist_ok=True)
        blocked = []
        # Folders in the way of every file that the second partition could write next.
        ordinals, attempts = shares(2)
        for number in range(ordinals * attempts, (ordinals + 4) * attempts):
            for job in range(1, 4):
                key = object_key(state.table_id, db.core.engine.last_job_id + job, number)
                blocked.append(path / "objects" / key)
        for folder in blocked:
            folder.mkdir()
            (folder / "in the way").touch()
        for mode in ("error", "upsert"):
            given = rows(spark).selectExpr("id + 100000 as id", "name", "amount")
            with pytest.raises(hc.UnavailableError, match="names for one file are taken"):
                hs.load(given, db, "orders", on_conflict=mode, token=TOKEN)
            assert now(db) == OLD
        for folder in blocked:
            (folder / "in the way").unlink()
            folder.rmdir()
        assert files(path) - known(db), "the other partition has written something"
        db.gc()
        assert files(path) <= known(db)
        report = hs.load(rows(spark), db, "orders", on_conflict="upsert", token=TOKEN)
        assert not report.already_committed
        assert now(db) == OLD | NEW

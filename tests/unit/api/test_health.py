"""db.health(): what is where, in what shape, and what is owed and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import halocline
from halocline import Database, UsageError
from tests.clock import ManualClock
from tests.roles import maintenance_of
from tests.store.faulty import FaultyFiles
from tests.unit.read.moving import TINY, bulk_delete, flush, let_go, move, state_of

CALM = replace(TINY, move_age_s=10**6)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def db(clock: ManualClock) -> Iterator[Any]:
    with Database(FaultyFiles(), "memory", options=TINY, clock=clock, retention="1h") as db:
        db.create_table("t", {"id": int, "text": str}, primary_key="id")
        yield db
        assert not db.check()


def put(db: Any, *keys: int) -> None:
    for key in keys:  # one by one: many rows of one transaction would be an object at once
        with db.begin() as txn:
            txn.upsert("t", {"id": key, "text": f"row {key}"})


def drop(db: Any, *keys: int) -> None:
    for key in keys:
        with db.begin() as txn:
            txn.delete("t", key)


def owed(db: Any) -> dict[str, str]:
    return {one.work: one.why for one in db.health().owed}


def test_an_empty_database_is_well(db: Any) -> None:
    health = db.health()
    assert health.is_well
    assert list(health.tables) == ["t"]
    table = health.tables["t"]
    assert (table.l0_rows, table.l0_tombstones, table.levels) == (0, 0, ())
    assert "owed: nothing" in str(health)
    assert repr(health) == str(health)


def test_rows_and_bytes_of_every_tier(db: Any) -> None:
    put(db, *range(10))
    before = db.health().tables["t"]
    assert (before.l0_rows, before.shape.rows) == (10, 0)
    assert before.l0_bytes > 0
    move(db, "t")
    put(db, 100, 101, 102)
    drop(db, 0, 100)
    flush(db, "t")
    let_go(db, "t")
    table = db.health().tables["t"]
    assert table.l0_rows == 3
    assert table.l0_tombstones == 1, "the other one is in an object"
    assert (table.shape.rows, table.shape.tombstones, table.shape.tombstone_objects) == (10, 2, 1)
    (level,) = table.levels
    assert (level.level, level.objects, level.rows) == (1, 1, 10)
    assert level.size_bytes + table.tombstone_bytes == table.shape.size_bytes
    assert (table.depth, table.shape.dead_rows, table.dead_share) == (1, 1, 0.1)
    health = db.health()
    assert health.l0_bytes == table.l0_bytes
    assert health.l0_budget_bytes == (1 << 30) // 4
    assert (health.visible_ts, health.floor) == (db.visible_ts, db.floor)
    assert [pool.name for pool in health.pools] == ["index", "data"]


def test_a_move_is_owed_by_age_and_by_rows(db: Any, clock: ManualClock) -> None:
    put(db, 1)
    assert not db.health().owed
    clock.advance(75)
    assert "has been in L0 for 75 s, above 60" in owed(db)["move"]
    drop(db, 1)
    clock.advance(75)
    assert "1 tombstones are in memory" in owed(db)["flush"]
    db.flush()
    assert list(owed(db)) == ["compact"]


def test_a_move_is_owed_by_number(clock: ManualClock) -> None:
    options = replace(CALM, move_rows=20, move_tombstones=5)
    with Database(FaultyFiles(), "memory", options=options, clock=clock) as db:
        db.create_table("t", {"id": int, "text": str}, primary_key="id")
        put(db, *range(20))
        assert owed(db) == {"move": "20 rows are in L0, 20 make an object"}
        db.flush()
        drop(db, *range(5))
        assert list(owed(db)) == ["flush", "compact"]


def test_a_move_is_owed_by_bytes(clock: ManualClock) -> None:
    options = replace(CALM, move_bytes=2000)
    with Database(FaultyFiles(), "memory", options=options, clock=clock) as db:
        db.create_table("t", {"id": int, "text": str}, primary_key="id")
        put(db, *range(40))
        assert "make an object" in owed(db)["move"]


def test_compaction_is_owed_with_its_reason(db: Any) -> None:
    for number in range(5):
        put(db, *range(number, 50, 5))
        move(db, "t")
    assert owed(db) == {"compact": owed(db)["compact"]}
    assert owed(db)["compact"].startswith("more than 4 objects hold one key (5 objects, ")
    assert db.health().tables["t"].depth == 5
    db.compact()
    assert "compact" not in owed(db)
    assert db.health().tables["t"].ended_objects == 5
    drop(db, *range(4))
    assert owed(db)["compact"].startswith("more than 20 % of the rows of an object ended")


def test_what_is_too_large_here_says_so(clock: ManualClock) -> None:
    options = replace(TINY, compact_local_bytes=1000)
    with Database(FaultyFiles(), "memory", options=options, clock=clock) as db:
        db.create_table("t", {"id": int, "text": str}, primary_key="id")
        for number in range(5):
            put(db, *range(number, 50, 5))
            move(db, "t")
        assert "left for Spark" in owed(db)["compact"]


def test_gc_is_owed_once_nobody_needs_the_objects(db: Any, clock: ManualClock) -> None:
    for number in range(5):
        put(db, *range(number, 50, 5))
        move(db, "t")
    db.compact()
    assert "gc" not in owed(db), "younger than the retention time"
    clock.advance(7200)
    put(db, 1)
    clock.advance(7200)
    assert owed(db)["gc"].startswith("5 ended objects, ")
    db.gc()
    assert "gc" not in owed(db)
    assert db.health().tables["t"].ended_objects == 0


def test_a_checkpoint_is_owed_by_bytes_of_log(clock: ManualClock) -> None:
    options = replace(CALM, checkpoint_log_bytes=3000)
    with Database(FaultyFiles(), "memory", options=options, clock=clock) as db:
        db.create_table("t", {"id": int, "text": str}, primary_key="id")
        before = db.health().tail_bytes
        assert before is not None
        put(db, *range(30))
        after = db.health().tail_bytes
        assert after is not None
        assert after > before + 3000
        assert "of log since the last one" in owed(db)["checkpoint"]
        db.checkpoint()
        assert "checkpoint" not in owed(db)


def test_a_file_that_cannot_be_read_is_a_trouble_not_an_error(db: Any) -> None:
    put(db, *range(10))
    move(db, "t")
    bulk_delete(db, "t", [3])
    entry = state_of(db, "t").shape.tier.tombstones[0]
    store = state_of(db, "t").shelf.objects
    data = store.read(entry.key)
    store.delete(entry.key)
    health = db.health()
    assert not health.is_well
    assert entry.key in health.troubles["table t"]
    assert health.tables["t"].shape.rows == 10
    assert f"trouble: table t: objects/{entry.key}" in str(health)
    store.put(entry.key, data)
    assert not db.health().troubles


def test_the_text_is_a_table(db: Any) -> None:
    put(db, *range(10))
    move(db, "t")
    db.create_table("another table", {"id": int}, primary_key="id")
    lines = str(db.health()).splitlines()
    head = next(line for line in lines if line.startswith("table "))
    (first, second) = lines[lines.index(head) + 1 : lines.index(head) + 3]
    assert first.startswith("another table ")
    assert second.startswith("t ")
    assert "L1: 1" in second
    assert len(first) == len(second)


def test_a_reader_may_ask(tmp_path: Path) -> None:
    with halocline.open(tmp_path / "db", options=TINY) as db:
        db.create_table("t", {"id": int, "text": str}, primary_key="id")
        put(db, *range(10))
        move(db, "t")
        put(db, 20)
        with halocline.open(tmp_path / "db", read_only=True, options=TINY) as reader:
            seen, known = reader.health().tables["t"], db.health().tables["t"]
            assert replace(seen, l0_bytes=0) == replace(known, l0_bytes=0)
            put(db, 21)
            assert reader.health().tables["t"].l0_rows == 2, "it looks at what is new"
    with pytest.raises(UsageError):
        db.health()


def test_errors_of_the_background_are_told() -> None:
    options = replace(TINY, background=True, move_rows=10**6)
    with Database(FaultyFiles(), "memory", options=options) as db:
        assert maintenance_of(db).merging is not None
        step = maintenance_of(db).merging.steps[0]
        step.error = OSError("no space")
        step.again_at = float("inf")
        assert db.health().troubles == {"compact": "OSError: no space"}

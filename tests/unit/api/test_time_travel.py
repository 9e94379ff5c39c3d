"""at=: the past by timestamp and by clock, until the floor has passed it."""

from __future__ import annotations

import datetime as dt
import gc
import random
from typing import Any

import pytest

import halocline as hc
from halocline import Database
from halocline.rows import TableState
from tests.clock import ManualClock
from tests.store.faulty import FaultyFiles

UTC = dt.UTC
EPOCH = dt.datetime(1970, 1, 1, tzinfo=UTC)
OPTIONS = hc.Options(page_rows=4, bulk_rows=6, background=False)


class World:
    """A database in memory, its clock, and what it held at every timestamp."""

    def __init__(self, retention: str = "1d") -> None:
        self.files = FaultyFiles()
        self.clock = ManualClock(5)
        self.retention = retention
        self.db = self.open()
        self.db.create_table("t", {"id": int, "v": int}, primary_key="id")
        self.states: dict[int, Any] = {self.db.visible_ts: ({}, self.now())}
        self.model: dict[int, int] = {}

    def open(self) -> Any:
        return Database(
            self.files, "past", options=OPTIONS, clock=self.clock, retention=self.retention
        )

    def reopen(self) -> None:
        assert not self.db.check()
        self.db.close()
        self.db = self.open()

    def now(self) -> dt.datetime:
        return EPOCH + dt.timedelta(microseconds=self.clock.wall_us())

    def commit(self, changes: dict[int, int | None]) -> int:
        with self.db.begin() as txn:
            for key, value in changes.items():
                if value is None:
                    txn.delete("t", key)
                else:
                    txn.upsert("t", {"id": key, "v": value})
        self.model.update({k: v for k, v in changes.items() if v is not None})
        for key in [key for key, value in changes.items() if value is None]:
            self.model.pop(key, None)
        if txn.commit_ts is not None:
            self.states[txn.commit_ts] = (dict(self.model), self.now())
        return txn.commit_ts

    def seen(self, at: Any) -> dict[int, int]:
        """The table at a point in time, through every way to ask."""
        db = self.db
        with db.begin(at=at) as txn:
            rows = {row["id"]: row["v"] for row in txn.scan("t").to_pylist()}
            assert {row["id"]: row["v"] for row in txn.range("t").to_pylist()} == rows
            for key in range(6):
                got = txn.get("t", key)
                assert (None if got is None else got["v"]) == rows.get(key)
            assert txn.get_many("t", list(range(6))).num_rows == sum(k < 6 for k in rows)
        assert db.table("t").count(at=at) == len(rows)
        assert db.table("t").to_arrow(at=at).num_rows == len(rows)
        return rows


@pytest.mark.parametrize("seed", range(3))
def test_every_timestamp_and_every_moment_shows_its_state(seed: int) -> None:
    rng = random.Random(seed)
    world = World()
    for _ in range(20):
        world.clock.advance(rng.choice([0, 0.000001, 1, 3600]))
        keys = rng.sample(range(12), rng.choice([1, 2, 8]))
        world.commit({key: rng.choice([None, rng.randrange(100)]) for key in keys})
        if rng.random() < 0.2:
            world.reopen()
    moments: dict[dt.datetime, dict[int, int]] = {}
    for ts, (state, moment) in world.states.items():
        assert world.seen(ts) == state, seed
        moments[moment] = state  # of commits at one moment the last counts
    for moment, state in moments.items():
        assert world.seen(moment) == state, seed
        zone = dt.timezone(dt.timedelta(hours=rng.randrange(-12, 13)))
        assert world.seen(moment.astimezone(zone)) == state
    world.db.close()


def test_a_moment_between_two_commits_shows_the_first() -> None:
    world = World()
    world.clock.advance(10)
    world.commit({1: 1})
    first = world.now()
    world.clock.advance(10)
    world.commit({1: 2})
    second = world.now()
    micro = dt.timedelta(microseconds=1)
    for moment, value in (
        (first, 1),
        (first + micro, 1),
        (second - micro, 1),
        (second, 2),
    ):
        assert world.seen(moment) == {1: value}
    assert world.seen(first - micro) == {}
    with pytest.raises(hc.NotFoundError, match="table 't'"):
        world.seen(dt.datetime(2001, 1, 1, tzinfo=UTC))
    world.db.close()


def test_a_clock_that_steps_back_does_not_reorder_the_past() -> None:
    world = World()
    world.clock.advance(100)
    world.commit({1: 1})
    moment = world.now()
    world.clock.advance(-50)
    world.commit({1: 2})
    assert world.seen(moment) == {1: 2}  # committed at the same moment, as far as one can tell
    assert world.seen(moment - dt.timedelta(seconds=1)) == {}
    world.clock.advance(100)
    world.commit({1: 3})
    assert world.seen(world.now() - dt.timedelta(seconds=1)) == {1: 2}
    walls = world.db.table("t").history().column("committed_at").to_pylist()
    assert walls == sorted(walls)
    world.db.close()


def test_at_zero_there_was_nothing() -> None:
    world = World()
    with world.db.begin(at=0) as txn:
        assert txn.tables() == []
        with pytest.raises(hc.NotFoundError, match="no tables"):
            txn.scan("t")
    world.db.close()


def test_a_dropped_table_is_there_in_the_past() -> None:
    world = World()
    ts = world.commit({1: 1, 2: 2})
    world.db.drop_table("t")
    world.db.create_table("t", {"other": str})
    world.reopen()
    assert world.db.table("t").schema.names == ["other"]
    with world.db.begin(at=ts) as txn:
        assert txn.get("t", 1) == {"id": 1, "v": 1}
        assert txn.scan("t").num_rows == 2
        assert txn.sql("select sum(v) as s from t").to_pylist() == [{"s": 3}]
    world.db.close()


def test_t01_an_open_snapshot_does_not_move(own_db: Any) -> None:
    txn = own_db.begin()
    before = txn.scan("orders")
    with own_db.begin() as other:
        other.delete("orders", where="id < 3")
        other.insert("orders", {"id": 77, "qty": 1})
    assert txn.scan("orders") == before
    assert txn.get("orders", 77) is None
    assert txn.get("orders", 1) is not None
    assert txn.range("orders").num_rows == 5
    assert txn.sql("select count(*) as n from orders").to_pylist() == [{"n": 5}]
    txn.rollback()


def test_what_lies_below_the_floor_has_expired_by_every_way_to_ask() -> None:
    world = World(retention="1h")
    old = world.commit({1: 1})
    moment = world.now()
    world.clock.advance(7200)
    kept = world.commit({1: 2})
    assert world.seen(old) == {1: 1}, "nothing expires before it is collected"
    result = world.db.gc()
    floor = result["floor"]
    assert old == floor, "the state of an hour ago is that of the old commit"
    world.clock.advance(7200)
    floor = world.db.gc()["floor"]
    assert floor == kept == world.db.floor
    db = world.db
    for at in (old, moment, 0, dt.datetime(2001, 1, 1, tzinfo=UTC)):
        for ask in (
            lambda at=at: db.begin(at=at),
            lambda at=at: db.table("t").count(at=at),
            lambda at=at: db.table("t").to_arrow(at=at),
            lambda at=at: db.table("t").files(at=at),
            lambda at=at: db.sql("select 1", at=at),
            lambda at=at: db.changes("t", at),
        ):
            with pytest.raises(hc.SnapshotExpiredError) as error:
                ask()
            assert error.value.floor == floor
            assert error.value.ts < floor
    assert world.seen(kept) == {1: 2}
    world.reopen()
    with pytest.raises(hc.SnapshotExpiredError):
        world.db.begin(at=old)
    assert world.seen(kept) == {1: 2}
    world.db.close()


def test_an_open_transaction_holds_the_floor_down() -> None:
    world = World(retention="0s")
    old = world.commit({1: 1, 2: 2})
    reader = world.db.begin()
    past = world.db.begin(at=old)
    for n in range(10):
        world.commit({1: n, 2: None if n % 2 else n})
        world.clock.advance(10)
    assert world.db.gc()["floor"] == old
    for txn in (reader, past):
        assert txn.get("t", 1) == {"id": 1, "v": 1}
        assert txn.scan("t").num_rows == 2
        txn.rollback()
    assert world.db.gc()["floor"] == world.db.visible_ts
    with pytest.raises(hc.SnapshotExpiredError):
        world.db.begin(at=old)
    world.reopen()
    world.db.close()


def test_the_floor_never_falls_whatever_retention_says_later() -> None:
    world = World(retention="0s")
    old = world.commit({1: 1})
    world.clock.advance(10)
    world.commit({1: 2})
    floor = world.db.gc()["floor"]
    world.retention = "365d"
    world.reopen()
    assert world.db.floor == floor
    world.clock.advance(-100)
    assert world.db.gc()["floor"] == floor
    with pytest.raises(hc.SnapshotExpiredError):
        world.db.begin(at=old)
    world.db.close()


def test_collecting_takes_old_versions_and_leaves_the_rest_readable() -> None:
    world = World(retention="0s")
    for n in range(20):
        world.commit(dict.fromkeys(range(8), n))
        world.clock.advance(1)
    before = rows = world.seen(world.db.visible_ts)
    result = world.db.gc()
    assert result["versions"] > 100
    assert world.seen(world.db.visible_ts) == before == rows
    assert world.db.gc()["versions"] == 0
    world.commit(dict.fromkeys(range(8)))
    world.clock.advance(1)
    assert world.seen(world.db.visible_ts) == {}
    world.commit({1: 5})
    assert world.seen(world.db.visible_ts) == {1: 5}
    world.reopen()
    assert world.seen(world.db.visible_ts) == {1: 5}
    world.db.close()


def test_undoing_a_bad_delete(own_db: Any) -> None:
    """What `at=` is for."""
    before = own_db.visible_ts
    rows = own_db.table("orders").to_arrow()
    with own_db.begin() as txn:
        assert txn.delete("orders", where="qty = 1") == 5
    with own_db.begin() as txn:
        assert txn.insert("orders", own_db.table("orders").to_arrow(at=before)) == 5
    assert own_db.table("orders").to_arrow() == rows


def test_a_dropped_table_leaves_memory_when_it_has_expired() -> None:
    world = World(retention="1s")
    db = world.db
    for n in range(3):
        db.create_table(f"short{n}", {"id": int}, primary_key="id")
        with db.begin() as txn:
            txn.insert(f"short{n}", {"id": 1})
        with db.begin() as txn:
            assert txn.get(f"short{n}", 1) == {"id": 1}
        db.drop_table(f"short{n}")
    assert _short_lived() == 3
    world.clock.advance(10)
    assert db.gc()["tables"] == 3
    assert _short_lived() == 0
    db.create_table("short0", {"id": int}, primary_key="id")
    assert db.table("short0").count() == 0
    world.reopen()
    assert world.db.tables() == ["short0", "t"]
    world.db.close()


def _short_lived() -> int:
    """States of such tables that anybody still holds."""
    gc.collect()
    states = [each for each in gc.get_objects() if isinstance(each, TableState)]
    return sum(state.entry.name.startswith("short") for state in states)


def test_a_timestamp_may_come_out_of_a_frame() -> None:
    world = World()
    first = world.commit({1: 1})
    world.commit({1: 2})
    stamps = world.db.changes("t", since=0).to_pandas()["_commit_ts"]
    with world.db.begin(at=stamps.min()) as past:
        assert (past.snapshot, past.get("t", 1)) == (first, {"id": 1, "v": 1})
    world.db.close()

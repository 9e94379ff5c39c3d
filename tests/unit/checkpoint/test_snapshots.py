"""Named snapshots: read by name, durable at once, kept until they are dropped."""

from __future__ import annotations

import datetime as dt
import threading
from typing import Any

import pytest

import halocline as hc
from tests.unit.checkpoint.rig import World, seen


def test_a_snapshot_is_read_by_its_name_in_every_way() -> None:
    world = World()
    db = world.db
    world.put({1: 1, 2: 2})
    ts = db.snapshot("before")
    assert ts == db.visible_ts
    last = world.put({1: 10, 2: None, 3: 30})
    with db.begin(at="before") as txn:
        assert txn.snapshot == ts
        assert txn.get("t", 1) == {"id": 1, "v": 1}
        with pytest.raises(hc.UsageError, match="read-only"):
            txn.insert("t", {"id": 9})
    assert db.sql("select sum(v) as s from t", at="before").to_pylist() == [{"s": 3}]
    assert db.table("t").count(at="before") == 2
    assert db.table("t").to_arrow(at="before").num_rows == 2
    changes = db.changes("t", since="before")
    assert set(changes.column("_commit_ts").to_pylist()) == {last}
    assert changes.num_rows == 4
    assert db.changes("t", since=0, until="before").num_rows == 2
    world.close()


def test_snapshots_are_listed_oldest_first() -> None:
    world = World()
    assert world.db.snapshots() == []
    world.put({1: 1})
    moment = dt.datetime.fromtimestamp(world.clock.now_us / 1e6, dt.UTC)
    first = world.db.snapshot("zebra")
    world.put({1: 2})
    second = world.db.snapshot("Ape")
    again = world.db.snapshot("same moment")
    found = world.db.snapshots()
    assert [one.name for one in found] == ["zebra", "Ape", "same moment"]
    assert [one.ts for one in found] == [first, second, again]
    assert found[0].created == moment
    assert found[0].created.tzinfo is not None
    world.close()


def test_names_follow_the_rules_of_tables() -> None:
    world = World()
    db = world.db
    db.snapshot("Before Lunch")
    with pytest.raises(hc.AlreadyExistsError, match="snapshot 'Before Lunch'"):
        db.snapshot("BEFORE LUNCH")
    assert seen(db, "before lunch") == {}
    bad: list[Any] = ["", "_x", "a\nb", "x" * 256, 7, None, b"x"]
    for name in bad:
        with pytest.raises(hc.UsageError):
            db.snapshot(name)
    for call in (db.drop_snapshot, lambda name: db.begin(at=name)):
        with pytest.raises(hc.NotFoundError, match="Before Lunch"):
            call("dinner")
    db.drop_snapshot("BEFORE lunch")
    assert db.snapshots() == []
    with pytest.raises(hc.NotFoundError, match="snapshot 'Before Lunch'"):
        db.begin(at="Before Lunch")
    assert db.snapshot("before lunch") == db.visible_ts, "the name is free again"
    world.close()


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_a_snapshot_is_durable_when_the_call_returns(durability: str) -> None:
    world = World(durability=durability)
    world.put({1: 1})
    ts = world.db.snapshot("kept")
    world.db.snapshot("dropped")
    world.db.drop_snapshot("dropped")
    world.files = world.files.crash_image(none=True)
    world.db = world.open()
    assert [(one.name, one.ts) for one in world.db.snapshots()] == [("kept", ts)]
    assert seen(world.db, "kept") == {1: 1}
    world.reopen()
    assert [one.name for one in world.db.snapshots()] == ["kept"]
    world.close()


def test_a_snapshot_holds_the_horizon_until_it_is_dropped() -> None:
    world = World(retention=0)
    world.put({1: 1})
    ts = world.db.snapshot("kept")
    for value in range(20):
        world.put({1: value, 2: value})
        world.old(1)
    report = world.db.gc()
    assert report.floor == ts
    assert any("held by snapshot 'kept'" in one.reason for one in report.kept)
    world.reopen()
    assert world.db.gc().floor == ts
    assert seen(world.db, "kept") == {1: 1}
    world.db.drop_snapshot("kept")
    report = world.db.gc()
    assert report.floor == world.db.visible_ts > ts
    assert report.versions > 0
    assert not any("snapshot" in one.reason for one in report.kept)
    with pytest.raises(hc.SnapshotExpiredError):
        world.db.begin(at=ts)
    world.close()


def test_a_reader_sees_the_names_and_may_not_change_them() -> None:
    world = World()
    world.put({1: 1})
    world.db.snapshot("first")
    reader = world.open(read_only=True)
    assert [one.name for one in reader.snapshots()] == ["first"]
    world.put({1: 2})
    world.db.snapshot("second")
    assert seen(reader, "second") == {1: 2}
    assert seen(reader, "FIRST") == {1: 1}
    call: Any
    for call in (reader.snapshot, reader.drop_snapshot):
        with pytest.raises(hc.UnavailableError, match="read-only"):
            call("first")
    world.db.drop_snapshot("first")
    with pytest.raises(hc.NotFoundError):
        reader.begin(at="first")
    reader.close()
    for call in (reader.snapshot, reader.drop_snapshot, lambda _: reader.snapshots()):
        with pytest.raises(hc.UsageError, match="closed"):
            call("first")
    world.close()


def test_a_snapshot_taken_beside_gc_is_never_below_the_floor() -> None:
    world = World(retention=0)
    db = world.db
    stop = threading.Event()
    found: list[tuple[int, int, dict[int, int]]] = []

    def collect() -> None:
        while not stop.is_set():
            db.gc()

    def keep() -> None:
        for number in range(40):
            ts = db.snapshot(f"s{number}")
            found.append((ts, db.floor, seen(db, f"s{number}")))
            db.drop_snapshot(f"s{number}")
        stop.set()

    threads = [threading.Thread(target=collect), threading.Thread(target=keep)]
    for thread in threads:
        thread.start()
    while not stop.is_set():
        world.put({1: 1, 2: 2})
        world.clock.advance(1)
    for thread in threads:
        thread.join(60)
    assert len(found) == 40
    assert all(floor <= ts for ts, floor, _ in found)
    world.close()

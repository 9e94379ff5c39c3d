"""The change feed: replayed onto nothing it is the table, at every timestamp."""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import pyarrow as pa
import pytest

import halocline as hc
from halocline import Database
from tests.clock import ManualClock
from tests.store.faulty import FaultyFiles
from tests.unit.rows.rig import seeds

Model = dict[Any, dict[str, Any]]
UTC = dt.UTC
ARROW = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("a", pa.int64()), ("b", pa.string())]
)
FEED = ARROW.append(pa.field("_change", pa.string(), nullable=False)).append(
    pa.field("_commit_ts", pa.int64(), nullable=False)
)


@pytest.fixture
def clock() -> ManualClock:
    """One second passes with every commit that a test makes through `_commit`."""
    return ManualClock(3)


@pytest.fixture
def db(clock: ManualClock) -> Any:
    """A database in memory whose pages hold four rows and whose bulk starts at six."""
    options = hc.Options(page_rows=4, bulk_rows=6, background=False)
    db = Database(FaultyFiles(), "feed", options=options, clock=clock, retention="1d")
    db.create_table("t", ARROW, primary_key="id")
    yield db
    assert not db.check()
    db.close()


def replay(model: Model, feed: pa.Table) -> Model:
    """Apply events one by one; each must fit what is there, or the feed is wrong."""
    for event in feed.to_pylist():
        change, _ = event.pop("_change"), event.pop("_commit_ts")
        key = event["id"]
        if change in ("insert", "update_after"):
            assert key not in model, (change, event)
            model[key] = event
        else:
            assert model.pop(key) == event, (change, event)
    return model


def rows_at(db: Any, at: int | None = None) -> Model:
    """What the table holds, by key."""
    return {row["id"]: row for row in db.table("t").to_arrow(at=at).to_pylist()}


def _random_commit(db: Any, rng: random.Random) -> None:
    with db.begin() as txn:
        for _ in range(rng.randrange(1, 4)):
            keys = rng.sample(range(20), rng.choice([1, 2, 3, 9]))
            rows = [{"id": k, "a": rng.randrange(5), "b": rng.choice("xyz")} for k in keys]
            verb = rng.choice(["upsert", "arrow", "delete", "update", "move", "where", "gone"])
            if verb == "upsert":
                txn.upsert("t", [{n: row[n] for n in ("id", rng.choice("ab"))} for row in rows])
            elif verb == "arrow":
                txn.upsert("t", pa.Table.from_pylist(rows, schema=ARROW))
            elif verb == "delete":
                for key in keys:
                    txn.delete("t", key)
            elif verb == "update" and txn.get("t", keys[0]):
                txn.update("t", keys[0], {"a": rng.randrange(5)})
            elif verb == "move" and txn.get("t", keys[0]) and not txn.get("t", keys[0] + 50):
                txn.update("t", keys[0], {"id": keys[0] + 50})
            elif verb == "where":
                txn.update("t", where="a = ?", params=[rng.randrange(5)], set={"b": "where"})
            else:
                txn.delete("t", where="a = ? and id > 10", params=[rng.randrange(5)])


@pytest.mark.parametrize("seed", seeds(8))
def test_the_feed_replayed_is_the_table_at_every_timestamp(db: Any, seed: int, sim: bool) -> None:
    rng = random.Random(seed)
    for _ in range(60 if sim else 25):
        _random_commit(db, rng)
    last = db.visible_ts
    states = [rows_at(db, ts) if ts else {} for ts in range(1, last + 1)]
    states.insert(0, {})
    whole = db.changes("t", 0)
    assert whole.schema == FEED
    for ts in range(last + 1):
        assert replay({}, db.changes("t", 0, ts) if ts else FEED.empty_table()) == states[ts]
    for _ in range(20):
        since, until = sorted(rng.choices(range(1, last + 1), k=2))
        part = db.changes("t", since, until)
        assert replay(dict(states[since]), part) == states[until], seed
        stamps = whole.column("_commit_ts").to_numpy()
        assert part == whole.filter(pa.array((stamps > since) & (stamps <= until))), seed


@pytest.mark.parametrize("seed", range(3))
def test_the_feed_survives_a_reopen_and_undo_gc_above_the_floor(
    clock: ManualClock, seed: int
) -> None:
    rng = random.Random(seed)
    files = FaultyFiles()
    options = hc.Options(page_rows=4, bulk_rows=6, background=False)
    db = Database(files, "feed", options=options, clock=clock, retention="10s")
    db.create_table("t", ARROW, primary_key="id")
    for _ in range(30):
        clock.advance(1)
        _random_commit(db, rng)
    before = {ts: db.changes("t", ts) for ts in range(1, db.visible_ts + 1)}
    floor = db.gc()["floor"]
    assert 1 < floor < db.visible_ts
    for life in range(2):
        for ts, feed in before.items():
            if ts < floor:
                with pytest.raises(hc.SnapshotExpiredError) as error:
                    db.changes("t", ts)
                assert (error.value.ts, error.value.floor) == (ts, floor)
            else:
                assert db.changes("t", ts) == feed, (seed, life, ts)
        assert replay(rows_at(db, floor), db.changes("t", floor)) == rows_at(db)
        assert not db.check()
        db.close()
        db = Database(files, "feed", options=options, clock=clock, retention="10s")
        assert db.floor == floor
    db.close()


def _events(db: Any, since: int, until: int | None = None) -> list[tuple[Any, ...]]:
    return [
        (row["_change"], row["id"], row["a"], row["_commit_ts"])
        for row in db.changes("t", since, until).to_pylist()
    ]


def test_inside_a_commit_what_ends_comes_before_what_begins(db: Any) -> None:
    with db.begin() as txn:
        txn.insert("t", [{"id": n, "a": n} for n in range(4)])
    with db.begin() as txn:
        txn.update("t", 2, {"a": 20})
        txn.delete("t", 0)
        txn.insert("t", {"id": 9, "a": 9})
        txn.update("t", 3, {"id": 0})  # onto the key that has just become free
    ts = txn.commit_ts
    assert _events(db, ts - 1) == [
        ("delete", 0, 0, ts),
        ("update_before", 2, 2, ts),
        ("delete", 3, 3, ts),
        ("update_after", 2, 20, ts),
        ("insert", 9, 9, ts),
        ("insert", 0, 3, ts),
    ]


def test_a_row_that_came_and_went_in_one_transaction_is_not_in_the_feed(db: Any) -> None:
    with db.begin() as txn:
        txn.insert("t", {"id": 1, "a": 1})
        txn.insert("t", {"id": 2, "a": 2})
        txn.delete("t", 1)
    assert _events(db, 0) == [("insert", 2, 2, txn.commit_ts)]
    with db.begin() as txn:
        txn.update("t", 2, {"a": 3})
        txn.update("t", 2, {"a": 4})
    ts = txn.commit_ts
    assert _events(db, ts - 1) == [("update_before", 2, 2, ts), ("update_after", 2, 4, ts)]


def test_an_update_to_an_equal_value_is_in_the_feed(db: Any) -> None:
    with db.begin() as txn:
        txn.insert("t", {"id": 1, "a": 1})
    with db.begin() as txn:
        txn.update("t", 1, {"a": 1})
    ts = txn.commit_ts
    assert _events(db, ts - 1) == [("update_before", 1, 1, ts), ("update_after", 1, 1, ts)]


def test_since_is_left_out_and_until_is_in(db: Any) -> None:
    stamps = []
    for n in range(4):
        with db.begin() as txn:
            txn.insert("t", {"id": n, "a": n})
        stamps.append(txn.commit_ts)
    assert [e[1] for e in _events(db, stamps[0], stamps[2])] == [1, 2]
    assert _events(db, stamps[3]) == []
    assert _events(db, stamps[1], stamps[1]) == []
    with pytest.raises(hc.UsageError, match="comes after until="):
        _events(db, stamps[2], stamps[1])
    assert [e[1] for e in _events(db, 0)] == [0, 1, 2, 3]
    assert db.changes("t", stamps[3]).schema == FEED


def test_the_feed_by_the_clock(db: Any, clock: ManualClock) -> None:
    moments = []
    for n in range(4):
        clock.advance(10)
        with db.begin() as txn:
            txn.insert("t", {"id": n, "a": n})
        moments.append(dt.datetime.fromtimestamp(clock.wall_us() / 1e6, UTC))
    assert [e[1] for e in _events(db, moments[0], moments[2])] == [1, 2]
    later = moments[2] + dt.timedelta(seconds=5)
    assert [e[1] for e in _events(db, later)] == [3]
    assert [e[1] for e in _events(db, moments[0] - dt.timedelta(days=1), later)] == [0, 1, 2]
    tokyo = moments[1].astimezone(dt.timezone(dt.timedelta(hours=9)))
    assert [e[1] for e in _events(db, tokyo)] == [2, 3]


def test_others_tables_and_open_transactions_are_not_in_the_feed(db: Any) -> None:
    db.create_table("u", {"id": int}, primary_key="id")
    with db.begin() as txn:
        txn.insert("u", {"id": 1})
    open_one = db.begin()
    open_one.insert("t", {"id": 7})
    rolled_back = db.begin()
    rolled_back.insert("t", {"id": 8})
    rolled_back.rollback()
    assert _events(db, 0) == []
    open_one.commit()
    assert [e[1] for e in _events(db, 0)] == [7]


def test_the_feed_of_a_table_that_was_made_again_is_that_of_the_new_one(db: Any) -> None:
    with db.begin() as txn:
        txn.insert("t", {"id": 1, "a": 1})
    first = db.visible_ts
    db.drop_table("t")
    with pytest.raises(hc.NotFoundError):
        db.changes("t", 0)
    db.create_table("t", ARROW, primary_key="id")
    with db.begin() as txn:
        txn.insert("t", {"id": 2, "a": 2})
    assert [e[1] for e in _events(db, 0)] == [2]
    assert [e[1] for e in _events(db, 0, first)] == [1]


def test_a_table_without_a_key_has_a_feed(db: Any) -> None:
    db.create_table("log", {"n": int})
    with db.begin() as txn:
        txn.insert("log", [{"n": 1}, {"n": 1}, {"n": 2}])
    with db.begin() as txn:
        txn.update("log", where="n = 2", set={"n": 3})
        txn.delete("log", where="n = 1")
    feed = db.changes("log", 0).to_pylist()
    assert [(event["_change"], event["n"]) for event in feed] == [
        ("insert", 1),
        ("insert", 1),
        ("insert", 2),
        ("delete", 1),
        ("delete", 1),
        ("update_before", 2),
        ("update_after", 3),
    ]


def test_a_feed_below_the_floor_has_expired(db: Any, clock: ManualClock) -> None:
    for n in range(3):
        with db.begin() as txn:
            txn.upsert("t", {"id": 1, "a": n})
        clock.advance(86400 * 2)
    assert _events(db, 1)
    floor = db.gc()["floor"]
    assert floor == db.floor == db.visible_ts
    for since in (0, 1, floor - 1):
        with pytest.raises(hc.SnapshotExpiredError, match=str(floor)):
            db.changes("t", since)
    with pytest.raises(hc.SnapshotExpiredError):
        db.changes("t", dt.datetime(2001, 1, 1, tzinfo=UTC))
    with pytest.raises(hc.SnapshotExpiredError):
        db.changes("t", floor, floor - 1)
    assert _events(db, floor) == []


def test_history_tells_every_commit(db: Any, clock: ManualClock) -> None:
    expected = []
    for rows, deleted in (([1, 2, 3], []), ([4], [1]), ([], [2, 3])):
        clock.advance(60)
        with db.begin() as txn:
            txn.insert("t", [{"id": n, "a": n} for n in rows])
            for key in deleted:
                txn.delete("t", key)
        moment = dt.datetime.fromtimestamp(clock.wall_us() / 1e6, UTC)
        expected.append((txn.commit_ts, moment, len(rows), 0, len(deleted)))
    clock.advance(60)
    with db.begin() as txn:
        txn.update("t", 4, {"a": 40})
    moment = dt.datetime.fromtimestamp(clock.wall_us() / 1e6, UTC)
    expected.append((txn.commit_ts, moment, 0, 1, 0))
    found = db.table("t").history()
    names = ["commit_ts", "committed_at", "inserted", "updated", "deleted"]
    assert found.schema.names == [*names, "schema_version", "change"]
    assert [tuple(row.values()) for row in found.select(names).to_pylist()] == expected
    assert db.wall_of(txn.commit_ts) == moment
    db.create_table("empty", {"id": int})
    assert db.table("empty").history().num_rows == 0

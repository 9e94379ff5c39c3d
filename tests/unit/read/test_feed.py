"""The change feed over objects: tables without a key, TRUNCATE, versions born dead, GC."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from halocline import Database
from halocline.rows.nodes import Append
from halocline.rows.state import TableState
from tests.clock import ManualClock
from tests.store.faulty import FaultyFiles
from tests.unit.read import moving


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(3)


@pytest.fixture
def db(clock: ManualClock) -> Iterator[Any]:
    files = FaultyFiles()
    with Database(files, "feed", options=moving.TINY, clock=clock, retention="10s") as db:
        db.create_table("t", {"id": int, "text": str}, primary_key="id")
        db.create_table("plain", {"id": int, "text": str})
        yield db
        assert not db.check()


def events(db: Database, since: int, table: str = "t") -> list[tuple[Any, ...]]:
    feed = db.changes(table, since).to_pylist()
    return [(one["_change"], one["id"], one["text"]) for one in feed]


def put_away(db: Database, table: str) -> None:
    moving.move(db, table)
    moving.flush(db, table)
    moving.let_go(db, table)


def test_rows_of_a_table_without_a_key_are_found_by_rowid(db: Any) -> None:
    start = db.visible_ts
    with db.begin() as txn:
        txn.insert("plain", [{"id": key, "text": "same"} for key in (3, 1, 1, 2)])
    with db.begin() as txn:
        assert txn.delete("plain", where="id = 1") == 2
        assert txn.update("plain", where="id = 3", set={"text": "new"}) == 1
    before = db.changes("plain", start)
    assert events(db, start, "plain")[4:] == [
        ("update_before", 3, "same"),
        ("delete", 1, "same"),
        ("delete", 1, "same"),
        ("update_after", 3, "new"),
    ]
    put_away(db, "plain")
    assert not moving.state_of(db, "plain").shape.counted()
    assert db.changes("plain", start) == before
    moving.merge(db, "plain")
    assert db.changes("plain", start) == before


@pytest.mark.parametrize("trimmed", [False, True])
def test_truncate_deletes_the_rows_that_lived(db: Any, trimmed: bool) -> None:
    with db.begin() as txn:
        txn.insert("t", [{"id": key, "text": "old"} for key in range(4)])
    moving.move(db, "t")
    with db.begin() as txn:
        txn.delete("t", 1)
    if trimmed:
        put_away(db, "t")
    moving.bulk_insert(db, "t", [{"id": 9, "text": "bulk"}])
    since = db.visible_ts
    ts = moving.truncate(db, "t")
    deletes = [("delete", key, "old") for key in (0, 2, 3)] + [("delete", 9, "bulk")]
    assert sorted(events(db, since)) == deletes
    assert set(db.changes("t", since).column("_commit_ts").to_pylist()) == {ts}
    assert events(db, ts) == []
    with db.begin() as txn:
        txn.insert("t", {"id": 1, "text": "after"})
    assert sorted(events(db, since)) == [*deletes, ("insert", 1, "after")]


def test_a_version_born_dead_is_absent_and_its_successor_is_an_insert(db: Any) -> None:
    with db.begin() as txn:
        txn.insert("t", [{"id": key, "text": "old"} for key in (1, 2)])
    since = db.visible_ts
    ts = moving.bulk_insert(db, "t", [{"id": key, "text": "bulk"} for key in (5, 6, 7)])
    state = moving.state_of(db, "t")
    rowids = {key: find_rowid(state, key) for key in (5, 6)}
    # As a bulk commit does it: row 5 is ignored, row 6 has been replaced in the same record.
    node = Append(state.table_id, [(6, "rebased")], first_rowid=state.next_rowid)
    state.fold(node, ts)
    newest = state.tree.newest(6)
    state.deletes.ended[rowids[5]] = (ts, 0, (), 5)
    state.deletes.ended[rowids[6]] = (ts, newest, (), 6)
    expected = [("insert", 6, "rebased"), ("insert", 7, "bulk")]
    assert sorted(events(db, since)) == expected
    put_away(db, "t")
    assert sorted(events(db, since)) == expected
    moving.merge(db, "t")
    assert sorted(events(db, since)) == expected


def find_rowid(state: TableState, key: int) -> int:
    (entry,) = state.shape.tier.data
    assert entry.file is not None
    assert state.finder is not None
    (place,) = state.finder.locate(entry.file, key)
    return place.rowid


def test_rows_that_a_transaction_wrote_as_objects_and_changed_again(db: Any) -> None:
    """Real bulk commits: objects, rows in them that are born dead, and successors in objects."""
    start = db.visible_ts
    with db.begin() as txn:
        txn.insert("t", pa.table({"id": range(20), "text": ["bulk"] * 20}))
        txn.update("t", 3, {"text": "own update"})
        txn.delete("t", 4)
    with db.begin() as txn:
        assert txn.update("t", where="id < 16", set={"text": "where"}) == 15
        txn.delete("t", 5)
        txn.update("t", 6, {"text": "twice"})
    with db.begin() as txn:
        assert txn.delete("t", where="id >= 2") == 16
    assert moving.state_of(db, "t").shape.tier.bulk_since(start)
    first, second, third = sorted(set(db.changes("t", start).column("_commit_ts").to_pylist()))
    texts = {key: "own update" if key == 3 else "bulk" for key in range(20) if key != 4}
    inserts = sorted(("insert", *pair) for pair in texts.items())
    assert sorted(events_until(db, start, first)) == inserts
    after = {key: "twice" if key == 6 else "where" for key in range(16) if key not in (4, 5)}
    changed = [("update_before", key, texts[key]) for key in after]
    changed += [("update_after", *pair) for pair in after.items()]
    assert sorted(events_until(db, first, second)) == sorted([*changed, ("delete", 5, "bulk")])
    gone = {**texts, **after}
    deletes = sorted(("delete", key, gone[key]) for key in gone if key >= 2 and key != 5)
    assert sorted(events_until(db, second, third)) == deletes
    whole = db.changes("t", start)
    for step in (db.flush, db.compact, db.flush, db.compact):
        step("t")
        assert db.changes("t", start) == whole


def events_until(db: Database, since: int, until: int) -> list[tuple[Any, ...]]:
    feed = db.changes("t", since, until).to_pylist()
    return [(one["_change"], one["id"], one["text"]) for one in feed]


def test_gc_above_the_floor_changes_nothing(db: Any, clock: ManualClock) -> None:
    for number in range(12):
        with db.begin() as txn:
            txn.upsert("t", {"id": number % 5, "text": str(number)})
        clock.advance(seconds=1)
        if number % 3 == 2:
            put_away(db, "t")
        if number % 5 == 4:
            moving.merge(db, "t")
    whole = db.changes("t", db.floor)
    db.gc()
    assert db.floor > 1
    stamps = whole.column("_commit_ts").to_numpy()
    assert db.changes("t", db.floor) == whole.filter(pa.array(stamps > db.floor))


def test_history_counts_changes_without_reading_rows(db: Any) -> None:
    with db.begin() as txn:
        txn.insert("t", [{"id": key, "text": "old"} for key in range(6)])
    with db.begin() as txn:
        txn.update("t", 3, {"text": "new"})
        txn.delete("t", 4)
    before = db.table("t").history()
    assert before.select(["inserted", "updated", "deleted"]).to_pylist() == [
        {"inserted": 6, "updated": 0, "deleted": 0},
        {"inserted": 0, "updated": 1, "deleted": 1},
    ]
    put_away(db, "t")
    assert db.table("t").history() == before


def test_an_empty_feed_has_its_columns(db: Any) -> None:
    feed = db.changes("t", db.visible_ts)
    assert feed.num_rows == 0
    assert feed.column_names == ["id", "text", "_change", "_commit_ts"]
    assert np.asarray(feed.column("_commit_ts")).dtype == np.int64

"""Keys are found wherever their row is: in pages, on the way out of them, or in objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from halocline import Database, DuplicateKeyError
from halocline.read.locate import locate_many
from halocline.read.point import find, find_row
from tests.store.faulty import FaultyFiles
from tests.unit.read import moving

MOVES = ["in pages", "moved", "moved and trimmed"]


@pytest.fixture
def db() -> Iterator[Any]:
    with Database(FaultyFiles(), "memory", options=moving.TINY) as db:
        db.create_table("t", {"id": int, "text": str}, primary_key="id")
        yield db
        assert not db.check()


def fill(db: Database, keys: Any) -> None:
    for key in keys:
        with db.begin() as txn:
            txn.insert("t", {"id": key, "text": f"row {key}"})


def put_away(db: Database, move: str, end: int | None = None) -> None:
    if move != "in pages":
        moving.move(db, "t", *(() if end is None else (end,)))
    if move == "moved and trimmed":
        moving.flush(db, "t")
        moving.let_go(db, "t")


@pytest.mark.parametrize("move", MOVES)
def test_t25_m07_a_key_is_found_in_every_tier(db: Any, move: str) -> None:
    fill(db, range(10))
    put_away(db, move, 8)
    state, ts = moving.state_of(db, "t"), db.visible_ts
    for key in range(10):
        found = find_row(state, key, ts)
        assert found is not None
        assert found[1] == (key, f"row {key}")
        assert find(state, key, ts) == found[0]
    assert find_row(state, 10, ts) is None
    assert find(state, 10, ts) == 0
    located = locate_many(state, np.array([3, 99, 9, 0, 3]), ts)
    assert located.rowids.tolist() == [find(state, key, ts) for key in (3, 99, 9, 0, 3)]
    assert located.take().column("id").to_pylist() == [3, 9, 0, 3]
    assert located.take(np.array([2, 0]), ["text"]).to_pydict() == {"text": ["row 9", "row 3"]}
    assert located.take(np.zeros(0, np.int64)) == state.schema.arrow.empty_table()


@pytest.mark.parametrize("move", MOVES)
def test_r10_a_taken_key_is_found_by_every_insert(db: Any, move: str) -> None:
    fill(db, range(10))
    put_away(db, move)
    wide = pa.table({"id": range(5, 25), "text": ["new"] * 20})
    with db.begin() as txn:
        with pytest.raises(DuplicateKeyError):
            txn.insert("t", {"id": 4, "text": "first write"})
        with pytest.raises(DuplicateKeyError) as refused:
            txn.insert("t", [{"id": key, "text": "rows"} for key in (20, 4, 21)])
        assert refused.value.keys == [4]
        with pytest.raises(DuplicateKeyError) as refused:
            txn.insert("t", wide)
        assert sorted(refused.value.keys) == [5, 6, 7, 8, 9]
        txn.delete("t", 4)
        txn.insert("t", {"id": 4, "text": "again"})
        with pytest.raises(DuplicateKeyError):
            txn.insert("t", {"id": 4, "text": "twice"})
    assert db.table("t").count() == 10


@pytest.mark.parametrize("move", MOVES)
def test_every_write_by_key_reaches_its_row(db: Any, move: str) -> None:
    fill(db, range(12))
    put_away(db, move)
    with db.begin() as txn:
        txn.update("t", 3, {"text": "single"})
    with db.begin() as txn:
        assert txn.get("t", 4) == {"id": 4, "text": "row 4"}
        txn.update("t", 4, {"text": "after a read"})
        txn.update("t", 4, {"text": "and once more"})
        assert txn.delete("t", 5)
        assert not txn.delete("t", 55)
        txn.update("t", 6, {"id": 66})
        txn.upsert("t", [{"id": 7, "text": "upserted"}, {"id": 77, "text": "fresh"}])
        txn.upsert("t", pa.table({"id": range(8, 20), "text": ["bulk"] * 12}))
        assert txn.get_many("t", [7, 5, 66, 0, 11]).column("text").to_pylist() == [
            "upserted",
            "row 6",
            "row 0",
            "bulk",
        ]
        expected = txn.range("t").to_pylist()
    assert [row["id"] for row in expected] == [0, 1, 2, 3, 4, *range(7, 20), 66, 77]
    with db.begin() as txn:
        assert txn.range("t").to_pylist() == expected
        assert txn.get("t", 3) == {"id": 3, "text": "single"}
        assert txn.get("t", 4) == {"id": 4, "text": "and once more"}


def test_d23_a_dead_version_in_memory_hides_no_newer_row_of_an_object(db: Any) -> None:
    fill(db, [1, 2])
    with db.begin() as txn:
        txn.delete("t", 1)
    before = db.visible_ts
    moving.bulk_insert(db, "t", [{"id": 1, "text": "in an object"}])
    state = moving.state_of(db, "t")
    assert state.tree.newest(1), "L0 knows the dead version"
    with db.begin() as txn:
        assert txn.get("t", 1) == {"id": 1, "text": "in an object"}
        assert txn.get_many("t", [2, 1]).column("text").to_pylist() == ["row 2", "in an object"]
    with db.begin(at=before) as txn:
        assert txn.get("t", 1) is None
        assert txn.get_many("t", [2, 1]).column("text").to_pylist() == ["row 2"]


def test_d23_a_tombstone_object_ends_a_row_that_memory_believes_alive(db: Any) -> None:
    fill(db, [1, 2])
    moving.move(db, "t")
    before = db.visible_ts
    moving.bulk_delete(db, "t", [1])
    state = moving.state_of(db, "t")
    assert state.tree.newest(1), "the memtree still knows the row that has moved"
    assert state.deletes.find(state.tree.newest(1)) is None
    with db.begin() as txn:
        assert txn.get("t", 1) is None
        assert txn.get_many("t", [1, 2]).num_rows == 1
        assert txn.range("t").column("id").to_pylist() == [2]
        txn.insert("t", {"id": 1, "text": "again"})
    with db.begin(at=before) as txn:
        assert txn.get("t", 1) == {"id": 1, "text": "row 1"}


def test_r11_memory_is_asked_before_tombstone_objects(db: Any) -> None:
    fill(db, range(4))
    moving.move(db, "t")
    moving.let_go(db, "t")
    with db.begin() as txn:
        txn.delete("t", 2)
    state, ts = moving.state_of(db, "t"), db.visible_ts
    assert not state.shape.tier.tombstones
    assert find(state, 2, ts) == 0
    assert find(state, 2, ts - 1)
    moving.flush(db, "t")
    moving.let_go(db, "t")
    assert not len(state.deletes)
    assert find(state, 2, ts) == 0
    assert find(state, 2, ts - 1)
    assert locate_many(state, np.array([2, 3]), ts).rowids.tolist() == [0, find(state, 3, ts)]


def test_a_truncated_object_is_asked_by_older_snapshots_only(db: Any) -> None:
    fill(db, range(4))
    moving.move(db, "t")
    before = db.visible_ts
    moving.truncate(db, "t")
    with db.begin() as txn:
        assert txn.get("t", 1) is None
        assert txn.range("t").num_rows == 0
        txn.insert("t", {"id": 1, "text": "after"})
    with db.begin(at=before) as txn:
        assert txn.get_many("t", range(4)).num_rows == 4


def test_what_was_located_stays_located(db: Any) -> None:
    """A move between looking and taking changes nothing."""
    fill(db, range(6))
    state, ts = moving.state_of(db, "t"), db.visible_ts
    located = locate_many(state, np.arange(6), ts)
    moving.move(db, "t")
    moving.let_go(db, "t")
    assert located.take().column("id").to_pylist() == list(range(6))


def test_objects_outside_the_range_of_a_batch_are_not_read(db: Any) -> None:
    fill(db, range(90))
    moving.move(db, "t")
    moving.let_go(db, "t")
    state, ts = moving.state_of(db, "t"), db.visible_ts
    assert len(state.shape.tier.data) == 6
    objects = state.shelf.objects
    others = {entry.key: objects.read(entry.key) for entry in state.shape.tier.data[4:]}
    for name in others:
        objects.delete(name)
    assert locate_many(state, np.array([3, 7, -5]), ts).take().num_rows == 2
    assert find(state, 9, ts)
    with db.begin() as txn:
        assert txn.range("t", 2, 5).num_rows == 3
        assert txn.range("t", limit=2).num_rows == 2
    for name, data in others.items():
        objects.put(name, data)

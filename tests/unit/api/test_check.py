"""db.check() finds what is wrong with objects, all of it, and says which file it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from halocline import Database
from halocline.database.check import _Check
from halocline.ids import NEVER
from halocline.objects import ObjectFile, write
from halocline.objects.shelf import object_key
from halocline.rows.reshape import Reshape, new_entry
from halocline.rows.tier import Tier
from halocline.txn.jobs import commit_reshapes
from tests.store.faulty import FaultyFiles
from tests.unit.objects.files import write_data, write_tombstones
from tests.unit.read.moving import (
    TINY,
    bulk_delete,
    bulk_insert,
    committer_of,
    flush,
    let_go,
    move,
    state_of,
)


@pytest.fixture
def db() -> Iterator[Any]:
    """Three data objects, two tombstone objects, some rows in L0; nothing is wrong with it."""
    with Database(FaultyFiles(), "memory", options=TINY) as db:
        db.create_table("t", {"id": int, "text": str}, primary_key="id")
        for first in (0, 100, 200):
            with db.begin() as txn:
                txn.insert("t", [{"id": first + n, "text": f"row {n}"} for n in range(10)])
            move(db, "t")
        for gone in ((3, 104), (205,)):
            with db.begin() as txn:
                for key in gone:
                    txn.delete("t", key)
            flush(db, "t")
            let_go(db, "t")
        with db.begin() as txn:
            txn.insert("t", [{"id": 300 + n, "text": "l0"} for n in range(6)])
        assert db.check() == []
        yield db


def entries(db: Any, kind: str = "data") -> list[Any]:
    return [entry for entry in state_of(db, "t").shape.tier.current() if entry.kind == kind]


def objects_of(db: Any) -> Any:
    return state_of(db, "t").shelf.objects


def swap(db: Any, entry: Any, changed: Any) -> None:
    """Another entry in the place of one."""
    state = state_of(db, "t")
    known = dict(state.shape.tier.by_id)
    known.pop(entry.id)
    state.shape = state.shape._replace(tier=Tier([*known.values(), changed]))


def commit(db: Any, make: Callable[[str], Any], *, moved: bool = False) -> Any:
    """A file of somebody who knows no rules."""
    state, committer = state_of(db, "t"), committer_of(db)
    job = committer.start_job(state)
    key = object_key(state.table_id, job.job_id, 0)
    entry = new_entry(ObjectFile(key, make(key)), moved=moved)
    assert commit_reshapes(
        committer, [Reshape(state.table_id, [entry], job_id=job.job_id)], still=lambda: True
    )
    return entry


def data_table(rows: list[tuple[int, str, int, int]]) -> pa.Table:
    names = ("id", "text", "_rowid", "_commit_ts")
    return pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


def tombstone_table(rows: list[tuple[int, int, int]]) -> pa.Table:
    names = ("_rowid", "id", "_commit_ts")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    columns["_successor"] = pa.nulls(len(rows), pa.int64())
    columns["_changed"] = pa.array([[]] * len(rows), pa.list_(pa.int32()))
    return pa.table(columns)


def test_every_damaged_file_is_listed_not_only_the_first(db: Any) -> None:
    store = objects_of(db)
    first, second, third = entries(db)
    buried = entries(db, "tombstone")[0]
    one, two = store.read(first.key), store.read(second.key)
    store.put(first.key, two)
    store.put(second.key, one)
    store.delete(third.key)
    store.put(buried.key, store.read(buried.key)[:-30])
    problems = db.check()
    assert len(problems) == 4
    for entry in (first, second, third, buried):
        assert any(f"table 't': objects/{entry.key}: " in problem for problem in problems), (
            entry.key
        )
    assert any("missing" in problem for problem in problems)


@pytest.mark.parametrize("kind", ["data", "tombstone"])
@pytest.mark.parametrize("damage", ["flip", "longer", "empty", "sector", "stale"])
def test_damage_of_any_kind_is_found(db: Any, kind: str, damage: str) -> None:
    store, entry = objects_of(db), entries(db, kind)[-1]
    data = bytearray(store.read(entry.key))
    if damage == "flip":
        data[len(data) // 2] ^= 16
    elif damage == "longer":
        data += b"x"
    elif damage == "empty":
        data = bytearray()
    elif damage == "sector":
        data[:512] = bytes(512)
    else:
        data = bytearray(store.read(entries(db, kind)[0].key))
    store.put(entry.key, data)
    (problem,) = db.check()
    assert problem.startswith(f"table 't': objects/{entry.key}: ")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rows": 11}, "it has 10 rows, not 11"),
        ({"key_max": b"\xff" * 8}, "range of keys"),
        ({"rowid_min": 0}, "range of RowIDs"),
        ({"commit_ts_min": 1}, "commit timestamps"),
        ({"zonemaps": None}, "zonemap of column 'text'"),
    ],
)
def test_an_entry_that_is_not_like_its_file_is_found(
    db: Any, change: dict[str, Any], words: str
) -> None:
    entry = entries(db)[0]
    if "zonemaps" in change:
        zones = dict(entry.stats.zonemaps)
        zones[2] = replace(zones[2], max="row 5")
        change = {"zonemaps": zones}
    stats = replace(entry.stats, **change)
    low = stats.commit_ts_min
    swap(db, entry, replace(entry, commit_ts_min=low, file=ObjectFile(entry.key, stats)))
    (problem,) = db.check()
    assert words in problem
    assert entry.key in problem


def test_rows_out_of_order_are_found(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rowid, ts = state_of(db, "t").next_rowid, db.visible_ts
    monkeypatch.setattr(write, "is_sorted", lambda columns: True)
    table = data_table([(600, "a", rowid - 3, ts), (590, "b", rowid - 2, ts)])
    schema = state_of(db, "t").schema
    entry = commit(db, lambda key: write_data(objects_of(db), key, table, schema, options=TINY))
    problems = [problem for problem in db.check() if entry.key in problem]
    assert any("not sorted by id" in problem for problem in problems)


@pytest.mark.parametrize("place", ["two objects", "object and L0"])
def test_a_key_that_is_live_twice_is_found(db: Any, place: str) -> None:
    key = 101 if place == "two objects" else 302
    bulk_insert(db, "t", [{"id": key, "text": "twin"}, {"id": 999, "text": "only"}])
    (problem,) = db.check()
    assert f"key {key} is live twice" in problem


def test_a_key_that_ended_and_came_back_is_fine(db: Any) -> None:
    bulk_insert(db, "t", [{"id": key, "text": "again"} for key in (3, 104, 205)])
    assert db.check() == []
    bulk_delete(db, "t", [3, 104, 205])
    assert db.check() == []


def test_a_rowid_in_two_objects_is_found(db: Any) -> None:
    entry = entries(db)[1]
    rowid = entry.stats.rowid_min
    table = data_table([(400, "copy", rowid, entry.commit_ts_min)])
    schema = state_of(db, "t").schema
    twin = commit(db, lambda key: write_data(objects_of(db), key, table, schema, options=TINY))
    problems = db.check()
    assert problems == [f"table 't': RowID {rowid} is in {entry.key} and in {twin.key}"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda entry, ts: (5000, 1, ts), "not issued yet"),
        (lambda entry, ts: (entry.stats.rowid_max + 500, 1, ts), "ends a row that is nowhere"),
        (lambda entry, ts: (entry.stats.rowid_min, 4711, ts), "ends a row of another key"),
        (lambda entry, ts: (entry.stats.rowid_min, 200, 2), "ends a row before it began"),
    ],
)
def test_tombstones_name_what_is_there(db: Any, make: Any, words: str) -> None:
    last = entries(db)[-1]
    state = state_of(db, "t")
    state.skip_to(last.stats.rowid_max + 1000)
    table = tombstone_table([make(last, db.visible_ts)])
    entry = commit(
        db, lambda key: write_tombstones(objects_of(db), key, table, state.schema, options=TINY)
    )
    problems = db.check()
    assert any(words in problem and entry.key in problem for problem in problems), problems


def test_a_tombstone_of_a_row_in_l0_must_be_in_memory(db: Any) -> None:
    state = state_of(db, "t")
    page, _ = state.shape.counted()[0]
    table = tombstone_table([(page.start, 300, db.visible_ts)])
    entry = commit(
        db, lambda key: write_tombstones(objects_of(db), key, table, state.schema, options=TINY)
    )
    assert any("memory has no tombstone" in p and entry.key in p for p in db.check())


def test_a_tombstone_whose_row_compaction_dropped_is_fine(db: Any) -> None:
    """Its objects are ended and there; after GC they are gone, and the floor has passed it."""
    with db.begin() as txn:
        for key in range(6):
            txn.delete("t", key)
    before = db.visible_ts
    db.compact()
    assert db.check() == []
    assert state_of(db, "t").deletes.find(entries(db)[0].stats.rowid_min) is None
    assert db.table("t").count(at=before) == db.table("t").count()
    assert any(e.deleted_at != NEVER for e in state_of(db, "t").shape.tier.by_id.values())


def test_large_tables_are_checked_in_windows(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from halocline.database import check

    monkeypatch.setattr(check, "WINDOW_ROWS", 7)
    assert db.check() == []
    entry = entries(db)[1]
    rowid = entry.stats.rowid_max
    table = data_table([(400, "copy", rowid, entry.commit_ts_max)])
    schema = state_of(db, "t").schema
    commit(db, lambda key: write_data(objects_of(db), key, table, schema, options=TINY))
    bulk_insert(db, "t", [{"id": 207, "text": "twin"}])
    problems = db.check()
    assert len(problems) == 2
    assert any(f"RowID {rowid} is in" in problem for problem in problems)
    assert any("key 207 is live twice" in problem for problem in problems)


def test_tables_without_a_key_are_checked_too() -> None:
    with Database(FaultyFiles(), "memory", options=TINY) as db:
        db.create_table("t", {"id": int, "text": str})
        for _ in range(3):
            with db.begin() as txn:
                txn.insert("t", [{"id": 1, "text": "same"}] * 6)
            move(db, "t")
        assert db.check() == []
        entry = entries(db)[0]
        table = data_table([(1, "copy", entry.stats.rowid_min, 3)])
        schema = state_of(db, "t").schema
        commit(db, lambda key: write_data(objects_of(db), key, table, schema, options=TINY))
        (problem,) = db.check()
        assert f"RowID {entry.stats.rowid_min} is in" in problem


@pytest.mark.parametrize("damage", ["flip", "missing", "cut"])
def test_damaged_files_of_checkpoints_are_listed(db: Any, damage: str) -> None:
    db.checkpoint()
    bulk_insert(db, "t", [{"id": 5000, "text": "new"}])
    db.checkpoint()
    engine, store = db.core.engine, objects_of(db)
    assert db.check() == []
    roots = {node.key for node in engine.checkpoints}
    lists = engine.kept_files - roots
    assert (len(roots), len(lists)) == (2, 2)
    for keys in (lists, roots):
        for key in keys:
            data = bytearray(store.read(key))
            data[len(data) // 2] ^= 1
            if damage == "missing":
                store.delete(key)
            else:
                store.put(key, data if damage == "flip" else data[:-1])
        problems = db.check()
        assert len(problems) == 2
        named = {problem.partition(": ")[0].removeprefix("objects/") for problem in problems}
        assert named == keys


def test_a_reader_checks_as_well(tmp_path: Any) -> None:
    import halocline

    with halocline.open(tmp_path / "db", options=TINY) as db:
        db.create_table("t", {"id": int, "text": str}, primary_key="id")
        with db.begin() as txn:
            txn.insert("t", [{"id": n, "text": "x"} for n in range(20)])
        move(db, "t")
        key = entries(db)[0].key
    (tmp_path / "db" / "objects" / key).unlink()
    with halocline.open(tmp_path / "db", read_only=True, options=TINY) as reader:
        (problem,) = reader.check()
        assert key in problem
        assert "missing" in problem


def test_undo_gc_may_come_between_the_shape_and_the_keys() -> None:
    with Database(FaultyFiles(), "memory", options=TINY, retention=0) as db:
        db.create_table("t", {"id": int, "text": str}, primary_key="id")
        for text in ("old", "new"):
            with db.begin() as txn:
                txn.upsert("t", [{"id": n, "text": text} for n in range(8)])
        state = state_of(db, "t")
        started = _Check(db.core.engine, state, db.visible_ts)
        db.gc()
        assert state.undone, "the old versions are gone, and so are their tombstones"
        assert list(started.run()) == []

"""Large updates and deletes end rows of objects by objects, and rows of L0 in memory (T-22)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import halocline as hc
from halocline import Database
from halocline.objects.columns import CHANGED, ROWID, SUCCESSOR, tombstone_schema
from halocline.txn.record import nodes_of
from tests.store.faulty import FaultyFiles
from tests.unit.read import moving


@pytest.fixture
def db() -> Iterator[Any]:
    """40 rows in objects, 20 more in L0."""
    db = Database(FaultyFiles(), "bulk", options=moving.TINY)
    db.create_table("t", {"id": int, "n": int, "s": str}, primary_key="id")
    db.create_table("notes", {"n": int, "s": str})
    with db.begin() as txn:
        txn.insert("t", rows(range(40)))
        txn.insert("notes", pa.table({"n": range(40), "s": ["x"] * 40}))
    for first in (100, 110):
        with db.begin() as txn:
            txn.insert("t", rows(range(first, first + 10)))
    yield db
    assert not db.check()
    db.close()


def rows(ids: Any, n: int = 0) -> Any:
    ids = list(ids)
    return pa.table({"id": ids, "n": [n] * len(ids), "s": [f"s{i}" for i in ids]})


def ids_of(txn: Any) -> list[int]:
    return sorted(txn.scan("t").column("id").to_pylist())


def stones(db: Any, entry: Any) -> Any:
    state = moving.state_of(db, "t")
    schema = tombstone_schema(state.schema)
    return state.shelf.reader.read(entry.file, schema, hidden=[ROWID, SUCCESSOR, CHANGED])


def test_t22_a_large_delete_ends_objects_by_objects_and_l0_in_memory(db: Any) -> None:
    with db.begin() as txn:
        assert txn.delete("t", where="id != 7") == 59
        changes = txn.changes_of("t")
        assert [len(one.ends.rowids) for one in changes.objects.endings] == [13, 13, 13]
        assert [len(part) for part in changes.parts] == [20]
        assert ids_of(txn) == [7]
        assert txn.get("t", 8) is None
        assert txn.get_many("t", [8, 7, 105]).column("id").to_pylist() == [7]
        assert txn.range("t").column("id").to_pylist() == [7]
        table = stones(db, changes.objects.endings[0].entry)
        assert table.column(ROWID).to_numpy().tolist() == sorted(table.column(ROWID).to_pylist())
        assert table.column(SUCCESSOR).null_count == table.column(CHANGED).null_count == 13
    state = moving.state_of(db, "t")
    assert len(state.deletes) == 20
    assert len(state.shape.tier.tombstones) == 3
    with db.begin() as txn:
        assert ids_of(txn) == [7]
    kinds = db.changes("t", txn.snapshot - 1).column("_change").to_pylist()
    assert kinds == ["delete"] * 59


def test_t22_few_rows_of_objects_end_in_memory(db: Any) -> None:
    with db.begin() as txn:
        assert txn.delete("t", where="id < 12 or id >= 100") == 32
        assert not txn.changes_of("t").objects
    assert not moving.state_of(db, "t").shape.tier.tombstones


def test_a_large_update_writes_successors_and_tombstones_that_name_them(db: Any) -> None:
    with db.begin() as txn:
        assert txn.update("t", where="true", set={"n": 5}) == 60
        changes = txn.changes_of("t")
        objects = changes.objects
        assert len(objects.successors) == len(objects.endings) == 3
        assert [len(part) for part in changes.parts] == [20]
        named = np.concatenate([one.ends.successors for one in objects.endings])
        written = [e.stats for e in objects.successors]
        owned = np.concatenate([np.arange(s.rowid_min, s.rowid_max + 1) for s in written])
        assert sorted(named.tolist()) == owned.tolist()
        (n,) = moving.state_of(db, "t").schema.ids_of([1])
        assert stones(db, objects.endings[0].entry).column(CHANGED).to_pylist() == [[n]] * 13
        assert txn.sql("select sum(n) s, count(*) c from t").to_pylist() == [{"s": 300, "c": 60}]
    with db.begin() as txn:
        assert txn.get("t", 17) == {"id": 17, "n": 5, "s": "s17"}
    kinds = db.changes("t", txn.snapshot - 1).column("_change").to_pylist()
    assert kinds.count("update_before") == kinds.count("update_after") == 60


def test_a_successor_that_is_written_again_in_the_same_transaction(db: Any) -> None:
    with db.begin() as txn:
        txn.update("t", where="id < 40", set={"n": 5})
        txn.update("t", 3, {"s": "three"})
        txn.update("t", 4, {"n": 6})
        assert txn.delete("t", 5)
        assert txn.update("t", where="id >= 20 and id < 40", set={"s": "later"}) == 20
        assert txn.delete("t", where="id >= 30 and id < 40") == 10
        txn.insert("t", rows(range(35, 38), 9))
        seen = {row["id"]: (row["n"], row["s"]) for row in txn.scan("t").to_pylist()}
    expected = {n: (5, f"s{n}") for n in range(20)} | dict.fromkeys(range(20, 30), (5, "later"))
    expected |= {n: (0, f"s{n}") for n in range(100, 120)} | {n: (9, f"s{n}") for n in (35, 36, 37)}
    expected |= {3: (5, "three"), 4: (6, "s4")}
    del expected[5]
    assert seen == expected
    with db.begin() as after:
        rows_after = after.scan("t").to_pylist()
    assert {row["id"]: (row["n"], row["s"]) for row in rows_after} == expected
    changes = db.changes("t", txn.commit_ts - 1).to_pylist()
    before = {row["id"] for row in changes if row["_change"] == "update_before"}
    after_ids = {row["id"] for row in changes if row["_change"] == "update_after"}
    gone = {row["id"] for row in changes if row["_change"] == "delete"}
    new = {row["id"] for row in changes if row["_change"] == "insert"}
    assert before == after_ids == set(range(30)) - {5}
    assert (gone, new) == ({5, *range(30, 40)}, {35, 36, 37})
    assert len(changes) == 2 * len(before) + len(gone) + len(new)


def test_upserts_of_one_transaction_stay_bulk_while_their_keys_differ(db: Any) -> None:
    with db.begin() as txn:
        txn.upsert("t", rows(range(20), 1))
        txn.upsert("t", rows(range(20, 60), 2))
        objects = txn.changes_of("t").objects
        assert sum(e.stats.rows for e in objects.successors) == 40
        assert sum(e.stats.rows for e in objects.inserts) == 20
        txn.upsert("t", rows(range(10, 30), 3))
    with db.begin() as txn:
        got = {row["id"]: row["n"] for row in txn.scan("t").to_pylist()}
    expected = dict.fromkeys(range(10), 1) | dict.fromkeys(range(10, 30), 3)
    expected |= dict.fromkeys(range(30, 60), 2) | dict.fromkeys(range(100, 120), 0)
    assert got == expected


def test_rows_without_a_key_are_updated_and_deleted_in_objects(db: Any) -> None:
    with db.begin() as txn:
        assert txn.update("notes", where="n >= 10", set={"s": "y"}) == 30
        assert txn.changes_of("notes").objects.successors
        assert txn.update("notes", where="n >= 30", set={"s": "z"}) == 10
        assert txn.delete("notes", where="n < 20") == 20
    with db.begin() as txn:
        got = sorted((row["n"], row["s"]) for row in txn.scan("notes").to_pylist())
    assert got == [(n, "y" if n < 30 else "z") for n in range(20, 40)]


@pytest.mark.parametrize("how", ["delete", "key"])
def test_n08_a_move_between_a_delete_and_an_insert_of_the_same_key(db: Any, how: str) -> None:
    """The row is in L0 when it is deleted and in an object when its key is inserted again."""
    with db.begin() as txn:
        if how == "delete":
            assert txn.delete("t", 105)
        else:
            assert txn.delete("t", where="id >= 100") == 20
        moving.move(db, "t")
        moving.let_go(db, "t", txn.snapshot)
        txn.insert("t", {"id": 105, "s": "again"})
        assert txn.get("t", 105) == {"id": 105, "n": None, "s": "again"}
        assert len([i for i in ids_of(txn) if i == 105]) == 1
        moving.flush(db, "t")
        moving.merge(db, "t")
    with db.begin() as txn:
        assert txn.sql("select count(*) c from t where id = 105").to_pylist() == [{"c": 1}]
        assert txn.get("t", 105)["s"] == "again"


def test_a_full_disk_leaves_the_transaction_as_it_was(db: Any) -> None:
    state = moving.state_of(db, "t")
    store = state.shelf.objects
    real, room = store.put_new, [2]

    def put(key: str, data: Any) -> None:
        if not room[0]:
            raise OSError(28, "No space left on device")
        room[0] -= 1
        real(key, data)

    with db.begin() as txn:
        txn.update("t", 3, {"n": 1})
        before = ids_of(txn), nodes_of(txn.changes_of("t"), 1000)
        store.put_new = put
        try:
            for work in (
                lambda: txn.insert("t", rows(range(200, 300))),
                lambda: txn.delete("t", where="id < 40"),
                lambda: txn.update("t", where="id < 40", set={"n": 2}),
                lambda: txn.upsert("t", rows(range(60))),
            ):
                with pytest.raises(hc.UnavailableError) as caught:
                    work()
                assert caught.value.outcome == "not_committed"
                assert (ids_of(txn), nodes_of(txn.changes_of("t"), 1000)) == before
        finally:
            store.put_new = real
        assert txn.delete("t", where="id < 30") == 30
    with db.begin() as txn:
        assert ids_of(txn) == [*range(30, 40), *range(100, 120)]


@pytest.mark.parametrize("kind", [list, pa.table])
def test_many_keys_are_deleted_at_once(db: Any, kind: Any) -> None:
    gone = [*range(5, 30), 7, 7, 103, 104, 104, 999]
    with db.begin() as txn:
        txn.insert("t", rows([200, 201]))
        txn.update("t", 6, {"n": 1})
        txn.delete("t", 8)
        keys = [*gone, 200]
        count = txn.delete_many("t", keys if kind is list else pa.table({"id": keys}))
        assert count == 24 + 2 + 1
        left = [*range(5), *range(30, 40), 100, 101, 102, *range(105, 120), 201]
        assert ids_of(txn) == left
        assert txn.delete_many("t", []) == 0
        assert txn.delete_many("t", [8, 999]) == 0
    with db.begin() as txn:
        assert ids_of(txn) == left
        txn.insert("t", rows([7]))


def test_few_keys_and_keys_of_two_columns(db: Any) -> None:
    db.create_table("pairs", {"a": int, "b": str, "n": int}, primary_key=["a", "b"])
    with db.begin() as txn:
        txn.insert("pairs", [{"a": n // 3, "b": "xyz"[n % 3], "n": n} for n in range(30)])
        assert txn.delete_many("pairs", [(1, "y"), (1, "q")]) == 1
    with db.begin() as txn:
        assert txn.delete_many("t", [3]) == 1
        assert txn.delete_many("pairs", [(n, "x") for n in range(10)]) == 10
        assert txn.scan("pairs").num_rows == 19
        assert txn.get("pairs", (1, "y")) is None
        for wrong in (["x"], [None], 5, pa.table({"n": [1]})):
            with pytest.raises(hc.UsageError):
                txn.delete_many("t", wrong)
        with pytest.raises(hc.UsageError, match="primary key"):
            txn.delete_many("notes", [1])


def test_a_key_that_was_deleted_with_many_conflicts(db: Any) -> None:
    mine, theirs = db.begin(), db.begin()
    assert mine.delete_many("t", list(range(30))) == 30
    theirs.update("t", 20, {"n": 5})
    theirs.commit()
    with pytest.raises(hc.ConflictError):
        mine.commit()

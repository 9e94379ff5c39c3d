"""Large inserts become objects before the commit, and the transaction sees them like any row."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

import halocline as hc
from halocline import Database
from tests.store.faulty import FaultyFiles
from tests.unit.rows.rig import scan_table

OPTIONS = hc.Options(
    page_rows=4,
    object_rows=16,
    row_group_rows=8,
    bulk_rows=8,
    object_rows_min=12,
    background=False,
)
COLUMNS = {"id": int, "n": int, "s": str}


@pytest.fixture
def db() -> Iterator[Any]:
    db = Database(FaultyFiles(), "bulk", options=OPTIONS)
    db.create_table("t", COLUMNS, primary_key="id")
    db.create_table("pairs", {"a": str, "b": int, "n": int}, primary_key=["a", "b"])
    db.create_table("notes", {"n": int, "s": str})
    yield db
    assert not db.check()
    db.close()


def rows(ids: Any, n: int = 0) -> Any:
    ids = list(ids)
    return pa.table({"id": ids, "n": [n] * len(ids), "s": [f"s{i}" for i in ids]})


def ids_of(txn: Any, table: str = "t") -> list[int]:
    return sorted(txn.scan(table).column("id").to_pylist())


def objects_of(txn: Any, table: str = "t") -> Any:
    return txn.changes_of(table).objects


def test_t20_few_rows_stay_in_memory_and_many_become_objects_of_equal_size(db: Any) -> None:
    with db.begin() as txn:
        txn.insert("t", rows(range(12)))
        assert objects_of(txn) is None
        txn.rollback()
    with db.begin() as txn:
        assert txn.insert("t", rows(range(40))) == 40
        written = objects_of(txn).inserts
        assert [entry.stats.rows for entry in written] == [13, 13, 14]
        assert not any(entry.stats.committed for entry in written)
        assert not txn.changes_of("t").parts
    assert len(db.table("t").files()) == 3
    assert db.table("t").count() == 40


def test_t20_several_inserts_of_one_transaction_count_together(db: Any) -> None:
    with db.begin() as txn:
        txn.insert("t", rows(range(9)))
        assert objects_of(txn) is None
        txn.insert("t", rows(range(20, 29)))
        assert [entry.stats.rows for entry in objects_of(txn).inserts] == [9, 9]
        assert not txn.changes_of("t").parts
        assert ids_of(txn) == [*range(9), *range(20, 29)]
    assert db.table("t").count() == 18


def test_t20_rows_inserted_one_by_one_become_objects_at_commit(db: Any) -> None:
    with db.begin() as txn:
        for n in range(30):
            txn.insert("t", {"id": n, "n": n})
        txn.delete("t", 3)
        txn.update("t", 4, {"n": 44})
    assert len(db.table("t").files()) == 2
    with db.begin() as txn:
        assert ids_of(txn) == [0, 1, 2, *range(4, 30)]
        assert txn.get("t", 4)["n"] == 44


def test_t20_unsorted_input_is_sorted_and_sorted_input_keeps_its_order(db: Any) -> None:
    with db.begin() as txn:
        txn.insert("t", rows([*range(39, 0, -2), *range(0, 40, 2)]))
        spans = [(e.stats.key_min, e.stats.key_max) for e in objects_of(txn).inserts]
        assert all(before[1] < after[0] for before, after in pairwise(spans))
    with db.begin() as txn:
        assert ids_of(txn) == list(range(40))


@pytest.mark.parametrize("where", ["input", "table", "objects", "part", "single"])
def test_t20_a_key_that_is_taken_is_refused_and_nothing_is_kept(db: Any, where: str) -> None:
    with db.begin() as txn:
        txn.insert("t", rows([100, 101]))
        txn.insert("t", rows(range(200, 230)))
    with db.begin() as txn:
        taken = {"table": [101], "objects": [205, 211], "part": [303], "single": [400]}
        txn.insert("t", rows(range(300, 310)))
        txn.insert("t", {"id": 400})
        before = ids_of(txn)
        given = [*range(20), 7, 7, 3] if where == "input" else [*range(20), *taken[where]]
        with pytest.raises(hc.DuplicateKeyError) as caught:
            txn.insert("t", rows(given))
        assert caught.value.keys == ([3, 7] if where == "input" else taken[where])
        assert caught.value.inside_input == (where == "input")
        assert ids_of(txn) == before
        assert txn.insert("t", rows(range(20))) == 20
    assert db.table("t").count() == 2 + 30 + 11 + 20


def test_t20_keys_of_several_columns_and_tables_without_a_key(db: Any) -> None:
    pairs = pa.table({"a": [f"a{n % 5}" for n in range(40)], "b": range(40), "n": range(40)})
    with db.begin() as txn:
        txn.insert("pairs", pairs)
        assert txn.get("pairs", ("a3", 8)) == {"a": "a3", "b": 8, "n": 8}
        with pytest.raises(hc.DuplicateKeyError) as caught:
            txn.insert("pairs", pairs.slice(10, 20))
        assert len(caught.value.all_keys) == 20
        txn.insert("notes", pa.table({"n": range(40), "s": ["x"] * 40}))
        assert len(objects_of(txn, "notes").inserts) == 3
        assert txn.delete("notes", where="n < 5") == 5
        assert sorted(txn.scan("notes").column("n").to_pylist()) == list(range(5, 40))
    with db.begin() as txn:
        assert txn.range("pairs", ("a3", 0), ("a4", 0)).column("b").to_pylist() == list(
            range(3, 40, 5)
        )
        assert txn.sql("select count(*) c from notes").to_pylist() == [{"c": 35}]


def test_t20_a_stream_is_taken_an_object_at_a_time(db: Any) -> None:
    batches = [rows(range(at, at + 7)).to_batches()[0] for at in range(0, 70, 7)]
    reader = pa.RecordBatchReader.from_batches(batches[0].schema, iter(batches))
    with db.begin() as txn:
        assert txn.insert("t", reader) == 70
        assert [e.stats.rows for e in objects_of(txn).inserts] == [16, 16, 16, 16, 6]
    assert db.table("t").count() == 70


def test_t20_a_short_stream_stays_in_memory(db: Any) -> None:
    batches = rows(range(10)).to_batches(max_chunksize=3)
    with db.begin() as txn:
        reader = pa.RecordBatchReader.from_batches(batches[0].schema, iter(batches))
        assert txn.insert("t", reader) == 10
        assert objects_of(txn) is None
        empty = pa.RecordBatchReader.from_batches(batches[0].schema, iter([]))
        assert txn.insert("t", empty) == 0
    assert db.table("t").count() == 10


@pytest.mark.parametrize("again", [1, 17, 33])
def test_t20_a_key_that_stands_twice_in_a_stream_is_found(db: Any, again: int) -> None:
    order = [*range(0, 60, 3), *range(1, 60, 3), *range(2, 60, 3), again]
    batches = rows(order).to_batches(max_chunksize=8)
    with db.begin() as txn:
        reader = pa.RecordBatchReader.from_batches(batches[0].schema, iter(batches))
        with pytest.raises(hc.DuplicateKeyError) as caught:
            txn.insert("t", reader)
        assert caught.value.keys == [again]
        assert caught.value.inside_input
        assert ids_of(txn) == []
        assert txn.insert("t", rows(range(30))) == 30


def test_a_stream_names_the_row_that_does_not_fit(db: Any) -> None:
    good = pa.table({"id": range(40), "n": [0] * 40, "s": ["x"] * 40})
    bad = pa.table({"id": pa.array([40, None, 42]), "n": [0] * 3, "s": ["x"] * 3})
    batches = [*good.to_batches(max_chunksize=10), *bad.cast(good.schema).to_batches()]
    with db.begin() as txn:
        reader = pa.RecordBatchReader.from_batches(good.schema, iter(batches))
        with pytest.raises(hc.SchemaError) as caught:
            txn.insert("t", reader)
        assert (caught.value.column, caught.value.row) == ("id", 41)
        assert ids_of(txn) == []


def test_t18_a_transaction_sees_rows_of_its_own_objects(db: Any) -> None:
    with db.begin() as txn:
        txn.insert("t", rows([1000, 1001]))
    with db.begin() as txn:
        txn.insert("t", rows(range(40)))
        assert txn.get("t", 17) == {"id": 17, "n": 0, "s": "s17"}
        assert txn.get("t", 41) is None
        assert txn.get_many("t", [39, 1001, 50, 0]).column("id").to_pylist() == [39, 1001, 0]
        assert txn.range("t", 37, 1001).column("id").to_pylist() == [37, 38, 39, 1000]
        last = txn.range("t", reverse=True, limit=4).column("id").to_pylist()
        assert last == [1001, 1000, 39, 38]
        assert txn.range("t", 5, limit=3).column("id").to_pylist() == [5, 6, 7]
        assert txn.sql("select count(*) c, max(id) m from t").to_pylist() == [{"c": 42, "m": 1001}]
        with db.begin() as other:
            assert ids_of(other) == [1000, 1001]


def test_t12_own_rows_in_objects_are_deleted_and_updated_and_born_dead(db: Any) -> None:
    with db.begin() as txn:
        txn.insert("t", rows(range(40)))
        assert txn.delete("t", 5)
        assert not txn.delete("t", 5)
        txn.update("t", 6, {"n": 66})
        txn.update("t", 6, {"s": "six"})
        txn.upsert("t", {"id": 7, "n": 77})
        assert txn.update("t", where="id >= 20 and id < 35", set={"n": 1}) == 15
        assert txn.delete("t", where="id >= 30") == 10
        txn.insert("t", {"id": 5, "s": "again"})
        seen = txn.sql("select * from t order by id").to_pylist()
        assert txn.range("t").to_pylist() == seen
    assert [row["id"] for row in seen] == list(range(30))
    assert seen[5] == {"id": 5, "n": None, "s": "again"}
    assert seen[6] == {"id": 6, "n": 66, "s": "six"}
    assert seen[7] == {"id": 7, "n": 77, "s": "s7"}
    assert [row["n"] for row in seen[20:]] == [1] * 10
    with db.begin() as txn:
        assert txn.sql("select * from t order by id").to_pylist() == seen
    changes = db.changes("t", 0)
    assert changes.column("_change").unique().to_pylist() == ["insert"]
    assert sorted(changes.column("id").to_pylist()) == list(range(30))


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside another table"])
def test_t12_own_objects_whose_rows_have_all_ended_are_nothing(db: Any, beside: bool) -> None:
    db.create_table("other", {"id": int}, primary_key="id")
    with db.begin() as txn:
        txn.insert("t", rows(range(40)))
        assert txn.delete("t", where="id >= 10") == 30
        for key in range(10):
            assert txn.delete("t", key)
        if beside:
            txn.insert("other", {"id": 1})
    assert (txn.commit_ts is not None) == beside
    assert not db.core.engine.jobs
    assert db.table("t").count() == 0
    assert db.gc().files > 0, "what was written for nothing is not kept"
    with db.begin() as txn:
        txn.insert("t", rows(range(40)))
        txn.delete("t", where="id > 0")
    assert db.table("t").to_arrow().column("id").to_pylist() == [0]
    assert not db.check()


def test_n10_bulk_load_a_block_beside_tuples_and_delete_one_of_its_tuples(db: Any) -> None:
    with db.begin() as txn:
        txn.insert("t", [{"id": 1000}, {"id": 1001}])
        txn.insert("t", rows(range(30)))
        with pytest.raises(hc.DuplicateKeyError):
            txn.insert("t", rows([1001, *range(100, 120)]))
        assert txn.delete("t", where="id = 11") == 1
    with db.begin() as txn:
        assert ids_of(txn) == [*range(11), *range(12, 30), 1000, 1001]


def test_a_table_created_in_the_same_transaction_takes_objects(db: Any) -> None:
    with db.begin() as txn:
        txn.create_table("fresh", COLUMNS, primary_key="id")
        txn.insert("fresh", rows(range(40)))
        assert txn.get("fresh", 11)["s"] == "s11"
    assert db.table("fresh").count() == 40
    with db.begin() as txn:
        txn.create_table("gone", COLUMNS, primary_key="id")
        txn.insert("gone", rows(range(40)))
        txn.drop_table("gone")
    assert not db.core.engine.jobs


@pytest.mark.parametrize("end", ["rollback", "conflict", "forgotten"])
def test_the_job_of_a_transaction_that_fails_ends_and_its_files_stay_for_gc(
    db: Any, end: str
) -> None:
    txn = db.begin()
    txn.insert("t", rows(range(40)))
    engine, store = db.core.engine, db.core.engine.shelf.objects
    assert len(engine.jobs) == 1
    if end == "rollback":
        txn.rollback()
    elif end == "conflict":
        with db.begin() as other:
            other.insert("t", {"id": 11})
        with pytest.raises(hc.ConflictError):
            txn.commit()
    else:
        del txn
        with db.begin() as other:
            other.insert("t", {"id": 11})
            other.rollback()
    assert not engine.jobs
    assert len(store.list()) == 3
    assert db.table("t").files() == []


@pytest.mark.parametrize("seed", range(3))
def test_a_restart_between_the_reservation_of_a_job_and_its_commit(seed: int) -> None:
    """Nothing of it is seen, its RowIDs are never given to other rows, and its files go."""
    files = FaultyFiles()
    db = Database(files, "bulk", options=OPTIONS)
    db.create_table("t", COLUMNS, primary_key="id")
    with db.begin() as txn:
        txn.insert("t", rows(range(100, 103)))
    txn = db.begin()
    txn.insert("t", rows(range(40)))
    (job,) = db.core.engine.jobs.values()
    again = Database(files.crash_image(seed), "bulk", options=OPTIONS)
    assert not again.core.engine.jobs
    assert ids_of(again.begin()) == [100, 101, 102]
    with again.begin() as other:
        other.insert("t", rows(range(40), 1))
    state = again.core.engine.tables[job.table_id]
    found = scan_table(state, other.commit_ts, rowids=True)
    assert found.num_rows == 43
    reserved = range(job.first_rowid, job.first_rowid + job.rows)
    assert not set(found.column("_rowid").to_pylist()) & set(reserved)
    assert again.gc().files == 3
    assert not again.check()
    again.close()
    txn.rollback()
    db.close()


def test_objects_survive_reopening_with_their_rowids(tmp_path: Any) -> None:
    with hc.open(tmp_path / "db", options=OPTIONS) as db:
        db.create_table("t", COLUMNS, primary_key="id")
        with db.begin() as txn:
            txn.insert("t", rows(range(40)))
            txn.delete("t", 3)
        with db.begin() as txn:
            txn.insert("t", rows(range(50, 90)))
            txn.rollback()
        with db.begin() as txn:
            txn.insert("t", {"id": 1000})
    with hc.open(tmp_path / "db", options=OPTIONS) as db:
        with db.begin() as txn:
            assert ids_of(txn) == [0, 1, 2, *range(4, 40), 1000]
            txn.update("t", 39, {"n": 5})
        with db.begin() as txn:
            assert txn.get("t", 39)["n"] == 5
        assert not db.check()


def test_n08_deleted_inserted_again_in_bulk_and_deleted_again(db: Any) -> None:
    with db.begin() as txn:
        txn.insert("t", [{"id": n} for n in range(5)])
    with db.begin() as txn:
        txn.delete("t", 3)
        txn.insert("t", rows([3, *range(100, 130)]))
        assert txn.get("t", 3)["s"] == "s3"
        assert txn.delete("t", where="id = 3 or id >= 100") == 31
        assert txn.get("t", 3) is None
        txn.insert("t", {"id": 3, "s": "third"})
    with db.begin() as txn:
        assert ids_of(txn) == [0, 1, 2, 3, 4]
        assert txn.get("t", 3)["s"] == "third"


def test_a_stream_over_own_objects_outlives_the_transaction_and_its_files(tmp_path: Any) -> None:
    with hc.open(tmp_path / "db", retention=0, options=OPTIONS) as db:
        db.create_table("t", COLUMNS, primary_key="id")
        txn = db.begin()
        txn.insert("t", rows(range(40)))
        readers = [
            txn.scan("t", stream=True),
            txn.scan("t", order="id", stream=True),
            txn.sql("select * from t", stream=True),
        ]
        txn.rollback()
        db.gc()
        assert not list((tmp_path / "db" / "objects").rglob("*.parquet"))
        for reader in readers:
            assert sorted(reader.read_all().column("id").to_pylist()) == list(range(40))


def test_a_job_that_brought_nothing_ends_with_its_transaction(db: Any) -> None:
    with db.begin() as txn:
        again = [*range(30), *range(0, 30, 7)]
        batches = rows(again).to_batches(max_chunksize=16)
        reader = pa.RecordBatchReader.from_batches(batches[0].schema, iter(batches))
        with pytest.raises(hc.DuplicateKeyError):
            txn.insert("t", reader)
        assert len(db.core.engine.jobs) == 1
        txn.insert("t", {"id": 1})
    assert not db.core.engine.jobs
    assert db.table("t").count() == 1

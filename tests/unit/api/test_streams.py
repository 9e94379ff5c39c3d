"""stream=True: readers that outlive their transaction, later commits, undo GC and the database."""

from __future__ import annotations

import gc
from typing import Any

import pyarrow as pa
import pytest

import halocline as hc

ROWS = 1000


@pytest.fixture
def db(open_db: Any) -> Any:
    """A table of 1,000 rows in pages of 64, and a database that keeps nothing old."""
    options = hc.Options(page_rows=64, bulk_rows=100)
    db = open_db(durability="async", retention=0, options=options)
    db.create_table("t", {"id": int, "s": str, "l": "int[]"}, primary_key="id")
    with db.begin() as txn:
        ids = range(ROWS)
        txn.insert("t", pa.table({"id": ids, "s": [f"s{n}" for n in ids], "l": [[n] for n in ids]}))
    yield db
    if "(closed)" not in repr(db):
        assert not db.check()


def _openers(txn: Any) -> list[Any]:
    return [
        txn.scan("t", stream=True),
        txn.scan("t", where="id >= 0", order="id", stream=True),
        txn.sql("select * from t order by id", stream=True),
    ]


def _destroy(db: Any) -> None:
    """Change every row, take all old versions away, put others in their place."""
    with db.begin() as txn:
        txn.update("t", where="true", set={"s": "overwritten", "l": []})
    with db.begin() as txn:
        txn.delete("t", where="id % 2 = 0")
    db.gc()
    with db.begin() as txn:
        txn.insert("t", [{"id": n, "s": "other"} for n in range(0, 200, 2)])
    db.gc()
    gc.collect()


def _whole(table: Any) -> None:
    ids = table.column("id").to_pylist()
    assert ids == list(range(ROWS))
    assert table.column("s").to_pylist() == [f"s{n}" for n in ids]
    assert table.column("l").to_pylist() == [[n] for n in ids]


def test_a_reader_outlives_its_transaction_and_what_comes_after(db: Any) -> None:
    with db.begin() as txn:
        readers = _openers(txn)
    readers.append(db.sql("from t order by id", stream=True))
    _destroy(db)
    for reader in readers:
        assert isinstance(reader, pa.RecordBatchReader)
        _whole(reader.read_all())


def test_a_reader_that_was_begun_goes_on(db: Any) -> None:
    with db.begin() as txn:
        readers = _openers(txn)
    firsts = [reader.read_next_batch() for reader in readers]
    _destroy(db)
    for first, reader in zip(firsts, readers, strict=True):
        _whole(pa.Table.from_batches([first, *reader]))


def test_a_reader_outlives_the_database(db: Any) -> None:
    with db.begin() as txn:
        readers = _openers(txn)
    db.close()
    for reader in readers:
        _whole(reader.read_all())


def test_a_reader_that_is_dropped_half_read_is_no_harm(db: Any) -> None:
    for _ in range(3):
        with db.begin() as txn:
            for reader in _openers(txn):
                reader.read_next_batch()
            unread = _openers(txn)
            del unread
    gc.collect()
    with db.begin() as txn:
        _whole(txn.sql("select * from t order by id"))


def test_a_reader_has_the_types_of_the_table(db: Any) -> None:
    with db.begin() as txn:
        scan, filtered, sql = _openers(txn)
    assert scan.schema == filtered.schema == db.table("t").schema
    assert sql.schema.types == db.table("t").schema.types
    assert sql.schema.names == db.table("t").schema.names


def test_a_reader_shows_own_writes_as_they_were_when_it_was_opened(db: Any) -> None:
    with db.begin() as txn:
        txn.delete("t", where="id >= 3")
        txn.update("t", 1, {"s": "mine"})
        readers = _openers(txn)
        txn.delete("t", where="true")
        for reader in readers:
            table = reader.read_all().sort_by("id")
            assert table.column("s").to_pylist() == ["s0", "mine", "s2"]
        txn.rollback()


def test_a_table_that_was_read_does_not_change_either(db: Any) -> None:
    with db.begin() as txn:
        tables = [txn.scan("t"), txn.get_many("t", range(ROWS)), txn.range("t")]
    tables.append(db.table("t").to_arrow())
    _destroy(db)
    for table in tables:
        table.validate(full=True)
        _whole(table)


def test_a_scan_of_the_active_page_does_not_change_either(open_db: Any) -> None:
    db = open_db(durability="async", options=hc.Options(page_rows=64))
    db.create_table("t", {"id": int, "s": str}, primary_key="id")
    seen = []
    for n in range(100):
        with db.begin() as txn:
            txn.insert("t", {"id": n, "s": f"s{n}"})
        seen.append(db.table("t").to_arrow())
    for n, table in enumerate(seen):
        assert table.column("id").to_pylist() == list(range(n + 1))
    assert not db.check()


def test_an_error_in_the_middle_of_a_stream_is_ours(db: Any) -> None:
    text = "select cast(case when i > 150000 then 'x' else '1' end as int) from range(200000) t(i)"
    for read in (lambda reader: reader.read_all(), list):
        with pytest.raises(hc.UsageError, match="convert"):
            read(db.sql(text, stream=True))
    with pytest.raises(hc.UsageError):
        db.sql("select nope from t", stream=True)
    _whole(db.sql("from t order by id"))


def test_a_stream_comes_in_batches(db: Any) -> None:
    reader = db.sql("select i from range(300000) t(i)", stream=True)
    batches = list(reader)
    assert len(batches) > 1
    assert sum(batch.num_rows for batch in batches) == 300_000

"""The one writer of object files: names, RowIDs, and what is never overwritten."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from halocline.errors import UsageError
from halocline.objects import JobWriter, ObjectFile, ObjectReader, Pool, SharedJob
from halocline.objects.columns import ROWID
from halocline.objects.jobwriter import PLACE_ROWS, tombstone_table, with_rowids
from halocline.objects.shelf import index_key, object_id, object_key, parse_key
from halocline.options import Options
from halocline.rows.reshape import new_entry
from halocline.schema.schema import Schema
from halocline.store import MemoryObjects

SCHEMA = Schema.define({"id": int, "n": int}, "id")
TINY = Options(object_rows=8, row_group_rows=4, page_rows=4)


def rows(count: int, first: int = 0) -> pa.Table:
    ids = range(first, first + count)
    return pa.table({"id": pa.array(ids, pa.int64()), "n": pa.array(ids, pa.int64())})


def writer(objects: MemoryObjects) -> JobWriter:
    return JobWriter(objects, SCHEMA, TINY, table_id=3, job_id=9)


def test_one_who_has_a_job_to_himself_counts_its_files() -> None:
    objects = MemoryObjects()
    one = writer(objects)
    files = [one.rows(with_rowids(rows(8, 8 * n), 1 + 8 * n)) for n in range(3)]
    ends = pa.table({ROWID: pa.array(range(1, 20)), "id": pa.array(range(19))})
    files += one.tombstones(tombstone_table(ends, None, ()))
    assert [file.key for file in files] == [f"3/9-{n}.parquet" for n in range(6)]
    assert objects.list() == sorted(file.key for file in files)
    assert [file.stats.rows for file in files] == [8, 8, 8, 6, 6, 7]
    assert [file.stats.kind for file in files] == ["data"] * 3 + ["tombstone"] * 3
    with pytest.raises(Exception, match="names"):
        writer(objects).rows(with_rowids(rows(1), 1))


def test_a_key_tells_the_entry_of_a_file() -> None:
    file = writer(MemoryObjects()).rows(with_rowids(rows(4), 7))
    entry = new_entry(file, level=2, moved=True)
    assert (entry.table_id, entry.id, entry.level) == (3, object_id(9, 0), 2)
    assert ObjectFile.from_wire(file.to_wire()) == file
    assert parse_key(object_key(3, 9, 17)) == (3, 9, 17, 0, 0)
    beside = index_key(3, object_id(9, 17), 4, 12, 1)
    assert beside == "3/9-17.4.12-1.parquet"
    assert parse_key(beside) == (3, 12, 1, object_id(9, 17), 4)
    for odd in (
        "3/9-017.parquet",
        "3/9-17.04.12-1.parquet",
        "3/9-17.4.12-1.checkpoint",
        "3/9.parquet",
        "x/9-1.parquet",
        "3/9-1.parquet.tmp",
        "9-1",
    ):
        with pytest.raises(ValueError, match="not the name"):
            parse_key(odd)


def test_tasks_share_names_and_rowids_of_a_job() -> None:
    objects = MemoryObjects()
    job = SharedJob(options=TINY, table_id=3, job_id=9, first_rowid=5, ordinals=2, attempts=4)
    seen = []
    for task in range(3):
        for attempt in (0, 1):
            one = job.writer(objects, SCHEMA, task, attempt)
            made = [one.new_rows(rows(8)) for _ in range(2)]
            seen.append([file.stats.rowid_min for file in made])
            with pytest.raises(UsageError, match="more than 2 objects"):
                one.new_rows(rows(8))
    assert len(objects.list()) == 12, "no attempt writes where another has written"
    assert seen[::2] == seen[1::2], "but both give out the same RowIDs"
    first = [rowid for pair in seen[::2] for rowid in pair]
    assert first == [5 + place * PLACE_ROWS for place in range(6)]


def test_a_tombstone_says_what_follows_and_which_columns_changed() -> None:
    objects = MemoryObjects()
    ends = pa.table({ROWID: pa.array([4, 6]), "id": pa.array([1, 2])})
    table = tombstone_table(ends, np.array([40, 60]), (2,))
    (file,) = writer(objects).tombstones(table)
    assert table.column("_successor").to_pylist() == [40, 60]
    assert table.column("_changed").to_pylist() == [[2], [2]]
    assert file.stats.rowid_max == 6
    ObjectReader(objects, Pool("index", 1 << 20)).verify(file)

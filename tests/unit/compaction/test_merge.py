"""The merge: one sorted stream out of many objects, whatever their keys; bounded memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halocline.compaction import merge as merging
from halocline.compaction.merge import dropper, merge, open_cursors
from halocline.compaction.runs import MergeRun, cut, split, write_run
from halocline.errors import CorruptionError
from halocline.objects import JobWriter, ObjectFile, ObjectReader, Pool
from halocline.objects.columns import ROWID
from halocline.objects.order import sort_rows
from halocline.schema.schema import Schema
from halocline.store.objects import MemoryObjects
from tests.unit.objects.files import write_data
from tests.unit.objects.rig import ORDERS, SMALL, equal, keyed_tables, orders, rows_of
from tests.unit.schema.pools import same


class Heap:
    """Some objects in one store."""

    def __init__(self, schema: Schema) -> None:
        self.objects = MemoryObjects()
        self.reader = ObjectReader(self.objects, Pool("index", 1 << 26))
        self.schema = schema
        self.files: list[ObjectFile] = []

    def add(self, table: Any) -> None:
        if table.num_rows:
            key = f"1/{len(self.files) + 1}-0.parquet"
            stats = write_data(self.objects, key, table, self.schema, options=SMALL)
            self.files.append(ObjectFile(key, stats))


@pytest.mark.slow
@given(keyed_tables(rows_max=60), st.integers(1, 5), st.integers(1, 20), st.randoms())
def test_the_merge_of_all_types_of_keys_is_the_sorted_whole(
    made: tuple[Schema, Any], parts: int, slab_rows: int, chance: Any
) -> None:
    schema, table = made
    heap = Heap(schema)
    homes = np.array([chance.randrange(parts) for _ in range(table.num_rows)])
    for part in range(parts):
        heap.add(table.filter(pa.array(homes == part)))
    gone = np.array(sorted(chance.sample(range(1000, 1060), 7)))
    slabs = list(merge(heap.reader, heap.files, schema, drop=dropper(gone), slab_rows=slab_rows))
    wanted = sort_rows(table, list(schema.primary_key))
    wanted = wanted.filter(pa.array(~np.isin(wanted.column(ROWID).to_numpy(), gone)))
    found = pa.concat_tables(slabs) if slabs else wanted.slice(0, 0)
    assert same(rows_of(found.select(table.column_names)), rows_of(wanted))


def test_memory_holds_a_slab_and_a_piece_of_each_object(monkeypatch: pytest.MonkeyPatch) -> None:
    heap = Heap(ORDERS)
    table = orders(2000)
    for part in range(5):
        heap.add(table.filter(pa.array(np.arange(2000) % 5 == part)))
    most = 0
    split = merging._split

    def watched(held: Any, *rest: Any) -> Any:
        nonlocal most
        most = max(most, sum(part.num_rows for part in held))
        return split(held, *rest)

    monkeypatch.setattr(merging, "_split", watched)
    slabs = list(merge(heap.reader, heap.files, ORDERS, slab_rows=100))
    assert equal(pa.concat_tables(slabs), table)
    assert 100 <= most <= 100 + 5 * 20, "five objects, pieces of 20 rows"
    assert max(slab.num_rows for slab in slabs) <= 200


def test_wide_rows_end_a_slab_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "PIECE_BYTES", 1000)
    heap = Heap(ORDERS)
    heap.add(orders(400))
    slabs = list(merge(heap.reader, heap.files, ORDERS, slab_bytes=2000))
    assert len(slabs) > 5
    assert equal(pa.concat_tables(slabs), orders(400))


def test_tables_in_memory_go_along() -> None:
    heap = Heap(ORDERS)
    table = orders(100)
    odd = pa.array(np.arange(100) % 2 == 1)
    heap.add(table.filter(odd))
    others = [table.filter(pa.array(np.arange(100) % 2 == 0))]
    assert equal(pa.concat_tables(merge(heap.reader, heap.files, ORDERS, others=others)), table)


def test_ties_are_broken_by_rowid() -> None:
    table = orders(6).append_column("twin", pa.array([1] * 6)).drop_columns(["id"])
    table = table.rename_columns([*table.column_names[:-1], "id"]).select(orders(6).column_names)
    shuffled = table.take(pa.array([3, 1, 5, 0, 2, 4]))
    assert sort_rows(shuffled, ["id"]).column(ROWID).to_pylist() == list(range(1000, 1006))


@pytest.mark.parametrize("rows", [1, 3, 7, 50])
def test_cut_gives_objects_of_equal_size(rows: int) -> None:
    table = orders(20)
    parts = list(cut([table.slice(0, 3), table.slice(3, 11), table.slice(14)], rows))
    assert equal(pa.concat_tables(parts), table)
    assert {part.num_rows for part in parts[:-1]} <= {rows}
    assert 0 < parts[-1].num_rows <= rows


def test_damage_stops_the_merge_and_names_the_file() -> None:
    heap = Heap(ORDERS)
    for part in range(3):
        heap.add(orders(50, seed=part))
    key = heap.files[1].key
    data = bytearray(heap.objects.read(key))
    data[100] ^= 4
    heap.objects.put(key, data)
    with pytest.raises(CorruptionError) as caught:
        list(merge(heap.reader, heap.files, ORDERS))
    assert caught.value.path == f"objects/{key}"


@pytest.mark.slow
@given(keyed_tables(rows_max=60), st.integers(1, 4), st.integers(1, 6), st.randoms())
def test_parts_of_a_run_share_out_the_rows_exactly(
    made: tuple[Schema, Any], homes: int, parts: int, chance: Any
) -> None:
    schema, table = made
    heap = Heap(schema)
    home = np.array([chance.randrange(homes) for _ in range(table.num_rows)])
    for part in range(homes):
        heap.add(table.filter(pa.array(home == part)))
    if not heap.files:
        return
    whole = MergeRun(
        files=tuple(heap.files), live_rows=table.num_rows, live_share=1.0, size_bytes=1000
    )
    runs = split(whole, heap.reader, schema, parts)
    assert 1 <= len(runs) <= parts
    asked: list[int] = []

    def drop(rowids: Any) -> Any:
        asked.extend(rowids.tolist())
        return rowids % 7 == 0

    writer = JobWriter(heap.objects, schema, SMALL, table_id=1, job_id=99)
    found = []
    for run in runs:
        for file in write_run(run, heap.reader, schema, writer, drop=drop, rows_max=16):
            assert file.stats.rows <= 16
            found.append(heap.reader.read(file, schema))
    assert sorted(asked) == sorted(table.column(ROWID).to_pylist()), "each row in one part"
    wanted = sort_rows(table, list(schema.primary_key))
    wanted = wanted.filter(pa.array(wanted.column(ROWID).to_numpy() % 7 != 0))
    got = pa.concat_tables(found) if found else wanted.slice(0, 0)
    assert same(rows_of(got.select(table.column_names)), rows_of(wanted))


def test_parts_of_a_run_are_of_about_the_same_size() -> None:
    """Objects of few blocks that all hold the same keys: the hard case."""
    heap = Heap(ORDERS)
    table = orders(6000)
    for part in range(20):
        heap.add(table.filter(pa.array(np.arange(6000) % 20 == part)))
    whole = MergeRun(files=tuple(heap.files), live_rows=6000, live_share=1.0, size_bytes=1000)
    sizes = []
    for run in split(whole, heap.reader, ORDERS, 7):
        cursors = open_cursors(
            heap.reader, run.files, ORDERS, columns=[], low=run.low, high=run.high
        )
        sizes.append(sum(cursor.rows for cursor in cursors))
    assert sum(sizes) == 6000
    assert max(sizes) < 1.25 * 6000 / 7
    assert len(sizes) == 7


@pytest.mark.parametrize("most", [0, 9, 12])
def test_cut_puts_a_small_rest_into_the_last(most: int) -> None:
    table = orders(20)
    parts = [part.num_rows for part in cut([table.slice(0, 13), table.slice(13)], 8, most)]
    assert parts == {0: [8, 8, 4], 9: [8, 8, 4], 12: [8, 12]}[most]

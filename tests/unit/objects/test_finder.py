"""Point reads: every version of every key is found, nothing else is, and little is read for it."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halocline.errors import UsageError
from halocline.objects.columns import (
    CHANGED,
    COMMIT_TS,
    HIDDEN,
    ROWID,
    SUCCESSOR,
    rowid_schema,
    tombstone_schema,
)
from halocline.objects.finder import Finder
from halocline.objects.pool import Pool
from halocline.objects.read import ObjectReader
from halocline.objects.stats import ObjectFile
from halocline.objects.write import encode_data, encode_tombstones
from halocline.options import Options
from halocline.schema.schema import Schema
from halocline.store.objects import MemoryObjects
from tests.unit.objects.rig import KEY, ORDERS, SMALL, Rig, keyed_tables, orders
from tests.unit.schema.pools import few, same, values


class CountingObjects(MemoryObjects):
    """Remembers what was read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[tuple[int, int]] = []

    def read(self, key: str, offset: int = 0, size: int | None = None) -> bytes:
        data = super().read(key, offset, size)
        self.reads.append((offset, len(data)))
        return data


def expected_rows(schema: Schema, table: Any, key: Any) -> list[tuple[Any, int, int]]:
    rows = schema.from_table(table.select(list(schema.names)))
    stamps = zip(
        rows, table.column(ROWID).to_pylist(), table.column(COMMIT_TS).to_pylist(), strict=True
    )
    return [(row, rowid, ts) for row, rowid, ts in stamps if schema.key_of(row) == key]


@given(keyed_tables(), st.data())
@few()
def test_i06_a_key_finds_exactly_its_versions(
    case: tuple[Schema, Any], data: st.DataObject
) -> None:
    schema, table = case
    rig = Rig.of(table, schema)
    finder = rig.finder()
    keys = schema.keys_of(table)
    for key in {schema.key_bytes(key): key for key in keys}.values():
        found = finder.find(rig.file, key)
        assert same([tuple(one) for one in found], expected_rows(schema, table, key))
    key = data.draw(st.tuples(*(values(schema.columns[at].type) for at in schema.key_positions)))
    absent = key if len(key) > 1 else key[0]
    if absent not in keys:
        assert finder.find(rig.file, absent) == []


@given(keyed_tables(), st.data())
@few()
def test_many_keys_find_exactly_their_versions(
    case: tuple[Schema, Any], data: st.DataObject
) -> None:
    schema, table = case
    rig = Rig.of(table, schema)
    types = [schema.columns[at].type for at in schema.key_positions]
    present = schema.keys_of(table)
    other = st.tuples(*map(values, types)).map(lambda k: k if len(k) > 1 else k[0])
    wanted = data.draw(st.lists(st.one_of(st.sampled_from(present), other), max_size=20))
    finder = rig.finder()
    hits = finder.find_many(rig.file, finder.batch(schema.key_table(wanted)))
    rowids, stamps = table.column(ROWID).to_pylist(), table.column(COMMIT_TS).to_pylist()
    expected = [
        (position, rowids[at], stamps[at], at)
        for position, key in enumerate(wanted)
        for at, other_key in enumerate(present)
        if key == other_key
    ]
    assert list(zip(*(part.tolist() for part in hits), strict=True)) == expected


def test_a_key_outside_the_range_reads_nothing() -> None:
    data, stats = encode_data(orders(100), ORDERS)
    objects = CountingObjects()
    objects.put(KEY, data)
    index, blocks = Pool("index", 1 << 24), Pool("data", 1 << 24)
    finder = Finder(ObjectReader(objects, index), ORDERS, index=index, data=blocks)
    file = ObjectFile(KEY, stats)
    assert finder.find(file, -2) == finder.find(file, 200) == []
    batch = finder.batch(pa.table({"id": pa.array([-5, 201, 10**9])}))
    assert len(finder.find_many(file, batch).positions) == 0
    assert objects.reads == []


def test_a_key_that_the_bloom_filter_denies_reads_the_tail_only() -> None:
    data, stats = encode_data(orders(1000), ORDERS)
    objects = CountingObjects()
    objects.put(KEY, data)
    index, blocks = Pool("index", 1 << 24), Pool("data", 1 << 24)
    finder = Finder(ObjectReader(objects, index), ORDERS, index=index, data=blocks)
    file = ObjectFile(KEY, stats)
    absent = sum(finder.find(file, key) == [] for key in range(1, 99, 2))
    assert absent == 49
    tail = (stats.size_bytes - stats.tail_bytes, stats.tail_bytes)
    assert objects.reads[0] == tail
    assert len(objects.reads) <= 2, "one in a hundred may pass the filter"


def test_a_found_key_reads_one_block_of_each_column_once() -> None:
    table = orders(20_000)
    data, stats = encode_data(table, ORDERS)
    objects = CountingObjects()
    objects.put(KEY, data)
    index, blocks = Pool("index", 1 << 24), Pool("data", 1 << 24)
    finder = Finder(ObjectReader(objects, index), ORDERS, index=index, data=blocks)
    file = ObjectFile(KEY, stats)
    assert finder.find(file, 9000)[0].rowid == 5500
    read = sum(size for _, size in objects.reads)
    assert read < stats.tail_bytes + (stats.size_bytes - stats.tail_bytes) * 0.75
    before = len(objects.reads)
    assert [finder.find(file, key)[0].row[0] for key in range(0, 16_000, 10)] == list(
        range(0, 16_000, 10)
    )
    assert len(objects.reads) == before


def test_versions_of_one_key_may_fill_several_blocks() -> None:
    schema = Schema.define({"id": int, "v": int}, "id")
    ids = [1] * 3 + [5] * 23 + [6] * 2 + [9]
    table = pa.table({"id": ids, "v": range(29), ROWID: range(29), COMMIT_TS: range(29)})
    rig = Rig.of(table, schema)
    finder = rig.finder()
    assert [found.rowid for found in finder.find(rig.file, 5)] == list(range(3, 26))
    assert [found.row for found in finder.find(rig.file, 6)] == [(6, 26), (6, 27)]
    hits = finder.find_many(rig.file, finder.batch(pa.table({"id": [9, 5, 2]})))
    assert hits.positions.tolist() == [0] + [1] * 23
    assert hits.numbers.tolist() == [28, *range(3, 26)]


def test_an_object_before_its_commit_takes_the_timestamp_of_its_entry() -> None:
    data, stats = encode_data(orders(30).drop_columns([COMMIT_TS]), ORDERS)
    rig = Rig(data, stats, ORDERS)
    finder = rig.finder()
    for commit_ts in (0, 77):  # Searched by its own transaction first, then by all.
        file = ObjectFile(KEY, stats, commit_ts)
        assert finder.find(file, 8)[0].commit_ts == commit_ts
        batch = finder.batch(pa.table({"id": [8, 9]}))
        assert finder.find_many(file, batch).commit_ts.tolist() == [commit_ts]


def test_tombstones_are_found_by_rowid() -> None:
    rowids = [3, 5, 6, 9, 11, 40, 41, 90, 91, 92, 95]
    ends = pa.table(
        {
            ROWID: rowids,
            "id": [k % 7 for k in rowids],
            COMMIT_TS: [k + 100 for k in rowids],
            SUCCESSOR: pa.array([None if k % 2 else k + 500 for k in rowids], pa.int64()),
            CHANGED: pa.array([None if k % 2 else [2] for k in rowids], HIDDEN[CHANGED].type),
        }
    )
    data, stats = encode_tombstones(ends, ORDERS, options=SMALL)
    rig = Rig(data, stats, ORDERS)
    finder = rig.finder(tombstone_schema(ORDERS))
    assert finder.find(rig.file, 40) == [((40, 5, 540, [2]), 40, 140)]
    assert finder.find(rig.file, 41) == [((41, 6, None, None), 41, 141)]
    assert finder.find(rig.file, 42) == finder.find(rig.file, 1000) == []
    batch = finder.batch(pa.table({ROWID: [95, 4, 3, 91]}))
    hits = finder.find_many(rig.file, batch)
    assert (hits.positions.tolist(), hits.rowids.tolist()) == ([0, 2, 3], [95, 3, 91])
    assert hits.commit_ts.tolist() == [195, 103, 191]


def test_heap_objects_are_found_by_rowid() -> None:
    table = orders(30).sort_by([("status", "ascending")]).drop_columns([ROWID])
    table = table.append_column(ROWID, pa.array(np.arange(30) * 3))
    data, stats = encode_data(table, ORDERS, order="rowid", options=SMALL)
    rig = Rig(data, stats, ORDERS)
    finder = rig.finder(rowid_schema(ORDERS))
    rows = ORDERS.from_table(table.select(list(ORDERS.names)))
    for at in (0, 7, 29):
        (found,) = finder.find(rig.file, at * 3)
        assert same(found.row, (at * 3, *rows[at]))
        assert found.rowid == at * 3
    assert finder.find(rig.file, 4) == []


def test_a_search_by_what_the_object_is_not_sorted_by_is_refused() -> None:
    data, stats = encode_data(orders(30), ORDERS, order="rowid")
    rig = Rig(data, stats, ORDERS)
    with pytest.raises(UsageError, match="sorted by rowid"):
        rig.finder().find(rig.file, 4)
    with pytest.raises(UsageError, match="sorted by rowid"):
        rig.finder().find_many(rig.file, rig.finder().batch(pa.table({"id": [4]})))
    sorted_by_key = Rig.of(orders(30))
    with pytest.raises(UsageError, match="sorted by key"):
        sorted_by_key.finder(rowid_schema(ORDERS)).find(sorted_by_key.file, 4)
    with pytest.raises(UsageError, match="primary key"):
        rig.finder(Schema.define({"a": int}))


def test_a_widened_key_is_still_found() -> None:
    narrow = Schema.define({"k": "int", "v": "real"}, "k")
    wide = Schema.define({"k": "bigint", "v": "double"}, "k")
    table = narrow.to_table([(k, k / 2) for k in range(-50, 50, 2)])
    table = table.append_column(ROWID, pa.array(range(50)))
    rig = Rig.of(table, narrow)
    finder = rig.finder(wide)
    assert finder.find(rig.file, -8)[0].row == (-8, -4.0)
    assert finder.find(rig.file, 7) == finder.find(rig.file, 2**40 - 8) == []
    batch = finder.batch(pa.table({"k": pa.array([2**32 + 8, 8, 9, -50], pa.int64())}))
    assert finder.find_many(rig.file, batch).positions.tolist() == [1, 3]


def test_an_altered_schema_sees_its_own_columns() -> None:
    rig = Rig.of(orders(30))
    before = rig.finder()
    first = before.find(rig.file, 8)[0].row
    columns = tuple(c for c in ORDERS.columns if c.name in ("id", "price"))
    after = rig.finder(Schema(columns=columns, key_positions=(0,), last_id=6))
    assert same(after.find(rig.file, 8)[0].row, (first[0], first[4]))
    assert same(before.find(rig.file, 8)[0].row, first)


def test_keys_that_share_a_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    from halocline.objects import batch, write

    def same_for_all(table: Any, names: Any) -> Any:
        return np.full(table.num_rows, 77, np.int64)

    schema = Schema.define({"a": int, "b": str}, ["a", "b"])
    rows = [(k // 3, f"{k % 3}") for k in range(30)]
    table = schema.to_table(rows).append_column(ROWID, pa.array(range(30)))
    monkeypatch.setattr(write, "pk64", same_for_all)
    monkeypatch.setattr(batch, "pk64", same_for_all)
    rig = Rig.of(table, schema)
    # The filters were built from the forged hash, so single keys would be denied: only batches.
    finder = rig.finder()
    wanted = [(9, "2"), (9, "7"), (0, "0"), (4, "1"), (4, "")]
    hits = finder.find_many(rig.file, finder.batch(schema.key_table(wanted)))
    assert (hits.positions.tolist(), hits.numbers.tolist()) == ([0, 2, 3], [29, 0, 13])


def test_large_batches_read_row_groups_at_once() -> None:
    rows = 60_000
    table = orders(rows)
    data, stats = encode_data(table, ORDERS, options=Options(row_group_rows=40_000))
    rig = Rig(data, stats, ORDERS)
    finder = rig.finder()
    chance = np.random.default_rng(4)
    wanted = chance.permutation(rows * 2)[:5000]
    hits = finder.find_many(rig.file, finder.batch(pa.table({"id": wanted})))
    even = np.flatnonzero(wanted % 2 == 0)
    assert hits.positions.tolist() == even.tolist()
    assert hits.numbers.tolist() == (wanted[even] // 2).tolist()
    assert hits.rowids.tolist() == (wanted[even] // 2 + 1000).tolist()
    used = rig.index.stats().used_bytes
    assert finder.find_many(rig.file, finder.batch(table.select(["id"]))).rowids.tolist() == list(
        range(1000, 1000 + rows)
    )
    assert rig.index.stats().used_bytes == used
    assert used < stats.tail_bytes + rows * 25


def test_a_pool_of_one_block_is_enough() -> None:
    rig = Rig.of(orders(200))
    blocks = Pool("data", 4000)
    index = Pool("index", rig.file.stats.tail_bytes + 2000)
    finder = Finder(ObjectReader(rig.objects, index), ORDERS, index=index, data=blocks)
    for key in range(0, 400, 2):
        assert finder.find(rig.file, key)[0].row[0] == key
    assert blocks.stats().evictions > 10
    assert blocks.stats().pinned_bytes == index.stats().pinned_bytes == 0


def test_threads_search_one_object() -> None:
    rig = Rig.of(orders(400))
    finder = rig.finder()
    wrong: list[int] = []

    def work(start: int) -> None:
        for key in range(start, 800, 7):
            found = [one.row[0] for one in finder.find(rig.file, key)]
            if found != ([key] if key % 2 == 0 else []):
                wrong.append(key)

    threads = [threading.Thread(target=work, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


def test_no_keys_find_nothing() -> None:
    rig = Rig.of(orders(30))
    finder = rig.finder()
    none = pa.table({"id": pa.array([], pa.int64())})
    assert len(finder.find_many(rig.file, finder.batch(none)).positions) == 0
    schema = Schema.define({"a": int, "b": str}, ["a", "b"])
    assert len(rig.finder(schema).batch(schema.arrow.empty_table())) == 0

"""Ranges of keys in one object: bounds, slices and rows by number equal those of a plain list."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halocline.objects.columns import COMMIT_TS, ROWID
from halocline.objects.finder import Finder
from halocline.objects.pool import Pool
from halocline.objects.read import ObjectReader
from halocline.objects.stats import ObjectFile
from halocline.objects.write import encode_data
from halocline.schema.schema import Schema
from tests.unit.objects.rig import KEY, ORDERS, Rig, equal, keyed_tables, orders
from tests.unit.objects.test_finder import CountingObjects
from tests.unit.schema.pools import few, same, values


@given(keyed_tables(), st.data())
@few()
def test_a_bound_counts_the_lower_keys(case: tuple[Schema, Any], data: st.DataObject) -> None:
    schema, table = case
    rig = Rig.of(table, schema)
    finder = rig.finder()
    keys = schema.keys_of(table)
    types = [schema.columns[at].type for at in schema.key_positions]
    other = data.draw(st.tuples(*map(values, types)).map(lambda k: k if len(k) > 1 else k[0]))
    for key in [*keys, other]:
        assert finder.bound(rig.file, key) == bisect_left(keys, key)
    assert same([finder.key_at(rig.file, number) for number in range(len(keys))], keys)


@pytest.mark.slow
@given(keyed_tables(), st.data())
@few()
def test_a_slice_has_the_versions_between_two_numbers(
    case: tuple[Schema, Any], data: st.DataObject
) -> None:
    schema, table = case
    rig = Rig.of(table, schema)
    begin = data.draw(st.integers(0, table.num_rows - 1))
    end = data.draw(st.integers(begin + 1, table.num_rows))
    found = rig.finder().slice(rig.file, begin, end)
    part = table.slice(begin, end - begin)
    assert same(schema.keys_of(found.keys), schema.keys_of(part))
    assert found.rowids.tolist() == part.column(ROWID).to_pylist()
    assert found.commit_ts.tolist() == part.column(COMMIT_TS).to_pylist()


@given(keyed_tables(), st.data())
@few()
def test_rows_come_by_number_in_any_order(case: tuple[Schema, Any], data: st.DataObject) -> None:
    schema, table = case
    rig = Rig.of(table, schema)
    numbers = data.draw(st.lists(st.integers(0, table.num_rows - 1), max_size=12))
    found = rig.finder().take(rig.file, np.array(numbers, dtype=np.int64))
    assert equal(found, table.select(list(schema.names)).take(pa.array(numbers, pa.int64())))


def test_a_small_range_reads_the_key_blocks_at_its_ends_only() -> None:
    data, stats = encode_data(orders(100_000), ORDERS)
    objects = CountingObjects()
    objects.put(KEY, data)
    index, blocks = Pool("index", 1 << 24), Pool("data", 1 << 24)
    finder = Finder(ObjectReader(objects, index), ORDERS, index=index, data=blocks)
    file = ObjectFile(KEY, stats)
    begin, end = finder.bound(file, 50_001), finder.bound(file, 50_101)
    assert (begin, end) == (25_001, 25_051)
    assert finder.slice(file, begin, end).rowids.tolist() == list(range(26_001, 26_051))
    read = sum(size for _, size in objects.reads)
    assert read < stats.tail_bytes + (stats.size_bytes - stats.tail_bytes) / 10

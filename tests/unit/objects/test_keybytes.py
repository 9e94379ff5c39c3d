"""Keys of whole tables: the same bytes as one by one, and what is made of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given

from halocline.objects.keybytes import SLICE_ROWS, is_sorted, key_bytes, pk64, range_of
from halocline.schema.schema import Schema
from tests.unit.objects.rig import keyed_tables
from tests.unit.schema.pools import few


@given(keyed_tables(others=0))
@few(2)
def test_keys_of_a_table_are_the_bytes_of_each_key(case: tuple[Schema, Any]) -> None:
    schema, table = case
    expected = [schema.key_bytes(key) for key in schema.keys_of(table)]
    assert key_bytes(table, schema.primary_key).to_pylist() == expected
    assert range_of(key_bytes(table, schema.primary_key)) == (expected[0], expected[-1])
    half = table.slice(table.num_rows // 2)
    assert key_bytes(half, schema.primary_key).to_pylist() == expected[table.num_rows // 2 :]
    hashes = [xxhash.xxh3_64_intdigest(key) for key in expected]
    assert pk64(table, schema.primary_key).view(np.uint64).tolist() == hashes


@given(keyed_tables(others=0))
@few(2)
def test_sorted_is_told_from_unsorted(case: tuple[Schema, Any]) -> None:
    schema, table = case
    columns = [table.column(name) for name in schema.primary_key]
    assert is_sorted(columns)
    keys = schema.keys_of(table)
    turned = [column.take(pa.array(range(len(keys) - 1, -1, -1))) for column in columns]
    assert is_sorted(turned) == (keys[0] == keys[-1])


@pytest.mark.parametrize("rows", [0, 1])
def test_nothing_and_one_row_are_sorted(rows: int) -> None:
    assert is_sorted([pa.chunked_array([pa.array(range(rows), pa.int64())])])


def test_no_keys_have_no_bytes() -> None:
    schema = Schema.define({"a": int, "b": str}, ["a", "b"])
    empty = schema.arrow.empty_table()
    assert key_bytes(empty, ["a", "b"]).to_pylist() == []
    assert pk64(empty, ["a", "b"]).tolist() == []
    assert key_bytes(empty, ["a"]).to_pylist() == []


@pytest.mark.parametrize("rows", [1, 7, SLICE_ROWS, SLICE_ROWS + 3])
def test_keys_are_hashed_as_the_library_does_however_many_there_are(rows: int) -> None:
    chance = np.random.default_rng(rows)
    table = pa.table({name: chance.integers(-(1 << 63), 1 << 63, rows) for name in "ab"})
    keys = key_bytes(table, ["a", "b"]).to_pylist()
    expected = [xxhash.xxh3_64_intdigest(key) for key in keys]
    assert pk64(table, ["a", "b"]).view(np.uint64).tolist() == expected

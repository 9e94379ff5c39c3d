"""Keys: callers' forms, bytes that sort like values, integers of whole columns, duplicates."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halocline.errors import SchemaError, UsageError
from halocline.schema.schema import Schema
from tests.unit.schema.pools import KEY_LEAVES, same, values


@st.composite
def keyed(draw: st.DrawFn) -> tuple[Schema, list[Any]]:
    """A schema with a key of one to three columns, and keys of it that are often close."""
    types = draw(st.lists(st.sampled_from(KEY_LEAVES), min_size=1, max_size=3))
    names = [f"k{at}" for at in range(len(types))]
    schema = Schema.define(pa.schema(list(zip(names, types, strict=True))), names)
    parts = [draw(st.lists(values(type), min_size=1, max_size=3)) for type in types]
    key = st.tuples(*(st.sampled_from(part) for part in parts))
    keys = draw(st.lists(key, min_size=2, max_size=8))
    return schema, [key[0] for key in keys] if len(types) == 1 else keys


@given(keyed())
def test_key_bytes_sort_as_keys_do(case: tuple[Schema, list[Any]]) -> None:
    schema, keys = case
    by_bytes = sorted(keys, key=schema.key_bytes)
    assert by_bytes == sorted(keys)
    for left in keys:
        for right in keys:
            assert (schema.key_bytes(left) == schema.key_bytes(right)) == (left == right)


@given(keyed())
def test_keys_come_back_from_tables_batches_and_bytes(case: tuple[Schema, list[Any]]) -> None:
    schema, keys = case
    table = schema.key_table(keys)
    assert same(schema.keys_of(table), keys)
    assert same([schema.key(key) for key in keys], keys)
    assert same(schema.decode_keys(schema.encode_keys(keys)), keys)
    repeated = {key for key in keys if keys.count(key) > 1}
    assert set(schema.first_duplicates(table)) == repeated
    if (column := schema.key_column(table)) is not None:
        assert [column.to_int(key) for key in keys] == column.values.tolist()


def test_key_bytes_look_as_documented() -> None:
    one = Schema.define({"a": int}, "a")
    assert one.key_bytes(7).hex() == "8000000000000007"
    assert one.key_bytes(-1).hex() == "7fffffffffffffff"
    assert Schema.define({"a": "tinyint"}, "a").key_bytes(7) == one.key_bytes(7)
    assert Schema.define({"a": str}, "a").key_bytes("a\0b") == b"a\0b"
    pair = Schema.define({"a": int, "s": str}, ["a", "s"])
    assert pair.key_bytes((7, "a\0b")).hex() == "8000000000000007" + "6100ff62" + "0000"
    assert Schema.define({"a": bool}, "a").key_bytes(True) == b"\1"
    assert Schema.define({"a": "decimal(5,2)"}, "a").key_bytes(Decimal("0.01")).hex() == (
        "80000000000000000000000000000001"
    )


def test_a_single_key_is_its_value_or_a_dict() -> None:
    schema = Schema.define({"id": int, "v": int}, "id")
    assert schema.key(5) == 5
    assert schema.key(np.int32(5)) == 5
    assert schema.key({"ID": 5}) == 5
    assert schema.key_of((5, 6)) == 5


def test_a_composite_key_is_a_tuple_a_list_or_a_dict() -> None:
    schema = Schema.define({"v": int, "b": str, "a": "decimal(5,2)"}, ["a", "b"])
    key = (Decimal("1.00"), "x")
    for form in ((1, "x"), [1, "x"], {"b": "x", "A": 1}, (Decimal("1.00"), "x")):
        assert same(schema.key(form), key)
    assert schema.key_of((0, "x", Decimal("1.00"))) == key


@pytest.mark.parametrize(
    ("primary_key", "value"),
    [
        ("id", None),
        ("id", "5"),
        ("id", 2**63),
        ("id", (5,)),
        ("id", {"v": 5}),
        ("id", {"id": 5, "s": "x"}),
        ("id", {}),
        ("id", float("nan")),
        ("s", 5),
        ("s", "x" * 1025),
        ("s", "\ud800"),
        ("s", pa.scalar("x")),
        (["id", "s"], 5),
        (["id", "s"], (5,)),
        (["id", "s"], (5, "x", 1)),
        (["id", "s"], (5, None)),
        (["id", "s"], ("x", 5)),
        (["id", "s"], (5, "x" * 1015)),
        (["id", "s"], "ab"),
        (["id", "s"], {"id": 5}),
        (["id", "s"], {"id": 5, "nope": 5}),
        (["id", "s"], None),
        (None, 5),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_what_cannot_be_a_key_is_a_usage_error(primary_key: Any, value: Any) -> None:
    schema = Schema.define({"id": int, "s": str, "v": int}, primary_key)
    with pytest.raises(UsageError):
        schema.key(value)


def test_the_longest_key_has_1024_bytes() -> None:
    one = Schema.define({"s": str, "v": int}, "s")
    assert one.key("x" * 1024)
    assert one.key("é" * 512)
    with pytest.raises(SchemaError, match="takes 1026 bytes, at most 1024"):
        one.key("é" * 513)
    with pytest.raises(SchemaError):
        one.check_key("x" * 1025)
    pair = Schema.define({"s": str, "i": int}, ["s", "i"])
    assert pair.key(("x" * 1014, 1))
    with pytest.raises(SchemaError):
        pair.key(("x" * 1015, 1))
    with pytest.raises(SchemaError):
        pair.check_key(("x" * 1013 + "\0", 1))
    wide = {f"c{at}": "decimal(38,0)" for at in range(65)}
    assert Schema.define(wide, list(wide)[:64])
    with pytest.raises(SchemaError, match="more than 1024 bytes"):
        Schema.define(wide, list(wide))


@pytest.mark.parametrize("width", [8, 16, 32, 64])
def test_integer_keys_are_int64_without_a_copy_where_they_are(width: int) -> None:
    schema = Schema.define({"id": f"int{width}", "v": int}, "id")
    table = schema.table({"id": -3})
    assert schema.int_key
    assert schema.int_keys(table).tolist() == [-3]
    assert schema.int_keys(table).dtype == np.int64
    batch = table.to_batches()[0]
    assert schema.int_keys(batch).tolist() == [-3]
    if width == 64:
        address = batch.column(0).buffers()[1].address
        assert schema.int_keys(table).__array_interface__["data"][0] == address
    two = pa.concat_tables([table, schema.table({"id": 4})])
    assert schema.int_keys(two).tolist() == [-3, 4]
    assert schema.int_keys(two.slice(0, 0)).tolist() == []


def test_only_one_integer_column_is_an_integer_key() -> None:
    assert not Schema.define({"d": dt.date}, "d").int_key
    assert not Schema.define({"a": int, "b": int}, ["a", "b"]).int_key
    assert not Schema.define({"a": int}).int_key


def test_duplicates_are_shown_ten_at_most() -> None:
    ints = Schema.define({"id": int}, "id")
    many = pa.table({"id": [*range(1000), *range(500, 900)][::-1]})
    assert ints.first_duplicates(many) == list(range(500, 510))
    assert ints.first_duplicates(pa.table({"id": [1]})) == []
    assert ints.first_duplicates(pa.table({"id": [3, 2, 1]})) == []
    texts = Schema.define({"id": str}, "id")
    strings = pa.table({"id": [str(at) for at in [*range(1000), *range(500, 900)]]})
    found = texts.first_duplicates(strings)
    assert len(found) == 10
    assert all(500 <= int(key) < 900 for key in found)
    pair = Schema.define({"id": str, "count_all": int}, ["id", "count_all"])
    table = pa.table({"id": ["a", "a", "a", "b"], "count_all": [1, 2, 1, 1]})
    assert pair.first_duplicates(table) == [("a", 1)]
    assert Schema.define({"id": str}).first_duplicates(strings) == []

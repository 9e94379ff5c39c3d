"""The canonical types, and their names in text."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halocline.errors import SchemaError
from halocline.schema.typenames import parse_type, type_text
from halocline.schema.types import DEPTH_MAX, TIME, TIMESTAMP, TIMESTAMPTZ, canonical
from tests.unit.schema.pools import LEAVES, types

MAPPED = [
    (pa.uint8(), pa.int16()),
    (pa.uint16(), pa.int32()),
    (pa.uint32(), pa.int64()),
    (pa.uint64(), pa.decimal128(20, 0)),
    (pa.float16(), pa.float32()),
    (pa.large_string(), pa.string()),
    (pa.string_view(), pa.string()),
    (pa.large_binary(), pa.binary()),
    (pa.binary_view(), pa.binary()),
    (pa.binary(16), pa.binary()),
    (pa.dictionary(pa.int8(), pa.large_string()), pa.string()),
    (pa.run_end_encoded(pa.int32(), pa.uint8()), pa.int16()),
    (pa.decimal32(5, 2), pa.decimal128(5, 2)),
    (pa.decimal64(18, 3), pa.decimal128(18, 3)),
    (pa.decimal256(38, 4), pa.decimal128(38, 4)),
    (pa.decimal128(5, -2), pa.decimal128(7, 0)),
    (pa.decimal128(2, 5), pa.decimal128(5, 5)),
    (pa.date64(), pa.date32()),
    (pa.time32("s"), TIME),
    (pa.time64("ns"), TIME),
    (pa.timestamp("s"), TIMESTAMP),
    (pa.timestamp("ns"), TIMESTAMP),
    (pa.timestamp("ms", "Asia/Tokyo"), TIMESTAMPTZ),
    (pa.timestamp("us", "+01:00"), TIMESTAMPTZ),
    (pa.large_list(pa.uint8()), pa.list_(pa.int16())),
    (pa.list_(pa.float16(), 3), pa.list_(pa.float32())),
    (pa.list_view(pa.string_view()), pa.list_(pa.string())),
    (pa.struct([("a", pa.date64())]), pa.struct([("a", pa.date32())])),
    (pa.json_(), pa.string()),
    (pa.uuid(), pa.binary()),
]
REFUSED = [
    pa.null(),
    pa.list_(pa.null()),
    pa.map_(pa.string(), pa.int8()),
    pa.dense_union([pa.field("a", pa.int8())]),
    pa.duration("us"),
    pa.month_day_nano_interval(),
    pa.decimal256(39, 0),
    pa.decimal128(38, -1),
    pa.bool8(),
    pa.struct([]),
    pa.struct([("a", pa.int8()), ("A", pa.int8())]),
    pa.struct([("", pa.int8())]),
]


@pytest.mark.parametrize(("given", "kept"), MAPPED, ids=str)
def test_a_type_is_replaced_by_one_that_holds_all_its_values(given: Any, kept: Any) -> None:
    assert canonical(given) == kept
    assert canonical(kept) == kept


@pytest.mark.parametrize("type", LEAVES, ids=str)
def test_canonical_types_stay(type: Any) -> None:
    assert canonical(type) == type


@pytest.mark.parametrize("type", REFUSED, ids=str)
def test_a_type_without_a_place_is_refused_by_column(type: Any) -> None:
    with pytest.raises(SchemaError) as caught:
        canonical(type, column="x")
    assert caught.value.column == "x"


def test_nesting_is_bounded() -> None:
    type: Any = pa.int8()
    for _ in range(DEPTH_MAX):
        type = pa.list_(type)
    assert canonical(type) == type
    with pytest.raises(SchemaError, match="deeper"):
        canonical(pa.list_(type))
    with pytest.raises(SchemaError, match="deeper"):
        parse_type("int" + "[]" * 5000)
    with pytest.raises(SchemaError, match="deeper"):
        parse_type("list<" * 5000 + "int" + ">" * 5000)


@given(types())
def test_every_type_is_read_back_from_its_text(type: Any) -> None:
    read, nullable = parse_type(type_text(type))
    assert read.equals(type)
    assert str(read) == str(type)
    assert nullable


NAMED = [
    ("bigint", pa.int64(), True),
    ("BIGINT NOT NULL", pa.int64(), False),
    ("int", pa.int32(), True),
    ("integer null", pa.int32(), True),
    ("smallint", pa.int16(), True),
    ("tinyint", pa.int8(), True),
    ("int8", pa.int8(), True),
    ("uint64", pa.decimal128(20, 0), True),
    ("double", pa.float64(), True),
    ("double precision", pa.float64(), True),
    ("float", pa.float64(), True),
    ("real", pa.float32(), True),
    ("text", pa.string(), True),
    ("varchar", pa.string(), True),
    ("varchar not null", pa.string(), False),
    ("boolean", pa.bool_(), True),
    ("date", pa.date32(), True),
    ("time", TIME, True),
    ("timestamp", TIMESTAMP, True),
    ("timestamp without time zone", TIMESTAMP, True),
    ("timestamptz", TIMESTAMPTZ, True),
    ("timestamp with time zone not null", TIMESTAMPTZ, False),
    ("decimal(12,2)", pa.decimal128(12, 2), True),
    ("numeric( 12 , 2 )", pa.decimal128(12, 2), True),
    ("decimal(10)", pa.decimal128(10, 0), True),
    ("blob", pa.binary(), True),
    ("bytea", pa.binary(), True),
    ("int[]", pa.list_(pa.int32()), True),
    ("int[][] not null", pa.list_(pa.list_(pa.int32())), False),
    ("list<int>", pa.list_(pa.int32()), True),
    ("array<varchar>", pa.list_(pa.string()), True),
    ("struct<a:int,b:string>", pa.struct([("a", pa.int32()), ("b", pa.string())]), True),
    ("list<int not null>", pa.list_(pa.field("item", pa.int32(), nullable=False)), True),
    ('struct<"not null": int[]>', pa.struct([("not null", pa.list_(pa.int32()))]), True),
]


@pytest.mark.parametrize(("text", "type", "nullable"), NAMED, ids=[text for text, _, _ in NAMED])
def test_names_of_types_as_people_write_them(text: str, type: Any, nullable: bool) -> None:
    read, null = parse_type(text)
    assert read.equals(type)
    assert null is nullable


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "number",
        "decimal",
        "numeric not null",
        "decimal(39,0)",
        "decimal(2,3)",
        "decimal(0,0)",
        "decimal(1,2,3)",
        "decimal(-1,2)",
        "decimal(12.5)",
        "int(4)",
        "varchar(20)",
        "array<varchar(3)>",
        "int not",
        "int null null",
        "int;",
        "time with time zone",
        "list",
        "list<>",
        "list<int",
        "struct<>",
        "struct<a>",
        "struct<a:int,>",
        "struct<a:int,A:int>",
        'struct<"":int>',
        "map<string,int>",
        "interval",
        "int]",
        '"int"',
    ],
)
def test_text_that_is_no_type_is_refused(text: str) -> None:
    with pytest.raises(SchemaError) as caught:
        parse_type(text, column="x")
    assert caught.value.column == "x"


@given(st.text(st.sampled_from('int list<struct>a:,"[]()0 not null decimal'), max_size=40))
def test_any_text_is_a_type_or_a_schema_error(text: str) -> None:
    try:
        type, _ = parse_type(text)
    except SchemaError:
        return
    assert parse_type(type_text(type))[0].equals(type)

"""Rows through msgpack, Arrow and cells: what comes back is what went in, to the last bit."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from halocline.schema.batches import from_arrow
from halocline.schema.schema import Schema
from halocline.schema.types import kind
from tests.unit.schema.pools import FIRST, LAST, LEAVES, few, same, tables

Rows = list[tuple[Any, ...]]

EDGES: list[tuple[str, list[Any]]] = [
    ("float64", [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 5e-324, 1.7e308]),
    ("float32", [0.0, -0.0, float("inf"), float("nan"), 2.0**-149]),
    ("decimal(38,38)", [Decimal((0, (0,), -38)), Decimal("0." + "9" * 38), Decimal("-1E-38")]),
    ("decimal(38,0)", [Decimal("9" * 38), Decimal("-" + "9" * 38), Decimal(0)]),
    ("decimal(18,2)", [Decimal("9" * 16 + ".99"), Decimal("-0.01"), Decimal("0.00")]),
    ("int64", [2**63 - 1, -(2**63)]),
    ("date", [dt.date.min, dt.date.max, dt.date(1970, 1, 1)]),
    ("time", [dt.time.min, dt.time.max]),
    ("timestamp", [FIRST, LAST, dt.datetime(1969, 12, 31, 23, 59, 59, 1)]),
    (
        "timestamptz",
        [
            FIRST.replace(tzinfo=dt.UTC),
            LAST.replace(tzinfo=dt.UTC),
            dt.datetime(1969, 12, 31, 23, 59, 59, 999999, dt.UTC),
        ],
    ),
    ("string", ["", "\0", "é\uffff\U0010ffff", "x" * 255, "x" * 256, "x" * 70000]),
    ("binary", [b"", b"\0", bytes(255), bytes(range(256))]),
    ("list<timestamptz>", [[], [None, dt.datetime(2020, 1, 1, tzinfo=dt.UTC)]]),
    ("struct<a: decimal(5,2), b: list<date>>", [{"a": Decimal("1.50"), "b": [dt.date.max]}]),
]


@pytest.mark.parametrize(("text", "column"), EDGES, ids=[text for text, _ in EDGES])
def test_edge_values_survive_every_form(text: str, column: list[Any]) -> None:
    schema = Schema.define({"v": text})
    rows: Rows = [schema.row({"v": value}) for value in [*column, None]]
    assert same([row[0] for row in rows], [*column, None])
    check_all_forms(schema, rows)


@few()
@given(tables())
def test_random_rows_survive_every_form(case: tuple[Schema, Rows]) -> None:
    schema, rows = case
    checked = [schema.row(dict(zip(schema.names, row, strict=True))) for row in rows]
    assert same(checked, rows)
    check_all_forms(schema, rows)


def check_all_forms(schema: Schema, rows: Rows) -> None:
    assert same(schema.decode_rows(schema.encode_rows(rows)), rows)
    batch = schema.to_arrow(rows)
    batch.validate(full=True)
    assert batch.schema.equals(schema.arrow)
    assert same(from_arrow(batch), rows)
    reader = schema.cells(batch)
    assert same([reader(at) for at in range(len(rows))], rows)


@few()
@given(tables(rows_max=24), st.integers(0, 20), st.integers(0, 20))
def test_cells_and_rows_of_a_slice_equal_the_rows(
    case: tuple[Schema, Rows], start: int, length: int
) -> None:
    schema, rows = case
    batch = schema.to_arrow(rows).slice(start, length)
    reader = schema.cells(batch)
    part = rows[start : start + length]
    assert same(from_arrow(batch), part)
    assert same([reader(at) for at in range(batch.num_rows)], part)


@pytest.mark.parametrize("type", LEAVES, ids=str)
def test_cells_read_every_position_of_every_type(type: Any) -> None:
    schema = Schema.define({"v": type, "w": type})
    rows: Rows = [(v, None if at % 3 else v) for at, v in enumerate(_ten(type) * 3)]
    whole = schema.to_arrow(rows)
    for start in (0, 1, 7, 8, 9):
        reader = schema.cells(whole.slice(start))
        assert same([reader(at) for at in range(len(rows) - start)], rows[start:])


def _ten(type: Any) -> list[Any]:
    """Ten values of a type that differ."""
    if kind(type) == "decimal":
        return [Decimal((0, (at,), -type.scale)) for at in range(10)]
    midnight = dt.datetime(2024, 1, 1)
    made: dict[str, Callable[[int], Any]] = {
        "bool": lambda at: at % 3 == 0,
        "int": lambda at: at * 11,
        "float": lambda at: at / 4,
        "string": lambda at: "x" * at,
        "binary": lambda at: b"x" * at,
        "date": lambda at: dt.date(2024, 1, 1 + at),
        "time": lambda at: dt.time(at, at, at, at),
        "timestamp": lambda at: midnight + dt.timedelta(at, at, at),
        "timestamptz": lambda at: (midnight + dt.timedelta(at, at, at)).replace(tzinfo=dt.UTC),
    }
    return [made[kind(type)](at) for at in range(10)]


def test_a_reader_keeps_its_buffers_alive_and_copies_none() -> None:
    schema = Schema.define({"id": int, "s": str})
    before = pa.total_allocated_bytes()
    batch = schema.to_arrow([(at, f"value {at}") for at in range(1000)])
    reader = schema.cells(batch)
    held = pa.total_allocated_bytes() - before
    del batch
    assert pa.total_allocated_bytes() - before == held
    assert reader(999) == (999, "value 999")


@given(st.binary(max_size=60))
@example(b"\xdd\xff\xff\xff\xff")
@example(b"\x91\x95\x01\xa3\xed\xa0\x80\xa41.50\xc0\xc0")
def test_hostile_bytes_are_an_error_of_msgspec(data: bytes) -> None:
    schema = Schema.define(
        {"i": int, "s": str, "d": "decimal(5,2)", "at": "timestamptz", "l": "list<int>"}
    )
    try:
        rows = schema.decode_rows(data)
    except msgspec.MsgspecError:
        return
    assert schema.decode_rows(schema.encode_rows(rows)) == rows


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("decimal(5,2)", "1E+999999999"),
        ("decimal(5,2)", "NaN"),
        ("decimal(5,2)", "1.5"),
        ("decimal(5,2)", "1000.00"),
        ("list<decimal(5,2)>", ["1.5"]),
        ("struct<a: list<decimal(5,2)>>", {"a": ["Infinity"]}),
        ("timestamptz", "2020-01-01T00:00:00+05:00"),
        ("timestamptz", "2020-01-01T00:00:00"),
        ("timestamp", "2020-01-01T00:00:00Z"),
        ("time", "10:00:00Z"),
        ("int8", 128),
        ("int64", 2**63),
        ("int64", True),
        ("bool", 1),
        ("string", b"x"),
        ("struct<a: int>", {}),
    ],
)
def test_values_that_are_not_canonical_are_refused_when_decoded(text: str, value: Any) -> None:
    schema = Schema.define({"v": text})
    with pytest.raises(msgspec.ValidationError):
        schema.decode_rows(msgspec.msgpack.encode([(value,)]))


def test_null_in_a_column_that_has_none_is_refused_when_decoded() -> None:
    schema = Schema.define({"v": "int not null"})
    with pytest.raises(msgspec.ValidationError):
        schema.decode_rows(msgspec.msgpack.encode([(None,)]))
    with pytest.raises(msgspec.ValidationError):
        schema.decode_rows(msgspec.msgpack.encode([(1, 2)]))


def test_no_rows_make_an_empty_batch_of_the_schema() -> None:
    schema = Schema.define({"id": int, "l": "list<struct<a: decimal(5,2)>>"}, "id")
    batch = schema.to_arrow([])
    assert batch.num_rows == 0
    assert batch.schema.equals(schema.arrow)
    assert from_arrow(batch) == []
    assert schema.decode_rows(schema.encode_rows([])) == []
    schema.cells(batch)

"""Definitions: dicts, Arrow schemas and frames; names, keys, and the form the catalog keeps."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import duckdb
import msgspec
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given

from halocline.errors import SchemaError, UsageError
from halocline.schema.names import NAME_BYTES_MAX
from halocline.schema.schema import Schema
from halocline.schema.types import TIME, TIMESTAMP, TIMESTAMPTZ
from tests.unit.schema.pools import few, tables


def test_a_dict_takes_python_types_type_names_and_arrow_types() -> None:
    schema = Schema.define(
        {
            "i": int,
            "f": float,
            "s": str,
            "b": bytes,
            "ok": bool,
            "d": dt.date,
            "at": dt.datetime,
            "t": dt.time,
            "amount": "decimal(12,2) not null",
            "u": pa.uint32(),
        },
        primary_key="i",
    )
    types = [column.type for column in schema.columns]
    assert types == [
        pa.int64(),
        pa.float64(),
        pa.string(),
        pa.binary(),
        pa.bool_(),
        pa.date32(),
        TIMESTAMP,
        TIME,
        pa.decimal128(12, 2),
        pa.int64(),
    ]
    assert [column.id for column in schema.columns] == list(range(1, 11))
    assert [c.name for c in schema.columns if not c.nullable] == ["i", "amount"]
    assert schema.primary_key == ("i",)
    assert schema.key_positions == (0,)
    assert schema.arrow.field("i").nullable is False
    assert schema.names[:3] == ("i", "f", "s")


def test_an_arrow_schema_keeps_its_nullable_flags_and_loses_its_metadata() -> None:
    given_schema = pa.schema(
        [
            pa.field("k", pa.large_string(), metadata={"x": "y"}),
            pa.field("v", pa.int32(), nullable=False),
            pa.field("w", pa.timestamp("ns", "Europe/Berlin")),
        ],
        metadata={"some": "thing"},
    )
    schema = Schema.define(given_schema, ["k"])
    assert schema.arrow.equals(
        pa.schema(
            [
                pa.field("k", pa.string(), nullable=False),
                pa.field("v", pa.int32(), nullable=False),
                pa.field("w", TIMESTAMPTZ),
            ]
        ),
        check_metadata=True,
    )


def test_frames_give_their_schema() -> None:
    expected = [pa.int64(), pa.string(), TIMESTAMP, pa.float64()]
    moment = dt.datetime(2024, 1, 2)
    pandas = pd.DataFrame({"id": [1], "s": ["a"], "at": [moment], "f": [1.5]})
    polars = pl.DataFrame({"id": [1], "s": ["a"], "at": [moment], "f": [1.5]})
    with duckdb.connect() as connection:
        relation = connection.sql(
            "select 1::bigint as id, 'a' as s, timestamp '2024-01-02' as at, 1.5::double as f"
        )
        frames = [pandas, polars, relation, pa.table(polars), pa.table(polars).to_reader()]
        for frame in frames:
            schema = Schema.define(frame, "id")
            assert [column.type for column in schema.columns] == expected
            assert schema.names == ("id", "s", "at", "f")


def test_the_index_of_pandas_is_dropped() -> None:
    frame = pd.DataFrame({"v": [1, 2]}, index=pd.Index([5, 6]))
    named = pd.DataFrame({"v": [1, 2]}, index=pd.Index([5, 6], name="k"))
    assert Schema.define(frame).names == ("v",)
    assert Schema.define(named).names == ("v",)


@pytest.mark.parametrize(
    ("definition", "column"),
    [
        ({"a": Decimal}, "a"),
        ({"a": object}, "a"),
        ({"a": None}, "a"),
        ({"a": 5}, "a"),
        ({"a": ["int"]}, "a"),
        ({"a": "nonsense"}, "a"),
        ({"a": pa.null()}, "a"),
        ({"a": int, "A": int}, "A"),
        ({"straße": int, "STRASSE": int}, "STRASSE"),
        ({"_a": int}, "_a"),
        ({"": int}, None),
        ({"a\nb": int}, None),
        ({"\ud800": int}, None),
        ({5: int}, None),
        ({"ä" * 128: int}, "ä" * 128),
        ({}, None),
        (pa.schema([]), None),
        (pa.schema([("m", pa.map_(pa.string(), pa.int8()))]), "m"),
        (pd.DataFrame({"a": [None]}), "a"),
        ([("a", int)], None),
        ("a int", None),
        (None, None),
        (pa.chunked_array([[1]]), None),
        (pa.int64(), None),
    ],
    ids=lambda value: str(value)[:30].replace("\ud800", "?"),
)
def test_a_bad_definition_is_a_schema_error(definition: Any, column: str | None) -> None:
    with pytest.raises(SchemaError) as caught:
        Schema.define(definition)
    assert caught.value.column == column


def test_names_have_limits() -> None:
    assert Schema.define({"a" * NAME_BYTES_MAX: int}).names
    assert Schema.define({"with space 'quoted' é": int}).names
    assert len(Schema.define({f"c{at}": int for at in range(10_000)}).columns) == 10_000
    with pytest.raises(SchemaError, match="at most 10000"):
        Schema.define({f"c{at}": int for at in range(10_001)})


def test_a_decimal_without_digits_says_what_to_write() -> None:
    with pytest.raises(SchemaError, match=r"decimal\(12,2\)"):
        Schema.define({"a": Decimal})


@pytest.mark.parametrize(
    "key", ["c", ["a", "a"], ["a", "A"], [], 5, ["f"], "l", "s", [None], {"a": 1}]
)
def test_a_bad_primary_key_is_a_schema_error(key: Any) -> None:
    definition = {"a": int, "b": int, "f": float, "l": "int[]", "s": "struct<x: int>"}
    with pytest.raises(SchemaError):
        Schema.define(definition, key)


def test_a_primary_key_is_one_column_several_or_none() -> None:
    definition = {"a": int, "B": "text", "c": int}
    assert Schema.define(definition).primary_key == ()
    assert Schema.define(definition, "b").primary_key == ("B",)
    composite = Schema.define(definition, ("c", "b"))
    assert composite.primary_key == ("c", "B")
    assert composite.key_positions == (2, 1)
    assert [column.nullable for column in composite.columns] == [True, False, False]


def test_a_spark_frame_as_definition_names_the_way_to_load() -> None:
    fake = type("DataFrame", (), {"__module__": "pyspark.sql.classic.dataframe"})
    with pytest.raises(UsageError, match=r"hs\.load"):
        Schema.define(fake())


def test_positions_are_found_in_any_case_and_mistakes_get_a_hint() -> None:
    schema = Schema.define({"id": int, "Amount": int})
    assert schema.position("amount") == schema.position("AMOUNT") == schema.position("Amount") == 1
    with pytest.raises(SchemaError, match="did you mean 'Amount'") as caught:
        schema.position("amuont")
    assert caught.value.column == "amuont"
    with pytest.raises(SchemaError, match="the columns are id, Amount"):
        schema.position("zzz")
    with pytest.raises(SchemaError):
        schema.position(1)  # type: ignore[arg-type]


@few(5)
@given(tables(rows_max=0))
def test_the_catalog_form_reads_back_as_an_equal_schema(case: tuple[Schema, Any]) -> None:
    schema, _ = case
    wire = msgspec.msgpack.decode(msgspec.msgpack.encode(schema.to_wire()))
    assert Schema.from_wire(wire) == schema
    assert str(Schema.from_wire(wire).arrow) == str(schema.arrow)


def test_the_catalog_form_keeps_key_ids_and_last_id() -> None:
    schema = Schema.define({"a": int, "b": str}, ["b", "a"])
    read = Schema.from_wire(schema.to_wire())
    assert read == schema
    assert hash(read) == hash(schema)
    assert read.primary_key == ("b", "a")
    assert read.last_id == 2


@pytest.mark.parametrize(
    "change",
    [
        {"columns": []},
        {"columns": [[1, "a", "int64"]]},
        {"columns": [[1, "a", "what", False, {}]]},
        {"columns": [[0, "a", "int64", False, {}]]},
        {"columns": [[3, "a", "int64", False, {}]]},
        {"columns": [[1, "a", "int64", False, {}], [1, "b", "int64", False, {}]]},
        {"columns": [[1, "_a", "int64", False, {}]]},
        {"columns": [[1, "a", "int64", True, {}]]},
        {"columns": [[1, "a", "float64", False, {}]]},
        {"columns": [["1", "a", "int64", False, {}]]},
        {"key": [9]},
        {"key": [1, 1]},
        {"key": "a"},
        {"last_id": 0},
        {"last_id": "x"},
        {"more": 1},
    ],
)
def test_a_spoilt_catalog_form_is_a_schema_error(change: dict[str, Any]) -> None:
    wire = Schema.define({"a": int}, "a").to_wire()
    with pytest.raises(SchemaError):
        Schema.from_wire({**wire, "last_id": 2, **change})


def test_a_schema_cannot_be_changed() -> None:
    schema = Schema.define({"a": int})
    with pytest.raises(AttributeError):
        schema.last_id = 5  # type: ignore[misc]

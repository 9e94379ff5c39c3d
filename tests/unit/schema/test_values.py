"""Single values: what each type of column takes, what it makes of it, what it refuses."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import zoneinfo
from collections import OrderedDict
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import pytest

from halocline.errors import SchemaError
from halocline.schema.batches import from_arrow
from halocline.schema.schema import Schema
from tests.unit.schema.pools import same

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
NOON = dt.datetime(2024, 6, 1, 12)


class Colour(enum.IntEnum):
    RED = 3


class Word(str, enum.Enum):  # noqa: UP042 (its str() is not its value, which is the point)
    RED = "red"


class Money(Decimal):
    pass


class Day(dt.date):
    pass


TAKEN: list[tuple[str, Any, Any]] = [
    ("bool", True, True),
    ("bool", np.True_, True),
    ("int8", -128, -128),
    ("int64", Colour.RED, 3),
    ("int64", np.int64(-5), -5),
    ("int64", np.uint8(5), 5),
    ("int64", 3.0, 3),
    ("int64", -0.0, 0),
    ("int64", np.float32(4), 4),
    ("int64", Decimal("7.00"), 7),
    ("int64", Decimal("7E+2"), 700),
    ("int64", Decimal("0E+99999"), 0),
    ("float64", 1.5, 1.5),
    ("float64", 7, 7.0),
    ("float64", 2**60, 2.0**60),
    ("float64", np.float64(0.1), 0.1),
    ("float64", np.float32(0.5), 0.5),
    ("float64", np.int8(3), 3.0),
    ("float64", Decimal("0.1"), 0.1),
    ("float64", Decimal(2) ** 60, 2.0**60),
    ("float64", float("nan"), float("nan")),
    ("float64", float("-inf"), float("-inf")),
    ("float32", 0.1, 0.10000000149011612),
    ("float32", Decimal("0.1"), 0.10000000149011612),
    ("float32", 2**24, 2.0**24),
    ("float32", float("inf"), float("inf")),
    ("float32", 1e-60, 0.0),
    ("decimal(5,2)", Decimal("1.5"), Decimal("1.50")),
    ("decimal(5,2)", Decimal("1.500"), Decimal("1.50")),
    ("decimal(5,2)", Decimal("1E+2"), Decimal("100.00")),
    ("decimal(5,2)", Decimal("-0.00"), Decimal("0.00")),
    ("decimal(5,2)", Money("2.5"), Decimal("2.50")),
    ("decimal(5,2)", 7, Decimal("7.00")),
    ("decimal(5,2)", np.int16(-7), Decimal("-7.00")),
    ("decimal(5,2)", 9.99, Decimal("9.99")),
    ("decimal(5,2)", -0.0, Decimal("0.00")),
    ("decimal(38,0)", 2.0**60, Decimal(2**60)),
    ("decimal(38,38)", Decimal("0.1"), Decimal("0.1" + "0" * 37)),
    ("string", "", ""),
    ("string", "naïve \U0001f600", "naïve \U0001f600"),
    ("string", Word.RED, "red"),
    ("string", np.str_("x"), "x"),
    ("binary", bytearray(b"ab"), b"ab"),
    ("binary", memoryview(b"abcd")[::2], b"ac"),
    ("date", dt.date(2024, 1, 2), dt.date(2024, 1, 2)),
    ("date", Day(2024, 1, 2), dt.date(2024, 1, 2)),
    ("date", np.datetime64("2024-01-02"), dt.date(2024, 1, 2)),
    ("time", dt.time(1, 2, 3, 4, fold=1), dt.time(1, 2, 3, 4)),
    ("timestamp", NOON, NOON),
    ("timestamp", NOON.replace(fold=1), NOON),
    ("timestamp", pd.Timestamp(NOON), NOON),
    ("timestamp", np.datetime64("2024-06-01T12:00:00", "ns"), NOON),
    ("timestamp", np.datetime64("2024-06-01T12", "h"), NOON),
    ("timestamptz", NOON.replace(tzinfo=dt.UTC), NOON.replace(tzinfo=dt.UTC)),
    ("timestamptz", NOON.replace(tzinfo=BERLIN), dt.datetime(2024, 6, 1, 10, tzinfo=dt.UTC)),
    (
        "timestamptz",
        dt.datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN, fold=1),
        dt.datetime(2024, 10, 27, 1, 30, tzinfo=dt.UTC),
    ),
    (
        "timestamptz",
        pd.Timestamp("2024-06-01 12:00", tz="Europe/Berlin"),
        dt.datetime(2024, 6, 1, 10, tzinfo=dt.UTC),
    ),
    (
        "timestamptz",
        NOON.replace(tzinfo=dt.timezone(dt.timedelta(hours=-5, microseconds=7))),
        dt.datetime(2024, 6, 1, 16, 59, 59, 999993, tzinfo=dt.UTC),
    ),
    ("list<int>", (1, None, np.int64(3)), [1, None, 3]),
    ("list<int>", np.array([1, 2]), [1, 2]),
    ("list<list<int>>", np.array([[1], [2]]), [[1], [2]]),
    ("list<decimal(5,2)>", [1, Decimal("2.5")], [Decimal("1.00"), Decimal("2.50")]),
    ("struct<a: int, b: string>", {"b": "x"}, {"a": None, "b": "x"}),
    ("struct<a: int, b: string>", MappingProxyType({"a": 1}), {"a": 1, "b": None}),
]
REFUSED: list[tuple[str, Any]] = [
    ("bool", 1),
    ("bool", 0.0),
    ("bool", "true"),
    ("int64", True),
    ("int64", np.True_),
    ("int64", "5"),
    ("int64", 1.5),
    ("int64", float("nan")),
    ("int64", float("inf")),
    ("int64", 2.0**63),
    ("int64", 2**63),
    ("int64", np.uint64(2**63)),
    ("int64", 10**6000),
    ("int64", Decimal("1.5")),
    ("int64", Decimal("NaN")),
    ("int64", Decimal("sNaN")),
    ("int64", Decimal("1E+999999")),
    ("int64", 1j),
    ("int64", [1]),
    ("int8", 128),
    ("int16", -32769),
    ("float64", True),
    ("float64", "1.5"),
    ("float64", 2**53 + 1),
    ("float64", 10**400),
    ("float64", Decimal("0.1000000000000000000001")),
    ("float64", Decimal("1E+400")),
    ("float64", Decimal("1E-400")),
    ("float64", Decimal("NaN")),
    ("float32", 1e39),
    ("float32", 2**24 + 1),
    ("decimal(5,2)", True),
    ("decimal(5,2)", "1.50"),
    ("decimal(5,2)", Decimal("1.555")),
    ("decimal(5,2)", Decimal(1000)),
    ("decimal(5,2)", Decimal("999.995")),
    ("decimal(5,2)", Decimal("NaN")),
    ("decimal(5,2)", Decimal("sNaN")),
    ("decimal(5,2)", Decimal("-Infinity")),
    ("decimal(5,2)", Decimal("1E+999999999")),
    ("decimal(5,2)", 0.1 + 0.2),
    ("decimal(5,2)", float("nan")),
    ("decimal(5,2)", float("inf")),
    ("decimal(5,2)", 1e300),
    ("decimal(5,2)", 10**5000),
    ("string", 5),
    ("string", b"x"),
    ("string", "\ud800"),
    ("string", Word),
    ("binary", "x"),
    ("binary", [1]),
    ("binary", 5),
    ("date", NOON),
    ("date", "2024-01-02"),
    ("date", np.datetime64("2024-01-02T00", "h")),
    ("date", 5),
    ("time", dt.time(1, tzinfo=dt.UTC)),
    ("time", NOON),
    ("time", dt.timedelta(1)),
    ("timestamp", NOON.replace(tzinfo=dt.UTC)),
    ("timestamp", dt.date(2024, 1, 2)),
    ("timestamp", "2024-01-02"),
    ("timestamp", pd.Timestamp("2024-01-02 00:00:00.000000001")),
    ("timestamp", np.datetime64(1, "ns")),
    ("timestamp", np.datetime64("2024-01-02", "D")),
    ("timestamp", np.datetime64("12000-01-01T00", "s")),
    ("timestamp", 1.7e9),
    ("timestamptz", NOON),
    ("timestamptz", dt.datetime.min.replace(tzinfo=dt.timezone(dt.timedelta(hours=1)))),
    ("timestamptz", dt.datetime.max.replace(tzinfo=dt.timezone(dt.timedelta(hours=-1)))),
    ("timestamptz", np.datetime64("2024-01-02T00:00", "us")),
    ("list<int>", "ab"),
    ("list<int>", {1}),
    ("list<int>", {"a": 1}),
    ("list<int>", np.array(5)),
    ("list<int>", [1, "2"]),
    ("list<int not null>", [1, None]),
    ("struct<a: int>", [1]),
    ("struct<a: int>", {"b": 1}),
    ("struct<a: int>", {"a": "x"}),
    ("struct<a: int>", {"A": 1}),
    ("struct<a: int not null>", {}),
    ("list<struct<a: list<int>>>", [{"a": [True]}]),
]


def _name(value: Any) -> str:
    return (
        f"int of {value.bit_length()} bits"
        if _is_huge(value)
        else ascii(value)[:40].split(" at 0x")[0]
    )


def _is_huge(value: Any) -> bool:
    return isinstance(value, int) and value.bit_length() > 1000


@pytest.mark.parametrize(("text", "given", "kept"), TAKEN, ids=_name)
def test_a_value_becomes_canonical_the_same_way_everywhere(
    text: str, given: Any, kept: Any
) -> None:
    schema = Schema.define({"id": int, "v": text}, "id")
    assert same(schema.row({"id": 1, "v": given}), (1, kept))
    assert same(schema.row(OrderedDict(V=given, ID=1)), (1, kept))
    assert same(schema.partial({"v": given}), {1: kept})
    assert same(schema.partial({"V": given}), {1: kept})
    assert same(schema.from_table(schema.table([{"id": 1, "v": given}])), [(1, kept)])
    strict = Schema.define({"v": f"{text} not null"})
    assert same(strict.row({"v": given}), (kept,))


@pytest.mark.parametrize(("text", "given"), REFUSED, ids=_name)
def test_a_value_that_would_change_is_refused_by_column(text: str, given: Any) -> None:
    schema = Schema.define({"id": int, "v": text}, "id")
    for call in (
        lambda: schema.row({"id": 1, "v": given}),
        lambda: schema.row({"ID": 1, "v": given}),
        lambda: schema.partial({"v": given}),
    ):
        with pytest.raises(SchemaError) as caught:
            call()
        assert caught.value.column == "v"
        assert caught.value.row is None
        assert len(str(caught.value)) < 250
    with pytest.raises(SchemaError) as caught:
        schema.table([{"id": 0}, {"id": 1, "v": given}])
    assert (caught.value.column, caught.value.row) == ("v", 1)


@pytest.mark.parametrize("null", [None, pd.NA, pd.NaT, np.datetime64("NaT")], ids=str)
@pytest.mark.parametrize(
    "text",
    [
        "bool",
        "int8",
        "float32",
        "decimal(5,2)",
        "string",
        "binary",
        "date",
        "time",
        "timestamp",
        "timestamptz",
        "int[]",
        "struct<a: int>",
    ],
)
def test_every_null_is_null_and_refused_where_there_is_none(text: str, null: Any) -> None:
    assert Schema.define({"v": text}).row({"v": null}) == (None,)
    assert Schema.define({"v": text}).partial({"v": null}) == {0: None}
    strict = Schema.define({"v": f"{text} not null"})
    with pytest.raises(SchemaError, match="must not be null"):
        strict.row({"v": null})
    with pytest.raises(SchemaError, match="must not be null"):
        strict.partial({"v": null})


def test_decimals_do_not_depend_on_the_context_of_the_thread() -> None:
    schema = Schema.define({"v": "decimal(38,10)"})
    value = Decimal("1234567890123456789012345678.0123456789")
    with decimal.localcontext(prec=3, rounding=decimal.ROUND_UP, traps=[], Emax=5, Emin=-5):
        row = schema.row({"v": value})
        assert row[0].as_tuple() == value.as_tuple()
        batch = schema.to_arrow([row])
        assert from_arrow(batch)[0][0].as_tuple() == value.as_tuple()
        assert schema.cells(batch)(0)[0].as_tuple() == value.as_tuple()
        assert schema.decode_rows(schema.encode_rows([row]))[0][0].as_tuple() == value.as_tuple()


def test_nested_values_are_copies_on_the_way_in_and_out() -> None:
    schema = Schema.define({"l": "list<struct<a: int[]>>"})
    mine = [{"a": [1]}]
    row = schema.row({"l": mine})
    mine[0]["a"].append(2)
    assert row == ([{"a": [1]}],)
    schema.as_dict(row)["l"][0]["a"].append(3)
    assert row == ([{"a": [1]}],)


def test_a_place_inside_a_nested_value_is_named() -> None:
    schema = Schema.define({"l": "list<struct<a: int[]>>"})
    with pytest.raises(SchemaError, match="item 1: field 'a': item 0: 'x'"):
        schema.row({"l": [{"a": []}, {"a": ["x"]}]})

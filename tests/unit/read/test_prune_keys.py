"""What a predicate says about the primary key: points, ranges, prefixes of composite keys."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest

from halocline.read.keyrange import EQUALITIES_MAX, KeyBounds, byte_range
from halocline.read.prune import compile_where
from halocline.schema.schema import Schema

UTC = dt.UTC


def bounds(definition: dict[str, Any], key: Any, where: str, *params: Any) -> KeyBounds:
    schema = Schema.define(definition, key)
    found = compile_where(where, params, schema).bounds
    assert found == compile_where(where, params, schema).bounds
    return found


def ints(where: str, *params: Any) -> KeyBounds:
    return bounds({"id": int, "v": int}, "id", where, *params)


def pairs(where: str, *params: Any) -> KeyBounds:
    return bounds({"a": int, "b": str, "v": int}, ["a", "b"], where, *params)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("id = 7", (7, 8, (7,))),
        ("7 = id and v > 3", (7, 8, (7,))),
        ("id = 7 or id = 3", (3, 8, (3, 7))),
        ("id in (9, 3, 3)", (3, 10, (3, 9))),
        ("id in (3, 9) and id > 4", (9, 10, (9,))),
        ("id in (3, null)", (3, 4, (3,))),
        ("id >= 5 and id < 8", (5, 8, None)),
        ("id > 5 and id <= 8", (6, 9, None)),
        ("id between 5 and 8", (5, 9, None)),
        ("id between 5 and 5", (5, 6, (5,))),
        ("not (id < 5 or id >= 8)", (5, 8, None)),
        ("not id <= 5", (6, None, None)),
        ("id < 5 or id > 8", (None, None, None)),
        ("id = 2 or id between 5 and 8", (2, 9, None)),
        ("id > 1.5", (2, None, None)),
        ("id = 5.0", (5, 6, (5,))),
        ("id < 7e0", (None, 7, None)),
        ("id = 7 or v = 3", (None, None, None)),
        ("v = 3", (None, None, None)),
        ("id <> 3", (None, None, None)),
        ("abs(id) = 3", (None, None, None)),
        ("abs(id) = 3 and id > 4", (5, None, None)),
        ("id is not null", (None, None, None)),
        ("(id = 5) is true", (5, 6, (5,))),
        ("id = -9223372036854775808", (-(2**63), 1 - 2**63, (-(2**63),))),
        ("id = 9223372036854775807", (2**63 - 1, None, (2**63 - 1,))),
        ("id <= 9223372036854775807", (None, None, None)),
        ("id < 99999999999999999999", (None, None, None)),
    ],
)
def test_one_key_column(where: str, expected: tuple[Any, Any, Any]):
    assert ints(where) == expected


@pytest.mark.parametrize(
    "where",
    [
        *["id = null", "id = 1.5", "id > 5 and id < 6", "id = 5 and id = 6", "false", "null"],
        *["id > 9223372036854775807", "id = 99999999999999999999", "id < -9223372036854775808"],
        *["id in (1, 2) and id > 2", "not true and v = 1", "id > 5 and id <= 4"],
    ],
)
def test_no_key_can_match(where: str):
    found = ints(where)
    assert found.empty
    assert found.equalities == ()


def test_doubles_that_may_have_been_rounded_are_a_range():
    found = ints("id = ?", 2.0**60)
    assert found.equalities is None
    assert found.low <= 2**60 - 64
    assert found.high > 2**60 + 128


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("a = 1 and b = 'x'", ((1, "x"), (1, "x\0"), ((1, "x"),))),
        ("a = 1", ((1,), (2,), None)),
        ("a = 1 and b > 'x'", ((1, "x\0"), (2,), None)),
        ("a = 1 and b <= 'x'", ((1,), (1, "x\0"), None)),
        ("a = 1 and b like 'xy%'", ((1, "xy"), (1, "xz"), None)),
        ("a > 1 and b = 'x'", ((2,), None, None)),
        ("b = 'x'", (None, None, None)),
        ("a in (1, 3) and b = 'x'", ((1,), (4,), ((1, "x"), (3, "x")))),
        ("a in (3, 1) and b in ('y', 'x')", ((1,), (4,), None)),
        ("(a = 1 and b = 'x') or (a = 2 and b = 'y')", ((1,), (3,), None)),
        ("a = 9223372036854775807", ((2**63 - 1,), None, None)),
        ("a = 1 and b = 'x' and a = 2", (None, None, ())),
    ],
)
def test_composite_keys(where: str, expected: tuple[Any, Any, Any]):
    found = pairs(where)
    assert (found.low, found.high) == expected[:2]
    if expected[2] is not None:
        assert found.equalities == expected[2]
    if where.startswith(("a in (3", "(a = 1")):
        assert found.equalities is not None
        assert len(found.equalities) == 4
        assert list(found.equalities) == sorted(found.equalities)


def test_key_types_step_from_value_to_value():
    moment = dt.datetime(2024, 1, 1, tzinfo=UTC)
    tick = dt.timedelta(microseconds=1)
    cases: list[tuple[Any, str, Any, Any, Any]] = [
        ("timestamptz", "k > ?", moment, moment + tick, None),
        ("timestamp", "k <= ?", dt.datetime(2024, 1, 1), None, dt.datetime(2024, 1, 1) + tick),
        ("date", "k > ?", dt.datetime(2024, 1, 1, 12), dt.date(2024, 1, 2), None),
        ("date", "k > ?", dt.date(9998, 12, 31), dt.date(9999, 1, 1), None),
        ("time", "k > ?", dt.time(23, 59, 59, 999998), dt.time(23, 59, 59, 999999), None),
        ("decimal(5,2)", "k > ?", Decimal("1.234"), Decimal("1.24"), None),
        ("decimal(5,2)", "k < ?", 2, None, Decimal("2.00")),
        ("binary", "k > ?", b"a", b"a\0", None),
        ("bool", "k >= ?", False, False, None),
        ("string", "k like ?", "a\ud7ff%", "a\ud7ff", "a\ue000"),
        ("string", "k like ?", "\U0010ffff%", "\U0010ffff", None),
        ("tinyint", "k > ?", -500, -128, None),
    ]
    for type, where, value, low, high in cases:
        found = bounds({"k": type}, "k", where, value)
        assert (found.low, found.high) == (low, high), (type, where, value)
        assert found.equalities is None or found.equalities == (low,)


def test_ends_of_types_are_points_or_nothing():
    assert bounds({"k": "bool"}, "k", "k > false").equalities == (True,)
    assert bounds({"k": "bool"}, "k", "k > true").empty
    assert bounds({"k": "tinyint"}, "k", "k >= 127").equalities == (127,)
    assert bounds({"k": "date"}, "k", "k > ?", dt.date.max).empty
    assert bounds({"k": "decimal(3,1)"}, "k", "k > 99.9").empty


def test_more_keys_than_are_worth_point_reads_are_a_range():
    many = ", ".join(str(at) for at in range(EQUALITIES_MAX + 1))
    assert ints(f"id in ({many})") == (0, EQUALITIES_MAX + 1, None)


def test_tables_without_a_key_have_no_bounds():
    assert bounds({"a": int}, None, "a = 1") == (None, None, None)


def test_key_bytes_of_bounds_enclose_the_key_bytes_of_keys():
    schema = Schema.define({"a": int, "b": str}, ["a", "b"])
    low, high = byte_range(
        pairs("a = 1 and b > 'x'"), Schema.define({"a": int, "b": str}, ["a", "b"])
    )
    assert high is not None
    assert not low <= schema.key_bytes((1, "x")) < high
    assert low <= schema.key_bytes((1, "x\0")) < high
    assert low <= schema.key_bytes((1, "zz\0")) < high
    assert not low <= schema.key_bytes((2, "")) < high
    assert byte_range(pairs("b = 'x'"), schema) == (b"", None)

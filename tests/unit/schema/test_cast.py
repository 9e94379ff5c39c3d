"""Arrays and single values follow one rule: casting a column equals checking each of its values."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from halocline.schema.batches import column_values
from halocline.schema.cast import exact_cast
from halocline.schema.types import TIME, TIMESTAMP, TIMESTAMPTZ, kind
from halocline.schema.values import Unfit, checker
from tests.unit.schema.pools import FIRST, LAST, LEAVES, few, same

SOURCES = [
    *LEAVES,
    pa.uint8(),
    pa.uint32(),
    pa.uint64(),
    pa.decimal32(6, 2),
    pa.decimal64(15, 5),
    pa.decimal256(60, 20),
    pa.large_string(),
    pa.string_view(),
    pa.binary_view(),
    pa.binary(3),
    pa.date64(),
    pa.time32("ms"),
    pa.timestamp("s"),
    pa.timestamp("ms", "Europe/Berlin"),
]
"""Types whose every value Python can hold, so that both ways see the same thing."""

NUMBERS = st.one_of(
    st.integers(-(2**64), 2**64),
    st.integers(-300, 300),
    st.sampled_from(
        [2**24, 2**24 + 1, 2**53, 2**53 + 1, 2**60, 2**63 - 1, 2**63, -(2**63), 2**64 - 1]
    ),
    st.floats(),
    st.floats(width=32),
    st.integers(-100000, 100000).map(lambda n: n / 100),
    st.integers(-300, 300).map(float),
    st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-999, max_value=999),
    st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**18), max_value=10**18),
)
OTHERS = st.one_of(
    st.booleans(),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    st.binary(min_size=3, max_size=3),
    st.dates(),
    st.times().map(lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000)),
    st.datetimes().map(lambda t: t.replace(microsecond=0)),
    st.datetimes(
        min_value=dt.datetime(2, 1, 1), max_value=dt.datetime(9998, 1, 1), timezones=st.just(dt.UTC)
    ).map(lambda t: t.replace(microsecond=0)),
)


def one_way(values: list[Any], target: Any) -> list[Any] | None:
    """Each value by itself; None when one of them is refused."""
    check = checker(target)
    try:
        return [None if value is None else check(value) for value in values]
    except Unfit:
        return None


def other_way(array: Any, target: Any) -> list[Any] | None:
    """The whole array at once."""
    try:
        cast = exact_cast(array, target)
    except Unfit:
        return None
    cast.validate(full=True)
    assert cast.type == target
    return column_values(cast)


def python_values(array: Any) -> list[Any] | None:
    """The values as pyarrow gives them to Python; None when a moment is beyond Python's years."""
    try:
        values = array.to_pylist()
    except OverflowError:
        return None
    if kind(array.type) == "timestamptz":
        return [None if value is None else value.astimezone(dt.UTC) for value in values]
    return list(values)


def arrays(value: Any) -> list[Any]:
    """The value as an array of every source type that takes it."""
    made = []
    for source in SOURCES:
        try:
            array = pa.array([None, value], source)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            continue
        made.append(array)
    return made


def check(value: Any, target: Any) -> None:
    for array in arrays(value):
        values = python_values(array)
        expected = None if values is None else one_way(values, target)
        assert same(other_way(array, target), expected), (array, target)


@few(2)
@given(NUMBERS, st.sampled_from([t for t in LEAVES if kind(t) in ("int", "float", "decimal")]))
def test_numbers_are_cast_as_they_are_checked(value: Any, target: Any) -> None:
    check(value, target)


@given(OTHERS, st.sampled_from(LEAVES))
def test_other_values_are_cast_as_they_are_checked(value: Any, target: Any) -> None:
    check(value, target)


@given(st.lists(st.one_of(st.none(), st.integers(-200, 200)), max_size=6))
def test_nested_values_are_cast_as_they_are_checked(items: list[Any]) -> None:
    target = pa.list_(pa.struct([("a", pa.int8())]))
    value = [{"a": item} for item in items]
    array = pa.array([value, None], pa.large_list(pa.struct([("a", pa.int64())])))
    assert same(other_way(array, target), one_way([value, None], target))


def test_the_limits_of_moments_are_those_of_python() -> None:
    assert other_way(pa.array([dt.date.min, dt.date.max]), pa.date32()) == [
        dt.date.min,
        dt.date.max,
    ]
    for target, low, high in (
        (TIMESTAMP, FIRST, LAST),
        (TIMESTAMPTZ, FIRST.replace(tzinfo=dt.UTC), LAST.replace(tzinfo=dt.UTC)),
    ):
        array = pa.array([low, high], target)
        assert other_way(array, target) == [low, high]
        for step in (-1, 1):
            edge = array.cast(pa.int64())[0 if step < 0 else 1].as_py() + step
            assert other_way(pa.array([edge]).cast(target), target) is None
    assert other_way(pa.array([dt.time.max]), TIME) == [dt.time.max]


def test_a_float_is_never_taken_for_a_decimal_it_does_not_print() -> None:
    for value in (0.1, 9.99, 1234567.89, -0.05):
        assert one_way([value], pa.decimal128(12, 2)) == [
            Decimal(repr(value)).quantize(Decimal("0.01"))
        ]
    for value in (0.1 + 0.2, math.pi, 1e-9, 2.675 + 1e-12):
        assert one_way([value], pa.decimal128(12, 2)) is None

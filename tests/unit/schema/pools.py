"""Hypothesis strategies: canonical types, their values, rows and keys, edges preferred.

types() -> pa.DataType        values(type) -> canonical Python values        tables() -> both
"""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from functools import cache
from typing import Any

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st

from halocline.schema.schema import Schema
from halocline.schema.types import INT_BITS, TIME, TIMESTAMP, TIMESTAMPTZ, kind

UTC = dt.UTC
FIRST = dt.datetime(1, 1, 1)
LAST = dt.datetime(9999, 12, 31, 23, 59, 59, 999999)

LEAVES = [
    pa.bool_(),
    *INT_BITS,
    pa.float32(),
    pa.float64(),
    pa.decimal128(5, 2),
    pa.decimal128(18, 0),
    pa.decimal128(38, 10),
    pa.decimal128(38, 38),
    pa.string(),
    pa.binary(),
    pa.date32(),
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
]
KEY_LEAVES = [type for type in LEAVES if kind(type) != "float"]


def leaves() -> st.SearchStrategy[Any]:
    """A type that is not nested."""
    return st.sampled_from(LEAVES)


def types() -> st.SearchStrategy[Any]:
    """Any canonical type, two levels of nesting at most."""
    return st.recursive(leaves(), _nested, max_leaves=4)


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.lists(
        st.sampled_from(["a", "b c", 'q"q', "Ä", "list", "_x"]), min_size=1, max_size=3, unique=True
    )
    return st.one_of(
        st.builds(
            lambda t, nullable: pa.list_(pa.field("item", t, nullable=nullable)),
            inner,
            st.booleans(),
        ),
        st.builds(
            lambda chosen, ts, nullable: pa.struct(
                [pa.field(n, t, nullable=nullable) for n, t in zip(chosen, ts, strict=False)]
            ),
            names,
            st.lists(inner, min_size=3, max_size=3),
            st.booleans(),
        ),
    )


def texts() -> st.SearchStrategy[str]:
    """Text with the characters that break things: NUL, two to four bytes, combining ones."""
    alphabet = st.one_of(
        st.sampled_from("\0\1aAzé\u07ff\uffff\U00010000\U0010ffff"),
        st.characters(exclude_categories=["Cs"]),
    )
    return st.text(alphabet, max_size=12)


@cache
def values(type: Any) -> st.SearchStrategy[Any]:
    """Canonical values of a canonical type, never null at the top."""
    family = kind(type)
    if family == "int":
        bits = INT_BITS[type]
        low, high = -(1 << bits - 1), (1 << bits - 1) - 1
        return st.one_of(st.integers(low, high), st.sampled_from([low, high, 0, -1]))
    if family == "float":
        return st.floats(width=type.bit_width)
    if family == "decimal":
        return _decimals(type.precision, type.scale)
    if family == "list":
        field = type.value_field
        return st.lists(maybe_null(values(field.type), field.nullable), max_size=4)
    if family == "struct":
        fields = [type.field(at) for at in range(type.num_fields)]
        return st.fixed_dictionaries(
            {f.name: maybe_null(values(f.type), f.nullable) for f in fields}
        )
    simple: dict[str, st.SearchStrategy[Any]] = {
        "bool": st.booleans(),
        "string": texts(),
        "binary": st.binary(max_size=12),
        "date": st.dates(),
        "time": st.times().map(lambda t: t.replace(fold=0)),
        "timestamp": st.datetimes().map(lambda t: t.replace(fold=0)),
        "timestamptz": st.datetimes(timezones=st.just(UTC)).map(lambda t: t.replace(fold=0)),
    }
    return simple[family]


def _decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    limit = 10**precision - 1
    whole = st.one_of(st.integers(-limit, limit), st.sampled_from([-limit, limit, 0, 1, -1]))
    return whole.map(lambda n: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -scale)))


def few(divisor: int = 3) -> settings:
    """Fewer examples for tests whose every example is large; the long run keeps its many."""
    return settings(max_examples=max(20, settings.default.max_examples // divisor))


def maybe_null(strategy: st.SearchStrategy[Any], nullable: bool = True) -> st.SearchStrategy[Any]:
    """The same, or None now and then."""
    return st.one_of(st.none(), strategy) if nullable else strategy


@st.composite
def tables(draw: st.DrawFn, rows_max: int = 12) -> tuple[Schema, list[tuple[Any, ...]]]:
    """A schema and canonical rows of it."""
    chosen = draw(st.lists(types(), min_size=1, max_size=5))
    nullable = draw(st.lists(st.booleans(), min_size=len(chosen), max_size=len(chosen)))
    schema = Schema.define(
        pa.schema(
            [
                pa.field(f"c{at}", type, nullable=null)
                for at, (type, null) in enumerate(zip(chosen, nullable, strict=True))
            ]
        )
    )
    row = st.tuples(
        *(maybe_null(values(c.type), c.nullable) for c in schema.columns),
    )
    return schema, draw(st.lists(row, max_size=rows_max))


def same(left: Any, right: Any) -> bool:
    """Equal in value, type, scale, sign of zero, zone and NaN: what a round trip must keep."""
    if type(left) is not type(right):
        return False
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if isinstance(left, float):
        if math.isnan(left):
            return math.isnan(right)
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    if isinstance(left, Decimal):
        return left.as_tuple() == right.as_tuple()
    if isinstance(left, dt.datetime):
        return left == right and left.tzinfo is right.tzinfo and left.fold == right.fold
    return bool(left == right)

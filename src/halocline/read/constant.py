"""Constants of a predicate: what a literal or parameter means when DuckDB compares it to a column.

    5, 1.5, 1e3, 'x', date '2024-01-01', ?, -? --constant--> (kind, value)
    column type + constants            --place_constants--> one Span each, or None: cannot say

DuckDB brings both sides of a comparison to one type first, and that may round: a bigint next to a
double becomes a double, so 9007199254740993 equals 9007199254740992e0. A Span therefore is not a
value but two bounds, low <= high, such that comparing the *stored* value to them never excludes
what DuckDB's comparison of the rounded values would take. Where nothing is rounded both are equal.

    column    constant           compared as      Span
    int       int, decimal       decimal          exact
    int       double             double           exact below 2**53, else one float to each side
    decimal   int, decimal       decimal          exact
    decimal   double             double           a few floats to each side
    float64   int, decimal       double           exact when short, else a few floats to each side
    float32   int, decimal       float            the same; double when another constant is double
    float32   double             double           exact
    date, timestamp, timestamptz   each other     exact: dates are midnights, all of it in UTC
    string, binary, bool, time     their own      exact

Text beside a date, time or timestamp is read as one when it has the plain ISO form. Every other
pair, and every number of more than 38 digits, is left undecided.

Invariants
- A constant that DuckDB would refuse may get a Span (the query fails anyway); one that it would
  read differently never does.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple

from sqlglot import exp

from halocline.schema.types import DECIMAL_DIGITS_MAX, UTC, kind

INT_MAX: Final = 1 << 127
DAY: Final = dt.timedelta(1)
_EXACT64: Final = 1 << 53
_EXACT32: Final = 1 << 24

_NUMBER: Final = re.compile(r"(\d+)(\.\d*)?", re.ASCII)
_DOUBLE: Final = re.compile(r"\d+(\.\d*)?[eE][+-]?\d+", re.ASCII)
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_MOMENT: Final = re.compile(
    r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d(:\d\d)?)?)?", re.ASCII
)
_TIME: Final = re.compile(r"\d\d:\d\d:\d\d(\.\d{1,6})?", re.ASCII)
_SPECIAL_DOUBLES: Final = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}

_CAST_KINDS: Final = {
    exp.DType.DATE: "date",
    exp.DType.TIMESTAMP: "timestamp",
    exp.DType.TIMESTAMPNTZ: "timestamp",
    exp.DType.TIMESTAMPTZ: "timestamptz",
    exp.DType.TIME: "time",
    exp.DType.DOUBLE: "double",
    exp.DType.SMALLINT: "int16",
    exp.DType.INT: "int32",
    exp.DType.BIGINT: "int64",
}


class Constant(NamedTuple):
    """A value and how DuckDB types it: null, bool, int, decimal, double, text, binary, date, time,
    timestamp or timestamptz."""

    kind: str
    value: Any


class ConstantSpan(NamedTuple):
    """Two bounds around a constant; equal when the comparison is exact."""

    low: Any
    high: Any


NULL: Final = Constant("null", None)
NAN: Final = ConstantSpan(math.nan, math.nan)
"""The span of NaN, told by identity: it equals itself and is above all other numbers."""


def constant(node: exp.Expr, params: Sequence[Any]) -> Constant | None:
    """What an expression without columns means; None when it is not a plain constant."""
    cls = type(node)
    if cls is exp.Paren:
        return constant(node.this, params)
    if cls is exp.Literal:
        return _text(node.this) if node.args.get("is_string") else _number(node.this)
    if cls is exp.Placeholder:
        return _param(node, params)
    if cls is exp.Neg:
        inner = constant(node.this, params)
        known = inner is not None and inner.kind in ("int", "decimal", "double")
        return Constant(inner.kind, -inner.value) if inner is not None and known else None
    if cls is exp.Boolean:
        return Constant("bool", bool(node.this))
    if cls is exp.Null:
        return NULL
    if cls is exp.Cast and not any(node.args.get(name) for name in ("format", "safe", "action")):
        return _cast(constant(node.this, params), node.args["to"])
    return None


def _text(text: str) -> Constant | None:
    """Text that DuckDB can hold: no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return None
    return Constant("text", text)


def _number(text: str) -> Constant | None:
    if _DOUBLE.fullmatch(text):
        return Constant("double", float(text))
    found = _NUMBER.fullmatch(text)
    if found is None or len(text) > DECIMAL_DIGITS_MAX + 1:
        return None
    return _integer(int(text)) if found[2] is None else _decimal(Decimal(text))


def _integer(value: int) -> Constant | None:
    return Constant("int", value) if -INT_MAX <= value < INT_MAX else None


def _decimal(value: Decimal) -> Constant | None:
    """Numbers of more than 38 digits become doubles, which is a rounding we leave to DuckDB. It may
    count the zero before the point, so the limit here is one less."""
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return None
    size = max(len(digits) + max(exponent, 0), -exponent)
    return Constant("decimal", value) if size < DECIMAL_DIGITS_MAX else None


def _param(node: exp.Expr, params: Sequence[Any]) -> Constant | None:
    name = node.args.get("this")
    number = int(name) if isinstance(name, str) and name.isdecimal() and len(name) < 6 else 0
    return of_value(params[number - 1]) if 0 < number <= len(params) else None


def of_value(value: Any) -> Constant | None:
    """A parameter as DuckDB types it. Subclasses (numpy, pandas) are left undecided."""
    cls = type(value)
    if value is None:
        return NULL
    if cls is int:
        return _integer(value)
    if cls is str:
        return _text(value)
    if cls is Decimal:
        return _decimal(value)
    if cls is dt.datetime:
        return _moment(value)
    if cls is dt.time and value.tzinfo is not None:
        return None
    name = _PARAM_KINDS.get(cls)
    return None if name is None else Constant(name, value)


_PARAM_KINDS: Final = {
    bool: "bool",
    float: "double",
    bytes: "binary",
    dt.date: "date",
    dt.time: "time",
}


def _moment(value: dt.datetime) -> Constant | None:
    offset = value.utcoffset()
    if offset is None:
        return Constant("timestamp", value.replace(tzinfo=None, fold=0))
    # Not `astimezone`: it fails within a day of either end of the calendar.
    if offset % dt.timedelta(minutes=1):
        return None
    try:
        return Constant("timestamptz", value.replace(tzinfo=UTC, fold=0) - offset)
    except OverflowError:
        return None


def _cast(given: Constant | None, target: exp.Expr) -> Constant | None:
    """An explicit cast of a constant, where it only says what the constant is."""
    if given is None or target.args.get("expressions") or target.args.get("nested"):
        return None
    wanted = _CAST_KINDS.get(target.this)
    if wanted is None:
        return None
    if given.kind in ("null", wanted):
        return given
    if given.kind == "text":
        special = _SPECIAL_DOUBLES.get(given.value.lower()) if wanted == "double" else None
        return _read_text(given.value, wanted) if special is None else Constant(wanted, special)
    if wanted == "timestamp" and given.kind == "date":
        return Constant("timestamp", _midnight(given.value))
    if given.kind == "int" and wanted.startswith("int"):
        limit = 1 << int(wanted[3:]) - 1
        return given if -limit <= given.value < limit else None
    if given.kind == "int" and wanted == "double" and abs(given.value) <= _EXACT64:
        return Constant("double", float(given.value))
    if given.kind == "decimal" and wanted == "double" and _is_short(given.value):
        return Constant("double", float(given.value))
    return None


def _read_text(text: str, wanted: str) -> Constant | None:
    """Text beside a date, time or timestamp, in the one form that all agree on."""
    try:
        if wanted == "date" and _DATE.fullmatch(text):
            return Constant("date", dt.date.fromisoformat(text))
        if wanted == "time" and _TIME.fullmatch(text):
            return Constant("time", dt.time.fromisoformat(text))
        found = _MOMENT.fullmatch(text) if wanted in ("timestamp", "timestamptz") else None
        if found is None:
            return None
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    if wanted == "timestamp":
        return None if found[3] else Constant("timestamp", moment)
    return _moment(moment if found[3] else moment.replace(tzinfo=UTC))


def place_constants(type: Any, constants: Sequence[Constant]) -> list[ConstantSpan] | None:
    """Spans of the constants that one column of this type is compared to, in one expression.

    All at once, because DuckDB chooses one type for all of them. None of them may be null.
    """
    family = kind(type)
    kinds = {given.kind for given in constants}
    if family in ("int", "decimal", "float"):
        if not kinds <= {"int", "decimal", "double"}:
            return None
        as_double = "double" in kinds
        return [_place_number(type, family, given, as_double) for given in constants]
    if family in ("date", "timestamp", "timestamptz", "time"):
        return _place_times(family, constants)
    wanted = "text" if family == "string" else family
    if family in ("string", "binary", "bool") and kinds <= {wanted}:
        return [ConstantSpan(given.value, given.value) for given in constants]
    return None


def _place_number(type: Any, family: str, given: Constant, as_double: bool) -> ConstantSpan:
    value = given.value
    if given.kind == "double":
        if value != value:
            return NAN
        if family == "decimal":
            return _as_decimals(_around(value, 49))
        exact = family == "float" or abs(value) < _EXACT64 or math.isinf(value)
        return ConstantSpan(value, value) if exact else ConstantSpan(*_neighbours(value))
    if family == "float":
        if type.bit_width == 64 or as_double:
            short = abs(value) <= _EXACT64 if isinstance(value, int) else _is_short(value)
            return ConstantSpan(float(value), float(value)) if short else _around(float(value), 49)
        whole = abs(value) <= _EXACT32 and value == int(value)
        return ConstantSpan(float(value), float(value)) if whole else _around(float(value), 21)
    if not as_double:
        return ConstantSpan(value, value)
    if family == "int":
        return ConstantSpan(value, value) if abs(value) < _EXACT64 else _around(float(value), 49)
    return _as_decimals(_around(float(value), 49))


def _is_short(value: Decimal) -> bool:
    """Do digits and power of ten both fit a double, so that dividing them rounds only once?"""
    _, digits, exponent = value.as_tuple()
    return isinstance(exponent, int) and len(digits) <= 15 and -22 <= exponent <= 0


def _around(value: float, bits: int) -> ConstantSpan:
    """Bounds that are 2**-bits apart from a float in proportion, and by more than one subnormal."""
    if math.isinf(value):
        return ConstantSpan(value, value)
    slack = math.ldexp(abs(value), -bits) + math.ldexp(1.0, -140 if bits < 24 else -1060)
    return ConstantSpan(value - slack, value + slack)


def _neighbours(value: float) -> tuple[float, float]:
    return math.nextafter(value, -math.inf), math.nextafter(value, math.inf)


def _as_decimals(span: ConstantSpan) -> ConstantSpan:
    return ConstantSpan(Decimal(span.low), Decimal(span.high))


def _place_times(family: str, constants: Sequence[Constant]) -> list[ConstantSpan] | None:
    spans = []
    for given in constants:
        known = _read_text(given.value, family) if given.kind == "text" else given
        span = None if known is None else _place_time(family, known)
        if span is None:
            return None
        spans.append(span)
    return spans


def _place_time(family: str, given: Constant) -> ConstantSpan | None:
    value = given.value
    if given.kind == family:
        return ConstantSpan(value, value)
    if family == "time" or given.kind not in ("date", "timestamp", "timestamptz"):
        return None
    moment = _midnight(value) if given.kind == "date" else value.replace(tzinfo=None)
    if family == "timestamp":
        return ConstantSpan(moment, moment)
    if family == "timestamptz":
        moment = moment.replace(tzinfo=UTC)
        return ConstantSpan(moment, moment)
    day = moment.date()
    if moment == _midnight(day):
        return ConstantSpan(day, day)
    return ConstantSpan(day, day + DAY) if day < dt.date.max else None


def _midnight(day: dt.date) -> dt.datetime:
    return dt.datetime(day.year, day.month, day.day)

"""The canonical types: the one set on which Arrow, Parquet, DuckDB and Spark agree.

    any Arrow type --canonical--> bool, int8..int64, float32, float64, decimal(p <= 38, s), string,
                                  binary, date, time, timestamp, timestamptz, list<T>, struct<...>

A table stores canonical types only. Another Arrow type in a definition is replaced when every one
of its values has a place in a canonical type: unsigned integers become the next wider signed one,
uint64 becomes decimal(20,0), views, large and dictionary types become plain, every unit of time
becomes microseconds. A zone is a way to print a moment, not a part of it: whatever zone is given,
the column is kept in UTC.

Two extension types are read as what they store: arrow.json as string, arrow.uuid as binary; as
columns of their own they become text with a check (domains.py). Others may give their bytes a
meaning that we would lose, so they are refused, as are maps, unions and intervals.

Invariants
- `canonical(canonical(t)) == canonical(t)`.
- Fields inside lists and structs keep their `nullable` flag, and it is enforced.

Not here: reading type names (typenames.py), moving values between types (cast.py, values.py).
"""

from __future__ import annotations

import datetime as dt
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as pt

from halocline.errors import SchemaError

UTC: Final = dt.UTC
EPOCH: Final = dt.datetime(1970, 1, 1)
EPOCH_UTC: Final = dt.datetime(1970, 1, 1, tzinfo=UTC)
EPOCH_ORDINAL: Final = dt.date(1970, 1, 1).toordinal()

DECIMAL_DIGITS_MAX: Final = 38
DEPTH_MAX: Final = 16
"""Lists and structs inside each other. Parsers and checkers recurse, so the depth is bounded."""

TIME: Final = pa.time64("us")
TIMESTAMP: Final = pa.timestamp("us")
TIMESTAMPTZ: Final = pa.timestamp("us", "UTC")

NUMBERS: Final = frozenset(["int", "float", "decimal"])
"""Kinds of columns that can be added to."""
INT_BITS: Final = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}

_PLAIN: Final = frozenset(
    [pa.bool_(), *INT_BITS, pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32()]
)
_REPLACED: Final = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
}
_STORAGE_IS_ENOUGH: Final = frozenset(["arrow.json", "arrow.uuid"])


def canonical(type: Any, *, column: str | None = None, depth: int = 0) -> Any:
    """The canonical type that holds every value of `type`; SchemaError when there is none."""
    if not isinstance(type, pa.DataType):
        raise SchemaError(f"{type!r} is not an Arrow type", column=column)
    if depth > DEPTH_MAX:
        raise SchemaError(f"types nest deeper than {DEPTH_MAX} levels", column=column)
    if type in _PLAIN:
        return type
    if type in _REPLACED:
        return _REPLACED[type]
    if pt.is_list(type) or _is_listlike(type):
        item = type.value_field
        inner = canonical(item.type, column=column, depth=depth + 1)
        return pa.list_(pa.field("item", inner, nullable=item.nullable))
    if pt.is_struct(type):
        return _canonical_struct(type, column, depth)
    if pt.is_dictionary(type) or pt.is_run_end_encoded(type):
        return canonical(type.value_type, column=column, depth=depth + 1)
    if isinstance(type, pa.BaseExtensionType) and type.extension_name in _STORAGE_IS_ENOUGH:
        return canonical(type.storage_type, column=column, depth=depth + 1)
    return _canonical_scalar(type, column)


def _canonical_scalar(type: Any, column: str | None) -> Any:
    if pt.is_decimal(type):
        return _canonical_decimal(type, column)
    if pt.is_timestamp(type):
        return TIMESTAMP if type.tz is None else TIMESTAMPTZ
    if pt.is_time(type):
        return TIME
    if pt.is_fixed_size_binary(type):
        return pa.binary()
    if pt.is_null(type):
        raise SchemaError("all values are null, so the type is unknown: name one", column=column)
    raise SchemaError(f"type {type} is not supported", column=column)


def _canonical_decimal(type: Any, column: str | None) -> Any:
    """Spark wants 0 <= scale <= precision; Arrow allows more, and it can be written that way."""
    scale = max(type.scale, 0)
    precision = max(type.precision - min(type.scale, 0), scale)
    if precision > DECIMAL_DIGITS_MAX:
        reason = f"type {type} needs more than {DECIMAL_DIGITS_MAX} digits"
        raise SchemaError(reason, column=column)
    return pa.decimal128(precision, scale)


def _canonical_struct(type: Any, column: str | None, depth: int) -> Any:
    fields = [type.field(at) for at in range(type.num_fields)]
    if not fields:
        raise SchemaError("a struct needs at least one field", column=column)
    check_field_names([field.name for field in fields], column)
    return pa.struct(
        [
            pa.field(
                field.name,
                canonical(field.type, column=column, depth=depth + 1),
                nullable=field.nullable,
            )
            for field in fields
        ]
    )


def check_field_names(names: list[str], column: str | None) -> None:
    """Names inside a struct: not empty, printable, unique without regard to case."""
    seen: set[str] = set()
    for name in names:
        if not name or not name.isprintable() or name.casefold() in seen:
            raise SchemaError(
                f"struct field name {name!r} is empty, unprintable or repeated", column=column
            )
        seen.add(name.casefold())


def _is_listlike(type: Any) -> bool:
    return bool(
        pt.is_large_list(type)
        or pt.is_fixed_size_list(type)
        or pt.is_list_view(type)
        or pt.is_large_list_view(type)
    )


@lru_cache(maxsize=4096)
def kind(type: Any) -> str:
    """The family of any Arrow type, canonical or not; "other" for those we do not take.

    Values move freely inside a family when nothing is lost, and between families only by a rule.
    """
    for name, member in _FAMILIES:
        if member(type):
            return name
    return "other"


_FAMILIES: Final = (
    ("bool", pt.is_boolean),
    ("int", pt.is_integer),
    ("float", pt.is_floating),
    ("decimal", pt.is_decimal),
    ("string", lambda t: pt.is_string(t) or pt.is_large_string(t) or pt.is_string_view(t)),
    ("binary", lambda t: pt.is_binary(t) or pt.is_large_binary(t) or pt.is_binary_view(t)),
    ("binary", pt.is_fixed_size_binary),
    ("date", pt.is_date),
    ("time", pt.is_time),
    ("timestamptz", lambda t: pt.is_timestamp(t) and t.tz is not None),
    ("timestamp", pt.is_timestamp),
    ("list", lambda t: pt.is_list(t) or _is_listlike(t)),
    ("struct", pt.is_struct),
    ("dictionary", pt.is_dictionary),
    ("run_end", pt.is_run_end_encoded),
    ("null", pt.is_null),
    ("extension", lambda t: isinstance(t, pa.BaseExtensionType)),
)
"""Order matters only where a predicate overlaps another: zoned timestamps before plain ones."""

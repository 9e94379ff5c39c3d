"""Rows as msgpack: the form in which small row sets travel in the log and between processes.

    [(7, "ab", Decimal("1.50"))] --encode--> 91 93 07 A2 61 62 A4 31 2E 35 30 --decode--> the same

    bool, ints, floats, string, binary   as msgpack has them
    decimal                              text with the column's scale ("1.50")
    timestamptz                          msgpack's timestamp extension
    timestamp, date, time                ISO text
    list, struct                         array; map by field name

Integers for moments and scaled decimals would save a few bytes and cost more: turning them into
Python objects takes 0.2 to 0.5 us each, while msgspec reads the forms above in C in 0.04 us (0.2
for decimals). Five columns: 0.2 us to encode, 0.8 us to decode.

The decoder is typed by the schema, so it answers hostile bytes with an error: wrong arity, wrong
types, integers out of range, lengths beyond the input (msgspec allocates as items arrive). What
the types cannot say, canonical scale and zone, is checked after it: a Decimal of 1E999999999 is
a small text and a huge integer.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Annotated, Any, Final, Optional, TypedDict

import msgspec

from halocline.schema.types import INT_BITS, UTC, kind
from halocline.schema.values import decimal_unit

RowTuples = list[tuple[Any, ...]]
Canonical = Callable[[Any], bool]

encode: Final[Callable[[Sequence[tuple[Any, ...]]], bytes]] = msgspec.msgpack.Encoder().encode
"""One encoder serves all schemas: canonical values say themselves how they are written."""

_NAIVE: Final = msgspec.Meta(tz=False)
_AWARE: Final = msgspec.Meta(tz=True)
_WIRE: Final[dict[str, Any]] = {
    "bool": bool,
    "float": float,
    "decimal": Decimal,
    "string": str,
    "binary": bytes,
    "date": dt.date,
    "time": Annotated[dt.time, _NAIVE],
    "timestamp": Annotated[dt.datetime, _NAIVE],
    "timestamptz": Annotated[dt.datetime, _AWARE],
}


def compile_decode(fields: Sequence[Any]) -> Callable[[Any], RowTuples]:
    """`decode(data)` for rows of these Arrow fields."""
    row = tuple.__class_getitem__(tuple(_wire_type(field) for field in fields))
    read = msgspec.msgpack.Decoder(list.__class_getitem__(row)).decode
    verify = _compile_verify([field.type for field in fields])

    def decode(data: Any) -> RowTuples:
        try:
            rows: RowTuples = read(data)
        except UnicodeDecodeError as error:
            raise msgspec.DecodeError(f"invalid UTF-8: {error}") from error
        verify(rows)
        return rows

    return decode


def _wire_type(field: Any) -> Any:
    wire = _value_type(field.type)
    return Optional[wire] if field.nullable else wire  # noqa: UP045 (it is a value here)


def _value_type(type: Any) -> Any:
    family = kind(type)
    if family == "int":
        bits = INT_BITS[type]
        return Annotated[int, msgspec.Meta(ge=-(1 << bits - 1), le=(1 << bits - 1) - 1)]
    if family == "list":
        return list.__class_getitem__(_wire_type(type.value_field))
    if family == "struct":
        parts = [type.field(at) for at in range(type.num_fields)]
        make: Any = TypedDict
        return make("Struct", {part.name: _wire_type(part) for part in parts})
    return _WIRE[family]


def _compile_verify(types: Sequence[Any]) -> Callable[[RowTuples], None]:
    """A loop over the rows that looks only at columns whose wire type allows too much."""
    space: dict[str, Any] = {"utc": UTC, "refuse": _refuse}
    body: list[str] = []
    for at, type in enumerate(types):
        if (test := _test(type, at, space)) is not None:
            body += [
                f"        v = row[{at:d}]",
                f"        if v is not None and not ({test}):",
                f"            refuse({at:d})",
            ]
    if not body:
        return lambda rows: None
    source = ["def verify(rows):", "    for row in rows:", *body]
    exec(compile("\n".join(source), "<halocline verify>", "exec"), space)
    verify: Callable[[RowTuples], None] = space["verify"]
    return verify


def _refuse(at: int) -> None:
    raise msgspec.ValidationError(f"column {at}: the value is not in canonical form")


def _test(type: Any, at: int, space: dict[str, Any]) -> str | None:
    """An expression over `v`, or None where the wire type is the whole truth. 0.1 us a value."""
    family = kind(type)
    if family == "decimal":
        space[f"q{at}"] = decimal_unit(type.scale)
        return f"v.same_quantum(q{at}) and v.adjusted() < {type.precision - type.scale:d}"
    if family == "timestamptz":
        return "v.tzinfo is utc"
    if family in ("list", "struct") and (test := _nested_test(type)) is not None:
        space[f"t{at}"] = test
        return f"t{at}(v)"
    return None


def _nested_test(type: Any) -> Canonical | None:
    family = kind(type)
    if family == "list":
        item = _nested_test(type.value_type)
        return None if item is None else lambda v: all(x is None or item(x) for x in v)
    if family == "struct":
        fields = [type.field(at) for at in range(type.num_fields)]
        tests = [(f.name, t) for f in fields if (t := _nested_test(f.type)) is not None]
        if not tests:
            return None
        return lambda v: all(v[name] is None or test(v[name]) for name, test in tests)
    space: dict[str, Any] = {"utc": UTC}
    test = _test(type, 0, space)
    return None if test is None else eval(f"lambda v: {test}", space)

"""One Python value against one canonical type: the same value in canonical form, or a refusal.

    42, np.int64(42), Decimal("42.00") --checker(int64)--> 42
    0.5, "42", True                    --checker(int64)--> Unfit

The rule: **a value may change its type only if nothing is lost**, which is to say that the way
back leads to the same value.

    bool         bool only: a bool is not a number and a number is not a bool
    int8..int64  int; float and Decimal that are whole; in range
    float64      float with NaN and infinities; int that a float holds exactly; Decimal that the
                 float prints back (0.1)
    float32      the same, but floats and Decimals are rounded to 24 bits, as in every database: the
                 one place where a value changes, because the type asks for it. Ints must be exact,
                 and a finite number never becomes infinite
    decimal      Decimal and int that fit digits and scale; float whose shortest text does (9.99,
                 but not 0.1 + 0.2)
    string       str that UTF-8 can hold (no lone surrogates). No other column takes str
    binary       bytes, bytearray, memoryview
    date         date, never datetime: it would lose its time
    time         time without a zone
    timestamp    datetime without a zone
    timestamptz  datetime with a zone, kept in UTC
    list         list, tuple or array
    struct       mapping with exactly named fields; absent ones are null

numpy scalars and subclasses count as the value they hold and come back as plain Python values.
None, pandas.NA, pandas.NaT and numpy's NaT are null; NaN is a number. Canonical Decimals have
exactly the column's scale and no negative zero, datetimes have `timezone.utc` or no zone, and
fold 0. Nested values are fresh lists and dicts.

Not here: the inlined fast path of these checks (compiled.py), arrays (cast.py).
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import struct
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

import numpy as np

from halocline.schema.typenames import type_text
from halocline.schema.types import DECIMAL_DIGITS_MAX, EPOCH, INT_BITS, UTC, kind

CheckValue = Callable[[Any], Any]

_FLOAT32: Final = struct.Struct("<f")
_PANDAS_NULLS: Final = frozenset(["NAType", "NaTType"])


class Unfit(Exception):
    """A value that a type does not take. The caller, who knows the column, raises SchemaError."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


def is_null(value: Any) -> bool:
    """None and the nulls of pandas and numpy, told by name: pandas may not be installed."""
    if value is None:
        return True
    cls = type(value)
    if cls.__name__ in _PANDAS_NULLS and cls.__module__.startswith("pandas"):
        return True
    return isinstance(value, np.datetime64) and bool(np.isnat(value))


def show(value: Any) -> str:
    """A value for an error message: short, and never failing (an int of 5,000 digits would)."""
    try:
        text = repr(value[:60] if isinstance(value, (str, bytes)) else value)
    except Exception:  # noqa: BLE001 (a message must not fail, whatever it shows)
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


def checker(type: Any) -> CheckValue:
    """The check for one value that is not null; raises Unfit."""
    family = kind(type)
    if family == "int":
        return _integer(INT_BITS[type], type_text(type))
    if family == "decimal":
        return _decimal(type.precision, type.scale)
    if family == "float":
        return _float64 if type.bit_width == 64 else _float32
    if family == "list":
        return _list(type)
    if family == "struct":
        return _struct(type)
    return _SIMPLE[family]


def decimal_context(precision: int) -> decimal.Context:
    """A context that refuses to round, and does not depend on what the caller's thread has set."""
    traps = [decimal.Inexact, decimal.InvalidOperation]
    return decimal.Context(prec=precision, Emin=-999999, Emax=999999, traps=traps)


def decimal_unit(scale: int) -> Decimal:
    """1 at the last place: 0.01 for scale 2. Multiplying or quantising by it sets the scale."""
    return Decimal((0, (1,), -scale))


def decimal_zero(scale: int) -> Decimal:
    """The one zero of a column: Arrow's has no sign."""
    return Decimal((0, (0,), -scale))


def _refuse(value: Any, wanted: str, hint: str = "") -> Unfit:
    if isinstance(value, (list, np.ndarray)) and wanted not in ("a list", "a mapping"):
        hint = "one value is wanted; many rows are a list of dicts, or an Arrow table"
    tail = f"; {hint}" if hint else ""
    return Unfit(f"{show(value)} ({type(value).__name__}) is not {wanted}{tail}")


def _plain_number(value: Any) -> int | float | Decimal | None:
    """The int, float or Decimal that a value is, without subclass; None for other values."""
    if isinstance(value, (bool, np.bool_)):
        return None
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        number = float(value)
        return number if number == value or number != number else None
    return value if isinstance(value, Decimal) else None


def _whole(number: int | float | Decimal) -> int | None:
    """The integer that equals a number. Huge exponents are refused before they are expanded."""
    if isinstance(number, int):
        return number
    if isinstance(number, float):
        return int(number) if number.is_integer() else None
    if not number.is_finite() or (number and number.adjusted() > DECIMAL_DIGITS_MAX):
        return None
    return int(number) if number == number.to_integral_value() else None


def _integer(bits: int, text: str) -> CheckValue:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1

    def check(value: Any) -> int:
        number = _plain_number(value)
        whole = None if number is None else _whole(number)
        if whole is None:
            raise _refuse(value, "an integer")
        if not low <= whole <= high:
            raise Unfit(f"{show(whole)} is out of range for {text}")
        return whole

    return check


def _float64(value: Any) -> float:
    number = _plain_number(value)
    if number is None:
        raise _refuse(value, "a number")
    if isinstance(number, float):
        return number
    try:
        result = float(number)
    except (OverflowError, ValueError):
        result = math.nan
    if isinstance(number, int):
        if result == number:
            return result
    elif number.is_finite() and math.isfinite(result):
        if number in (Decimal(result), Decimal(repr(result))):
            return result
    raise Unfit(f"{show(number)} would change as a float")


def _float32(value: Any) -> float:
    number = _float64(value)
    try:
        rounded: float = _FLOAT32.unpack(_FLOAT32.pack(number))[0]
    except OverflowError:
        raise Unfit(f"{show(value)} is out of range for float32") from None
    if rounded != number and isinstance(value, (int, np.integer)):
        raise Unfit(f"{show(value)} would change as a float32")
    return rounded


def _decimal(precision: int, scale: int) -> CheckValue:
    context, unit, zero = decimal_context(precision), decimal_unit(scale), decimal_zero(scale)

    def check(value: Any) -> Decimal:
        number = _plain_number(value)
        if isinstance(number, float):
            # The text of a whole float beyond 2**53 ends in zeros that are not its digits.
            number = int(number) if number.is_integer() else Decimal(repr(number))
        if isinstance(number, int) and number.bit_length() <= 128:
            number = Decimal(number)
        if not isinstance(number, Decimal) or not number.is_finite():
            raise _refuse(value, f"a number that fits decimal({precision},{scale})")
        try:
            return number.quantize(unit, None, context) or zero
        except decimal.Inexact:
            hint = "; pass a Decimal" if isinstance(value, float) else ""
            raise Unfit(f"{show(value)} has more than {scale} decimal places{hint}") from None
        except decimal.InvalidOperation:
            reason = f"{show(value)} does not fit decimal({precision},{scale})"
            raise Unfit(reason) from None

    return check


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise _refuse(value, "a string")
    text = str.__str__(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Unfit(f"{show(text)} is not valid Unicode text (a lone surrogate)") from None
    return text


def _binary(value: Any) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise _refuse(value, "bytes")
    return bytes(value)


def _bool(value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise _refuse(value, "a bool")
    return bool(value)


def _date(value: Any) -> dt.date:
    if isinstance(value, np.datetime64) and value.dtype == "M8[D]":
        value = value.item()
    if not isinstance(value, dt.date) or isinstance(value, dt.datetime):
        raise _refuse(value, "a date", "use .date()" if isinstance(value, dt.datetime) else "")
    return dt.date(value.year, value.month, value.day)


def _time(value: Any) -> dt.time:
    if not isinstance(value, dt.time) or value.tzinfo is not None:
        raise _refuse(value, "a time without a zone")
    return dt.time(value.hour, value.minute, value.second, value.microsecond)


def _moment(value: Any, wanted: str) -> dt.datetime:
    """Any datetime, numpy's included; its zone is still on it."""
    if isinstance(value, np.datetime64):
        value = _numpy_moment(value)
    if not isinstance(value, dt.datetime):
        raise _refuse(value, wanted)
    if getattr(value, "nanosecond", 0):
        raise Unfit(f"{show(value)} has nanoseconds; microseconds are kept")
    return value


def _numpy_moment(value: np.datetime64) -> Any:
    """What Python makes of it: a datetime, a date, or a number when it is out of range."""
    if value.dtype != "M8[ns]":
        return value.item()
    micros, rest = divmod(int(value.astype(np.int64)), 1000)
    if rest:
        raise Unfit(f"{show(value)} has nanoseconds; microseconds are kept")
    return EPOCH + dt.timedelta(0, 0, micros)


def _rebuilt(value: dt.datetime, zone: dt.tzinfo | None) -> dt.datetime:
    clock = (value.hour, value.minute, value.second, value.microsecond)
    try:
        return dt.datetime(value.year, value.month, value.day, *clock, tzinfo=zone)
    except ValueError:
        raise Unfit(f"{show(value)} is outside the years 1 to 9999") from None


def _timestamp(value: Any) -> dt.datetime:
    moment = _moment(value, "a datetime")
    if moment.tzinfo is not None:
        raise Unfit(f"{show(value)} has a zone and the column has none; use timestamptz")
    return _rebuilt(moment, None)


def _timestamptz(value: Any) -> dt.datetime:
    moment = _moment(value, "a datetime with a zone")
    offset = moment.utcoffset()
    if offset is None:
        raise Unfit(f"{show(value)} has no zone; use datetime(..., tzinfo=timezone.utc)")
    try:
        shift = dt.timedelta(offset.days, offset.seconds, offset.microseconds)
        return _rebuilt(moment, UTC) - shift
    except OverflowError:
        raise Unfit(f"{show(value)} is outside the years 1 to 9999 in UTC") from None


def _list(type: Any) -> CheckValue:
    nullable, check = type.value_field.nullable, checker(type.value_type)

    def check_list(value: Any) -> list[Any]:
        if not isinstance(value, (list, tuple, np.ndarray)) or getattr(value, "ndim", 1) == 0:
            raise _refuse(value, "a list")
        return [_inner(check, item, nullable, f"item {at}") for at, item in enumerate(value)]

    return check_list


def _struct(type: Any) -> CheckValue:
    fields = [type.field(at) for at in range(type.num_fields)]
    parts = [(field.name, checker(field.type), field.nullable) for field in fields]
    names = frozenset(field.name for field in fields)

    def check_struct(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise _refuse(value, "a mapping")
        if unknown := [name for name in value if name not in names]:
            raise Unfit(f"the struct has no field {show(unknown[0])}")
        return {
            name: _inner(check, value.get(name), nullable, f"field {name!r}")
            for name, check, nullable in parts
        }

    return check_struct


def _inner(check: CheckValue, value: Any, nullable: bool, path: str) -> Any:
    if is_null(value):
        if nullable:
            return None
        raise Unfit(f"{path}: must not be null")
    try:
        return check(value)
    except Unfit as error:
        raise Unfit(f"{path}: {error.reason}") from None


_SIMPLE: Final[dict[str, CheckValue]] = {
    "bool": _bool,
    "string": _string,
    "binary": _binary,
    "date": _date,
    "time": _time,
    "timestamp": _timestamp,
    "timestamptz": _timestamptz,
}

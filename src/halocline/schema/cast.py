"""Arrays between types, only when no value changes: values.py for whole columns.

    large_list<uint16> --exact_cast--> list<int32>         (every value has a place)
    float64 [1.0, 2.5] --exact_cast--> int64               Unfit: 2.5

`rule(source kind, target kind)` says which families may meet at all; a pair that is not in the
table is refused whatever the values are. Arrow's safe cast does most of the work. It is not enough
where it is lax (float64 to float32 makes infinities, a naive timestamp takes any zone) or too
strict (ints beyond 2**53 that a float does hold, int64 to decimal(12,2)), so these have their own
function here. Views of lists are taken apart by hand: pyarrow 26 casts them to wrong lists.

Invariants
- The result is what values.py would make of every single value, or both refuse.
- An array that is canonical already comes back as the same object: nothing is copied.
- Values under a null, or outside a slice, are never looked at.
- A refusal by value is monotonic: an array is refused exactly when some one-row slice of it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from halocline.schema.typenames import type_text
from halocline.schema.types import TIMESTAMP, TIMESTAMPTZ, canonical, kind
from halocline.schema.values import Unfit, checker

_DAY_MIN: Final = -719162
_DAY_MAX: Final = 2932896
_DAY_US: Final = 86_400_000_000
_FLOAT_INT_MAX: Final = {True: 2.0**63, False: 2.0**64}
_ZONES: Final = frozenset([("timestamp", "timestamptz"), ("timestamptz", "timestamp")])

Cast = Callable[[Any, Any], Any]


class WrongType(Unfit):
    """No value of that type is taken, so there is no row to name."""


def exact_cast(array: Any, target: Any) -> Any:
    """The array as canonical type `target`; Unfit if a value would change, WrongType if all."""
    try:
        array = _unwrapped(array)
        source = kind(array.type)
        if source == "null":
            return pa.nulls(len(array), target)
        if (source, kind(target)) not in _RULES:
            raise WrongType(_wrong_type(array.type, target))
        return _RULES[source, kind(target)](array, target)
    except pa.ArrowNotImplementedError:
        raise WrongType(_wrong_type(array.type, target)) from None
    except pa.ArrowInvalid:
        raise Unfit(f"would change as {type_text(target)}") from None


def _wrong_type(source: Any, target: Any) -> str:
    hint = ""
    if (kind(source), kind(target)) in _ZONES:
        hint = "; one has a zone and the other has none"
    return f"{source} values cannot be stored as {type_text(target)}{hint}"


def _unwrapped(array: Any) -> Any:
    """Undoes encodings, and reads known extension types as what they store."""
    family = kind(array.type)
    if family == "dictionary":
        return _unwrapped(_take(array.dictionary, array.indices))
    if family == "run_end":
        return _unwrapped(pc.run_end_decode(array))
    if family == "extension":
        canonical(array.type)
        return _unwrapped(array.storage)
    return array


def _take(values: Any, positions: Any) -> Any:
    """pyarrow 26 cannot take from string views, which is how Polars exports its enums."""
    try:
        return values.take(positions)
    except pa.ArrowNotImplementedError:
        return exact_cast(values, canonical(values.type)).take(positions)


def _safe(array: Any, target: Any) -> Any:
    return array if array.type == target else pc.cast(array, target)


def _by_value(array: Any, target: Any) -> Any:
    """One value at a time, by the rules of values.py: floats and decimals meet seldom."""
    check = checker(target)
    values = (pc.cast(array, pa.float64()) if kind(array.type) == "float" else array).to_pylist()
    return pa.array([None if value is None else check(value) for value in values], target)


def _int_to_float(array: Any, target: Any) -> Any:
    floats = pc.cast(array, target, safe=False)
    limit = _FLOAT_INT_MAX[pt.is_signed_integer(array.type)]
    # The way back is compared below the limit only: above it the cast is undefined.
    back = pc.cast(floats, array.type, safe=False)
    changed = pc.or_(pc.greater_equal(floats, limit), pc.not_equal(back, array))
    _refuse_any(changed, target)
    return floats


def _float_to_int(array: Any, target: Any) -> Any:
    wide = pc.cast(array, pa.float64())
    _refuse_any(pc.greater_equal(wide, 2.0**63), target)
    return pc.cast(wide, target)


def _float_to_float(array: Any, target: Any) -> Any:
    floats = _safe(array, target)
    if floats is not array:
        overflow = pc.and_(pc.is_inf(floats), pc.invert(pc.is_inf(array)))
        _refuse_any(overflow, target)
    return floats


def _int_to_decimal(array: Any, target: Any) -> Any:
    """Through a decimal that holds any integer: Arrow judges a direct cast by type alone."""
    return _from_decimal(pc.cast(array, pa.decimal128(20, 0)), target)


def _from_decimal(array: Any, target: Any) -> Any:
    """Arrow rescales inside the decimal's own width, and even 0.00 of decimal32 fails as an int64.

    76 digits leave room for every scale and every integer.
    """
    if array.type == target:
        return array
    return pc.cast(pc.cast(array, pa.decimal256(76, array.type.scale)), target)


def _moment(array: Any, target: Any) -> Any:
    moments = _safe(array, target)
    limit = _DAY_US if target in (TIMESTAMP, TIMESTAMPTZ) else 1
    _refuse_outside(moments, _DAY_MIN * limit, (_DAY_MAX + 1) * limit - 1)
    return moments


def _refuse_outside(moments: Any, low: int, high: int) -> None:
    plain = moments.view(pa.int64() if moments.type.bit_width == 64 else pa.int32())
    ends = pc.min_max(plain).as_py()
    if ends["min"] is not None and (ends["min"] < low or ends["max"] > high):
        raise Unfit("is outside the years 1 to 9999")


def _refuse_any(changed: Any, target: Any) -> None:
    if pc.any(changed).as_py():
        raise Unfit(f"would change as {type_text(target)}")


def _list(array: Any, target: Any) -> Any:
    array = _plain_list(array)
    items = array.flatten()
    kept = exact_cast(items, target.value_type)
    if kept.null_count and not target.value_field.nullable:
        raise Unfit("has a null item and its items must not be null")
    if kept is items and array.type == target:
        # The name of the item field is no part of a type's equality; this makes it ours.
        return array if str(array.type) == str(target) else array.cast(target)
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
    return _list_of(lengths, kept, array, target)


def _list_of(lengths: Any, items: Any, like: Any, target: Any) -> Any:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    mask = like.is_null() if like.null_count else None
    return pa.ListArray.from_arrays(pa.array(offsets), items, type=target, mask=mask)


def _plain_list(array: Any) -> Any:
    """Any kind of list as a list of the same items."""
    type = array.type
    if pt.is_list(type):
        return array
    plain = pa.list_(type.value_field)
    if not (pt.is_list_view(type) or pt.is_large_list_view(type)):
        return pc.cast(array, plain)
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    sizes = np.where(valid, array.sizes.to_numpy(), 0)
    starts = array.offsets.to_numpy()[: len(sizes)]
    ends = np.cumsum(sizes)
    positions = np.repeat(starts - (ends - sizes), sizes) + np.arange(int(sizes.sum()))
    return _list_of(sizes, _take(array.values, pa.array(positions)), array, plain)


def _struct(array: Any, target: Any) -> Any:
    given = [array.type.field(at).name for at in range(array.type.num_fields)]
    wanted = [target.field(at) for at in range(target.num_fields)]
    if len(set(given)) < len(given) or not set(given) <= {field.name for field in wanted}:
        raise WrongType(_wrong_type(array.type, target))
    # Flattening puts the struct's nulls into its fields, so that what they hide stays hidden.
    parts = dict(zip(given, array.flatten(), strict=True))
    children = [_child(parts.get(field.name), field, array) for field in wanted]
    if array.type == target and all(
        child is parts[field.name] for child, field in zip(children, wanted, strict=True)
    ):
        return array
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=wanted, mask=mask)


def _child(part: Any, field: Any, parent: Any) -> Any:
    child = pa.nulls(len(parent), field.type) if part is None else exact_cast(part, field.type)
    if not field.nullable and child.null_count > parent.null_count:
        raise Unfit(f"field {field.name!r} must not be null")
    return child


_RULES: Final[dict[tuple[str, str], Cast]] = {
    ("bool", "bool"): _safe,
    ("int", "int"): _safe,
    ("int", "float"): _int_to_float,
    ("int", "decimal"): _int_to_decimal,
    ("float", "int"): _float_to_int,
    ("float", "float"): _float_to_float,
    ("float", "decimal"): _by_value,
    ("decimal", "int"): _from_decimal,
    ("decimal", "float"): _by_value,
    ("decimal", "decimal"): _from_decimal,
    ("string", "string"): _safe,
    ("binary", "binary"): _safe,
    ("date", "date"): _moment,
    ("time", "time"): _safe,
    ("timestamp", "timestamp"): _moment,
    ("timestamptz", "timestamptz"): _moment,
    ("list", "list"): _list,
    ("struct", "struct"): _struct,
}

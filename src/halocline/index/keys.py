"""Index keys: columns of any ordered type as bytes that sort like the values, NULL first.

    columns --key_bytes--> binary array, one key a row        value --part_of--> bytes of one part
    (7, NULL, "ab")  ->  01 80..07 | 00 00..00 | 01 61 62 00 00

A key is one part after another. A part begins with 00 for NULL or 01, and is prefix-free, so that
all keys whose first parts are these bytes lie side by side:

    int, bool          8 bytes, big-endian, sign bit flipped
    date, timestamps   the same, in microseconds since 1970: widening a date changes nothing
    float              8 bytes of the double, its bits turned so that they sort; one NaN, one zero
    decimal            16 bytes, the scaled integer
    string, binary     its bytes, 00 as 00 FF, then 00 00; of a long one TEXT_BYTES, then 00 01

Keys of primary keys (schema/keys.py) know neither NULL nor NaN and are never cut. Here a long text
is, as the rows that an index names are looked at again anyway. Widening a column leaves its keys as
they are, so an index object outlives it.

Invariants
- For two values a < b of a column: part(a) <= part(b), and equal only if both are cut texts.
- `part_of` gives the bytes that `key_bytes` gives for that value (tests compare).
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from struct import Struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from halocline.objects.keybytes import fixed_bytes
from halocline.schema.batches import int64_values
from halocline.schema.types import EPOCH, EPOCH_UTC, kind

TEXT_BYTES: Final = 255
_NO_LIMIT: Final = (1 << 31) - 1
DAY_US: Final = 86_400_000_000
_SIGN64: Final = 1 << 63
_SIGN128: Final = 1 << 127
_NAN: Final = 0x7FF8_0000_0000_0000
_TEXTS: Final = frozenset(["string", "binary"])
_ORDERED: Final = frozenset(
    ["bool", "int", "float", "decimal", "date", "time", "timestamp", "timestamptz", *_TEXTS]
)
_US: Final = dt.timedelta(microseconds=1)
_double = Struct(">d").pack

KeyRows = npt.NDArray[np.uint8]
KeyWords = npt.NDArray[np.uint64]


class Beyond(Exception):
    """A bound that no value of the column reaches."""


def is_ordered(type: Any) -> bool:
    """Has a type an order that keys can keep?"""
    return kind(type) in _ORDERED


def key_bytes(columns: Sequence[Any], *, cut: bool = True) -> Any:
    """The keys that these columns make, whole arrays of equal length, as a pa.BinaryArray.

    Without `cut` long texts are whole, so that keys are equal only if the values are.
    """
    arrays = [one.combine_chunks() if isinstance(one, pa.ChunkedArray) else one for one in columns]
    if all(kind(one.type) not in _TEXTS for one in arrays):
        return _as_binary(np.hstack([_fixed(one) for one in arrays]))
    parts = [
        _text(one, TEXT_BYTES if cut else _NO_LIMIT)
        if kind(one.type) in _TEXTS
        else _as_binary(_fixed(one))
        for one in arrays
    ]
    if len(parts) == 1:
        return parts[0]
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))


def key_order(columns: Sequence[Any], keys: Any) -> Any:
    """Places of the rows in the order of their keys, equal ones as they come.

    One column of numbers is sorted as such: 500,000 rows in 43 ms, where their bytes take 136.
    """
    family = kind(columns[0].type)
    if len(columns) > 1 or family in _TEXTS or family == "decimal":
        return pc.sort_indices(keys)
    column = columns[0]
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    words = _words(column, family)
    if not column.null_count:
        return pa.array(np.argsort(words, kind="stable"))
    valid = np.asarray(column.is_valid())
    return pa.array(np.lexsort((np.where(valid, words, 0), valid)))


def part_of(type: Any, value: Any, *, cut: bool = True) -> bytes:
    """One part of a key: what `key_bytes` makes of a value that the column can have."""
    family = kind(type)
    if value is None:
        return bytes(1 + _width(family))
    if family in _TEXTS:
        data = value.encode() if family == "string" else value
        return b"\1" + (_cut(data) if cut else _escaped(data) + b"\0\0")
    return b"\1" + _word(type, family, value, up=False)


def low_part(type: Any, value: Any) -> bytes:
    """The part of the least value of a column that is not below a bound; Beyond: none is."""
    family = kind(type)
    return part_of(type, value) if family in _TEXTS else b"\1" + _word(type, family, value, up=True)


def prefix_part(text: str) -> bytes:
    """What the parts of all texts that begin so begin with."""
    data = text.encode()
    return b"\1" + (_escaped(data) if len(data) <= TEXT_BYTES else _cut(data)[:-2])


def is_exact(type: Any, value: Any) -> bool:
    """Does its part stand for this value alone?"""
    family = kind(type)
    if family in _TEXTS:
        return len(value.encode() if family == "string" else value) <= TEXT_BYTES
    return part_of(type, value) == low_part(type, value)


def after(data: bytes) -> bytes | None:
    """The least bytes above all that begin with these; None when there are none."""
    kept = data.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


def _width(family: str) -> int:
    return 0 if family in _TEXTS else 16 if family == "decimal" else 8


# Whole columns.


def _fixed(column: Any) -> KeyRows:
    family = kind(column.type)
    rows = len(column)
    if family == "decimal":
        values = fixed_bytes(column)
    else:
        words = _words(column, family)
        values = np.ascontiguousarray(words.byteswap()).view(np.uint8).reshape(rows, 8)
    marked = np.hstack([np.ones((rows, 1), np.uint8), values])
    if column.null_count:
        marked[~np.asarray(column.is_valid())] = 0
    return marked


def _words(column: Any, family: str) -> KeyWords:
    """Values as unsigned integers in their order; of NULL anything."""
    if family == "bool":
        flags = pc.fill_null(column, False).cast(pa.uint8())
        return _turned(flags.to_numpy().astype(np.int64))
    if family == "float":
        values = pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy() + 0.0  # -0.0 becomes 0.0
        bits = values.view(np.uint64).copy()
        bits[np.isnan(values)] = _NAN
        negative = bits >= np.uint64(_SIGN64)
        turned: KeyWords = np.where(negative, ~bits, bits ^ np.uint64(_SIGN64))
        return turned
    if family == "date":
        days = pc.fill_null(column.view(pa.int32()), 0).to_numpy().astype(np.int64)
        return _turned(days * DAY_US)
    return _turned(int64_values(column))


def _turned(values: npt.NDArray[np.int64]) -> KeyWords:
    """Signed integers as unsigned ones in the same order."""
    turned: KeyWords = values.view(np.uint64) ^ np.uint64(_SIGN64)
    return turned


def _text(column: Any, bytes_max: int) -> Any:
    data = column.cast(pa.binary())
    long = pc.greater(pc.binary_length(data), bytes_max)
    end: Any = pa.scalar(b"\0\0", pa.binary())
    if pc.any(long).as_py():
        data = pc.if_else(long, pc.binary_slice(data, 0, bytes_max), data)
        end = pc.if_else(long, pa.scalar(b"\0\1", pa.binary()), end)
    escaped = pc.replace_substring(data, b"\0", b"\0\xff")
    mark, nothing = pa.scalar(b"\1", pa.binary()), pa.scalar(b"", pa.binary())
    parts = pc.binary_join_element_wise(mark, escaped, end, nothing)
    return pc.fill_null(parts, pa.scalar(b"\0", pa.binary())) if parts.null_count else parts


def _as_binary(rows: KeyRows) -> Any:
    count, width = rows.shape
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows))]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


# Single values.


def _escaped(data: bytes) -> bytes:
    return data.replace(b"\0", b"\0\xff")


def _cut(data: bytes) -> bytes:
    if len(data) <= TEXT_BYTES:
        return _escaped(data) + b"\0\0"
    return _escaped(data[:TEXT_BYTES]) + b"\0\1"


def _word(type: Any, family: str, value: Any, *, up: bool) -> bytes:
    """Bytes of a bound that may lie between two values: of the one above it, or below."""
    if family == "float":
        return _float(value, type.bit_width, up=up)
    if family == "decimal":
        return (_rounded(value, _SIGN128, type.scale, up=up) + _SIGN128).to_bytes(16, "big")
    if family in ("int", "bool"):
        number = _rounded(value, _SIGN64, 0, up=up)
    elif family == "time":
        number = (dt.datetime.combine(EPOCH, value) - EPOCH) // _US
    elif family == "date":
        number = (value.toordinal() - EPOCH.toordinal()) * DAY_US
    else:
        number = (value - (EPOCH_UTC if family == "timestamptz" else EPOCH)) // _US
    return (number + _SIGN64).to_bytes(8, "big")


def _rounded(value: Any, limit: int, scale: int, *, up: bool) -> int:
    """A number as the scaled integer above or below it; Beyond when that is none of the type."""
    if isinstance(value, (float, Decimal)) and not math.isfinite(value):
        if (value > 0) is up:
            raise Beyond
        return limit - 1 if value > 0 else -limit
    exact = Fraction(value) * 10**scale
    number: int = math.ceil(exact) if up else math.floor(exact)
    if number >= limit:
        if up:
            raise Beyond
        return limit - 1
    if number < -limit:
        if not up:
            raise Beyond
        return -limit
    return number


def _float(value: Any, bits: int, *, up: bool) -> bytes:
    number: float = float(value)
    if not isinstance(value, float) and Fraction(value) != Fraction(number):
        number = math.nextafter(number, math.inf if up else -math.inf)
    if number != number:
        raw = _NAN
    else:
        raw = int.from_bytes(_double(number + 0.0), "big")
    turned = raw ^ ((1 << 64) - 1) if raw >= _SIGN64 else raw ^ _SIGN64
    return turned.to_bytes(8, "big")

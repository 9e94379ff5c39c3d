"""Thrift's compact protocol, as much of it as Parquet's footers and headers use.

    bytes --read_struct--> {field id: value}       nested dicts, lists, ints, bytes, bools, floats
    fields --struct------> bytes

Parquet describes itself in this encoding and pyarrow shows only a part of it: neither where pages
lie nor what a bloom filter's header says. A field starts with one byte, the distance from the last
field id in its high half and the type in its low half; integers are zigzag varints.

Invariants
- Reading stops with ThriftError on anything that is not thrift: it never runs past the end of the
  data, recurses deeper than DEPTH_MAX or makes a list longer than the bytes that are left.

Not here: what the fields of Parquet mean (footer.py, bloom.py, splice.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from struct import error as StructError
from typing import Any, Final

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)

DEPTH_MAX: Final = 64
_DOUBLE: Final = Struct("<d")


class ThriftError(ValueError):
    """Bytes that are not thrift. The caller, who knows the file, raises CorruptionError."""


class ThriftStruct(dict[int, Any]):
    """The fields of one struct by id, and where its bytes lie."""

    __slots__ = ("end", "start")
    start: int
    end: int


def read_struct(data: bytes | memoryview, at: int = 0) -> ThriftStruct:
    """The struct that starts at `at`."""
    try:
        return _struct(data, at, 0)
    except (IndexError, StructError) as error:
        raise ThriftError("thrift data ends early") from error


def _struct(data: Any, at: int, depth: int) -> ThriftStruct:
    if depth > DEPTH_MAX:
        raise ThriftError("thrift data nests too deep")
    record = ThriftStruct()
    record.start = at
    field = 0
    while head := data[at]:
        at += 1
        if head >> 4:
            field += head >> 4
        else:
            field, at = _number(data, at)
        record[field], at = _value(data, at, head & 15, depth)
    record.end = at + 1
    return record


def _value(data: Any, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if I16 <= kind <= I64:
        return _number(data, at)
    if kind == BINARY:
        size, at = _varint(data, at)
        if size > len(data) - at:
            raise ThriftError("a thrift string is longer than its data")
        return bytes(data[at : at + size]), at + size
    if kind == STRUCT:
        record = _struct(data, at, depth + 1)
        return record, record.end
    if kind in (LIST, SET):
        return _list(data, at, depth)
    if kind in (TRUE, FALSE):
        return kind == TRUE, at
    if kind == BYTE:
        return data[at], at + 1
    if kind == DOUBLE:
        return _DOUBLE.unpack_from(data, at)[0], at + 8
    raise ThriftError(f"thrift type {kind} is unknown")


def _list(data: Any, at: int, depth: int) -> tuple[list[Any], int]:
    kind, count = data[at] & 15, data[at] >> 4
    at += 1
    if count == 15:
        count, at = _varint(data, at)
    if count > len(data) - at:
        raise ThriftError("a thrift list is longer than its data")
    values: list[Any] = []
    for _ in range(count):
        if kind in (TRUE, FALSE):
            # In a list, unlike in a field, a bool takes a byte of its own.
            value, at = data[at] == TRUE, at + 1
        else:
            value, at = _value(data, at, kind, depth + 1)
        values.append(value)
    return values, at


def _varint(data: Any, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ThriftError("a thrift integer is longer than 64 bits")


def _number(data: Any, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return (value >> 1) ^ -(value & 1), at


# Writing


def varint(value: int) -> bytes:
    """An unsigned integer, seven bits a byte, lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(value: int) -> bytes:
    """A signed integer of 16, 32 or 64 bits: all look the same."""
    return varint(value << 1 if value >= 0 else (-value << 1) - 1)


def blob(data: bytes) -> bytes:
    """A string or byte array."""
    return varint(len(data)) + data


def items(kind: int, parts: Sequence[bytes]) -> bytes:
    """A list of encoded values of one type."""
    count = len(parts)
    head = bytes([count << 4 | kind]) if count < 15 else bytes([0xF0 | kind]) + varint(count)
    return head + b"".join(parts)


def fields(values: Iterable[tuple[int, int, bytes]], after: int = 0) -> bytes:
    """Encoded values as fields (id, type, bytes), without the end of their struct."""
    out = bytearray()
    for field, kind, payload in values:
        assert 0 < field - after < 16, "fields come in ascending order"
        out.append((field - after) << 4 | kind)
        out += payload
        after = field
    return bytes(out)


def struct(values: Iterable[tuple[int, int, bytes]]) -> bytes:
    """A struct of encoded values."""
    return fields(values) + b"\0"

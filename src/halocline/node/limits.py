"""Limits: how much one request may bring, looked at before anything of it is unpacked.

    bytes --read_request--> Request          what is not rows or files is short
    record --read_record--> nodes, size      how many, and how large they become in memory
    size --Room--> a place among all that are being unpacked, or "try again"

A byte of msgpack can become a Python object of sixty bytes, and a compressed Arrow buffer says
itself how large it is (schema/ipc.py). So lengths are read first, in the few places where they
stand, and a request that would take more memory than a plain one of the same rows could is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct
from typing import Final

import msgspec

from halocline.errors import CorruptionError, UnavailableError, UsageError
from halocline.log.record import DML_A, DML_D, DML_U, decode_payload
from halocline.node.wire import Commit, Request, decode_request
from halocline.rows.nodes import ARROW, HEAD
from halocline.schema.ipc import unpacked_bytes

REQUEST_BYTES_MAX: Final = 1 << 20
"""A request without rows and files."""
NOTES_BYTES_MAX: Final = 16 << 20
"""What a commit brings beside its record."""
NODES_MAX: Final = 1 << 16
ROWS_MAX: Final = 1 << 20
"""Rows of a commit that come as msgpack; more of them come as Arrow."""
UNPACKED_BYTES_MAX: Final = 1 << 30
SHORT_BYTES_MAX: Final = 1 << 16
"""Rows that everybody else may wait for (request_loop.py)."""
LARGE_BYTES: Final = 16 << 20
"""Smaller ones need no place."""
ROOM_BYTES: Final = 2 << 30
_CARGO: Final = {
    b"\xa6commit": ("fourth", NOTES_BYTES_MAX),
    b"\xa3put": ("third", REQUEST_BYTES_MAX),
}
"""By tag: which item may be long, and how long the others may be."""
_ARRAYS: Final = {0xDC: Struct(">xH"), 0xDD: Struct(">xI")}

Nodes = list[tuple[int, bytes]]


class _Parts(msgspec.Struct, frozen=True, array_like=True):
    """The first items of an array, not decoded; those behind them are passed over."""

    first: msgspec.Raw = msgspec.Raw()
    second: msgspec.Raw = msgspec.Raw()
    third: msgspec.Raw = msgspec.Raw()
    fourth: msgspec.Raw = msgspec.Raw()


_decode_parts = msgspec.msgpack.Decoder(_Parts).decode


def read_request(body: bytes) -> Request:
    """What is asked for; UsageError when it is longer than it may be."""
    if len(body) > REQUEST_BYTES_MAX:
        _check_cargo(body)
    request: Request = decode_request(body)
    return request


def _check_cargo(body: bytes) -> None:
    parts = _decode_parts(body)
    field, rest_max = _CARGO.get(bytes(parts.first), ("", REQUEST_BYTES_MAX))
    cargo = memoryview(getattr(parts, field)).nbytes if field else 0
    if len(body) - cargo > rest_max:
        text = f"a request of {len(body)} bytes is too long: beside rows and files it may bring "
        raise UsageError(f"{text}{rest_max}")


def read_record(record: bytes) -> tuple[Nodes, int]:
    """The nodes of a workspace, and the bytes that its rows take once they are unpacked."""
    _, _, nodes = decode_payload(record, "request", NODES_MAX)
    size = rows = 0
    for kind, payload in nodes:
        if kind in (DML_A, DML_D, DML_U) and len(payload) >= HEAD.size:
            if payload[1] == ARROW:
                size += _unpacked(memoryview(payload)[HEAD.size :])
            else:
                size += len(payload)
                rows += _rows(kind, memoryview(payload)[HEAD.size :])
    if size > UNPACKED_BYTES_MAX:
        text = f"the rows of a commit may take {UNPACKED_BYTES_MAX} bytes, not {size}"
        raise UsageError(f"{text}: commit fewer at once")
    if rows > ROWS_MAX:
        text = f"{rows} rows come one by one, at most {ROWS_MAX} may"
        raise UsageError(f"{text}: commit fewer at once, or lower Options.bulk_rows")
    return nodes, size


def short_nodes(commit: Commit) -> Nodes | None:
    """The nodes of a commit that is little work; of a single row none, they are read otherwise.

    None for the others: one that is known already may have to be waited for, files are looked into,
    and few bytes of packed rows may become many.
    """
    if commit.objects or commit.ddl or commit.token is not None or commit.again:
        return None
    nodes, size = ([], 0) if commit.single else read_record(commit.record)
    return nodes if size <= SHORT_BYTES_MAX else None


def _unpacked(stream: memoryview) -> int:
    try:
        return unpacked_bytes(stream)
    except ValueError as error:
        raise CorruptionError("request", f"rows cannot be unpacked: {error}") from error


def _rows(kind: int, body: memoryview) -> int:
    """How many rows a node has that is msgpack; of an update or delete, items of all its parts."""
    if kind == DML_A:
        return _items(body)
    try:
        parts = _decode_parts(body)
        return sum(_items(memoryview(part)) for part in (parts.first, parts.second, parts.third))
    except msgspec.MsgspecError as error:
        raise CorruptionError("request", f"a node cannot be decoded: {error}") from error


def _items(data: memoryview) -> int:
    """The length that an array of msgpack begins with."""
    first = data[0] if data else 0
    if first in _ARRAYS and len(data) >= _ARRAYS[first].size:
        return int(_ARRAYS[first].unpack_from(data)[0])
    return first & 0x0F if first & 0xF0 == 0x90 else 0


class Room:
    """Memory for the large requests that are being unpacked. Thread-safe, without a lock."""

    def __init__(self) -> None:
        self._taken: dict[object, int] = {}

    @contextmanager
    def take(self, size: int) -> Iterator[None]:
        """A place; UnavailableError when others have it all."""
        key = object()
        self._taken[key] = size
        try:
            if len(self._taken) > 1 and sum(list(self._taken.values())) > ROOM_BYTES:
                raise UnavailableError("the owner is busy with other large commits: try again")
            yield
        finally:
            del self._taken[key]

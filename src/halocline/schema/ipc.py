"""Arrow IPC streams from outside: how large they become is known before anything is unpacked.

    | FFFFFFFF | length i32 | flatbuffer Message | body |  ...  | FFFFFFFF 00000000 |
                                  |
                                  '- RecordBatch: buffers (offset, length), compression or none
                                                     |
    compressed buffer in the body:  | length once unpacked, i64; -1: as it is | bytes |

Arrow allocates the length that stands in front of a compressed buffer, and unpacks no more than
that into it. So the sum of these lengths bounds what reading costs; a few kilobytes can claim, and
with zstd even be, gigabytes. Only what this project writes is read: streams, without dictionaries,
in the framing of Arrow 0.15 and later.

What we pack ourselves, in the log and on the way between the processes of a Spark job, is packed
with LZ4, which makes at most 255 bytes out of one: there the stream's own length is the limit.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import Final

_U16, _I32, _U32, _I64 = Struct("<H"), Struct("<i"), Struct("<I"), Struct("<q")
_BUFFER: Final = Struct("<qq")
_CONTINUES: Final = b"\xff\xff\xff\xff"
_SCHEMA, _RECORD_BATCH = 1, 3
_AS_IT_IS: Final = -1
LZ4_RATIO_MAX: Final = 255

# Numbers of fields in Arrow's flatbuffers.
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 1, 2, 3
_BUFFERS, _COMPRESSION = 2, 3


def check_stream(data: bytes | memoryview, bytes_max: int) -> None:
    """ValueError when the batches of a stream would take more bytes than that."""
    size = unpacked_bytes(data)
    if size > bytes_max:
        raise ValueError(f"it would take {size} bytes once unpacked, more than {bytes_max}")


def check_own(data: bytes | memoryview) -> None:
    """ValueError when a stream claims more bytes than LZ4 could have packed into it."""
    check_stream(data, LZ4_RATIO_MAX * len(data))


def unpacked_bytes(data: bytes | memoryview) -> int:
    """What the batches of a stream take in memory; ValueError when it is not such a stream."""
    view, at, total = memoryview(data), 0, 0
    try:
        while at < len(view):
            if bytes(view[at : at + 4]) != _CONTINUES:
                raise ValueError("not an Arrow stream")
            (size,) = _I32.unpack_from(view, at + 4)
            at += 8
            if size == 0:
                return total
            if not 0 < size <= len(view) - at:
                raise ValueError("an Arrow message is longer than the stream")
            body_bytes, unpacked = _message(view[at : at + size], view[at + size :])
            at += size + body_bytes
            total += unpacked
    except (StructError, IndexError) as error:
        raise ValueError(f"an Arrow message makes no sense: {error}") from error
    return total


def _message(metadata: memoryview, rest: memoryview) -> tuple[int, int]:
    """(bytes of the body, bytes of its buffers once unpacked)."""
    message = _U32.unpack_from(metadata)[0]
    kind = _field(metadata, message, _HEADER_TYPE)
    length = _field(metadata, message, _BODY_LENGTH)
    body_bytes = 0 if length is None else _I64.unpack_from(metadata, length)[0]
    if not 0 <= body_bytes <= len(rest):
        raise ValueError("the body of an Arrow message is longer than the stream")
    kind_of = 0 if kind is None else metadata[kind]
    if kind_of == _SCHEMA:
        return body_bytes, 0
    header = _field(metadata, message, _HEADER)
    if kind_of != _RECORD_BATCH or header is None:
        raise ValueError(f"Arrow messages of type {kind_of} are not read here")
    return body_bytes, _batch(metadata, _follow(metadata, header), rest[:body_bytes])


def _batch(metadata: memoryview, batch: int, body: memoryview) -> int:
    buffers = _field(metadata, batch, _BUFFERS)
    if buffers is None:
        return 0
    packed = _field(metadata, batch, _COMPRESSION) is not None
    first = _follow(metadata, buffers)
    (count,) = _U32.unpack_from(metadata, first)
    if count * _BUFFER.size > len(metadata):
        raise ValueError("an Arrow message has more buffers than bytes")
    total = 0
    for offset, length in _BUFFER.iter_unpack(metadata[first + 4 :][: count * _BUFFER.size]):
        if not 0 <= offset <= offset + length <= len(body):
            raise ValueError("a buffer lies outside its Arrow message")
        size = _I64.unpack_from(body, offset)[0] if packed and length else _AS_IT_IS
        if size < _AS_IT_IS:
            raise ValueError("a buffer has less than no bytes")
        total += length if size == _AS_IT_IS else size
    return total


def _field(data: memoryview, table: int, number: int) -> int | None:
    """Where a field of a flatbuffers table stands; None when it is absent."""
    vtable = table - _I32.unpack_from(data, table)[0]
    if vtable < 0:
        raise ValueError("a table lies outside its Arrow message")
    entry = 4 + 2 * number
    if entry >= _U16.unpack_from(data, vtable)[0]:
        return None
    offset = _U16.unpack_from(data, vtable + entry)[0]
    return table + int(offset) if offset else None


def _follow(data: memoryview, at: int) -> int:
    return at + int(_U32.unpack_from(data, at)[0])

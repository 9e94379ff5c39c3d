"""Keys of whole tables as order-preserving bytes, and the hash `_pk64` of composite keys.

    table --key_bytes--> binary array: row i holds schema.key_bytes(key of row i)
    table --pk64------> int64 array: xxh3-64 of these bytes

The same bytes as schema/keys.py makes one by one, here a column at a time: 1 M keys of (int64,
int64) take 30 ms, of (int64, string) 150 ms, and hashing them 150 ms more. A composite key has no
column of its own for a bloom filter to stand on, so its hash becomes one.

Invariant: equal to `schema.key_bytes` for every canonical key (tests try all types).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from halocline.schema.batches import int64_values
from halocline.schema.types import EPOCH_ORDINAL, kind

Bytes2D = npt.NDArray[np.uint8]

_SIGN64: Final = np.uint64(1 << 63)
SLICE_ROWS: Final = 16384
"""Keys that are hashed in one go: other threads wait so long for the interpreter, some 3 ms."""


def key_bytes(table: Any, names: Sequence[str]) -> Any:
    """The keys of a canonical table, made of these columns, as a pa.BinaryArray."""
    columns = [_one_chunk(table.column(name)) for name in names]
    composite = len(columns) > 1
    if all(_is_fixed(column.type) for column in columns):
        return _as_binary(np.hstack([fixed_bytes(column) for column in columns]))
    parts = [_part(column, composite=composite) for column in columns]
    if not composite:
        return parts[0]
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))


def pk64(table: Any, names: Sequence[str]) -> npt.NDArray[np.int64]:
    """`_pk64` of every row of a canonical table whose key is made of these columns."""
    keys, digest = key_bytes(table, names), xxhash.xxh3_64_intdigest
    hashes = np.empty(len(keys), np.uint64)
    for start in range(0, len(keys), SLICE_ROWS):
        part = keys[start : start + SLICE_ROWS].to_pylist()
        hashes[start : start + SLICE_ROWS] = np.fromiter(map(digest, part), np.uint64, len(part))
    return hashes.view(np.int64)


def range_of(keys: Any) -> tuple[bytes, bytes]:
    """The lowest and highest of some keys as bytes."""
    bounds = pc.min_max(keys)
    return bounds["min"].as_py(), bounds["max"].as_py()


def is_sorted(columns: Sequence[Any]) -> bool:
    """Do these columns, the first one first, never fall? 1 M rows: 1 ms, strings 4 ms."""
    if len(columns[0]) < 2:
        return True
    result: Any = None
    for column in reversed(columns):
        values = _one_chunk(column)
        before, after = values[:-1], values[1:]
        if result is None:
            result = pc.less_equal(before, after)
        else:
            tied = pc.and_(pc.equal(before, after), result)
            result = pc.or_(pc.less(before, after), tied)
    return bool(pc.all(result).as_py())


def _one_chunk(column: Any) -> Any:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _is_fixed(type: Any) -> bool:
    return kind(type) not in ("string", "binary")


def fixed_bytes(column: Any) -> Bytes2D:
    family = kind(column.type)
    rows = len(column)
    if family == "bool":
        flags: Bytes2D = column.cast(pa.uint8()).to_numpy().reshape(rows, 1)
        return flags
    if family == "decimal":
        data = memoryview(column.buffers()[1] or b"")
        words = np.frombuffer(data[16 * column.offset :], np.uint64, 2 * rows).reshape(rows, 2)
        # Stored low word first; wanted high word first, its sign bit flipped.
        return _big_endian(np.stack([words[:, 1] ^ _SIGN64, words[:, 0]], axis=1))
    values = int64_values(column)
    if family == "date":
        return _big_endian((values + EPOCH_ORDINAL).astype(np.uint32).reshape(rows, 1))
    return _big_endian((values.view(np.uint64) ^ _SIGN64).reshape(rows, 1))


def _big_endian(values: npt.NDArray[Any]) -> Bytes2D:
    return np.ascontiguousarray(values.byteswap()).view(np.uint8)


def _part(column: Any, *, composite: bool) -> Any:
    """One part of a key that has texts in it, as binary."""
    if _is_fixed(column.type):
        return _as_binary(fixed_bytes(column))
    data = column.cast(pa.binary())
    if not composite:
        return data
    escaped = pc.replace_substring(data, b"\0", b"\0\xff")
    return pc.binary_join_element_wise(escaped, pa.scalar(b"\0\0", pa.binary()), b"")


def _as_binary(rows: Bytes2D) -> Any:
    count, width = rows.shape
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows))]
    return pa.Array.from_buffers(pa.binary(), count, buffers)

"""The block directory: where the pages of each block lie, and what they must hash to.

    pages | bloom filters | page index | DIRECTORY | size u32, "HCBD" | footer | size u32, "PAR1"
            '------------------------- the tail, under one digest ---------------------------'

Parquet's readers find the footer from the end of the file and the rest from the footer, so they
pass over a section in front of it. Ours finds in it all that a point read needs, in a form that
takes 30 us to open (the thrift of footer and page index would take 5 ms):

    first key of each block, as order-preserving bytes    -> which block can hold a key
    offset, size and xxh3-64 of each page                 -> one block of a column, verified
    schema elements and constant metadata of each column  -> a small Parquet file around it

Parquet's own page checksum covers the body of a page but not its header, where a flipped bit can
change the number of values or their encoding. The digest here covers both.

Written as msgpack; version 1. Pages are 24 bytes each, little-endian: offset u64, xxh3-64 u64,
size u32, values u32. A dictionary page of size 0 means that there is none.

Not here: making a small file out of pages (splice.py), reading bytes and checking them (read.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from halocline.errors import CorruptionError
from halocline.objects import footer

VERSION: Final = 1
MAGIC: Final = b"HCBD"
PAGE: Final = np.dtype([("offset", "<u8"), ("digest", "<u8"), ("size", "<u4"), ("values", "<u4")])
Pages = npt.NDArray[np.void]

_END_BYTES: Final = 8


class _Wire(msgspec.Struct, array_like=True, frozen=True):
    version: int
    block_rows: int
    group_rows: tuple[int, ...]
    columns: tuple[footer.FileColumn, ...]
    pages: bytes
    dictionaries: bytes
    blooms: tuple[tuple[int, int], ...]
    bloom_column: tuple[int, int, int]
    first_keys: tuple[bytes, ...]


_decode = msgspec.msgpack.Decoder(_Wire).decode
_encode = msgspec.msgpack.Encoder().encode


class Directory:
    """The directory of one object. Immutable; safe to share between threads."""

    def __init__(self, wire: _Wire, tail_start: int) -> None:
        self.block_rows = wire.block_rows
        self.group_rows = wire.group_rows
        self.blooms = wire.blooms
        self.bloom_column = footer.BloomColumn(*wire.bloom_column)
        self.first_keys = list(wire.first_keys)
        self.tail_start = tail_start
        counts = footer.block_counts(wire.group_rows, wire.block_rows)
        self.group_starts = list(accumulate(wire.group_rows, initial=0))
        self.group_blocks = list(accumulate(counts, initial=0))
        self.blocks = self.group_blocks[-1]
        leaves = sum(len(column.leaves) for column in wire.columns)
        self.pages: Pages = np.frombuffer(wire.pages, PAGE).reshape(leaves, self.blocks)
        self.dictionaries: Pages = np.frombuffer(wire.dictionaries, PAGE).reshape(
            leaves, len(counts)
        )
        self.columns: dict[int, footer.FileColumn] = {}
        self.leaves: dict[int, range] = {}
        at = 0
        for column in wire.columns:
            self.columns[column.id] = column
            self.leaves[column.id] = range(at, at + len(column.leaves))
            at += len(column.leaves)

    @property
    def rows(self) -> int:
        return self.group_starts[-1]

    def group_of(self, block: int) -> int:
        """The row group of a block."""
        return bisect_right(self.group_blocks, block) - 1

    def block_start(self, block: int) -> int:
        """The number of a block's first row in the object."""
        group = self.group_of(block)
        return self.group_starts[group] + (block - self.group_blocks[group]) * self.block_rows

    def block_size(self, block: int) -> int:
        """Rows in a block."""
        group = self.group_of(block)
        before = (block - self.group_blocks[group]) * self.block_rows
        return min(self.block_rows, self.group_rows[group] - before)

    def block_of(self, row: int) -> int:
        """The block that holds a row, by the row's number in the object."""
        group = bisect_right(self.group_starts, row) - 1
        return self.group_blocks[group] + (row - self.group_starts[group]) // self.block_rows

    def blocks_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """`block_of` of each."""
        starts, blocks = np.array(self.group_starts), np.array(self.group_blocks)
        groups = np.searchsorted(starts, rows, "right") - 1
        found: npt.NDArray[np.int64] = blocks[groups] + (rows - starts[groups]) // self.block_rows
        return found

    def numbers(self, block: int) -> npt.NDArray[np.int64]:
        """The numbers of a block's rows."""
        start = self.block_start(block)
        return np.arange(start, start + self.block_size(block))


def encode_directory(
    data: memoryview, layout: footer.Layout, *, block_rows: int, first_keys: Sequence[bytes]
) -> bytes:
    """The section to put in front of the footer of a finished file."""
    bloom = layout.bloom_column
    wire = _Wire(
        version=VERSION,
        block_rows=block_rows,
        group_rows=layout.group_rows,
        columns=layout.columns,
        pages=_digested(data, layout.pages),
        dictionaries=_digested(data, layout.dictionaries),
        blooms=layout.blooms,
        bloom_column=(bloom.id, bloom.type, bloom.width),
        first_keys=tuple(first_keys),
    )
    section = _encode(wire)
    return section + len(section).to_bytes(4, "little") + MAGIC


def _digested(data: memoryview, leaves: Sequence[Sequence[footer.ParquetPage]]) -> bytes:
    digest = xxhash.xxh3_64_intdigest
    records = [
        (offset, digest(data[offset : offset + size]), size, values)
        for pages in leaves
        for offset, size, values in pages
    ]
    return np.array(records, PAGE).tobytes()


def decode_directory(path: str, tail: memoryview, file_bytes: int) -> Directory:
    """The directory in the tail of a file. The tail's digest has been checked; what is refused
    here was written by something else than this engine, or by a later version of it."""
    end = footer.footer_start(tail)
    if not _END_BYTES <= end <= len(tail) or bytes(tail[end - 4 : end]) != MAGIC:
        raise CorruptionError(path, "it has no block directory")
    size = int.from_bytes(tail[end - 8 : end - 4], "little")
    try:
        if size > end - _END_BYTES:
            raise ValueError("it is longer than the file")
        section = tail[end - _END_BYTES - size : end - _END_BYTES]
        # The version stands first, behind the head of a short array: all else may change with it.
        if section[1] != VERSION:
            raise ValueError(f"version {section[1]} is not known")
        return Directory(_decode(section), file_bytes - len(tail))
    except (msgspec.MsgspecError, ValueError, TypeError, IndexError) as error:
        raise CorruptionError(path, f"its block directory is broken: {error}") from error

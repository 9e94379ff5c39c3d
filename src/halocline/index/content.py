"""The content of one index object, read by blocks.

    key range --first keys of blocks, then inside one--> rows of the index object --> positions

A block is decoded once and kept in the pool of indexes (objects/shelf.py), which has a fixed size:
a hit copies nothing. Only blocks at the ends of a range are looked into to count it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from halocline.objects import ObjectFile, Shelf
from halocline.objects.columns import index_columns
from halocline.objects.directory import Directory
from halocline.objects.pool import Content, Handle
from halocline.objects.read import Numbers


class IndexBlock(NamedTuple):
    """Some rows of an index object."""

    keys: Any
    """A pa.BinaryArray, ascending."""
    positions: Numbers


class IndexContent:
    """One index object."""

    def __init__(self, shelf: Shelf, file: ObjectFile) -> None:
        self._shelf, self._file = shelf, file

    @property
    def rows(self) -> int:
        """As many as its data object has."""
        return self._file.stats.rows

    def spread(self, ranges: Sequence[tuple[bytes, bytes | None]]) -> list[range]:
        """Which rows of the index object have keys in some ranges."""
        stats = self._file.stats
        met = [(low, high) for low, high in ranges if low <= stats.key_max]
        met = [(low, high) for low, high in met if high is None or high > stats.key_min]
        if not met:
            return []
        with self._shelf.reader.tail(self._file) as tail:
            directory = tail.directory
            found = [
                range(
                    self._bound(directory, low),
                    self.rows if high is None else self._bound(directory, high),
                )
                for low, high in met
            ]
        return [one for one in found if one]

    def missing(self, ranges: Sequence[tuple[bytes, bytes | None]]) -> int:
        """How many blocks `spread` would have to read."""
        bounds = [key for one in ranges for key in one if key is not None]
        with self._shelf.reader.tail(self._file) as tail:
            blocks = {bisect_left(tail.directory.first_keys, key) - 1 for key in bounds}
        return sum(block >= 0 and not self._shelf.index.loaded(self._id(block)) for block in blocks)

    def positions(self, rows: Sequence[range]) -> Numbers:
        """Where the rows of the data object are that these rows speak of, in the order of keys."""
        parts: list[Numbers] = [np.zeros(0, np.int64)]
        for one in rows:
            parts += self._positions(one)
        return np.concatenate(parts)

    def _positions(self, rows: range) -> Iterator[Numbers]:
        with self._shelf.reader.tail(self._file) as tail:
            directory = tail.directory
            first = directory.block_of(rows.start)
            for block in range(first, directory.block_of(rows.stop - 1) + 1):
                start = int(directory.numbers(block)[0])
                with self._block(directory, block) as held:
                    begin, end = max(rows.start - start, 0), rows.stop - start
                    yield held.positions[begin:end]

    def _bound(self, directory: Directory, key: bytes) -> int:
        """How many rows have a smaller key."""
        block = bisect_left(directory.first_keys, key) - 1
        if block < 0:
            return 0
        with self._block(directory, block) as held:
            keys = held.keys
            place = bisect_left(range(len(keys)), key, key=lambda at: keys[at].as_py())
        return int(directory.numbers(block)[0]) + place

    def _block(self, directory: Directory, block: int) -> Handle:
        def load() -> Content:
            reader = self._shelf.reader
            table = reader.blocks(self._file, directory, [block], index_columns())
            keys, positions = (column.combine_chunks() for column in table.columns)
            numbers = positions.to_numpy().astype(np.int64)
            return IndexBlock(keys, numbers), keys.nbytes + numbers.nbytes

        return self._shelf.index.pin(self._id(block), load)

    def _id(self, block: int) -> tuple[str, object, int]:
        return "index", self._file.id, block

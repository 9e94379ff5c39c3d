"""Decoded blocks of objects, kept in the pools: keys in the one of the index, rows in that of data.

    Finder --keys(block)-----> KeyBlock: keys, RowIDs, timestamps      index pool, small
           --rows(block)-----> RowBlock: whole rows, a node for each   data pool
                               column, pinned at once

A block is decoded by today's schema, so each Blocks keeps its own and never meets another's.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from halocline.objects.columns import COMMIT_TS, HIDDEN, PK64, ROWID, ROWID_ID
from halocline.objects.keyblock import KeyBlock
from halocline.objects.pool import Handle, Pool
from halocline.objects.read import ObjectReader, ObjectTail
from halocline.objects.stats import ObjectFile
from halocline.schema.batches import Int64Array
from halocline.schema.cells import Cells
from halocline.schema.cells import ReadRow as CellReader
from halocline.schema.column import TableColumn
from halocline.schema.schema import Schema

TOGETHER: Final = 4
"""So many missing blocks of a row group are read together rather than one by one."""
_generations = count()


class RowBlock(NamedTuple):
    """A decoded block of whole rows: as a batch, and cell by cell."""

    batch: Any
    cells: CellReader


class Blocks:
    """Blocks of the objects of one table, by one schema. Safe to share between threads."""

    def __init__(self, reader: ObjectReader, schema: Schema, *, index: Pool, data: Pool) -> None:
        self._reader = reader
        self._schema = schema
        self._index = index
        self._data = data
        self._generation = next(_generations)
        keys = [schema.columns[at] for at in schema.key_positions]
        self._cells = Cells([column.type for column in keys])
        rowid = [] if keys[0].id == ROWID_ID else [HIDDEN[ROWID]]
        self._key_columns = [*keys, *rowid, *([HIDDEN[PK64]] if len(keys) > 1 else [])]

    def keys(self, file: ObjectFile, tail: ObjectTail, block: int) -> Handle:
        """A `KeyBlock`, held in its pool."""
        return self._index.pin(
            (self._generation, file.id, block), lambda: self._load_keys(file, tail, block)
        )

    def rows(self, file: ObjectFile, block: int) -> Handle:
        """A `RowBlock`, each column of which is held in its pool."""
        return self._data.pin_all(
            (self._generation, file.id, block),
            len(self._schema.columns),
            lambda wanted: self._load_columns(file, block, wanted),
            self._as_rows,
        )

    def joined_keys(
        self, file: ObjectFile, tail: ObjectTail, blocks: Sequence[int]
    ) -> tuple[KeyBlock, Int64Array, list[int]] | None:
        """The key blocks of one row group that are not in the pool, as one, if they are many.

        With it come the numbers of its rows, and which blocks they are. They are kept in the pool
        as long as it has room: a batch that asks for more than fits must not drive out everything
        that others need, only to find nothing of its own there the next time.
        """
        directory = tail.directory
        missing = self._missing(file, blocks)
        if len(missing) < TOGETHER:
            return None
        table = self._reader.blocks(file, directory, missing, self._columns_of(file))
        joined = KeyBlock(self._schema, self._cells, table, 0)
        if self._index.has_room(joined.size_bytes):
            self._keep(file, tail, missing, table)
        return joined, np.concatenate([directory.numbers(block) for block in missing]), missing

    def load_keys(self, file: ObjectFile, tail: ObjectTail, blocks: Sequence[int]) -> None:
        """Into the pool with the key blocks of one row group, if many of them are not there yet."""
        missing = self._missing(file, blocks)
        if len(missing) >= TOGETHER:
            table = self._reader.blocks(file, tail.directory, missing, self._columns_of(file))
            self._keep(file, tail, missing, table)

    def _missing(self, file: ObjectFile, blocks: Sequence[int]) -> list[int]:
        return [b for b in blocks if not self._index.loaded((self._generation, file.id, b))]

    def _keep(self, file: ObjectFile, tail: ObjectTail, blocks: Sequence[int], table: Any) -> None:
        at = 0
        for block in blocks:
            size = tail.directory.block_size(block)
            # A slice would keep all blocks in memory for as long as one of them lives.
            part = table.slice(at, size).take(np.arange(size))
            keys = KeyBlock(self._schema, self._cells, part, tail.directory.block_start(block))
            self._index.pin((self._generation, file.id, block), keys.loaded).close()
            at += size

    def _load_keys(self, file: ObjectFile, tail: ObjectTail, block: int) -> tuple[KeyBlock, int]:
        table = self._reader.blocks(file, tail.directory, [block], self._columns_of(file))
        start = tail.directory.block_start(block)
        return KeyBlock(self._schema, self._cells, table, start).loaded()

    def _load_columns(
        self, file: ObjectFile, block: int, wanted: Sequence[int]
    ) -> list[tuple[Any, int]]:
        columns = [self._schema.columns[at] for at in wanted]
        with self._reader.tail(file) as tail:
            table = self._reader.blocks(file, tail.directory, [block], columns)
        arrays = table.combine_chunks().to_batches()[0].columns
        return [(array, array.nbytes) for array in arrays]

    def _as_rows(self, arrays: list[Any]) -> RowBlock:
        batch = pa.record_batch(arrays, schema=self._schema.arrow)
        return RowBlock(batch, self._schema.cells(batch))

    def _columns_of(self, file: ObjectFile) -> list[TableColumn]:
        """What a key block holds. Timestamps only where rows have their own: those of an object
        that waits for its commit become known later than the block may be read."""
        stamp = [HIDDEN[COMMIT_TS]] if file.stats.committed else []
        return self._key_columns + stamp

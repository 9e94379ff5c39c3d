"""Single rows of objects, taken out of decoded blocks that are kept in the data pool.

    numbers --> blocks --in the pool?--> rows taken, all columns of a block at once
                             '--missing: read together, a row group at a time--> pool

For rows that lie scattered, as an index names them. To decode a block takes a hundred times as long
as to take a row out of it, so blocks are kept, each with the columns that were asked for. Columns
that the file has not are made for the rows alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from halocline.objects.directory import Directory
from halocline.objects.pool import Content, Pool
from halocline.objects.read import Numbers, ObjectReader, absent, arrow_of, wanted_columns
from halocline.objects.stats import ObjectFile
from halocline.schema.column import TableColumn
from halocline.schema.schema import Schema


class Gather:
    """Takes rows by number. Safe to share between threads."""

    def __init__(self, reader: ObjectReader, data: Pool) -> None:
        self._reader, self._data = reader, data

    def take(
        self,
        file: ObjectFile,
        schema: Schema,
        numbers: Numbers,
        *,
        columns: Sequence[str] | None = None,
        hidden: Sequence[str] = (),
    ) -> pa.Table:
        """Rows with these ascending numbers: columns by name, then hidden ones."""
        wanted = wanted_columns(schema, columns, hidden)
        shown = arrow_of(wanted)
        if not len(numbers):
            return shown.empty_table()
        with self._reader.tail(file) as tail:
            taken = _Taken(self, file, tail.directory, wanted)
            batches = taken.rows(numbers)
        if len(taken.present) == len(wanted):
            return pa.Table.from_batches(
                [pa.RecordBatch.from_arrays(one.columns, schema=shown) for one in batches]
            )
        places = {column.id: at for at, column in enumerate(taken.present)}
        table = pa.Table.from_batches(batches) if batches else None
        arrays = [
            table.column(places[column.id])
            if table is not None and column.id in places
            else absent(file, column, len(numbers))
            for column in wanted
        ]
        return pa.Table.from_arrays(arrays, schema=shown)

    def missing(
        self,
        file: ObjectFile,
        schema: Schema,
        numbers: Numbers,
        *,
        columns: Sequence[str] | None = None,
        hidden: Sequence[str] = (),
    ) -> int:
        """How many blocks `take` would have to read."""
        with self._reader.tail(file) as tail:
            taken = _Taken(self, file, tail.directory, wanted_columns(schema, columns, hidden))
            blocks = np.unique(tail.directory.blocks_of(numbers)).tolist()
        return len(taken.missing(blocks)) if taken.present else 0


class _Taken:
    """Some columns of one object."""

    def __init__(
        self,
        gather: Gather,
        file: ObjectFile,
        directory: Directory,
        wanted: Sequence[TableColumn],
    ) -> None:
        self._reader, self._data = gather._reader, gather._data
        self._file, self._directory = file, directory
        self.present = [column for column in wanted if column.id in directory.columns]
        # The type is today's: a column may have been widened since.
        self._what = tuple((column.id, column.type) for column in self.present)

    def missing(self, blocks: Sequence[int]) -> list[int]:
        """Those of these blocks that are not in the pool."""
        return [block for block in blocks if not self._data.loaded(self._id(block))]

    def rows(self, numbers: Numbers) -> list[Any]:
        """Record batches of the columns that the file has, in the order of ascending numbers."""
        if not self.present:
            return []
        directory = self._directory
        blocks, starts = np.unique(directory.blocks_of(numbers), return_index=True)
        parts = np.split(numbers, starts[1:])
        fresh = self._load(self.missing(blocks.tolist()))
        batches = []
        for block, part in zip(blocks.tolist(), parts, strict=True):
            offsets = pa.array(part - directory.block_start(block))
            if block in fresh:
                batches.append(fresh[block].take(offsets))
                continue
            with self._data.pin(self._id(block), partial(self._one, block)) as batch:
                batches.append(batch.take(offsets))
        return batches

    def _id(self, block: int) -> tuple[Any, ...]:
        return ("rows", self._file.id, block, self._what)

    def _load(self, blocks: Sequence[int]) -> dict[int, Any]:
        """Blocks by their number, read and put into the pool."""
        groups: dict[int, list[int]] = {}
        for block in blocks:
            groups.setdefault(self._directory.group_of(block), []).append(block)
        found: dict[int, Any] = {}
        for together in groups.values():
            for block, content in zip(together, self._read(together), strict=True):
                self._data.pin(self._id(block), partial(_as_it_is, content)).close()
                found[block] = content[0]
        return found

    def _one(self, block: int) -> Content:
        return self._read([block])[0]

    def _read(self, blocks: Sequence[int]) -> list[Content]:
        """Blocks of one row group, decoded at once."""
        table = self._reader.blocks(self._file, self._directory, blocks, self.present)
        table, at, contents = table.combine_chunks(), 0, []
        for block in blocks:
            size = self._directory.block_size(block)
            part = table.slice(at, size)
            if len(blocks) > 1:  # a slice would keep all of them in memory
                part = part.take(np.arange(size)).combine_chunks()
            batch = part.to_batches()[0]
            contents.append((batch, batch.nbytes))
            at += size
        return contents


def _as_it_is(content: Content) -> Content:
    return content

"""Merge: the rows of several sorted objects as one sorted stream, a slab at a time.

    object 1  [a..f][f..k][k..p]          each cursor reads some blocks at once
    object 2  [b..d][d..r]                and knows the first key of the next one
                    |
         bound = lowest first key that is not read yet
                    |
    slab = all rows below the bound, sorted by key, then RowID

The cursor that holds the others up is read next. A cursor can therefore have at most one piece that
lies above the bound, so memory holds a slab and a piece for each object, whatever they weigh
together. Rows that are not wanted any more are dropped before they are held. What is left over by
one slab must grow by a quarter before the next is tried: many objects would otherwise be asked
again for every piece that is read.

Keys are compared as order-preserving bytes, but only at the ends of pieces; inside a slab the
columns are sorted: those pieces are sorted already, which numpy's merge sort makes use of.

A merge may be of a range of keys, low <= key < high. Each cursor finds its first and its last row
by reading the keys of two blocks; ranges that meet share out the rows exactly, each to one.

Invariants
- Slabs ascend: the last key of one is not above the first of the next.
- Every page is verified before it is decoded (objects/read.py).

Not here: which objects, what becomes of the rows (run.py; check.py reads keys with it).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from halocline.objects import ObjectFile, ObjectReader
from halocline.objects.columns import COMMIT_TS, PK64, ROWID, Order, is_composite
from halocline.objects.directory import Directory
from halocline.objects.keybytes import key_bytes
from halocline.objects.order import sort_rows
from halocline.options import MIB
from halocline.rows.members import is_among
from halocline.schema.batches import BoolArray, Int64Array, int64_values
from halocline.schema.schema import Schema
from halocline.schema.types import kind

SLAB_ROWS: Final = 262_144
SLAB_BYTES: Final = 128 * MIB
PIECE_BYTES: Final = 2 * MIB
"""Most bytes of file that a cursor reads at once, if that is more than one block."""
_BLOCKS_MANY: Final = 64
_WORDS: Final = frozenset(["int", "time", "timestamp", "timestamptz"])
"""Kinds whose keys are 64-bit numbers with the sign bit flipped."""

Drop = Callable[[Int64Array], BoolArray]
"""Which of some RowIDs are not wanted."""


class RunCursor:
    """Reads one sorted object, or a range of its keys, from the first row to the last."""

    def __init__(
        self,
        reader: ObjectReader,
        file: ObjectFile,
        schema: Schema,
        *,
        columns: Sequence[str] | None,
        piece_rows: int,
        low: bytes = b"",
        high: bytes | None = None,
    ) -> None:
        with reader.tail(file) as tail:
            # Kept: the pool may be smaller than the tails of all objects that are merged.
            self._directory: Directory = tail.directory
        self._reader, self._file, self._schema = reader, file, schema
        self._columns = columns
        # Some columns alone need no `_pk64`, which is dear to compute again.
        by_hash = columns is None and is_composite(schema)
        self._hidden = [ROWID, COMMIT_TS, *([PK64] if by_hash else [])]
        self._names = sorted_by(schema, file.stats.order)
        per_row = max(1, file.stats.size_bytes // max(1, file.stats.rows))
        rows = max(1, min(piece_rows, PIECE_BYTES // per_row))
        self._blocks = max(1, rows // self._directory.block_rows)
        self._row = self._row_at(low) if low else 0
        self._stop = self._directory.rows if high is None else self._row_at(high)

    @property
    def rows(self) -> int:
        """Rows that have not been read."""
        return max(0, self._stop - self._row)

    @property
    def next_key(self) -> bytes | None:
        """No row that has not been read has a lower key than this; None at the end."""
        if self._row >= self._stop:
            return None
        return self._directory.first_keys[self._directory.block_of(self._row)]

    def read(self) -> Any:
        """The next rows, as a pa.Table."""
        directory, start = self._directory, self._row
        block = directory.block_of(start) + self._blocks
        stop = directory.rows if block >= directory.blocks else directory.block_start(block)
        self._row = min(stop, self._stop)
        return self._rows(range(start, self._row), self._columns, self._hidden)

    def key_at(self, row: int) -> bytes:
        """The key of one row, as bytes; of one a few rows before it in a very large object."""
        directory = self._directory
        block = directory.block_of(row)
        if directory.blocks >= _BLOCKS_MANY:
            return directory.first_keys[block]
        key: bytes = key_bytes(self._keys(range(row, row + 1)), self._names)[0].as_py()
        return key

    def _row_at(self, key: bytes) -> int:
        """The first row whose key is not below this one."""
        directory = self._directory
        block = bisect_left(directory.first_keys, key) - 1
        if block < 0:
            return 0
        start = directory.block_start(block)
        span = range(start, start + directory.block_size(block))
        return start + _below(self._keys(span), self._names, key)

    def _keys(self, span: range) -> Any:
        return self._rows(span, [name for name in self._names if name != ROWID], [ROWID])

    def _rows(self, span: range, columns: Sequence[str] | None, hidden: Sequence[str]) -> Any:
        return self._reader.read(
            self._file,
            self._schema,
            columns=columns,
            hidden=hidden,
            rows=[span],
            directory=self._directory,
        )


def merge(
    reader: ObjectReader,
    files: Sequence[ObjectFile],
    schema: Schema,
    *,
    columns: Sequence[str] | None = None,
    drop: Drop | None = None,
    others: Sequence[Any] = (),
    slab_rows: int = SLAB_ROWS,
    slab_bytes: int = SLAB_BYTES,
) -> Iterator[Any]:
    """Slabs of the rows of these objects, with `_rowid` and `_commit_ts`.

    `columns` must hold the key; None means all. `others` are sorted tables in memory to go along.
    """
    cursors = open_cursors(reader, files, schema, columns=columns, slab_rows=slab_rows)
    order = files[0].stats.order if files else "key"
    names = sorted_by(schema, order)
    return merge_cursors(
        cursors, names, drop=drop, others=others, slab_rows=slab_rows, slab_bytes=slab_bytes
    )


def open_cursors(
    reader: ObjectReader,
    files: Sequence[ObjectFile],
    schema: Schema,
    *,
    columns: Sequence[str] | None = None,
    slab_rows: int = SLAB_ROWS,
    low: bytes = b"",
    high: bytes | None = None,
) -> list[RunCursor]:
    """A cursor for each object; with `low` and `high`, of the rows with low <= key < high alone."""
    piece_rows = max(1, slab_rows // max(1, len(files)))
    return [
        RunCursor(reader, file, schema, columns=columns, piece_rows=piece_rows, low=low, high=high)
        for file in files
    ]


def merge_cursors(
    cursors: Sequence[RunCursor],
    names: Sequence[str],
    *,
    drop: Drop | None = None,
    others: Sequence[Any] = (),
    slab_rows: int = SLAB_ROWS,
    slab_bytes: int = SLAB_BYTES,
) -> Iterator[Any]:
    """Slabs of what the cursors read, sorted by the columns they are all sorted by."""
    held = _Held(slab_rows, slab_bytes, [table for table in others if table.num_rows])
    while True:
        waiting = [cursor for cursor in cursors if cursor.next_key is not None]
        if held.is_slab or not waiting:
            bound = min(map(_next_key, waiting), default=None)
            ready, rest = _split(held.tables, names, bound)
            held = _Held(slab_rows, slab_bytes, rest)
            if ready:
                yield sort_rows(pa.concat_tables(ready), names)
        if not waiting:
            return
        held.add(_kept(min(waiting, key=_next_key).read(), drop))


class _Held:
    """Sorted tables that wait for their slab."""

    def __init__(self, slab_rows: int, slab_bytes: int, tables: Sequence[Any]) -> None:
        self.tables: list[Any] = []
        self._rows = self._bytes = 0
        for table in tables:
            self.add(table)
        left = self._rows
        self._rows_min = left + left // 4
        self._slab_rows = slab_rows
        self._slab_bytes = slab_bytes

    def add(self, table: Any) -> None:
        self.tables.append(table)
        self._rows += table.num_rows
        self._bytes += table.nbytes

    @property
    def is_slab(self) -> bool:
        large = self._rows >= self._slab_rows or self._bytes >= self._slab_bytes
        return large and self._rows >= self._rows_min


def _next_key(cursor: RunCursor) -> bytes:
    key = cursor.next_key
    assert key is not None
    return key


def _kept(table: Any, drop: Drop | None) -> Any:
    if drop is None:
        return table
    gone = drop(rowids_of(table))
    return table.filter(pa.array(~gone)) if gone.any() else table


def _split(
    held: Sequence[Any], names: Sequence[str], bound: bytes | None
) -> tuple[list[Any], list[Any]]:
    """Parts a table into rows below the bound and rows that have to wait."""
    ready, rest = [], []
    for table in held:
        count = table.num_rows if bound is None else _below(table, names, bound)
        if count:
            ready.append(table.slice(0, count))
        if count < table.num_rows:
            rest.append(table.slice(count))
    return ready, rest


def _below(table: Any, names: Sequence[str], bound: bytes) -> int:
    """How many rows of a sorted table have keys below the bound."""
    count = int(table.num_rows)
    if count and len(names) == 1 and kind(table.schema.field(names[0]).type) in _WORDS:
        # Most keys are these, and the look takes 10 us instead of 500.
        values = int64_values(table.column(names[0]).combine_chunks())
        return int(np.searchsorted(values, int.from_bytes(bound, "big") - (1 << 63)))
    keys = table.select(list(names))

    def key_at(row: int) -> bytes:
        key: bytes = key_bytes(keys.slice(row, 1), names)[0].as_py()
        return key

    if not count or key_at(count - 1) < bound:
        return count
    return bisect_left(range(count), bound, key=key_at)


def sorted_by(schema: Schema, order: Order) -> list[str]:
    """The columns that the rows of an object are sorted by."""
    return list(schema.primary_key) if order == "key" and schema.primary_key else [ROWID]


def rowids_of(table: Any) -> Int64Array:
    values: Int64Array = table.column(ROWID).to_numpy()
    return values


def dropper(gone: Int64Array) -> Drop:
    """Membership in a sorted array of RowIDs."""
    return lambda rowids: is_among(rowids, gone)


class Dropped:
    """Drops rows that have ended, and remembers which; `go_on` is asked each time."""

    def __init__(self, go_on: Callable[[], None] = lambda: None) -> None:
        self._go_on = go_on
        self._found: list[Int64Array] = []

    def by(self, ended: Int64Array) -> Drop:
        """Drop the rows in a sorted array of RowIDs."""
        has_ended = dropper(ended)

        def drop(rowids: Int64Array) -> BoolArray:
            self._go_on()
            gone = has_ended(rowids)
            if gone.any():
                self._found.append(rowids[gone])
            return gone

        return drop

    @property
    def rowids(self) -> Int64Array:
        """All that were dropped, ascending."""
        return np.sort(np.concatenate([np.zeros(0, dtype=np.int64), *self._found]))

"""Merge: the rows of several sorted objects as one sorted stream, a slab at a time.

    object 1  [a..f][f..k][k..p]          each cursor reads some blocks at once
    object 2  [b..d][d..r]                and knows the first key of the next one
                    |
         bound = lowest first key that nobody has read yet
                    |
    slab = all rows below the bound, sorted by key, then RowID

The cursor that holds everybody up is read next. A cursor can therefore have at most one piece that
lies above the bound, so memory holds a slab and a piece for each object, whatever they weigh
together. Rows that are not wanted any more are dropped before they are held.

Keys are compared as order-preserving bytes, but only at the ends of pieces; inside a slab the
columns are sorted: those pieces are sorted already, which numpy's merge sort makes use of.

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
import pyarrow.compute as pc

from halocline.batches import int64_values
from halocline.config import MIB
from halocline.objects import ObjectFile, Reader
from halocline.objects.columns import COMMIT_TS, PK64, ROWID, Order, is_composite
from halocline.objects.keybytes import key_bytes
from halocline.rows.members import is_among
from halocline.rows.page import Int64Array, Mask
from halocline.schema import Schema
from halocline.types import kind

SLAB_ROWS: Final = 262_144
SLAB_BYTES: Final = 128 * MIB
PIECE_BYTES: Final = 2 * MIB
"""Most bytes of file that a cursor reads at once, if that is more than one block."""
_PLAIN: Final = frozenset(["int", "date", "time", "timestamp", "timestamptz"])

Drop = Callable[[Int64Array], Mask]
"""Which of some RowIDs are not wanted."""


class Cursor:
    """Reads one sorted object from its first row to its last."""

    def __init__(
        self,
        reader: Reader,
        file: ObjectFile,
        schema: Schema,
        *,
        columns: Sequence[str] | None,
        piece_rows: int,
    ) -> None:
        with reader.tail(file) as tail:
            self._directory = tail.directory
        self._reader, self._file, self._schema = reader, file, schema
        self._columns = columns
        self._hidden = hidden_columns(schema, whole=columns is None)
        per_row = max(1, file.stats.size_bytes // max(1, file.stats.rows))
        rows = max(1, min(piece_rows, PIECE_BYTES // per_row))
        self._blocks = max(1, rows // self._directory.block_rows)
        self._block = 0

    @property
    def next_key(self) -> bytes | None:
        """The first key that has not been read; None at the end."""
        keys = self._directory.first_keys
        return keys[self._block] if self._block < len(keys) else None

    def read(self) -> Any:
        """The next rows, as a pa.Table."""
        directory = self._directory
        start = directory.block_start(self._block)
        self._block = min(self._block + self._blocks, directory.blocks)
        done = self._block == directory.blocks
        stop = directory.rows if done else directory.block_start(self._block)
        return self._reader.read(
            self._file,
            self._schema,
            columns=self._columns,
            hidden=self._hidden,
            rows=[range(start, stop)],
        )


def hidden_columns(schema: Schema, *, whole: bool = True) -> list[str]:
    """What a rewrite needs besides the table's columns; `_pk64` is dear to compute again."""
    return [ROWID, COMMIT_TS, *([PK64] if whole and is_composite(schema) else [])]


def merge(
    reader: Reader,
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
    order = files[0].stats.order if files else "key"
    names = sorted_by(schema, order)
    piece_rows = max(1, slab_rows // max(1, len(files)))
    cursors = [
        Cursor(reader, file, schema, columns=columns, piece_rows=piece_rows) for file in files
    ]
    held: list[Any] = [table for table in others if table.num_rows]
    while True:
        waiting = [cursor for cursor in cursors if cursor.next_key is not None]
        if _is_slab(held, slab_rows, slab_bytes) or not waiting:
            bound = min(map(_next_key, waiting), default=None)
            ready, held = _split(held, names, bound)
            if ready:
                yield sort_rows(pa.concat_tables(ready), names)
        if not waiting:
            return
        held.append(_kept(min(waiting, key=_next_key).read(), drop))


def _is_slab(held: Sequence[Any], slab_rows: int, slab_bytes: int) -> bool:
    rows = sum(table.num_rows for table in held)
    size = sum(table.nbytes for table in held)
    return bool(rows >= slab_rows or size >= slab_bytes)


def _next_key(cursor: Cursor) -> bytes:
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
    """Rows below the bound, and those that have to wait."""
    ready, rest = [], []
    for table in held:
        count = table.num_rows if bound is None else _below(table, names, bound)
        if count:
            ready.append(table.slice(0, count))
        if count < table.num_rows:
            rest.append(table.slice(count))
    return ready, rest


def _below(table: Any, names: Sequence[str], bound: bytes) -> int:
    keys = table.select(list(names))

    def key_at(row: int) -> bytes:
        key: bytes = key_bytes(keys.slice(row, 1), names)[0].as_py()
        return key

    if not table.num_rows or key_at(table.num_rows - 1) < bound:
        return int(table.num_rows)
    return bisect_left(range(table.num_rows), bound, key=key_at)


def sorted_by(schema: Schema, order: Order) -> list[str]:
    """The columns that the rows of an object are sorted by."""
    return list(schema.primary_key) if order == "key" and schema.primary_key else [ROWID]


def sort_rows(table: Any, names: Sequence[str]) -> Any:
    """A table by key, then RowID, as one chunk."""
    table = table.combine_chunks()
    if table.num_rows < 2:
        return table
    order = _order(table, names)
    return table if _is_in_place(order) else table.take(pa.array(order))


def _order(table: Any, names: Sequence[str]) -> Int64Array:
    if len(names) == 1 and kind(table.schema.field(names[0]).type) in _PLAIN:
        values = int64_values(table.column(names[0]).chunk(0))
        order: Int64Array = np.argsort(values, kind="stable")
        ranked = values[order]
        if not (ranked[1:] == ranked[:-1]).any():
            return order
    keys = [(name, "ascending") for name in dict.fromkeys([*names, ROWID])]
    found: Int64Array = pc.sort_indices(table, sort_keys=keys).to_numpy().astype(np.int64)
    return found


def _is_in_place(order: Int64Array) -> bool:
    return bool((order[1:] > order[:-1]).all())


def rowids_of(table: Any) -> Int64Array:
    values: Int64Array = table.column(ROWID).to_numpy()
    return values


def dropper(gone: Int64Array) -> Drop:
    """Membership in a sorted array of RowIDs."""
    return lambda rowids: is_among(rowids, gone)

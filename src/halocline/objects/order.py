"""Rows in key order: what a table must be before it becomes an object.

    canonical table --key_order--> None when it is sorted already, else the order of its rows
                                   in key order --Ordered--> rows, an object at a time

Most bulk input arrives sorted, and finding that out takes a millisecond per million rows. An
unsorted table is never copied as a whole: its writer takes the rows of one object after the
other, in threads if it likes.

`repeats` finds keys that stand twice in a sorted table, for they are neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from halocline.objects.columns import ROWID
from halocline.objects.keybytes import is_sorted
from halocline.schema.batches import Int64Array, int64_values
from halocline.schema.schema import Schema
from halocline.schema.types import kind

PIECE_BYTES: Final = 1 << 30
OBJECT_BYTES: Final = 1 << 28
"""Most bytes of the rows of one object, if they are known: its writer holds them about three times,
as rows, as a row group in one piece, and as a file."""
_PLAIN: Final = frozenset(["int", "time", "timestamp", "timestamptz", "date"])
"""Kinds whose values numpy sorts as 64-bit numbers."""


def key_order(table: Any, schema: Schema) -> Int64Array | None:
    """The positions of a table's rows in key order; None when they are in that order already."""
    names = list(schema.primary_key)
    integers = schema.key_column(table)
    if integers is not None:
        values = integers.values
        if bool(np.all(values[1:] >= values[:-1])):
            return None
        return np.argsort(values).astype(np.int64, copy=False)
    keys = table.select(names)
    if is_sorted(keys.columns):
        return None
    return _order_of(keys.columns)


def sort_rows(table: Any, names: Sequence[str]) -> Any:
    """A table by these columns, then RowID, as one chunk."""
    table = table.combine_chunks()
    if table.num_rows < 2:
        return table
    first, order = table.column(names[0]), None
    if len(names) == 1 and kind(first.type) in _PLAIN:
        values = int64_values(first.chunk(0))
        order = np.argsort(values, kind="stable")
        if (values[order[1:]] == values[order[:-1]]).any():
            order = None
    if order is None:
        order = _order_of([table.column(name) for name in dict.fromkeys([*names, ROWID])])
    return table if bool((order[1:] > order[:-1]).all()) else table.take(pa.array(order))


def _order_of(columns: Sequence[Any]) -> Int64Array:
    # Names of our own: sort keys are paths, and a column may be called like one.
    aliases = [f"k{at}" for at in range(len(columns))]
    plain = pa.Table.from_arrays(columns, names=aliases)
    indices = pc.sort_indices(plain, sort_keys=[(alias, "ascending") for alias in aliases])
    order: Int64Array = indices.to_numpy().astype(np.int64)
    return order


class Ordered:
    """A table and the order that its rows shall have; they are taken some at a time.

    Arrow takes rows of a column by joining its chunks first, and texts may not join to more than
    2 GiB. So the chunks are joined once, here, in pieces that are small enough.
    """

    def __init__(self, table: Any, order: Int64Array | None) -> None:
        self.rows: int = table.num_rows
        self._order = order
        widest = max((column.nbytes for column in table.columns), default=0)
        count = 1 if order is None else 1 + widest // PIECE_BYTES
        self._starts = np.array([self.rows * at // count for at in range(count + 1)])
        pieces = [table.slice(a, b - a) for a, b in pairwise(self._starts.tolist())]
        self._pieces = [table] if order is None else [one.combine_chunks() for one in pieces]

    def take(self, start: int, stop: int) -> Any:
        """Rows start..stop in that order."""
        if self._order is None:
            return self._pieces[0].slice(start, stop - start)
        wanted = self._order[start:stop]
        if len(self._pieces) == 1:
            return self._pieces[0].take(pa.array(wanted))
        sources = np.searchsorted(self._starts, wanted, "right") - 1
        positions = [np.nonzero(sources == at)[0] for at in range(len(self._pieces))]
        parts = [
            piece.take(pa.array(wanted[at] - first))
            for piece, at, first in zip(self._pieces, positions, self._starts, strict=False)
        ]
        return pa.concat_tables(parts).take(pa.array(np.argsort(np.concatenate(positions))))


def repeats(table: Any, schema: Schema) -> Any:
    """The rows of a sorted table whose key the row before has too: its key columns."""
    keys = table.select(list(schema.primary_key))
    same = same_as_before(keys, schema)
    return keys.filter(pa.array(same)) if same.any() else keys.slice(0, 0)


def same_as_before(table: Any, schema: Schema) -> npt.NDArray[np.bool_]:
    """Which rows of a sorted table have the key of the row before."""
    same = np.zeros(table.num_rows, dtype=np.bool_)
    if table.num_rows < 2:
        return same
    integers = schema.key_column(table)
    if integers is not None:
        same[1:] = integers.values[1:] == integers.values[:-1]
        return same
    same[1:] = True
    for name in schema.primary_key:
        column = table.column(name).combine_chunks()
        same[1:] &= pc.equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
    return same


def cuts(rows: int, rows_max: int, size_bytes: int = 0) -> list[tuple[int, int]]:
    """(start, stop) of as few pieces as needed, all of nearly the same size.

    With `size_bytes`, the size of all rows, also so many that a piece stays below OBJECT_BYTES.
    """
    if size_bytes > OBJECT_BYTES:
        rows_max = max(1, min(rows_max, rows * OBJECT_BYTES // size_bytes))
    count = -(-rows // rows_max)
    edges = [rows * at // count for at in range(count + 1)] if count else [0]
    return list(pairwise(edges))

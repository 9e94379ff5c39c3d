"""One block of an object as a search sees it: keys, RowIDs, timestamps, and nothing else.

    block --KeyBlock--> find(key)          rows lo..hi of one key, by bisect over cells
                        match(batch, ...)  rows of many keys: merge of integers, hash of others

A composite key is matched by `_pk64` and then compared, since two keys may share a hash; two that
share one inside the batch are looked up one by one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from halocline.objects.batch import KeyBatch
from halocline.objects.columns import COMMIT_TS, PK64, ROWID
from halocline.objects.stats import ObjectFile
from halocline.schema.batches import Int64Array, int64_values
from halocline.schema.schema import Schema

Matches = tuple[Int64Array, Int64Array]
"""Places in a batch, and the rows of the block that hold these keys."""


class KeyBlock:
    """Decoded key columns of one block. Immutable; safe to share between threads."""

    __slots__ = (
        "_column",
        "_first_rowid",
        "_ints",
        "_pk64",
        "_reader",
        "_rowids",
        "_to_int",
        "_view",
        "keys",
        "rows",
        "size_bytes",
        "stamps",
        "start",
    )

    def __init__(self, schema: Schema, cells: Callable[[Any], Any], table: Any, start: int) -> None:
        table = table.combine_chunks()
        keys = table.select(list(schema.primary_key))
        self.start = start
        self.rows: int = table.num_rows
        self.keys = keys
        self._reader = cells(keys.to_batches()[0])
        rowids = _ints(table, ROWID)
        self._first_rowid = int(rowids[0]) if _are_dense(rowids) else -1
        self._rowids = None if self._first_rowid >= 0 else rowids
        self.stamps = _ints(table, COMMIT_TS) if COMMIT_TS in table.column_names else None
        self._pk64 = table.column(PK64).chunk(0) if PK64 in table.column_names else None
        self._column = keys.column(0).chunk(0)
        integers = schema.key_column(keys)
        self._ints = None if integers is None else integers.values
        self._to_int = None if integers is None else integers.to_int
        # Bisecting a memoryview of integers takes 1 us, cells one by one 7.
        self._view = None if integers is None else np.ascontiguousarray(integers.values).data
        # Keys narrower than 64 bits stand here twice.
        widened = self._ints is not None and self._column.type.bit_width < 64
        kept = table if self._rowids is not None else table.drop_columns(ROWID)
        self.size_bytes: int = kept.nbytes + (8 * self.rows if widened else 0)

    def loaded(self) -> tuple[KeyBlock, int]:
        """Itself and its size, as a pool wants them."""
        return self, self.size_bytes

    def rowid(self, row: int) -> int:
        """The RowID of one row."""
        return self._first_rowid + row if self._rowids is None else int(self._rowids[row])

    def rowids_of(self, rows: Int64Array) -> Int64Array:
        """The RowIDs of these rows."""
        return rows + self._first_rowid if self._rowids is None else self._rowids[rows]

    def stamps_of(self, rows: Int64Array, file: ObjectFile) -> Int64Array:
        """The timestamps of these rows: their own, or their object's."""
        if self.stamps is None:
            return np.full(len(rows), file.commit_ts, np.int64)
        return self.stamps[rows]

    def find(self, key: tuple[Any, ...]) -> range:
        """The rows that hold a key, given as a tuple."""
        rows, view = self.rows, self._view
        if view is not None and self._to_int is not None:
            wanted = self._to_int(key[0])
            low = high = bisect_left(view, wanted)
            while high < rows and view[high] == wanted:
                high += 1
            return range(low, high)
        reader = self._reader
        low = high = bisect_left(range(rows), key, key=reader)
        while high < rows and reader(high) == key:
            high += 1
        return range(low, high)

    def left(self, key: tuple[Any, ...]) -> int:
        """How many rows have a lower key, given as a tuple."""
        return self.find(key).start

    def key(self, row: int) -> tuple[Any, ...]:
        """The key of a row, as a tuple."""
        key: tuple[Any, ...] = self._reader(row)
        return key

    def match(self, batch: KeyBatch, ranks: Int64Array) -> Matches:
        """The rows that hold any of the keys at these ranks of a batch."""
        if self._ints is not None and batch.ints is not None:
            return _merged(self._ints, batch.ints[ranks], ranks)
        if self._pk64 is None:
            return _joined(self._column, batch.column.take(pa.array(ranks)), ranks)
        hashes = batch.pk64[ranks] if batch.pk64 is not None else ranks
        if len(np.unique(hashes)) < len(hashes):
            return self._one_by_one(batch, ranks)
        found, rows = _joined(self._pk64, pa.array(hashes), ranks)
        keys = batch.rows(found) if len(found) else []
        same = [self._reader(row) == key for row, key in zip(rows.tolist(), keys, strict=True)]
        return found[same], rows[same]

    def _one_by_one(self, batch: KeyBatch, ranks: Int64Array) -> Matches:
        hits = [
            (rank, row)
            for rank, key in zip(ranks.tolist(), batch.rows(ranks), strict=True)
            for row in self.find(key)
        ]
        pairs = np.array(hits, np.int64).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]


def _are_dense(rowids: Int64Array) -> bool:
    """Do they count up by one, as those of a bulk load do? Then they need no room."""
    return int(rowids[-1]) - int(rowids[0]) == len(rowids) - 1 and bool(
        np.all(rowids[1:] > rowids[:-1])
    )


def _ints(table: Any, name: str) -> Int64Array:
    return int64_values(table.column(name).chunk(0))


def _merged(values: Int64Array, wanted: Int64Array, ranks: Int64Array) -> Matches:
    """Both sides ascend; a value may repeat."""
    low = np.searchsorted(values, wanted, "left")
    inside = np.minimum(low, len(values) - 1)
    hit = values[inside] == wanted
    if not hit.any():
        return ranks[:0], ranks[:0]
    low, found = low[hit], ranks[hit]
    counts = np.searchsorted(values, wanted[hit], "right") - low
    if counts.max() == 1:
        return found, low
    which = np.repeat(np.arange(len(low)), counts)
    within = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    return found[which], low[which] + within


def _joined(values: Any, wanted: Any, ranks: Int64Array) -> Matches:
    """`wanted` has no repeats; a value may."""
    which = pc.index_in(values, value_set=wanted)
    rows = np.flatnonzero(which.is_valid().to_numpy(zero_copy_only=False))
    found = which.drop_null().to_numpy().astype(np.int64)
    return ranks[found], rows

"""Pages: where the rows of L0 are kept.

    ActivePage (row tuples) --full, or a bulk batch arrives--> FrozenPage (one Arrow batch)

Each row version has a RowID; a page holds the versions of one ascending run of RowIDs, so a RowID
finds its row by subtraction. Beside each row stands its commit timestamp. Pages have no other MVCC
header (T-28): that a version ended is written in the deletion buffer, and here only as a mark that
lets scans build their mask without asking the buffer row by row.

Invariants
- Stamps are appended before rows: a reader that takes `len(rows)` once finds a stamp for each.
- Stamps ascend, because RowIDs rise with commit order: what a snapshot sees is a prefix.
- Rows and stamps never change once written; marks are only ever added.
- A frozen page shares the list of marks with the active page it came from, so a delete that races
  with the freeze is seen through both.

Not here: which page holds a RowID (state.py), which versions ended (deletes.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from halocline.schema import Schema

Row = tuple[object, ...]
Int64Array = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_NONE: Int64Array = np.zeros(0, dtype=np.int64)


class Marks:
    """Offsets of rows that ended, and when. Two lists of ints: tuples would burden the collector
    for as long as the page lives."""

    __slots__ = ("offsets", "stamps")

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.stamps: list[int] = []

    def add(self, offset: int, ts: int) -> None:
        self.stamps.append(ts)
        self.offsets.append(offset)

    def until(self, ts: int) -> Int64Array:
        """Offsets of the rows that ended by `ts`."""
        count = len(self.offsets)
        if not count:
            return _NONE
        offsets = np.array(self.offsets[:count], dtype=np.int64)
        return offsets[np.array(self.stamps[:count], dtype=np.int64) <= ts]

    def moved(self, places: Int64Array, kept: Mask) -> Marks:
        """The marks of the rows that are kept, at their new places."""
        fresh = Marks()
        for offset, ts in zip(self.offsets, self.stamps, strict=True):
            if kept[offset]:
                fresh.add(int(places[offset]), ts)
        return fresh


class ActivePage:
    """The page that takes new rows: tuples, one by one."""

    __slots__ = ("_prefix", "marks", "rows", "schema", "stamps", "start")

    def __init__(self, schema: Schema, start: int) -> None:
        self.schema = schema
        self.start = start
        self.rows: list[Row] = []
        self.stamps: list[int] = []
        self.marks = Marks()
        self._prefix: pa.RecordBatch | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def end(self) -> int:
        """One past the last RowID."""
        return self.start + len(self.rows)

    def row(self, rowid: int) -> Row | None:
        """The row of that version, or None when it is not here."""
        offset = rowid - self.start
        return self.rows[offset] if 0 <= offset < len(self.rows) else None

    def stamp(self, rowid: int) -> int:
        return self.stamps[rowid - self.start]

    def batch(self, count: int) -> pa.RecordBatch:
        """The first `count` rows as Arrow; converts only those that are new since last time."""
        prefix = self._prefix
        done = 0 if prefix is None else prefix.num_rows
        if prefix is None or done < count:
            fresh = self.schema.to_arrow(self.rows[done:count])
            prefix = fresh if prefix is None else pa.concat_batches([prefix, fresh])
            self._prefix = prefix
        return prefix if prefix.num_rows == count else prefix.slice(0, count)

    def stamp_array(self, count: int) -> Int64Array:
        return np.array(self.stamps[:count], dtype=np.int64)

    def visible_count(self, count: int, ts: int) -> int:
        """How many of the first `count` rows were committed by `ts`: stamps ascend."""
        return bisect_right(self.stamps, ts, 0, count)

    def rowid_array(self, count: int) -> Int64Array:
        return np.arange(self.start, self.start + count, dtype=np.int64)

    def offsets_of(self, rowids: Int64Array) -> Int64Array:
        """Positions in this page of RowIDs that are known to lie in its range."""
        return rowids - self.start

    def freeze(self) -> FrozenPage:
        """The same rows as one Arrow batch. Only for a page that takes no more rows."""
        count = len(self.rows)
        return FrozenPage(
            self.schema,
            self.start,
            self.batch(count),
            self.stamp_array(count),
            marks=self.marks,
        )


class FrozenPage:
    """A closed page: one Arrow batch, a stamp array (or one stamp for all)."""

    __slots__ = ("_cells", "arrow", "end", "marks", "rowids", "schema", "stamps", "start")

    def __init__(
        self,
        schema: Schema,
        start: int,
        arrow: pa.RecordBatch,
        stamps: Int64Array | int,
        *,
        marks: Marks | None = None,
        rowids: Int64Array | None = None,
        end: int = 0,
    ) -> None:
        self.schema = schema
        self.start = start
        self.arrow = arrow
        self.stamps = stamps
        self.marks = Marks() if marks is None else marks
        self.rowids = rowids  # None: ascending without gaps from `start`
        self.end = end or start + arrow.num_rows
        self._cells: Callable[[int], Row] | None = None

    def __len__(self) -> int:
        return int(self.arrow.num_rows)

    def row(self, rowid: int) -> Row | None:
        """The row of that version, or None when undo GC has removed it."""
        cells = self._cells
        if cells is None:
            cells = self._cells = self.schema.cells(self.arrow)
        if self.rowids is None:
            return cells(rowid - self.start) if self.start <= rowid < self.end else None
        offset = self._search(rowid)
        return cells(offset) if offset >= 0 else None

    def stamp(self, rowid: int) -> int:
        if isinstance(self.stamps, int):
            return self.stamps
        return int(self.stamps[rowid - self.start if self.rowids is None else self._search(rowid)])

    def batch(self, count: int) -> pa.RecordBatch:
        return self.arrow

    def stamp_array(self, count: int) -> Int64Array:
        if isinstance(self.stamps, int):
            return np.full(count, self.stamps, dtype=np.int64)
        return self.stamps

    def visible_count(self, count: int, ts: int) -> int:
        if isinstance(self.stamps, int):
            return count if self.stamps <= ts else 0
        return int(np.searchsorted(self.stamps, ts, side="right"))

    def rowid_array(self, count: int) -> Int64Array:
        if self.rowids is not None:
            return self.rowids
        return np.arange(self.start, self.start + count, dtype=np.int64)

    def offsets_of(self, rowids: Int64Array) -> Int64Array:
        if self.rowids is None:
            return rowids - self.start
        places = np.searchsorted(self.rowids, rowids)
        kept = places < len(self.rowids)
        kept[kept] = self.rowids[places[kept]] == rowids[kept]
        return places[kept]

    def without(self, gone: Mask) -> FrozenPage:
        """The page less some rows. Its range of RowIDs stays; marks move to new positions."""
        kept = ~gone
        places = np.cumsum(kept) - 1
        stamps = self.stamps if isinstance(self.stamps, int) else self.stamps[kept]
        return FrozenPage(
            self.schema,
            self.start,
            self.arrow.filter(pa.array(kept)),
            stamps,
            marks=self.marks.moved(places, kept),
            rowids=self.rowid_array(len(self))[kept],
            end=self.end,
        )

    def _search(self, rowid: int) -> int:
        assert self.rowids is not None
        place = int(np.searchsorted(self.rowids, rowid))
        if place < len(self.rowids) and self.rowids[place] == rowid:
            return place
        return -1


Page = ActivePage | FrozenPage

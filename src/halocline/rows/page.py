"""Pages: where the rows of L0 are kept.

    ActivePage (row tuples) --full, or a bulk batch arrives--> FrozenPage (one Arrow batch)
          '--------- the table is altered ----------------------> AlteredPage (either, shown anew)

Each row version has a RowID; a page holds the versions of one ascending run of RowIDs, so a RowID
finds its row by subtraction. Beside each row stands its commit timestamp. Pages have no other MVCC
header: that a version ended is written in the deletion buffer, and here only as a mark that
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
from collections.abc import Callable, Sequence
from sys import getsizeof
from typing import ClassVar

import numpy as np
import pyarrow as pa

from halocline.schema.batches import BoolArray, Int64Array
from halocline.schema.compiled import Row
from halocline.schema.evolve import carry
from halocline.schema.schema import Schema

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

    def moved(self, places: Int64Array, kept: BoolArray) -> Marks:
        """The marks of the rows that are kept, at their new places."""
        fresh = Marks()
        count = len(self.offsets)
        if count:
            offsets = np.array(self.offsets[:count], dtype=np.int64)
            left = kept[offsets]
            fresh.offsets = places[offsets[left]].tolist()
            fresh.stamps = np.array(self.stamps[:count], dtype=np.int64)[left].tolist()
        return fresh


class ActivePage:
    """The page that takes new rows: tuples, one by one."""

    __slots__ = ("_prefix", "marks", "rows", "schema", "stamps", "start")
    cells: ClassVar[None] = None

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

    @property
    def size_bytes(self) -> int:
        """Memory of the rows, guessed from eight of them."""
        count = len(self.rows)
        sample = self.rows[: count : count // 8 + 1]
        if not sample:
            return 0
        cells = sum(getsizeof(row) + sum(map(getsizeof, row)) for row in sample)
        return count * cells // len(sample)

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
        """Turn the rows into one Arrow batch. Only for a page that takes no more rows."""
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

    __slots__ = (
        "_arrow",
        "_reader",
        "_size_bytes",
        "cells",
        "end",
        "marks",
        "orders",
        "rowids",
        "schema",
        "stamps",
        "start",
    )

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
        self._arrow = arrow
        self.stamps = stamps
        self.marks = Marks() if marks is None else marks
        self.rowids = rowids  # None: ascending without gaps from `start`
        self.end = end or start + arrow.num_rows
        self._reader: Callable[[int], Row] | None = None
        self._size_bytes = 0
        self.orders: dict[tuple[int, ...], tuple[pa.Array, Int64Array]] = {}
        """By columns: keys in their order, and where their rows are. Made for look-ups through an
        index (read/lookup.py), and gone with the page."""
        self.cells: Callable[[int], Row] | None = None
        """Once a row was read, and if no RowID is missing: row by offset (see TableState.row)."""

    def __len__(self) -> int:
        return int(self._arrow.num_rows)

    @property
    def arrow(self) -> pa.RecordBatch:
        """The rows, in the schema of the page."""
        return self._arrow

    @property
    def size_bytes(self) -> int:
        """Memory of the rows; Arrow is asked once, and not under the commit lock."""
        if not self._size_bytes:
            stamps = 0 if isinstance(self.stamps, int) else self.stamps.nbytes
            self._size_bytes = int(self.arrow.nbytes) + stamps
        return self._size_bytes

    def row(self, rowid: int) -> Row | None:
        """The row of that version, or None when undo GC has removed it."""
        reader = self._reader
        if reader is None:
            reader = self._reader = self.schema.cells(self.arrow)
        if self.rowids is None:
            self.cells = reader
            return reader(rowid - self.start) if self.start <= rowid < self.end else None
        offset = self._search(rowid)
        return reader(offset) if offset >= 0 else None

    def stamp(self, rowid: int) -> int:
        """commit_ts of that version; 0 when it is not here any more."""
        offset = rowid - self.start if self.rowids is None else self._search(rowid)
        if offset < 0:
            return 0
        return self.stamps if isinstance(self.stamps, int) else int(self.stamps[offset])

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

    def without(self, gone: BoolArray) -> FrozenPage:
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


class AlteredPage(FrozenPage):
    """A closed page of an older version of the schema, shown in that of another.

    The rows are carried into it when they are first read, and never rewritten: `native` keeps them
    as they came, for older snapshots and for the mover.
    """

    __slots__ = ("_carried", "native")

    def __init__(self, native: Page, schema: Schema) -> None:
        super().__init__(
            schema,
            native.start,
            schema.to_arrow(()),
            native.stamp_array(len(native)),
            marks=native.marks,
            rowids=native.rowids if isinstance(native, FrozenPage) else None,
            end=native.end,
        )
        self.native = native
        self._carried: pa.RecordBatch | None = None

    def __len__(self) -> int:
        return len(self.native)

    @property
    def arrow(self) -> pa.RecordBatch:
        carried = self._carried
        if carried is None:
            native = self.native
            carried = carry(native.batch(len(native)), native.schema, self.schema)
            self._carried = carried
        return carried

    @property
    def size_bytes(self) -> int:
        return self.native.size_bytes

    def without(self, gone: BoolArray) -> AlteredPage:
        native = self.native
        frozen = native.freeze() if isinstance(native, ActivePage) else native
        return AlteredPage(frozen.without(gone), self.schema)


Page = ActivePage | FrozenPage


def native_of(page: Page) -> Page:
    """The page as its rows came."""
    return page.native if isinstance(page, AlteredPage) else page


def shown_in(page: Page, schema: Schema) -> Page:
    """A closed page in the shape of a version that is not older than its rows.

    Rows of a newer version are left as they are: no snapshot of that schema sees them.
    """
    native = native_of(page)
    if native.schema.version >= schema.version:
        return native
    if page.schema.version == schema.version:
        return page
    return AlteredPage(native, schema)


def cut_pages(
    pages: Sequence[Page], ranges: Sequence[tuple[int, int]]
) -> tuple[tuple[Page, ...], list[tuple[Int64Array, Int64Array]]]:
    """Pages less the rows of these RowID ranges; RowIDs and stamps of the rows that are gone."""
    kept: list[Page] = []
    gone: list[tuple[Int64Array, Int64Array]] = []
    for page in pages:
        if not any(start < page.end and page.start < end for start, end in ranges):
            kept.append(page)
            continue
        rowids, stamps = page.rowid_array(len(page)), page.stamp_array(len(page))
        mask = np.zeros(len(rowids), dtype=np.bool_)
        for start, end in ranges:
            mask |= (rowids >= start) & (rowids < end)
        gone.append((rowids[mask], stamps[mask]))
        if not mask.all():
            # Replay may have cut its pages elsewhere than the writer did.
            frozen = page.freeze() if isinstance(page, ActivePage) else page
            kept.append(frozen.without(mask))
    return tuple(kept), gone

"""TableState: everything a reader needs to know of one table, and the fold that makes it.

    commit record --nodes--> TableState.append / update / delete --> pages, memtree, deletion buffer
                             TableState.reshape                   --> pages leave, objects come

State = fold(checkpoint, records). The transaction node calls these three methods right after it
has appended the record to the log; recovery and read-only openers call them with the same nodes
decoded from the log. The fold never reads an object and never looks at the clock, so the same
records give the same state everywhere.

Reading beside the fold needs no lock:
- `last_ts` rises before anything else changes. A reader looks at the table first and at `last_ts`
  after: if that is not above its snapshot, it has seen no half-folded commit.
- Otherwise it decides row by row: a version counts at S iff its stamp <= S and no tombstone of it
  has commit_ts <= S. Stamps are written before rows, rows before the memtree names them.
- `shape` (closed pages, their starts, the active page, the objects) is one immutable tuple that is
  swapped. A reader takes it once, after it has looked at the deletion buffer: what leaves the
  buffer is in the objects of the shape before it goes.

Invariants
- RowIDs rise with commit order; a page covers an ascending range and ranges never overlap.
- Every change happens under the commit lock of the database.
- A RowID below `moved_rowid` is never in L0. A tombstone whose row is in L0 is in memory.

Not here: which columns clash (txn/conflict.py), bytes (nodes.py), undo GC (undo.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from threading import RLock
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from halocline.catalog import TableEntry
from halocline.objects import Finder, Shelf
from halocline.objects.columns import rowid_schema, tombstone_schema
from halocline.objects.stats import FileKind
from halocline.rows.deletes import DeletionBuffer, TombstoneRun
from halocline.rows.memtree import MemTree, Run
from halocline.rows.page import ActivePage, FrozenPage, Int64Array, Page, Row, cut_pages
from halocline.rows.reshape import Reshape
from halocline.rows.tier import Tier


class Shape(NamedTuple):
    """Where the rows are, as one immutable value."""

    starts: tuple[int, ...]
    pages: tuple[Page, ...]
    active: ActivePage
    tier: Tier

    def counted(self) -> list[tuple[Page, int]]:
        """Every page with the number of its rows right now."""
        found: list[tuple[Page, int]] = [(page, len(page)) for page in self.pages]
        count = len(self.active)
        return [*found, (self.active, count)] if count else found


class Ghost(NamedTuple):
    """RowIDs and stamps of rows that left L0 and that the memtree still knows.

    Whoever commits from an older snapshot must learn of these keys without reading a file.
    """

    rowids: Int64Array
    stamps: Int64Array


class TableState:
    """Rows, keys and tombstones of one table in L0, and which objects it has."""

    __slots__ = (
        "_by_rowid",
        "created_at",
        "deletes",
        "dropped_at",
        "entry",
        "finder",
        "flushed_ts",
        "ghosts",
        "key_of",
        "last_ts",
        "moved_rowid",
        "next_rowid",
        "owes",
        "page_rows",
        "schema",
        "shape",
        "shelf",
        "table_id",
        "tree",
        "trimmed_ts",
        "undone",
        "upkeep",
    )

    def __init__(
        self,
        entry: TableEntry,
        *,
        page_rows: int,
        first_rowid: int = 1,
        shelf: Shelf | None = None,
    ) -> None:
        self.table_id = entry.id
        self.schema = entry.schema
        self.set_entry(entry)
        self.key_of = entry.schema.key_of if entry.schema.primary_key else None
        self.page_rows = page_rows
        self.tree = MemTree()
        self.deletes = DeletionBuffer()
        self.shape = Shape((), (), ActivePage(entry.schema, first_rowid), Tier())
        self.shelf = Shelf.in_memory() if shelf is None else shelf
        self.finder = self.shelf.finder(entry.schema) if entry.schema.primary_key else None
        self._by_rowid: dict[FileKind, Finder] = {}
        self.next_rowid = first_rowid
        self.last_ts = 0
        self.undone = 0
        """Counts undo GCs, so that a vectorised look-up can tell that one came between."""
        self.owes = False
        """True when L0 should be looked at after the commit: a closed page waits to be frozen, runs
        wait to be merged, or memory is short."""
        self.moved_rowid = 0
        """Every row of L0 has a RowID at or above this: the pivot."""
        self.flushed_ts = 0
        """All tombstones up to this commit_ts are in objects too."""
        self.ghosts: tuple[Ghost, ...] = ()
        self.trimmed_ts = 0
        """Flushed tombstones up to this commit_ts have left memory, if their rows left L0."""
        self.upkeep = RLock()
        """Held by who moves, trims or collects: one at a time, each outside the commit lock."""

    def set_entry(self, entry: TableEntry) -> None:
        """What the catalog says of the table now."""
        self.entry = entry
        self.created_at = entry.created_at
        self.dropped_at = entry.dropped_at

    # The fold. All three run under the commit lock; `last_ts` is raised by the caller before.

    def append(self, first_rowid: int, rows: Sequence[Row], ts: int) -> None:
        """New versions, row by row: the form small commits have."""
        rowid = first_rowid
        key_of = self.key_of
        for row in rows:
            if key_of is None:
                self._store(rowid, row, ts)
            else:
                self.append_row(rowid, key_of(row), row, ts)
            rowid += 1
        self.next_rowid = rowid

    def append_row(self, rowid: int, key: Any, row: Row, ts: int) -> None:
        """`append` for one row whose key is known: the hot path of single-row commits."""
        active = self.shape.active
        rows = active.rows
        if rowid != active.start + len(rows) or len(rows) >= self.page_rows:
            active = self._close(rowid)
            rows = active.rows
        active.stamps.append(ts)
        rows.append(row)
        self.tree.put(key, rowid)
        self.next_rowid = rowid + 1

    def append_run(self, first_rowid: int, table: pa.Table, run: Run | None, ts: int) -> None:
        """New versions as Arrow: they become frozen pages without being touched (T-20)."""
        self._close()
        starts, pages = [], []
        rowid = first_rowid
        for batch in table.to_batches(max_chunksize=self.page_rows):
            if batch.num_rows:
                starts.append(rowid)
                pages.append(FrozenPage(self.schema, rowid, batch, ts))
                rowid += batch.num_rows
        shape = self.shape
        self.next_rowid = rowid
        self.shape = Shape(
            (*shape.starts, *starts),
            (*shape.pages, *pages),
            ActivePage(self.schema, rowid),
            shape.tier,
        )
        self.owes = True
        if run is not None:
            self.tree.link(run.shifted(first_rowid))

    def update(
        self,
        targets: Sequence[int],
        changed: tuple[int, ...],
        first_rowid: int,
        rows: Sequence[Row],
        ts: int,
    ) -> None:
        """Versions that end and live on as a successor with the same key."""
        rowid = first_rowid
        key_of = self.key_of
        for target, row in zip(targets, rows, strict=True):
            key = None if key_of is None else key_of(row)
            self.update_row(target, changed, rowid, key, row, ts)
            rowid += 1

    def update_row(
        self, target: int, changed: tuple[int, ...], rowid: int, key: Any, row: Row, ts: int
    ) -> None:
        """`update` for one row whose key is known (None: no primary key)."""
        active = self.shape.active
        rows = active.rows
        if rowid != active.start + len(rows) or len(rows) >= self.page_rows:
            active = self._close(rowid)
            rows = active.rows
        active.stamps.append(ts)
        rows.append(row)
        self.deletes.ended[target] = (ts, rowid, changed, key)
        # The memtree is told after page and tombstone: whoever finds the new version in it can
        # walk to the old one.
        if key is not None:
            self.tree.put(key, rowid)
        if target >= active.start:
            active.marks.add(target - active.start, ts)
        else:
            self._mark(target, ts)
        self.next_rowid = rowid + 1

    def update_run(
        self,
        targets: Int64Array,
        changed: tuple[int, ...],
        keys: Sequence[Any],
        first_rowid: int,
        table: pa.Table,
        run: Run | None,
        ts: int,
    ) -> None:
        """The same for many: `targets` ascend and the i-th row of `table` succeeds the i-th."""
        self.append_run(first_rowid, table, run, ts)
        successors = self._arange(first_rowid, len(targets))
        self.deletes.link(
            TombstoneRun.of_commit(targets, ts, keys=keys, successors=successors, changed=changed)
        )

    def delete(self, targets: Sequence[int], keys: Sequence[Any], ts: int) -> None:
        """Versions that end without a successor."""
        ended = self.deletes.ended
        for target, key in zip(targets, keys, strict=True):
            ended[target] = (ts, 0, (), key)
            self._mark(target, ts)
        if not len(ended) % 1024:  # a table that is only deleted from must be looked at too
            self.owes = True

    def end_run(self, run: TombstoneRun) -> None:
        """The same for many, which may live on in objects of the same commit."""
        self.deletes.link(run)
        self.owes = True

    def reshape(self, node: Reshape, ts: int) -> None:
        """Rows leave L0, objects come and go: all of it in one swap of `shape`.

        What the memtree and the deletion buffer still hold of the rows is let go later (trim.py).
        """
        if node.ranges and self.shape.active.start < node.ranges[-1][1]:
            self._close(max(self.shape.active.end, node.ranges[-1][1]))
        shape = self.shape
        tier = shape.tier
        if node.created or node.ended or node.truncate:
            # Tombstone objects outlive TRUNCATE: they may name rows that are still to be moved.
            current = [e.id for e in tier.current() if e.kind == "data"]
            ended = current if node.truncate else node.ended
            tier = tier.with_changes(node.created, ended, ts, truncated=node.truncate)
        pages, ghosts = cut_pages(shape.pages, node.ranges)
        self.ghosts = (*self.ghosts, *(Ghost(*ghost) for ghost in ghosts))
        self.shape = Shape(tuple(page.start for page in pages), pages, shape.active, tier)
        if node.ranges:
            self.moved_rowid = max(self.moved_rowid, node.ranges[-1][1])
            self.next_rowid = max(self.next_rowid, node.ranges[-1][1])
        for entry in node.created:
            if entry.kind == "data":  # RowIDs of a job are not issued again
                self.next_rowid = max(self.next_rowid, entry.stats.rowid_max + 1)
        self.flushed_ts = max(self.flushed_ts, node.flushed_ts)

    def skip_to(self, rowid: int) -> None:
        """Leave a gap: RowIDs below were promised to an earlier epoch or to a job."""
        self.next_rowid = max(self.next_rowid, rowid)

    # Reading helpers.

    def page_of(self, rowid: int) -> Page | None:
        """The page whose range holds the RowID, or None."""
        starts, pages, active, _ = self.shape
        if rowid >= active.start:
            return active if rowid < active.start + len(active.rows) else None
        place = bisect_right(starts, rowid) - 1
        if place < 0:
            return None
        page = pages[place]
        return page if rowid < page.end else None

    def row(self, rowid: int) -> Row | None:
        """The row of a version in L0; None when it has moved or undo GC has removed it."""
        # `page_of` and the usual page in place: a call each, 0.1 us of the 0.6 a point read takes.
        shape = self.shape
        active = shape.active
        if rowid >= active.start:
            return active.row(rowid)
        place = bisect_right(shape.starts, rowid) - 1
        if place < 0:
            return None
        page = shape.pages[place]
        cells = page.cells
        return page.row(rowid) if cells is None or rowid >= page.end else cells(rowid - page.start)

    def stamp(self, rowid: int) -> int:
        """commit_ts of a version that the memtree knows; 0 when it moved so long ago that every
        open transaction that may write began after it."""
        page = self.page_of(rowid)
        stamp = 0 if page is None else page.stamp(rowid)
        if stamp:
            return stamp
        for ghost in self.ghosts:
            place = int(ghost.rowids.searchsorted(rowid))
            if place < len(ghost.rowids) and ghost.rowids[place] == rowid:
                return int(ghost.stamps[place])
        return 0

    def locate(self, key: Any, ts: int) -> int:
        """RowID of the version of `key` in L0 that is visible at `ts`, 0 when there is none."""
        for rowid in self.tree.versions(key):
            # The tombstone is read before the page: undo GC swaps the page before it forgets
            # the tombstone, so a version without either is one that ended long ago, or moved.
            tombstone = self.deletes.find(rowid)
            page = self.page_of(rowid)
            if page is None or page.row(rowid) is None:
                return 0
            if page.stamp(rowid) <= ts:
                return rowid if tombstone is None or tombstone.commit_ts > ts else 0
        return 0

    def pages(self) -> list[tuple[Page, int]]:
        """Every page with the number of its rows right now."""
        return self.shape.counted()

    def finder_by_rowid(self, kind: FileKind) -> Finder:
        """Searches tombstone objects, or data objects of a table without a key, by RowID."""
        finder = self._by_rowid.get(kind)
        if finder is None:
            make = tombstone_schema if kind == "tombstone" else rowid_schema
            finder = self._by_rowid[kind] = self.shelf.finder(make(self.schema))
        return finder

    def close_page(self) -> None:
        """Close the active page if it has rows. Caller holds the commit lock."""
        if len(self.shape.active):
            self._close()

    # Private.

    def _store(self, rowid: int, row: Row, ts: int) -> None:
        active = self.shape.active
        rows = active.rows
        if rowid != active.start + len(rows) or len(rows) >= self.page_rows:
            active = self._close(rowid)
            rows = active.rows
        active.stamps.append(ts)
        rows.append(row)

    def _close(self, next_start: int = 0) -> ActivePage:
        """Put the active page among the closed ones and start another."""
        shape = self.shape
        fresh = ActivePage(self.schema, next_start or shape.active.end)
        if len(shape.active):
            starts, pages = (*shape.starts, shape.active.start), (*shape.pages, shape.active)
            self.shape = Shape(starts, pages, fresh, shape.tier)
            self.owes = True
        else:
            self.shape = Shape(shape.starts, shape.pages, fresh, shape.tier)
        return fresh

    def _mark(self, target: int, ts: int) -> None:
        page = self.page_of(target)
        if page is not None:
            if isinstance(page, FrozenPage) and page.rowids is not None:
                for offset in page.offsets_of(self._arange(target, 1)):
                    page.marks.add(int(offset), ts)
            else:
                page.marks.add(target - page.start, ts)

    @staticmethod
    def _arange(first: int, count: int) -> Int64Array:
        return np.arange(first, first + count, dtype=np.int64)

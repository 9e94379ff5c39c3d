"""TableState: everything a reader needs to know of one table, and the fold that makes it.

    commit record --node--> TableState.fold    --> pages, memtree, deletion buffer
                            TableState.reshape --> pages leave, objects come

State = fold(checkpoint, records). `fold` is the only function that adds rows, keys and tombstones
(a test looks for others). Whoever commits calls it with the nodes of its record, before the record
is appended to the log; recovery and followers call it with the same nodes, decoded from the log.
The fold never reads an object and never looks at the clock, so the same records give the same
state everywhere.

Reading beside the fold needs no lock:
- `last_ts` rises before anything else changes. A reader looks at the table first and at `last_ts`
  after: if that is not above its snapshot, it has seen no half-folded commit.
- Otherwise it decides row by row: a version counts at S iff its stamp <= S and no tombstone of it
  has commit_ts <= S. Stamps are written before rows, rows before the memtree names them.
- `shape` (closed pages, their starts, the active page, the objects) is one immutable tuple that is
  swapped. A reader takes it once, after it has looked at the deletion buffer: what leaves the
  buffer is in the objects of the shape before it goes.

A state speaks one version of the schema for ever. When the table is altered, another state takes
over (`succeed`), and this one becomes a PastState: a view of its successor in the old shape, which
is what transactions that hold it, and snapshots from before, go on reading.

Invariants
- RowIDs rise with commit order; a page covers an ascending range and ranges never overlap.
- Every change happens under the commit lock of the database.
- A RowID below `moved_rowid` is never in L0. A tombstone whose row is in L0 is in memory.

Not here: which columns clash (txn/conflict.py), bytes (nodes.py), undo GC (undo.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import repeat
from threading import RLock
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from halocline.catalog import TableEntry
from halocline.errors import ConflictError, CorruptionError
from halocline.objects import Finder, Shelf
from halocline.objects.columns import rowid_schema, tombstone_schema
from halocline.objects.stats import FileKind
from halocline.rows.deletes import DeletionBuffer, TombstoneRun
from halocline.rows.memtree import MemTree, Run
from halocline.rows.nodes import Append, Delete, RowNode, Update
from halocline.rows.page import (
    ActivePage,
    AlteredPage,
    FrozenPage,
    Page,
    cut_pages,
    native_of,
    shown_in,
)
from halocline.rows.reshape import Reshape
from halocline.rows.sequence import KeySequence
from halocline.rows.tier import Tier
from halocline.schema.batches import Int64Array
from halocline.schema.compiled import Row
from halocline.schema.evolve import widened
from halocline.schema.schema import Schema

_MOVING: Final = (
    "flushed_ts",
    "ghosts",
    "last_ts",
    "moved_rowid",
    "next_rowid",
    "trimmed_ts",
    "undone",
)
"""What changes in a state besides its shape, and passes on to its successor."""


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

    A commit from an older snapshot must learn of these keys without reading a file.
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
        "newest",
        "next_rowid",
        "owes",
        "page_rows",
        "pasts",
        "schema",
        "sequence",
        "shape",
        "shelf",
        "shown",
        "table_id",
        "tree",
        "trimmed_ts",
        "turn",
        "undone",
        "valid_from",
        "valid_until",
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
        self.newest: TableState = self
        """Who holds the rows: this state, until the table is altered."""
        self.pasts: dict[int, TableState] = {}
        """Views of this state in older versions of the schema."""
        self.shown: tuple[Shape, Shape] | None = None
        """Of a PastState: the newest shape, and what it made of that."""
        self.valid_from = entry.versions()[-1].commit_ts
        self.set_entry(entry)
        self.key_of = entry.schema.key_of if entry.schema.primary_key else None
        self.sequence: KeySequence | None = None
        """Of a table with an identity column: set by the engine, which keeps it."""
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
        self.turn = RLock()
        """Held by who moves, trims or collects: one at a time, each outside the commit lock."""

    def set_entry(self, entry: TableEntry) -> None:
        """What the catalog says of the table now."""
        self.entry = entry
        self.created_at = entry.created_at
        self.dropped_at = entry.dropped_at
        self.valid_until = entry.dropped_at
        """Snapshots from `valid_from` on and before this see the table in this schema."""
        self.valid_from = entry.versions()[-1].commit_ts

    # The fold, under the commit lock.

    def fold(self, node: RowNode, ts: int, count: int = 1) -> None:
        """Apply one node of the commits `ts` to `ts + count - 1`.

        With more than one commit, row i of the node belongs to the i-th of them.
        """
        last = ts + count - 1
        if last > self.last_ts:
            self.last_ts = last  # first: see above on reading beside the fold
        if isinstance(node, Append):
            if self.sequence is not None:
                self.sequence.see_rows(node, self.row_key_of)
            if node.table is not None:
                self._append_run(node.first_rowid, node.table, node.run, ts)
            elif count == len(node.keys) == 1:
                self._append_row(node.first_rowid, node.keys[0], node.rows[0], ts)
            else:
                self._append(node, ts, count)
        elif isinstance(node, Update):
            if node.table is not None:
                self._update_run(node, ts)
            elif len(node.keys) == 1:
                target, key, row = node.targets[0], node.keys[0], node.rows[0]
                self._update_row(target, node.changed, node.first_rowid, key, row, ts)
            else:
                self._update(node, ts)
        elif isinstance(node.targets, np.ndarray):
            self._link(node, node.targets, node.successors, ts)
            self.owes = True
        else:
            self._delete(node, ts)

    def _append_row(self, rowid: int, key: Any, row: Row, ts: int) -> None:
        """`_append` of one row whose key is known: 0.6 us less of the 6 that its commit takes."""
        active = self.shape.active
        rows = active.rows
        if rowid != active.start + len(rows) or len(rows) >= self.page_rows:
            active = self._close(rowid)
            rows = active.rows
        active.stamps.append(ts)
        rows.append(row)
        self.tree.put(key, rowid)
        self.next_rowid = rowid + 1

    def _append(self, node: Append, ts: int, count: int) -> None:
        """New versions, row by row: the form that small commits have."""
        rows, first, key_of = node.rows, node.first_rowid, self.row_key_of
        many = len(rows)
        self._store(first, rows, range(ts, ts + count) if count > 1 else (ts,) * many)
        if key_of is not None:
            put = self.tree.put
            for rowid, key in enumerate(node.keys or map(key_of, rows), first):
                put(key, rowid)
        self.next_rowid = first + many

    def _append_run(self, first_rowid: int, table: pa.Table, run: Run | None, ts: int) -> None:
        """New versions as Arrow: they become frozen pages without being touched."""
        self._close()
        starts, pages = [], []
        rowid, schema = first_rowid, self.shape.active.schema
        for batch in table.to_batches(max_chunksize=self.page_rows):
            if batch.num_rows:
                starts.append(rowid)
                pages.append(self._shown(FrozenPage(schema, rowid, batch, ts)))
                rowid += batch.num_rows
        shape = self.shape
        self.next_rowid = rowid
        self.shape = Shape(
            (*shape.starts, *starts),
            (*shape.pages, *pages),
            ActivePage(schema, rowid),
            shape.tier,
        )
        self.owes = True
        if run is not None:
            self.tree.link(run.shifted(first_rowid))

    def _update(self, node: Update, ts: int) -> None:
        """Versions that end and live on as a successor with the same key, row by row."""
        key_of = self.row_key_of
        for rowid, (target, row) in enumerate(
            zip(node.targets, node.rows, strict=True), node.first_rowid
        ):
            key = None if key_of is None else key_of(row)
            self._update_row(target, node.changed, rowid, key, row, ts)

    def _update_row(
        self, target: int, changed: tuple[int, ...], rowid: int, key: Any, row: Row, ts: int
    ) -> None:
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

    def _update_run(self, node: Update, ts: int) -> None:
        """Many versions whose targets ascend: the i-th row of the table succeeds the i-th."""
        assert node.table is not None
        first = node.first_rowid
        self._append_run(first, node.table, node.run, ts)
        self._link(node, np.asarray(node.targets), self._arange(first, node.count), ts)

    def _delete(self, node: Delete, ts: int) -> None:
        """Versions that end, row by row."""
        ended, changed = self.deletes.ended, node.changed
        successors = repeat(0) if node.successors is None else node.successors
        for target, key, successor in zip(node.targets, node.keys, successors, strict=False):
            ended[target] = (ts, int(successor), changed, key)
            self._mark(target, ts)
        if not len(ended) % 1024:  # a table that is only deleted from must be looked at too
            self.owes = True

    def _link(
        self,
        node: Update | Delete,
        targets: Int64Array,
        successors: Sequence[int] | Int64Array | None,
        ts: int,
    ) -> None:
        """Many versions that end; some may live on in objects of the same commit."""
        after = None if successors is None else np.asarray(successors, dtype=np.int64)
        run = TombstoneRun.of_commit(
            targets, ts, keys=node.keys, successors=after, changed=node.changed
        )
        self.deletes.link(run)

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
            tier = tier.with_changes(
                node.created, ended, ts, truncated=node.truncate, indexes=self.index_ids
            )
        pages, ghosts = cut_pages(shape.pages, node.ranges)
        self.ghosts = (*self.ghosts, *(Ghost(*ghost) for ghost in ghosts))
        self.shape = Shape(tuple(page.start for page in pages), pages, shape.active, tier)
        if node.ranges:
            self.moved_rowid = max(self.moved_rowid, node.ranges[-1][1])
            self.next_rowid = max(self.next_rowid, node.ranges[-1][1])
        for entry in node.created:
            if entry.kind == "data":  # RowIDs of a job are not issued again
                self.next_rowid = max(self.next_rowid, entry.stats.rowid_max + 1)
                if self.sequence is not None:
                    self.sequence.see_object(entry.stats.key_max)
        self.flushed_ts = max(self.flushed_ts, node.flushed_ts)

    @property
    def index_ids(self) -> frozenset[int]:
        """Ids of the indexes that the table has now."""
        return frozenset(index.id for index in self.entry.indexes)

    def end_indexes(self, ts: int) -> None:
        """Index objects of indexes that are not defined any more end: by DDL at `ts`."""
        shape = self.shape
        tier = shape.tier.with_indexes(self.index_ids, ts)
        if tier is not shape.tier:
            self.shape = shape._replace(tier=tier)

    # Versions of the schema.

    def succeed(self, entry: TableEntry) -> TableState:
        """The state of the altered table, which holds everything from now on."""
        fresh = TableState(
            entry, page_rows=self.page_rows, first_rowid=self.next_rowid, shelf=self.shelf
        )
        for name in _MOVING:
            setattr(fresh, name, getattr(self, name))
        fresh.tree, fresh.deletes, fresh.turn = self.tree, self.deletes, self.turn
        fresh.sequence = self.sequence
        self._close()
        pages = tuple(AlteredPage(native_of(page), entry.schema) for page in self.shape.pages)
        active = ActivePage(entry.schema, self.shape.active.start)
        fresh.shape = Shape(self.shape.starts, pages, active, self.shape.tier)
        fresh.owes = True
        fresh.pasts = {**self.pasts, self.schema.version: self}
        self.valid_until = fresh.valid_from
        for past in fresh.pasts.values():
            past.newest = fresh
        self.pasts = {}
        # In one step for readers that hold it: from here on it reads what its successor has.
        self.__class__ = PastState
        return fresh

    def at_version(self, version: int) -> TableState:
        """The table as a version of its schema shows it."""
        newest = self.newest
        if version == newest.schema.version:
            return newest
        past = newest.pasts.get(version)
        if past is None:
            past = newest.pasts.setdefault(version, _past(newest, version))
        return past

    def schema_at(self, version: int) -> Schema:
        """The schema that rows of a version were written in."""
        schema = self.entry.schema_at(version)
        if schema is None:
            reason = f"table {self.table_id} has no version {version} of its schema"
            raise CorruptionError("log", reason)
        return self.schema if schema.version == self.schema.version else schema

    def check_version(self, version: int) -> None:
        """ConflictError when a commit was prepared in another version of the schema."""
        if version != self.schema.version:
            raise ConflictError(
                "the table was altered by another transaction",
                table=self.entry.name,
                winner_ts=self.valid_from,
            )

    @property
    def row_key_of(self) -> Callable[[Row], Any] | None:
        """`key_of` for rows that are folded now; in replay they may be of an older version."""
        return None if self.key_of is None else self.shape.active.schema.key_of

    def open_page(self, version: int) -> None:
        """Rows of this version come next: replay meets those of older ones."""
        if self.shape.active.schema.version != version:
            self._close()
            active = ActivePage(self.schema_at(version), self.shape.active.start)
            self.shape = self.shape._replace(active=active)

    def kept_schema(self, floor: int) -> Schema:
        """The newest schema, and what snapshots from the floor on show besides."""
        versions = self.entry.versions()
        ends = [one.commit_ts for one in versions[1:]]
        seen = [one.schema for one, end in zip(versions, ends, strict=False) if end > floor]
        return widened(self.schema, seen)

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

    def _store(self, rowid: int, rows: Sequence[Row], stamps: Sequence[int]) -> None:
        """Rows of consecutive RowIDs, into the active page and as many others as they need."""
        at, many = 0, len(rows)
        while at < many:
            active = self.shape.active
            held = len(active.rows)
            if rowid + at != active.start + held or held >= self.page_rows:
                active = self._close(rowid + at)
                held = 0
            end = min(many, at + self.page_rows - held)
            active.stamps.extend(stamps[at:end])
            active.rows.extend(rows[at:end])
            at = end

    def _close(self, next_start: int = 0) -> ActivePage:
        """Put the active page among the closed ones and start another."""
        shape = self.shape
        active = shape.active
        fresh = ActivePage(active.schema, next_start or active.end)
        if len(active):
            starts, pages = (*shape.starts, active.start), (*shape.pages, self._shown(active))
            self.shape = Shape(starts, pages, fresh, shape.tier)
            self.owes = True
        else:
            self.shape = Shape(shape.starts, shape.pages, fresh, shape.tier)
        return fresh

    def _shown(self, page: Page) -> Page:
        schema = self.schema
        return page if page.schema.version == schema.version else AlteredPage(page, schema)

    def _mark(self, target: int, ts: int) -> None:
        active = self.shape.active
        if 0 <= target - active.start < len(active.rows):
            active.marks.add(target - active.start, ts)
            return
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


class PastState(TableState):
    """A table as an older version of its schema shows it. What changes is asked of the newest."""

    __slots__ = ()

    def past_shape(self) -> Shape:
        """The newest shape, its pages in this schema."""
        newest, shown = self.newest.shape, self.shown
        if shown is None or shown[0] is not newest:
            active, schema = newest.active, self.schema
            # Its rows are newer than every snapshot of this schema: only their number counts.
            view = ActivePage(schema, active.start)
            view.rows, view.stamps, view.marks = active.rows, active.stamps, active.marks
            pages = tuple(shown_in(page, schema) for page in newest.pages)
            shown = newest, Shape(newest.starts, pages, view, newest.tier)
            self.shown = shown
        return shown[1]


class NextState(PastState):
    """A table as a version that has not committed yet shows it, to the transaction that alters it.

    Others go on writing rows of the newest version; what they add is shown when it is there.
    """

    __slots__ = ()

    def past_shape(self) -> Shape:
        newest, shown, schema = self.newest.shape, self.shown, self.schema
        active = newest.active
        if shown is None or shown[0] is not newest or shown[1].active.start != active.end:
            pages = [shown_in(page, schema) for page in newest.pages]
            starts, frozen = list(newest.starts), active.freeze()
            if len(frozen):
                starts.append(frozen.start)
                pages.append(AlteredPage(frozen, schema))
            view = ActivePage(schema, frozen.end)
            shown = newest, Shape(tuple(starts), tuple(pages), view, newest.tier)
            self.shown = shown
        return shown[1]


def next_state(newest: TableState, entry: TableEntry) -> TableState:
    """A view of a table in the shape of an entry that has not committed yet."""
    return _view(newest, entry, NextState)


def _view(newest: TableState, entry: TableEntry, kind: type[PastState]) -> TableState:
    view = TableState(entry, page_rows=newest.page_rows, shelf=newest.shelf)
    view.tree, view.deletes, view.turn = newest.tree, newest.deletes, newest.turn
    view.sequence = newest.sequence
    view.newest = newest
    view.__class__ = kind
    return view


def _past(newest: TableState, version: int) -> TableState:
    """The view that a state which was not there at that time would have left."""
    versions = newest.entry.versions()
    shown = versions[version]
    entry = replace(newest.entry, schema=shown.schema, name=shown.name)
    past = _view(newest, entry, PastState)
    past.valid_from = versions[version].commit_ts
    past.valid_until = versions[version + 1].commit_ts
    return past


def _of_newest(name: str) -> property:
    def change(self: TableState, value: Any) -> None:
        setattr(self.newest, name, value)

    return property(lambda self: getattr(self.newest, name), change)


_VIEWS: Final = {name: _of_newest(name) for name in (*_MOVING, "owes", "created_at", "dropped_at")}
for _name, _property in (
    *_VIEWS.items(),
    ("shape", property(lambda self: self.past_shape())),
):
    setattr(PastState, _name, _property)

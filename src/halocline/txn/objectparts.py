"""Object parts: what a transaction has written into objects before its commit.

    large insert  --> data objects                         every row has its RowID already
    large delete  --> tombstone objects
    large update  --> data objects of successors + tombstone objects that name them

The files have no `_commit_ts`: all their rows begin, or end, when the entry is created. Nobody else
knows them before that. If the transaction is given up, so is its job, and GC removes the files.

A row in one of these objects cannot be taken back, so deleting or replacing it later in the same
transaction gives it a tombstone of the same commit_ts: it is born dead and nobody ever sees it. A
tombstone can: it is `dropped`, and its file is written again without it before the commit.

Invariants
- RowIDs of our rows belong to this transaction alone, and have no gap within an object.
- Any other RowID stands in at most one ending and is not dropped there, or in none.

Not here: writing the files (bulk.py), the rest of the workspace (workspace.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from halocline.catalog.entries import ObjectEntry
from halocline.objects import JobWriter, ObjectFile
from halocline.objects.columns import ROWID
from halocline.objects.shelf import job_in
from halocline.rows.members import is_among
from halocline.rows.nodes import Delete, RowNode
from halocline.rows.reshape import Reshape
from halocline.rows.resident import resident, take
from halocline.rows.state import TableState
from halocline.rows.system import JobNode
from halocline.schema.batches import BoolArray, Int64Array
from halocline.schema.compiled import Row
from halocline.txn.ends import Ends


class Ending:
    """One tombstone object before its commit: its file and what it ends.

    What others have written is read when somebody asks for it, which often nobody does.
    """

    __slots__ = ("_ends", "_read", "entry")

    def __init__(
        self, entry: ObjectEntry, ends: Ends | None, read: Callable[[], Ends] | None = None
    ) -> None:
        self.entry = entry
        self._ends, self._read = ends, read

    @property
    def ends(self) -> Ends:
        """The versions that end."""
        if self._ends is None:
            assert self._read is not None
            self._ends = self._read()
        return self._ends

    def __len__(self) -> int:
        """How many versions end here."""
        return self.entry.stats.rows if self._ends is None else len(self._ends)

    @property
    def stale(self) -> bool:
        """Does the file hold a tombstone that was dropped?"""
        return self._ends is not None and bool(self._ends.dropped)

    def replace(self, other: Ending) -> None:
        """The file was written again, without what was dropped."""
        self.entry, self._ends = other.entry, other.ends


class Origin(NamedTuple):
    """The committed version that one of our successors replaces."""

    target: int
    changed: frozenset[int]


class WrittenFiles(NamedTuple):
    """The objects that will join the table."""

    inserts: tuple[ObjectEntry, ...] = ()
    successors: tuple[ObjectEntry, ...] = ()
    endings: tuple[Ending, ...] = ()


class ObjectParts:
    """Data and tombstone objects of one transaction in one table."""

    __slots__ = ("files", "handed_in", "indexes", "job", "state", "writer", "written")

    def __init__(self, state: TableState) -> None:
        self.state = state
        self.job: JobNode | None = None
        """The transaction's own job; it has one as soon as it writes a file itself."""
        self.writer: JobWriter | None = None
        """The writer of that job."""
        self.handed_in: list[JobNode] = []
        """Jobs of others whose files have joined; they are over when the transaction is."""
        self.files = WrittenFiles()
        self.indexes: list[ObjectEntry] = []
        """Index objects of data objects of ours, written before the commit."""
        self.written: set[int] = set()
        """Ids of the columns that a job has values for; empty: all of its version."""

    def __bool__(self) -> bool:
        return bool(self.inserts or self.endings)

    @property
    def inserts(self) -> Sequence[ObjectEntry]:
        """Data objects with rows that the table has not."""
        return self.files.inserts

    @property
    def successors(self) -> Sequence[ObjectEntry]:
        """Data objects with rows that take the place of others."""
        return self.files.successors

    @property
    def endings(self) -> Sequence[Ending]:
        """Tombstone objects."""
        return self.files.endings

    @property
    def data(self) -> Sequence[ObjectEntry]:
        """Every data object."""
        return self.files.inserts + self.files.successors

    @property
    def started(self) -> list[JobNode]:
        """The jobs that are over when the transaction is, whatever becomes of it.

        One with a lease was started by somebody else, who may commit again what failed.
        """
        mine = [] if self.job is None else [self.job]
        return [job for job in (*mine, *self.handed_in) if not job.lease_us]

    @property
    def jobs(self) -> set[int]:
        """Every job that has to be live at the commit: those above, and those of the files."""
        entries = [*self.data, *(one.entry for one in self.endings)]
        return {job.job_id for job in self.started} | {job_in(entry.id) for entry in entries}

    def add(
        self,
        inserts: Sequence[ObjectEntry] = (),
        successors: Sequence[ObjectEntry] = (),
        endings: Sequence[Ending] = (),
    ) -> None:
        """WrittenFiles that are written become part of the workspace."""
        old, added = self.files, WrittenFiles(tuple(inserts), tuple(successors), tuple(endings))
        self.files = WrittenFiles(
            old.inserts + added.inserts,
            old.successors + added.successors,
            old.endings + added.endings,
        )

    # Reading.

    def owns(self, rowid: int) -> bool:
        """Is it the RowID of a row in one of our objects?"""
        return any(one.stats.rowid_min <= rowid <= one.stats.rowid_max for one in self.data)

    def owned(self, rowids: Int64Array) -> BoolArray:
        """Which of these RowIDs are rows of ours."""
        mask = np.zeros(len(rowids), dtype=np.bool_)
        for entry in self.data:
            mask |= (rowids >= entry.stats.rowid_min) & (rowids <= entry.stats.rowid_max)
        return mask

    def find(self, key: Any) -> list[tuple[int, Row]]:
        """RowID and row of every version of the key that stands in our objects."""
        finder = self.state.finder
        assert finder is not None
        found = []
        key_bytes = self.state.schema.key_bytes(key)
        for entry in meeting(self.data, key_bytes, key_bytes):
            hits = finder.find(file_of(entry), key)
            found += [(hit.rowid, hit.row) for hit in hits]
        return found

    def may_hold(self, key: Any) -> bool:
        """Can the key be in a data object of ours? Reads no file."""
        finder = self.state.finder
        assert finder is not None
        return any(finder.may_hold(file_of(entry), key) for entry in self.inserts)

    def row(self, rowid: int) -> Row:
        """One of our rows. Its RowID tells its number: they were given in the order of the file."""
        (entry,) = [e for e in self.data if e.stats.rowid_min <= rowid <= e.stats.rowid_max]
        schema, finder = self.state.schema, self.state.finder
        number = np.array([rowid - entry.stats.rowid_min], dtype=np.int64)
        if finder is not None:
            table = finder.take(file_of(entry), number)
        else:
            table = self.state.shelf.reader.take(file_of(entry), schema, number, hidden=())
        (row,) = schema.from_table(table)
        return row

    def between(
        self, low: Any, high: Any, without: Int64Array, *, reverse: bool, limit: int | None
    ) -> list[pa.Table]:
        """Our rows with low <= key < high, less the versions in `without`, which ascend.

        With a limit only so many of each object as can be among the first so many of all.
        """
        schema, finder, reader = self.state.schema, self.state.finder, self.state.shelf.reader
        assert finder is not None
        found = []
        for entry in self.data:
            file = file_of(entry)
            begin = 0 if low is None else finder.bound(file, low)
            end = entry.stats.rows if high is None else finder.bound(file, high)
            if limit is not None:
                ids = [entry.stats.rowid_min, entry.stats.rowid_max + 1]
                first, last = np.searchsorted(without, ids).tolist()
                count = limit + last - first
                if reverse:
                    begin = max(begin, end - count)
                else:
                    end = min(end, begin + count)
            if begin < end:
                table = reader.read(file, schema, hidden=[ROWID], rows=[range(begin, end)])
                alive = ~is_among(table.column(ROWID).to_numpy(), without)
                found.append(table.filter(pa.array(alive)).drop_columns(ROWID))
        return found

    # What ends.

    def origin(self, rowid: int) -> Origin | None:
        """Whom our row succeeds; None for a row that was inserted."""
        wanted = np.array([rowid], dtype=np.int64)
        for one in self.endings:
            place = int(one.ends.succeeded_by(wanted)[0])
            if place >= 0:
                return Origin(int(one.ends.rowids[place]), one.ends.changed)
        return None

    # Committing.

    def ends_in_pages(self, state: TableState) -> list[RowNode]:
        """Tombstones of ours whose rows are in L0: these have to be in memory, too."""
        shape = state.shape
        nodes: list[RowNode] = []
        for one in self.endings:
            low, high = one.entry.stats.rowid_min, one.entry.stats.rowid_max
            if not any(p.start <= high and p.end > low for p in (*shape.pages, shape.active)):
                continue
            ends = one.ends
            places = ends.kept()
            places = places[resident(shape, ends.rowids[places])]
            if not len(places):
                continue
            targets = ends.rowids[places]
            alive = [state.deletes.find(rowid) is None for rowid in targets.tolist()]
            places, targets = places[alive], targets[alive]
            keys = state.schema.keys_of(take(shape, targets, state.schema.primary_key))
            node = Delete(state.table_id, targets, keys)
            if ends.successors is not None:
                node.successors = ends.successors[places]
                node.changed = state.schema.ids_of(ends.changed)
            nodes.append(node)
        return nodes

    def reshape(self, *, truncate: bool = False) -> Reshape:
        """What the commit record says of our objects."""
        kept = [one.entry for one in self.endings if len(one)]
        return Reshape(
            self.state.table_id, created=[*self.data, *kept, *self.indexes], truncate=truncate
        )


def file_of(entry: ObjectEntry) -> ObjectFile:
    """The file behind an entry; every data and tombstone object has one."""
    assert entry.file is not None
    return entry.file


def meeting(entries: Sequence[ObjectEntry], low: bytes, high: bytes) -> list[ObjectEntry]:
    """Data objects whose key range meets [low, high]."""
    return [e for e in entries if e.stats.key_min <= high and e.stats.key_max >= low]

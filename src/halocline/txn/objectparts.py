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
from pyroaring import BitMap

from halocline.catalog.entries import ObjectEntry
from halocline.objects import JobWriter, ObjectFile
from halocline.objects.columns import ROWID
from halocline.objects.shelf import job_in
from halocline.rows.members import is_among
from halocline.rows.nodes import Delete, Node
from halocline.rows.page import Int64Array, Mask, Row
from halocline.rows.reshape import Reshape
from halocline.rows.resident import resident, take
from halocline.rows.state import TableState
from halocline.rows.system import JobNode
from halocline.rows.tier import Tier

NONE: Int64Array = np.zeros(0, dtype=np.int64)


class Content(NamedTuple):
    """What a tombstone object says."""

    targets: Int64Array
    """RowIDs of the versions that end, ascending."""
    successors: Int64Array | None
    """RowIDs of the versions that follow; None when the rows are deleted."""
    changed: frozenset[int]
    """Positions of the columns that an update wrote."""


class Ending:
    """One tombstone object before its commit: versions that end, and what follows.

    What others have written is read when somebody asks for it, which often nobody does.
    """

    __slots__ = ("_content", "_read", "dropped", "entry", "stale")

    def __init__(
        self, entry: ObjectEntry, content: Content | None, read: Callable[[], Content] | None = None
    ) -> None:
        self.entry = entry
        self._content, self._read = content, read
        self.dropped = BitMap()
        self.stale = False
        """True while the file still holds a tombstone that was dropped."""

    @property
    def content(self) -> Content:
        if self._content is None:
            assert self._read is not None
            self._content = self._read()
        return self._content

    @property
    def targets(self) -> Int64Array:
        return self.content.targets

    @property
    def successors(self) -> Int64Array | None:
        return self.content.successors

    @property
    def changed(self) -> frozenset[int]:
        return self.content.changed

    def __len__(self) -> int:
        """How many versions end here."""
        return self.entry.stats.rows - len(self.dropped)

    def find(self, rowid: int) -> int:
        """The place of a version that ends here, -1 when there is none."""
        place = int(self.targets.searchsorted(rowid))
        hit = place < len(self.targets) and self.targets[place] == rowid
        return place if hit and place not in self.dropped else -1

    def drop(self, places: Sequence[int]) -> None:
        """These versions do not end here after all."""
        self.dropped.update(places)
        self.stale = True

    def kept(self) -> Int64Array:
        """Places that were not dropped."""
        mask = np.ones(self.entry.stats.rows, dtype=np.bool_)
        if self.dropped:
            mask[np.fromiter(self.dropped, np.int64, len(self.dropped))] = False
        return np.nonzero(mask)[0]

    def replace(self, other: Ending) -> None:
        """The file was written again, without what was dropped."""
        self.entry, self._content = other.entry, other.content
        self.dropped.clear()


class Origin(NamedTuple):
    """The committed version that one of our successors replaces."""

    target: int
    changed: frozenset[int]


class ObjectParts:
    """Data and tombstone objects of one transaction in one table."""

    __slots__ = (
        "_tier",
        "endings",
        "handed_in",
        "inserts",
        "job",
        "state",
        "successors",
        "writer",
    )

    def __init__(self, state: TableState) -> None:
        self.state = state
        self.job: JobNode | None = None
        """The transaction's own job; it has one as soon as it writes a file itself."""
        self.writer: JobWriter | None = None
        """The writer of that job."""
        self.handed_in: list[JobNode] = []
        """Jobs of others whose files have joined; they are over when the transaction is."""
        self.inserts: list[ObjectEntry] = []
        self.successors: list[ObjectEntry] = []
        self.endings: list[Ending] = []
        self._tier = Tier()

    def __bool__(self) -> bool:
        return bool(self.inserts or self.endings)

    @property
    def data(self) -> list[ObjectEntry]:
        """Every data object."""
        return [*self.inserts, *self.successors]

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
        """Files that are written become part of the workspace."""
        self.inserts += inserts
        self.successors += successors
        self.endings += endings
        self._tier = Tier(self.data)

    def reset(
        self,
        inserts: list[ObjectEntry],
        successors: list[ObjectEntry],
        endings: list[Ending],
    ) -> None:
        """Back to what it was before a call that failed; the job and its RowIDs stay ours."""
        self.inserts, self.successors, self.endings = inserts, successors, endings
        self._tier = Tier(self.data)

    # Reading.

    def owns(self, rowid: int) -> bool:
        """Is it the RowID of a row in one of our objects?"""
        return any(one.stats.rowid_min <= rowid <= one.stats.rowid_max for one in self.data)

    def owned(self, rowids: Int64Array) -> Mask:
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
        for entry in self._tier.holding(self.state.schema.key_bytes(key)):
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
        if finder is not None:
            return finder.row(file_of(entry), rowid - entry.stats.rowid_min)
        number = np.array([rowid - entry.stats.rowid_min], dtype=np.int64)
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

    def ended(self) -> Int64Array:
        """RowIDs that our tombstone objects end."""
        return np.concatenate([NONE, *(one.targets[one.kept()] for one in self.endings)])

    def ends(self, rowid: int) -> bool:
        return any(one.find(rowid) >= 0 for one in self.endings)

    def leave(self, rowid: int) -> frozenset[int]:
        """Take a committed version out of its ending; returns the positions that one changed."""
        for one in self.endings:
            place = one.find(rowid)
            if place >= 0:
                one.drop([place])
                return one.changed
        return frozenset()

    def origin(self, rowid: int) -> Origin | None:
        """Whom our row succeeds; None for a row that was inserted."""
        for one in self.endings:
            if one.successors is not None:
                for place in np.nonzero(one.successors == rowid)[0].tolist():
                    if place not in one.dropped:
                        return Origin(int(one.targets[place]), one.changed)
        return None

    def places_of(self, one: Ending, rowids: Int64Array) -> Int64Array:
        """Where in an ending each of our rows is named as successor, -1 where it is not."""
        places = np.full(len(rowids), -1, dtype=np.int64)
        kept = one.kept()
        if one.successors is None or not len(kept):
            return places
        after = one.successors[kept]
        order = np.argsort(after)
        near = np.minimum(np.searchsorted(after, rowids, sorter=order), len(after) - 1)
        hit = after[order][near] == rowids
        places[hit] = kept[order][near[hit]]
        return places

    # Committing.

    def ends_in_pages(self, state: TableState) -> list[Node]:
        """Tombstones of ours whose rows are in L0: these have to be in memory, too."""
        shape = state.shape
        nodes: list[Node] = []
        for one in self.endings:
            low, high = one.entry.stats.rowid_min, one.entry.stats.rowid_max
            if not any(p.start <= high and p.end > low for p in (*shape.pages, shape.active)):
                continue
            places = one.kept()
            places = places[resident(shape, one.targets[places])]
            if not len(places):
                continue
            targets = one.targets[places]
            alive = [state.deletes.find(rowid) is None for rowid in targets.tolist()]
            places, targets = places[alive], targets[alive]
            keys = state.schema.keys_of(take(shape, targets, state.schema.primary_key))
            node = Delete(state.table_id, targets, keys)
            if one.successors is not None:
                node.successors = one.successors[places]
                node.changed = state.schema.ids_of(one.changed)
            nodes.append(node)
        return nodes

    def reshape(self, *, truncate: bool = False) -> Reshape:
        """What the commit record says of our objects."""
        kept = [one.entry for one in self.endings if len(one)]
        return Reshape(self.state.table_id, created=[*self.data, *kept], truncate=truncate)


def file_of(entry: ObjectEntry) -> ObjectFile:
    """The file behind an entry; every data and tombstone object has one."""
    assert entry.file is not None
    return entry.file


def meeting(entries: Sequence[ObjectEntry], low: bytes, high: bytes) -> list[ObjectEntry]:
    """Data objects whose key range meets [low, high]."""
    return [e for e in entries if e.stats.key_min <= high and e.stats.key_max >= low]

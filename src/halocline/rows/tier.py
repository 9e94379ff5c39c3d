"""Tier: the objects of one table, as one immutable value.

    commit with objects --fold--> Tier.with_changes --> a new Tier, swapped in with the pages
                                     |
    readers: at(ts) -> files that stand for the table at ts;  holding(key) -> where a key can be

Objects that have ended stay until GC has passed their end, for the snapshots that still read them.
A table has few objects (a million rows each), so a change builds everything anew.

Finding a key asks only objects whose range holds it: entries are sorted by their lowest key, and
beside each stands the highest key of all entries up to it. A search bisects to the last entry that
begins at or before the key and walks back until no earlier one can reach the key. That is two steps
in a compacted table, whatever its size.

Index objects stand beside the others, by their data object and their index. One joins the table if,
at the commit that brings it, its data object has not ended, its index is defined, and that pair has
none yet; else it stays outside, and its file is one that nothing refers to. That is decided here,
by what everybody folds, so whoever builds index objects need not know what happens meanwhile, and
can never make anybody else fail. It ends with its data object, or with its index.

Invariants
- Object ids are unique in a table; data, tombstone and index objects are kept apart.
- At most one index object of a pair has not ended, and then its data object has not ended either.
- Nothing here reads a file.

Not here: which rows inside an object are visible (read/), files that are gone (checkpoint/).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable
from dataclasses import replace

from halocline.catalog.entries import ObjectEntry
from halocline.ids import NEVER


class Tier:
    """The objects of a table, ended ones included."""

    __slots__ = (
        "_data",
        "_lows",
        "_reach",
        "by_id",
        "data",
        "index_objects",
        "indexed",
        "last_bulk_ts",
        "last_truncate_ts",
        "tombstones",
    )

    def __init__(self, entries: Iterable[ObjectEntry] = ()) -> None:
        self.by_id: dict[int, ObjectEntry] = {}
        """Data and tombstone objects."""
        self.index_objects: dict[int, ObjectEntry] = {}
        for entry in entries:
            (self.index_objects if entry.kind == "index" else self.by_id)[entry.id] = entry
        self.indexed: dict[tuple[int, int], ObjectEntry] = {
            (one.target, one.index_id): one
            for one in sorted(self.index_objects.values(), key=lambda one: (one.deleted_at, one.id))
        }
        """By data object and index: the one that has not ended, else the last that did."""
        ordered = sorted(self.by_id.values(), key=lambda entry: entry.id)
        self.data = tuple(entry for entry in ordered if entry.kind == "data")
        self.tombstones = tuple(entry for entry in ordered if entry.kind == "tombstone")
        self._data = sorted(self.data, key=lambda entry: entry.stats.key_min)
        self._lows = [entry.stats.key_min for entry in self._data]
        self._reach: list[bytes] = []
        highest = b""
        for entry in self._data:
            highest = max(highest, entry.stats.key_max)
            self._reach.append(highest)
        self.last_truncate_ts = max((e.deleted_at for e in self.data if e.truncated), default=0)
        """When TRUNCATE last ended objects, as far as they are still known."""
        bulk = (e.created_at for e in ordered if not e.stats.committed and e.created_at != NEVER)
        self.last_bulk_ts = max(self.last_truncate_ts, max(bulk, default=0))
        """When a user's commit last changed objects: the deletion buffer and the memtree know
        nothing of that."""

    def __bool__(self) -> bool:
        return bool(self.by_id)

    def __len__(self) -> int:
        return len(self.by_id)

    def everything(self) -> list[ObjectEntry]:
        """All entries, of all kinds, ended ones included."""
        return [*self.by_id.values(), *self.index_objects.values()]

    def index_object(self, target: int, index_id: int, ts: int) -> ObjectEntry | None:
        """What an index has of a data object, for a reader at `ts`; None when it must be scanned.

        Positions in a file that never changes hold for every snapshot, so only an end counts.
        """
        found = self.indexed.get((target, index_id))
        return found if found is not None and found.deleted_at > ts else None

    def at(self, ts: int) -> tuple[list[ObjectEntry], list[ObjectEntry]]:
        """Data and tombstone objects that stand for the table at `ts`."""
        data = [entry for entry in self.data if entry.counts_at(ts)]
        return data, [entry for entry in self.tombstones if entry.counts_at(ts)]

    def current(self) -> list[ObjectEntry]:
        """Everything that has not ended."""
        return [entry for entry in self.by_id.values() if entry.deleted_at == NEVER]

    def between(self, since: int, until: int) -> tuple[list[ObjectEntry], list[ObjectEntry]]:
        """Data and tombstone objects that stood for the table at any moment of [since, until]."""

        def counted(entry: ObjectEntry) -> bool:
            begins = entry.commit_ts_min if entry.moved else entry.created_at
            return begins <= until and entry.deleted_at > since

        data = [entry for entry in self.data if counted(entry)]
        return data, [entry for entry in self.tombstones if counted(entry)]

    def holding(self, key: bytes) -> list[ObjectEntry]:
        """Data objects, ended ones included, whose key range holds the key, newest first."""
        found = []
        place = bisect_right(self._lows, key) - 1
        while place >= 0 and self._reach[place] >= key:
            entry = self._data[place]
            if entry.stats.key_max >= key:
                found.append(entry)
            place -= 1
        if len(found) > 1:
            found.sort(key=lambda entry: entry.id, reverse=True)
        return found

    def meeting(self, low: bytes, high: bytes | None) -> list[ObjectEntry]:
        """Data objects, ended ones included, whose key range meets [low, high]; None leaves the
        upper end open."""
        end = len(self._data) if high is None else bisect_right(self._lows, high)
        begin = bisect_left(self._reach, low, 0, end)
        return [entry for entry in self._data[begin:end] if entry.stats.key_max >= low]

    def bulk_since(self, ts: int) -> list[ObjectEntry]:
        """Objects that users' commits brought after `ts`; a move or a rewrite changes no row."""
        return [
            entry
            for entry in self.by_id.values()
            if entry.created_at > ts and not entry.stats.committed
        ]

    def is_born_dead(self, rowid: int, ts: int) -> bool:
        """Did the version begin in the commit that ended it? Then it never was seen."""
        return any(
            entry.created_at == ts and entry.stats.rowid_min <= rowid <= entry.stats.rowid_max
            for entry in self.data
            if not entry.stats.committed
        )

    def with_changes(
        self,
        created: Collection[ObjectEntry],
        ended: Collection[int],
        ts: int,
        *,
        truncated: bool = False,
        indexes: Collection[int] = (),
    ) -> Tier:
        """The tier after a commit at `ts` that brought some objects and ended others.

        `indexes`: ids of those that are defined.
        """
        entries = {**self.by_id, **self.index_objects}
        for object_id in ended:
            entry = entries.get(object_id)
            if entry is not None and entry.deleted_at == NEVER:
                entries[object_id] = replace(entry, deleted_at=ts, truncated=truncated)
        fresh = [entry for entry in created if entry.kind == "index"]
        for entry in created:
            if entry.kind != "index":
                entries[entry.id] = entry.stamped(ts, NEVER)
        if fresh or self.index_objects:
            _follow(entries, fresh, indexes, ts)
        return Tier(entries.values())

    def with_indexes(self, indexes: Collection[int], ts: int) -> Tier:
        """The tier after a commit at `ts` that left these indexes; itself if none has ended."""
        if all(one.index_id in indexes or one.deleted_at < NEVER for one in self.indexed.values()):
            return self
        return self.with_changes((), (), ts, indexes=indexes)

    def without(self, gone: Collection[int]) -> Tier:
        """The tier after GC has removed some files."""
        return Tier(entry for entry in self.everything() if entry.id not in gone)


def _follow(
    entries: dict[int, ObjectEntry],
    fresh: Iterable[ObjectEntry],
    indexes: Collection[int],
    ts: int,
) -> None:
    """End index objects with what they belong to, and let those join that have a place."""
    taken = set()
    for entry in [one for one in entries.values() if one.kind == "index"]:
        if entry.deleted_at == NEVER:
            if _lives(entries.get(entry.target)) and entry.index_id in indexes:
                taken.add((entry.target, entry.index_id))
            else:
                entries[entry.id] = replace(entry, deleted_at=ts)
    for entry in fresh:
        pair = (entry.target, entry.index_id)
        if pair not in taken and entry.index_id in indexes and _lives(entries.get(entry.target)):
            entries[entry.id] = entry.stamped(ts, NEVER)
            taken.add(pair)


def _lives(entry: ObjectEntry | None) -> bool:
    return entry is not None and entry.kind == "data" and entry.deleted_at == NEVER

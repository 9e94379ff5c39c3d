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

Invariants
- Object ids are unique in a table; data and tombstone objects are kept apart.
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
    """Data and tombstone objects of a table, ended ones included."""

    __slots__ = (
        "_data",
        "_lows",
        "_reach",
        "by_id",
        "data",
        "last_bulk_ts",
        "last_truncate_ts",
        "tombstones",
    )

    def __init__(self, entries: Iterable[ObjectEntry] = ()) -> None:
        self.by_id: dict[int, ObjectEntry] = {entry.id: entry for entry in entries}
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
    ) -> Tier:
        """The tier after a commit at `ts` that brought some objects and ended others."""
        entries = dict(self.by_id)
        for object_id in ended:
            entry = entries.get(object_id)
            if entry is not None and entry.deleted_at == NEVER:
                entries[object_id] = replace(entry, deleted_at=ts, truncated=truncated)
        for entry in created:
            entries[entry.id] = entry.stamped(ts, NEVER)
        return Tier(entries.values())

    def without(self, gone: Collection[int]) -> Tier:
        """The tier after GC has removed some files."""
        return Tier(entry for entry in self.by_id.values() if entry.id not in gone)

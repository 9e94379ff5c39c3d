"""What a serializable transaction has read, and whether others have changed any of it.

Snapshot transactions record nothing. A `get` reads its key, also when it finds no row; a range
reads its range, phantoms included; `sql` and predicate scans read their tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any

import numpy as np

from halocline import errors
from halocline.catalog.entries import ObjectEntry
from halocline.read.ended import ended_mask
from halocline.read.locate import Keys, locate_many
from halocline.read.point import find
from halocline.read.view import BATCH
from halocline.rows.members import is_among
from halocline.rows.state import TableState
from halocline.rows.tier import Tier
from halocline.txn.objectparts import file_of
from halocline.txn.since import Fates

_TABLE = "a table that was read has changed"
_ROW = "a row that was read has changed"


class Reads:
    """What was read of one table."""

    __slots__ = ("keys", "ranges", "whole")

    def __init__(self) -> None:
        self.keys: set[Any] = set()
        self.ranges: list[tuple[Any, Any]] = []
        self.whole = False

    def among(self, keys: Keys) -> Sequence[int]:
        """The places of keys that were read, by themselves or in a range. 40 ns a key and range."""
        held = self.keys
        if isinstance(keys, np.ndarray):  # a million of them must not be looked at one by one
            mask = is_among(keys, np.sort(np.array(list(held), dtype=np.int64)))
            for low, high in self.ranges:
                above = True if low is None else keys >= low
                mask |= above & (True if high is None else keys < high)
            places: list[int] = np.nonzero(mask)[0].tolist()
            return places
        found = [at for at, key in enumerate(keys) if key in held] if held else []
        for low, high in self.ranges:
            if low is None:
                found += [at for at, key in enumerate(keys) if high is None or key < high]
            elif high is None:
                found += [at for at, key in enumerate(keys) if key >= low]
            else:
                found += [at for at, key in enumerate(keys) if low <= key < high]
        return found


def told_by(error: errors.HaloclineError, keys: Sequence[Any]) -> Sequence[Any]:
    """Which keys a write that failed has told its caller about; `keys` are those it was for."""
    if isinstance(error, errors.DuplicateKeyError):
        return () if error.inside_input else error.all_keys
    if isinstance(error, (errors.SchemaError, errors.NotFoundError)):
        return error.read_keys or keys
    return keys  # an expression that cannot be worked out over the row


def changed_between(state: TableState, keys: Sequence[Any], before: int, after: int) -> Any:
    """One of these keys that has another row at the second timestamp; None when none has."""
    if not keys or before >= after or state.last_ts <= before:
        return None
    if len(keys) < BATCH:
        changed = (key for key in keys if find(state, key, before) != find(state, key, after))
        return next(changed, None)
    wanted = np.array(keys, dtype=np.int64) if state.schema.int_key else keys
    old, new = (locate_many(state, wanted, ts).rowids for ts in (before, after))
    places = np.flatnonzero(old != new)
    return keys[places[0]] if len(places) else None


class ReadCheck:
    """The check of what was read of one table (check.py says when which of its calls comes)."""

    __slots__ = ("_since", "reads", "snapshot", "state")

    def __init__(self, state: TableState, reads: Reads, snapshot: int) -> None:
        self.state = state
        self.reads = reads
        self.snapshot = snapshot
        self._since = snapshot

    def outside(self, lock: Lock) -> None:
        """Look at objects that others have brought; they are all in one tier."""
        tier = self.state.shape.tier
        if tier.last_bulk_ts > self._since:
            self._check_objects(tier)
            self._since = tier.last_bulk_ts

    def inside(self) -> bool:
        """Look at memory; False when objects have come. Caller holds the commit lock."""
        if self.state.shape.tier.last_bulk_ts > self._since:
            return False
        self._check_memory()
        return True

    def all_inside(self) -> bool:
        """Look at everything that is left. Caller holds the commit lock."""
        self._check_objects(self.state.shape.tier)
        self._check_memory()
        return False

    def _check_memory(self) -> None:
        state, reads = self.state, self.reads
        if state.last_ts <= self.snapshot:
            return
        if reads.whole:
            raise self._changed(_TABLE, None, state.last_ts)
        for key in reads.keys:
            self._check_key(key)
        for low, high in reads.ranges:
            for key in state.tree.range(low, high):
                self._check_key(key)
        tier = state.shape.tier
        if tier and state.key_of is not None:
            # Rows in objects that have ended: the memtree does not know their keys, tombstones do.
            for rowid, tombstone in state.deletes.since(self.snapshot, reads.among):
                if not tier.is_born_dead(rowid, tombstone.commit_ts):
                    raise self._changed(_ROW, tombstone.key, tombstone.commit_ts)

    def _check_key(self, key: Any) -> None:
        rowid = self.state.tree.newest(key)
        if not rowid:
            return
        tombstone = self.state.deletes.find(rowid)
        changed = tombstone.commit_ts if tombstone is not None else self.state.stamp(rowid)
        if changed > self.snapshot:
            raise self._changed(_ROW, key, changed)

    def _check_objects(self, tier: Tier) -> None:
        """Check against objects that others have brought. Reads files."""
        state, reads, since = self.state, self.reads, self._since
        if reads.whole:
            raise self._changed(_TABLE, None, tier.last_bulk_ts)
        if state.finder is None or not (reads.keys or reads.ranges):
            return
        brought = tier.bulk_since(since)
        for entry in brought:
            if entry.kind == "data" and self._holds_read(entry, entry.created_at):
                raise self._changed(_ROW, None, entry.created_at)
        for entry in tier.data:
            # What a TRUNCATE ended: rows that had not ended before.
            if entry.truncated and entry.deleted_at > since:
                if self._holds_read(entry, entry.deleted_at - 1):
                    raise self._changed(_ROW, None, entry.deleted_at)
        fates = Fates(state, brought)
        for entry in fates.entries:
            for rowid, key in fates.ends(entry, reads.among):
                if not tier.is_born_dead(rowid, entry.created_at):
                    raise self._changed(_ROW, key, entry.created_at)

    def _holds_read(self, entry: ObjectEntry, ts: int) -> bool:
        """Does a data object hold a row that was read and had not ended by `ts`?"""
        state, finder, file = self.state, self.state.finder, file_of(entry)
        assert finder is not None
        rowids = []
        if self.reads.keys:
            batch = finder.batch(state.schema.key_table(list(self.reads.keys)))
            rowids.append(finder.find_many(file, batch).rowids)
        for low, high in self.reads.ranges:
            begin = 0 if low is None else finder.bound(file, low)
            end = entry.stats.rows if high is None else finder.bound(file, high)
            if begin < end:
                rowids.append(finder.slice(file, begin, end).rowids)
        return any(not ended_mask(state, found, ts).all() for found in rowids if len(found))

    def _changed(self, reason: str, key: Any, winner_ts: int) -> errors.ConflictError:
        name = self.state.entry.name
        return errors.ConflictError(reason, table=name, key=key, winner_ts=winner_ts)

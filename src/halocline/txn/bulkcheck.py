"""Conflict check against objects that others have committed since the snapshot (T-21, T-23).

    our inserted keys  against  their data objects       key range, bloom filter, blocks
    our ended RowIDs   against  their tombstone objects  RowID range, then the RowID column
    our ended RowIDs   against  a TRUNCATE
    what we have read  against  all of these

All of it reads files, so it runs without the commit lock (rounds.py). Keys that we insert are
single rows, parts, or objects of our own: then two objects meet, and ours is read a row group at a
time where the key ranges overlap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from halocline.catalog.entries import ObjectEntry
from halocline.objects.columns import CHANGED, ROWID, SUCCESSOR, rowid_schema, tombstone_schema
from halocline.objects.point import Finder
from halocline.read.alive import ended_mask
from halocline.rows.deletes import Tombstone
from halocline.rows.members import is_among
from halocline.rows.page import Int64Array, Row
from halocline.rows.state import TableState
from halocline.rows.tier import Tier
from halocline.txn.conflict import (
    Rebase,
    check_ended,
    conflict,
    ended,
    follow,
    inserted,
    plain,
    read_changed,
)
from halocline.txn.objectparts import file_of
from halocline.txn.reads import Reads
from halocline.txn.workspace import TableChanges


class Fates:
    """How versions ended: memory, and the tombstone objects of others."""

    def __init__(self, state: TableState, entries: Iterable[ObjectEntry]) -> None:
        self._state = state
        ends = [entry for entry in entries if entry.kind == "tombstone"]
        # The earliest tombstone of a version counts.
        self._entries = sorted(ends, key=lambda entry: entry.created_at)
        self._loaded: dict[int, pa.Table] = {}

    def find(self, rowid: int) -> Tombstone | None:
        tombstone = self._state.deletes.find(rowid)
        if tombstone is not None:
            return tombstone
        for entry in self._entries:
            if entry.stats.rowid_min <= rowid <= entry.stats.rowid_max:
                table = self._table(entry)
                rowids = table.column(ROWID).to_numpy()
                place = int(np.searchsorted(rowids, rowid))
                if place < len(rowids) and rowids[place] == rowid:
                    return self._at(entry, table, place)
        return None

    def among(self, rowids: Int64Array, since: int) -> Int64Array:
        """Which of these, ascending, are ended by tombstone objects that came after `since`."""
        found = [np.zeros(0, dtype=np.int64)]
        for entry in self._entries:
            if entry.created_at <= since:
                continue
            near = rowids[np.searchsorted(rowids, entry.stats.rowid_min) :]
            near = near[: np.searchsorted(near, entry.stats.rowid_max, "right")]
            if len(near):
                theirs = self._table(entry).column(ROWID).to_numpy()
                found.append(near[is_among(near, theirs)])
        return np.concatenate(found)

    def ends(self, entry: ObjectEntry, reads: Reads) -> Iterator[tuple[int, Any]]:
        """RowID and key of every version that one of the objects ends, of keys that were read."""
        table, schema = self._table(entry), self._state.schema
        if schema.int_key:  # a million of them must not be looked at one by one
            ints = schema.int_keys(table)
            mask = is_among(ints, np.sort(np.array(list(reads.keys), dtype=np.int64)))
            for low, high in reads.ranges:
                mask |= (True if low is None else ints >= low) & (
                    True if high is None else ints < high
                )
            table = table.filter(pa.array(mask))
        rowids, keys = table.column(ROWID), schema.keys_of(table)
        for place in reads.among(keys):
            yield rowids[place].as_py(), keys[place]

    @property
    def entries(self) -> Sequence[ObjectEntry]:
        return self._entries

    def _table(self, entry: ObjectEntry) -> pa.Table:
        found = self._loaded.get(entry.id)
        if found is None:
            schema, reader = self._state.schema, self._state.shelf.reader
            hidden = [ROWID, SUCCESSOR, CHANGED]
            found = reader.read(
                file_of(entry),
                tombstone_schema(schema),
                columns=list(schema.primary_key),
                hidden=hidden,
            ).combine_chunks()
            self._loaded[entry.id] = found
        return found

    def _at(self, entry: ObjectEntry, table: pa.Table, place: int) -> Tombstone:
        one = table.slice(place, 1)
        keys = self._state.schema.keys_of(one) if self._state.key_of is not None else [None]
        changed = one.column(CHANGED)[0].as_py() or ()
        successor = one.column(SUCCESSOR)[0].as_py() or 0
        return Tombstone(entry.created_at, successor, tuple(changed), keys[0])


def check_bulk(changes: TableChanges, fates: Fates, since: int) -> list[Rebase]:
    """Check everything that we write against objects that came after `since`. Reads files."""
    state = changes.home
    for entry in state.shape.tier.bulk_since(since):
        if entry.kind == "data" and state.finder is not None:
            _check_inserts(changes, state.finder, entry, fates)
    hits = fates.among(changes.ended(), since)
    for rowid in hits.tolist():
        tombstone = fates.find(rowid) if rowid in changes.deletes else None
        if tombstone is not None:
            raise ended(changes, changes.deletes[rowid], tombstone.commit_ts)
    rebases = []
    for rowid, intent in changes.updates.items():
        newest = follow(changes, rowid, intent.key, intent.changed, fates.find)
        if newest != rowid:
            rebases.append(Rebase(changes, rowid, newest))
    return rebases + check_ended(changes, hits, fates.find)


def check_truncated(changes: TableChanges, since: int) -> None:
    """Rows in objects that a TRUNCATE ended have no tombstones: whoever ends one has lost."""
    truncated_at = changes.home.shape.tier.last_truncate_ts
    if truncated_at <= since:
        return
    rowids = changes.ended()
    if changes.objects is not None:
        rowids = rowids[~changes.objects.owned(rowids)]
    if len(rowids):
        reason = "the table was truncated by another transaction"
        raise conflict(changes, reason, None, truncated_at)


def _check_inserts(changes: TableChanges, finder: Finder, entry: ObjectEntry, fates: Fates) -> None:
    """Their new rows against the keys that we insert."""
    for keys in _inserted(changes, entry):
        batch = finder.batch(keys)
        low, high = batch.bounds
        if low > entry.stats.key_max or high < entry.stats.key_min:
            continue
        hits = finder.find_many(file_of(entry), batch)
        for position, rowid in zip(hits.positions.tolist(), hits.rowids.tolist(), strict=True):
            if fates.find(rowid) is None and not _is_truncated(changes, entry):
                (key,) = changes.schema.keys_of(keys.slice(position, 1))
                raise inserted(changes, plain(key), entry.created_at)


def _is_truncated(changes: TableChanges, entry: ObjectEntry) -> bool:
    """Did a TRUNCATE end it? One that came with a TRUNCATE is none of those it ended."""
    return entry.created_at < changes.home.shape.tier.last_truncate_ts


def _inserted(changes: TableChanges, entry: ObjectEntry) -> Iterator[pa.Table]:
    """Keys that we insert, as tables; of own objects only those that may meet the entry."""
    names = list(changes.schema.primary_key)
    singles = changes.inserted_keys()
    if singles:
        yield changes.schema.key_table(singles)
    for part in changes.parts:
        if part.is_insert and part.table is not None and len(part):
            table = part.table.select(names)
            yield table.take(pa.array(part.kept())) if part.dropped else table
    if changes.objects is None:
        return
    mine = changes.ended()
    for own in changes.objects.inserts:
        if own.stats.key_min > entry.stats.key_max or own.stats.key_max < entry.stats.key_min:
            continue
        reader = changes.home.shelf.reader
        for table in reader.scan(file_of(own), changes.schema, columns=names, hidden=[ROWID]):
            dead = is_among(table.column(ROWID).to_numpy(), mine)
            alive = table.filter(pa.array(~dead)) if dead.any() else table
            if alive.num_rows:
                yield alive.select(names)


def check_bulk_reads(state: TableState, tier: Tier, reads: Reads, since: int) -> None:
    """Serializable: what was read must not have changed by objects that others have brought."""
    name = state.entry.name
    if reads.whole:
        reason = "a table that was read has changed"
        raise read_changed(reason, name, None, tier.last_bulk_ts)
    if state.finder is None or not (reads.keys or reads.ranges):
        return
    reason = "a row that was read has changed"
    brought = tier.bulk_since(since)
    for entry in brought:
        if entry.kind == "data" and _holds_read(state, entry, reads, entry.created_at):
            raise read_changed(reason, name, None, entry.created_at)
    for entry in tier.data:
        # What a TRUNCATE ended: rows that had not ended before.
        if entry.truncated and entry.deleted_at > since:
            if _holds_read(state, entry, reads, entry.deleted_at - 1):
                raise read_changed(reason, name, None, entry.deleted_at)
    fates = Fates(state, brought)
    for entry in fates.entries:
        for rowid, key in fates.ends(entry, reads):
            if not tier.is_born_dead(rowid, entry.created_at):
                raise read_changed(reason, name, key, entry.created_at)


def _holds_read(state: TableState, entry: ObjectEntry, reads: Reads, ts: int) -> bool:
    """Does a data object hold a row that was read and had not ended by `ts`?"""
    finder, file = state.finder, file_of(entry)
    assert finder is not None
    rowids = []
    if reads.keys:
        batch = finder.batch(state.schema.key_table(list(reads.keys)))
        rowids.append(finder.find_many(file, batch).rowids)
    for low, high in reads.ranges:
        begin = 0 if low is None else finder.bound(file, low)
        end = entry.stats.rows if high is None else finder.bound(file, high)
        if begin < end:
            rowids.append(finder.slice(file, begin, end).rowids)
    return any(not ended_mask(state, found, ts).all() for found in rowids if len(found))


def read_row(state: TableState, key: Any, rowid: int) -> Row:
    """The row of a version, wherever it is. An open transaction may need it, so it is somewhere."""
    while True:
        row = state.row(rowid)
        if row is not None:
            return row
        tier = state.shape.tier
        for entry in tier.data:
            stats = entry.stats
            if stats.rowid_min <= rowid <= stats.rowid_max:
                found = _row_in(state, entry, key, rowid)
                if found is not None:
                    return found
        assert state.shape.tier is not tier, "a version that an open transaction may need is gone"


def _row_in(state: TableState, entry: ObjectEntry, key: Any, rowid: int) -> Row | None:
    file = file_of(entry)
    if state.finder is not None:
        for found in state.finder.find(file, key):
            if found.rowid == rowid:
                return found.row
        return None
    for place in state.finder_by_rowid("data").locate(file, rowid):
        numbers = np.array([place.number], dtype=np.int64)
        table = state.shelf.reader.take(file, rowid_schema(state.schema), numbers)
        (row,) = state.schema.from_table(table.select(list(state.schema.names)))
        return row
    return None

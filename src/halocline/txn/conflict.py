"""Conflict check: may this workspace commit on top of what has committed since its snapshot?

Conflicts are found by row, and for updates by column. With W = what others committed after the
snapshot, seen through the newest version of each key and the tombstone of each target:

| mine \\ theirs | insert K  | update K, other columns | update K, same column | delete K |
|----------------|-----------|-------------------------|-----------------------|----------|
| insert K       | conflict  | (K was live: duplicate at once)                 | fine     |
| update K       | -         | rebase onto theirs      | conflict              | conflict |
| delete K       | -         | conflict                | conflict              | conflict |

An upsert is an insert or an update, whichever it was at the snapshot. Changing a key column is a
delete plus an insert. Writing an equal value is still a write. docs/isolation.md has every pair.

A rebase is not done here: the check runs under the commit lock, so it only says which rows need it.
Singles are checked by their keys. Parts and objects are checked the other way round, by what is new
in the table since the last look, so the time under the lock follows what others did meanwhile.

Not here: what others brought as objects (bulkcheck.py), when is checked what (rounds.py).
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from halocline.errors import ConflictError
from halocline.rows.deletes import Tombstone
from halocline.rows.members import is_among, places_in
from halocline.rows.page import ActivePage, Int64Array, Page, Row
from halocline.rows.state import TableState
from halocline.schema.schema import Schema
from halocline.txn.objectparts import Ending, file_of
from halocline.txn.reads import Reads
from halocline.txn.workspace import Intent, Part, TableChanges

Fate = Callable[[int], Tombstone | None]
"""How a version ended, as far as the asker can know; None while it lives."""
NONE: Int64Array = np.zeros(0, dtype=np.int64)


class Rebase(NamedTuple):
    """An update whose row was updated by others in other columns meanwhile."""

    changes: TableChanges
    target: int
    newest: int


class Delta(NamedTuple):
    """What became of one table after some timestamp, as far as memory tells."""

    pages: list[tuple[Page, int, int]]
    """Pages with rows that are new, and the places where these begin and end."""
    ghosts: list[Int64Array]
    """RowIDs of rows that are new and have left L0 already."""
    ended: Int64Array
    until: int

    def __len__(self) -> int:
        return sum(end - begin for _, begin, end in self.pages) + len(self.ended)


def check_singles(changes: TableChanges, snapshot: int, gone: Container[int] = ()) -> list[Rebase]:
    """Check rows that were written one by one. Caller holds the commit lock.

    `gone`: RowIDs that are known to have ended, though memory does not know it.
    """
    state = changes.home
    if state.last_ts <= snapshot:
        return []
    for key in changes.inserted_keys():
        rowid = state.tree.newest(key)
        # A live row from before the snapshot is one that we end ourselves.
        if rowid and (stamp := live_since(state, rowid, state.deletes.find)) > snapshot:
            if rowid not in gone:
                raise inserted(changes, key, stamp)
    for rowid, key in changes.deletes.items():
        tombstone = state.deletes.find(rowid)
        if tombstone is not None:
            raise ended(changes, key, tombstone.commit_ts)
    rebases = []
    for rowid, intent in changes.updates.items():
        newest = follow(changes, rowid, intent.key, intent.changed, state.deletes.find)
        if newest != rowid:
            rebases.append(Rebase(changes, rowid, newest))
    return rebases


def live_since(state: TableState, rowid: int, fate: Fate) -> int:
    """commit_ts of a version that the memtree knows, 0 when it has ended."""
    if fate(rowid) is not None:
        return 0
    stamp = state.stamp(rowid)
    # What the truncating transaction inserted itself has its very timestamp, and lives.
    return 0 if stamp < state.shape.tier.last_truncate_ts else stamp


def gather(state: TableState, since: int, until: int) -> Delta:
    """What is newer than `since`, by reference. Everything up to `until` has been folded, and
    nothing of it leaves memory while a transaction is open from before it: no lock is needed."""
    if until <= since:
        return Delta([], [], NONE, until)
    pages = []
    for page, count in reversed(state.pages()):
        begin, end = page.visible_count(count, since), page.visible_count(count, until)
        if begin < end:
            pages.append((page, begin, end))
        if begin:
            break
    # After the pages: a row that has left them meanwhile is here.
    newer = [one.rowids[(one.stamps > since) & (one.stamps <= until)] for one in state.ghosts]
    ghosts = [rowids for rowids in newer if len(rowids)]
    return Delta(pages, ghosts, state.deletes.between(since, until)[0], until)


def fresh_keys(state: TableState, delta: Delta) -> tuple[list[Any] | Int64Array, Int64Array]:
    """Keys and RowIDs of the rows that are new, side by side."""
    schema = state.schema
    keys: list[Any] = []
    rowids = [NONE]
    for page, begin, end in delta.pages:
        rowids.append(page.rowid_array(end)[begin:end])
        if isinstance(page, ActivePage):
            assert state.key_of is not None
            keys.append(list(map(state.key_of, page.rows[begin:end])))
        else:
            part = page.batch(end).slice(begin, end - begin)
            keys.append(schema.int_keys(part) if schema.int_key else schema.keys_of(part))
    if delta.ghosts:
        moved = moved_keys(state, np.sort(np.concatenate(delta.ghosts)))
        keys.append([key for key, _ in moved])
        rowids.append(np.array([rowid for _, rowid in moved], dtype=np.int64))
    found = np.concatenate(rowids)
    if schema.int_key:
        arrays = [np.asarray(part, dtype=np.int64) for part in keys]
        return np.concatenate([NONE, *arrays]), found
    return [key for part in keys for key in part], found


def moved_keys(state: TableState, rowids: Int64Array) -> list[tuple[Any, int]]:
    """Keys whose newest version is one of these: the memtree still knows them."""
    wanted = set(rowids.tolist())
    found = [(key, rowid) for key, rowid in list(state.tree.recent.items()) if rowid in wanted]
    for run in state.tree.runs:
        places = np.nonzero(is_among(run.rowids, rowids))[0].tolist()
        found += [(run.view[place], run.ids[place]) for place in places]
    return found


def check_parts(changes: TableChanges, delta: Delta, fate: Fate) -> list[Rebase]:
    """Check parts and own objects against what is new; rebased rows become single intents."""
    state = changes.home
    if state.key_of is not None and (delta.pages or delta.ghosts) and changes.inserts_in_bulk:
        keys, rowids = fresh_keys(state, delta)
        for place in _among_inserts(changes, keys):
            if (stamp := live_since(state, int(rowids[place]), fate)) > 0:
                raise inserted(changes, plain(keys[place]), stamp)
    return check_ended(changes, delta.ended, fate)


def _among_inserts(changes: TableChanges, keys: list[Any] | Int64Array) -> list[int]:
    """Places of keys that we insert too, in a part or an object."""
    found: set[int] = set()
    for part in changes.parts:
        if part.is_insert and part.run is not None:
            found.update(_in_part(part, keys))
    objects = changes.objects
    finder = changes.home.finder
    if objects is not None and objects.inserts and finder is not None and len(keys):
        batch = finder.batch(key_columns(changes.schema, keys))
        mine = changes.ended()
        for entry in objects.inserts:
            hits = finder.find_many(file_of(entry), batch)
            found.update(hits.positions[~is_among(hits.rowids, mine)].tolist())
    return sorted(found)


def key_columns(schema: Schema, keys: list[Any] | Int64Array) -> pa.Table:
    """Canonical keys as columns."""
    if isinstance(keys, np.ndarray):
        (field,) = schema.key_fields
        return pa.table([pa.array(keys).cast(field.type)], schema=schema.key_fields)
    return schema.key_table(keys)


def _in_part(part: Part, keys: list[Any] | Int64Array) -> list[int]:
    assert part.run is not None
    if isinstance(keys, np.ndarray) and isinstance(part.run.keys, np.ndarray) and not part.dropped:
        places = np.minimum(np.searchsorted(part.run.keys, keys), len(part.run.keys) - 1)
        return [int(place) for place in np.nonzero(part.run.keys[places] == keys)[0]]
    return [place for place, key in enumerate(keys) if part.find(plain(key)) >= 0]


def check_ended(changes: TableChanges, rowids: Int64Array, fate: Fate) -> list[Rebase]:
    """Check parts and own tombstone objects against versions that others have ended."""
    rebases = []
    for part in changes.parts:
        if part.targets is not None:
            places = _met(part.targets, part.dropped, rowids)
            rebases += [_leave_part(changes, part, place, fate) for place in places]
    for one in [] if changes.objects is None else changes.objects.endings:
        places = _met(one.targets, one.dropped, rowids)
        rebases += [_leave_ending(changes, one, place, fate) for place in places]
    return rebases


def _met(targets: Int64Array, dropped: BitMap, rowids: Int64Array) -> list[int]:
    places = places_in(targets, rowids).tolist()
    return [place for place in places if place not in dropped]


def _leave_part(changes: TableChanges, part: Part, place: int, fate: Fate) -> Rebase:
    assert part.targets is not None
    rowid, key = int(part.targets[place]), part.keys[place]
    if part.table is None:
        raise ended(changes, key, _when(fate, rowid))
    newest = follow(changes, rowid, key, set(part.changed), fate)
    changes.updates[rowid] = Intent(key, part.row(changes.schema, place), set(part.changed))
    part.dropped.add(place)
    return Rebase(changes, rowid, newest)


def _leave_ending(changes: TableChanges, one: Ending, place: int, fate: Fate) -> Rebase:
    """The successor that we wrote is born dead, and a row in memory takes its place."""
    rowid = int(one.targets[place])
    objects = changes.objects
    assert objects is not None
    if one.successors is None:
        raise ended(changes, None, _when(fate, rowid))
    successor = int(one.successors[place])
    row = objects.row(successor)
    key = None if changes.home.key_of is None else changes.home.key_of(row)
    newest = follow(changes, rowid, key, set(one.changed), fate)
    changes.updates[rowid] = Intent(key, row, set(one.changed))
    changes.deletes[successor] = key
    # Its tombstone in the file is overtaken by theirs: the earliest of a version counts.
    one.dropped.add(place)
    return Rebase(changes, rowid, newest)


def rebase(step: Rebase, read_row: Callable[[TableState, Any, int], Row]) -> None:
    """Put an update onto the newest version: its row, with the columns we changed."""
    changes = step.changes
    intent = changes.updates.pop(step.target)
    row = list(read_row(changes.home, intent.key, step.newest))
    for position in intent.changed:
        row[position] = intent.row[position]
    changes.updates[step.newest] = Intent(intent.key, tuple(row), intent.changed)


def check_reads(state: TableState, reads: Reads, snapshot: int) -> None:
    """Serializable: nothing that was read may have changed. Caller holds the commit lock."""
    if state.last_ts <= snapshot:
        return
    name = state.entry.name
    if reads.whole:
        raise read_changed("a table that was read has changed", name, None, state.last_ts)
    for key in reads.keys:
        _check_key(state, name, key, snapshot)
    for low, high in reads.ranges:
        for key in state.tree.range(low, high):
            _check_key(state, name, key, snapshot)
    if state.shape.tier and state.key_of is not None:
        _check_ended_keys(state, reads, snapshot)


def _check_key(state: TableState, name: str, key: Any, snapshot: int) -> None:
    rowid = state.tree.newest(key)
    if not rowid:
        return
    tombstone = state.deletes.find(rowid)
    changed = tombstone.commit_ts if tombstone is not None else state.stamp(rowid)
    if changed > snapshot:
        raise read_changed("a row that was read has changed", name, key, changed)


def _check_ended_keys(state: TableState, reads: Reads, snapshot: int) -> None:
    """Rows in objects that have ended: the memtree does not know their keys, tombstones do."""
    tier = state.shape.tier
    for rowid, tombstone in state.deletes.since(snapshot, reads.among):
        if not tier.is_born_dead(rowid, tombstone.commit_ts):
            reason, name = "a row that was read has changed", state.entry.name
            raise read_changed(reason, name, tombstone.key, tombstone.commit_ts)


def follow(changes: TableChanges, rowid: int, key: Any, mine: set[int], fate: Fate) -> int:
    """The newest version behind `rowid`, or ConflictError if our columns met theirs on the way."""
    columns = changes.schema.columns
    ids = {columns[position].id for position in mine}
    tombstone = fate(rowid)
    while tombstone is not None:
        if not tombstone.successor:
            reason = "the row was deleted by another transaction"
            raise conflict(changes, reason, key, tombstone.commit_ts)
        if not ids.isdisjoint(tombstone.changed):
            reason = "the same column was written by another transaction"
            raise conflict(changes, reason, key, tombstone.commit_ts)
        rowid = tombstone.successor
        tombstone = fate(rowid)
    return rowid


def _when(fate: Fate, rowid: int) -> int:
    tombstone = fate(rowid)
    return 0 if tombstone is None else tombstone.commit_ts


def plain(key: Any) -> Any:
    """A key out of an array, as callers know it."""
    return key.item() if isinstance(key, np.integer) else key


def inserted(changes: TableChanges, key: Any, winner_ts: int) -> ConflictError:
    return conflict(changes, "the key was inserted by another transaction", key, winner_ts)


def ended(changes: TableChanges, key: Any, winner_ts: int) -> ConflictError:
    reason = "the row was updated or deleted by another transaction"
    return conflict(changes, reason, key, winner_ts)


def conflict(changes: TableChanges, reason: str, key: Any, winner_ts: int) -> ConflictError:
    return ConflictError(reason, table=changes.entry.name, key=key, winner_ts=winner_ts)


def read_changed(reason: str, name: str, key: Any, winner_ts: int) -> ConflictError:
    return ConflictError(reason, table=name, key=key, winner_ts=winner_ts)


def untouched(state: TableState, key: Any, target: int, snapshot: int) -> bool:
    """Has nobody written this row, whatever else happened in its table?"""
    if state.shape.tier.last_bulk_ts > snapshot:
        return False  # objects have come that only the general way looks into
    if target:
        return state.deletes.find(target) is None
    newest = state.tree.newest(key)
    return not newest or state.deletes.find(newest) is not None

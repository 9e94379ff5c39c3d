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
Singles are checked by their keys. A bulk part is checked the other way round, by what is new in the
table since the last look, so the time under the lock follows what others did meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from halocline.errors import ConflictError
from halocline.rows.deletes import Tombstone
from halocline.rows.lookup import first_rowid_after
from halocline.rows.state import TableState
from halocline.txn.workspace import Intent, Part, TableChanges


class Rebase(NamedTuple):
    """An update whose row was updated by others in other columns meanwhile."""

    changes: TableChanges
    target: int
    newest: int


class Delta(NamedTuple):
    """What became of one table after some timestamp."""

    keys: list[tuple[Any, int]]
    ended: list[tuple[int, Tombstone]]
    until: int


def check_singles(changes: TableChanges, snapshot: int) -> list[Rebase]:
    """Check rows that were written one by one. Caller holds the commit lock."""
    state = changes.state
    if state.last_ts <= snapshot:
        return []
    for key in changes.inserted_keys():
        rowid = state.tree.newest(key)
        if rowid and state.deletes.find(rowid) is None:
            # A live row from before the snapshot is one that we end ourselves.
            stamp = state.stamp(rowid)
            if stamp > snapshot:
                reason = "the key was inserted by another transaction"
                raise _conflict(changes, reason, key, stamp)
    for rowid, key in changes.deletes.items():
        tombstone = state.deletes.find(rowid)
        if tombstone is not None:
            reason = "the row was updated or deleted by another transaction"
            raise _conflict(changes, reason, key, tombstone.commit_ts)
    rebases = []
    for rowid, intent in changes.updates.items():
        newest = _follow(changes, rowid, intent.key, intent.changed)
        if newest != rowid:
            rebases.append(Rebase(changes, rowid, newest))
    return rebases


def gather(state: TableState, since: int) -> Delta:
    """Keys and tombstones newer than `since`. Caller holds the commit lock."""
    if state.last_ts <= since:
        return Delta([], [], state.last_ts)
    first = first_rowid_after(state, since)
    keys: list[tuple[Any, int]] = []
    if state.key_of is not None:
        for page, _ in state.pages():
            if page.end > first:
                for rowid in range(max(page.start, first), page.end):
                    row = page.row(rowid)
                    if row is not None:
                        keys.append((state.key_of(row), rowid))
    return Delta(keys, list(state.deletes.since(since)), state.last_ts)


def check_parts(changes: TableChanges, delta: Delta) -> list[Rebase]:
    """Check bulk parts against what is new. Needs no lock; rebased rows become single intents."""
    state = changes.state
    for part in changes.parts:
        if part.targets is None:
            for key, rowid in delta.keys:
                if part.find(key) >= 0 and state.deletes.find(rowid) is None:
                    reason = "the key was inserted by another transaction"
                    raise _conflict(changes, reason, key, state.stamp(rowid))
    rebases = []
    for rowid, tombstone in delta.ended:
        for part, offset in _hits(changes.parts, rowid):
            key = part.keys[offset]
            if part.table is None:
                reason = "the row was updated or deleted by another transaction"
                raise _conflict(changes, reason, key, tombstone.commit_ts)
            newest = _follow(changes, rowid, key, set(part.changed))
            changes.updates[rowid] = Intent(
                key, part.row(changes.schema, offset), set(part.changed)
            )
            part.dropped.add(offset)
            rebases.append(Rebase(changes, rowid, newest))
    return rebases


def rebase(step: Rebase) -> None:
    """Put an update onto the newest version: its row, with the columns we changed."""
    changes = step.changes
    intent = changes.updates.pop(step.target)
    base = changes.state.row(step.newest)
    assert base is not None, "a version that an open transaction may need was removed"
    row = list(base)
    for position in intent.changed:
        row[position] = intent.row[position]
    changes.updates[step.newest] = Intent(intent.key, tuple(row), intent.changed)


def check_reads(
    state: TableState,
    name: str,
    snapshot: int,
    keys: Iterable[Any],
    ranges: Iterable[tuple[Any, Any]],
    whole: bool,
) -> None:
    """Serializable: nothing that was read may have changed. Caller holds the commit lock."""
    if state.last_ts <= snapshot:
        return
    if whole:
        raise ConflictError(
            "a table that was read has changed", table=name, winner_ts=state.last_ts
        )
    for key in keys:
        _check_key(state, name, key, snapshot)
    for low, high in ranges:
        for key in state.tree.range(low, high):
            _check_key(state, name, key, snapshot)


def _check_key(state: TableState, name: str, key: Any, snapshot: int) -> None:
    rowid = state.tree.newest(key)
    if not rowid:
        return
    tombstone = state.deletes.find(rowid)
    changed = tombstone.commit_ts if tombstone is not None else state.stamp(rowid)
    if changed > snapshot:
        raise ConflictError(
            "a row that was read has changed", table=name, key=key, winner_ts=changed
        )


def _follow(changes: TableChanges, rowid: int, key: Any, mine: set[int]) -> int:
    """The newest version behind `rowid`, or ConflictError if our columns met theirs on the way."""
    deletes = changes.state.deletes
    columns = changes.schema.columns
    ids = {columns[position].id for position in mine}
    tombstone = deletes.find(rowid)
    while tombstone is not None:
        if not tombstone.successor:
            reason = "the row was deleted by another transaction"
            raise _conflict(changes, reason, key, tombstone.commit_ts)
        if not ids.isdisjoint(tombstone.changed):
            reason = "the same column was written by another transaction"
            raise _conflict(changes, reason, key, tombstone.commit_ts)
        rowid = tombstone.successor
        tombstone = deletes.find(rowid)
    return rowid


def _hits(parts: Iterable[Part], rowid: int) -> list[tuple[Part, int]]:
    found = []
    for part in parts:
        if part.targets is not None:
            place = int(part.targets.searchsorted(rowid))
            if (
                place < len(part.targets)
                and part.targets[place] == rowid
                and place not in part.dropped
            ):
                found.append((part, place))
    return found


def _conflict(changes: TableChanges, reason: str, key: Any, winner_ts: int) -> ConflictError:
    return ConflictError(reason, table=changes.entry.name, key=key, winner_ts=winner_ts)

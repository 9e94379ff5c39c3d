"""A job that runs while its table is altered: what it wrote, in the newest shape.

    TableChanges in v3, files of v3 --carry_over--> TableChanges in v4, the same files
                                    '-- it wrote a column that was dropped or changed: ConflictError

Whoever writes row by row runs again when the table was altered. A job that has written files for
an hour should not: a file is read in whatever shape the table has (objects/read.py), so its files
can join the altered table as they are. Columns are told by their ids on the way; whoever checks the
commit then sees the newest state, the newest names, and nothing of the old version.

A blind upsert of whole rows is one of some columns afterwards: it knows nothing of a column that
was added since, and does not erase what others have written there.

Not here: when this is called (commit.py), what a blind job makes of its keys (blind.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from halocline.catalog.entries import ObjectEntry
from halocline.errors import ConflictError
from halocline.rows.state import TableState
from halocline.schema.evolve import in_the_way
from halocline.schema.schema import Schema
from halocline.txn.ends import Ends
from halocline.txn.objectparts import Ending
from halocline.txn.task_objects import read_ending
from halocline.txn.workspace import TableChanges


def is_behind(changes: TableChanges) -> bool:
    """Has the table been altered since the transaction began?"""
    home = changes.home
    return home.newest is not home and home.newest.schema.version >= home.schema.version


def carry_over(tables: Iterable[TableChanges]) -> bool:
    """Bring what jobs have written into the newest shape; True if there was something to be done.

    ConflictError where that cannot be.
    """
    behind = [changes for changes in tables if is_behind(changes)]
    for changes in behind:
        _carry(changes, changes.home.newest)
    return bool(behind)


def may_carry(changes: TableChanges) -> bool:
    """Does it consist of nothing but files?"""
    parts = changes.objects
    only = not (changes.rows or changes.updates or changes.deletes or changes.parts)
    if parts is None or changes.truncated or not only:
        return False
    return not any(one.stale for one in parts.endings)


def check_files(
    state: TableState, entries: Sequence[ObjectEntry], written: Collection[int]
) -> None:
    """ConflictError if files of older versions cannot join the table as it is.

    `written`: ids of the columns that they have values for; empty: all of their version.
    """
    for version in {one.stats.schema_version for one in entries} - {state.schema.version}:
        _check_columns(state, state.schema_at(version), written)


def conflict(state: TableState, why: str = "") -> ConflictError:
    """The error for who has written the table in an older shape."""
    reason = "the table was altered by another transaction"
    if why:
        reason += f", which {why}: run the job again"
    return ConflictError(reason, table=state.entry.name, winner_ts=state.newest.valid_from)


def _carry(changes: TableChanges, state: TableState) -> None:
    if not may_carry(changes):
        raise conflict(changes.home)
    old, parts, blind = changes.schema, changes.objects, changes.blind
    assert parts is not None
    _check_columns(state, old, parts.written)
    if {check.rule for check in state.schema.checks} - {check.rule for check in old.checks}:
        raise conflict(changes.home)  # its rows were asked for the checks of their version only
    endings = [_ending(state, one, old, lazy=blind is not None) for one in parts.endings]
    parts.state, parts.files = state, parts.files._replace(endings=tuple(endings))
    changes.state = changes.home = state
    changes.entry, changes.schema = state.entry, state.schema
    if blind is not None:
        blind.carry_over(_positions(old, state.schema, blind.changed))


def _check_columns(state: TableState, old: Schema, written: Collection[int]) -> None:
    if why := in_the_way(old, state.schema, written or {one.id for one in old.columns}):
        raise conflict(state, why)


def _ending(state: TableState, one: Ending, old: Schema, *, lazy: bool) -> Ending:
    if lazy:
        return read_ending(state, one.entry)
    ends = one.ends
    changed = _positions(old, state.schema, ends.changed)
    after = ends.successors
    return Ending(one.entry, Ends(ends.rowids, keys=ends.keys, successors=after, changed=changed))


def _positions(old: Schema, new: Schema, positions: Iterable[int]) -> frozenset[int]:
    """Positions of columns in another version; those that were dropped are left out."""
    places = {column.id: at for at, column in enumerate(new.columns)}
    ids = (old.columns[at].id for at in positions)
    return frozenset(places[id] for id in ids if id in places)

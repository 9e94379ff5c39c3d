"""First wins: may this workspace commit on top of what has committed since its snapshot?

Conflicts are found by row, and for updates by column. With W = what others committed after the
snapshot, seen through the newest version of each key and the tombstone of each target:

| mine \\ theirs | insert K  | update K, other columns | update K, same column | delete K |
|----------------|-----------|-------------------------|-----------------------|----------|
| insert K       | conflict  | (K was live: duplicate at once)                 | fine     |
| update K       | -         | rebase onto theirs      | conflict              | conflict |
| delete K       | -         | conflict                | conflict              | conflict |

Columns that both have only added to (`hc.add`) count as other columns: the sum is made at the
rebase, from the newest row. If that row is in memory, it is made under the commit lock. Columns of
one check count as one column; a row that a rebase has made is checked again.

An upsert is an insert or an update, whichever it was at the snapshot. Changing a key column is a
delete plus an insert. Writing an equal value is still a write. docs/isolation.md has every pair.

A rebase reads rows, so under the commit lock is only said which rows need it. Singles are checked
by their keys. Parts and objects are checked the other way round, by what is new in the table since
the last look, so the time under the lock follows what others did meanwhile. Objects that others
have brought are looked into without the lock:

    our inserted keys  against  their data objects       key range, bloom filter, blocks
    our ended RowIDs   against  their tombstone objects  RowID range, then the RowID column
    our ended RowIDs   against  a TRUNCATE

Not here: what others did (since.py), when is checked what (check.py), jobs that never conflict
(blind.py).
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from halocline.catalog.entries import ObjectEntry
from halocline.errors import ConflictError
from halocline.objects.columns import ROWID
from halocline.objects.finder import Finder
from halocline.read.guard import check_rows
from halocline.read.locate import Keys, key_columns
from halocline.rows.members import is_among
from halocline.schema.batches import Int64Array
from halocline.schema.compiled import Row
from halocline.txn.ends import Ends
from halocline.txn.objectparts import file_of
from halocline.txn.row_update import met_ids, summed
from halocline.txn.since import Delta, Fate, Fates, fresh_keys, live_since, plain, read_row
from halocline.txn.workspace import Intent, Part, TableChanges


class FirstWins:
    """What others did first makes our changes of the same rows fail, or is rebased onto."""

    __slots__ = ("_gone", "_rebases", "changes", "snapshot")

    locked_max: Final = 256

    def __init__(self, changes: TableChanges, snapshot: int) -> None:
        self.changes = changes
        self.snapshot = snapshot
        self._rebases: list[Rebase] = []
        self._gone: set[int] = set()
        """Versions that memory takes for live, and that tombstone objects have ended."""

    @property
    def walks(self) -> bool:
        """Single rows are few: asking memory about each of them is the last round."""
        return bool(self.changes.parts or self.changes.objects)

    def prepare(self, since: int) -> None:
        """Rebase what the lock was left for."""
        steps, self._rebases = self._rebases, []
        for step in steps:
            rebase(step)

    def decide(self, delta: Delta, since: int) -> None:
        """Check against all that is new, objects included."""
        changes, state = self.changes, self.changes.home
        check_truncated(changes, since)
        brought = state.shape.tier.bulk_since(self.snapshot)
        brought = [entry for entry in brought if entry.created_at <= delta.until]
        # What others did to one row may lead from memory into an object and back, so the fate of
        # a row is always asked of all that came since the snapshot.
        fates = Fates(state, brought)
        if brought:
            for step in check_bulk(changes, fates, since):
                rebase(step)
            newest = map(state.tree.newest, changes.inserted_keys())
            self._gone = {rowid for rowid in newest if rowid and fates.find(rowid) is not None}
        if self.walks:
            for step in check_parts(changes, delta, fates.find):
                rebase(step)

    def decide_inside(self, delta: Delta, since: int) -> bool:
        """Check against memory; False when a file would have to be read."""
        if self._may_meet(delta):
            return False
        self._rebases = check_parts(self.changes, delta, self.changes.home.deletes.find)
        return True

    def ready(self) -> bool:
        """Check single rows; False when some have to be rebased."""
        if not self._rebases:
            self._rebases = check_singles(self.changes, self.snapshot, self._gone)
        if self._rebases and all(map(_is_quick, self._rebases)):
            # Sums of a hot row: outside, others would add to it again before we are back.
            self.prepare(0)
            self.changes.summed = True
        return not self._rebases

    def finish(self) -> bool:
        """Check single rows and rebase them; True: the record has to be prepared again."""
        self._rebases = check_singles(self.changes, self.snapshot, self._gone)
        self.prepare(0)
        return True

    def _may_meet(self, delta: Delta) -> bool:
        """Could something new concern rows of our objects? Bloom filters and targets are in memory,
        but the rows are not."""
        objects, finder = self.changes.objects, self.changes.home.finder
        if objects is None:
            return False
        if any(one.ends.met(delta.ended) for one in objects.endings):
            return True
        if not objects.inserts or finder is None or not delta.pages:
            return False
        keys, _ = fresh_keys(self.changes.home, delta)
        return any(objects.may_hold(key) for key in keys)


class Rebase(NamedTuple):
    """An update whose row was updated by others in other columns meanwhile."""

    changes: TableChanges
    target: int
    newest: int
    key: Any


def _is_quick(step: Rebase) -> bool:
    """Is it an addition to a row in memory?"""
    changes = step.changes
    added = changes.updates[step.target].added
    return bool(added) and changes.home.row(step.newest) is not None


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
        newest = _newest(changes, rowid, intent, state.deletes.find)
        if newest != rowid:
            rebases.append(Rebase(changes, rowid, newest, intent.key))
    return rebases


def check_parts(changes: TableChanges, delta: Delta, fate: Fate) -> list[Rebase]:
    """Check parts and own objects against what is new; rebased rows become single intents."""
    state = changes.home
    if state.key_of is not None and (delta.pages or delta.ghosts) and changes.inserts_in_bulk:
        keys, rowids = fresh_keys(state, delta)
        for place in _among_inserts(changes, keys):
            if (stamp := live_since(state, int(rowids[place]), fate)) > 0:
                raise inserted(changes, plain(keys[place]), stamp)
    return check_ended(changes, delta.ended, fate)


def _among_inserts(changes: TableChanges, keys: Keys) -> list[int]:
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


def _in_part(part: Part, keys: Keys) -> list[int]:
    assert part.run is not None
    if isinstance(keys, np.ndarray) and isinstance(part.run.keys, np.ndarray) and not part.dropped:
        places = np.minimum(np.searchsorted(part.run.keys, keys), len(part.run.keys) - 1)
        return [int(place) for place in np.nonzero(part.run.keys[places] == keys)[0]]
    return [place for place, key in enumerate(keys) if part.find(plain(key)) >= 0]


def check_ended(changes: TableChanges, rowids: Int64Array, fate: Fate) -> list[Rebase]:
    """Check parts and own tombstone objects against versions that others have ended."""
    rebases = []
    row: Row | None
    for part in changes.parts:
        if part.ends is not None:
            for place in part.ends.met(rowids):
                row = None if part.table is None else part.row(changes.schema, place)
                rebases.append(_leave(changes, part.ends, place, row, fate))
    objects = changes.objects
    for one in [] if objects is None else objects.endings:
        for place in one.ends.met(rowids):
            row, successor = None, 0
            if objects is not None and one.ends.successors is not None:
                successor = int(one.ends.successors[place])
                row = objects.row(successor)
            # The tombstone in the file is overtaken by theirs: the earliest of a version counts.
            rebases.append(_leave(changes, one.ends, place, row, fate))
            # The row that we wrote is born dead, and one in memory takes its place.
            changes.deletes[successor] = rebases[-1].key
    return rebases


def _leave(changes: TableChanges, ends: Ends, place: int, row: Row | None, fate: Fate) -> Rebase:
    """An update that others have met becomes an intent of its own, to be rebased."""
    rowid, key_of = int(ends.rowids[place]), changes.home.key_of
    if row is None:
        raise ended(changes, ends.keys[place] if len(ends.keys) else None, _when(fate, rowid))
    key = None if key_of is None else key_of(row)
    newest = follow(changes, rowid, key, set(ends.changed), fate)
    changes.updates[rowid] = Intent(key, row, set(ends.changed))
    ends.drop([place])
    return Rebase(changes, rowid, newest, key)


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
        newest = _newest(changes, rowid, intent, fates.find)
        if newest != rowid:
            rebases.append(Rebase(changes, rowid, newest, intent.key))
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


def rebase(step: Rebase) -> None:
    """Put an update onto the newest version: its row, with the columns we changed.

    SchemaError when a sum does not fit its column or breaks a check; nothing has been committed
    then.
    """
    changes = step.changes
    intent = changes.updates.pop(step.target)
    newest = read_row(changes.home, intent.key, step.newest)
    row = summed(changes.schema, newest, intent.row, intent.changed, intent.added)
    check_rows(changes.schema, (row,), changes.entry.name)
    changes.updates[step.newest] = Intent(intent.key, row, intent.changed, intent.added)


def follow(
    changes: TableChanges,
    rowid: int,
    key: Any,
    mine: set[int],
    fate: Fate,
    added: Collection[int] = (),
) -> int:
    """The newest version behind `rowid`, or ConflictError if our columns met theirs on the way.

    Columns that both sides have only added to (`added`; negative in a tombstone) do not meet.
    """
    tombstone = fate(rowid)
    if tombstone is None:
        return rowid
    ids = met_ids(changes.schema, mine, added)
    while tombstone is not None:
        if not tombstone.successor:
            reason = "the row was deleted by another transaction"
            raise conflict(changes, reason, key, tombstone.commit_ts)
        if not ids.isdisjoint(tombstone.changed):
            reason = "the same column was written by another transaction"
            if set(map(abs, tombstone.changed)).isdisjoint(changes.schema.ids_of(mine)):
                reason = "a column of the same check was written by another transaction"
            raise conflict(changes, reason, key, tombstone.commit_ts)
        rowid = tombstone.successor
        tombstone = fate(rowid)
    return rowid


def _newest(changes: TableChanges, rowid: int, intent: Intent, fate: Fate) -> int:
    return follow(changes, rowid, intent.key, intent.changed, fate, intent.added)


def _when(fate: Fate, rowid: int) -> int:
    tombstone = fate(rowid)
    return 0 if tombstone is None else tombstone.commit_ts


def inserted(changes: TableChanges, key: Any, winner_ts: int) -> ConflictError:
    return conflict(changes, "the key was inserted by another transaction", key, winner_ts)


def ended(changes: TableChanges, key: Any, winner_ts: int) -> ConflictError:
    reason = "the row was updated or deleted by another transaction"
    return conflict(changes, reason, key, winner_ts)


def conflict(changes: TableChanges, reason: str, key: Any, winner_ts: int) -> ConflictError:
    return ConflictError(reason, table=changes.entry.name, key=key, winner_ts=winner_ts)

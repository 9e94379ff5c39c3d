"""Rounds: how far the check of one table has come, and what is left for the commit lock.

    outside the lock   round 1: all that is new since the snapshot     may read files
                       round 2: all that is new since round 1 ...
    under the lock     the last round: a handful of rows, memory only
                         '-- objects have come, or a file would have to be read: once more outside

Rows that were written one by one need no rounds: they are few, and asking the memtree and the
deletion buffer about each of them is the last round.

TRUNCATE has nothing to check, but it must know every live row of L0 when it commits. They are
listed outside the lock; under it, a list that is not complete any more sends us out again.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import compress
from threading import Lock
from typing import Any, Final

import numpy as np

from halocline.read.scan import alive_mask
from halocline.rows.engine import EngineState
from halocline.rows.members import places_in
from halocline.rows.page import Int64Array, Page
from halocline.rows.state import TableState
from halocline.rows.tier import Tier
from halocline.txn.blindrounds import ROUNDS_MAX, BlindRounds
from halocline.txn.bulkcheck import (
    Fates,
    check_bulk,
    check_bulk_reads,
    check_truncated,
    read_row,
)
from halocline.txn.conflict import (
    NONE,
    Delta,
    Rebase,
    check_parts,
    check_reads,
    check_singles,
    fresh_keys,
    gather,
    rebase,
)
from halocline.txn.reads import Reads
from halocline.txn.workspace import Sweep, TableChanges

Mark = tuple[int, Tier]
Checks = list["Rounds | ReadRounds | BlindRounds"]
LOCKED_MAX: Final = 256
"""More new rows than this are looked at without the lock."""


class ReadRounds:
    """The check of what a serializable transaction has read of one table."""

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
            check_bulk_reads(self.state, tier, self.reads, self._since)
            self._since = tier.last_bulk_ts

    def inside(self) -> bool:
        """The last round, as that of `Rounds`."""
        if self.state.shape.tier.last_bulk_ts > self._since:
            return False
        check_reads(self.state, self.reads, self.snapshot)
        return True

    def all_inside(self) -> bool:
        """As that of `Rounds`."""
        check_bulk_reads(self.state, self.state.shape.tier, self.reads, self._since)
        check_reads(self.state, self.reads, self.snapshot)
        return False


class Rounds:
    """The check of one table's workspace."""

    __slots__ = ("_gone", "_rebases", "_since", "changes", "snapshot")

    def __init__(self, changes: TableChanges, snapshot: int) -> None:
        self.changes = changes
        self.snapshot = snapshot
        self._since = snapshot
        self._rebases: list[Rebase] = []
        self._gone: set[int] = set()
        """Versions that memory takes for live, and that tombstone objects have ended."""

    @property
    def _bulk(self) -> bool:
        return bool(self.changes.parts or self.changes.objects)

    def outside(self, lock: Lock) -> None:
        """Do what the lock was left for, then check until little is new."""
        changes = self.changes
        if changes.truncated:
            with lock:
                known = mark(changes.home)
            changes.sweep = sweep(changes.home, known, changes.sweep)
            return
        self._rebase()
        for _ in range(ROUNDS_MAX):
            if not self._owes():
                return
            with lock:
                until = changes.home.last_ts
            self._round(gather(changes.home, self._since, until))

    def inside(self) -> bool:
        """The last round; False when there is something left to be done outside.

        Caller holds the commit lock.
        """
        changes, state = self.changes, self.changes.home
        if changes.truncated:
            return changes.sweep is not None and changes.sweep.mark == mark(state)
        if state.last_ts <= self.snapshot:
            return True
        if state.shape.tier.last_bulk_ts > self._since:
            return False
        if self._bulk and state.last_ts > self._since:
            delta = gather(state, self._since, state.last_ts)
            if delta.ghosts or len(delta) > LOCKED_MAX or self._may_meet(delta):
                return False
            self._rebases = check_parts(changes, delta, state.deletes.find)
            self._since = delta.until
        if not self._rebases:
            self._rebases = check_singles(changes, self.snapshot, self._gone)
        return not self._rebases

    def all_inside(self) -> bool:
        """Everything that is left, whatever it takes. Caller holds the commit lock.

        True: the record has to be prepared again.
        """
        changes = self.changes
        if changes.truncated:
            changes.sweep = sweep(changes.home, mark(changes.home), changes.sweep)
            return True
        self._rebase()
        if self._owes():
            self._round(gather(changes.home, self._since, changes.home.last_ts))
        self._rebases = check_singles(changes, self.snapshot, self._gone)
        self._rebase()
        return True

    def _rebase(self) -> None:
        steps, self._rebases = self._rebases, []
        for step in steps:
            rebase(step, read_row)

    def _owes(self) -> bool:
        """Is there something new that only a round can look at?"""
        state = self.changes.home
        if state.shape.tier.last_bulk_ts > self._since:
            return True
        return self._bulk and state.last_ts > self._since

    def _round(self, delta: Delta) -> None:
        changes, state = self.changes, self.changes.home
        check_truncated(changes, self._since)
        brought = state.shape.tier.bulk_since(self.snapshot)
        brought = [entry for entry in brought if entry.created_at <= delta.until]
        # What others did to one row may lead from memory into an object and back, so the fate of
        # a row is always asked of all that came since the snapshot.
        fates = Fates(state, brought)
        if brought:
            for step in check_bulk(changes, fates, self._since):
                rebase(step, read_row)
            newest = map(state.tree.newest, changes.inserted_keys())
            self._gone = {rowid for rowid in newest if rowid and fates.find(rowid) is not None}
        if self._bulk:
            for step in check_parts(changes, delta, fates.find):
                rebase(step, read_row)
        self._since = delta.until

    def _may_meet(self, delta: Delta) -> bool:
        """Could something new concern rows of our objects? Bloom filters and targets are in memory,
        but the rows are not."""
        objects, finder = self.changes.objects, self.changes.home.finder
        if objects is None:
            return False
        if any(len(places_in(one.targets, delta.ended)) for one in objects.endings):
            return True
        if not objects.inserts or finder is None or not delta.pages:
            return False
        keys, _ = fresh_keys(self.changes.home, delta)
        return any(objects.may_hold(key) for key in keys)


def checks_of(
    engine: EngineState,
    tables: Mapping[int, TableChanges],
    reads: Mapping[int, Reads] | None,
    snapshot: int,
) -> Checks:
    """All that a commit has to check: what was read, then what is written."""
    found: Checks = []
    for table_id, one in (reads or {}).items():
        state = engine.tables.get(table_id)
        if state is not None:
            found.append(ReadRounds(state, one, snapshot))
    for changes in tables.values():
        found.append((BlindRounds if changes.blind else Rounds)(changes, snapshot))
    return found


def mark(state: TableState) -> Mark:
    """Equal as long as no row of L0 came, ended or moved."""
    return state.last_ts, state.shape.tier


def sweep(state: TableState, known: Mark, before: Sweep | None) -> Sweep:
    """Every live row of L0. What changes meanwhile shows in `mark` later.

    The list of the last round is brought up to date, unless rows have moved: beside a busy writer a
    list made anew takes longer each time, and meanwhile he writes the more.
    """
    if before is None or before.mark[1] is not known[1]:
        return _sweep(state, known)
    delta = gather(state, before.mark[0], known[0])
    rowids = [before.targets]
    keys = list(before.keys)
    for page, begin, end in reversed(delta.pages):
        rowids.append(page.rowid_array(end)[begin:end])
        keys += _keys(state, page, end, np.arange(begin, end))
    targets = np.concatenate(rowids)
    kept = np.isin(targets, delta.ended, invert=True)
    if not kept.all():
        targets, keys = targets[kept], list(compress(keys, kept.tolist()))
    return Sweep(targets, keys, known)


def _sweep(state: TableState, known: Mark) -> Sweep:
    runs = state.deletes.runs
    rowids: list[Int64Array] = [NONE]
    keys: list[Any] = []
    for page, count in state.pages():
        kept = alive_mask(page, runs, count, known[0], NONE)
        places = np.arange(count) if kept is None else np.nonzero(kept)[0]
        if len(places):
            rowids.append(page.rowid_array(count)[places])
            keys += _keys(state, page, count, places)
    return Sweep(np.concatenate(rowids), keys, known)


def _keys(state: TableState, page: Page, count: int, places: Int64Array) -> list[Any]:
    if state.key_of is None:
        return [None] * len(places)
    return list(state.schema.keys_of(page.batch(count).take(places)))

"""Checks of a commit: in rounds, most of them without the commit lock.

    outside the lock   round 1: all that is new since the snapshot     may read files
                       round 2: all that is new since round 1 ...      until a round brings little
    under the lock     the last round: a handful of rows, memory only
                         '-- objects have come, or a file would have to be read: once more outside
                             '-- too often: all that is left, under the lock, whatever it takes

Every check of a written table is one walk over what others have touched since the last look
(since.py) and a policy that decides what that means: the first wins (conflict.py), or a blind job
goes on with whatever is there now (blind.py). The lock is taken for a moment in each round, to
learn up to which timestamp everything is folded.

TRUNCATE has nothing to check, but it must know every live row of L0 when it commits. They are
listed outside the lock; under it, a list that is not complete any more sends us out again.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import compress
from threading import Lock
from typing import Any, Final, Protocol

import numpy as np

from halocline.read.scan import alive_mask
from halocline.rows.engine import EngineState
from halocline.rows.page import Page
from halocline.rows.state import TableState
from halocline.rows.tier import Tier
from halocline.schema.batches import Int64Array
from halocline.txn.blind import NeverFails
from halocline.txn.conflict import FirstWins
from halocline.txn.ends import Ends
from halocline.txn.reads import ReadCheck, Reads
from halocline.txn.since import NONE, Delta, gather
from halocline.txn.workspace import Sweep, TableChanges

ROUNDS_MAX: Final = 8
TierMark = tuple[int, Tier]


class Check(Protocol):
    """One table, or what was read of one, before its commit."""

    def outside(self, lock: Lock) -> None:
        """Check until little is new; ConflictError when the commit cannot be."""

    def inside(self) -> bool:
        """Check the rest while the caller holds the lock; False when something is left to be done
        outside."""

    def all_inside(self) -> bool:
        """Check everything that is left, whatever it takes, while the caller holds the lock.

        True: the record has to be prepared again.
        """


class Policy(Protocol):
    """What it means for a table's changes that others have touched rows meanwhile."""

    @property
    def locked_max(self) -> int:
        """More than so many touched rows are looked at without the lock."""

    @property
    def walks(self) -> bool:
        """Must what others have done in memory be walked through?"""

    def prepare(self, since: int) -> None:
        """Called before a round outside the lock."""

    def decide(self, delta: Delta, since: int) -> None:
        """Look at what is new, and at objects that came with it. May read files."""

    def decide_inside(self, delta: Delta, since: int) -> bool:
        """Look at what is new in memory; False when a file would have to be read."""

    def ready(self) -> bool:
        """Called last under the lock; False when there is something to be done outside."""

    def finish(self) -> bool:
        """Called instead when there is no other round. True: the record has to be made again."""


class WriteCheck:
    """The check of what is written to one table."""

    __slots__ = ("_policy", "_since", "_state")

    def __init__(self, state: TableState, policy: Policy, snapshot: int) -> None:
        self._state = state
        self._policy = policy
        self._since = snapshot

    def outside(self, lock: Lock) -> None:
        self._policy.prepare(self._since)
        for _ in range(ROUNDS_MAX):
            if not self._owes():
                return
            with lock:
                until = self._state.last_ts  # everything up to it is folded
            if self._round(until) <= self._policy.locked_max // 8:
                return

    def inside(self) -> bool:
        state, policy = self._state, self._policy
        if state.shape.tier.last_bulk_ts > self._since:
            return False
        if policy.walks and state.last_ts > self._since:
            delta = gather(state, self._since, state.last_ts)
            if delta.ghosts or len(delta) > policy.locked_max:
                return False
            if not policy.decide_inside(delta, self._since):
                return False
            self._since = delta.until
        return policy.ready()

    def all_inside(self) -> bool:
        self._policy.prepare(self._since)
        if self._owes():
            self._round(self._state.last_ts)
        return self._policy.finish()

    def _owes(self) -> bool:
        """Is there something new that only a round can look at?"""
        state = self._state
        if state.shape.tier.last_bulk_ts > self._since:
            return True
        return self._policy.walks and state.last_ts > self._since

    def _round(self, until: int) -> int:
        """Look at all that came after the last round; returns how many rows that was."""
        delta = gather(self._state, self._since, until)
        self._policy.decide(delta, self._since)
        self._since = until
        return len(delta)


class SweepCheck:
    """The list of rows that a TRUNCATE ends."""

    __slots__ = ("changes",)

    def __init__(self, changes: TableChanges) -> None:
        self.changes = changes

    def outside(self, lock: Lock) -> None:
        changes = self.changes
        with lock:
            known = mark(changes.home)
        changes.sweep = sweep(changes.home, known, changes.sweep)

    def inside(self) -> bool:
        swept = self.changes.sweep
        return swept is not None and swept.mark == mark(self.changes.home)

    def all_inside(self) -> bool:
        changes = self.changes
        changes.sweep = sweep(changes.home, mark(changes.home), changes.sweep)
        return True


def checks_of(
    engine: EngineState,
    tables: Mapping[int, TableChanges],
    reads: Mapping[int, Reads],
    snapshot: int,
) -> list[Check]:
    """All that a commit has to check: what was read, then what is written."""
    found: list[Check] = []
    for table_id, one in reads.items():
        state = engine.tables.get(table_id)
        if state is not None:
            found.append(ReadCheck(state, one, snapshot))
    for changes in tables.values():
        if changes.truncated:
            found.append(SweepCheck(changes))
        else:
            blind = changes.blind
            policy = NeverFails(blind, snapshot) if blind else FirstWins(changes, snapshot)
            found.append(WriteCheck(changes.home, policy, snapshot))
    return found


def mark(state: TableState) -> TierMark:
    """Equal as long as no row of L0 came, ended or moved."""
    return state.last_ts, state.shape.tier


def sweep(state: TableState, known: TierMark, before: Sweep | None) -> Sweep:
    """Every live row of L0. What changes meanwhile shows in `mark` later.

    The list of the last round is brought up to date, unless rows have moved: beside a busy writer a
    list made anew takes longer each time, and meanwhile he writes the more.
    """
    if before is None or before.mark[1] is not known[1]:
        return _sweep(state, known)
    delta = gather(state, before.mark[0], known[0])
    rowids = [before.ends.rowids]
    keys = list(before.ends.keys)
    for page, begin, end in reversed(delta.pages):
        rowids.append(page.rowid_array(end)[begin:end])
        keys += _keys(state, page, end, np.arange(begin, end))
    targets = np.concatenate(rowids)
    kept = np.isin(targets, delta.ended, invert=True)
    if not kept.all():
        targets, keys = targets[kept], list(compress(keys, kept.tolist()))
    return Sweep(Ends(targets, keys=keys), known)


def _sweep(state: TableState, known: TierMark) -> Sweep:
    runs = state.deletes.runs
    rowids: list[Int64Array] = [NONE]
    keys: list[Any] = []
    for page, count in state.shape.counted():
        kept = alive_mask(page, runs, count, known[0], NONE)
        places = np.arange(count) if kept is None else np.nonzero(kept)[0]
        if len(places):
            rowids.append(page.rowid_array(count)[places])
            keys += _keys(state, page, count, places)
    return Sweep(Ends(np.concatenate(rowids), keys=keys), known)


def _keys(state: TableState, page: Page, count: int, places: Int64Array) -> list[Any]:
    if state.key_of is None:
        return [None] * len(places)
    return list(state.schema.keys_of(page.batch(count).take(places)))

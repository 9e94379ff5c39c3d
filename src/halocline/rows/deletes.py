"""Deletion buffer: RowID -> tombstone, the record that a version ended.

    ended   dict RowID -> (commit_ts, successor, changed, key)     single-row commits
    runs    sorted RowID arrays with one commit_ts                 bulk commits, linked in O(1)

A tombstone has five fields everywhere, in memory, log and objects: RowID, primary key, commit_ts,
successor RowID (0 when the row was deleted) and the ids of the columns that changed. Successor and
columns are what lets two writers of different columns of one row both commit (T-03): the second
walks to the successor and is rebased onto it if the columns do not meet.

Invariants
- A RowID ends once: the fold refuses nothing, the conflict check under the commit lock does.
- Insertion order of `ended` is commit order, so "what ended since ts" is a walk from its end.

Not here: marks in pages that scans use (page.py), who may end what (txn/conflict.py).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from halocline.rows.page import Int64Array


class Tombstone(NamedTuple):
    """How one version ended. The RowID is the dict's key."""

    commit_ts: int
    successor: int
    changed: tuple[int, ...]
    key: Any


class TombstoneRun:
    """Many versions that ended in one commit, sorted by RowID."""

    __slots__ = ("changed", "commit_ts", "keys", "rowids", "successors", "view")

    def __init__(
        self,
        rowids: Int64Array,
        commit_ts: int,
        *,
        keys: Sequence[Any],
        successors: Int64Array | None = None,
        changed: tuple[int, ...] = (),
    ) -> None:
        self.rowids = rowids
        self.commit_ts = commit_ts
        self.successors = successors
        self.changed = changed
        self.keys = keys
        self.view = np.ascontiguousarray(rowids).data

    def __len__(self) -> int:
        return len(self.rowids)

    def find(self, rowid: int) -> Tombstone | None:
        view = self.view
        if not len(view) or rowid < view[0] or rowid > view[-1]:
            return None
        place = bisect_left(view, rowid)
        return self._at(place) if view[place] == rowid else None

    def within(self, start: int, end: int) -> Int64Array:
        """RowIDs of this run in [start, end)."""
        return self.rowids[bisect_left(self.view, start) : bisect_left(self.view, end)]

    def items(self) -> Iterator[tuple[int, Tombstone]]:
        for place in range(len(self.rowids)):
            yield int(self.rowids[place]), self._at(place)

    def _at(self, place: int) -> Tombstone:
        successor = 0 if self.successors is None else int(self.successors[place])
        return Tombstone(self.commit_ts, successor, self.changed, self.keys[place])


class DeletionBuffer:
    """All tombstones of a table that are still in memory."""

    __slots__ = ("ended", "runs")

    def __init__(self) -> None:
        # Plain tuples: the collector forgets those of plain values, and never a subclass.
        self.ended: dict[int, tuple[int, int, tuple[int, ...], Any]] = {}
        self.runs: tuple[TombstoneRun, ...] = ()

    def __len__(self) -> int:
        return len(self.ended) + sum(len(run) for run in self.runs)

    def find(self, rowid: int) -> Tombstone | None:
        found = self.ended.get(rowid)
        if found is not None:
            return Tombstone(*found)
        for run in self.runs:
            tombstone = run.find(rowid)
            if tombstone is not None:
                return tombstone
        return None

    def link(self, run: TombstoneRun) -> None:
        self.runs = (*self.runs, run)

    def since(self, ts: int) -> Iterator[tuple[int, Tombstone]]:
        """Tombstones with commit_ts > ts, in no particular order. Caller holds the commit lock."""
        for rowid in reversed(self.ended):
            tombstone = Tombstone(*self.ended[rowid])
            if tombstone.commit_ts <= ts:
                break
            yield rowid, tombstone
        for run in self.runs:
            if run.commit_ts > ts:
                yield from run.items()

    def between(self, since: int, until: int) -> tuple[Int64Array, Int64Array, Int64Array]:
        """RowID, commit_ts and successor of every tombstone in (since, until]."""
        singles = [
            (rowid, commit_ts, successor)
            for rowid, (commit_ts, successor, _, _) in list(self.ended.items())
            if since < commit_ts <= until
        ]
        columns = [np.array(singles, dtype=np.int64).reshape(-1, 3)]
        for run in self.runs:
            if since < run.commit_ts <= until:
                successors = (
                    np.zeros(len(run), np.int64) if run.successors is None else run.successors
                )
                stamps = np.full(len(run), run.commit_ts, np.int64)
                columns.append(np.stack([run.rowids, stamps, successors], axis=1))
        table = np.concatenate(columns)
        return table[:, 0], table[:, 1], table[:, 2]

"""Deletion buffer: RowID -> tombstone, the record that a version ended.

    ended   dict RowID -> (commit_ts, successor, changed, key)     single-row commits
    runs    the same as arrays sorted by RowID                     bulk commits, linked in O(1)

A tombstone has five fields everywhere, in memory, log and objects: RowID, primary key, commit_ts,
successor RowID (0 when the row was deleted) and the ids of the columns that changed. Successor and
columns are what lets two writers of different columns of one row both commit (T-03): the second
walks to the successor and is rebased onto it if the columns do not meet.

Invariants
- A RowID ends once: the fold refuses nothing, the conflict check under the commit lock does.
- Insertion order of `ended` is commit order, so "what ended since ts" is a walk from its end.
- Runs are merged when they pile up (tidy.py), so a look-up or a scan asks a handful of them.

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
    """Many versions that ended, sorted by RowID; at first all of them in one commit."""

    __slots__ = ("changed", "keys", "rowids", "stamps", "successors", "ts_max", "ts_min", "view")

    def __init__(
        self,
        rowids: Int64Array,
        stamps: Int64Array,
        *,
        keys: Sequence[Any],
        successors: Int64Array,
        changed: Sequence[tuple[int, ...]],
    ) -> None:
        self.rowids = np.ascontiguousarray(rowids)
        self.stamps = stamps
        self.successors = successors
        self.changed = changed
        self.keys = keys
        self.ts_min = int(stamps.min()) if len(stamps) else 0
        self.ts_max = int(stamps.max()) if len(stamps) else 0
        self.view = self.rowids.data

    @classmethod
    def of_commit(
        cls,
        rowids: Int64Array,
        commit_ts: int,
        *,
        keys: Sequence[Any],
        successors: Int64Array | None = None,
        changed: tuple[int, ...] = (),
    ) -> TombstoneRun:
        """The versions that one commit ended."""
        count = len(rowids)
        stamps = np.full(count, commit_ts, dtype=np.int64)
        after = np.zeros(count, dtype=np.int64) if successors is None else successors
        return cls(rowids, stamps, keys=keys, successors=after, changed=[changed] * count)

    def __len__(self) -> int:
        return len(self.rowids)

    def find(self, rowid: int) -> Tombstone | None:
        view = self.view
        if not len(view) or rowid < view[0] or rowid > view[-1]:
            return None
        place = bisect_left(view, rowid)
        return self._at(place) if view[place] == rowid else None

    def within(self, start: int, end: int, ts: int) -> Int64Array:
        """RowIDs in [start, end) that had ended by `ts`."""
        part = slice(bisect_left(self.view, start), bisect_left(self.view, end))
        rowids = self.rowids[part]
        return rowids if self.ts_max <= ts else rowids[self.stamps[part] <= ts]

    def items(self) -> Iterator[tuple[int, Tombstone]]:
        for place in range(len(self.rowids)):
            yield int(self.rowids[place]), self._at(place)

    def _at(self, place: int) -> Tombstone:
        stamp, successor = int(self.stamps[place]), int(self.successors[place])
        return Tombstone(stamp, successor, self.changed[place], self.keys[place])


def merge_tombstones(runs: Sequence[TombstoneRun]) -> TombstoneRun:
    """One run out of several."""
    rowids = np.concatenate([run.rowids for run in runs])
    order = np.argsort(rowids, kind="stable")
    keys = [key for run in runs for key in run.keys]
    changed = [one for run in runs for one in run.changed]
    places = order.tolist()
    return TombstoneRun(
        rowids[order],
        np.concatenate([run.stamps for run in runs])[order],
        keys=[keys[place] for place in places],
        successors=np.concatenate([run.successors for run in runs])[order],
        changed=[changed[place] for place in places],
    )


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

    def swap_runs(self, old: Sequence[TombstoneRun], new: TombstoneRun) -> None:
        """Replace runs by their merged form. Caller holds the commit lock."""
        gone = {id(run) for run in old}
        if gone <= {id(run) for run in self.runs}:
            self.runs = (new, *(run for run in self.runs if id(run) not in gone))

    def since(self, ts: int) -> Iterator[tuple[int, Tombstone]]:
        """Tombstones with commit_ts > ts, in no particular order. Caller holds the commit lock."""
        for rowid in reversed(self.ended):
            tombstone = Tombstone(*self.ended[rowid])
            if tombstone.commit_ts <= ts:
                break
            yield rowid, tombstone
        for run in self.runs:
            if run.ts_max > ts:
                yield from ((rowid, one) for rowid, one in run.items() if one.commit_ts > ts)

    def between(self, since: int, until: int) -> tuple[Int64Array, Int64Array, Int64Array]:
        """RowID, commit_ts and successor of every tombstone in (since, until]."""
        singles = [
            (rowid, commit_ts, successor)
            for rowid, (commit_ts, successor, _, _) in list(self.ended.items())
            if since < commit_ts <= until
        ]
        tables = [np.array(singles, dtype=np.int64).reshape(-1, 3)]
        for run in self.runs:
            inside = (run.stamps > since) & (run.stamps <= until)
            if inside.any():
                columns = [run.rowids[inside], run.stamps[inside], run.successors[inside]]
                tables.append(np.stack(columns, axis=1))
        table = np.concatenate(tables)
        return table[:, 0], table[:, 1], table[:, 2]

"""Deletion buffer: RowID -> tombstone, the record that a version ended.

    ended   dict RowID -> (commit_ts, successor, changed, key)     single-row commits
    runs    the same as arrays sorted by RowID                     bulk commits, linked in O(1)

A tombstone has five fields everywhere, in memory, log and objects: RowID, primary key, commit_ts,
successor RowID (0 when the row was deleted) and the ids of the columns that changed, negative for
those that were only added to. Successor and columns are what lets two writers of different columns
of one row both commit: the second walks to the successor and is rebased onto it if the columns do
not meet.

Invariants
- The earliest tombstone of a RowID counts. It has only one, but for blind jobs (txn/blind.py): they
  may end a version that others have ended, as part of a run, so that takes nobody's place.
- Insertion order of `ended` is commit order, so "what ended since ts" is a walk from its end.
- Runs are merged when they pile up (tidy.py), so a look-up or a scan asks a handful of them.

Not here: marks in pages that scans use (page.py), who may end what (txn/conflict.py).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import compress, islice
from typing import Any, NamedTuple

import numpy as np

from halocline.schema.batches import BoolArray, Int64Array


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
        return self.at(place) if view[place] == rowid else None

    def within(self, start: int, end: int, ts: int) -> Int64Array:
        """RowIDs in [start, end) that had ended by `ts`."""
        part = slice(bisect_left(self.view, start), bisect_left(self.view, end))
        rowids = self.rowids[part]
        return rowids if self.ts_max <= ts else rowids[self.stamps[part] <= ts]

    def at(self, place: int) -> Tombstone:
        """The tombstone at a place of the run."""
        stamp, successor = int(self.stamps[place]), int(self.successors[place])
        return Tombstone(stamp, successor, self.changed[place], self.keys[place])

    def kept(self, mask: BoolArray) -> TombstoneRun:
        """The tombstones that a mask keeps."""
        return self.take(np.flatnonzero(mask))

    def take(self, places: Int64Array) -> TombstoneRun:
        """The tombstones at these places, in that order."""
        listed = places.tolist()
        return TombstoneRun(
            self.rowids[places],
            self.stamps[places],
            keys=[self.keys[place] for place in listed],
            successors=self.successors[places],
            changed=[self.changed[place] for place in listed],
        )


def merge_tombstones(runs: Sequence[TombstoneRun]) -> TombstoneRun:
    """One run out of several; of two tombstones of one RowID the earlier stands first."""
    together = TombstoneRun(
        np.concatenate([run.rowids for run in runs]),
        np.concatenate([run.stamps for run in runs]),
        keys=[key for run in runs for key in run.keys],
        successors=np.concatenate([run.successors for run in runs]),
        changed=[one for run in runs for one in run.changed],
    )
    return together.take(np.lexsort((together.stamps, together.rowids)))


class _Sorted(NamedTuple):
    """What `ended` held when a scan last asked, as arrays sorted by RowID.

    Tombstones that have left `ended` since may still be here: they are true all the same.
    """

    rowids: Int64Array
    stamps: Int64Array
    newest_ts: int


Among = Callable[[Sequence[Any]], Sequence[int]]
"""Picks keys out of a list: their places in it."""


def _all(keys: Sequence[Any]) -> Sequence[int]:
    return range(len(keys))


_EMPTY: Int64Array = np.zeros(0, dtype=np.int64)
_STALE_MAX = 4096


class DeletionBuffer:
    """All tombstones of a table that are still in memory."""

    __slots__ = ("_sorted", "ended", "runs")

    def __init__(self) -> None:
        # Plain tuples: the collector forgets those of plain values, and never a subclass.
        self.ended: dict[int, tuple[int, int, tuple[int, ...], Any]] = {}
        self.runs: tuple[TombstoneRun, ...] = ()
        self._sorted = _Sorted(_EMPTY, _EMPTY, 0)

    def __len__(self) -> int:
        return len(self.ended) + sum(len(run) for run in self.runs)

    def find(self, rowid: int) -> Tombstone | None:
        found = self.ended.get(rowid)
        if found is not None:
            return Tombstone(*found)
        first: Tombstone | None = None
        for run in self.runs:
            tombstone = run.find(rowid)
            if tombstone is not None and (first is None or tombstone.commit_ts < first.commit_ts):
                first = tombstone
        return first

    def link(self, run: TombstoneRun) -> None:
        self.runs = (*self.runs, run)

    def swap_runs(self, old: Sequence[TombstoneRun], new: TombstoneRun) -> None:
        """Replace runs by their merged form. Caller holds the commit lock."""
        gone = {id(run) for run in old}
        if gone <= {id(run) for run in self.runs}:
            self.runs = (new, *(run for run in self.runs if id(run) not in gone))

    def swap_run(self, old: TombstoneRun, new: TombstoneRun) -> None:
        """Replace a run by what is left of it. Caller holds the commit lock."""
        runs = (new if run is old else run for run in self.runs)
        self.runs = tuple(run for run in runs if len(run))

    def ended_by(self, ts: int, low: int, high: int) -> list[Int64Array]:
        """RowIDs in [low, high) that had ended by `ts`: sorted arrays, which may overlap."""
        found = [run.within(low, high, ts) for run in self.runs if run.ts_min <= ts]
        if self.ended or len(self._sorted.rowids):
            kept = self._sort()
            part = slice(*np.searchsorted(kept.rowids, [low, high]).tolist())
            rowids = kept.rowids[part]
            found.append(rowids if kept.newest_ts <= ts else rowids[kept.stamps[part] <= ts])
        return [rowids for rowids in found if len(rowids)]

    def _sort(self) -> _Sorted:
        """`ended` as arrays. Only what is new since the last call is converted."""
        kept = self._sorted
        if len(kept.rowids) > 2 * len(self.ended) + _STALE_MAX:
            kept = _Sorted(_EMPTY, _EMPTY, 0)  # most of it has left memory
        fresh = self._since(kept.newest_ts)
        if not fresh:
            return kept
        new = np.array(fresh, dtype=np.int64)
        rowids = np.concatenate([kept.rowids, new[:, 0]])
        order = np.argsort(rowids, kind="stable")
        stamps = np.concatenate([kept.stamps, new[:, 1]])[order]
        rowids = rowids[order]
        first = np.append(True, rowids[1:] != rowids[:-1])
        newest_ts = max(kept.newest_ts, int(new[:, 1].max()))
        kept = self._sorted = _Sorted(rowids[first], stamps[first], newest_ts)
        return kept

    def _since(self, ts: int) -> list[tuple[int, int]]:
        """(RowID, commit_ts) of singles with commit_ts >= ts: a commit may be half-folded when it
        is first seen, so its timestamp is asked for again."""
        return [(rowid, one[0]) for rowid, one in self._newest(ts) if one[0] >= ts]

    def since(self, ts: int, among: Among = _all) -> Iterator[tuple[int, Tombstone]]:
        """Tombstones with commit_ts > ts, of keys that `among` picks out of a list by their places.
        Caller holds the commit lock: whole lists, as a bulk delete may have brought many."""
        fresh = []
        for rowid in reversed(self.ended):
            one = self.ended[rowid]
            if one[0] <= ts:
                break
            fresh.append((rowid, one))
        for place in among([one[3] for _, one in fresh]):
            rowid, one = fresh[place]
            yield rowid, Tombstone(*one)
        for run in self.runs:
            if run.ts_max > ts:
                found = [place for place in among(run.keys) if run.stamps[place] > ts]
                yield from ((int(run.rowids[place]), run.at(place)) for place in found)

    def between(
        self, since: int, until: int
    ) -> tuple[Int64Array, Int64Array, Int64Array, list[Any]]:
        """RowID, commit_ts, successor and key of every tombstone in (since, until]."""
        singles = [(rowid, *one) for rowid, one in self._newest(since) if since < one[0] <= until]
        plain = [(rowid, commit_ts, successor) for rowid, commit_ts, successor, _, _ in singles]
        tables = [np.array(plain, dtype=np.int64).reshape(-1, 3)]
        keys = [key for *_, key in singles]
        for run in self.runs:
            inside = (run.stamps > since) & (run.stamps <= until)
            if inside.any():
                columns = [run.rowids[inside], run.stamps[inside], run.successors[inside]]
                tables.append(np.stack(columns, axis=1))
                keys += compress(run.keys, inside.tolist())
        table = np.concatenate(tables)
        return table[:, 0], table[:, 1], table[:, 2], keys

    def _newest(self, ts: int) -> list[tuple[int, tuple[int, int, tuple[int, ...], Any]]]:
        """All singles with commit_ts >= ts, newest first, and perhaps some older ones."""
        count = 256
        while True:
            try:
                newest = list(islice(reversed(self.ended.items()), count))
            except RuntimeError:
                continue  # A commit came between: making tuples can start the collector of cycles.
            if len(newest) < count or newest[-1][1][0] < ts:
                return newest
            count *= 8

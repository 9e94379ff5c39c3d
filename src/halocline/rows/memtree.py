"""Memtree: primary key -> the RowIDs of its versions, newest first, in key order.

    recent   dict key -> newest RowID      single-row commits: one dict store
    older    dict RowID -> older RowID     a version of the same key that `recent` forgot
    runs     sorted (key, RowID) arrays    bulk commits: linked in whole, O(1)

A single-row commit may not pay for order, so `recent` keeps none: its keys wait in a list and are
merged into a sorted list when a range is asked for. A bulk commit may not pay per row under the
commit lock, so it brings a run that was sorted before the lock was taken; integer keys are held as
a plain int64 array (16 bytes a row with the RowID, against some 170 in a dict).

RowIDs of one table rise with commit order, so of two versions of one key the larger RowID is the
newer, whichever part it stands in.

Invariants
- `older` is written before `recent`: a reader that meets the new version can walk on to the old.
- `runs` is an immutable tuple that is swapped, never changed.

Not here: whether a version is visible (read/), rows (page.py).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from copy import copy
from itertools import chain, compress
from threading import Lock
from typing import Any

import numpy as np

from halocline.schema.batches import BoolArray, Int64Array

Key = Any
"""A canonical key: one value, or a tuple for a composite key."""

HEADS = 64
SPAN_MAX = 1 << 53
"""Integers up to here are exact as floats."""
RUNS_MAX = 8
"""More runs than this are merged; each key is merged about log8(n) times."""


class Run:
    """Keys and RowIDs of bulk commits, sorted by key, then by RowID."""

    __slots__ = (
        "first",
        "heads",
        "ids",
        "keys",
        "last",
        "rowids",
        "slack",
        "slope",
        "top",
        "view",
    )

    def __init__(self, keys: Int64Array | list[Key], rowids: Int64Array) -> None:
        self.keys = keys
        self.rowids = rowids
        self.ids = np.ascontiguousarray(rowids).data
        # A memoryview gives plain ints; np.searchsorted would cost 2.4 us a look-up.
        self.view: Sequence[Key] = (
            np.ascontiguousarray(keys).data if isinstance(keys, np.ndarray) else keys
        )
        # Every 64th key as a list: a look-up bisects that in C without making ints, then 64 more.
        # 0.5 us in a million keys, where bisecting the view alone takes 0.9 us.
        self.heads: list[Key] = list(self.view[::HEADS])
        self.first: Key = self.view[0] if len(keys) else None
        self.last: Key = self.view[-1] if len(keys) else None
        self.top: int = int(rowids.max()) if len(keys) else 0
        self.slope, self.slack = _line(keys) if isinstance(keys, np.ndarray) else (0.0, HEADS)

    def __len__(self) -> int:
        return len(self.rowids)

    def shifted(self, first_rowid: int) -> Run:
        """A copy with RowIDs, of a run whose RowIDs were offsets into a batch."""
        run = copy(self)
        run.rowids = self.rowids + first_rowid
        run.ids = np.ascontiguousarray(run.rowids).data
        run.top = self.top + first_rowid
        return run

    def kept(self, mask: BoolArray) -> Run:
        """The keys and RowIDs that a mask keeps."""
        keys = self.keys
        left = keys[mask] if isinstance(keys, np.ndarray) else [*compress(keys, mask.tolist())]
        return Run(left, self.rowids[mask])

    def newest(self, key: Key) -> int:
        """The largest RowID of a key between first and last, -1 when it is not here."""
        view, slack = self.view, self.slack
        if slack < HEADS:
            # Nearly evenly spaced keys, as a counter gives them out: 0.15 us instead of 0.6.
            place = int((key - self.first) * self.slope + 0.5)
            if slack:
                low = place - slack if place > slack else 0
                place = bisect_right(view, key, low, min(place + slack + 1, len(view))) - 1
        else:
            low = (bisect_right(self.heads, key) - 1) * HEADS
            place = bisect_right(view, key, low, min(low + HEADS, len(view))) - 1
        return self.ids[place] if view[place] == key else -1

    def find(self, key: Key) -> list[int]:
        """RowIDs of the key's versions in this run, ascending."""
        if not self.heads or not self.first <= key <= self.last:
            return []
        place = bisect_left(self.view, key)
        found = []
        while place < len(self.view) and self.view[place] == key:
            found.append(self.ids[place])
            place += 1
        return found

    def slice(self, low: Key | None, high: Key | None) -> Sequence[Key]:
        """Keys in [low, high), ascending."""
        begin = 0 if low is None else bisect_left(self.view, low)
        end = len(self.view) if high is None else bisect_left(self.view, high)
        part = self.view[begin:end]
        return part.tolist() if isinstance(part, memoryview) else part


def _line(keys: Int64Array) -> tuple[float, int]:
    """How far from a straight line the places of these keys lie: (places per key, most off)."""
    count = len(keys)
    span = int(keys[-1]) - int(keys[0]) if count else 0
    if not 0 < span < SPAN_MAX:
        return 0.0, HEADS
    slope = (count - 1) / span
    guesses = ((keys - keys[0]) * slope + 0.5).astype(np.int64)
    return slope, int(np.abs(guesses - np.arange(count)).max())


def sort_run(keys: Int64Array | list[Key]) -> Run:
    """Sort a batch's keys; the run's RowIDs are offsets into the batch until `shifted`."""
    if isinstance(keys, np.ndarray):
        order = np.argsort(keys, kind="stable")
        return Run(keys[order], order.astype(np.int64))
    places = sorted(range(len(keys)), key=keys.__getitem__)
    return Run([keys[i] for i in places], np.array(places, dtype=np.int64))


def merge_runs(runs: Sequence[Run]) -> Run:
    """One run out of several, oldest first, so that equal keys keep ascending RowIDs."""
    rowids = np.concatenate([run.rowids for run in runs])
    if isinstance(runs[0].keys, np.ndarray):
        keys = np.concatenate([run.keys for run in runs])
        order = np.lexsort((rowids, keys))
        return Run(keys[order], rowids[order])
    flat = [key for run in runs for key in run.keys]
    pairs = sorted(zip(flat, rowids.tolist(), strict=True))
    return Run([key for key, _ in pairs], np.array([rowid for _, rowid in pairs], dtype=np.int64))


class MemTree:
    """The primary-key index of L0."""

    __slots__ = ("_ordered", "_ordering", "_pending", "older", "recent", "runs")

    def __init__(self) -> None:
        self.recent: dict[Key, int] = {}
        self.older: dict[int, int] = {}
        self.runs: tuple[Run, ...] = ()
        self._pending: list[Key] = []
        self._ordered: list[Key] = []
        self._ordering = Lock()

    def put(self, key: Key, rowid: int) -> None:
        """One new version. Caller holds the commit lock."""
        recent = self.recent
        old = recent.get(key)
        if old is None:
            self._pending.append(key)
        else:
            self.older[rowid] = old
        recent[key] = rowid

    def link(self, run: Run) -> None:
        """A bulk commit's versions. Caller holds the commit lock."""
        if len(run):
            self.runs = (*self.runs, run)

    def newest(self, key: Key) -> int:
        """RowID of the newest version of the key, 0 when there is none."""
        rowid = self.recent.get(key, 0)
        for run in self.runs:
            if run.top > rowid and run.first <= key <= run.last:
                found = run.newest(key)
                if found > rowid:
                    rowid = found
        return rowid

    def versions(self, key: Key) -> Iterator[int]:
        """RowIDs of all versions of the key, newest first.

        Found as they are asked for: a hot row has thousands, and nearly all who ask want one of the
        first few.
        """
        rowid, older = self.recent.get(key, 0), self.older
        bulk = sorted(found for run in self.runs for found in run.find(key))
        while rowid or bulk:
            if bulk and bulk[-1] > rowid:
                yield bulk.pop()
            else:
                yield rowid
                rowid = older.get(rowid, 0)

    def range(self, low: Key | None, high: Key | None) -> list[Key]:
        """Keys in [low, high), ascending, each once, whatever their visibility."""
        parts: list[Sequence[Key]] = [run.slice(low, high) for run in self.runs]
        ordered = self._order()
        begin = 0 if low is None else bisect_left(ordered, low)
        end = len(ordered) if high is None else bisect_left(ordered, high)
        parts.append(ordered[begin:end])
        # Sorting merges sorted lists in linear time, and without a Python call per key.
        return list(dict.fromkeys(sorted(chain.from_iterable(parts))))

    def cut(
        self, low: Key | None, high: Key | None, count: int, *, reverse: bool = False
    ) -> Key | None:
        """A key that cuts [low, high) so that each part has at most `count` entries before it, or
        from it on with `reverse`. None when there are not that many."""
        cuts = []
        for part in (self._order(), *(run.view for run in self.runs)):
            begin = 0 if low is None else bisect_left(part, low)
            end = len(part) if high is None else bisect_left(part, high)
            if end - begin > count:
                cuts.append(part[end - count] if reverse else part[begin + count])
        return (max if reverse else min)(cuts, default=None)

    def drop(self, key: Key) -> None:
        """Forget a key whose newest version undo GC has removed. Caller holds the commit lock."""
        self.older.pop(self.recent.pop(key), None)

    def swap_runs(self, old: Sequence[Run], new: Run) -> None:
        """Replace runs by their merged form. Caller holds the commit lock."""
        gone = {id(run) for run in old}
        if gone <= {id(run) for run in self.runs}:
            self.runs = (new, *(run for run in self.runs if id(run) not in gone))

    def swap_run(self, old: Run, new: Run) -> None:
        """Replace a run by what is left of it. Caller holds the commit lock."""
        runs = (new if run is old else run for run in self.runs)
        self.runs = tuple(run for run in runs if len(run))

    def forget_order(self) -> None:
        """Order anew from `recent`, when next asked; called when keys were dropped."""
        with self._ordering:
            self._pending = list(self.recent)
            self._ordered = []

    def _order(self) -> list[Key]:
        """The keys of `recent`, sorted. Timsort merges the few new ones in linear time."""
        with self._ordering:
            count = len(self._pending)
            if count:
                merged = self._ordered + self._pending[:count]
                merged.sort()
                # The list is swapped, not sorted in place: other threads may be slicing it.
                self._ordered = merged
                del self._pending[:count]
            return self._ordered

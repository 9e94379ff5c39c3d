"""Scan plan, deciding half: which files stand for a table at a snapshot, and what each one needs.

    shape + ended RowIDs + S + predicate --plan_scan--> clean | dirty | late | pages
                                           (this file)    |
                                             read/source.py, read/scan.py, spark/: the runners

    clean   every row is visible: the file is read as it is
    dirty   some RowID in its range has ended: read less the rows in `dead` (an anti-join)
    late    some row is newer than S: read less `dead`, and only where `_commit_ts` <= S
    pages   L0, whose tombstones are in memory (`runs`, and marks in the pages)

A plan is a list of objects, rows in memory, tombstones. All runners give the
same rows for the same plan. Objects that cannot hold a row that the predicate wants are left out by
their zonemaps; the predicate itself is the runner's business.

Invariants
- A row of the table at S is in exactly one of the plan's files or pages, unless it cannot match.
- `dead` holds RowIDs inside the ranges of dirty and late objects only, ascending, each once.
- Nothing here reads a file.

Not here: in which order memory and shape are looked at (scan.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from halocline.catalog import ObjectEntry
from halocline.objects import ObjectStats
from halocline.rows.deletes import TombstoneRun
from halocline.rows.page import Page
from halocline.rows.state import Shape
from halocline.schema.batches import Int64Array

if TYPE_CHECKING:
    from halocline.read.prune import Predicate

NONE: Final[Int64Array] = np.zeros(0, dtype=np.int64)


class ScanPlan(NamedTuple):
    """All that a runner needs to produce the rows of a table at `ts`."""

    ts: int
    clean: tuple[ObjectEntry, ...] = ()
    dirty: tuple[ObjectEntry, ...] = ()
    late: tuple[ObjectEntry, ...] = ()
    dead: Int64Array = NONE
    pages: tuple[tuple[Page, int], ...] = ()
    """Pages of L0 with the number of their rows when the plan was made."""
    runs: tuple[TombstoneRun, ...] = ()
    """Bulk tombstones in memory, which leave no mark in pages."""

    @property
    def objects(self) -> tuple[ObjectEntry, ...]:
        return (*self.clean, *self.dirty, *self.late)


def plan_scan(
    shape: Shape,
    ended: Int64Array,
    ts: int,
    predicate: Predicate | None = None,
    *,
    runs: Sequence[TombstoneRun] = (),
    own: Iterable[ObjectEntry] = (),
) -> ScanPlan:
    """Sort the objects of a shape by what reading them needs.

    `ended`: RowIDs that do not count for this reader. `own`: objects that only this reader has,
    because its transaction has written them and not committed yet.
    """
    counting = [entry for entry in shape.tier.data if entry.counts_at(ts)]
    # By key, so that a scan without an order comes in roughly that of the primary key.
    counting.sort(key=lambda entry: (entry.stats.key_min, entry.id))
    entries = [*counting, *own]
    if predicate is not None:
        entries = [one for one in entries if predicate.may_match(one.stats.zonemaps)]
    clean: list[ObjectEntry] = []
    dirty: list[ObjectEntry] = []
    late: list[ObjectEntry] = []
    for entry in entries:
        stats = entry.stats
        if stats.commit_ts_max is not None and entry.commit_ts_max > ts:
            late.append(entry)
        elif len(ended) and _meets(stats, ended):
            dirty.append(entry)
        else:
            clean.append(entry)
    return ScanPlan(
        ts=ts,
        clean=tuple(clean),
        dirty=tuple(dirty),
        late=tuple(late),
        dead=_inside([*dirty, *late], ended),
        pages=tuple(shape.counted()),
        runs=tuple(runs),
    )


def _meets(stats: ObjectStats, ended: Int64Array) -> bool:
    """Is any RowID of the object's range among those that ended?"""
    place = int(np.searchsorted(ended, stats.rowid_min))
    return place < len(ended) and bool(ended[place] <= stats.rowid_max)


def _inside(entries: Sequence[ObjectEntry], ended: Int64Array) -> Int64Array:
    """The RowIDs that lie in the range of any of these objects."""
    if not entries or not len(ended):
        return NONE
    lows = np.searchsorted(ended, [entry.stats.rowid_min for entry in entries])
    highs = np.searchsorted(ended, [entry.stats.rowid_max for entry in entries], side="right")
    wanted = np.zeros(len(ended) + 1, dtype=np.int64)
    np.add.at(wanted, lows, 1)
    np.add.at(wanted, highs, -1)
    return ended[np.cumsum(wanted[:-1]) > 0]

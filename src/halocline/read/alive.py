"""Which versions in objects have ended by a timestamp.

    RowID --> deletion buffer (memory) --> tombstone objects whose ranges hold it --> ended or not

Objects are never changed, so that a row of one has ended is written elsewhere: in memory while it
is new, in a tombstone object later, for a while in both. Both are asked, and one answer is enough.

Memory is asked first and the shape is taken after it: what leaves memory is in the shape before it
goes. That the rows in question may come from an older shape does no harm. Between the two, objects
can only have been added, or have ended after `ts` and count for it still.

Not here: rows of L0, whose tombstones are always in memory (rows/state.py).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from halocline.objects.batch import KeyBatch
from halocline.objects.columns import ROWID
from halocline.rows.deletes import DeletionBuffer
from halocline.rows.state import TableState
from halocline.schema.batches import BoolArray, Int64Array


def is_ended(state: TableState, rowid: int, key: bytes, ts: int) -> bool:
    """Had the version of this RowID and key ended by `ts`?"""
    tombstone = state.deletes.find(rowid)
    if tombstone is not None and tombstone.commit_ts <= ts:
        return True
    for entry in state.shape.tier.tombstones:
        stats = entry.stats
        if (
            stats.rowid_min <= rowid <= stats.rowid_max
            and stats.key_min <= key <= stats.key_max
            and entry.counts_at(ts)
        ):
            assert entry.file is not None
            places = state.finder_by_rowid("tombstone").locate(entry.file, rowid)
            if any(place.commit_ts <= ts for place in places):
                return True
    return False


def ended_mask(state: TableState, rowids: Int64Array, ts: int) -> BoolArray:
    """Which of these versions had ended by `ts`."""
    dead = _ended_in_memory(state.deletes, rowids, ts)
    tier = state.shape.tier
    if not len(rowids) or not tier.tombstones:
        return dead
    low, high = int(rowids.min()), int(rowids.max())
    batch: KeyBatch | None = None
    for entry in tier.tombstones:
        stats = entry.stats
        if stats.rowid_max < low or stats.rowid_min > high or not entry.counts_at(ts):
            continue
        finder = state.finder_by_rowid("tombstone")
        if batch is None:
            batch = finder.batch(pa.table({ROWID: rowids}))
        assert entry.file is not None
        hits = finder.find_many(entry.file, batch)
        dead[hits.positions[hits.commit_ts <= ts]] = True
    return dead


def _ended_in_memory(deletes: DeletionBuffer, rowids: Int64Array, ts: int) -> BoolArray:
    dead = np.zeros(len(rowids), dtype=np.bool_)
    ended = deletes.ended
    if ended:
        plain = rowids.tolist()
        hits = np.fromiter(map(ended.__contains__, plain), dtype=np.bool_, count=len(plain))
        for place in np.nonzero(hits)[0].tolist():
            tombstone = ended.get(plain[place])  # gone in between: then it is in an object
            dead[place] = tombstone is not None and tombstone[0] <= ts
    for run in deletes.runs:
        if len(run) and run.ts_min <= ts:
            places = np.minimum(np.searchsorted(run.rowids, rowids), len(run) - 1)
            dead |= (run.rowids[places] == rowids) & (run.stamps[places] <= ts)
    return dead

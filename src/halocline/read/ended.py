"""Which row versions had ended at a snapshot: one of them, many of them, or all.

    deletion buffer (memory) --------> |--is_ended, ended_mask--> point reads, ranges
    tombstone objects that count ----> |--ended_rowids----------> anti-joins of scans

Objects are never changed, so that a row of one has ended is written elsewhere: in memory while it
is new, in a tombstone object later, for a while in both. Both are asked, and one answer is enough.

Memory is asked first and the shape is taken after it: what leaves memory is in the shape before it
goes. That the rows in question may come from an older shape does no harm. Between the two, objects
can only have been added, or have ended after `ts` and count for it still. `ended_rowids` takes a
tier that its caller already had, so it asks the tier of today as well.

Single RowIDs are looked up in tombstone objects as keys are in data objects, block by block. For
scans each tombstone object is read and verified once; RowIDs and stamps are kept in the index pool.
One that would fill a quarter of it is read again every time, which is slow but right.

Invariants
- A version is dead at ts iff its RowID is in the answer for ts (in memory and in objects alike).
- Arrays in the pool are never handed out, only copies of parts of them.

Not here: rows of L0, whose tombstones are always in memory (rows/state.py).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from halocline.catalog import ObjectEntry
from halocline.ids import NEVER
from halocline.objects.batch import KeyBatch
from halocline.objects.columns import COMMIT_TS, ROWID, tombstone_schema
from halocline.rows.deletes import DeletionBuffer
from halocline.rows.state import TableState
from halocline.rows.tier import Tier
from halocline.schema.batches import BoolArray, Int64Array

NONE: Int64Array = np.zeros(0, dtype=np.int64)
_ROW_BYTES = 16


class _Ends(NamedTuple):
    rowids: Int64Array
    stamps: Int64Array


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
            found = state.finder_by_rowid("tombstone").locate(entry.file, rowid)
            if any(one.commit_ts <= ts for one in found):
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
        for at in np.nonzero(hits)[0].tolist():
            tombstone = ended.get(plain[at])  # gone in between: then it is in an object
            dead[at] = tombstone is not None and tombstone[0] <= ts
    for run in deletes.runs:
        if len(run) and run.ts_min <= ts:
            nearest = np.minimum(np.searchsorted(run.rowids, rowids), len(run) - 1)
            dead |= (run.rowids[nearest] == rowids) & (run.stamps[nearest] <= ts)
    return dead


def ended_rowids(
    state: TableState, tier: Tier, ts: int, low: int = 0, high: int = NEVER
) -> Int64Array:
    """RowIDs in [low, high) that had ended by `ts`, ascending, each once."""
    memory = state.deletes.ended_by(ts, low, high)
    found = memory + in_objects(state, tier, ts, low, high)
    today = state.shape.tier
    if today is not tier:
        found += in_objects(state, today, ts, low, high)
    return merged(found)


def in_objects(state: TableState, tier: Tier, ts: int, low: int, high: int) -> list[Int64Array]:
    """RowIDs that tombstone objects alone say had ended: sorted arrays, which may overlap."""
    found = []
    for entry in tier.tombstones:
        stats = entry.stats
        if entry.counts_at(ts) and stats.rowid_min < high and low <= stats.rowid_max:
            rowids = _of_object(state, entry, ts, low, high)
            if len(rowids):
                found.append(rowids)
    return found


def _of_object(state: TableState, entry: ObjectEntry, ts: int, low: int, high: int) -> Int64Array:
    pool, node = state.shelf.index, ("ended", entry.file.id if entry.file else entry.id)
    size = _ROW_BYTES * entry.stats.rows
    if size > pool.budget_bytes // 4:
        return _cut(_load(state, entry), entry, ts, low, high)
    with pool.pin(node, lambda: (_load(state, entry), size), expect=size) as ends:
        return _cut(ends, entry, ts, low, high).copy()


def _load(state: TableState, entry: ObjectEntry) -> _Ends:
    assert entry.file is not None
    table = state.shelf.reader.read(
        entry.file, tombstone_schema(state.schema), columns=[], hidden=[ROWID, COMMIT_TS]
    )
    return _Ends(table.column(ROWID).to_numpy(), table.column(COMMIT_TS).to_numpy())


def _cut(ends: _Ends, entry: ObjectEntry, ts: int, low: int, high: int) -> Int64Array:
    part = slice(*np.searchsorted(ends.rowids, [low, high]).tolist())
    rowids = ends.rowids[part]
    return rowids if entry.commit_ts_max <= ts else rowids[ends.stamps[part] <= ts]


def merged(parts: list[Int64Array]) -> Int64Array:
    """Sorted arrays as one, each RowID once."""
    if len(parts) < 2:
        return parts[0] if parts else NONE
    rowids: Int64Array = np.concatenate(parts)
    rowids.sort(kind="stable")  # the parts are sorted: merging them is all there is to do
    once: Int64Array = rowids[np.append(True, rowids[1:] != rowids[:-1])]
    return once

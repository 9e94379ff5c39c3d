"""Which row versions had ended at a snapshot: RowIDs out of memory and out of tombstone objects.

    deletion buffer --singles, runs--> |
                                       |--> sorted RowIDs, each once --> anti-joins of scans
    tombstone objects that count ----> |

A tombstone is in memory, in an object, or in both, and leaves memory only when the shape has its
object. So memory is read first and the shape after it: `snapshot_of` does both in that order.
`ended_rowids` takes a tier that its caller already had, which may be older than what memory has let
go of since, so it asks the tier of today as well.

Each tombstone object is read and verified once; RowIDs and stamps are kept in the index pool. One
that does not fit there is read again every time, which is slow but right.

Invariants
- A version is dead at ts iff its RowID is in the answer for ts (in memory and in objects alike).
- Arrays in the pool are never handed out, only copies of parts of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from halocline.catalog import ObjectEntry
from halocline.errors import UnavailableError
from halocline.ids import NEVER
from halocline.objects.columns import COMMIT_TS, ROWID, tombstone_schema
from halocline.rows.state import TableState
from halocline.rows.tier import Tier
from halocline.schema.batches import Int64Array

NONE: Int64Array = np.zeros(0, dtype=np.int64)
_ROW_BYTES = 16


class _Ends(NamedTuple):
    rowids: Int64Array
    stamps: Int64Array


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
    if size <= pool.budget_bytes // 4:
        try:
            with pool.pin(node, lambda: (_load(state, entry), size), expect=size) as ends:
                return _cut(ends, entry, ts, low, high).copy()
        except UnavailableError:
            pass  # No room in the pool: reading it again tells whether it is the disk instead.
    return _cut(_load(state, entry), entry, ts, low, high)


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

"""Gather what a move takes: rows and tombstones of L0 as Arrow, in the order of their objects.

    frozen pages   --RowID ranges-->  rows sorted by key, then RowID, with `_rowid`, `_commit_ts`
    deletion buffer --commit_ts---->  tombstones sorted by RowID, all five fields

Every version of a page goes, whether it has ended or not: undo GC has just removed those that no
snapshot can see, and the tombstones of the others travel beside them.

Invariants
- Rows of one key are in RowID order, which is the order of their commits.
- Pages are frozen and stay as they are: nothing is locked while rows are sorted.

Not here: which ranges (plan.py), files (run.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from halocline.objects.columns import CHANGED, COMMIT_TS, HIDDEN, ROWID, SUCCESSOR
from halocline.objects.keybytes import is_sorted
from halocline.objects.order import sort_rows
from halocline.rows.deletes import TombstoneRun, merge_tombstones
from halocline.rows.page import FrozenPage, native_of
from halocline.rows.resident import resident
from halocline.rows.state import TableState
from halocline.schema.batches import BoolArray, Int64Array
from halocline.schema.evolve import carry, extra_ids
from halocline.schema.schema import Schema


def gather_rows(pages: Sequence[FrozenPage], rows: tuple[int, int], schema: Schema) -> pa.Table:
    """All versions in a range of RowIDs, sorted by key, then RowID, in the shape of a schema."""
    batches: list[pa.RecordBatch] = []
    rowids: list[Int64Array] = []
    stamps: list[Int64Array] = []
    for page in pages:
        held = page.rowid_array(len(page))
        low, high = np.searchsorted(held, rows).tolist()
        if low < high:
            native = native_of(page)
            batch = native.batch(len(native)).slice(low, high - low)
            same = native.schema.version == schema.version and not extra_ids(schema)
            batches.append(batch if same else carry(batch, native.schema, schema))
            rowids.append(held[low:high])
            stamps.append(page.stamp_array(len(page))[low:high])
    table = pa.Table.from_batches(batches, schema=schema.arrow)
    for name, parts in ((ROWID, rowids), (COMMIT_TS, stamps)):
        values = np.concatenate([np.zeros(0, dtype=np.int64), *parts])
        table = table.append_column(name, pa.array(values))
    names = list(schema.primary_key)
    if not names or is_sorted([table.column(name) for name in names]):
        return table.combine_chunks()
    return sort_rows(table, names)


def gather_tombstones(state: TableState, after_ts: int, until_ts: int, floor: int) -> pa.Table:
    """Tombstones with after_ts < commit_ts <= until_ts, sorted by RowID.

    Left out are those that ended at or below the floor and whose row is gone. Caller holds the
    turn of the table, and has held the commit lock since `until_ts` was committed.
    """
    runs = state.deletes.runs
    masks = [(run.stamps > after_ts) & (run.stamps <= until_ts) for run in runs]
    fresh = map(TombstoneRun.kept, runs, masks)
    merged = merge_tombstones([_singles(state, after_ts, until_ts), *fresh])
    # A job that did not know may have ended a version once more: the earliest tombstone counts.
    first = np.append(True, merged.rowids[1:] != merged.rowids[:-1])[: len(merged)]
    merged = merged.kept(first)
    return _as_table(merged.kept(~_dead(state, merged, floor)), state.schema)


def _singles(state: TableState, after_ts: int, until_ts: int) -> TombstoneRun:
    chosen = [
        (rowid, one)
        for rowid, one in state.deletes.ended.copy().items()
        if after_ts < one[0] <= until_ts
    ]
    count = len(chosen)
    return TombstoneRun(
        np.fromiter((rowid for rowid, _ in chosen), np.int64, count),
        np.fromiter((one[0] for _, one in chosen), np.int64, count),
        keys=[one[3] for _, one in chosen],
        successors=np.fromiter((one[1] for _, one in chosen), np.int64, count),
        changed=[one[2] for _, one in chosen],
    )


def _dead(state: TableState, run: TombstoneRun, floor: int) -> BoolArray:
    """Tombstones whose row is gone: it was in L0, and undo GC has removed it."""
    dead = (run.stamps <= floor) & (run.rowids >= state.moved_rowid)
    if dead.any():
        dead &= ~resident(state.shape, run.rowids)
        for entry in state.shape.tier.data:
            stats = entry.stats
            dead &= (run.rowids < stats.rowid_min) | (run.rowids > stats.rowid_max)
    return dead


def _as_table(run: TombstoneRun, schema: Schema) -> pa.Table:
    columns = {ROWID: pa.array(run.rowids)}
    if schema.primary_key:
        keys = schema.key_table(run.keys)
        columns |= {name: keys.column(name) for name in schema.primary_key}
    columns[COMMIT_TS] = pa.array(run.stamps)
    columns[SUCCESSOR] = pa.array(run.successors, mask=run.successors == 0)
    columns[CHANGED] = pa.array(run.changed, HIDDEN[CHANGED].type)
    return pa.table(columns)

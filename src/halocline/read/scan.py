"""Scans of L0: the rows of a table that a snapshot sees, as Arrow batches.

    pages --stamps ascend: a prefix--> --marks and runs: a mask--> batches (zero-copy if no mask)

Of each page a snapshot sees a prefix, less the rows whose tombstone has commit_ts <= S, less the
rows that the reading transaction itself has ended. A page without dead rows is passed on as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from halocline.rows.deletes import TombstoneRun
from halocline.rows.page import Int64Array, Mask, Page
from halocline.rows.state import TableState

NONE: Int64Array = np.zeros(0, dtype=np.int64)


def scan_pages(
    state: TableState, ts: int, *, without: Int64Array = NONE, rowids: bool = False
) -> Iterator[pa.RecordBatch]:
    """Visible rows, page by page. `without`: RowIDs to leave out; `rowids`: add `_rowid`."""
    # Runs are read before pages: undo GC swaps a page before it forgets the run that thinned it.
    runs = [run for run in state.deletes.runs if run.ts_min <= ts]
    for page, count in state.pages():
        visible = page.visible_count(count, ts)
        if not visible:
            continue
        batch = page.batch(count)
        if visible < batch.num_rows:
            batch = batch.slice(0, visible)
        if rowids:
            ids = pa.array(page.rowid_array(count)[:visible])
            batch = batch.append_column("_rowid", ids)
        kept = _alive(page, runs, visible, ts, without)
        if kept is not None:
            batch = batch.filter(pa.array(kept))
        if batch.num_rows:
            yield batch


def scan_table(
    state: TableState, ts: int, *, without: Int64Array = NONE, rowids: bool = False
) -> pa.Table:
    """All visible rows as one table."""
    schema = state.schema.arrow
    if rowids:
        schema = schema.append(pa.field("_rowid", pa.int64()))
    return pa.Table.from_batches(
        list(scan_pages(state, ts, without=without, rowids=rowids)), schema=schema
    )


def count_rows(state: TableState, ts: int) -> int:
    """How many rows a snapshot sees, without touching a row."""
    total = 0
    runs = [run for run in state.deletes.runs if run.ts_min <= ts]
    for page, count in state.pages():
        visible = page.visible_count(count, ts)
        kept = _alive(page, runs, visible, ts, NONE)
        total += visible if kept is None else int(kept.sum())
    return total


def _alive(
    page: Page, runs: Sequence[TombstoneRun], visible: int, ts: int, without: Int64Array
) -> Mask | None:
    """Which of the first `visible` rows live at `ts`; None when all do."""
    dead = [page.marks.until(ts)]
    dead += [page.offsets_of(run.within(page.start, page.end, ts)) for run in runs]
    if len(without):
        begin, end = np.searchsorted(without, [page.start, page.end])
        dead.append(page.offsets_of(without[begin:end]))
    offsets = np.concatenate(dead)
    offsets = offsets[offsets < visible]
    if not len(offsets):
        return None
    kept = np.ones(visible, dtype=np.bool_)
    kept[offsets] = False
    return kept

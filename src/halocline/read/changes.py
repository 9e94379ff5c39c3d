"""The change feed of L0: every row version that began or ended in (since, until].

    version began, nothing preceded it  -> insert
    version began as a successor        -> update_after
    version ended with a successor      -> update_before
    version ended without one           -> delete

Events come in commit order; inside a commit the befores and deletes come first, then the afters and
inserts, so that applying them one by one never meets a key twice.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from halocline.rows.lookup import take
from halocline.rows.page import Int64Array
from halocline.rows.state import TableState
from halocline.schema import Schema

KINDS = pa.array(["delete", "update_before", "update_after", "insert"])


def changes_schema(schema: Schema) -> pa.Schema:
    return schema.arrow.append(pa.field("_change", pa.string(), nullable=False)).append(
        pa.field("_commit_ts", pa.int64(), nullable=False)
    )


def read_changes(state: TableState, since: int, until: int) -> pa.Table:
    """All events of one table, in order."""
    ended, ended_ts, successors = state.deletes.between(since, until)
    began, began_ts = _began(state, since, until)
    # A version that began and ended in one commit was never visible to anyone.
    began_kind = np.where(np.isin(began, successors[successors > 0]), 2, 3)
    ended_kind = np.where(successors > 0, 1, 0)
    rowids = np.concatenate([ended, began])
    stamps = np.concatenate([ended_ts, began_ts])
    kinds = np.concatenate([ended_kind, began_kind])
    order = np.lexsort((rowids, kinds >= 2, stamps))
    table = take(state, rowids[order])
    names = KINDS.take(pa.array(kinds[order]))
    table = table.append_column(pa.field("_change", pa.string(), nullable=False), names)
    stamps_array = pa.array(stamps[order], pa.int64())
    return table.append_column(pa.field("_commit_ts", pa.int64(), nullable=False), stamps_array)


def _began(state: TableState, since: int, until: int) -> tuple[Int64Array, Int64Array]:
    rowids, stamps = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for page, count in state.pages():
        begin, end = page.visible_count(count, since), page.visible_count(count, until)
        if begin < end:
            rowids.append(page.rowid_array(count)[begin:end])
            stamps.append(page.stamp_array(count)[begin:end])
    return np.concatenate(rowids), np.concatenate(stamps)

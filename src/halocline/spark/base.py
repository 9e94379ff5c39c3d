"""Base: the table that a write job is checked against, packed for its executors.

    table at the snapshot --> data objects that the input can meet, dead RowIDs, rows of L0

Objects whose key range does not meet that of the input are left out. L0 travels whole, so it is
flushed first when it is large: what remains was committed a moment ago.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from halocline.objects import ObjectFile
from halocline.read.scan import memory_table, take_plan
from halocline.rows.state import TableState
from halocline.spark.probe import Base

ROWS_ALONG_MAX = 2_000


def pack_base(state: TableState, snapshot: int) -> Base:
    """What executors need to know of a table at a snapshot."""
    plan = take_plan(state, snapshot)
    rows = memory_table(state.schema, plan, rowids=True)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return Base(
        root=state.shelf.root,
        schema=state.schema.to_wire(),
        snapshot=snapshot,
        objects=tuple(
            ObjectFile(entry.key, entry.stats, entry.created_at) for entry in plan.objects
        ),
        dead=np.ascontiguousarray(plan.dead, dtype=np.int64).tobytes(),
        rows=sink.getvalue().to_pybytes(),
    )

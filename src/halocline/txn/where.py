"""Changes by predicate: update and delete of every row that a `where=` holds for.

where --matching--> rows with their ids --few--> one by one
                                        --many--> one part, ascending by RowID,
                                                  or objects (bulk_ends.py)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from halocline.objects.columns import ROWID
from halocline.read.query import matching
from halocline.rows.members import is_among
from halocline.schema.batches import Int64Array
from halocline.txn import write
from halocline.txn.assignment import Assignment, work_out_table
from halocline.txn.core import Core
from halocline.txn.workspace import TableChanges


def update_where(
    core: Core,
    changes: TableChanges,
    where: str,
    params: Sequence[Any] | None,
    assignment: Assignment,
    snapshot: int,
) -> int:
    """Set columns in all rows that match."""
    found = matching(core.duck, changes.view(snapshot).shown(), where, params)
    schema = changes.schema
    touches_key = not schema.key_set.isdisjoint(assignment.values)
    bulk, single = _split_bulk(core, changes, found, touches_key=touches_key)
    rest = list(
        zip(_ids(single).tolist(), schema.from_table(single.drop_columns(ROWID)), strict=True)
    )
    with changes.all_or_nothing():
        if bulk is not None:
            base = bulk.drop_columns(ROWID)
            fresh = _columns(core, changes, assignment, base)
            places = [schema.position(name) for name in fresh]
            write.add_update_part(core, changes, base, _ids(bulk), pa.table(fresh), places)
        write.update_rows(core, changes, rest, assignment, snapshot)
    return int(found.num_rows)


def _columns(
    core: Core, changes: TableChanges, assignment: Assignment, base: pa.Table
) -> dict[str, pa.ChunkedArray]:
    """The columns that are set, and those that count as written, for many rows."""
    schema = changes.schema
    fresh = {
        schema.names[at]: _repeat(value, schema.arrow.field(at).type, base.num_rows)
        for at, value in assignment.values.items()
    }
    if not assignment.is_constant:
        columns, reads = work_out_table(core.duck, schema, changes.entry.name, assignment, base)
        fresh = {schema.names[at]: base.column(schema.names[at]) for at in reads} | fresh
        fresh |= {schema.names[at]: column for at, column in columns.items()}
    return fresh


def _repeat(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    if pa.types.is_nested(kind):
        return pa.array([value] * count, kind)
    return pa.repeat(pa.scalar(value, kind), count)


def delete_where(
    core: Core,
    changes: TableChanges,
    where: str,
    params: Sequence[Any] | None,
    snapshot: int,
) -> int:
    """End all rows that match."""
    names = changes.schema.primary_key
    found = matching(core.duck, changes.view(snapshot).shown(), where, params, names)
    bulk, rest = _split_bulk(core, changes, found, touches_key=False)
    if bulk is not None:
        write.add_delete_part(core, changes, bulk.drop_columns(ROWID), _ids(bulk))
    keys = changes.schema.keys_of(rest) if names else [None] * rest.num_rows
    for row_id, key in zip(_ids(rest).tolist(), keys, strict=True):
        write.remove(changes, row_id, key)
    return int(found.num_rows)


def _split_bulk(
    core: Core, changes: TableChanges, found: pa.Table, *, touches_key: bool
) -> tuple[pa.Table | None, pa.Table]:
    """Many untouched committed rows go as one part, ascending by RowID; others one by one."""
    if found.num_rows <= core.options.bulk_rows or touches_key:
        return None, found
    ids = _ids(found)
    plain = (ids > 0) & ~is_among(ids, changes.ended())
    bulk = found.filter(pa.array(plain))
    bulk = bulk.take(pa.array(np.argsort(_ids(bulk), kind="stable")))
    return bulk if bulk.num_rows else None, found.filter(pa.array(~plain))


def _ids(table: pa.Table) -> Int64Array:
    return np.ascontiguousarray(table.column(ROWID).to_numpy())

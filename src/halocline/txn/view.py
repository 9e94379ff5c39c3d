"""What a transaction sees: the table at its snapshot, with its own changes laid over it.

    own singles --miss--> own parts --miss--> table at the snapshot

Internally every visible row has an id: positive ids are committed RowIDs (of the version that is
seen, or that an own update replaces), negative ones are rows this transaction inserted. That is
what `update` and `delete` by predicate act on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from halocline.read.point import find
from halocline.read.scan import scan_table
from halocline.rows.lookup import locate_many, take
from halocline.rows.page import Int64Array, Row
from halocline.txn.workspace import Part, TableChanges

_PART = 1 << 32
"""Ids of rows in the n-th part start below -(n + 1) * 2**32."""


def see(changes: TableChanges, key: Any, snapshot: int) -> tuple[Row | None, int]:
    """(row, id) of a key as the transaction sees it; (None, 0) when it sees none."""
    own = changes.own.get(key)
    if own is not None:
        return own
    if changes.parts:
        hit = changes.find_part(key)
        if hit is not None:
            part, offset = hit
            if part.table is None:
                return None, 0
            return part.row(changes.schema, offset), part_id(changes, part, offset)
    rowid = find(changes.state, key, snapshot)
    return (changes.state.row(rowid), rowid) if rowid else (None, 0)


def part_id(changes: TableChanges, part: Part, offset: int) -> int:
    """The id of a row in a part: its target's RowID, or a negative number."""
    if part.targets is not None:
        return int(part.targets[offset])
    place = next(i for i, other in enumerate(changes.parts) if other is part)
    return -((place + 1) * _PART) - offset


def part_of(changes: TableChanges, row_id: int) -> tuple[Part, int]:
    """Back from a negative id below -2**32 to the inserted row's part and offset."""
    place, offset = divmod(-row_id, _PART)
    return changes.parts[place - 1], offset


def in_part(row_id: int) -> bool:
    return row_id <= -_PART


def visible(changes: TableChanges, snapshot: int, *, ids: bool = False) -> pa.Table:
    """Every row the transaction sees; with `ids`, their ids as column `_rowid`."""
    without = changes.ended()
    base = scan_table(changes.state, snapshot, without=without, rowids=ids)
    own = [_with_ids(table, ids_of, ids) for table, ids_of in _own_tables(changes)]
    return pa.concat_tables([base, *own]) if own else base


def visible_many(changes: TableChanges, keys: Sequence[Any], snapshot: int) -> pa.Table:
    """The rows of these keys, in their order; absent keys are left out."""
    if changes.own or changes.parts:
        rows = [see(changes, key, snapshot)[0] for key in keys]
        return changes.schema.to_table([row for row in rows if row is not None])
    wanted = np.array(keys, dtype=np.int64) if changes.schema.int_key else keys
    rowids = locate_many(changes.state, wanted, snapshot)
    return take(changes.state, rowids[rowids > 0])


def visible_range(
    changes: TableChanges, low: Any, high: Any, snapshot: int, *, reverse: bool, limit: int | None
) -> pa.Table:
    """Rows with low <= key < high in key order."""
    keys = set(changes.state.tree.range(low, high))
    for part in changes.parts:
        if part.run is not None:
            keys.update(part.run.slice(low, high))
    keys.update(
        key for key in changes.own if (low is None or key >= low) and (high is None or key < high)
    )
    rows: list[Row] = []
    for key in sorted(keys, reverse=reverse):
        if limit is not None and len(rows) >= limit:
            break
        row, _ = see(changes, key, snapshot)
        if row is not None:
            rows.append(row)
    return changes.schema.to_table(rows)


def _own_tables(changes: TableChanges) -> list[tuple[pa.Table, Int64Array]]:
    """Own rows with their ids: updated ones, inserted ones, parts."""
    found: list[tuple[pa.Table, Int64Array]] = []
    schema = changes.schema
    if changes.updates:
        rows = [intent.row for intent in changes.updates.values()]
        found.append((schema.to_table(rows), np.array(list(changes.updates), dtype=np.int64)))
    if changes.rows:
        dead = changes.dead
        places = [i for i in range(len(changes.rows)) if dead is None or i not in dead]
        table = schema.to_table([changes.rows[i] for i in places])
        found.append((table, -1 - np.array(places, dtype=np.int64)))
    for place, part in enumerate(changes.parts):
        if part.table is not None and len(part):
            kept = part.kept()
            table = part.table if not part.dropped else part.table.take(kept)
            ids = -((place + 1) * _PART) - kept if part.targets is None else part.targets[kept]
            found.append((table, ids))
    return found


def _with_ids(table: pa.Table, ids: Int64Array, wanted: bool) -> pa.Table:
    return table.append_column("_rowid", pa.array(ids, pa.int64())) if wanted else table

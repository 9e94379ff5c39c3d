"""What a transaction sees: the table at its snapshot, with its own changes laid over it.

    own singles --miss--> own parts --miss--> own objects --miss--> table at the snapshot

Internally every visible row has an id: positive ids are RowIDs (of the committed version that is
seen, or that an own update replaces, or of a row in an own object), negative ones are rows that
this transaction inserted and holds in memory. That is what `update` and `delete` by predicate act
on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from halocline.errors import UsageError
from halocline.objects.keybytes import key_bytes
from halocline.read.lookup import locate_many
from halocline.read.point import find_row
from halocline.read.ranges import read_range
from halocline.read.scan import memory_table, take_plan
from halocline.read.source import Source, source_of
from halocline.rows.members import is_among
from halocline.rows.page import Int64Array, Row
from halocline.txn.workspace import Part, TableChanges

if TYPE_CHECKING:
    from halocline.read.prune import Predicate

BATCH = 8
"""Fewer keys than this are looked up one by one: 20 us each, and a batch costs 200."""
_PART = 1 << 32
"""Ids of rows in the n-th part start below -(n + 1) * 2**32."""


def see(changes: TableChanges, key: Any, snapshot: int) -> tuple[Row | None, int]:
    """(row, id) of a key as the transaction sees it; (None, 0) when it sees none."""
    if changes.own or changes.parts or changes.objects:
        own = own_row(changes, key)
        if own is not None:
            return own
        found = find_row(changes.state, key, snapshot)
        if found is None or changes.ends(found[0]):
            return None, 0
        return found[1], found[0]
    found = find_row(changes.state, key, snapshot)
    return (None, 0) if found is None else (found[1], found[0])


def see_many(
    changes: TableChanges, keys: Sequence[Any], snapshot: int
) -> list[tuple[Row | None, int]]:
    """`see` for each of the keys. What may be in objects is looked up all at once."""
    if len(keys) < BATCH or not changes.state.shape.tier:
        return [see(changes, key, snapshot) for key in keys]
    wanted = np.array(keys, dtype=np.int64) if changes.schema.int_key else keys
    located = locate_many(changes.state, wanted, snapshot)
    seen: list[tuple[Row | None, int]] = [(None, 0)] * len(keys)
    if changes.own or changes.parts or changes.objects:
        located.rowids[is_among(located.rowids, changes.ended())] = 0
        for place, key in enumerate(keys):
            own = own_row(changes, key)
            if own is not None:
                seen[place] = own
                located.rowids[place] = 0
    places = located.found()
    rows = changes.schema.from_table(located.take(places))
    for place, row in zip(places.tolist(), rows, strict=True):
        seen[place] = (row, int(located.rowids[place]))
    return seen


def own_row(changes: TableChanges, key: Any) -> tuple[Row | None, int] | None:
    """The same for a key that this transaction has written; None when it has not, or when all it
    has done is to end many versions at once, which `ends` knows by their RowIDs."""
    own = changes.own.get(key)
    if own is not None:
        return own
    hit = changes.find_part(key)
    if hit is not None:
        part, offset = hit
        return part.row(changes.schema, offset), part_id(changes, part, offset)
    if changes.objects is not None:
        for rowid, row in changes.objects.find(key):
            if not changes.ends(rowid):
                return row, rowid
    return None


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


def visible(
    changes: TableChanges, snapshot: int, predicate: Predicate | None = None, *, ids: bool = False
) -> pa.Table | Source:
    """Every row the transaction sees; with `ids`, their ids as column `_rowid`.

    A table without objects is one in memory. Rows that cannot satisfy the predicate may be left out
    of what comes from objects.
    """
    without = changes.ended()
    mine = [] if changes.objects is None else changes.objects.data
    plan = take_plan(changes.state, snapshot, predicate, without=without, own=mine)
    base = memory_table(changes.schema, plan, without, rowids=ids)
    own = [_with_ids(table, ids_of, ids) for table, ids_of in _own_tables(changes)]
    memory = pa.concat_tables([base, *own]) if own else base
    if not plan.objects:
        return memory
    return source_of(changes.state.shelf, changes.schema, plan, memory, rowids=ids)


def visible_many(changes: TableChanges, keys: Sequence[Any], snapshot: int) -> pa.Table:
    """The rows of these keys, in their order; absent keys are left out."""
    wanted = np.array(keys, dtype=np.int64) if changes.schema.int_key else keys
    located = locate_many(changes.state, wanted, snapshot)
    if not (changes.own or changes.parts or changes.objects):
        return located.take()
    located.rowids[is_among(located.rowids, changes.ended())] = 0
    places, rows, at = [], [], []
    for place, key in enumerate(keys):
        own = own_row(changes, key)
        if own is None:
            if located.rowids[place]:
                places.append(place)
        elif own[0] is not None:
            rows.append(own[0])
            at.append(place)
    table = located.take(np.array(places, dtype=np.int64))
    if not rows:
        return table
    both = pa.concat_tables([table, changes.schema.to_table(rows)])
    return both.take(pa.array(np.argsort(np.array(places + at), kind="stable")))


def check_limit(limit: object) -> None:
    """Refuses a limit that is not a number of rows."""
    if limit is not None and (type(limit) is not int or limit < 0):
        raise UsageError(f"limit must be a whole number of rows, not {limit!r}")


def visible_range(
    changes: TableChanges, low: Any, high: Any, snapshot: int, *, reverse: bool, limit: int | None
) -> pa.Table:
    """Rows with low <= key < high in key order."""
    if low is not None and high is not None and low >= high:
        return changes.schema.arrow.empty_table()
    without = changes.ended()
    table = read_range(
        changes.state, low, high, snapshot, reverse=reverse, limit=limit, without=without
    )
    own = _own_range(changes, low, high)
    if changes.objects is not None:
        own += changes.objects.between(low, high, without, reverse=reverse, limit=limit)
    if not own:
        return table
    schema = changes.schema
    both = pa.concat_tables([table, *own])
    order = "descending" if reverse else "ascending"
    keys = key_bytes(both.combine_chunks(), schema.primary_key)
    places = pc.array_sort_indices(keys, order=order)
    return both.take(places if limit is None else places[:limit])


def _own_range(changes: TableChanges, low: Any, high: Any) -> list[pa.Table]:
    """Own rows in memory with a key in [low, high), in no order."""
    keys = {
        key for key in changes.own if (low is None or key >= low) and (high is None or key < high)
    }
    for part in changes.parts:
        if part.run is not None:
            keys.update(part.run.slice(low, high))
    objects = changes.objects
    found = [own for own in (own_row(changes, key) for key in keys) if own is not None]
    rows = [row for row, at in found if row is not None and not (objects and objects.owns(at))]
    return [changes.schema.to_table(rows)] if rows else []


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

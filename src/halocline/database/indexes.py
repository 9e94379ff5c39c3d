"""db.indexes(): what indexes there are, how far they are built, and what they are good for.

definitions (catalog) + index objects (tier) + uses in this process (shelf) --> a table

And the part of db.check() that is about them: an index object must be what its kind makes of its
data object today, row by row, at most one of a pair may stand, and none without its data object.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

from halocline.catalog.indexes import columns_of
from halocline.ids import NEVER
from halocline.index import kind_of
from halocline.index.build import difference
from halocline.rows import TableState
from halocline.rows.tier import Tier

_FIELDS: Final = pa.schema(
    [
        ("name", pa.string()),
        ("table", pa.string()),
        ("kind", pa.string()),
        ("columns", pa.list_(pa.string())),
        ("state", pa.string()),
        ("covered", pa.int64()),
        ("objects", pa.int64()),
        ("bytes", pa.int64()),
        ("used", pa.int64()),
        ("rows_saved", pa.int64()),
    ]
)


def index_table(states: Iterable[TableState]) -> pa.Table:
    """A row for each index of these tables.

    The state is `ready` when each data object has its index object, `building` until then, and
    `unknown` for a kind that is not installed here.
    """
    rows = [row for state in states for row in _rows(state)]
    return pa.Table.from_pylist(rows, schema=_FIELDS)


def _rows(state: TableState) -> Iterator[dict[str, Any]]:
    tier, entry = state.newest.shape.tier, state.newest.entry
    data = [one.id for one in tier.data if one.deleted_at == NEVER]
    for index in entry.indexes:
        kind = kind_of(index.kind)
        found = [tier.index_object(id, index.id, NEVER - 1) for id in data]
        covered = [one for one in found if one is not None]
        used, saved = state.shelf.index_use.get(index.id, (0, 0))
        ready = "ready" if len(covered) == len(data) else "building"
        yield {
            "name": index.name,
            "table": entry.name,
            "kind": f"kind {index.kind}" if kind is None else kind.name,
            "columns": columns_of(entry.schema, index),
            "state": "unknown" if kind is None else ready,
            "covered": len(covered),
            "objects": len(data),
            "bytes": sum(one.stats.size_bytes for one in covered),
            "used": used,
            "rows_saved": saved,
        }


def index_problems(state: TableState, tier: Tier, good: Collection[int]) -> Iterator[str]:
    """Every index object that is not what it should be; `good` are data objects that are."""
    indexes = {index.id: index for index in state.newest.entry.indexes}
    pairs: set[tuple[int, int]] = set()
    for entry in tier.index_objects.values():
        pair = (entry.target, entry.index_id)
        if entry.deleted_at < NEVER:
            continue
        if pair in pairs:
            yield f"{entry.key}: its data object has two of that index"
        pairs.add(pair)
        data, index = tier.by_id.get(entry.target), indexes.get(entry.index_id)
        if data is None or data.deleted_at < NEVER:
            yield f"{entry.key}: its data object is gone"
        elif index is not None and data.id in good:
            problem = difference(state.shelf.reader, state.newest.schema, index, entry, data)
            # GC or a drop may have taken it meanwhile.
            if problem and entry.id in state.newest.shape.tier.index_objects:
                yield problem

"""What a write does to keys that are there: rows that are ignored, and changes that are applied.

    ignore    rows of the input --less keys that the transaction sees--> insert
    changes   events of a change feed --the last of each key--> upsert, or delete

Applying a feed batch by batch makes a copy of the table it came from: in a batch only the last
event of a key counts, and its row is whole.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from halocline.errors import SchemaError
from halocline.objects.order import Ordered, key_order
from halocline.read.changes import KINDS
from halocline.read.locate import locate_many
from halocline.txn import Transaction

CHANGE: Final = "_change"
COMMIT_TS: Final = "_commit_ts"
FEED: Final = {CHANGE: pa.field(CHANGE, pa.string()), COMMIT_TS: pa.field(COMMIT_TS, pa.int64())}
_ENDS: Final = ("delete", "update_before")
_PLACE: Final = "_place"


def check_feed(given: pa.Schema) -> None:
    """The two columns that make rows a change feed; SchemaError."""
    for name, field in FEED.items():
        if name not in given.names or given.field(name).type != field.type:
            raise SchemaError(
                f"onConflict=changes needs it, as {field.type}: the stream of another table has it",
                column=name,
            )


def unknown(txn: Transaction, name: str, table: pa.Table) -> pa.Table:
    """The rows whose keys the transaction does not see, the first of each key."""
    state = txn.state_of(name)
    schema = state.schema
    first = _places(table, list(schema.primary_key), "min")
    first = Ordered(first, key_order(first, schema)).take(0, first.num_rows)
    keys = schema.int_keys(first) if schema.int_key else schema.keys_of(first)
    rowids = locate_many(state, keys, txn.snapshot, table=first).rowids
    return table.take(np.sort(first.column(_PLACE).to_numpy()[rowids == 0]))


def apply_changes(txn: Transaction, name: str, table: pa.Table) -> None:
    """Bring a table to where the events of a feed lead."""
    schema = txn.state_of(name).schema
    keys = list(schema.primary_key)
    ranks = pc.index_in(table.column(CHANGE), pa.array(KINDS))
    if ranks.null_count:
        raise SchemaError(f"it must be one of {', '.join(KINDS)}", column=CHANGE)
    order = np.lexsort((ranks.to_numpy(), table.column(COMMIT_TS).to_numpy()))
    table = table.take(pa.array(order))
    table = table.take(_places(table, keys, "max").column(_PLACE))
    ended = pc.is_in(table.column(CHANGE), pa.array(_ENDS))
    rows = table.drop_columns(list(FEED))
    txn.delete_many(name, rows.filter(ended).select(keys))
    rows = rows.filter(pc.invert(ended))
    if rows.num_rows:
        txn.upsert(name, rows)


def _places(table: pa.Table, keys: list[str], which: str) -> pa.Table:
    """Each key of a table once, with the place of its first or last row."""
    numbered = table.select(keys).append_column(_PLACE, pa.array(np.arange(table.num_rows)))
    found = numbered.group_by(keys).aggregate([(_PLACE, which)])
    return found.rename_columns([*keys, _PLACE])

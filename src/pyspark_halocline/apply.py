"""Apply a change feed to a table: the last event of each key becomes an upsert, or a delete.

Applying a feed batch by batch makes a copy of the table it came from: in a batch only the last
event of a key counts, and its row is whole.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from halocline.errors import SchemaError
from halocline.read.changes import KINDS
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


def apply_changes(txn: Transaction, name: str, table: pa.Table) -> None:
    """Bring a table to where the events of a feed lead."""
    schema = txn.state_of(name).schema
    keys = list(schema.primary_key)
    ranks = pc.index_in(table.column(CHANGE), pa.array(KINDS))
    if ranks.null_count:
        raise SchemaError(f"it must be one of {', '.join(KINDS)}", column=CHANGE)
    order = np.lexsort((ranks.to_numpy(), table.column(COMMIT_TS).to_numpy()))
    table = table.take(pa.array(order))
    numbered = table.select(keys).append_column(_PLACE, pa.array(np.arange(table.num_rows)))
    table = table.take(numbered.group_by(keys).aggregate([(_PLACE, "max")]).column(f"{_PLACE}_max"))
    ended = pc.is_in(table.column(CHANGE), pa.array(_ENDS))
    rows = table.drop_columns(list(FEED))
    txn.delete_many(name, rows.filter(ended).select(keys))
    rows = rows.filter(pc.invert(ended))
    if rows.num_rows:
        txn.upsert(name, rows)

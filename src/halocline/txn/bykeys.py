"""Deletes by many keys at once.

keys --sorted, each once--> written by this transaction itself --> one by one
                        --> looked up all at once --few--> one by one
                                                  --many-> one part, ascending by RowID (T-22),
                                                           or objects (endings.py)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from halocline.objects.order import Ordered, key_order, same_as_before
from halocline.read.lookup import locate_many
from halocline.rows.members import is_among
from halocline.schema.schema import Schema
from halocline.txn import bulk, write
from halocline.txn.workspace import TableChanges

if TYPE_CHECKING:
    from halocline.txn.core import Core


def key_table(schema: Schema, keys: Iterable[Any]) -> pa.Table:
    """The key columns of these keys; UsageError when one cannot be a key."""
    plain = [schema.key(key) for key in keys]
    columns = [plain] if len(schema.primary_key) == 1 else list(zip(*plain, strict=True))
    fields = [schema.arrow.field(name) for name in schema.primary_key]
    values = columns or [()] * len(fields)
    arrays = [pa.array(some, field.type) for some, field in zip(values, fields, strict=True)]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def delete_keys(core: Core, changes: TableChanges, keys: pa.Table, snapshot: int) -> int:
    """End the rows with these keys; returns how many there were."""
    if not keys.num_rows:
        return 0
    order = key_order(keys, changes.schema)
    keys = keys if order is None else Ordered(keys, order).take(0, keys.num_rows)
    keys = keys.combine_chunks()
    again = same_as_before(keys, changes.schema)
    keys = keys.filter(pa.array(~again)) if again.any() else keys
    mine = bulk.written(changes, keys)
    if not mine.any():
        return _delete(core, changes, keys, snapshot)
    with changes.all_or_nothing():
        count = _delete(core, changes, keys.filter(pa.array(~mine)), snapshot)
        own = changes.schema.keys_of(keys.filter(pa.array(mine)))
        return count + sum(write.delete_key(changes, key, snapshot) for key in own)


def _delete(core: Core, changes: TableChanges, keys: pa.Table, snapshot: int) -> int:
    """Keys that this transaction has not written itself."""
    if not keys.num_rows:
        return 0
    schema = changes.schema
    wanted = schema.int_keys(keys) if schema.int_key else schema.keys_of(keys)
    rowids = locate_many(changes.state, wanted, snapshot, table=keys).rowids
    rowids[is_among(rowids, changes.ended())] = 0
    known = np.nonzero(rowids)[0]
    known = known[np.argsort(rowids[known], kind="stable")]
    found, targets = keys.take(pa.array(known)), rowids[known]
    if len(known) > core.options.bulk_rows:
        write.add_delete_part(core, changes, found, targets)
    else:
        for key, rowid in zip(schema.keys_of(found), targets.tolist(), strict=True):
            write.remove(changes, rowid, key)
    return len(known)

"""Bulk updates and deletes: what ends many rows that are in objects ends them by objects.

    delete    rows of objects: tombstone objects
    update    rows of objects: successors as data objects, and tombstone objects that name them
              rows of L0, in both: a part in memory, for the tombstone of a row that is in L0 always
              is in memory too; L0 is bounded, so these are few

A row in an own object cannot be taken back: it is born dead, and the version that it was to succeed
is updated or deleted instead of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from halocline.objects.columns import ROWID
from halocline.rows.nodes import key_run
from halocline.rows.resident import resident
from halocline.schema.batches import Int64Array
from halocline.txn.bulk import insert_new, order_of
from halocline.txn.ends import Ends
from halocline.txn.objectparts import file_of
from halocline.txn.workspace import Part, TableChanges
from halocline.txn.writer import Writer

if TYPE_CHECKING:
    from halocline.txn.commits import Commits


def update(
    committer: Commits,
    changes: TableChanges,
    table: pa.Table,
    targets: Int64Array,
    changed: frozenset[int],
) -> None:
    """Visible versions, ascending by RowID, get successors: the rows of `table`."""
    objects = changes.objects
    if objects is None or not (own := objects.owned(targets)).any():
        _update(committer, changes, table, targets, changed)
        return
    mine, rows = targets[own], table.filter(pa.array(own))
    # A row in an own object is born dead. What it was to succeed gets the new row instead.
    groups = [(one, one.ends.succeeded_by(mine)) for one in objects.endings]
    inserted = np.ones(len(mine), dtype=np.bool_)
    _delete(committer, changes, rows, mine)
    for one, places in groups:
        hit = np.nonzero(places >= 0)[0]
        if len(hit):
            inserted[hit] = False
            one.ends.drop(places[hit].tolist())
            before = one.ends.rowids[places[hit]]
            order = np.argsort(before)
            part = rows.take(pa.array(hit[order]))
            _update(committer, changes, part, before[order], changed | one.ends.changed)
    if inserted.any():
        insert_new(committer, changes, rows.filter(pa.array(inserted)))
    if not own.all():
        _update(committer, changes, table.filter(pa.array(~own)), targets[~own], changed)


def delete(committer: Commits, changes: TableChanges, rows: pa.Table, targets: Int64Array) -> None:
    """Visible versions, ascending by RowID, end; their keys stand in `rows`."""
    objects = changes.objects
    for one in [] if objects is None else objects.endings:
        places = one.ends.succeeded_by(targets)
        hit = np.nonzero(places >= 0)[0]
        if len(hit):
            # Our successor is born dead, and what it was to succeed ends without one.
            one.ends.drop(places[hit].tolist())
            targets = np.concatenate([targets, one.ends.rowids[places[hit]]])
            rows = pa.concat_tables([rows, rows.take(pa.array(hit))])
    order = np.argsort(targets, kind="stable")
    _delete(committer, changes, rows.take(pa.array(order)), targets[order])


def _update(
    committer: Commits,
    changes: TableChanges,
    table: pa.Table,
    targets: Int64Array,
    changed: frozenset[int],
) -> None:
    """Successors of committed versions: of those in objects as objects, if they are many."""
    below = _in_objects(committer, changes, targets)
    if below is not None:
        rows = table.take(pa.array(below))
        order = order_of(changes, rows)
        with Writer(committer, changes) as writer:
            first = writer.rows(rows, order)
            writer.drain()
            successors = list(writer.entries)
            after = np.arange(first, first + len(below), dtype=np.int64)
            if order is not None:
                after[order] = np.arange(first, first + len(below), dtype=np.int64)
            keys = _with_rowids(changes, rows, targets[below])
            endings = writer.tombstones(keys, after, changed)
        writer.parts.add(successors=successors, endings=endings)
        left = _others(len(targets), below)
        table, targets = table.take(pa.array(left)), targets[left]
    if len(targets):
        keys = _keys(changes, table, len(targets))
        run = key_run(table, changes.schema)
        ends = Ends(targets, keys=keys, changed=changed)
        changes.add_part(Part(table=table, run=run, ends=ends))


def _delete(committer: Commits, changes: TableChanges, rows: pa.Table, targets: Int64Array) -> None:
    """Versions that end: those in objects by tombstone objects, if they are many."""
    below = _in_objects(committer, changes, targets)
    if below is not None:
        keys = _with_rowids(changes, rows.take(pa.array(below)), targets[below])
        with Writer(committer, changes) as writer:
            endings = writer.tombstones(keys, None, frozenset())
        writer.parts.add(endings=endings)
        left = _others(len(targets), below)
        rows, targets = rows.take(pa.array(left)), targets[left]
    if len(targets):
        changes.add_part(Part(ends=Ends(targets, keys=_keys(changes, rows, len(targets)))))


def rewrite(committer: Commits, changes: TableChanges) -> None:
    """Write tombstone objects again that hold tombstones which were dropped since."""
    schema, reader = changes.schema, changes.home.shelf.reader
    for one in () if changes.objects is None else changes.objects.endings:
        if not one.stale or not len(one):  # one that ends nothing does not join the table
            continue
        ends, kept, names = one.ends, one.ends.kept(), list(schema.primary_key)
        table = reader.read(file_of(one.entry), schema, columns=names, hidden=[ROWID])
        after = None if ends.successors is None else ends.successors[kept]
        with Writer(committer, changes, threads=0) as writer:
            (again,) = writer.tombstones(table.take(pa.array(kept)), after, ends.changed)
        one.replace(again)


def _keys(changes: TableChanges, table: pa.Table, count: int) -> Sequence[Any]:
    if not changes.schema.primary_key:
        return [None] * count  # a table without columns has no rows to count
    return changes.schema.keys_of(table)


def _in_objects(
    committer: Commits, changes: TableChanges, targets: Int64Array
) -> Int64Array | None:
    """Places of targets whose rows are in objects; None when they are too few to become one."""
    below = np.nonzero(~resident(changes.home.shape, targets))[0]
    return below if len(below) > committer.engine.options.object_rows_min else None


def _with_rowids(changes: TableChanges, rows: pa.Table, rowids: Int64Array) -> pa.Table:
    keys = [rows.column(name) for name in changes.schema.primary_key]
    return pa.Table.from_arrays(
        [pa.array(rowids), *keys], names=[ROWID, *changes.schema.primary_key]
    )


def _others(count: int, places: Int64Array) -> Int64Array:
    mask = np.ones(count, dtype=np.bool_)
    mask[places] = False
    return np.nonzero(mask)[0]

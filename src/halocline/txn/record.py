"""A workspace written down: the commit record with its blanks, ready before the lock is taken.

    workspace --nodes_of--> nodes (what the fold will apply) --encode--> payload with zeros for
                                                                          commit_ts, wall_us, RowIDs

Under the commit lock only fixed-width fields are patched into the payload. The order of nodes
follows from the workspace: definitions first; then what becomes of objects; then, table by table,
deletes, updates, inserts. Of a table that the transaction drops nothing is left but the drop, and
of one that it also created not even that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from halocline.log.record import NODE, add_nodes, encode_commit
from halocline.rows.nodes import (
    FIRST_ROWID_AT,
    Append,
    Delete,
    RowNode,
    Update,
    encode_node,
    key_run,
)
from halocline.rows.reshape import Reshape, encode_reshape
from halocline.rows.tokens import Token
from halocline.schema.schema import Schema
from halocline.txn.workspace import Part, TableChanges

ROWID_IN_NODE: Final = NODE.size + FIRST_ROWID_AT
"""Offset of the first RowID, from where a node begins in the payload."""


class Prepared(NamedTuple):
    """A record that lacks only its timestamp and RowIDs."""

    payload: bytearray
    nodes: Sequence[RowNode]
    rowid_at: Sequence[int]
    """Offset of each node's first RowID in the payload."""
    rows: int
    """RowIDs the record will take."""
    reshapes: Sequence[Reshape] = ()
    """What becomes of objects."""


def prepare(
    txn_id: int,
    epoch: int,
    token: Token | None,
    ddl: Sequence[tuple[int, bytes]],
    tables: Mapping[int, TableChanges],
    bulk_rows: int,
    reshapes: Sequence[Reshape] = (),
    *,
    beside: bool = True,
) -> Prepared:
    """Encode everything that can be known before the commit lock.

    Without `beside`, what the owner finds out for itself is left out: a workspace on its way there.
    """
    nodes: list[RowNode] = []
    encoded = [*ddl, *(node for reshape in reshapes for node in encode_reshape(reshape))]
    fixed = len(encoded)
    rows = 0
    for changes in tables.values():
        for node in nodes_of(changes, bulk_rows):
            nodes.append(node)
            encoded.append(encode_node(node, changes.schema))
            rows += node.count
    for changes in tables.values() if beside else ():
        for node in _nodes_beside_objects(changes):
            nodes.append(node)
            encoded.append(encode_node(node, changes.schema))
            rows += node.count
    payload = encode_commit(txn_id, epoch, encoded, token=token)
    at = len(payload)
    rowid_at = []
    for _, buffer in reversed(encoded[fixed:]):
        at -= NODE.size + len(buffer)
        rowid_at.append(at + ROWID_IN_NODE)
    return Prepared(payload, nodes, rowid_at[::-1], rows, reshapes)


def add_late(prepared: Prepared, tables: Mapping[int, TableChanges]) -> Prepared:
    """What the last round of a blind job found, behind all else. Caller holds the commit lock."""
    for changes in tables.values():
        late = changes.blind.late_nodes(prepared.nodes) if changes.blind is not None else []
        if late:
            prepared = _extended(prepared, late, changes.schema)
    return prepared


def _extended(prepared: Prepared, late: Sequence[RowNode], schema: Schema) -> Prepared:
    encoded = [encode_node(node, schema) for node in late]
    at, rowid_at = len(prepared.payload), list(prepared.rowid_at)
    for _, buffer in encoded:
        rowid_at.append(at + ROWID_IN_NODE)
        at += NODE.size + len(buffer)
    add_nodes(prepared.payload, encoded)
    rows = prepared.rows + sum(node.count for node in late)
    return prepared._replace(nodes=[*prepared.nodes, *late], rowid_at=rowid_at, rows=rows)


def _nodes_beside_objects(changes: TableChanges) -> list[RowNode]:
    """What the commit of a job's objects says of single rows, in memory for all to see."""
    nodes: list[RowNode] = []
    if changes.objects is not None and changes.home.key_of is not None:
        nodes += changes.objects.ends_in_pages(changes.home)
    return nodes if changes.blind is None else nodes + changes.blind.nodes()


def nodes_of(changes: TableChanges, bulk_rows: int) -> list[RowNode]:
    """The nodes of one table: deletes, updates, inserts."""
    return [
        *_deletes(changes, bulk_rows),
        *_updates(changes, bulk_rows),
        *_inserts(changes, bulk_rows),
    ]


def _inserts(changes: TableChanges, bulk_rows: int) -> list[RowNode]:
    table_id, schema = changes.entry.id, changes.schema
    nodes: list[RowNode] = []
    rows = changes.live_rows()
    if len(rows) > bulk_rows:
        table = schema.to_table(rows)
        nodes.append(Append(table_id, table=table, run=key_run(table, schema)))
    elif rows:
        nodes.append(Append(table_id, rows))
    return nodes + _parts(changes, lambda part: part.is_insert)


def _deletes(changes: TableChanges, bulk_rows: int) -> list[RowNode]:
    nodes: list[RowNode] = []
    targets = list(changes.deletes)
    if len(targets) > bulk_rows:
        targets.sort()
        keys = [changes.deletes[rowid] for rowid in targets]
        nodes.append(Delete(changes.entry.id, np.array(targets, dtype=np.int64), keys))
    elif targets:
        nodes.append(Delete(changes.entry.id, targets, list(changes.deletes.values())))
    if changes.sweep is not None and len(changes.sweep.ends):
        swept = changes.sweep.ends
        rowids = swept.rowids.tolist() if len(swept) <= bulk_rows else swept.rowids
        nodes.append(Delete(changes.entry.id, rowids, swept.keys))
    return nodes + _parts(changes, lambda part: part.table is None)


def _updates(changes: TableChanges, bulk_rows: int) -> list[RowNode]:
    """One node per set of changed columns: nearly always one."""
    groups: dict[frozenset[int], list[int]] = {}
    for rowid, intent in changes.updates.items():
        groups.setdefault(frozenset(intent.changed), []).append(rowid)
    nodes: list[RowNode] = []
    for changed, targets in groups.items():
        ids = changes.schema.ids_of(changed)
        if len(targets) > bulk_rows:
            nodes.append(_update_run(changes, targets, ids))
        else:
            rows = [changes.updates[rowid].row for rowid in targets]
            nodes.append(Update(changes.entry.id, targets, ids, rows))
    return nodes + _parts(changes, lambda part: part.table is not None and not part.is_insert)


def _update_run(changes: TableChanges, targets: list[int], ids: tuple[int, ...]) -> Update:
    schema = changes.schema
    targets.sort()
    intents = [changes.updates[rowid] for rowid in targets]
    table = schema.to_table([intent.row for intent in intents])
    return Update(
        changes.entry.id,
        np.array(targets, dtype=np.int64),
        ids,
        table=table,
        keys=[intent.key for intent in intents],
        run=key_run(table, schema),
    )


def _parts(changes: TableChanges, wanted: Callable[[Part], bool]) -> list[RowNode]:
    return [
        _part_node(changes.entry.id, part, changes.schema)
        for part in changes.parts
        if len(part) and wanted(part)
    ]


def _part_node(table_id: int, part: Part, schema: Schema) -> RowNode:
    """A part as it is, or less the rows that were taken back."""
    table, run, ends = part.table, part.run, part.ends
    if part.dropped and table is not None:
        table = table.take(part.kept())
        run = key_run(table, schema)
    if ends is None:
        return Append(table_id, table=table, run=run)
    rowids, keys = ends.live(), ends.keys
    if ends.dropped:
        keys = [keys[place] for place in ends.kept()] if len(keys) else keys
    if table is None:
        return Delete(table_id, rowids, keys)
    ids = schema.ids_of(ends.changed)
    return Update(table_id, rowids, ids, table=table, keys=keys, run=run)

"""A workspace written down: the commit record with its blanks, ready before the lock is taken.

    workspace --nodes_of--> nodes (what the fold will apply) --encode--> payload with zeros for
                                                                          commit_ts, wall_us, RowIDs

Under the commit lock only fixed-width fields are patched into the payload. The order of nodes
follows from the workspace: definitions first; then what becomes of objects; then, table by table,
deletes, updates, inserts. Of a table that the transaction drops nothing is left but the drop, and
of one that it also created not even that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from halocline.log.record import NODE, add_node, encode_commit
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
from halocline.schema.compiled import Row
from halocline.schema.schema import Schema
from halocline.txn.row_update import column_ids
from halocline.txn.workspace import Intent, Part, TableChanges

_ORDER: Final = (Delete, Update, Append)
ROWID_IN_NODE: Final = NODE.size + FIRST_ROWID_AT
"""Offset of the first RowID, from where a node begins in the payload."""


class Prepared(NamedTuple):
    """A record that lacks only its timestamp and RowIDs."""

    payload: bytearray
    reshapes: Sequence[Reshape]
    """What becomes of objects."""
    nodes: list[RowNode]
    rowid_at: list[int]
    """Offset of each node's first RowID in the payload."""

    @property
    def rows(self) -> int:
        """RowIDs the record will take."""
        return sum(node.count for node in self.nodes)

    def add(self, nodes: Iterable[RowNode], schema: Schema) -> None:
        """Put further nodes of a table behind those that it has."""
        for node in nodes:
            self.nodes.append(node)
            self.rowid_at.append(len(self.payload) + ROWID_IN_NODE)
            add_node(self.payload, *encode_node(node, schema))


def begin_record(
    txn_id: int,
    epoch: int,
    reshapes: Sequence[Reshape],
    ddl: Sequence[tuple[int, bytes]] = (),
    token: Token | None = None,
) -> Prepared:
    """A record with what it says of tables and objects, and of no row yet."""
    encoded = [*ddl, *(node for reshape in reshapes for node in encode_reshape(reshape))]
    return Prepared(encode_commit(txn_id, epoch, encoded, token=token), reshapes, [], [])


def prepare(
    txn_id: int,
    epoch: int,
    tables: Mapping[int, TableChanges],
    bulk_rows: int,
    *,
    ddl: Sequence[tuple[int, bytes]] = (),
    token: Token | None = None,
    beside: bool = True,
) -> Prepared:
    """Encode everything that can be known before the commit lock.

    Without `beside`, what the owner finds out for itself is left out: a workspace on its way there.
    It has amounts where the record of a commit has sums.
    """
    found = [changes.reshape() for changes in tables.values()]
    reshapes = [reshape for reshape in found if reshape is not None]
    prepared = begin_record(txn_id, epoch, reshapes, ddl, token)
    for changes in tables.values():
        prepared.add(nodes_of(changes, bulk_rows, amounts=not beside), changes.schema)
    for changes in tables.values() if beside else ():
        prepared.add(_nodes_beside_objects(changes), changes.schema)
    return prepared


def add_late(prepared: Prepared, tables: Mapping[int, TableChanges]) -> None:
    """What the last round of a blind job found, behind all else. Caller holds the commit lock."""
    for changes in tables.values():
        if changes.blind is not None:
            prepared.add(changes.blind.late_nodes(prepared.nodes), changes.schema)


def _nodes_beside_objects(changes: TableChanges) -> list[RowNode]:
    """What the commit of a job's objects says of single rows, in memory for all to see."""
    nodes: list[RowNode] = []
    if changes.objects is not None and changes.home.key_of is not None:
        nodes += changes.objects.ends_in_pages(changes.home)
    return nodes if changes.blind is None else nodes + changes.blind.nodes()


def nodes_of(changes: TableChanges, bulk_rows: int, *, amounts: bool = False) -> list[RowNode]:
    """The nodes of one table: deletes, updates, inserts."""
    nodes = [*_deletes(changes, bulk_rows), *_updates(changes, bulk_rows, amounts=amounts)]
    nodes += _inserts(changes, bulk_rows)
    parts = (part for part in changes.parts if len(part))
    nodes += [_part_node(changes.entry.id, part, changes.schema) for part in parts]
    return sorted(nodes, key=lambda node: _ORDER.index(type(node)))


def _inserts(changes: TableChanges, bulk_rows: int) -> Iterator[RowNode]:
    rows = list(changes.rows.values())
    if len(rows) > bulk_rows:
        table = changes.schema.to_table(rows)
        yield Append(changes.entry.id, table=table, run=key_run(table, changes.schema))
    elif rows:
        yield Append(changes.entry.id, rows)


def _deletes(changes: TableChanges, bulk_rows: int) -> Iterator[RowNode]:
    found = changes.deletes
    if len(found) > bulk_rows:
        targets = sorted(found)
        keys = [found[rowid] for rowid in targets]
        yield Delete(changes.entry.id, np.array(targets, dtype=np.int64), keys)
    elif found:
        yield Delete(changes.entry.id, list(found), list(found.values()))
    if changes.sweep is not None and len(changes.sweep.ends):
        swept = changes.sweep.ends
        rowids = swept.rowids.tolist() if len(swept) <= bulk_rows else swept.rowids
        yield Delete(changes.entry.id, rowids, swept.keys)


def _updates(changes: TableChanges, bulk_rows: int, *, amounts: bool) -> Iterator[RowNode]:
    """One node per set of changed columns: nearly always one."""
    groups: dict[tuple[frozenset[int], frozenset[int]], list[int]] = {}
    for rowid, intent in changes.updates.items():
        kinds = frozenset(intent.changed), frozenset(intent.added)
        groups.setdefault(kinds, []).append(rowid)
    for (changed, added), targets in groups.items():
        ids = column_ids(changes.schema, changed, added)
        with_amounts = amounts and bool(added)
        if len(targets) > bulk_rows:
            yield _update_run(changes, targets, ids, amounts=with_amounts)
        else:
            rows = [_row(changes.updates[rowid], with_amounts) for rowid in targets]
            yield Update(changes.entry.id, targets, ids, rows, amounts=with_amounts)


def _row(intent: Intent, amounts: bool) -> Row:
    if not amounts:
        return intent.row
    return tuple(intent.added.get(at, value) for at, value in enumerate(intent.row))


def _update_run(
    changes: TableChanges, targets: list[int], ids: tuple[int, ...], *, amounts: bool
) -> Update:
    schema = changes.schema
    targets.sort()
    intents = [changes.updates[rowid] for rowid in targets]
    table = schema.to_table([_row(intent, amounts) for intent in intents])
    return Update(
        changes.entry.id,
        np.array(targets, dtype=np.int64),
        ids,
        table=table,
        keys=[intent.key for intent in intents],
        run=key_run(table, schema),
        amounts=amounts,
    )


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

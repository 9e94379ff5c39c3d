"""Replay: one DDL node from the log, applied to the catalog once more.

    log/ --(node type, payload), commit_ts--> replay --insert, update, delete--> Changes (tables.py)

Each node runs as a small transaction of its own that begins and commits at the record's timestamp:
it sees what the nodes before it in the same record did, and goes through the very insert and delete
of the live command. A replace (drop and create of one name in one record) is thus two steps here;
it is atomic for readers because nobody reads at a timestamp before its record is whole.

A node that does not fit the catalog it meets (an id twice, a name in use, a drop of something else)
means that the log is not the one this catalog came from: CorruptionError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halocline.catalog import nodes
from halocline.catalog.entries import TableEntry
from halocline.catalog.indexes import with_index, without_index
from halocline.catalog.tables import Changes
from halocline.errors import CorruptionError, HaloclineError
from halocline.schema.evolve import follows
from halocline.schema.schema import Schema
from halocline.store.files import Buffer

if TYPE_CHECKING:
    from halocline.catalog.catalog import Catalog


def replay(catalog: Catalog, node_type: int, payload: Buffer, commit_ts: int) -> TableEntry:
    """Apply a node about a table. Returns that table as it now stands."""
    node = nodes.decode(node_type, payload)
    with catalog.lock:
        if commit_ts < catalog.last_ddl_ts:
            raise CorruptionError("log", f"DDL at {commit_ts} follows DDL at {catalog.last_ddl_ts}")
        changes = Changes(catalog.versions, commit_ts)
        try:
            if isinstance(node, nodes.CreateTableNode):
                _create(catalog, changes, node)
            elif isinstance(node, nodes.AlterTableNode):
                _alter(catalog, changes, node)
            elif isinstance(node, nodes.CreateIndexNode):
                _create_index(catalog, changes, node)
            elif isinstance(node, nodes.DropIndexNode):
                _drop_index(changes, node)
            else:
                _drop(changes, node)
        except BaseException as error:
            changes.rollback()
            if isinstance(error, HaloclineError) and not isinstance(error, CorruptionError):
                raise CorruptionError("log", f"DDL at {commit_ts} does not fit: {error}") from error
            raise
        catalog.publish(changes.commit(commit_ts), commit_ts)
    entry = catalog.table_by_id(node.table_id)
    assert entry is not None, "each branch above has found or made it"
    return entry


def _create(catalog: Catalog, changes: Changes, node: nodes.CreateTableNode) -> None:
    if catalog.table_by_id(node.table_id) is not None:
        raise CorruptionError("log", f"table id {node.table_id} is created a second time")
    catalog.note_id(node.table_id)
    schema = _schema(node)
    ids = [column.id for column in schema.columns]
    if max(ids, default=0) >= node.next_column_id:
        raise CorruptionError("log", f"column ids of table {node.name!r} pass their sequence")
    changes.insert(nodes.table_entry(node, schema))


def _alter(catalog: Catalog, changes: Changes, node: nodes.AlterTableNode) -> None:
    schema, entry = _schema(node), changes.find(node.name)
    if entry is None or entry.id != node.table_id:
        raise CorruptionError("log", f"{node.name!r} is altered, and is not table {node.table_id}")
    if not follows(entry.schema, schema):
        raise CorruptionError("log", f"{node.name!r}: version {schema.version} does not follow")
    altered = entry.with_schema(schema, node.change, node.new_name, catalog.take_place())
    if node.new_name:
        changes.rename(entry, altered)
    else:
        changes.update(altered)


def _schema(node: nodes.CreateTableNode | nodes.AlterTableNode) -> Schema:
    try:
        return Schema.from_wire(node.schema)
    except Exception as error:
        # Hostile bytes may fail anywhere in there; whatever it was, the log is not ours.
        raise CorruptionError("log", f"schema of table {node.name!r}: {error}") from error


def _drop(changes: Changes, node: nodes.DropTableNode) -> None:
    dropped = changes.delete(node.name)
    if dropped.id != node.table_id:
        reason = f"{dropped.name!r} is id {dropped.id}: the log drops id {node.table_id}"
        raise CorruptionError("log", reason)
    if dropped.created_at >= changes.start_ts:
        raise CorruptionError("log", f"{dropped.name!r} is dropped by the commit that created it")


def _create_index(catalog: Catalog, changes: Changes, node: nodes.CreateIndexNode) -> None:
    entry = _indexed(changes, node)
    if any(one.id == node.index_id for one in entry.indexes):
        raise CorruptionError("log", f"index id {node.index_id} is created a second time")
    if not set(node.columns) <= {int(column.id) for column in entry.schema.columns}:
        raise CorruptionError("log", f"index {node.desc!r} has columns that {node.name!r} has not")
    catalog.note_id(node.index_id)
    changes.update(with_index(entry, node.entry))


def _drop_index(changes: Changes, node: nodes.DropIndexNode) -> None:
    entry = _indexed(changes, node)
    if all(one.id != node.index_id for one in entry.indexes):
        raise CorruptionError("log", f"index id {node.index_id} is dropped, and is not there")
    changes.update(without_index(entry, node.index_id))


def _indexed(changes: Changes, node: nodes.CreateIndexNode | nodes.DropIndexNode) -> TableEntry:
    entry = changes.find(node.name)
    if entry is None or entry.id != node.table_id:
        raise CorruptionError("log", f"{node.name!r} has an index, and is not {node.table_id}")
    return entry

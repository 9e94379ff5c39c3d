"""Replay: one DDL node from the log, applied to the catalog once more.

    log/ --(node type, payload), commit_ts--> replay_table --> built-in tables (builtin.py)

Each node runs as a small transaction of its own that begins and commits at the record's timestamp:
it sees what the nodes before it in the same record did, and goes through the very insert and delete
of the live command. A replace (drop and create of one name in one record) is thus two steps here;
it is atomic for readers because nobody reads at a timestamp before its record is whole.

A node that does not fit the catalog it meets (an id twice, a name in use, a drop of something else)
means that the log is not the one this catalog came from: CorruptionError.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from halocline.catalog import nodes
from halocline.catalog.entries import DatabaseEntry, DatabaseId, TableEntry
from halocline.catalog.meta import MetaTxn
from halocline.errors import CorruptionError, HaloclineError, UsageError
from halocline.ids import IndexId
from halocline.schema.schema import Schema

if TYPE_CHECKING:
    from halocline.catalog.catalog import Catalog


def replay_table(
    catalog: Catalog, node_type: int, payload: nodes.Buffer, commit_ts: int
) -> TableEntry:
    """Apply a node about a table or one of its indexes. Returns that table as it now stands."""
    node = nodes.decode(node_type, payload)
    if isinstance(node, (nodes.CreateDatabase, nodes.DropDatabase)):
        raise UsageError("a database node is replayed with apply_database")
    with _transaction(catalog, commit_ts) as txn:
        match node:
            case nodes.CreateTable():
                _create_table(catalog, txn, node)
            case nodes.DropTable():
                dropped = catalog.builtin.delete_table(txn, node.name)
                _expect(dropped.id == node.table_id, f"the log drops id {node.table_id}", dropped)
                _expect(dropped.created_at < commit_ts, "dropped by its own commit", dropped)
            case nodes.CreateIndex():
                catalog.note_id("index", node.index_id)
                owner = _known(catalog, node.table_id)
                catalog.builtin.insert_index(txn, owner.name, nodes.index_entry(node))
            case nodes.DropIndex():
                owner = _known(catalog, node.table_id)
                catalog.builtin.delete_index(txn, owner.id, IndexId(node.index_id))
    entry = catalog.table_by_id(node.table_id)
    assert entry is not None, "each branch above has found or made it"
    return entry


def replay_database(
    catalog: Catalog, node_type: int, payload: nodes.Buffer, commit_ts: int
) -> DatabaseEntry:
    """Apply a node about the database itself."""
    node = nodes.decode(node_type, payload)
    if not isinstance(node, (nodes.CreateDatabase, nodes.DropDatabase)):
        raise UsageError("a table or index node is replayed with apply")
    with _transaction(catalog, commit_ts) as txn:
        if isinstance(node, nodes.CreateDatabase):
            catalog.note_id("database", node.database_id)
            entry = DatabaseEntry(id=DatabaseId(node.database_id), name=node.name)
            catalog.builtin.insert_database(txn, entry)
            return entry.stamped(commit_ts, entry.dropped_at)
        entry = catalog.builtin.delete_database(txn, node.name)
        _expect(entry.id == node.database_id, f"the log drops id {node.database_id}", entry)
        return entry.stamped(entry.created_at, commit_ts)


def _create_table(catalog: Catalog, txn: MetaTxn, node: nodes.CreateTable) -> None:
    if catalog.table_by_id(node.table_id) is not None:
        raise CorruptionError("log", f"table id {node.table_id} is created a second time")
    catalog.note_id("table", node.table_id)
    try:
        schema = Schema.from_wire(node.schema)
    except Exception as error:
        # Hostile bytes may fail anywhere in there; whatever it was, the log is not ours.
        raise CorruptionError("log", f"schema of table {node.name!r}: {error}") from error
    ids = [column.id for column in schema.columns]
    if max(ids, default=0) >= node.next_column_id:
        raise CorruptionError("log", f"column ids of table {node.name!r} pass their sequence")
    catalog.builtin.insert_table(txn, nodes.table_entry(node, schema))


def _known(catalog: Catalog, table_id: int) -> TableEntry:
    entry = catalog.table_by_id(table_id)
    if entry is None:
        raise CorruptionError("log", f"an index of table {table_id}, which does not exist")
    return entry


def _expect(holds: bool, what: str, entry: TableEntry | DatabaseEntry) -> None:
    if not holds:
        raise CorruptionError("log", f"{entry.name!r} is id {entry.id}: {what}")


@contextmanager
def _transaction(catalog: Catalog, commit_ts: int) -> Iterator[MetaTxn]:
    """A transaction that begins and commits at `commit_ts`; one that fails means a foreign log."""
    with catalog.lock:
        if commit_ts < catalog.last_ddl_ts:
            raise CorruptionError("log", f"DDL at {commit_ts} follows DDL at {catalog.last_ddl_ts}")
        txn = MetaTxn(0, commit_ts)
        try:
            yield txn
        except BaseException as error:
            txn.rollback()
            if isinstance(error, HaloclineError) and not isinstance(error, CorruptionError):
                raise CorruptionError("log", f"DDL at {commit_ts} does not fit: {error}") from error
            raise
        catalog.publish(txn.commit(commit_ts), commit_ts)

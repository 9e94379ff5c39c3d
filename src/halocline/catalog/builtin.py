"""The four built-in tables, and what each DDL command does to their rows.

    databases   name key              -> DatabaseEntry
    tables      name key              -> TableEntry
    objects     (table id, object id) -> ObjectEntry    filled by mover, compaction, bulk commits
    indexes     (table id, index id)  -> IndexEntry

They exist from the first moment, cannot be created or dropped, and lie outside the users' names: a
user may well have a table called "tables". Live commands (ddl.py) and replay (replay.py) both end
up in the methods here, which is why they cannot disagree.

Invariants
- An index ends with its table, in the same commit.
- An index names columns that its table has.

Callers hold the catalog's lock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from halocline.catalog.entries import DatabaseEntry, IndexEntry, ObjectEntry, TableEntry
from halocline.catalog.meta import MetaTable, MetaTxn
from halocline.catalog.names import name_key
from halocline.errors import NotFoundError, UsageError
from halocline.ids import IndexId, ObjectId, TableId

IndexKey: TypeAlias = tuple[TableId, IndexId]
ObjectKey: TypeAlias = tuple[TableId, ObjectId]


@dataclass(frozen=True, slots=True)
class Builtin:
    """The catalog's own tables."""

    databases: MetaTable[str, DatabaseEntry] = field(default_factory=lambda: MetaTable("database"))
    tables: MetaTable[str, TableEntry] = field(default_factory=lambda: MetaTable("table"))
    objects: MetaTable[ObjectKey, ObjectEntry] = field(default_factory=lambda: MetaTable("object"))
    indexes: MetaTable[IndexKey, IndexEntry] = field(default_factory=lambda: MetaTable("index"))

    def insert_table(self, txn: MetaTxn, entry: TableEntry) -> TableEntry:
        return self.tables.insert(txn, name_key(entry.name), entry, entry.name)

    def delete_table(self, txn: MetaTxn, name: str) -> TableEntry:
        """End a table, and before it the indexes that the transaction sees."""
        entry = self.tables.query(txn, name_key(name), name)
        for index in self.indexes.scan(txn, lambda key: key[0] == entry.id):
            self.delete_index(txn, index.table_id, index.id)
        return self.tables.delete(txn, name_key(name), name)

    def insert_index(self, txn: MetaTxn, name: str, entry: IndexEntry) -> IndexEntry:
        """Add an index to the table of that name; having read it, a drop of it is a conflict."""
        table = self.tables.query(txn, name_key(name), name)
        if table.id != entry.table_id:
            raise NotFoundError("table", entry.table_id)
        known = {column.id for column in table.schema.columns}
        if not entry.columns or len(set(entry.columns)) < len(entry.columns):
            raise UsageError("an index needs at least one column, and each of them only once")
        if not known.issuperset(entry.columns):
            raise UsageError(f"table {table.name!r} has no columns {set(entry.columns) - known}")
        return self.indexes.insert(txn, (table.id, entry.id), entry)

    def delete_index(self, txn: MetaTxn, table_id: TableId, index_id: IndexId) -> IndexEntry:
        return self.indexes.delete(txn, (table_id, index_id), index_id)

    def insert_database(self, txn: MetaTxn, entry: DatabaseEntry) -> DatabaseEntry:
        return self.databases.insert(txn, name_key(entry.name), entry, entry.name)

    def delete_database(self, txn: MetaTxn, name: str) -> DatabaseEntry:
        return self.databases.delete(txn, name_key(name), name)

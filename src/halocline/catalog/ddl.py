"""A catalog sub-transaction: the DDL of one engine transaction.

    txn/ --create_table, drop_table--> CatalogTxn --insert, delete--> built-in tables (builtin.py)
                                           |
                                           '--nodes()--> commit record --log--> replay.py

DDL is DML on the catalog's own tables. The engine opens a sub-transaction with its first DDL, asks
it for names from then on (own changes are visible, reads are recorded), and carries it through its
commit: `prepare`, `nodes` into the record, `commit` with the record's timestamp; or `rollback`.

Conflicts over names surface at once, by the rules in meta.py; conflicts over what was only read
wait for `prepare`, which gives the changes up when it fails.

Invariants
- A command that fails leaves no trace but its reads; the transaction can go on without it.
- `nodes` holds the net effect in command order: a table that was created and dropped here leaves no
  node, and a dropped table leaves none of what was done to it before.
- A command is encoded when it is given, never under the engine's commit lock.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from halocline.catalog.entries import DatabaseEntry, DatabaseId, IndexEntry, TableEntry
from halocline.catalog.meta import MetaTxn
from halocline.catalog.names import check_name, name_key
from halocline.catalog.nodes import (
    CreateDatabase,
    CreateIndex,
    CreateTable,
    DropDatabase,
    DropIndex,
    DropTable,
    Node,
    encode,
    index_entry,
    plain,
    table_entry,
)
from halocline.errors import HaloclineError, SnapshotExpiredError, UsageError
from halocline.ids import IndexId

if TYPE_CHECKING:
    from halocline.catalog.catalog import Catalog
    from halocline.schema.schema import Schema


class _Command(NamedTuple):
    """A node for the log and the thing that it creates or drops."""

    subject: tuple[int, ...]
    """(table id,), (table id, index id) or (0, database id): an index falls under its table."""
    node_type: int
    payload: bytes


class CatalogTxn:
    """One transaction's view of the catalog and its uncommitted DDL. Not for several threads."""

    def __init__(self, catalog: Catalog, txn_id: int, start_ts: int) -> None:
        self._catalog = catalog
        self._builtin = catalog.builtin
        self._store = MetaTxn(txn_id, start_ts)
        self._commands: list[_Command] = []
        # A transaction that is dropped without a word would hold its names for ever. The collector
        # may run anywhere, also inside the lock, so it only leaves a note for the next writer.
        weakref.finalize(self, catalog.abandoned.append, self._store).atexit = False

    # Tables.

    def table(self, name: str) -> TableEntry | None:
        """The table of that name, or None; `prepare` makes sure that the answer still holds."""
        with self._catalog.lock:
            return self._builtin.tables.find(self._open(), name_key(name), name)

    def tables(self) -> list[TableEntry]:
        """All tables, by name. One that another commit adds or drops meanwhile is a conflict."""
        with self._catalog.lock:
            found = self._builtin.tables.scan(self._open())
        return sorted(found, key=lambda entry: entry.name)

    def create_table(
        self, name: str, schema: Schema, *, layout: str, options: Mapping[str, Any]
    ) -> TableEntry:
        """A new table, visible here at once. Its id is final; `created_at` comes with commit."""
        check_name("table", name)
        with self._changing() as txn:
            node = CreateTable(
                table_id=self._catalog.take_id("table"),
                name=name,
                schema=schema.to_wire(),
                layout=layout,
                options=plain(options),
                next_column_id=max((column.id for column in schema.columns), default=0) + 1,
            )
            entry = self._builtin.insert_table(txn, table_entry(node, schema))
            self._created((entry.id,), node)
        return entry

    def drop_table(self, name: str) -> TableEntry:
        """End the table of that name, and its indexes."""
        with self._changing() as txn:
            entry = self._builtin.delete_table(txn, name)
            self._dropped((entry.id,), DropTable(table_id=entry.id, name=entry.name))
        return entry

    # Indexes, and the database itself.

    def create_index(
        self, table: str, *, index_type: int, columns: Sequence[int], desc: str = ""
    ) -> IndexEntry:
        """Define an index on columns, given by id. Building it is not the catalog's business."""
        with self._changing() as txn:
            owner = self._builtin.tables.query(txn, name_key(table), table)
            node = CreateIndex(
                table_id=owner.id,
                index_id=self._catalog.take_id("index"),
                index_type=index_type,
                columns=tuple(columns),
                desc=desc,
            )
            entry = self._builtin.insert_index(txn, owner.name, index_entry(node))
            self._created((owner.id, entry.id), node)
        return entry

    def drop_index(self, table: str, index_id: IndexId) -> IndexEntry:
        """End an index of that table."""
        with self._changing() as txn:
            owner = self._builtin.tables.query(txn, name_key(table), table)
            entry = self._builtin.delete_index(txn, owner.id, index_id)
            node = DropIndex(table_id=owner.id, index_id=index_id)
            self._dropped((owner.id, index_id), node)
        return entry

    def create_database(self, name: str) -> DatabaseEntry:
        """Enter the database under its name."""
        check_name("database", name)
        with self._changing() as txn:
            entry = DatabaseEntry(id=DatabaseId(self._catalog.take_id("database")), name=name)
            self._builtin.insert_database(txn, entry)
            self._created((0, entry.id), CreateDatabase(database_id=entry.id, name=name))
        return entry

    def drop_database(self, name: str) -> DatabaseEntry:
        """Take the database's name out of the catalog."""
        with self._changing() as txn:
            entry = self._builtin.delete_database(txn, name)
            node = DropDatabase(database_id=entry.id, name=entry.name)
            self._dropped((0, entry.id), node)
        return entry

    # The way to the end.

    def prepare(self) -> None:
        """ConflictError if a commit since the start changed what was read here. May be repeated."""
        with self._catalog.lock:
            txn = self._open()
            try:
                # What was compacted away can no longer be compared.
                if txn.start_ts < self._catalog.floor:
                    raise SnapshotExpiredError(txn.start_ts, self._catalog.floor)
                txn.prepare()
            except HaloclineError:
                self.rollback()
                raise

    def nodes(self) -> list[tuple[int, bytes]]:
        """(node type, payload) for the log, in command order."""
        return [(command.node_type, command.payload) for command in self._commands]

    def commit(self, commit_ts: int) -> None:
        """Stamp everything with `commit_ts`. Readers see it once that timestamp is theirs."""
        with self._catalog.lock:
            txn = self._open()
            assert commit_ts > txn.start_ts, "a commit comes after its snapshot"
            self._catalog.publish(txn.commit(commit_ts), commit_ts)

    def rollback(self) -> None:
        """Forget everything. Harmless after a commit, a failed prepare, or another rollback."""
        with self._catalog.lock:
            if not self._store.done:
                self._store.rollback()
                self._commands = []

    def abandon(self) -> None:
        """`rollback` for a transaction that was dropped without a word: called at any moment."""
        self.rollback()

    def _open(self) -> MetaTxn:
        if self._store.done:
            raise UsageError("this catalog transaction is over")
        return self._store

    @contextmanager
    def _changing(self) -> Iterator[MetaTxn]:
        """The lock and the store for one command; one that fails, Ctrl-C too, is taken back."""
        with self._catalog.lock:
            txn = self._open()
            self._catalog.reap()
            mark, commands = len(txn.writes), self._commands
            try:
                yield txn
            except BaseException:
                txn.undo_to(mark)
                self._commands = commands
                raise

    def _created(self, subject: tuple[int, ...], node: Node) -> None:
        self._commands = [*self._commands, _Command(subject, *encode(node))]

    def _dropped(self, subject: tuple[int, ...], node: Node) -> None:
        """Ids are never reused, so an earlier command on the very subject must have created it."""
        before = [command for command in self._commands if command.subject == subject]
        size = len(subject)
        rest = [command for command in self._commands if command.subject[:size] != subject]
        self._commands = rest if before else [*rest, _Command(subject, *encode(node))]

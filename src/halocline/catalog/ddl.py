"""A catalog sub-transaction: the DDL of one engine transaction.

    txn/ --create, alter, rename, drop--> CatalogTxn --insert, update ...--> Changes (tables.py)
                                              |
                                              '--nodes()--> commit record --log--> replay.py

DDL is DML on the catalog's own map. The engine opens a sub-transaction with its first DDL, asks
it for names from then on (own changes are visible, reads are recorded), and carries it through its
commit: `prepare`, `nodes` into the record, `commit` with the record's timestamp; or `rollback`.

Conflicts over names surface at once, by the rules in tables.py; conflicts over what was only read
wait for `prepare`, which gives the changes up when it fails.

Invariants
- A command that fails leaves no trace but its reads; the transaction can go on without it.
- `nodes` holds the net effect in command order, drops first: a table that was created and dropped
  here leaves no node, one that was altered and dropped only the drop.
- A command is encoded when it is given, never under the engine's commit lock.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from halocline.catalog.entries import TableEntry
from halocline.catalog.indexes import (
    IndexEntry,
    check_free,
    check_kept,
    check_names,
    column_ids,
    find_index,
    with_index,
    without_index,
)
from halocline.catalog.names import check_name
from halocline.catalog.nodes import (
    AlterTableNode,
    CreateIndexNode,
    CreateTableNode,
    DropIndexNode,
    DropTableNode,
    encode,
    plain,
    renamed_entry,
    table_entry,
)
from halocline.catalog.tables import Changes
from halocline.errors import HaloclineError, NotFoundError, SnapshotExpiredError, UsageError
from halocline.log.record import DDL_CI, DDL_CT, DDL_DI, DDL_UT
from halocline.schema.evolve import told

if TYPE_CHECKING:
    from halocline.catalog.catalog import Catalog
    from halocline.schema.schema import Schema


class _Command(NamedTuple):
    """A node for the log and the table that it creates or drops."""

    table_id: int
    node_type: int
    payload: bytes


IndexedTable = tuple[TableEntry, IndexEntry]
"""A table as its indexes now stand, and the index that came or went."""


class TableDdl(Protocol):
    """What a transaction asks of the catalog, here or at the owner (node/remote_committer.py)."""

    def table(self, name: str) -> TableEntry | None: ...
    def tables(self) -> list[TableEntry]: ...
    def create_table(
        self, name: str, schema: Schema, *, layout: str, options: Mapping[str, Any]
    ) -> TableEntry: ...
    def alter_table(self, entry: TableEntry, schema: Schema) -> TableEntry: ...
    def rename_table(self, entry: TableEntry, name: str) -> TableEntry: ...
    def drop_table(self, name: str) -> TableEntry: ...
    def create_index(
        self, name: str, table: str, kind: int, columns: Sequence[str]
    ) -> IndexedTable: ...
    def drop_index(self, name: str) -> IndexedTable: ...
    @property
    def altered(self) -> Collection[int]: ...
    @property
    def indexed(self) -> Collection[int]: ...
    def rollback(self) -> None: ...
    def abandon(self) -> None: ...


class CatalogTxn:
    """One transaction's view of the catalog and its uncommitted DDL. Not for several threads."""

    def __init__(self, catalog: Catalog, start_ts: int) -> None:
        self._catalog = catalog
        self._changes = Changes(catalog.versions, start_ts)
        self._commands: list[_Command] = []
        self._indexes: list[IndexEntry] = []
        """Those that are created here."""
        # A transaction that is dropped without a word would hold its names for ever. The collector
        # may run anywhere, also inside the lock, so it only leaves a note for the next writer.
        weakref.finalize(self, catalog.abandoned.append, self._changes).atexit = False

    def table(self, name: str) -> TableEntry | None:
        """The table of that name, or None; `prepare` makes sure that the answer still holds."""
        with self._catalog.lock:
            return self._open().find(name)

    def tables(self) -> list[TableEntry]:
        """All tables, by name. One that another commit adds or drops meanwhile is a conflict."""
        with self._catalog.lock:
            found = self._open().scan()
        return sorted(found, key=lambda entry: entry.name)

    def create_table(
        self, name: str, schema: Schema, *, layout: str, options: Mapping[str, Any]
    ) -> TableEntry:
        """A new table, visible here at once. Its id is final; `created_at` comes with commit."""
        check_name("table", name)
        with self._changing() as changes:
            node = CreateTableNode(
                table_id=self._catalog.take_id(),
                name=name,
                schema=schema.to_wire(),
                layout=layout,
                options=plain(options),
                next_column_id=max((column.id for column in schema.columns), default=0) + 1,
            )
            entry = changes.insert(table_entry(node, schema))
            self._commands = [*self._commands, _Command(entry.id, *encode(node))]
        return entry

    def alter_table(self, entry: TableEntry, schema: Schema) -> TableEntry:
        """Give a table its next schema, visible here at once."""
        with self._changing() as changes:
            change = told(entry.schema, schema)
            check_kept(entry, schema)
            node = AlterTableNode(
                table_id=entry.id, name=entry.name, schema=schema.to_wire(), change=change
            )
            place = self._catalog.take_place()
            altered = changes.update(entry.with_schema(schema, change, place=place))
            self._commands = [*self._commands, _Command(entry.id, *encode(node))]
        return altered

    def rename_table(self, entry: TableEntry, name: str) -> TableEntry:
        """Give a table another name, visible here at once."""
        check_name("table", name)
        with self._changing() as changes:
            renamed = renamed_entry(entry, name, self._catalog.take_place())
            node = AlterTableNode(
                table_id=entry.id,
                name=entry.name,
                schema=renamed.schema.to_wire(),
                change=renamed.altered[-1].change,
                new_name=name,
            )
            changes.rename(entry, renamed)
            self._commands = [*self._commands, _Command(entry.id, *encode(node))]
        return renamed

    @property
    def altered(self) -> Collection[int]:
        """Ids of the tables that are altered or renamed here."""
        return {one.table_id for one in self._commands if one.node_type == DDL_UT}

    def drop_table(self, name: str) -> TableEntry:
        """End the table of that name."""
        with self._changing() as changes:
            entry = changes.delete(name)
            rest = [command for command in self._commands if command.table_id != entry.id]
            gone = [one for one in self._commands if one.table_id == entry.id]
            if all(one.node_type != DDL_CT for one in gone):
                node = DropTableNode(table_id=entry.id, name=entry.committed_name)
                # First of all: its name may have been given to another table meanwhile.
                rest.insert(0, _Command(entry.id, *encode(node)))
            # Else it was created here: ids are never reused.
            self._commands = rest
        return entry

    def create_index(
        self, name: str, table: str, kind: int, columns: Sequence[str]
    ) -> IndexedTable:
        """Give a table an index, visible here at once; its id is final."""
        check_name("index", name)
        with self._changing() as changes:
            entry = changes.find(table)
            if entry is None:
                raise NotFoundError("table", table)
            check_free(changes.present(), name)
            node = CreateIndexNode(
                table_id=entry.id,
                name=entry.name,
                index_id=self._catalog.take_id(),
                index_type=kind,
                columns=list(column_ids(entry.schema, columns)),
                desc=name,
            )
            changed = changes.update(with_index(entry, node.entry))
            self._commands = [*self._commands, _Command(entry.id, *encode(node))]
            self._indexes = [*self._indexes, node.entry]
        return changed, node.entry

    def drop_index(self, name: str) -> IndexedTable:
        """End the index of that name, whatever table it belongs to."""
        with self._changing() as changes:
            found = find_index(changes.present(), name)
            if found is None:
                raise NotFoundError("index", name)
            entry, index = found
            changed = changes.update(without_index(entry, index.id))
            node = DropIndexNode(table_id=entry.id, name=entry.name, index_id=index.id)
            self._commands = [*self._commands, _Command(entry.id, *encode(node))]
            self._indexes = [one for one in self._indexes if one.id != index.id]
        return changed, index

    @property
    def indexed(self) -> Collection[int]:
        """Ids of the tables whose indexes change here."""
        return {one.table_id for one in self._commands if one.node_type in (DDL_CI, DDL_DI)}

    def prepare(self) -> None:
        """ConflictError if a commit since the start changed what was read here. May be repeated."""
        with self._catalog.lock:
            changes = self._open()
            try:
                # What was compacted away can no longer be compared.
                if changes.start_ts < self._catalog.floor:
                    raise SnapshotExpiredError(changes.start_ts, self._catalog.floor)
                changes.prepare()
                if self._indexes:
                    newest = self._catalog.tables(self._catalog.last_ddl_ts)
                    check_names(self._indexes, newest, changes.start_ts)
            except HaloclineError:
                self.rollback()
                raise

    def nodes(self) -> list[tuple[int, bytes]]:
        """(node type, payload) for the log, in command order."""
        return [(command.node_type, command.payload) for command in self._commands]

    def commit(self, commit_ts: int) -> None:
        """Stamp everything with `commit_ts`. Readers see it once that timestamp is theirs."""
        with self._catalog.lock:
            changes = self._open()
            assert commit_ts > changes.start_ts, "a commit comes after its snapshot"
            self._catalog.publish(changes.commit(commit_ts), commit_ts)

    def rollback(self) -> None:
        """Forget everything. Harmless after a commit, a failed prepare, or another rollback."""
        with self._catalog.lock:
            if not self._changes.done:
                self._changes.rollback()
                self._commands = []

    def abandon(self) -> None:
        """`rollback` for a transaction that was dropped without a word: called at any moment."""
        self.rollback()

    def _open(self) -> Changes:
        if self._changes.done:
            raise UsageError("this catalog transaction is over")
        return self._changes

    @contextmanager
    def _changing(self) -> Iterator[Changes]:
        """The lock and the changes for one command; one that fails, Ctrl-C too, is taken back."""
        with self._catalog.lock:
            changes = self._open()
            self._catalog.reap()
            mark, commands, indexes = len(changes.writes), self._commands, self._indexes
            try:
                yield changes
            except BaseException:
                changes.undo_to(mark)
                self._commands, self._indexes = commands, indexes
                raise

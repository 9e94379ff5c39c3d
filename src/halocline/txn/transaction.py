"""Transaction: the handle a caller reads and writes through.

    with db.begin() as txn:
        txn.insert("orders", {"id": 7, "amount": 12})
        txn.get("orders", 7)                              # own writes are visible
    txn.commit_ts

All reads see one snapshot, fixed at begin, plus the transaction's own writes. A call that raises
leaves the transaction as it was, usable; a failed commit ends it. Not thread-safe: one transaction
belongs to one thread at a time, a Database to all of them.

Not here: how a change enters the workspace (write.py), what is visible (view.py), how it is
committed (commit.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from halocline.catalog import CatalogTxn, TableEntry
from halocline.errors import DuplicateKeyError, NotFoundError, SchemaError, UsageError
from halocline.read.point import find
from halocline.rows.page import Row
from halocline.rows.state import TableState
from halocline.rows.tokens import Token
from halocline.schema import Schema
from halocline.txn import query, write
from halocline.txn.reads import Reads
from halocline.txn.view import see, visible_many, visible_range
from halocline.txn.workspace import Single, TableChanges

if TYPE_CHECKING:
    from halocline.txn.core import Core

Isolation = Literal["snapshot", "serializable"]
_MISSING: Any = object()


class Transaction:
    """Reads at one snapshot and private writes until commit."""

    # Nearly every transaction is short, so what it rarely needs is a class attribute until it does:
    # setting fourteen attributes at begin would cost 0.6 us of the 9 a small commit may take.
    commit_ts: int | None = None
    """The timestamp of the commit; None while open and when nothing was written."""
    already_committed = False
    """True when the token was known at begin: writes then do nothing."""
    read_only = False
    changes: dict[int, TableChanges] = {}  # noqa: RUF012 (replaced, never changed, see _open_table)
    created: dict[int, TableState] = {}  # noqa: RUF012
    dropped: frozenset[int] = frozenset()
    ddl: CatalogTxn | None = None
    reads: dict[int, Reads] | None = None
    token: Token | None = None
    _by_name: dict[str, TableChanges] = {}  # noqa: RUF012
    _state = "open"
    _single: Single | None = None
    _seen: tuple[TableState, Any, int, Row] | None = None
    """The row that was read last."""
    _fresh = True
    """Nothing written and nothing to record: reads may go straight to the table."""
    _writable = True

    def __init__(self, core: Core, snapshot: int, *, read_only: bool = False) -> None:
        self._core = core
        self.snapshot = snapshot
        if read_only:
            self.read_only = True
            self._writable = False
        core.pins[id(self)] = snapshot

    # Ending.

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._state == "open":
            if kind is None:
                if self._single is None or not self._commit_single():
                    self.commit()
            else:
                self.rollback()

    def _commit_single(self) -> bool:
        """Commit one row without detours; False when the general way must decide."""
        core, single = self._core, self._single
        if core.closed or core.committer is None or self.token is not None or single is None:
            return False
        try:
            commit_ts = core.committer.commit_single(self.snapshot, single)
        except BaseException:
            self._finish("failed at commit")
            raise
        if not commit_ts:
            return False
        self.commit_ts = commit_ts
        self._state = "committed"
        self._writable = self._fresh = False
        core.pins.pop(id(self), None)
        return True

    def __del__(self) -> None:
        # Whatever an interrupt left undone: the snapshot is held no longer than this object lives.
        core: Core | None = self.__dict__.get("_core")
        if core is not None:
            if self._state == "open":
                self._finish("rolled back")
            core.pins.pop(id(self), None)

    def commit(self) -> int | None:
        """Make the changes durable and visible; returns commit_ts, None when there were none."""
        if self._state != "open":
            raise UsageError(f"this transaction is already {self._state}")
        self._core.check_open()
        if self.already_committed or not self._has_changes():
            self._finish("committed")
            return self.commit_ts
        if self._single is not None and self._commit_single():
            return self.commit_ts
        self.settle()
        try:
            self.commit_ts = self._core.commit(self)
        except BaseException:
            self._finish("failed at commit")
            raise
        self._finish("committed")
        return self.commit_ts

    def rollback(self) -> None:
        """Forget the changes. Calling it again, or after a failed commit, does nothing."""
        if self._state == "committed":
            raise UsageError("this transaction is already committed")
        if self._state == "open":
            self._finish("rolled back")

    # Writing.

    def record_reads(self) -> None:
        """Called by `begin(isolation="serializable")`."""
        self.reads = {}
        self._fresh = False

    def insert(self, table: str, rows: Any) -> int:
        """Insert a dict, a list of dicts, or anything that exports Arrow; returns the row count.

        DuplicateKeyError when a key is taken, SchemaError when a value does not fit; then nothing
        of this call is kept.
        """
        if self._fresh and self._writable and type(rows) is dict:
            state = self._core.state_of(table, self.snapshot)
            if state is not None and state.key_of is not None:
                return self._insert_first(state, rows)
        changes = self._open_table(table)
        if not self._writable and not self._may_write():
            return _count(rows)
        with self._reading(changes):
            return self._insert(changes, rows)

    def upsert(self, table: str, rows: Any) -> int:
        """Insert rows, or update those whose key exists; absent columns keep their value."""
        changes = self._open_table(table)
        if not self._may_write():
            return _count(rows)
        with self._reading(changes):
            return self._upsert(changes, rows)

    def update(
        self,
        table: str,
        key: Any = _MISSING,
        values: Mapping[str, Any] | None = None,
        *,
        where: str | None = None,
        params: Sequence[Any] | None = None,
        set: Mapping[str, Any] | None = None,
    ) -> int:
        """Update one row by key (NotFoundError when absent), or all rows `where` holds.

        Returns the number of rows updated.
        """
        if self._fresh and self._writable and where is None and type(values) is dict:
            state = self._core.state_of(table, self.snapshot)
            if state is not None and key is not _MISSING and values:
                if self._update_first(state, state.schema.key(key), values):
                    return 1
        changes = self._open_table(table)
        if (key is _MISSING) == (where is None):
            raise UsageError("update takes either a key and values, or where= and set=")
        given = values if where is None else set
        if not isinstance(given, Mapping) or not given:
            raise UsageError("update needs a non-empty dict of column -> value")
        if not self._may_write():
            return 0
        checked = changes.schema.partial(given)
        if where is not None:
            self._read_whole(changes)
            return query.update_where(self._core, self, changes, where, params, checked)
        plain = changes.schema.key(key)
        with self._reading(changes, [plain]):
            write.update_key(changes, plain, checked, self.snapshot)
        return 1

    def delete(
        self,
        table: str,
        key: Any = _MISSING,
        *,
        where: str | None = None,
        params: Sequence[Any] | None = None,
    ) -> bool | int:
        """Delete one row by key (True when it was there), or all rows `where` holds (count)."""
        changes = self._open_table(table)
        if (key is _MISSING) == (where is None):
            raise UsageError("delete takes either a key or where=")
        if not self._may_write():
            return False if where is None else 0
        if where is not None:
            self._read_whole(changes)
            return query.delete_where(self._core, self, changes, where, params)
        plain = changes.schema.key(key)
        if self.reads is not None:
            self._reads_of(changes).keys.add(plain)
        return write.delete_key(changes, plain, self.snapshot)

    # Reading.

    def get(self, table: str, key: Any) -> dict[str, Any] | None:
        """The row with that key as a dict, or None."""
        if self._fresh:
            state = self._core.state_of(table, self.snapshot)
            if state is not None:
                schema = state.schema
                plain = schema.key(key)
                rowid = find(state, plain, self.snapshot)
                row = state.row(rowid) if rowid else None
                if row is None:
                    return None
                self._seen = (state, plain, rowid, row)
                return schema.as_dict(row)
        changes = self._open_table(table)
        plain = changes.schema.key(key)
        if self.reads is not None:
            self._reads_of(changes).keys.add(plain)
        row, _ = see(changes, plain, self.snapshot)
        return None if row is None else changes.schema.as_dict(row)

    def get_many(self, table: str, keys: Sequence[Any]) -> pa.Table:
        """The rows of these keys, in their order; absent keys are left out."""
        changes = self._open_keyed(table)
        plain = [changes.schema.key(key) for key in keys]
        if self.reads is not None:
            self._reads_of(changes).keys.update(plain)
        return visible_many(changes, plain, self.snapshot)

    def range(
        self,
        table: str,
        low: Any = None,
        high: Any = None,
        *,
        reverse: bool = False,
        limit: int | None = None,
    ) -> pa.Table:
        """Rows with low <= key < high in key order; None leaves an end open."""
        changes = self._open_keyed(table)
        low = None if low is None else changes.schema.key(low)
        high = None if high is None else changes.schema.key(high)
        if self.reads is not None:
            self._reads_of(changes).ranges.append((low, high))
        return visible_range(changes, low, high, self.snapshot, reverse=reverse, limit=limit)

    def scan(
        self,
        table: str,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        params: Sequence[Any] | None = None,
        order: str | Sequence[str] | None = None,
        limit: int | None = None,
        stream: bool = False,
    ) -> pa.Table | pa.RecordBatchReader:
        """Rows of one table, filtered, ordered and cut as asked; a reader with stream=True."""
        changes = self._open_table(table)
        self._read_whole(changes)
        result = query.scan(self._core, self, changes, columns, where, params, order, limit)
        return result.to_reader(65536) if stream else result

    def sql(
        self, text: str, params: Sequence[Any] | None = None, *, stream: bool = False
    ) -> pa.Table | pa.RecordBatchReader:
        """Run a SELECT over all tables of the database, own writes included."""
        self._check_usable()
        return query.select(self._core, self, text, params, stream=stream)

    # Tables.

    def create_table(
        self,
        name: str,
        schema: Any,
        primary_key: str | Sequence[str] | None = None,
        *,
        layout: str = "clustered",
        if_not_exists: bool = False,
    ) -> None:
        """Create a table; it is there for others when this transaction commits."""
        self._check_usable()
        if layout not in ("clustered", "heap"):
            raise UsageError(f"layout must be 'clustered' or 'heap', not {layout!r}")
        if layout == "heap":
            raise UsageError("layout 'heap' is not available in this version")
        definition = Schema.define(schema, primary_key)
        if not self._may_write():
            return
        ddl = self._sub()
        if if_not_exists and ddl.table(name) is not None:
            return
        entry = ddl.create_table(name, definition, layout=layout, options={})
        self.created = {**self.created, entry.id: self._core.new_state(entry)}
        self._forget_names()

    def drop_table(self, name: str, *, if_exists: bool = False) -> None:
        """Drop a table. Snapshots from before go on seeing it until they expire."""
        self._check_usable()
        if not self._may_write():
            return
        ddl = self._sub()
        if if_exists and ddl.table(name) is None:
            return
        entry = ddl.drop_table(name)
        self.changes = {key: one for key, one in self.changes.items() if key != entry.id}
        if entry.id not in self.created:
            self.dropped |= {entry.id}
        self.created = {key: one for key, one in self.created.items() if key != entry.id}
        self._forget_names()

    def tables(self) -> list[str]:
        """Names of the tables this transaction sees, sorted."""
        self._check_usable()
        return [entry.name for entry in self._entries()]

    def use_token(self, token: Token, known_ts: int) -> None:
        """Called by `begin(token=)`; a known token makes this transaction a no-op."""
        self.token = token
        if known_ts:
            self.already_committed = True
            self._writable = False
            self.commit_ts = known_ts

    # For the other files of this room.

    def changes_of(self, name: str) -> TableChanges:
        """The workspace of a table by any spelling of its name."""
        return self._open_table(name)

    def settle(self) -> None:
        """Put a write that was kept aside into the workspace."""
        if self._single is not None:
            self._absorb(self._single)

    def note_scan(self, changes: TableChanges) -> None:
        self._read_whole(changes)

    def _insert(self, changes: TableChanges, rows: Any) -> int:
        schema, snapshot = changes.schema, self.snapshot
        if type(rows) is dict:
            return write.insert_row(changes, schema.row(rows), snapshot)
        if _is_rows(rows):
            return write.insert_rows(changes, _checked(schema.row, rows), snapshot)
        data = schema.table(rows)
        if data.num_rows <= self._core.options.bulk_rows:
            return write.insert_rows(changes, schema.from_table(data), snapshot)
        return write.insert_table(changes, data, snapshot)

    def _upsert(self, changes: TableChanges, rows: Any) -> int:
        if isinstance(rows, Mapping):
            return write.upsert_rows(changes, [rows], self.snapshot)
        if _is_rows(rows):
            return write.upsert_rows(changes, list(rows), self.snapshot)
        data = changes.schema.table(rows, columns="given")
        if data.num_rows <= self._core.options.bulk_rows:
            return write.upsert_rows(changes, data.to_pylist(), self.snapshot)
        return write.upsert_table(changes, data, self.snapshot)

    @contextmanager
    def _reading(self, changes: TableChanges, keys: Sequence[Any] = ()) -> Iterator[None]:
        """A write that fails has told its caller something: serializable remembers what."""
        try:
            yield
        except DuplicateKeyError as error:
            if self.reads is not None and not error.inside_input:
                self._reads_of(changes).keys.update(error.keys)
            raise
        except NotFoundError:
            if self.reads is not None:
                self._reads_of(changes).keys.update(keys)
            raise

    def _insert_first(self, state: TableState, values: dict[str, Any]) -> int:
        """The first write of this transaction is one row: keep it aside (see commit_single)."""
        row = state.schema.row(values)
        assert state.key_of is not None
        key = state.key_of(row)
        if find(state, key, self.snapshot):
            raise DuplicateKeyError(state.entry.name, [key])
        self._single = (state, key, row, 0, ())
        self._fresh = False
        return 1

    def _update_first(self, state: TableState, key: Any, values: dict[str, Any]) -> bool:
        """The same for an update that leaves the key alone."""
        schema = state.schema
        seen = self._seen
        old: Row | None
        if seen is not None and seen[1] == key and seen[0] is state:
            _, _, rowid, old = seen  # read, modify, write: the row is still at hand
        else:
            rowid = find(state, key, self.snapshot)
            old = state.row(rowid) if rowid else None
        checked = schema.partial(values)
        if old is None or not schema.key_set.isdisjoint(checked):
            return False
        row = list(old)
        for position, value in checked.items():
            row[position] = value
        self._single = (state, key, tuple(row), rowid, tuple(checked))
        self._fresh = False
        return True

    def _absorb(self, single: Single) -> None:
        """More than one write after all: move the first into an ordinary workspace."""
        self._single = None
        state, key, row, rowid, changed = single
        changes = self._open_table(state.entry.name)
        if rowid:
            changes.update(rowid, key, row, set(changed))
        else:
            changes.insert(key, row)

    def _open_table(self, name: str) -> TableChanges:
        self._check_usable()
        if self._single is not None:
            self._absorb(self._single)
        self._fresh = False
        found = self._by_name.get(name)
        if found is not None:
            return found
        if not isinstance(name, str):
            raise UsageError(f"a table is named by a string, not {type(name).__name__}")
        entry = self._entry(name)
        if entry is None:
            raise NotFoundError("table", name, hint=self._hint())
        changes = self.changes.get(entry.id)
        if changes is None:
            state = self.created.get(entry.id) or self._core.state(entry.id)
            changes = TableChanges(state, self._core.options.batch_rows)
            self.changes = {**self.changes, entry.id: changes}
        self._by_name = {**self._by_name, name: changes}
        return changes

    def _entry(self, name: str) -> TableEntry | None:
        if self.ddl is not None or self.reads is not None:
            return self._sub().table(name)  # records the read
        return self._core.catalog.table(name, self.snapshot)

    def _entries(self) -> list[TableEntry]:
        if self.ddl is not None or self.reads is not None:
            return self._sub().tables()
        return self._core.catalog.tables(self.snapshot)

    def _hint(self) -> str:
        # Asked of the catalog, not of the transaction: a hint is no read that could conflict.
        names = [entry.name for entry in self._core.catalog.tables(self.snapshot)]
        return f"tables: {', '.join(names[:20])}" if names else "the database has no tables"

    def _sub(self) -> CatalogTxn:
        self._fresh = False
        if self._single is not None:
            self._absorb(self._single)
        if self.ddl is None:
            self.ddl = self._core.catalog.begin(id(self), self.snapshot)
        return self.ddl

    def _forget_names(self) -> None:
        self._by_name = {}

    def _open_keyed(self, name: str) -> TableChanges:
        changes = self._open_table(name)
        if changes.state.key_of is None:
            raise UsageError(f"table {changes.entry.name!r} has no primary key; use scan or where=")
        return changes

    def _reads_of(self, changes: TableChanges) -> Reads:
        assert self.reads is not None
        return self.reads.setdefault(changes.entry.id, Reads())

    def _read_whole(self, changes: TableChanges) -> None:
        if self.reads is not None:
            self._reads_of(changes).whole = True

    def _check_usable(self) -> None:
        if self._state != "open":
            raise UsageError(f"this transaction is {self._state}: begin another")
        self._core.check_open()

    def _may_write(self) -> bool:
        self._check_usable()
        if self.read_only:
            raise UsageError("this transaction is read-only")
        return self._writable

    def _has_changes(self) -> bool:
        if self._single is not None:
            return True
        return any(self.changes.values()) or bool(self.ddl is not None and self.ddl.nodes())

    def _finish(self, state: str) -> None:
        self._state = state
        self._writable = self._fresh = False
        self._single = None
        self._core.pins.pop(id(self), None)
        if self.ddl is not None:  # harmless after its commit
            self.ddl.rollback()
        if self.changes:
            self.changes, self._by_name = {}, {}


def _is_rows(rows: Any) -> bool:
    return isinstance(rows, (list, tuple)) and all(isinstance(row, Mapping) for row in rows)


def _checked(make: Any, rows: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    checked = []
    for place, row in enumerate(rows):
        try:
            checked.append(make(row))
        except SchemaError as error:
            raise SchemaError(error.reason, column=error.column, row=place) from None
    return checked


def _count(rows: Any) -> int:
    return 1 if isinstance(rows, Mapping) else len(rows) if hasattr(rows, "__len__") else 0

"""Transaction: the handle a caller reads and writes through.

    with db.begin() as txn:
        txn.insert("orders", {"id": 7, "amount": 12})
        txn.get("orders", 7)                              # own writes are visible
    txn.commit_ts

All reads see one snapshot, fixed at begin, plus the transaction's own writes. A call that raises
leaves the transaction as it was, usable; a failed commit ends it. Not thread-safe: one transaction
belongs to one thread at a time, a Database to all of them.

Not here: how a change enters the workspace (write.py), what is visible (view.py), the state of a
transaction and its end (work.py), how it is committed (commit.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import pyarrow as pa

from halocline.errors import UsageError
from halocline.read.point import find_row
from halocline.schema.schema import Schema
from halocline.txn import query, write
from halocline.txn.bykeys import delete_keys, key_table
from halocline.txn.view import see, visible_many, visible_range
from halocline.txn.where import delete_where, update_where
from halocline.txn.work import Work
from halocline.txn.workspace import TableChanges

_MISSING: Any = object()


class Transaction(Work):
    """Reads at one snapshot and private writes until commit."""

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

    # Writing.

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
            return write.count_rows(rows)
        with self._reading(changes):
            return write.insert(self._core, changes, rows, self.snapshot)

    def upsert(self, table: str, rows: Any) -> int:
        """Insert rows, or update those whose key exists; absent columns keep their value."""
        changes = self._open_table(table)
        if not self._may_write():
            return write.count_rows(rows)
        with self._reading(changes):
            return write.upsert(self._core, changes, rows, self.snapshot)

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
            self.note_scan(changes)
            return update_where(self._core, self, changes, where, params, checked)
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
            self.note_scan(changes)
            return delete_where(self._core, self, changes, where, params)
        plain = changes.schema.key(key)
        if self.reads is not None:
            self._reads_of(changes).keys.add(plain)
        return write.delete_key(changes, plain, self.snapshot)

    def delete_many(self, table: str, keys: Any) -> int:
        """Delete the rows of these keys, a list of them or anything that exports Arrow.

        Absent keys, and keys that come twice, are fine. Returns the number of rows deleted.
        """
        changes = self._open_keyed(table)
        schema = changes.schema
        if isinstance(keys, (list, tuple)):
            given = key_table(schema, keys)
        else:
            given = schema.table(keys, columns="given").select(list(schema.primary_key))
        if not self._may_write():
            return 0
        if self.reads is not None:
            self._reads_of(changes).keys.update(schema.keys_of(given))
        return delete_keys(self._core, changes, given, self.snapshot)

    def truncate(self, table: str) -> None:
        """Delete all rows, whoever wrote them: those that are there when this commits.

        It never conflicts with changes of rows by others; they do, if they commit after it.
        """
        changes = self._open_table(table)
        if not self._may_write():
            return
        self._give_up([changes])
        fresh = TableChanges(self._core.new_state(changes.entry))
        fresh.home = changes.home
        fresh.truncated = changes.entry.id not in self.created
        self.changes = {**self.changes, changes.entry.id: fresh}
        self._forget_names()

    # Reading.

    def get(self, table: str, key: Any) -> dict[str, Any] | None:
        """The row with that key as a dict, or None."""
        if self._fresh:
            state = self._core.state_of(table, self.snapshot)
            if state is not None:
                schema = state.schema
                plain = schema.key(key)
                found = find_row(state, plain, self.snapshot)
                if found is None:
                    return None
                self._seen = (state, plain, found[0], found[1])
                return schema.as_dict(found[1])
        changes = self._open_table(table)
        plain = changes.schema.key(key)
        if self.reads is not None:
            self._reads_of(changes).keys.add(plain)
        row, _ = see(changes, plain, self.snapshot)
        return None if row is None else changes.schema.as_dict(row)

    def get_many(self, table: str, keys: Sequence[Any]) -> pa.Table:
        """The rows of these keys, in their order; absent keys are left out."""
        changes = self._open_keyed(table)
        if isinstance(keys, (pa.Array, pa.ChunkedArray)):
            keys = keys.to_pylist()
        # A frame would be read as the names of its columns.
        wrong = isinstance(keys, (str, bytes, Mapping, pa.Table)) or hasattr(keys, "columns")
        if wrong or not isinstance(keys, Iterable):
            raise UsageError("get_many takes a list of keys, or an Arrow array of them")
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
        query.check_limit(limit)
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
        self.note_scan(changes)
        return query.scan(
            self._core, self, changes, columns, where, params, order, limit, stream=stream
        )

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
        longest = self._core.options.key_bytes_max
        definition = Schema.define(schema, primary_key, key_bytes_max=longest)
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
        self._give_up([one for key, one in self.changes.items() if key == entry.id])
        self.changes = {key: one for key, one in self.changes.items() if key != entry.id}
        if entry.id not in self.created:
            self.dropped |= {entry.id}
        self.created = {key: one for key, one in self.created.items() if key != entry.id}
        self._forget_names()

    def tables(self) -> list[str]:
        """Names of the tables this transaction sees, sorted."""
        self._check_usable()
        return [entry.name for entry in self._entries()]

"""Transaction: the handle a caller reads and writes through, from begin to its end.

    with db.begin() as txn:
        txn.insert("orders", {"id": 7, "amount": 12})
        txn.get("orders", 7)                              # own writes are visible
    txn.commit_ts

    begin --> open --commit--> committed
                  |-rollback--> rolled back
                  '-commit fails--> failed at commit

All reads see one snapshot, fixed at begin, plus the transaction's own writes. A call that raises
leaves the transaction as it was, usable; a failed commit ends it. Not thread-safe: one transaction
belongs to one thread at a time, a Database to all of them.

What it has done so far is in `_own`: nothing, one row, or a workspace. A transaction that only
reads has nothing, and reads straight from the tables. One that writes one row and nothing else
keeps that row aside, and it is committed by `commit_single`, three times as fast. The first thing
that does not fit moves the row into a workspace, and nobody can tell the difference.

Not here: how a change enters the workspace (write.py), what is visible (read/view.py), how it is
committed (commit.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import CodeType
from typing import Any, Final, Unpack

import pyarrow as pa

from halocline.catalog import TableDdl, TableEntry
from halocline.errors import HaloclineError, NotFoundError, UsageError
from halocline.read.point import find_row
from halocline.read.view import View, check_limit
from halocline.rows.state import TableState
from halocline.rows.tokens import Token
from halocline.schema.evolve import Alteration
from halocline.txn import definitions, indexing, write
from halocline.txn.assignment import read_assignment
from halocline.txn.bulk import spill
from halocline.txn.core import Core, Pin
from halocline.txn.definitions import LAYOUT, NewTable, new_schema
from halocline.txn.for_update import Locked
from halocline.txn.jobs import give_up, jobs_of
from halocline.txn.lenient import LenientInsert, OnConflict, Rejects
from halocline.txn.reads import told_by
from halocline.txn.returning import Returned, Returning, returned_of
from halocline.txn.row_commit import first_row
from halocline.txn.row_update import Addition, SeenRow, Single, row_update
from halocline.txn.turns import RowName, check_timeout
from halocline.txn.workspace import TableChanges, Workspace, is_written

Params = Sequence[Any] | None
_MISSING: Any = object()
_ENDED: Final = Workspace()
"""What a transaction has that is over: not nothing, so every call looks at its state first."""


class Transaction:
    """Reads at one snapshot and private writes until commit."""

    # Nearly every transaction is short, so what it rarely needs is a class attribute until it does:
    # assignment all attributes at begin would cost 0.6 us of the 9 a small commit may take.
    commit_ts: int | None = None
    """The timestamp of the commit; None while open and when nothing was written."""
    already_committed = False
    """True when the token was known at begin: writes then do nothing."""
    read_only = False
    began: tuple[CodeType, int] | None = None
    """The code and the instruction of who began it."""
    waits = True
    """Does a commit wait for the disk, and tidy up? Otherwise its caller does, in node/."""
    ticket = 0
    """Its place in the queues of contended rows, if it has one (turns.py)."""
    locked: frozenset[RowName] = frozenset()
    """The rows that it has asked for with `for_update`."""
    _own: Single | Addition | Workspace | None = None
    _state = "open"
    _writable = True
    _seen: SeenRow | None = None
    """The row that was read last."""
    _has_read = False
    """Has something been read, besides `_seen`?"""

    def __init__(
        self, core: Core, snapshot: int, *, read_only: bool = False, pinned: bool = True
    ) -> None:
        """One that has read nothing yet may pin its snapshot later, if it knows how to."""
        self._core = core
        self.snapshot = snapshot
        if read_only:
            self.read_only = True
            self._writable = False
            core.pins[-id(self)] = snapshot
        elif pinned:
            core.pins[id(self)] = snapshot

    @property
    def core(self) -> Core:
        """The state that this transaction sees."""
        return self._core

    def __enter__(self) -> Transaction:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if self._state == "open":
            if kind is None:
                if type(self._own) is not tuple or not self._commit_single(self._own):
                    self.commit()
            else:
                self.rollback()

    # Writing.

    def insert(
        self,
        table: str,
        rows: Any,
        *,
        on_conflict: OnConflict = "error",
        reject: Rejects = None,
        returning: Returning = False,
    ) -> Any:
        """Insert a dict, a list of dicts, a file by its path, or anything that exports Arrow.

        Returns how many. DuplicateKeyError when a key is taken, SchemaError when a value does not
        fit; then nothing is kept. on_conflict: "ignore" leaves out rows of taken keys, "upsert"
        updates them. reject: a list that gets row, column, reason and values of what does not fit.
        returning: True, or columns, gives what was stored: a dict for a dict, else a pa.Table.
        """
        plain = on_conflict == "error" and reject is None
        if self._own is None and self._writable and type(rows) is dict and plain:
            state = self._core.state_of(table, self.snapshot)
            if state is not None and state.key_of is not None:
                self._own, result = first_row(self._core, state, rows, self.snapshot, returning)
                return result
        changes = self.changes_of(table)
        returned = returned_of(changes.schema, rows, returning)
        if not self._writable and not self._may_write():
            return write.count_rows(rows) if returned is None else returned.result()
        with self._reading(changes.state):
            if plain:
                count = write.insert(self._core, changes, rows, self.snapshot, returned)
            else:
                how = on_conflict, reject, returned
                work = LenientInsert(self._core, changes, self.snapshot, *how)
                self._note(changes.state, keys=work.run(rows))
                count = work.count
        return count if returned is None else self._shown(changes, returned)

    def upsert(self, table: str, rows: Any, *, returning: Returning = False) -> Any:
        """Insert rows, or update those whose key exists; absent columns keep their value."""
        changes = self.changes_of(table)
        returned = returned_of(changes.schema, rows, returning)
        if not self._may_write():
            return write.count_rows(rows) if returned is None else returned.result()
        with self._reading(changes.state):
            count = write.upsert(self._core, changes, rows, self.snapshot, returned)
        return count if returned is None else self._shown(changes, returned)

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

        A value is a constant, `hc.add(1)` or `hc.expr("n * 2")`. `update(table, rows)` writes the
        columns of a frame, a file or dicts into the rows with their keys. Returns how many.
        """
        if self._own is None and self._writable and where is None and type(values) is dict:
            state = self._core.state_of(table, self.snapshot)
            if state is not None and key is not _MISSING and values:
                plain = state.schema.key(key)
                self._own = row_update(state, plain, self.snapshot, self._seen, values)
                if self._own is not None:
                    return 1
        changes = self.changes_of(table)
        if values is None and where is None and set is None and write.may_be_rows(key):
            if not self._may_write():
                return 0
            with self._reading(write.keyed(changes.state)):
                return write.update_many(self._core, changes, key, self.snapshot)
        if (key is _MISSING) == (where is None):
            raise UsageError("update takes a key and values, rows, or where= and set=")
        given = values if where is None else set
        if not isinstance(given, Mapping) or not given:
            raise UsageError("update needs a non-empty dict of column -> value")
        if not self._may_write():
            return 0
        assignment = read_assignment(changes.schema, given)
        if where is not None:
            from halocline.txn.where import update_where  # with it comes the parser of SQL

            self._note(changes.state, whole=True)
            return update_where(self._core, changes, where, params, assignment, self.snapshot)
        plain = changes.schema.key(key)
        with self._reading(changes.state, [plain]):
            write.update_key(self._core, changes, plain, assignment, self.snapshot)
        return 1

    def delete(
        self, table: str, key: Any = _MISSING, *, where: str | None = None, params: Params = None
    ) -> bool | int:
        """Delete one row by key (True when it was there), or all rows `where` holds (count)."""
        changes = self.changes_of(table)
        if (key is _MISSING) == (where is None):
            raise UsageError("delete takes either a key or where=")
        if not self._may_write():
            return False if where is None else 0
        if where is not None:
            from halocline.txn.where import delete_where

            self._note(changes.state, whole=True)
            return delete_where(self._core, changes, where, params, self.snapshot)
        plain = changes.schema.key(key)
        self._note(changes.state, keys=[plain])
        return write.delete_key(changes, plain, self.snapshot)

    def delete_many(self, table: str, keys: Any) -> int:
        """Delete the rows of these keys, a list of them or anything that exports Arrow.

        Absent keys, and keys that come twice, are fine. Returns the number of rows deleted.
        """
        changes = self.changes_of(table)
        schema = write.keyed(changes.state).schema
        given = write.key_table(schema, keys)
        if not self._may_write():
            return 0
        if self.serializable:
            self._note(changes.state, keys=schema.keys_of(given))
        return write.delete_keys(self._core, changes, given, self.snapshot)

    def truncate(self, table: str) -> None:
        """Delete all rows, whoever wrote them: those that are there when this commits.

        It never conflicts with changes of rows by others; they do, if they commit after it.
        """
        changes = self.changes_of(table)
        if not self._may_write():
            return
        self._give_up([changes])
        self.workspace.truncate(changes, self._core.engine.new_table(changes.entry))

    # Reading.

    def get(
        self, table: str, key: Any, for_update: bool = False, timeout: float | None = None
    ) -> dict[str, Any] | None:
        """The row with that key as a dict, or None.

        With `for_update` the key is this transaction's until it ends: others who ask for it in the
        same way, or write it through `db.run`, wait. ConflictError after `timeout` seconds (30).
        """
        if for_update or timeout is not None:
            self._lock(table, [key], for_update, timeout)
        if self._own is None:
            state = self._core.state_of(table, self.snapshot)
            if state is not None:
                schema = state.schema
                plain = schema.key(key)
                found = find_row(state, plain, self.snapshot)
                if found is None:
                    self._has_read = True
                    return None
                self._seen = (state, plain, found[0], found[1])
                return schema.as_dict(found[1])
        view = self._view(table)
        schema = view.state.schema
        plain = schema.key(key)
        self._note(view.state, keys=[plain])
        row, _ = view.shown([plain]).see(plain)
        return None if row is None else schema.as_dict(row)

    def get_many(
        self, table: str, keys: Any, for_update: bool = False, timeout: float | None = None
    ) -> pa.Table:
        """The rows of these keys, in their order; absent keys are left out.

        With `for_update` the keys are this transaction's until it ends: see `get`.
        """
        keys = write.key_list(keys)
        if for_update or timeout is not None:
            self._lock(table, keys, for_update, timeout)
        view = self._view(table)
        schema = write.keyed(view.state).schema
        plain = [schema.key(key) for key in keys]
        self._note(view.state, keys=plain)
        return view.shown(plain).rows_of(plain)

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
        view = self._view(table)
        schema = write.keyed(view.state).schema
        check_limit(limit)
        low = None if low is None else schema.key(low)
        high = None if high is None else schema.key(high)
        if self.serializable:
            self.workspace.reads_of(view.state).ranges.append((low, high))
        return view.shown().between(low, high, reverse=reverse, limit=limit)

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
        from halocline.read import query  # with it comes the parser of SQL

        duck = self._core.duck
        return query.scan(duck, self, table, columns, where, params, order, limit, stream=stream)

    def sql(
        self, text: str, params: Sequence[Any] | None = None, *, stream: bool = False
    ) -> pa.Table | pa.RecordBatchReader:
        """Run a SELECT over all tables of the database, own writes included."""
        from halocline.read import query

        self._check_usable()
        return query.select(self._core.duck, self, text, params, stream=stream)

    # Tables.

    def create_table(
        self,
        name: str,
        schema: Any,
        primary_key: str | Sequence[str] | None = None,
        **how: Unpack[NewTable],
    ) -> None:
        """Create a table as `Database.create_table` does; this transaction can use it at once."""
        self._check_usable()
        definition = new_schema(name, schema, primary_key, how, self._core.options)
        wanted = not how.get("if_not_exists", False)
        if self._may_write() and (wanted or self._ddl().table(name) is None):
            layout = how.get("layout", LAYOUT)
            entry = self._ddl().create_table(name, definition, layout=layout, options={})
            self.workspace.create(self._core.engine.new_table(entry))

    def alter_table(self, name: str, **changes: Unpack[Alteration]) -> None:
        """As `Database.alter_table`. Until it commits, it can neither read nor write the table."""
        if self._may_write():
            definitions.alter_table(self.workspace, self._ddl(), name, changes)

    def rename_table(self, name: str, new_name: str) -> None:
        """As `Database.rename_table`. Until it commits, it can neither read nor write the table."""
        if self._may_write():
            definitions.rename_table(self.workspace, self._ddl(), name, new_name)

    def drop_table(self, name: str, *, if_exists: bool = False) -> None:
        """Drop a table. Snapshots from before go on seeing it until they expire."""
        if self._may_write():
            ddl = self._ddl()
            self._give_up(definitions.drop_table(self.workspace, ddl, name, if_exists=if_exists))

    create_index = indexing.create_index
    drop_index = indexing.drop_index
    lookup = indexing.lookup

    def tables(self) -> list[str]:
        """Names of the tables this transaction sees, sorted."""
        self._check_usable()
        own = self._own
        if isinstance(own, Workspace) and own.asks_catalog:
            return [entry.name for entry in self._ddl().tables()]
        return [entry.name for entry in self._core.catalog.tables(self.snapshot)]

    def has_table(self, name: str) -> bool:
        """Is there a table of this name?"""
        return self.entry_of(name) is not None

    def definitions(self) -> TableDdl | None:
        """The catalog's part of it, to be changed; None when its changes are not kept."""
        return self._ddl() if self._may_write() else None

    def state_of(self, name: str) -> TableState:
        """The state of a table by any spelling of its name, to be read; NotFoundError if absent."""
        return self._view(name).state

    def view_of(self, name: str) -> View:
        """A table as this transaction sees it, about to be read as a whole."""
        view = self._view(name)
        self._note(view.state, whole=True)
        return view.shown()

    def changes_of(self, name: str) -> TableChanges:
        """What this transaction does to a table, by any spelling of its name, to be written."""
        self._check_usable()
        work = self.workspace
        found = work.by_name.get(name) if isinstance(name, str) else None
        if found is None:
            found = work.table(self._find(name))
            work.by_name[name] = found
        return found

    # Ending.

    def commit(self) -> int | None:
        """Make the changes durable and visible; returns commit_ts, None when there were none."""
        if self._state != "open":
            raise UsageError(f"this transaction is already {self._state}")
        self._core.check_open()
        own = self._own
        if own is None:
            self._finish("committed")
            return None
        if type(own) is tuple and self._commit_single(own):
            return self.commit_ts
        if type(own) is Addition and self._commit_addition(own):
            return self.commit_ts
        if isinstance(own, Workspace) and (self.already_committed or not own):
            self._end("committed")
            return self.commit_ts
        try:
            self._check_usable()
            work = self.workspace
            work.snapshot, work.waits, work.ticket = self.snapshot, self.waits, self.ticket
            spill(self._core.writing, work.changes.values())
            self.commit_ts = self._core.writing.commit(work)
        except BaseException:
            self._end("failed at commit")
            raise
        self._end("committed")
        if self.waits and self._core.committer is not None:
            for changes in work.changes.values():
                if changes.home.owes:
                    self._core.committer.tidy(changes.home)
        return self.commit_ts

    def rollback(self) -> None:
        """Forget the changes. Calling it again, or after a failed commit, does nothing."""
        if self._state == "committed":
            raise UsageError("this transaction is already committed")
        if self._state == "open":
            self._end("rolled back")

    def _commit_single(self, single: Single) -> bool:
        """Commit one row without detours; False when the general way must decide."""
        core = self._core
        if core.closed or core.committer is None:
            return False
        try:
            commit_ts = core.committer.commit_single(self.snapshot, single, self.waits, self.ticket)
        except BaseException:
            self._finish("failed at commit")
            raise
        if not commit_ts:
            return False
        self.commit_ts = commit_ts
        self._state = "committed"
        self._writable = False
        self._own, self._seen = _ENDED, None  # an ended transaction holds no table in memory
        core.pins.pop(id(self), None)
        if self.ticket:
            self._end_turns()
        if single[0].owes and self.waits:
            core.committer.tidy(single[0])
        return True

    def _commit_addition(self, own: Addition) -> bool:
        """Commit what is added to one row; False when the general way must decide."""
        try:
            committer = self._core.writing
            commit_ts = committer.commit_addition(self.snapshot, own, self.waits, self.ticket)
        except BaseException:
            self._finish("failed at commit")
            raise
        if commit_ts:
            self.commit_ts = commit_ts
            self._finish("committed")
            if own.state.owes and self.waits:
                committer.tidy(own.state)
        return bool(commit_ts)

    def _end(self, state: str) -> None:
        """Jobs end with their transaction: those that the commit record has not ended end here."""
        own = self._own
        self._give_up(own.changes.values() if isinstance(own, Workspace) else ())
        self._finish(state)

    def _give_up(self, tables: Iterable[TableChanges]) -> None:
        """Files that were written for nothing: their jobs are over, and GC may have them."""
        committer = self._core.committer
        jobs = jobs_of(tables)
        if committer is not None and (jobs or committer.forgotten):
            give_up(committer, jobs)

    def _finish(self, state: str) -> None:
        own = self._own
        self._state = state
        self._writable = False
        self._own, self._seen = _ENDED, None
        self._core.pins.pop(-id(self) if self.read_only else id(self), None)
        if self.ticket:
            self._end_turns()
        if isinstance(own, Workspace) and own.ddl is not None:
            own.ddl.rollback()  # harmless after its commit

    def _end_turns(self) -> None:
        """Let others have the rows that this transaction had for itself."""
        if self._core.committer is not None:
            self._core.committer.end_turns(self.ticket)
        self.ticket = 0

    def __del__(self) -> None:
        # Whatever an interrupt left undone: the snapshot is held no longer than this object lives.
        core: Core | None = getattr(self, "_core", None)  # 0.05 us; through __dict__ 0.2
        if core is not None:
            if self.ticket and core.committer is not None:
                core.committer.lapse_turns(self.ticket)
                self.ticket = 0
            if self._state == "open":
                # Not ended here: this may run at any moment, even while the lock is held.
                own = self._own
                if isinstance(own, Workspace):
                    if core.committer is not None:
                        core.committer.forgotten += jobs_of(own.changes.values())
                    if own.ddl is not None:
                        own.ddl.abandon()
                self._finish("rolled back")
            pin = -id(self) if self.read_only else id(self)
            if pin in core.pins:
                core.pins.pop(pin, None)

    # Set by begin, and by the owner for a transaction that another process has prepared.

    def record_reads(self) -> None:
        """Remember what is read from now on: called by `begin(isolation="serializable")`."""
        self.workspace.serializable = True

    def use_token(self, token: Token, known_ts: int) -> None:
        """Commit under a token: called by `begin(token=)`. A known one makes this a no-op."""
        self.workspace.token = token
        if known_ts:
            self.already_committed = True
            self._writable = False
            self.commit_ts = known_ts

    def keep_token(self) -> None:
        """Remember the token although nothing may be written: called by jobs of empty inputs."""
        if self.token is not None:
            self.workspace.keeps_token = True

    # What it has.

    @property
    def workspace(self) -> Workspace:
        """All that this transaction has done; made now if it has done nothing yet, or one row."""
        own = self._own
        if isinstance(own, Workspace):
            return own
        work = Workspace()
        if own is not None:
            work.take(own)
        self._own = work
        return work

    @property
    def token(self) -> Token | None:
        """The token that the commit will bring."""
        return self._own.token if isinstance(self._own, Workspace) else None

    @property
    def serializable(self) -> bool:
        """Is everything that it reads checked at its commit?"""
        return isinstance(self._own, Workspace) and self._own.serializable

    def writes(self, row: RowName) -> bool:
        """Has it written this row, one of few?"""
        return is_written(self._own, row)

    def hold(self) -> Pin:
        """Keep the snapshot for a stream that may outlive the transaction."""
        return Pin(self._core.pins, self.snapshot)

    def _view(self, name: str) -> View:
        """A table as this transaction sees it. No workspace is made for it."""
        self._check_usable()
        own = self._own
        if own is None or not isinstance(name, str):
            return View(self._find(name), self.snapshot)
        work = self.workspace
        changes = work.by_name.get(name)
        if changes is None:
            state = self._find(name)
            changes = work.changes.get(state.table_id)
            if changes is None:
                return View(state, self.snapshot)
        return changes.view(self.snapshot)

    def _find(self, name: str) -> TableState:
        self._has_read = True
        if not isinstance(name, str):
            raise UsageError(f"a table is named by a string, not {type(name).__name__}")
        entry = self.entry_of(name)
        if entry is None:
            # Asked of the catalog, not of the transaction: a hint is no read that could conflict.
            raise NotFoundError("table", name, hint=self._core.hint(name, self.snapshot))
        own = self._own
        created = own.created_state(entry) if isinstance(own, Workspace) else None
        state, version = created or self._core.engine.tables[entry.id], entry.schema.version
        return state if state.schema.version == version else state.at_version(version)

    def entry_of(self, name: str) -> TableEntry | None:
        """What the catalog says of a table, as this transaction sees it."""
        own = self._own
        if isinstance(own, Workspace) and own.asks_catalog:
            return self._ddl().table(name)  # records the read
        return self._core.catalog.table(name, self.snapshot)

    def _ddl(self) -> TableDdl:
        work = self.workspace
        if work.ddl is None:
            work.ddl = self._core.begin_ddl(self.snapshot)
        return work.ddl

    def _check_usable(self) -> None:
        if self._state != "open":
            raise UsageError(f"this transaction is {self._state}: begin another")
        self._core.check_open()

    def _may_write(self) -> bool:
        self._check_usable()
        if self.read_only:
            raise UsageError("this transaction is read-only")
        return self._writable

    # What a serializable transaction remembers.

    def _note(self, state: TableState, *, keys: Iterable[Any] = (), whole: bool = False) -> None:
        """Keys, or the whole table, were read."""
        if self.serializable:
            reads = self.workspace.reads_of(state)
            reads.keys.update(keys)
            reads.whole |= whole

    def _shown(self, changes: TableChanges, returned: Returned) -> Any:
        """What was stored is shown to the caller, so it was read."""
        if self.serializable and changes.schema.primary_key:
            self._note(changes.state, keys=returned.keys())
        return returned.result()

    @contextmanager
    def _reading(self, state: TableState, keys: Sequence[Any] = ()) -> Iterator[None]:
        """A write that fails has told its caller something: serializable remembers what."""
        try:
            yield
        except HaloclineError as error:
            self._note(state, keys=told_by(error, keys))
            raise

    # Rows that are this transaction's until it ends.

    def _lock(self, table: str, keys: Iterable[Any], wanted: bool, timeout: float | None) -> None:
        """Wait for the turn at these keys, and see them as they are then."""
        wait_s = check_timeout(timeout, wanted=wanted)
        if not self._may_write():
            return
        has_read = self._has_read or self._seen is not None
        fresh = not has_read and (self._own is None or self.workspace.is_untouched)
        state = write.keyed(self._find(table))
        self._has_read = has_read  # the table, not what is in it
        committer, wanted_rows = self._core.writing, Locked.of(state, keys)
        self.locked |= wanted_rows.rows
        self.ticket = self.ticket or committer.new_ticket()
        wanted_rows.take(committer, self.ticket, wait_s)
        newest = self._core.newest_ts()
        if fresh and newest > self.snapshot:  # nothing of the old snapshot has been seen
            self.snapshot = self._core.pin_newest(id(self))
        wanted_rows.check(self.snapshot, newest)
        self.workspace.reads_of(state).keys.update(wanted_rows.keys)

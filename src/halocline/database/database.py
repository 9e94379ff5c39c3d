"""Database: what a program calls, and which role the handle has.

    open, connect (doors.py) --> Setting --> a role: Owner, ComputeNode or ReadOnly (role.py)
    begin / run / sql / changes / maintenance --> the role of the moment --> the rooms

A Database is thread-safe. A forked child may not use the parent's: its handle raises UsageError.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from sys import _getframe
from typing import Any, Literal, TypeVar, Unpack, cast

import pyarrow as pa

from halocline.catalog.names import check_name
from halocline.checkpoint import CheckpointReport, GcReport, Snapshot
from halocline.checkpoint.snapshots import list_snapshots, resolve
from halocline.clock import Clock, SystemClock
from halocline.compaction import CompactReport, LocalRunner, Plan, Runner
from halocline.database.check import check_checkpoints, check_engine, check_log
from halocline.database.compute_node import ComputeNode, role_now_of, schema_finder
from halocline.database.constraints import add_constraints
from halocline.database.display import database_picture
from halocline.database.health import Health
from halocline.database.indexes import index_table
from halocline.database.opened import begin_of
from halocline.database.opening import (
    make_folder,
    readable,
    shelf_for,
    spill_folder,
)
from halocline.database.owner import Owner
from halocline.database.read_only import ReadOnly
from halocline.database.role import Role, Setting, pinned
from halocline.database.table import Table
from halocline.errors import (
    ConflictError,
    HaloclineError,
    SnapshotExpiredError,
    UnavailableError,
    UsageError,
)
from halocline.mover import Moved
from halocline.node import Link, Local, LockHeldError, NearRoute, Server
from halocline.node.streams import Stream
from halocline.node.subscription import Pump, Subscription
from halocline.node.wire import Command, CommandName, Subscribe
from halocline.options import MIB, Durability, Options, parse_duration, parse_size
from halocline.read.changes import read_changes
from halocline.read.duck import Duck
from halocline.rows.tokens import check_token
from halocline.schema.compression import Codec
from halocline.schema.evolve import Alteration
from halocline.store import Files, LocalFiles, Objects
from halocline.txn import Core, Rerun, Transaction

T = TypeVar("T")
At = int | datetime | str
MEMORY_MIN = 16 * MIB


class Database:
    """An open database. Make one with `halocline.open`."""

    def __init__(
        self,
        files: Files,
        path: str,
        *,
        read_only: bool = False,
        durability: Durability = "sync",
        retention: str | float | None = None,
        memory: str | int = "1GB",
        options: Options | None = None,
        clock: Clock | None = None,
        objects: Objects | None = None,
        link: Link | None = None,
    ) -> None:
        """`link` leads to an owner on another machine."""
        if durability not in ("sync", "async"):
            raise UsageError(f"durability must be 'sync' or 'async', not {durability!r}")
        if options is not None and not isinstance(options, Options):
            raise UsageError("options= takes halocline.Options(...)")
        memory_bytes = parse_size(memory)
        if memory_bytes < MEMORY_MIN:
            raise UsageError(f"memory={memory!r} is too little: give at least 16MB")
        self.path = path
        self.read_only = read_only
        self._retention_us = None if retention is None else int(parse_duration(retention) * 1e6)
        """The retention time that this opening has named, until the database knows it."""
        self._pumps: weakref.WeakSet[Pump] = weakref.WeakSet()
        self._half_closed = False
        """Closing was broken off: what it left is done by the next call."""
        options = options or Options()
        shelf = shelf_for(files, objects, memory_bytes)
        spill = "" if read_only else spill_folder(files)
        making = partial(make_folder, files)
        self._setting = Setting(
            files=files,
            path=path,
            options=options,
            durability=durability,
            l0_bytes=memory_bytes // 4,
            clock=clock or SystemClock(),
            shelf=shelf,
            duck=Duck(memory_bytes // 2, options.sql_threads, shelf.root, spill, making),
        )
        self._role: Role
        with readable(path):
            self._enter(link)
        _OPEN.add(self)

    def __repr__(self) -> str:
        return database_picture(self).text()

    def _repr_html_(self) -> str:
        return database_picture(self).html()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # Transactions.

    def begin(
        self,
        at: At | None = None,
        isolation: Literal["snapshot", "serializable"] = "snapshot",
        token: Any = None,
    ) -> Transaction:
        """Start a transaction on the newest snapshot; with `at`, a read-only one in the past."""
        role = self._role
        core = role.core
        if core.closed:
            core.check_open()
        if at is None and token is None and isolation == "snapshot" and not self.read_only:
            txn = role.begin()
            # What health() shows of one that nobody ends; 0.2 us.
            frame = _getframe(1)
            txn.began = frame.f_code, frame.f_lasti
            return txn
        if isolation not in ("snapshot", "serializable"):
            raise UsageError(f"isolation must be 'snapshot' or 'serializable', not {isolation!r}")
        checked = None if token is None else check_token(token)
        if self.read_only or at is not None:
            if checked is not None:
                raise UsageError("a token is for transactions that write, not for reading")
            txn = self._begin_reading(at)
            txn.began = _getframe(1).f_code, _getframe(1).f_lasti
            return txn
        txn = role.begin()
        txn.began = _getframe(1).f_code, _getframe(1).f_lasti
        if isolation != "snapshot":
            txn.record_reads()
        if checked is not None:
            known = txn.core.engine.tokens.find(checked)
            if known:
                self._role.wait_visible(known)
                txn.snapshot = max(txn.snapshot, txn.core.newest_ts())
            txn.use_token(checked, known)
        return txn

    def run(
        self,
        function: Callable[[Transaction], T],
        retries: int = 20,
        token: Any = None,
        isolation: Literal["snapshot", "serializable"] = "snapshot",
    ) -> T | None:
        """Run `function(txn)` and commit; run it again when another transaction was faster.

        One that has lost over a row waits for its turn at it, 30 seconds in all. Returns the
        function's result; None when the token had been committed before.
        """
        if not callable(function):
            text = f"run takes a function of one transaction, not {function!r}"
            raise UsageError(f"{text}: db.run(lambda txn: txn.insert(...))")
        if type(retries) is not int or retries < 0:
            raise UsageError(f"retries must be a whole number, not {retries!r}")
        hot, clock, txn = self._setting.hot, self._setting.clock, None
        again = Rerun.expected(hot, function, clock) if hot and retries else None
        for attempt in range(retries + 1):
            try:
                if again is not None:
                    again.take(self._role.core.writing, clock)
                with self.begin(isolation=isolation, token=token) as txn:
                    txn.began = begin_of(function) or txn.began
                    if txn.already_committed:
                        return None
                    result = function(txn) if again is None else again.run(function, txn)
                return result  # noqa: RET504 (after the commit, which leaving the block does)
            except ConflictError as error:
                again = again or Rerun(hot)
                if attempt == retries or again.has_waited_enough:
                    raise
                again.lost(self._role.core, txn, error)
                if error.winner_ts:
                    self._role.wait_visible(error.winner_ts)
                else:
                    again.pause(clock, attempt)
            finally:
                if again is not None:
                    again.end()
        raise AssertionError("unreachable")

    # Tables.

    def create_table(
        self,
        name: str,
        schema: Any,
        primary_key: str | Sequence[str] | None = None,
        layout: str = "clustered",
        if_not_exists: bool = False,
        comment: str = "",
        checks: Mapping[str, str] | None = None,
        codec: Codec = None,
    ) -> Table:
        """Create a table in a transaction of its own.

        schema: a dict of types or of `hc.Column`s, a pa.Schema, or whose columns it shall have: a
        frame, one of Spark too, or the path of a file. Its rows are not taken: insert them later.
        Of a table of Halocline (`db.table("orders")`) columns are taken with defaults, comments and
        all, and its checks too, unless checks= says others.
        checks: name -> SQL expression over a row, such as "amount > 0"; a row that makes one false
        is a CheckError, on every way in.
        codec: "zstd", "lz4" or "none" for the objects of the table, or a dict of columns to these.
        """
        if type(schema).__module__.startswith("pyspark."):
            from halocline.spark.types import definition

            schema = definition(schema)
        how: dict[str, Any] = {"layout": layout, "if_not_exists": if_not_exists, "comment": comment}
        how |= {"codec": codec, "checks": checks}
        with self.begin() as txn:
            txn.create_table(name, schema, primary_key, **how)
        return Table(self, name)

    def alter_table(self, name: str, **changes: Unpack[Alteration]) -> None:
        """Change the columns of a table in a transaction of its own.

        add: column -> type, at the end; rows that are there show its constant default, else NULL.
        drop: names; one can be used again, for a column that shows nothing of the old values.
        rename: old name -> new name. change: column -> wider type. set_default: column -> default
        of rows to come; None: none. comment: of the table. Several are one commit. No file is read
        or written, nobody waits, and `at=` before the commit shows the old columns. A transaction
        that has written the table and is still open gets ConflictError; `run` runs it again.

        drop_checks: names of checks. add_checks, name -> expression, and set_required, columns that
        become not null, take two commits and a call of their own: from the first on all writes obey
        them, then the rows that are there are looked at. If some of them do not, all is as before,
        and CheckError names them.
        """
        if changes.get("add_checks") or changes.get("set_required"):
            add_constraints(self, name, changes)
            return
        with self.begin() as txn:
            txn.alter_table(name, **changes)

    def rename_table(self, name: str, new_name: str) -> None:
        """Give a table another name in a transaction of its own.

        No row is touched. `at=` before the commit finds the table under the old name only, which
        is free for another table from then on. A transaction that has written the table and is
        still open gets ConflictError; `run` runs it again.
        """
        with self.begin() as txn:
            txn.rename_table(name, new_name)

    def drop_table(self, name: str, if_exists: bool = False) -> None:
        """Drop a table in a transaction of its own."""
        with self.begin() as txn:
            txn.drop_table(name, if_exists=if_exists)

    def create_index(
        self,
        name: str,
        table: str,
        columns: Sequence[str],
        kind: str = "sorted",
        wait: bool = False,
    ) -> None:
        """Give a table an index in a transaction of its own.

        Queries use it as far as it is built, and are exact all the while. The background builds it;
        with `wait` it is built when this returns. docs/indexes.md says which kind is for what.
        """
        self.run(lambda txn: txn.create_index(name, table, columns, kind))
        if wait:
            self._maintain("build_indexes", table)

    def drop_index(self, name: str) -> None:
        """Drop an index in a transaction of its own."""
        self.run(lambda txn: txn.drop_index(name))

    def indexes(self, table: str | None = None) -> pa.Table:
        """The indexes of one table, or of all: name, table, kind, columns, state, how many objects
        are covered of how many, bytes; how often this process has used each, and rows it saved."""
        self._role.refresh()
        with self.begin() as txn:
            names = txn.tables() if table is None else [table]
            return index_table([txn.state_of(name) for name in names])

    def tables(self) -> list[str]:
        """Names of all tables, sorted."""
        with self.begin() as txn:
            return txn.tables()

    def table(self, name: str) -> Table:
        """A handle on one table; NotFoundError when there is none of that name."""
        return Table(self, name)

    # Reading.

    def sql(
        self,
        text: str,
        params: Sequence[Any] | None = None,
        at: At | None = None,
        engine: str = "local",
        stream: bool = False,
    ) -> pa.Table | pa.RecordBatchReader:
        """Run a SELECT in a short transaction of its own; `engine` is local, spark or auto."""
        with self._begin_reading(at) as txn:
            if engine != "local":
                from halocline.database import engines

                return engines.select(self.core, txn, text, params, engine, stream=stream)
            return txn.sql(text, params, stream=stream)

    def explain(self, text: str, params: Sequence[Any] | None = None) -> pa.Table:
        """How a SELECT reads each table: its objects, how many zonemaps rule out, which index
        answers for how many, blocks read of how many, rows named, rows of memory scanned."""
        from halocline.read.query import explain

        with self._begin_reading() as txn:
            return explain(txn, text, params)

    def changes(
        self, table: str, since: At, until: At | None = None, *, net: bool = False
    ) -> pa.Table:
        """Row changes in (since, until], in commit order, with `_change` and `_commit_ts`.

        With `net` one row for each key that differs between the two: insert, update_after, delete.
        """
        start = self._resolve(since)
        with self.begin(at=until) as txn:
            if until is not None and start > txn.snapshot:
                text = f"since= is timestamp {start}, which comes after until={txn.snapshot}"
                raise UsageError(f"{text}: give the earlier of the two as since=")
            pin, pins = -id(txn) - 1, txn.core.pins  # next to the transaction's own
            pins[pin] = start
            try:
                state = txn.state_of(table)
                role = self._role
                role.refresh()
                _check_floor(role, start)
                before = role.core.catalog.table(table, start)
                if before and before.id != state.table_id and state.created_at > start:
                    raise UsageError(
                        f"table {table!r} was dropped and created again at {state.created_at}: "
                        f"read the table at {state.created_at} and its changes since then"
                    )
                return read_changes(state, start, txn.snapshot, net=net)
            finally:
                del pins[pin]

    def subscribe(self, table: str | None = None, since: At | None = None) -> Subscription:
        """Every commit after `since`, or from now on, as messages: docs/formats/logtail.md."""
        self.core.check_open()
        if table is not None and not isinstance(table, str):
            raise UsageError(f"a subscription names a table, or none, not {table!r}")
        start = None if since is None else self._resolve(since)
        with self._begin_reading() as txn:
            table_id = None if table is None else txn.state_of(table).table_id
        ref = weakref.ref(self)

        def open_stream(since: int | None) -> Stream | None:
            """Now, and when the last stream was lost."""
            found = ref()
            if found is None or found.core.closed:
                return None
            return found._role.stream(Subscribe(since, table_id))

        subscription = Subscription(open_stream, start)
        self._pumps.add(subscription.pump)  # it ends when the database is closed
        return subscription

    def serve(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        tls: tuple[str, str] | None = None,
        token: str | None = None,
        read_token: str | None = None,
    ) -> Server:
        """Let other machines connect, until the database is closed or `stop()` is called.

        Only the owner serves. `server.uri` and `server.token` are what `halocline.connect` needs.
        An address that others can reach needs a token and `tls`: the paths of a certificate and
        its key, PEM files. `read_token` admits those who may only read.
        """
        role = self._role
        role.core.check_open()
        if not isinstance(role, Owner):
            raise UsageError("only the process that owns the database can serve it")
        role.core.own.check_reachable()
        return role.serve(host, port, tls, token, read_token)

    def wall_of(self, ts: int) -> datetime:
        """The wall clock of a commit, or of the last one before a timestamp."""
        self.core.check_open()
        if type(ts) is not int or not 0 <= ts <= self.visible_ts:
            raise UsageError(f"{ts!r} is not a timestamp that has happened")
        return self.core.wall_of(ts)

    # Maintenance.

    def flush(self, table: str | None = None) -> Moved:
        """Move the rows and tombstones of one table, or of all, from memory into objects.

        Nobody has to call it: the background moves rows when they are many or old. Returns how many
        rows and tombstones left memory, and how many objects of how many bytes were written.
        """
        return cast(Moved, self._maintain("flush", table))

    def compact(
        self, table: str | None = None, *, runner: Runner | None = None, plan: Plan | None = None
    ) -> CompactReport:
        """Rewrite objects that overlap, are small or hold many ended rows; of one table, or of all.

        No transaction notices. Groups of objects above `compact_local_bytes` are left for Spark;
        the report names them, and measures each table before and after. `hs.compact` calls this
        with a `runner` of its own.
        """
        return cast(CompactReport, self._rewrite("compact", table, runner, plan=plan))

    def settle(self, table: str | None = None, *, runner: Runner | None = None) -> int:
        """Bring one table, or all, into a state in which every row of its files counts.

        Flushes, then rewrites the objects that have dead rows; returns the timestamp at which
        `table.files(at=ts, exact=True)` names them. UnavailableError when others change the table
        all the time, or when it needs `hs.settle`, which calls this with a `runner` of its own.
        """
        return int(self._rewrite("settle", table, runner))

    def checkpoint(self) -> CheckpointReport:
        """Write the state of the database, so that the next opening has little log to read.

        Rows in memory are moved into objects first; log files that nobody needs are deleted.
        """
        return cast(CheckpointReport, self._maintain("checkpoint"))

    def gc(self) -> GcReport:
        """Free what nobody can see any more; the report says what went, what stayed and why.

        The floor rises as far as retention, open transactions, named snapshots and the readers in
        other processes allow. Below it go: versions, dropped tables, ended objects; in any case
        the files that dead jobs have left, and log files behind the checkpoint.
        """
        return cast(GcReport, self._maintain("gc"))

    def keep_for(self, retention_us: int) -> bool:
        """From now on the past stays readable for so long; what `open(retention=)` calls."""
        return bool(self._maintain("keep_for", str(retention_us)))

    def snapshot(self, name: str) -> int:
        """Give the newest state a name; `at="name"` reads it until the name is dropped.

        Returns its timestamp; durable when it returns. AlreadyExistsError when the name is taken.
        """
        check_name("snapshot", name)
        return int(self._maintain("snapshot", name))

    def snapshots(self) -> list[Snapshot]:
        """All named snapshots, oldest first: each has `name`, `ts` and `created`."""
        self.core.check_open()
        self._role.refresh()
        return list_snapshots(list(self.core.engine.snapshots.values()))

    def drop_snapshot(self, name: str) -> None:
        """Forget a named snapshot; what only it held goes with the next GC. NotFoundError."""
        check_name("snapshot", name)
        self._maintain("drop_snapshot", name)

    def health(self) -> Health:
        """Rows and bytes per tier, the shape of all tables, and what maintenance is owed and why.

        `print(db.health())` shows a table. Only statistics are read: `check` verifies files.
        """
        return cast(Health, self._maintain("health"))

    def check(self) -> list[str]:
        """Verify the database; returns every problem found, none when all is well."""
        role = self._role
        role.core.check_open()
        with pinned(role) as ts:
            problems = check_engine(role.core.engine, ts)
        with readable(self.path):
            return problems + check_checkpoints(role) + check_log(self.files, role.core.options)

    # What there is.

    @property
    def role(self) -> Literal["owner", "node", "reader"]:
        """What this handle is at the moment: the owner, a compute node of it, or a reader."""
        return self._role.name

    @property
    def core(self) -> Core:
        """What runners outside this process's transactions, such as Spark jobs, work with."""
        return self._role.core

    @property
    def files(self) -> Files:
        """The directory."""
        return self._setting.files

    @property
    def visible_ts(self) -> int:
        """The newest timestamp a transaction that begins now sees."""
        self._role.refresh()
        return self._role.core.newest_ts()

    @property
    def floor(self) -> int:
        """The oldest timestamp that can still be read."""
        self._role.refresh()
        return self._role.core.engine.floor

    # Opening and closing.

    def _enter(self, link: Link | None) -> None:
        """Take the role that is free."""
        setting = self._setting
        if link is not None:
            link.schema_of = schema_finder(self)
        if self.read_only:
            self._role = ReadOnly(setting, link)
        elif link is not None:
            self._role = ComputeNode(setting, link, role_now_of(self))
        else:
            try:
                self._own()
            except LockHeldError as held:
                if not (held.serves and isinstance(setting.files, LocalFiles)):
                    raise UnavailableError(
                        f"{self.path} is open for writing in {held.holder}; "
                        "close it there, or open it here with read_only=True"
                    ) from None
                self._join(setting.files)

    def _own(self, predecessor: ComputeNode | None = None) -> Local:
        """Become the one owner; LockHeldError when another process is."""
        owner = Owner(self._setting, retention_us=self._retention_us, predecessor=predecessor)
        self._retention_us = None
        self._role = owner
        return owner.admit()

    def _join(self, files: LocalFiles) -> None:
        """Become a compute node of the process that has the lock, or the owner if it just went."""
        ref = weakref.ref(self)

        def take_over() -> Local:
            found = ref()
            if found is None:
                raise UnavailableError("the database is closed")
            role = getattr(found, "_role", None)
            return found._own(role if isinstance(role, ComputeNode) else None)

        route = NearRoute(files.root, take_over)
        link = Link(route, self._setting.clock, schema_finder(self))
        link.open()
        if link.local is not None:
            return
        try:
            self._role = role = ComputeNode(self._setting, link, role_now_of(self))
        except BaseException:
            link.close()
            raise
        named_us, self._retention_us = self._retention_us, None
        try:
            # The newest opening that has named one counts, not a process that takes over later.
            if named_us is not None and role.core.engine.retention_us != named_us:
                self.keep_for(named_us)
        except BaseException:
            role.core.close(f"the database {self.path} is closed")
            with suppress(HaloclineError):
                role.leave()
            raise

    def close(self) -> None:
        """Finish what is in flight and let go of the directory. Closing twice is fine."""
        role = self._role
        if role.core.closed:
            if self._half_closed:
                role.let_go()
                self._close_folder()
            return
        why = f"the database {self.path} is closed"
        try:
            role.stop_serving()
            role.core.close(why)
            _OPEN.discard(self)
            for pump in list(self._pumps):
                pump.stop()
            role.leave()
        except BaseException:
            # Ctrl-C, or a disk that fails. What was acknowledged is in the log, so what is in
            # flight may be left; but nobody may find the directory locked for ever.
            self._half_closed = True
            role.core.close(why)
            _OPEN.discard(self)
            role.let_go()
            raise
        finally:
            self._close_folder()

    def _close_folder(self) -> None:
        if isinstance(self.files, LocalFiles):
            self.files.close()  # a stream that is read on looks for it by its path

    def _forked(self) -> None:
        """In a forked child: the parent keeps the database, this handle is dead."""
        self.core.close("a forked child cannot use its parent's database: open it there")
        self._role.abandon()

    # Private.

    def _maintain(self, name: CommandName, argument: str | None = None) -> Any:
        self.core.check_open()
        return self._role.maintain(Command(name, argument))

    def _rewrite(self, name: CommandName, table: str | None, runner: Any, **more: Any) -> Any:
        """Work that a runner may do, where this process is the owner."""
        role = self._role
        role.core.check_open()
        if isinstance(role, Owner):
            return getattr(role.maintenance, name)(table, runner, **more)
        if not isinstance(runner, (LocalRunner, type(None))):
            raise UsageError(f"{name}: Spark works for the process that owns the database")
        return self._maintain(name, table)

    def _begin_reading(self, at: At | None = None) -> Transaction:
        role = self._role
        if role.core.closed:
            role.core.check_open()
        role.refresh()
        while True:
            core = role.core
            snapshot = core.newest_ts() if at is None else self._resolve(at)
            txn = Transaction(core, snapshot, read_only=True)
            # The pin is published, now look at the floor: GC looks in the other order.
            try:
                role.refresh()
                _check_floor(role, snapshot)
                return txn
            except BaseException as error:
                txn.rollback()
                if at is not None or not isinstance(error, SnapshotExpiredError):
                    raise

    def _resolve(self, at: At) -> int:
        """A point in time -> a timestamp that has happened."""
        self.core.check_open()
        newest = self.visible_ts
        return resolve(self.core.engine, at, newest, self._setting.clock.wall_us())


def _check_floor(role: Role, ts: int) -> None:
    if ts < role.core.engine.floor:
        raise SnapshotExpiredError(ts, role.core.engine.floor)


_OPEN: weakref.WeakSet[Database] = weakref.WeakSet()


def _after_fork() -> None:
    for database in list(_OPEN):
        database._forked()
    _OPEN.clear()


os.register_at_fork(after_in_child=_after_fork)

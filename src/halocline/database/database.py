"""Database: wires the rooms together. The only file that knows them all.

    open -> lock, recover, start an epoch -> begin / run / sql / changes -> close

A Database is thread-safe. A forked child may not use the parent's: its handle raises UsageError.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar, cast

import pyarrow as pa

from halocline.checkpoint.snapshots import EPOCH_START, resolve
from halocline.clock import Clock, SystemClock
from halocline.compaction import Gatherer
from halocline.database.membership import Membership
from halocline.database.opening import (
    Reader,
    local_files,
    make_folder,
    readable,
    shelf_for,
    spill_folder,
)
from halocline.database.table import Table
from halocline.errors import (
    ConflictError,
    SnapshotExpiredError,
    UnavailableError,
    UsageError,
)
from halocline.node import ServerLink
from halocline.node.remote_files import RemoteFiles, RemoteObjects
from halocline.node.subscription import Subscription
from halocline.options import MIB, Durability, Options, parse_duration, parse_size
from halocline.read.changes import read_changes
from halocline.read.duck import Duck
from halocline.rows.tokens import check_token
from halocline.store import Files, Objects
from halocline.txn import Transaction

T = TypeVar("T")
At = int | datetime | str
MEMORY_MIN = 16 * MIB


def open(
    path: str | os.PathLike[str],
    read_only: bool = False,
    durability: Durability = "sync",
    retention: str | float | None = None,
    memory: str | int = "1GB",
    objects: str | None = None,
    options: Options | None = None,
) -> Database:
    """Open the database in a directory, creating it if it does not exist.

    durability: "sync" acknowledges a commit when it is on disk; "async" when the operating system
    has it, and syncs every 50 ms. retention: how long old snapshots stay readable, from now on and
    whoever opens the database next; a day until somebody has named it.
    """
    if objects is not None:
        raise UsageError("objects= is not available in this version: leave it out")
    with readable(str(path)):
        files = local_files(path, read_only=read_only)
    return Database(
        files,
        files.root,
        read_only=read_only,
        durability=durability,
        retention=retention,
        memory=memory,
        options=options,
    )


def connect(
    uri: str,
    token: str,
    *,
    read_only: bool = False,
    memory: str | int = "1GB",
    tls_roots: str | None = None,
    options: Options | None = None,
) -> Database:
    """Connect to a database that another machine serves at `halocline://host:port`.

    The same Database: it reads for itself, prepares its transactions here and has the owner commit
    them. `tls_roots` is the path of a PEM file: with the certificate of the server itself, or with
    those that may have signed it; without one it must be signed by an authority that this machine
    trusts. Only a loopback address without `tls_roots` is spoken to without TLS.
    """
    if not isinstance(token, str) or not token:
        raise UsageError("connect needs the token that the server was started with")
    roots = None
    if tls_roots is not None:
        with readable(tls_roots):
            roots = Path(tls_roots).read_text("ascii", "replace")
    link = ServerLink(uri, token, SystemClock(), roots)
    files = RemoteFiles(link.ask)
    objects = RemoteObjects(link.ask)
    try:
        return Database(
            cast(Files, files),
            uri,
            read_only=read_only,
            memory=memory,
            options=options,
            objects=objects,
            afar=link,
        )
    except BaseException:
        link.close()
        objects.close()
        raise


class Database(Membership):
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
        afar: ServerLink | None = None,
    ) -> None:
        if durability not in ("sync", "async"):
            raise UsageError(f"durability must be 'sync' or 'async', not {durability!r}")
        if options is not None and not isinstance(options, Options):
            raise UsageError("options= takes halocline.Options(...)")
        memory_bytes = parse_size(memory)
        if memory_bytes < MEMORY_MIN:
            raise UsageError(f"memory={memory!r} is too little: give at least 16MB")
        self.path = path
        self.read_only = read_only
        self._files = files
        self._clock = clock or SystemClock()
        retention_us = None if retention is None else int(parse_duration(retention) * 1e6)
        options = options or Options()
        shelf = shelf_for(files, objects, memory_bytes)
        spill = "" if read_only else spill_folder(files)
        making = partial(make_folder, files)
        duck = Duck(memory_bytes // 2, options.sql_threads, shelf.root, spill, making)
        self._reader: Reader | None = None
        self._gatherer = Gatherer()
        self._shelf, self._duck, self._afar = shelf, duck, afar
        self._enter(options, durability, memory_bytes // 4, retention_us)
        _OPEN.add(self)

    def __repr__(self) -> str:
        return f"<Database {self.path}{' (closed)' if self._core.closed else ''}>"

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # Transactions.

    def begin(
        self,
        at: At | None = None,
        isolation: Literal["snapshot", "serializable"] = "snapshot",
        token: Any = None,
    ) -> Transaction:
        """Start a transaction on the newest snapshot; with `at`, a read-only one in the past."""
        core = self._core
        if core.closed:
            core.check_open()
        if at is None and token is None and isolation == "snapshot" and not self.read_only:
            return self._begin_writing()
        if isolation not in ("snapshot", "serializable"):
            raise UsageError(f"isolation must be 'snapshot' or 'serializable', not {isolation!r}")
        checked = None if token is None else check_token(token)
        if self.read_only or at is not None:
            if checked is not None:
                raise UsageError("a token is for transactions that write, not for reading")
            return self._begin_reading(at)
        txn = self._begin_writing()
        if isolation != "snapshot":
            txn.record_reads()
        if checked is not None:
            known = txn.core.engine.tokens.find(checked)
            if known:
                self._wait_visible(known)
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

        Returns the function's result; None when the token had been committed before.
        """
        if type(retries) is not int or retries < 0:
            raise UsageError(f"retries must be a whole number, not {retries!r}")
        for attempt in range(retries + 1):
            try:
                with self.begin(isolation=isolation, token=token) as txn:
                    if txn.already_committed:
                        return None
                    result = function(txn)
                return result  # noqa: RET504 (after the commit, which leaving the block does)
            except ConflictError as error:
                if attempt == retries:
                    raise
                if error.winner_ts:
                    self._wait_visible(error.winner_ts)
                else:  # a rival that has not committed yet
                    self._clock.sleep(min(0.05, 0.001 * 2**attempt))
        raise AssertionError("unreachable")

    # Tables.

    def create_table(
        self,
        name: str,
        schema: Any,
        primary_key: str | Sequence[str] | None = None,
        layout: str = "clustered",
        if_not_exists: bool = False,
    ) -> Table:
        """Create a table in a transaction of its own."""
        with self.begin() as txn:
            txn.create_table(name, schema, primary_key, layout=layout, if_not_exists=if_not_exists)
        return Table(self, name)

    def drop_table(self, name: str, if_exists: bool = False) -> None:
        """Drop a table in a transaction of its own."""
        with self.begin() as txn:
            txn.drop_table(name, if_exists=if_exists)

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

                return engines.select(self._core, txn, text, params, engine, stream=stream)
            return txn.sql(text, params, stream=stream)

    def changes(self, table: str, since: At, until: At | None = None) -> pa.Table:
        """Row changes in (since, until], in commit order, with `_change` and `_commit_ts`."""
        start = self._resolve(since)
        with self.begin(at=until) as txn:
            pin = -id(txn) - 1  # next to the transaction's own
            self._core.pins[pin] = start
            try:
                state = txn.state_of(table)
                self._refresh()
                self._check_floor(start)
                before = self._core.catalog.table(table, start)
                if before is not None and before.id != state.table_id:
                    raise UsageError(
                        f"table {table!r} was dropped and created again at {state.created_at}: "
                        f"read the table at {state.created_at} and its changes since then"
                    )
                return read_changes(state, start, txn.snapshot)
            finally:
                del self._core.pins[pin]

    def subscribe(self, table: str | None = None, since: At | None = None) -> Subscription:
        """Every commit after `since`, or from now on, as messages: docs/formats/logtail.md."""
        streams = self._streams(table)
        start = None if since is None else self._resolve(since)
        return self._subscribed(Subscription(streams, start))

    def wall_of(self, ts: int) -> datetime:
        """The wall clock of a commit, or of the last one before a timestamp."""
        self._core.check_open()
        if type(ts) is not int or not 0 <= ts <= self.visible_ts:
            raise UsageError(f"{ts!r} is not a timestamp that has happened")
        return EPOCH_START + timedelta(microseconds=self._core.engine.times.wall_of(ts))

    def close(self) -> None:
        """Finish what is in flight and let go of the directory. Closing twice is fine."""
        if self._core.closed:
            if self._half_closed:
                self._let_go()
            return
        try:
            for door in (self._server, self._service):
                if door is not None:
                    door.stop()
            self._core.close(f"the database {self.path} is closed")
            _OPEN.discard(self)
            self._leave()
        except BaseException:
            # Ctrl-C, or a disk that fails. What was acknowledged is in the log, so what is in
            # flight may be left; but nobody may find the directory locked for ever.
            self._half_closed = True
            self._core.close(f"the database {self.path} is closed")
            _OPEN.discard(self)
            self._let_go()
            raise

    # Private.

    def _begin_writing(self) -> Transaction:
        if self._reader is not None:
            return self._begin_remote()
        core = self._core
        log = core.committer.log  # type: ignore[union-attr]  # of this very core: see _own
        txn = Transaction(core, log.visible_ts)
        while txn.snapshot < core.write_floor or txn.snapshot < core.engine.floor:
            # Trim or GC went on before it could see our pin: take a newer snapshot.
            txn.snapshot = core.pins[id(txn)] = log.visible_ts
        return txn

    def _begin_reading(self, at: At | None = None) -> Transaction:
        self._core.check_open()
        self._refresh()
        while True:
            core = self._core
            snapshot = core.newest_ts() if at is None else self._resolve(at)
            txn = Transaction(core, snapshot, read_only=True)
            # The pin is published, now look at the floor: GC looks in the other order.
            try:
                self._refresh()
                self._check_floor(snapshot)
                return txn
            except BaseException as error:
                txn.rollback()
                if at is not None or not isinstance(error, SnapshotExpiredError):
                    raise

    def _resolve(self, at: At) -> int:
        """A point in time -> a timestamp that has happened."""
        self._core.check_open()
        return resolve(self._core.engine, at, self.visible_ts)

    def _check_floor(self, ts: int) -> None:
        if ts < self._core.engine.floor:
            raise SnapshotExpiredError(ts, self._core.engine.floor)

    def _wait_visible(self, ts: int) -> None:
        while ts and not self._log.wait_visible(ts, 1.0):
            if self._log.failed is not None:
                raise UnavailableError("the database stopped after an error: open it again")


_OPEN: weakref.WeakSet[Database] = weakref.WeakSet()


def _after_fork() -> None:
    for database in list(_OPEN):
        database._forked()
    _OPEN.clear()


os.register_at_fork(after_in_child=_after_fork)

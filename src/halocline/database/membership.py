"""Membership: in which role a handle takes part in its database, and how the role changes.

    owner         holds the lock, commits, serves the others          log and locks of its own
    compute node  follows the log, prepares workspaces, asks the owner to commit them
    reader        follows the log

    open --lock is free--> owner
         '--lock is held, the holder answers--> compute node --holder is gone--> owner

A compute node becomes the owner in the middle of its life: it recovers a state of its own and goes
on with that. Transactions that were open keep the state they began with, whose snapshots stay
pinned, and commit through the same requests as before, answered in this process now.

A part of Database, kept in a file of its own: Database adds transactions, tables and reading.
"""

from __future__ import annotations

import logging
import os
import shutil
import weakref
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from threading import Lock as ThreadLock
from typing import Literal, cast

from halocline.checkpoint import Pins
from halocline.checkpoint.pins import read_pins
from halocline.database.maintenance import Maintenance
from halocline.database.opening import (
    Reader,
    lock_for_writing,
    readable,
    reader_pins,
    spill_folder,
    start_owner,
    sweep_spill,
    unreadable,
)
from halocline.database.weakly import weakly
from halocline.errors import HaloclineError, UnavailableError, UsageError
from halocline.node import Link, Local, NobodyError, Remote, Server, ServerLink, Service, Tail
from halocline.node.ahead import AheadTransaction, CatchUp, catch_up_alone, move_on
from halocline.node.answers import Answers
from halocline.node.remote_files import RemoteObjects, RemotePin
from halocline.node.session import Session
from halocline.node.streams import Stream
from halocline.node.subscription import OpenStream, Subscription
from halocline.node.wire import Subscribe
from halocline.objects import Shelf
from halocline.options import Durability, Options
from halocline.read.duck import Duck
from halocline.schema.schema import Schema
from halocline.store import LocalFiles, Lock
from halocline.txn import Core, Transaction

_logger = logging.getLogger("halocline")


class Membership(Maintenance):
    """Owner, compute node or reader. `Database` sets the rest when it opens."""

    _lock: Lock | None = None
    _pins: Pins | None = None
    """Those of a handle that is, or was, not the owner."""
    _service: Service | None = None
    _server: Server | None = None
    _afar: ServerLink | None = None
    """The way to an owner on another machine."""
    _answers: Answers
    """Those of the owner."""
    _spill: str = ""
    _half_closed = False
    """Closing was broken off: what it left is done by the next call."""

    def _enter(
        self, options: Options, durability: Durability, l0_bytes: int, retention_us: int | None
    ) -> None:
        """Take the role that is free. A retention time that is named is the database's from now on.

        The newest opening that has named one counts, not a process that takes over later.
        """
        self._named_us = retention_us
        self._options = options
        self._durability = durability
        self._l0_bytes = l0_bytes
        self._swap = ThreadLock()
        self._subscriptions: weakref.WeakSet[Subscription] = weakref.WeakSet()
        self._caught_up: CatchUp = weakly(self, Membership._catch_up, catch_up_alone)
        with readable(self.path):
            if self._afar is not None:
                self._link = None if self.read_only else self._afar
                self._afar.schema_of = weakly(self, Membership._schema_of)
                self._follow(self._link)
                return
            if self.read_only:
                self._follow(None)
                return
            try:
                self._own()
            except NobodyError as nobody:
                if not (nobody.serves and isinstance(self._files, LocalFiles)):
                    raise UnavailableError(
                        f"{self.path} is open for writing in {nobody.holder}; "
                        "close it there, or open it here with read_only=True"
                    ) from None
                self._join()
                if self._named_us is not None:
                    self._name_retention(self._named_us)

    # Roles.

    def _follow(self, link: Link | ServerLink | None) -> None:
        """Become one of many that follow the log; with a link, one that writes too."""
        if self._afar is not None:
            self._afar.pin = RemotePin(self._afar.ask)
            self._pins = pins = Pins(self._afar.pin)
        else:
            self._pins = pins = reader_pins(self._files, self._clock)
        try:
            reader = Reader(self._files, self._options, self._clock, self._shelf, pins)
        except BaseException:
            pins.close()
            raise
        remote = None
        if link is not None:
            tail = Tail(weakly(self, lambda own: own.visible_ts), link, self._clock)
            remote = Remote(reader.engine, link, tail, self._clock)
            self._log = remote.log
        self._core = Core(reader.engine, remote, self._duck, self._clock, pins)
        self._reader = reader

    def _join(self) -> None:
        """Become a compute node of the process that has the lock, or the owner if it just went."""
        link = Link(
            cast(LocalFiles, self._files).root,
            self._clock,
            weakly(self, Membership._own),
            weakly(self, Membership._schema_of),
        )
        self._link = link
        link.open()
        if link.local is not None:
            return
        try:
            own = f"{os.getpid()}-{self._clock.random_bytes(4).hex()}"
            self._spill = str(Path(spill_folder(self._files), own))
            self._duck.spill_into(self._spill)
            self._follow(link)
        except BaseException:
            link.close()
            raise

    def _name_retention(self, retention_us: int) -> None:
        self._named_us = None
        try:
            if self._core.engine.retention_us != retention_us:
                self.keep_for(retention_us)
        except BaseException:
            self._core.close(f"the database {self.path} is closed")
            with suppress(HaloclineError):
                self._leave()
            raise

    def _own(self) -> Local:
        """Become the one owner; NobodyError when another process is."""
        options = self._options
        serve = options.serve and isinstance(self._files, LocalFiles)
        lock = lock_for_writing(self._files, self._clock, serve=serve)
        try:
            sweep_spill(self._files)
            started = start_owner(self._files, options, self._clock, self._durability, self._shelf)
        except BaseException:
            lock.release()
            raise
        committer, self._checkpoints = started
        self._numbers = count((committer.log.epoch << 32) + (1 << 31))
        core = Core(committer.engine, committer, self._duck, self._clock)
        if serve:
            files = self._files
            core.others = lambda: [pin.ts for pin in read_pins(files)]
        sync = self._durability != "sync"
        self._answers = Answers(weakref.ref(self), sync=sync)
        with self._swap:
            before = getattr(self, "_core", None)
            self._core = core if before is None else before.succeeded(core)
            self._lock, self._log, self._reader = lock, committer.log, None
        try:
            self._maintain(self._l0_bytes)
        except BaseException:
            with suppress(HaloclineError, OSError):
                committer.log.close()
            lock.release()
            self._lock = None
            raise
        if serve:
            root = cast(LocalFiles, self._files).root
            try:
                self._service = Service(self, root, committer.log.epoch, self._answers)
                return Local(self._answers, self._service.session())
            except OSError as error:  # no place for a socket: the database itself is fine
                _logger.warning("other processes cannot reach %s: %s", self.path, error)
        return Local(self._answers, Session(0, count(1)))

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
        self._core.check_open()
        if self._reader is not None:
            raise UsageError("only the process that owns the database can serve it")
        if self._server is not None:
            self._server.stop()
        if tls is not None and not (isinstance(tls, tuple) and len(tls) == 2):
            raise UsageError("tls= takes two paths: (certificate, key)")
        context = None
        if tls is not None:
            from halocline.node.tls import server_context  # most programs need none

            context = server_context(*tls)
        self._server = Server(
            self,
            self._log.epoch,
            host=host,
            port=port,
            token=token,
            read_token=read_token,
            tls=context,
            sync=self._durability != "sync",
            numbers=self._numbers,
        )
        return self._server

    # Following.

    def _streams(self, table: str | None) -> OpenStream:
        """How a subscription comes by its stream, now and when it has lost the last one."""
        self._core.check_open()
        if self._reader is not None and self._link is None and self._afar is None:
            raise UsageError(
                "a handle that was opened with read_only=True has nobody to subscribe to"
            )
        if table is not None and not isinstance(table, str):
            raise UsageError(f"a subscription names a table, or none, not {table!r}")
        self._refresh()
        ref = weakref.ref(self)

        def open_stream(since: int | None) -> Stream | None:
            found = ref()
            if found is None or found._core.closed:
                return None
            request = Subscribe(since, table)
            if found._reader is None:
                return found._answers.hub.open(request)
            link = found._link or found._afar
            assert link is not None
            return link.stream(request)

        return open_stream

    def _subscribed(self, subscription: Subscription) -> Subscription:
        """It ends when the database is closed."""
        self._subscriptions.add(subscription)
        return subscription

    @property
    def role(self) -> Literal["owner", "node", "reader"]:
        """What this handle is at the moment: the owner, a compute node of it, or a reader."""
        if self._reader is None:
            return "owner"
        return "reader" if self._link is None else "node"

    @property
    def visible_ts(self) -> int:
        """The newest timestamp a transaction that begins now sees."""
        if self._link is not None:
            self._refresh()
        return self._core.newest_ts()

    def _refresh(self) -> None:
        """Whoever is not the owner folds what the owner has published meanwhile."""
        reader = self._reader
        if reader is None:
            return
        if reader.is_current() and self._core.engine is reader.engine:
            return  # the second half: another thread may just have loaded a new state
        try:
            gone = reader.refresh()
        except OSError as error:
            raise unreadable(self.path, error) from error
        if self._core.engine is not reader.engine:
            with self._swap:
                if self._reader is reader:
                    # Transactions that are open keep the old core, and with it what they see.
                    self._core = self._core.renewed(reader.engine)
                    if self._core.committer is not None:
                        self._core.committer.engine = reader.engine
        if gone:
            self._core.forget(gone)

    def _begin_remote(self) -> Transaction:
        """A transaction that may write, prepared here and committed by the owner."""
        assert self._link is not None
        self._link.wake()
        pin = None if self._afar is None else self._afar.pin
        while True:
            core, reader = self._core, self._reader
            if reader is not None and not reader.is_current() and core.engine is reader.engine:
                position = reader.ahead()
                if position is not None:
                    return AheadTransaction(core, position, reader, self._caught_up)
            # First a pin, which may be older than the snapshot, then a look at what is newest, the
            # floor included: GC looks in the other order.
            txn = Transaction(core, core.newest_ts())
            told = 0 if pin is None else pin.times
            try:
                self._refresh()
                # A pin that had to be told anew, to a server that had forgotten us, came too late.
                in_time = pin is None or pin.times == told
                if in_time and core is self._core and move_on(txn, core):
                    return txn
            except BaseException:
                txn.rollback()  # whoever keeps the error keeps the transaction, but not its pin
                raise
            txn.rollback()

    def _catch_up(self, reader: Reader, core: Core) -> Core:
        """Fold what is new for a transaction that began ahead of it."""
        if self._reader is reader:
            self._refresh()
            if (newest := self._core).engine is reader.engine:  # not that of the owner we are now
                return newest
        return catch_up_alone(reader, core)

    def _schema_of(self, table: str) -> Schema | None:
        entry = self._core.catalog.table(table, self._core.engine.last_ts)
        return None if entry is None else entry.schema

    # Leaving.

    def _leave(self) -> None:
        """Finish what is in flight, then let go of the directory."""
        for subscription in list(self._subscriptions):
            subscription.close()
        self._rest()
        if self._reader is None and self._log.failed is None:
            self._core.writing.close_epoch()
        self._let_go()

    def _let_go(self) -> None:
        """Every step is taken, whatever becomes of the others, the lock last. Twice is fine."""
        with ExitStack() as steps:  # the last one that is named is the first one that is done
            if self._lock is not None:
                steps.callback(self._lock.release)
            if self._spill:
                steps.callback(shutil.rmtree, self._spill, ignore_errors=True)
            if self._afar is not None:
                if isinstance(self._shelf.objects, RemoteObjects):
                    steps.callback(self._shelf.objects.close)
                steps.callback(self._afar.close)
            if self._pins is not None:
                steps.callback(self._pins.close)
            if self._link is not None:
                steps.callback(self._link.close)
            steps.callback(self._core.duck.close)
            if self._reader is None:
                steps.callback(self._log.close)
            for door in (self._service, self._server):
                if door is not None:
                    steps.callback(door.stop)

    def _forked(self) -> None:
        """In a forked child: the parent keeps the database, this handle is dead."""
        self._core.close("a forked child cannot use its parent's database: open it there")
        for door in (self._service, self._server):
            if door is not None:
                door.abandon()
        for link in (self._link, self._afar):
            if link is not None:
                link.abandon()
        if self._pins is not None:
            self._pins.abandon()
        if self._lock is not None:
            self._lock.abandon()
            self._lock = None

    _duck: Duck
    _shelf: Shelf

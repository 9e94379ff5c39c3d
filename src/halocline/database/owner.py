"""Owner: the role of the one process that commits.

    lock --> recover --> epoch --> maintenance --> service (this machine), server (others)

One that was a compute node before keeps what that has left: transactions that were open keep the
state they began with, whose snapshots stay pinned, and commit through the same requests as before,
answered in this process now.
"""

from __future__ import annotations

import logging
import weakref
from contextlib import ExitStack, suppress
from itertools import count
from typing import Any, Final, Literal, Protocol

from halocline.checkpoint.pins import read_pins
from halocline.database.maintenance import Maintenance
from halocline.database.opening import (
    drop_spill_folder,
    lock_for_writing,
    start_owner,
    sweep_spill,
)
from halocline.database.role import Setting
from halocline.errors import HaloclineError, UnavailableError, UsageError
from halocline.node import Local, Server, Service
from halocline.node.dispatch import Dispatch
from halocline.node.push import Feed
from halocline.node.session import Session
from halocline.node.wire import Command, Subscribe
from halocline.store import Files, LocalFiles
from halocline.store.files import MovedError
from halocline.txn import Core, Transaction

VISIBLE_S: Final = 1.0
_logger = logging.getLogger("halocline")


class Predecessor(Protocol):
    """The compute node that this process was."""

    @property
    def core(self) -> Core: ...
    def let_go(self) -> None: ...
    def abandon(self) -> None: ...


class Owner:
    """Holds the lock and the log. LockHeldError when another process does."""

    name: Literal["owner"] = "owner"

    def __init__(
        self,
        setting: Setting,
        *,
        retention_us: int | None = None,
        predecessor: Predecessor | None = None,
    ) -> None:
        self._setting = setting
        self._predecessor = predecessor
        self.service: Service | None = None
        self.server: Server | None = None
        files, clock = setting.files, setting.clock
        serve = setting.options.serve and isinstance(files, LocalFiles)
        self._lock = lock_for_writing(files, clock, serve=serve)
        try:
            sweep_spill(files)
            committer, checkpoints = start_owner(
                files, setting.options, clock, setting.durability, setting.shelf
            )
        except BaseException:
            self._lock.release()
            raise
        self.log = committer.log
        try:
            core = Core(committer.engine, committer, setting.duck, clock)
            if serve:
                core.others = lambda: [pin.ts for pin in read_pins(files)]
            self.core = core if predecessor is None else predecessor.core.succeeded(core)
            self._numbers = count((self.log.epoch << 32) + (1 << 31))
            self._sync = setting.durability != "sync"
            self.answers = Dispatch(weakref.ref(self), sync=self._sync)
            self.maintenance = Maintenance(setting, self.core, committer, checkpoints, retention_us)
        except BaseException:
            with suppress(HaloclineError, OSError):
                self.log.close()
            self._lock.release()
            raise

    @property
    def files(self) -> Files:
        """The directory, for those who serve it."""
        return self._setting.files

    def admit(self) -> Local:
        """Let other processes of this machine in; returns how this one asks itself."""
        files = self._setting.files
        if self._setting.options.serve and isinstance(files, LocalFiles):
            try:
                self.service = Service(self, files.root, self.log.epoch, self.answers)
                return Local(self.answers, self.service.session())
            except OSError as error:  # no place for a socket: the database itself is fine
                path = self._setting.path
                _logger.warning("other processes cannot reach %s: %s", path, error)
        return Local(self.answers, Session(0, count(1)))

    def serve(
        self,
        host: str,
        port: int,
        tls: tuple[str, str] | None,
        token: str | None,
        read_token: str | None,
    ) -> Server:
        """Let other machines in; a server that was there before ends."""
        if tls is not None and not (isinstance(tls, tuple) and len(tls) == 2):
            raise UsageError("tls= takes two paths: (certificate, key)")
        context = None
        if tls is not None:
            from halocline.node.tls import server_context  # most programs need none

            context = server_context(*tls)
        if self.server is not None:
            self.server.stop()
        self.server = Server(
            self,
            self.log.epoch,
            host=host,
            port=port,
            token=token,
            read_token=read_token,
            tls=context,
            sync=self._sync,
            numbers=self._numbers,
        )
        return self.server

    def begin(self) -> Transaction:
        core, log = self.core, self.log
        txn = Transaction(core, log.visible_ts)
        if txn.snapshot < core.write_floor or txn.snapshot < core.engine.floor:
            # Trim or GC went on before it could see our pin: take a newer snapshot.
            txn.snapshot = core.pin_newest(id(txn))
        return txn

    def refresh(self) -> None:
        """All there is has been folded here."""

    def wait_visible(self, ts: int) -> None:
        while ts and not self.log.wait_visible(ts, VISIBLE_S):
            if self.log.failed is not None:
                raise UnavailableError("the database stopped after an error: open it again")

    def stream(self, request: Subscribe) -> Feed:
        return self.answers.hub.open(request)

    def maintain(self, command: Command) -> Any:
        return self.maintenance.run(command)

    # Leaving.

    def stop_serving(self) -> None:
        for door in (self.server, self.service):
            if door is not None:
                door.stop()

    def leave(self) -> None:
        self.maintenance.rest()
        try:
            if self.log.failed is None:
                self.core.own.close_epoch()
        except (HaloclineError, OSError) as error:
            if not isinstance(self.log.failed, MovedError):
                raise
            # No loss: the next opening finds out by itself what this record would have said.
            # Whether acknowledged commits may be lost, in async mode, the log says.
            _logger.warning("%s was closed without its last record: %s", self._setting.path, error)
        self.let_go()

    def let_go(self) -> None:
        """Every step is taken, whatever becomes of the others, the lock last."""
        with ExitStack() as steps:  # the last one that is named is the first one that is done
            steps.callback(self._lock.release)
            if self._predecessor is not None:
                steps.callback(self._predecessor.let_go)
            steps.callback(drop_spill_folder, self._setting.files)
            steps.callback(self._setting.duck.close)
            steps.callback(self.log.close)
            steps.callback(self.stop_serving)

    def abandon(self) -> None:
        for door in (self.service, self.server):
            if door is not None:
                door.abandon()
        if self._predecessor is not None:
            self._predecessor.abandon()
        self._lock.abandon()

"""Compute node: the role of a process that reads and writes through an owner elsewhere.

    begin --> Replica: what is new --> Transaction here --commit--> RemoteCommitter --> owner

The owner is another process of this machine, or a server. When the one of this machine is gone, the
next request makes this process the owner (link.py), and the Database has another role.
"""

from __future__ import annotations

import os
import shutil
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

from halocline.checkpoint import CheckpointReport, GcReport, Pins
from halocline.checkpoint.horizon import of_process
from halocline.compaction import CompactReport
from halocline.database.health import Health
from halocline.database.opened import find_open
from halocline.database.opening import reader_pins, spill_folder
from halocline.database.role import Role, Setting
from halocline.errors import UnavailableError
from halocline.mover import Moved
from halocline.node import Link
from halocline.node.faults import SchemaOf
from halocline.node.lazy_begin import LazyTransaction, move_on
from halocline.node.remote_committer import RemoteCommitter
from halocline.node.remote_files import RemoteObjects, RemotePin
from halocline.node.replica import Replica
from halocline.node.streams import Stream
from halocline.node.wire import Command, CommandName, Subscribe, WaitVisible
from halocline.schema.schema import Schema
from halocline.txn import Core, Transaction

_REPORTS: Final[Mapping[CommandName, type]] = {
    "flush": Moved,
    "compact": CompactReport,
    "settle": int,
    "checkpoint": CheckpointReport,
    "gc": GcReport,
    "health": Health,
    "snapshot": int,
    "drop_snapshot": bool,
    "keep_for": bool,
    "build_indexes": int,
}


class ComputeNode:
    """Follows the log, and has its transactions committed by the owner."""

    name: Literal["node"] = "node"

    def __init__(self, setting: Setting, link: Link, role_now: Callable[[], Role]) -> None:
        """The link is ours from now on. `role_now` is the role of the database: that of the owner,
        once this process has taken over."""
        self._setting = setting
        self.link = link
        self._role_now = role_now
        self._spill = ""
        if not link.far:
            own = f"{os.getpid()}-{setting.clock.random_bytes(4).hex()}"
            self._spill = str(Path(spill_folder(setting.files), own))
            setting.duck.spill_into(self._spill)
        self.replica = open_replica(setting, link)
        core = self.replica.core
        core.committer = RemoteCommitter(core.engine, link, self.replica.refresh)

    @property
    def core(self) -> Core:
        return self.replica.core

    def begin(self) -> Transaction:
        """A transaction that may write, prepared here and committed by the owner."""
        self.link.wake()
        pin = self.link.pin
        replica = self.replica
        while self.link.local is None:
            core = replica.core
            if not replica.is_current() and core.engine is replica.engine:
                position = replica.ahead()
                if position is not None:
                    return LazyTransaction(core, position, replica)
            # First a pin, which may be older than the snapshot, then a look at what is newest, the
            # floor included: GC looks in the other order.
            txn = Transaction(core, core.newest_ts())
            told = 0 if pin is None else pin.times
            try:
                replica.refresh()
                # A pin that had to be told anew, to a server that had forgotten us, came too late.
                in_time = pin is None or pin.times == told
                if in_time and core is replica.core and move_on(txn, core):
                    return txn
            except BaseException:
                txn.rollback()  # whoever keeps the error keeps the transaction, but not its pin
                raise
            txn.rollback()
        return self._role_now().begin()

    def refresh(self) -> None:
        self.replica.refresh()

    def wait_visible(self, ts: int) -> None:
        self.refresh()
        while self.core.newest_ts() < ts:
            self.link.ask(WaitVisible(ts), int)
            self.refresh()

    def stream(self, request: Subscribe) -> Stream:
        return self.link.stream(request)

    def maintain(self, command: Command) -> Any:
        report = self.link.ask(command, _REPORTS[command.name])
        if isinstance(report, Health):  # the owner knows our pins, not where they began
            here = os.getpid()
            theirs = [one for one in report.open if one.where != of_process(here, one.snapshot)]
            report = replace(report, open=(*find_open(self.core), *theirs))
        return report

    # Leaving.

    def stop_serving(self) -> None:
        """A compute node serves no other process."""

    def leave(self) -> None:
        self.let_go()

    def let_go(self) -> None:
        with ExitStack() as steps:  # the last one that is named is the first one that is done
            if self._spill:
                steps.callback(shutil.rmtree, self._spill, ignore_errors=True)
            close_objects(steps, self._setting)
            steps.callback(self.replica.close)
            steps.callback(self.link.close)
            steps.callback(self._setting.duck.close)

    def abandon(self) -> None:
        self.link.abandon()
        self.replica.pins.abandon()


def open_replica(setting: Setting, link: Link | None) -> Replica:
    """The state that is followed. The owner gets to know its pins by a file, or by a server."""
    if link is not None and link.far:
        link.pin = RemotePin(link.ask)
        pins = Pins(link.pin)
    else:
        pins = reader_pins(setting.files, setting.clock)
    try:
        return Replica(
            setting.files,
            setting.path,
            setting.options,
            setting.clock,
            setting.shelf,
            setting.duck,
            pins,
        )
    except BaseException:
        pins.close()
        raise


def close_objects(steps: ExitStack, setting: Setting) -> None:
    """Remove the copies of objects that a server has sent."""
    if isinstance(setting.shelf.objects, RemoteObjects):
        steps.callback(setting.shelf.objects.close)


def role_now_of(database: Any) -> Callable[[], Role]:
    """How a role finds the one that came after it, without keeping the database in memory."""
    ref = weakref.ref(database)

    def role_now() -> Role:
        found = ref()
        if found is None:
            raise UnavailableError("the database is closed")
        role: Role = found._role
        return role

    return role_now


def schema_finder(database: Any) -> SchemaOf:
    """How a link finds the schema of a table, to read the keys in an error."""
    ref = weakref.ref(database)

    def schema_of(table: str) -> Schema | None:
        role = getattr(ref(), "_role", None)
        if role is None:
            return None
        entry = role.core.catalog.table(table, role.core.engine.last_ts)
        return None if entry is None else entry.schema

    return schema_of

"""Read-only: the role of a handle that follows the log and writes nothing.

It needs no owner: it follows one that is at work, or reads what the last one has left. Connected to
a server, it can be told of commits too.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Literal

from halocline.compaction import Gatherer
from halocline.database.compute_node import close_objects, open_replica
from halocline.database.health import Health, examine
from halocline.database.opening import readable
from halocline.database.role import Setting, pinned
from halocline.errors import UnavailableError, UsageError
from halocline.node import Link
from halocline.node.streams import Stream
from halocline.node.wire import Command, Subscribe
from halocline.store import MovedError
from halocline.txn import Core, Transaction


class ReadOnly:
    """Follows the log. Of all maintenance it can only look at the health of the database."""

    name: Literal["reader"] = "reader"

    def __init__(self, setting: Setting, link: Link | None = None) -> None:
        """The link is ours from now on."""
        self._setting = setting
        self._gatherer = Gatherer()
        self.link = link
        self.replica = open_replica(setting, link)

    @property
    def core(self) -> Core:
        return self.replica.core

    def begin(self) -> Transaction:
        raise AssertionError("a handle that reads begins no transaction that may write")

    def refresh(self) -> None:
        self.replica.refresh()

    def wait_visible(self, ts: int) -> None:
        """Nothing was committed here."""

    def stream(self, request: Subscribe) -> Stream:
        if self.link is None:
            raise UsageError(
                "a handle that was opened with read_only=True has nobody to subscribe to"
            )
        return self.link.stream(request)

    def maintain(self, command: Command) -> Health:
        if command.name != "health":
            raise UnavailableError("the database is open read-only")
        try:
            self.refresh()
        except MovedError as error:
            troubles = {"folder": str(error)}
            with self.core.pinned() as ts:
                return examine(self.core, self._gatherer, ts, troubles=troubles)
        with pinned(self) as ts, readable(self._setting.path):
            return examine(self.core, self._gatherer, ts)

    # Leaving.

    def stop_serving(self) -> None:
        """A reader serves no other process."""

    def leave(self) -> None:
        self.let_go()

    def let_go(self) -> None:
        with ExitStack() as steps:  # the last one that is named is the first one that is done
            close_objects(steps, self._setting)
            if self.link is not None:
                steps.callback(self.link.close)
            steps.callback(self.replica.close)
            steps.callback(self._setting.duck.close)

    def abandon(self) -> None:
        if self.link is not None:
            self.link.abandon()
        self.replica.pins.abandon()

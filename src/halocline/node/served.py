"""Served: a database that is open for writing, as far as other processes need it."""

from __future__ import annotations

from typing import Any, Protocol

from halocline.node.wire import Command
from halocline.store import Files
from halocline.txn import Core


class Served(Protocol):
    """What requests are answered with."""

    @property
    def core(self) -> Core: ...
    @property
    def files(self) -> Files: ...
    def maintain(self, command: Command) -> Any: ...

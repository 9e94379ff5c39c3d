"""Roles: in which part a handle takes part in its database.

    owner         holds the lock, commits, serves the others          log and locks of its own
    compute node  follows the log, prepares workspaces, asks the owner to commit them
    reader        follows the log

    open --lock is free--> owner
         '--lock is held, the holder answers--> compute node --holder is gone--> owner

A Database has one role at a time and asks it for everything that differs. A compute node becomes
the owner in the middle of its life: the Database then has another role.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from halocline.clock import Clock
from halocline.node.streams import Stream
from halocline.node.wire import Command, Subscribe
from halocline.objects import Shelf
from halocline.options import Durability, Options
from halocline.read.duck import Duck
from halocline.store import Files
from halocline.txn import Core, Transaction
from halocline.txn.rerun import HotRuns


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What every role of a handle is made of: where the database is, and how it was opened."""

    files: Files
    path: str
    options: Options
    durability: Durability
    l0_bytes: int
    clock: Clock
    shelf: Shelf
    duck: Duck
    hot: HotRuns = field(default_factory=dict)
    """What runs of functions have lost over lately (txn/rerun.py)."""


class Role(Protocol):
    """What an owner, a compute node and a reader do in ways of their own."""

    @property
    def name(self) -> Literal["owner", "node", "reader"]: ...

    @property
    def core(self) -> Core:
        """What transactions that begin now work with."""

    def begin(self) -> Transaction:
        """Begin a transaction that may write."""

    def refresh(self) -> None:
        """Fold what the owner has published, if that is another process."""

    def wait_visible(self, ts: int) -> None:
        """Wait until that timestamp can be read here."""

    def stream(self, request: Subscribe) -> Stream:
        """Open a stream of what is committed."""

    def maintain(self, command: Command) -> Any:
        """Carry out a maintenance call, or have it carried out; returns its report."""

    def stop_serving(self) -> None:
        """Answer what other processes have asked, and let nobody else in."""

    def leave(self) -> None:
        """Finish what is in flight, then let go."""

    def let_go(self) -> None:
        """Give back everything, whatever becomes of the single steps. Twice is fine."""

    def abandon(self) -> None:
        """Leave everything to the parent, in a forked child."""


@contextmanager
def pinned(role: Role) -> Iterator[int]:
    """Keep what stands for the newest snapshot until the block ends; gives the snapshot.

    First the pin is published, then the floor is looked at: GC looks in the other order.
    """
    while True:
        role.refresh()
        with role.core.pinned() as ts:
            role.refresh()
            if ts >= role.core.engine.floor:
                yield ts
                return

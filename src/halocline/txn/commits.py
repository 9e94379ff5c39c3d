"""Commits: who commits for the transactions of this process.

    Committer         the owner's: checks, takes a timestamp, folds, logs        (commit.py)
    RemoteCommitter   asks the owner, in another process or on another machine   (node/)

A transaction knows this protocol and nothing else of the two. What only an owner can do, such as
background work, checkpoints and the collection of garbage, is done with a Committer.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from halocline.catalog import TableDdl
from halocline.rows.engine import EngineState
from halocline.rows.state import TableState
from halocline.rows.system import JobNode
from halocline.txn.identity import KeyBlocks
from halocline.txn.row_update import Addition, Single
from halocline.txn.turns import RowName
from halocline.txn.workspace import Workspace


class Commits(Protocol):
    """What transactions need of whoever commits them."""

    engine: EngineState
    """The newest state; open transactions of a process that follows may have an older one."""
    forgotten: list[JobNode]
    """Jobs of transactions that nobody ended: see jobs.give_up."""

    keys: KeyBlocks
    """Where this process draws keys of identity columns from."""

    def commit(self, txn: Workspace) -> int:
        """Commit a workspace; returns commit_ts once it is durable and visible."""

    def commit_single(
        self, snapshot: int, single: Single, wait: bool = True, ticket: int = 0
    ) -> int:
        """Commit one row; 0 when the general way must decide."""

    def commit_addition(
        self, snapshot: int, addition: Addition, wait: bool = True, ticket: int = 0
    ) -> int:
        """Commit amounts that are added to one row; 0 when the general way must decide."""

    def new_ticket(self) -> int:
        """A ticket for turns, younger than all others (turns.py)."""

    def take_turns(
        self, ticket: int, rows: Collection[RowName], timeout_s: float, *, lasts: bool = False
    ) -> None:
        """Wait until it is the ticket's turn at all these rows; ConflictError when it is not."""

    def begin_turn(self, ticket: int, rows: Collection[RowName], timeout_s: float) -> int:
        """Wait for the turn at these rows; returns the snapshot that has all commits before it.

        That snapshot may not be durable yet: see `settle`. 0: begin as ever.
        """

    def settle(self, snapshot: int) -> None:
        """Wait until a snapshot is durable and visible; UnavailableError when it never will be."""

    def end_turns(self, ticket: int) -> None:
        """Give up all turns of a ticket. One that has none is fine."""

    def lapse_turns(self, ticket: int) -> None:
        """Give up all turns of a ticket some time soon. May be called at any moment."""

    def tidy(self, state: TableState) -> None:
        """Freeze and merge what a commit has left in memory."""

    def start_job(
        self, state: TableState | None, *, rows: int = 0, lease_us: int = 0, job_id: int = 0
    ) -> JobNode:
        """Log a job and the RowIDs it may use; durable when this returns."""

    def end_job(self, job: JobNode) -> None:
        """Give a job up: whatever it wrote may be removed."""

    def begin_ddl(self, snapshot: int) -> TableDdl:
        """Open the catalog's part of a transaction."""

"""Turn: the commits that share one sync at the desk (request_loop.py), and what becomes of each.

    commit --log--------> logged ----sync----> its answer
       '---rows, together--^ '--------------> refused, with a reason

Commits of one row wait until all of the turn have been heard, and are then logged together as far
as that is possible (row_commits.py).
"""

from __future__ import annotations

from typing import Any

import msgspec

from halocline.node.connection import Connection
from halocline.node.dispatch import Dispatch
from halocline.node.faults import fault_of
from halocline.node.limits import Nodes
from halocline.node.session import Session
from halocline.node.wire import Commit, Done, encode, frame
from halocline.rows.state import TableState

Logged = tuple[Connection, bytes, list[TableState]]
"""A commit that is on its way to the disk: the answer, and the tables to tidy up behind it."""


class CommitBatch:
    """Those who are heard in one turn."""

    __slots__ = ("_answers", "again", "logged", "refused", "rows")

    def __init__(self, answers: Dispatch) -> None:
        self._answers = answers
        self.rows: list[tuple[Connection, Session, Commit]] = []
        """Commits of one row that wait for each other."""
        self.logged: list[Logged] = []
        self.refused: list[tuple[Connection, bytes]] = []
        self.again: list[int] = []
        """Seats that have said more than one thing."""

    def __len__(self) -> int:
        return len(self.rows) + len(self.logged)

    def numbers(self) -> set[int]:
        """Of the seats whose commit will be answered after the sync."""
        return {seat.number for seat, *_ in (*self.rows, *self.logged)}

    def log(self, seat: Connection, session: Session, commit: Commit, nodes: Nodes) -> None:
        """Fold and log a short commit."""
        try:
            commit_ts, states = self._answers.log_commit(session, commit, nodes)
        except Exception as error:  # noqa: BLE001 a bug of ours must not take the owner down
            self._refuse(seat, error)
        else:
            self.logged.append((seat, done(commit_ts), states))

    def log_rows(self) -> None:
        """Those of one row: together where that is possible, or else one after the other."""
        outcomes = self._answers.log_rows([commit for *_, commit in self.rows])
        for (seat, session, commit), outcome in zip(self.rows, outcomes, strict=True):
            if outcome is None:
                self.log(seat, session, commit, [])
            elif isinstance(outcome, Exception):
                self._refuse(seat, outcome)
            else:
                commit_ts, states = outcome
                self.logged.append((seat, done(commit_ts), states))

    def _refuse(self, seat: Connection, error: Exception) -> None:
        self.refused.append((seat, frame(fault_of(error, self._answers.schema_of))))


def done(value: Any) -> bytes:
    """The frame of an answer."""
    return frame(Done(msgspec.Raw(encode(value))))

"""Rows that are one transaction's until it ends: what `get(for_update=True)` asks for.

    Locked.of(state, keys) --take--> turns of these rows (turns.py) --check--> nothing has changed

A lock is a courtesy: the keys count as read, and the commit checks them as every serializable read.
So a row that has changed between the snapshot and the lock is a conflict at once, not at the end.

Not here: a fresh snapshot, which a transaction takes that has read nothing yet (transaction.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from halocline.errors import ConflictError
from halocline.rows.state import TableState
from halocline.txn.commits import Commits
from halocline.txn.reads import changed_between
from halocline.txn.turns import RowName


@dataclass(frozen=True, slots=True)
class Locked:
    """Rows of one table that a transaction wants for itself."""

    state: TableState
    keys: list[Any]
    rows: frozenset[RowName]

    @classmethod
    def of(cls, state: TableState, given: Iterable[Any]) -> Locked:
        """The rows of these keys, whether they are there or not."""
        keys = [state.schema.key(key) for key in given]
        names = frozenset((state.table_id, state.schema.key_bytes(key)) for key in keys)
        return cls(state, keys, names)

    def take(self, committer: Commits, ticket: int, wait_s: float) -> None:
        """Wait until they are this ticket's; ConflictError after `wait_s`."""
        try:
            committer.take_turns(ticket, self.rows, wait_s, lasts=True)
        except ConflictError as error:
            key = self.keys[0] if len(self.keys) == 1 else None
            raise ConflictError(error.reason, table=self.state.entry.name, key=key) from None

    def check(self, snapshot: int, newest: int) -> None:
        """Raise ConflictError when one of them has changed since the snapshot."""
        changed = changed_between(self.state, self.keys, snapshot, newest)
        if changed is not None:
            reason = "a row that is locked had changed before it was"
            raise ConflictError(reason, table=self.state.entry.name, key=changed)

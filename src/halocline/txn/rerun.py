"""Rerun: what `db.run` takes along from an attempt that has lost to the next one.

    attempt 1 --ConflictError over row K--> Rerun: K
    turn at K --> attempt 2, on a snapshot that it takes when it has its turn --> commits

A run remembers every row that it has lost over, or that it has asked for with `for_update`, and
takes its turn at all of them before it begins again: so it holds no snapshot while it waits, and
what it reads then stays as it is until it has committed. If it loses over another row, it gives up
its turns, and takes them again together with that one. Its ticket stays the same, so nobody who
came later is before it in a queue.

Where everybody wants one row, each run would lose once before it stands in the queue. So runs of a
function that has just lost over the same rows twice (`HotRuns`) take their turn at once, for a
second; then one of them tries without. A run that does not write what was expected ends that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any, Final, NamedTuple, TypeVar

from halocline.clock import Clock
from halocline.errors import ConflictError
from halocline.txn.commits import Commits
from halocline.txn.core import Core
from halocline.txn.transaction import Transaction
from halocline.txn.turns import WAIT_S, RowName

T = TypeVar("T")
EXPECTED_S: Final = 1.0
"""So long runs of a function are taken to want the rows that one of them has lost over."""
_FUNCTIONS_MAX: Final = 64


class _Row(NamedTuple):
    """A row as people name it, where that is known."""

    table: str | None = None
    key: Any = None


class _Lost(NamedTuple):
    """What a function has lost over."""

    rows: Mapping[RowName, _Row]
    twice: bool
    until: float


HotRuns = dict[CodeType, _Lost]
"""The functions that have lost lately. Empty, and not asked, where nobody does."""


class Rerun:
    """The rows that a run has lost over, and its turn at them."""

    def __init__(self, hot: HotRuns) -> None:
        self.rows: dict[RowName, _Row] = {}
        self._hot = hot
        self._expected: CodeType | None = None
        """The function, if it is taken to want what it has lost over before."""
        self._committer: Commits | None = None
        self._ticket = 0
        self._snapshot = 0
        """Where its attempt begins, if that may not be durable yet."""
        self._wait_s = WAIT_S
        """How long it may still wait for its turns."""

    @property
    def has_waited_enough(self) -> bool:
        """Is it time to give up, because somebody holds a row and does not end?"""
        return self._wait_s <= 0

    @staticmethod
    def expected(hot: HotRuns, function: Any, clock: Clock) -> Rerun | None:
        """A run that takes its turn before it has lost; None when that may be for nothing."""
        code: Any = getattr(function, "__code__", None)
        lost = hot.get(code)
        if lost is None or not lost.twice:
            return None
        if clock.monotonic() > lost.until:
            hot.pop(code, None)
            return None
        found = Rerun(hot)
        found.rows, found._expected = dict(lost.rows), code
        return found

    def lost(self, core: Core, txn: Transaction | None, error: ConflictError) -> None:
        """Remember what an attempt has lost over, and what it had locked."""
        if txn is not None:
            self.rows = dict.fromkeys(txn.locked, _Row()) | self.rows
        state = core.state_of(error.table, core.newest_ts()) if error.table is not None else None
        if state is not None and state.key_of is not None and error.key is not None:
            name = state.table_id, state.schema.key_bytes(error.key)
            self.rows[name] = _Row(state.entry.name, error.key)
            if txn is not None and txn.began is not None:
                self._note(txn.began[0], core.clock.monotonic() + EXPECTED_S)

    def _note(self, code: CodeType, until: float) -> None:
        rows, before = dict(self.rows), self._hot.get(code)
        if before is None and len(self._hot) >= _FUNCTIONS_MAX:
            self._hot.clear()
        twice = before is not None and before.rows.keys() == rows.keys()
        self._hot[code] = _Lost(rows, twice, until)

    def run(self, function: Callable[[Transaction], T], txn: Transaction) -> T:
        """Run the function while it has its turn, which ends with this transaction from now on.

        If this process has become the owner meanwhile, the turn is one of the old committer: kept,
        it would be one more rival that the transaction waits for.
        """
        if txn.core.committer is self._committer:
            txn.ticket = self._ticket
            if self._snapshot > txn.snapshot:
                txn.snapshot = txn.core.pins[id(txn)] = self._snapshot  # it has read nothing yet
        else:
            self.end()
        result = function(txn)
        if self._expected is not None and not all(map(txn.writes, self.rows)):
            self._hot.pop(self._expected, None)
        return result

    def take(self, committer: Commits, clock: Clock) -> None:
        """Wait for the turn at these rows; ConflictError when it does not come."""
        if self.rows:
            if committer is not self._committer:  # another owner gives other tickets
                self._committer, self._ticket = committer, committer.new_ticket()
            began = clock.monotonic()
            try:
                self._snapshot = committer.begin_turn(self._ticket, self.rows, self._wait_s)
            except ConflictError as error:
                raise self._named(error) from None
            finally:
                self._wait_s -= clock.monotonic() - began

    def _named(self, error: ConflictError) -> ConflictError:
        """The error with the row in it, as far as it is known which one was waited for."""
        tables = {row.table for row in self.rows.values()}
        table = tables.pop() if len(tables) == 1 else None
        (row,) = self.rows.values() if len(self.rows) == 1 else (_Row(),)
        return ConflictError(error.reason, table=table, key=row.key, winner_ts=error.winner_ts)

    def pause(self, clock: Clock, attempt: int) -> None:
        """Wait a moment for a rival that has not committed yet, if there is no row to wait for."""
        if not self.rows:
            clock.sleep(min(0.05, 0.001 * 2**attempt))

    def end(self) -> None:
        """Give up the turn, if it has not ended yet, and wait for what the attempt has seen.

        Whatever it read is told to nobody, by a result or by an error, before it is durable.
        """
        if self._committer is not None:
            self._committer.end_turns(self._ticket)
            if self._snapshot:
                self._committer.settle(self._snapshot)

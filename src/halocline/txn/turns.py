"""Turns: who may write a contended row now, and who comes next.

    run loses over a row --> queue of that row --first--> begins, commits, ends --> the next one
    get(for_update=True) --> queue of that row --first--> goes on, holds the row until it ends

Transactions find their conflicts at the commit, which is right for most rows and wrong for one that
all of them want: whoever is quick wins, and the others starve. So a transaction that `db.run` runs
again after it has lost over a row waits for its turn at that row, and one may ask for its turn in
advance. A turn and a lock are the same: the first place in the queue of a row. Rows that nobody has
lost over have no queue, and a commit asks only whether there are any queues at all.

Turns are a courtesy, and the check of the commit is the truth. A commit that meets the queue of a
row and is not the first of it is refused (`blocks`); if a turn is lost, or given to two by mistake,
one of them conflicts.

Invariants
- The first of a queue has its turn and keeps it until it leaves. Behind it the oldest ticket comes
  first. A run keeps its ticket from attempt to attempt, so it becomes the oldest in the end.
- A call takes its rows in one order, by table and key. Those who take all their rows in one call,
  as reruns do, cannot wait for each other in a circle. Others can, and then the youngest of the
  circle is told so with a ConflictError.
- A turn lasts `TURN_S` after its holder was last heard of; that of `for_update` until its
  transaction ends, or is forgotten.

`Queues` is pure: it knows neither threads nor a clock. `Turns` lets threads wait.

Not here: what a run does about a conflict (rerun.py), what a lock makes of a snapshot
(transaction.py).
"""

from __future__ import annotations

from bisect import bisect
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from math import inf
from threading import Lock
from typing import Final

from halocline.clock import Clock
from halocline.errors import ConflictError, UsageError

RowName = tuple[int, bytes]
"""A table's id, and the bytes of a key in it."""
TURN_S: Final = 10.0
"""How long a turn lasts at most, while others wait for it."""
WAIT_S: Final = 30.0
"""How long is waited for a turn, if nothing else was asked for; of a run, in all its attempts."""
HELD: Final = "another transaction holds the row"
"""Why a turn did not come in time."""
_LOOK_S: Final = 0.5
"""So often a waiting thread looks whether somebody ahead of it has been forgotten."""


def check_timeout(timeout: object, *, wanted: bool) -> float:
    """How long a lock is waited for; UsageError for what is no number of seconds, or no lock."""
    if not wanted:
        raise UsageError("timeout= goes with for_update=True")
    if timeout is None:
        return WAIT_S
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        raise UsageError(f"timeout must be a number of seconds, not {timeout!r}")
    return timeout


class Claim:
    """One transaction, or run of transactions, in the queues it stands in."""

    __slots__ = ("bell", "call", "is_doomed", "rows", "ticket", "until", "waits_for")

    def __init__(self, ticket: int) -> None:
        self.ticket = ticket
        self.rows: list[RowName] = []
        self.waits_for: RowName | None = None
        self.until = 0.0
        """When its turns are over, if others wait for them."""
        self.is_doomed = False
        """Must it give up, because it waits in a circle?"""
        self.bell = Lock()
        self.bell.acquire()
        self.call: Callable[[], None] | None = None
        """What to call, if nobody waits at the bell."""

    def ring(self) -> None:
        """Wake the thread that waits. Caller holds the lock of the turns."""
        if self.call is not None:
            self.call()
        elif self.bell.locked():
            self.bell.release()


class Queues:
    """The queue of every contended row."""

    def __init__(self) -> None:
        self.rows: dict[RowName, list[Claim]] = {}

    def join(self, claim: Claim, row: RowName) -> bool:
        """Stand in the queue of a row, if not there yet; True when it is the claim's turn."""
        queue = self.rows.setdefault(row, [])
        if row not in claim.rows:
            claim.rows.append(row)
            place = bisect(queue, claim.ticket, lo=min(1, len(queue)), key=lambda one: one.ticket)
            queue.insert(place, claim)
        return queue[0] is claim

    def leave(self, claim: Claim, rows: Iterable[RowName]) -> list[Claim]:
        """Give up these rows; returns the claims whose turn it is now."""
        next_ones = []
        for row in rows:
            if row not in claim.rows:
                continue
            claim.rows.remove(row)
            queue = self.rows[row]
            was_first = queue[0] is claim
            queue.remove(claim)
            if not queue:
                del self.rows[row]
            elif was_first:
                next_ones.append(queue[0])
        return next_ones

    def first(self, row: RowName) -> Claim | None:
        """The claim whose turn it is at a row. May be asked without a lock."""
        for claim in self.rows.get(row, ()):
            return claim
        return None

    def youngest_of_circle(self, claim: Claim) -> Claim | None:
        """The youngest of those who wait for each other and for this one; None: no circle."""
        path = [claim]
        steps = [self._ahead_of(claim)]
        seen = {claim.ticket}
        while steps:
            other = next(steps[-1], None)
            if other is claim:
                return max(path, key=lambda one: one.ticket)
            if other is None:
                steps.pop()
                path.pop()
            elif other.ticket not in seen:
                seen.add(other.ticket)
                path.append(other)
                steps.append(self._ahead_of(other))
        return None

    def _ahead_of(self, claim: Claim) -> Iterator[Claim]:
        """Those whom a claim waits for."""
        for other in () if claim.waits_for is None else self.rows.get(claim.waits_for, ()):
            if other is claim:
                return
            yield other


class Turns:
    """The queues of one owner, for the threads that wait in them."""

    def __init__(self, clock: Clock, first_ticket: int = 1) -> None:
        self._clock = clock
        self._queues = Queues()
        self._claims: dict[int, Claim] = {}
        self._lock = Lock()
        self._tickets = count(first_ticket)
        self._closed = ""
        self.rows = self._queues.rows
        """The contended rows: empty unless some transaction has lost, or holds a row."""
        self.lapsed: deque[int] = deque()
        """Tickets of transactions that nobody ended. Added to without a lock."""

    def new_ticket(self) -> int:
        """A ticket that is younger than all others."""
        return next(self._tickets)

    def take(
        self, ticket: int, rows: Iterable[RowName], timeout_s: float, *, lasts: bool = False
    ) -> None:
        """Wait until all these rows are the ticket's own; they are until `end`.

        ConflictError after `timeout_s`, or when others wait for this one in a circle: then nothing
        of this call is kept. `lasts`: a turn without a deadline.
        """
        until = self._clock.monotonic() + timeout_s
        with self._lock:
            claim = self._claims.setdefault(ticket, Claim(ticket))
            held = list(claim.rows)
            claim.until = max(claim.until, self._clock.monotonic() + TURN_S)
        try:
            for row in sorted(set(rows)):
                while not self._is_ours(claim, row, until):
                    wait_s = min(until - self._clock.monotonic(), _LOOK_S)
                    claim.bell.acquire(timeout=max(wait_s, 0.0))
            if lasts:
                claim.until = inf
        except BaseException:
            with self._lock:
                claim.waits_for = None
                self._leave(claim, [row for row in claim.rows if row not in held])
            raise

    def ask(
        self, ticket: int, rows: Iterable[RowName], until: float, call: Callable[[], None]
    ) -> bool:
        """`take` for one that cannot wait: False, and `call` is called when to ask again.

        All its rows are asked for in one call; a ConflictError takes the ticket out of all queues.
        """
        with self._lock:
            claim = self._claims.setdefault(ticket, Claim(ticket))
            claim.call = call
        try:
            return all(self._is_ours(claim, row, until) for row in sorted(set(rows)))
        except BaseException:
            self.end(ticket)
            raise

    def end(self, ticket: int) -> None:
        """Give up all rows of a ticket. One that has none is fine."""
        with self._lock:
            self._end(ticket)

    def blocks(self, ticket: int, row: RowName) -> bool:
        """Is it the turn of another transaction at this row? Waits for no lock."""
        if self.lapsed and self._lock.acquire(blocking=False):
            try:
                self._end_lapsed()
            finally:
                self._lock.release()
        first = self._queues.first(row)
        if first is None or first.ticket == ticket:
            return False
        return first.until > self._clock.monotonic()

    def close(self, why: str) -> None:
        """Let nobody wait any more."""
        with self._lock:
            self._closed = why
            for claim in self._claims.values():
                claim.ring()

    def _is_ours(self, claim: Claim, row: RowName, until: float) -> bool:
        """Is it the claim's turn? Otherwise it stands in the queue, and may wait a moment."""
        now = self._clock.monotonic()
        with self._lock:
            self._claims.setdefault(claim.ticket, claim)  # ended meanwhile, it comes again
            claim.until = max(claim.until, now + TURN_S)
            self._forget(row, now)
            if self._closed:
                raise UsageError(self._closed)
            if self._queues.join(claim, row):
                claim.waits_for, claim.is_doomed = None, False
                return True
            claim.waits_for = row
            youngest = self._queues.youngest_of_circle(claim)
            if youngest is claim or claim.is_doomed:
                claim.is_doomed = False
                raise ConflictError("transactions wait for each other's rows")
            if youngest is not None:
                youngest.is_doomed = True
                youngest.ring()
            if now >= until:
                raise ConflictError(HELD)
        return False

    def _forget(self, row: RowName, now: float) -> None:
        """End those who were forgotten, and the first of a queue when its time is up."""
        self._end_lapsed()
        first = self._queues.first(row)
        while first is not None and first.until <= now:
            self._end(first.ticket)
            first = self._queues.first(row)

    def _end_lapsed(self) -> None:
        while self.lapsed:
            self._end(self.lapsed.popleft())

    def _end(self, ticket: int) -> None:
        claim = self._claims.pop(ticket, None)
        if claim is not None:
            self._leave(claim, list(claim.rows))

    def _leave(self, claim: Claim, rows: Iterable[RowName]) -> None:
        for one in self._queues.leave(claim, rows):
            one.until = max(one.until, self._clock.monotonic() + TURN_S)
            one.ring()

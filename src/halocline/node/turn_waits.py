"""TurnWaits: the callers of the request loop that wait for their turn, without a thread each.

    TakeTurns --ask--> its turn --------> settle --> answered
                  '--> waits --rung, by whoever gave up the row--> asks again
                        '--hangs up--> out of the queue

A hot row is handed from caller to caller, so what lies between two of them is paid for every
commit: a thread for each that waits, started, woken and ended, cost the owner more than the commit.
Here the loop that has logged a commit asks in the same turn for whoever comes next, after the sync,
and sends both answers.

Locks of `for_update` have another way (Session.take_turns): they are taken one by one, and kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from halocline.clock import SystemClock
from halocline.errors import HaloclineError
from halocline.node.dispatch import Dispatch
from halocline.node.faults import fault_of
from halocline.node.session import Session
from halocline.node.wire import EndTurns, TakeTurns, done, frame

if TYPE_CHECKING:
    from halocline.node.request_loop import Connection

LOOK_MS: Final = 500
"""So often it is looked whether somebody ahead was forgotten, or the time of a wait is up."""


class _Wait(NamedTuple):
    caller: Connection
    session: Session
    request: TakeTurns
    until: float


class TurnWaits:
    """Those who wait. For the thread of the loop only, but for `ring`, which is called by all."""

    def __init__(self, answers: Dispatch, wake: Callable[[], None]) -> None:
        """`wake` interrupts the loop's poll."""
        self._answers = answers
        self._wake = wake
        self._clock = SystemClock()
        self.waiting: dict[int, _Wait] = {}
        self._rung: deque[int] = deque()
        self._look_at = 0.0

    def add(self, caller: Connection, session: Session, request: TakeTurns) -> None:
        """A caller who wants its turn; it is asked for in this turn of the loop."""
        until = self._clock.monotonic() + request.timeout_ms / 1000
        self.waiting[caller.number] = _Wait(caller, session, request, until)
        self._rung.append(caller.number)

    def drop(self, caller: Connection) -> None:
        """It has hung up, and stands in no queue any more."""
        wait = self.waiting.pop(caller.number, None)
        if wait is not None:
            with suppress(HaloclineError):  # an owner that closes has let go of all
                self._answers.answer(wait.session, EndTurns(wait.request.ticket))

    def answers(self) -> Iterator[tuple[Connection, bytes]]:
        """Whose turn it is now, and who waits no longer, each with its answer."""
        now = self._clock.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_MS / 1000
            self._rung.extend(self.waiting)
        granted = []
        while self._rung:
            number = self._rung.popleft()
            wait = self.waiting.get(number)
            if wait is None:  # rung twice
                continue
            try:
                ring = partial(self._ring, number)
                if self._answers.ask_turns(wait.session, wait.request, wait.until, ring):
                    granted.append(self.waiting.pop(number).caller)
            except Exception as error:  # noqa: BLE001 a bug of ours must not take the owner down
                del self.waiting[number]
                yield wait.caller, frame(fault_of(error, self._answers.schema_of))
        if not granted:
            return
        reply = done(True)
        try:
            self._answers.settle()
        except Exception as error:  # noqa: BLE001 as above
            reply = frame(fault_of(error, self._answers.schema_of))
        for caller in granted:
            yield caller, reply

    def _ring(self, number: int) -> None:
        """Something has changed for that caller. Called with the lock of the turns held."""
        self._rung.append(number)
        self._wake()

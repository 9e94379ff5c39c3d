"""Visitors: who talks to a server over Arrow Flight at the moment, and who has fallen silent.

    waits --a call has come--> works --its answer is there--> sends --it is taken--> waits ...

gRPC gives each visitor a thread, which waits for as long as the other side likes, and a server that
stops waits for all of them. So there are limits, and whoever passes one is cut off (cut.py): its
thread is free then. Work is never cut off.

Invariants
- A visitor says that it works before it looks whether the server stops; a server says that it stops
  before it looks who works. So a call is either refused, or waited for.
- A connection is cut only if nobody works behind it: one client may have several visitors there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from halocline.clock import Clock

WAITS: Final = "waits"
WORKS: Final = "works"
SENDS: Final = "sends"
EXCHANGES_MAX: Final = 1024
"""Further ones are told to do without."""
IDLE_S: Final = 60.0
"""How long an exchange may ask nothing. Clients of ours end it earlier."""
HELLO_S: Final = 5.0
"""How long it may take to ask something at all."""
REPLY_S: Final = 60.0
"""How long a caller may take to read its answer."""
STOP_REPLY_S: Final = 1.0
"""The same while the server stops."""


class Visitor:
    """A call or an exchange, and what its thread does."""

    __slots__ = ("_clock", "calls", "peer", "since", "state")

    def __init__(self, peer: str, clock: Clock) -> None:
        self._clock = clock
        self.peer = peer
        self.calls = 0
        self.turn(WAITS)

    def turn(self, state: str) -> None:
        """From now on its thread does something else."""
        self.since = self._clock.monotonic()
        self.state = state


class Visitors:
    """All of them. Thread-safe, without a lock: each step is one of the interpreter's."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._all: dict[Visitor, None] = {}

    @contextmanager
    def visit(self, peer: str) -> Iterator[Visitor]:
        """Somebody is here."""
        visitor = Visitor(peer, self._clock)
        self._all[visitor] = None
        try:
            yield visitor
        finally:
            del self._all[visitor]

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Visitor]:
        return iter(list(self._all))

    def overdue(self, now: float, *, stopping: bool = False) -> set[str]:
        """The peers whose connections are to be cut."""
        everybody = list(self)
        working = {one.peer for one in everybody if one.state is WORKS}
        limit_s = _stop_limit_s if stopping else _limit_s
        late = {one.peer for one in everybody if now - one.since > limit_s(one)}
        return late - working


def _limit_s(visitor: Visitor) -> float:
    if visitor.state is WAITS:
        return IDLE_S if visitor.calls else HELLO_S
    return REPLY_S if visitor.state is SENDS else float("inf")


def _stop_limit_s(visitor: Visitor) -> float:
    """Who asks nothing has nothing to wait for."""
    return -1.0 if visitor.state is WAITS else STOP_REPLY_S

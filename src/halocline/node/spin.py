"""Spin: look for something that comes soon again and again, where a core is free for it.

    compute node --request--> owner          both look for the other's next word for a moment
                 <--answer---                before they sleep

To sleep until an answer comes costs more than the answer: the core goes idle, is woken, and begins
with cold caches. A durable commit of a second process takes 300 us that way, and 230 if the thread
that waits for it stays awake.

That is right only while nobody else wants the core. Two signs tell: nothing has come for
`longest_s`, and a gap in our own clock, which means that the core, or the interpreter, was given to
somebody else. After each of them in a row the next 1, 3, 7, ... times are slept through at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, TypeVar

from halocline.clock import Clock

GAP_S: Final = 0.00005
REST_MAX: Final = 127
T = TypeVar("T")
_yield = getattr(os, "sched_yield", lambda: None)


class Spin:
    """What one place has learnt. Threads may share it: it need not be exact."""

    def __init__(self, clock: Clock, longest_s: float) -> None:
        self._now = clock.monotonic
        self._longest_s = longest_s if (os.cpu_count() or 1) > 1 else 0.0
        self._rests = self._rest = 0
        """How often to sleep before the next try, and how often still."""

    def wait(self, look: Callable[[], T | None]) -> T | None:
        """What `look` finds, which must not wait; None when it is better to sleep."""
        if self._rest:
            self._rest -= 1
            return None
        now = self._now
        at = now()
        until = at + self._longest_s
        while True:
            found = look()
            if found is not None:
                self._rests = 0
                return found
            _yield()  # whoever wants the core gets it now, not when our slice is over
            before, at = at, now()
            if at >= until or at - before >= GAP_S:
                self._rests = self._rest = min(2 * self._rests + 1, REST_MAX)
                return None

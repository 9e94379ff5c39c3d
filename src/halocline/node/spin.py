"""Spin: look for a short answer again and again, where a core is free for it.

Sleeping until an answer comes costs more than the answer: the core goes idle, is woken, and begins
with cold caches. A durable commit of a second process takes 300 us that way, and 230 if its thread
stays awake. That is right only while nobody else wants the core. Two signs tell: no answer for
SPIN_S, and a gap in our own clock, which means that the core, or the interpreter, was given to
somebody else. After each of them in a row the next 1, 3, 7, ... requests sleep at once.
"""

from __future__ import annotations

import os
import socket
from os import sched_yield
from typing import Final

from halocline.clock import Clock

SPIN_S: Final = 0.0005
GAP_S: Final = 0.00005
REST_MAX: Final = 31
_AT_ONCE: Final = int(socket.MSG_DONTWAIT)


class Spin:
    """Shared by the threads of one compute node; what they learn need not be exact."""

    def __init__(self, clock: Clock) -> None:
        self._now = clock.monotonic
        self._rest = 0
        """Requests that sleep before the next one tries again."""
        self._rests = 0 if (os.cpu_count() or 1) > 1 else REST_MAX
        self._rest = self._rests

    def receive(self, sock: socket.socket, size: int) -> bytes | None:
        """What has come; None when it is better to sleep."""
        if self._rest:
            self._rest -= 1
            return None
        now = self._now
        at = now()
        until = at + SPIN_S
        while True:
            try:
                data = sock.recv(size, _AT_ONCE)
            except BlockingIOError:
                sched_yield()  # whoever wants the core gets it now, not when our slice is over
                before, at = at, now()
                if at < until and at - before < GAP_S:
                    continue
                self._rests = self._rest = min(2 * self._rests + 1, REST_MAX)
                return None
            self._rests = 0
            return data

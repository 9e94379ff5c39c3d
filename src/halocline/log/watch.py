"""Waiting for a timestamp to become visible, at no cost to the commits that make it so.

A watcher adds itself first and looks second; the writer moves `visible_ts` first and looks for
watchers second. Whatever the interleaving, one of them sees the other. The writer's look is one
test for an empty list.
"""

from __future__ import annotations

from _thread import LockType, allocate_lock
from collections.abc import Callable

from halocline.log.line import wake


class Watchers:
    """Threads that wait for a timestamp."""

    __slots__ = ("watching",)

    def __init__(self) -> None:
        self.watching: list[tuple[int, LockType]] = []

    def wait(self, ts: int, timeout: float, due: Callable[[], bool]) -> None:
        """Park until woken for `ts` or out of time, unless it is due already."""
        ticket = allocate_lock()
        ticket.acquire()
        watcher = (ts, ticket)
        self.watching.append(watcher)
        try:
            if not due():
                ticket.acquire(timeout=timeout)
        finally:
            self.watching.remove(watcher)

    def wake_up_to(self, ts: int) -> None:
        """Wake whoever waits for that timestamp or an earlier one."""
        for wanted, ticket in list(self.watching):
            if wanted <= ts:
                wake(ticket)

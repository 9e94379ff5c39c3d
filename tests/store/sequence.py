"""The operations of a test in one numbered sequence, and the faults planned for them.

    workload ---> FaultyFiles, FaultyObjects ---> Sequence.run(kind, path, act) ---> act()
                                                     | 1 create log/1.log
                                                     | 2 write  log/1.log 0 512   <- fail, tear,
                                                     | 3 sync   log/1.log            delay, crash
                                                     | 4 sync_dir log
    test -------> fail, tear, delay, crash ----------'

Faults are planned ahead: "the n-th operation from now", 1 being the next one, optionally counting
only one kind or the paths below a prefix. In a fresh store that is the number in the sequence, so
a test records a workload once, and then runs it again once per number.

Reads and listings are operations too (they can fail), but a crash at one of them tells nothing
new: `crash_points` leaves them out.

Invariants
- After a crash every operation raises SimulatedCrash, in every thread.
- Numbers follow the order in which operations took effect. A delayed operation gets its number
  after its delay.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeVar

T = TypeVar("T")
CrashMoment = Literal["before", "inside", "after"]

READS: Final = frozenset({"read", "list"})


class SimulatedCrash(BaseException):
    """The machine has stopped. Not an Exception: no code under test may catch and survive it."""


class Operation(NamedTuple):
    """One elementary step; `number` counts from 1."""

    number: int
    kind: str
    path: str
    offset: int
    size: int


@dataclass(slots=True, kw_only=True)
class _Fault:
    """One planned fault; `skip` operations that it fits go by before it strikes."""

    action: Literal["fail", "tear", "delay", "crash"]
    skip: int
    kind: str | None
    path: str
    times: int = 1
    errno: int = 0
    keep: int | None = None
    moment: CrashMoment = "before"
    wait: Callable[[], object] | None = None

    def fits(self, kind: str, path: str) -> bool:
        return (self.kind is None or self.kind == kind) and path.startswith(self.path)


class Sequence:
    """Numbers and records operations, and lets the planned faults strike."""

    def __init__(self) -> None:
        self.mutex = threading.RLock()
        self.operations: list[Operation] = []
        self.crashed = False
        self._faults: list[_Fault] = []

    def fail(
        self, nth: int, errno: int, *, kind: str | None = None, path: str = "", times: int = 1
    ) -> None:
        """The n-th operation, and `times - 1` after it, does nothing and raises this errno."""
        self._plan(nth, _Fault(action="fail", skip=0, kind=kind, path=path, times=times), errno)

    def tear(
        self, nth: int, keep: int, errno: int, *, kind: str | None = "write", path: str = ""
    ) -> None:
        """The n-th write writes its first `keep` bytes and raises this errno."""
        self._plan(nth, _Fault(action="tear", skip=0, kind=kind, path=path, keep=keep), errno)

    def delay(
        self, nth: int, wait: Callable[[], object], *, kind: str | None = None, path: str = ""
    ) -> None:
        """The n-th operation first calls `wait`, for instance an Event's; others may overtake."""
        self._plan(nth, _Fault(action="delay", skip=0, kind=kind, path=path, wait=wait), 0)

    def crash(
        self,
        nth: int,
        when: CrashMoment = "before",
        *,
        keep: int | None = None,
        kind: str | None = None,
        path: str = "",
    ) -> None:
        """Stop the machine at the n-th operation. Inside: a write got `keep` bytes (or half)."""
        fault = _Fault(action="crash", skip=0, kind=kind, path=path, keep=keep, moment=when)
        self._plan(nth, fault, 0)

    def clear(self) -> None:
        """Forget the faults that have not struck."""
        with self.mutex:
            self._faults.clear()

    def crash_points(self) -> list[int]:
        """Numbers of the operations that change something."""
        with self.mutex:
            return [entry.number for entry in self.operations if entry.kind not in READS]

    def alive(self) -> None:
        """Raise if the machine has stopped."""
        if self.crashed:
            raise SimulatedCrash("the simulated machine has stopped")

    def run(
        self,
        kind: str,
        path: str,
        act: Callable[[], T],
        *,
        offset: int = 0,
        size: int = 0,
        partly: Callable[[int], object] | None = None,
        failed: Callable[[], object] | None = None,
    ) -> T:
        """Number the operation, record it and do it, or what the plan has for it instead.

        `partly(bytes)` does a part of it; `failed()` is what even a failure leaves behind.
        """
        with self.mutex:
            self.alive()
            faults = self._due(kind, path)
        for fault in faults:
            if fault.wait is not None:
                fault.wait()
        with self.mutex:
            self.alive()
            self.operations.append(Operation(len(self.operations) + 1, kind, path, offset, size))
            for fault in faults:
                self._strike(fault, path, act, size, partly, failed)
            return act()

    def _plan(self, nth: int, fault: _Fault, errno: int) -> None:
        assert nth >= 1
        assert fault.times >= 1
        fault.skip = nth - 1
        fault.errno = errno
        with self.mutex:
            self._faults.append(fault)

    def _due(self, kind: str, path: str) -> list[_Fault]:
        """The faults that strike this operation. Counts it for all that it fits."""
        due = []
        for fault in [fault for fault in self._faults if fault.fits(kind, path)]:
            if fault.skip:
                fault.skip -= 1
                continue
            due.append(fault)
            fault.times -= 1
            if not fault.times:
                self._faults.remove(fault)
        return due

    def _strike(
        self,
        fault: _Fault,
        path: str,
        act: Callable[[], object],
        size: int,
        partly: Callable[[int], object] | None,
        failed: Callable[[], object] | None,
    ) -> None:
        if fault.action == "delay":
            return
        if fault.action == "crash":
            if fault.moment == "after":
                act()
            elif fault.moment == "inside" and partly is not None:
                partly(size // 2 if fault.keep is None else min(fault.keep, size))
            self.crashed = True
            self.alive()
        if fault.action == "tear" and partly is not None:
            partly(min(fault.keep or 0, size))
        if failed is not None:
            failed()
        raise OSError(fault.errno, os.strerror(fault.errno), path)

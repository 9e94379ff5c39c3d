"""Background: the thread of an owner that keeps its database healthy.

    wake(), or every half second --> steps, one after the other: move rows, checkpoint, collect

Each step is a function that looks for something to do and does it; it may return the seconds after
which it wants to be called again, if that is sooner than the next round. One that raises is told
once to the log of the program, reported by `troubles`, and left alone for a while, longer each
time; the others go on, and so does the thread.

The thread must not keep a database in memory that its program has forgotten: between two rounds it
holds on to two bells only, and it ends when its owner is gone, or when the interpreter is about to
end. A forked child has no such thread.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from halocline.clock import Clock
from halocline.log.bell import Bell

ROUND_S: Final = 0.5
ROUND_S_MIN: Final = 0.02
PAUSE_S_MIN: Final = 1.0
PAUSE_S_MAX: Final = 60.0
JOIN_S_MAX: Final = 30.0
_logger = logging.getLogger("halocline")


@dataclass(slots=True)
class Step:
    """One kind of work, and how it went the last time."""

    name: str
    run: Callable[[], object]
    error: BaseException | None = None
    failures: int = 0
    again_at: float = 0.0


class Background:
    """Runs steps in a thread until it is stopped."""

    def __init__(self, clock: Clock, usable: Callable[[], bool]) -> None:
        self._clock = clock
        self._usable = usable
        self._wake = Bell()
        self._stopping = Bell()
        self._thread: threading.Thread | None = None
        self.steps: list[Step] = []

    def add(self, name: str, run: Callable[[], object]) -> None:
        """Add a step behind those that are there."""
        self.steps.append(Step(name, run))

    def start(self, owner: object) -> None:
        """Start the thread; it runs for as long as the owner exists."""
        loop = threading.Thread(
            target=_loop,
            args=(weakref.ref(self), self._wake, self._stopping),
            name="halocline-background",
            daemon=True,
        )
        self._thread = loop
        weakref.finalize(owner, _end, loop, self._wake, self._stopping)
        loop.start()

    def wake(self) -> None:
        """Start the next round now."""
        self._wake.ring()

    def stop(self) -> None:
        """End the thread; the step that runs is finished first."""
        self._stopping.ring()
        self._wake.ring()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    @property
    def troubles(self) -> dict[str, str]:
        """Steps that failed the last time they ran, and why."""
        return {
            step.name: f"{type(step.error).__name__}: {step.error}"
            for step in self.steps
            if step.error is not None
        }

    def run_once(self) -> float:
        """Run every step that is not pausing once; returns the seconds until the next round."""
        rest_s = ROUND_S
        for step in self.steps:
            if self._stopping.rung or not self._usable():
                break
            if self._clock.monotonic() >= step.again_at:
                wish = self._run(step)
                if isinstance(wish, float):
                    rest_s = min(rest_s, max(wish, ROUND_S_MIN))
        return rest_s

    def _run(self, step: Step) -> object:
        try:
            wish = step.run()
        except BaseException as error:  # noqa: BLE001 a thread has nobody else to tell
            if not self._usable():
                return None  # The database was closed or has stopped: its callers know.
            if type(error) is not type(step.error):
                _logger.warning(
                    "background %s failed and will be tried again: %s", step.name, error
                )
            # Without its traceback: that would hold on to the tables it was working on.
            step.error = error.with_traceback(None)
            pause_s = min(PAUSE_S_MAX, PAUSE_S_MIN * 2**step.failures)
            step.failures = min(step.failures + 1, 16)
            step.again_at = self._clock.monotonic() + pause_s
        else:
            step.error, step.failures, step.again_at = None, 0, 0.0
            return wish
        return None


def _loop(ref: weakref.ref[Background], wake: Bell, stopping: Bell) -> None:
    rest_s = ROUND_S
    while not stopping.rung:
        wake.wait(rest_s)
        background = ref()
        if background is None:
            return
        rest_s = background.run_once()
        del background


def _end(thread: threading.Thread, wake: Bell, stopping: Bell) -> None:
    """The owner is gone, or the interpreter is about to be."""
    stopping.ring()
    wake.ring()
    if thread is not threading.current_thread():
        thread.join(JOIN_S_MAX)

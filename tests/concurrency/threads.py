"""Running things at once, and noticing when they hang.

    together(writer, writer)     start them at once, wait for all, raise the first error
    with beside(reader): ...     start it, do the block, call it off, raise the first error

A thread that fails makes the others stop early, if they ask `crew.working()`. Nothing here sleeps.
Whoever waits, waits for an event, with a time limit that only a deadlock meets.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE_S = 120.0
"""Far more than any of these tests needs on a slow machine."""


class Crew:
    """Threads that start together; the first error ends the work of all."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def add(self, function: Callable[[], object]) -> threading.Thread:
        """One more thread, not started yet."""
        thread = threading.Thread(target=self._guard, args=(function,), daemon=True)
        self._threads.append(thread)
        return thread

    def working(self) -> bool:
        """False once somebody has failed or the work is called off."""
        return not self.stop.is_set()

    def run(self) -> None:
        """Start all, wait for all."""
        started = list(self._threads)
        for thread in started:
            thread.start()
        self.join(started)

    def join(self, threads: list[threading.Thread]) -> None:
        """Wait for these; the first error of any thread is raised here."""
        for thread in threads:
            thread.join(PATIENCE_S)
            if thread.is_alive():
                self.stop.set()
                raise AssertionError("threads hang:\n" + "\n".join(_stacks(self._threads)))
        if self.errors:
            raise self.errors[0]

    def _guard(self, function: Callable[[], object]) -> None:
        try:
            function()
        except BaseException as error:
            self.errors.append(error)
            self.stop.set()


def together(*functions: Callable[[], object]) -> None:
    """Run all of them at once."""
    crew = Crew()
    for function in functions:
        crew.add(function)
    crew.run()


@contextmanager
def beside(*functions: Callable[[Crew], object]) -> Iterator[Crew]:
    """Run functions until the `with` block ends; they ask `crew.working()` whether it has."""
    crew = Crew()
    threads = [crew.add(lambda function=function: function(crew)) for function in functions]
    for thread in threads:
        thread.start()
    try:
        yield crew
    finally:
        crew.stop.set()
        for thread in threads:
            thread.join(PATIENCE_S)
    crew.join(threads)


def _stacks(threads: list[threading.Thread]) -> Iterator[str]:
    frames = sys._current_frames()
    for thread in threads:
        if thread.is_alive() and thread.ident in frames:
            yield "".join(traceback.format_stack(frames[thread.ident]))

"""Writers: threads that do one thing over and over until they are told to stop, and are counted.

    make(0) -> step, make(1) -> step, ...     one thread each; step() -> how often it was retried

The clock runs from the moment all threads are ready until the last one has finished its last step,
so a rate counts nothing that was not waited for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import perf_counter
from types import TracebackType

Step = Callable[[], int]


class Writers:
    """Use as a context manager: the threads run inside the block and have ended after it."""

    def __init__(self, threads: int, make: Callable[[int], Step]) -> None:
        self._stop = False
        # A counter per thread: a shared one would need a lock.
        self._done = [0] * threads
        self._retried = [0] * threads
        self._gate = threading.Barrier(threads + 1)
        self._began = self._ended = 0.0
        self.errors: list[Exception] = []
        # Daemons: an impatient second Ctrl-C must not wait for them.
        self._threads = [
            threading.Thread(target=self._work, args=(index, make(index)), daemon=True)
            for index in range(threads)
        ]

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        self._gate.wait()
        self._began = perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop = True
        for thread in self._threads:
            thread.join()
        self._ended = perf_counter()
        if kind is None and self.errors:
            raise self.errors[0]

    @property
    def commits(self) -> int:
        return sum(self._done)

    @property
    def retries(self) -> int:
        return sum(self._retried)

    @property
    def seconds(self) -> float:
        return (self._ended or perf_counter()) - self._began

    def _work(self, index: int, step: Step) -> None:
        self._gate.wait()
        try:
            while not self._stop:
                self._retried[index] += step()
                self._done[index] += 1
        except Exception as error:  # noqa: BLE001 - raised again where the block ends
            self.errors.append(error)
            self._stop = True

"""Threads that start together: the clock runs from the first start to the last finish."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from time import perf_counter


def seconds_together(jobs: Sequence[Callable[[], None]]) -> float:
    """Run each job in a thread of its own; the seconds until all are done."""
    gate = threading.Barrier(len(jobs) + 1)
    failures: list[BaseException] = []

    def body(job: Callable[[], None]) -> None:
        gate.wait()
        try:
            job()
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            failures.append(error)

    threads = [threading.Thread(target=body, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    gate.wait()
    started = perf_counter()
    for thread in threads:
        thread.join()
    took = perf_counter() - started
    if failures:
        raise failures[0]
    return took

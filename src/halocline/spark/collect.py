"""Collect: run one Spark job so that it can be watched, and broken off.

    rows --collect, in a thread with a job group of its own--> answer
             caller: every fifth of a second: may it go on? how many tasks are done?

The caller's thread never waits inside Java: Ctrl-C, a database that is being closed and a caller
who has changed his mind end the job, on all executors, at once. PySpark's own answer to Ctrl-C
fails while the main thread waits for Java, and the job would go on.

A job over a DataFrame of the caller's is a *guest*: it stays in the job group of his thread, so
that he can cancel it as any other, and it may be his DataFrame that is at fault (trouble.py).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from threading import Thread
from typing import Any, Final, cast

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.util import inheritable_thread_target

from halocline.errors import UnavailableError
from halocline.spark.trouble import reason_of, text_of, typed

LOOK_S: Final = 0.2
Progress = Callable[[int, int], None]
"""Tasks that are done, and all there are."""
_numbers = count(1)


def collect(
    frame: DataFrame,
    what: str,
    *,
    go_on: Callable[[], None],
    progress: Progress | None = None,
    guest: bool = False,
) -> list[Any]:
    """The rows of a DataFrame; UnavailableError when Spark fails, or whatever `go_on` raises.

    A guest whose DataFrame cannot be computed gets a UsageError.
    """
    job = _watch(_Job(frame, what, DataFrame.collect, guest=guest), go_on, progress)
    if job.error is not None and guest:
        raise typed(what, job.error) from job.error
    if job.error is not None:
        reason = reason_of(text_of(job.error)) or type(job.error).__name__
        raise UnavailableError(f"{what}: the Spark job failed: {reason}") from job.error
    return cast("list[Any]", job.answer)


def collect_arrow(frame: DataFrame, what: str, *, go_on: Callable[[], None]) -> pa.Table:
    """The rows of a guest as a table; when Spark fails, its own error."""
    job = _watch(_Job(frame, what, DataFrame.toArrow, guest=True), go_on)
    if job.error is not None:
        raise job.error
    return job.answer


def _watch(job: _Job, go_on: Callable[[], None], progress: Progress | None = None) -> _Job:
    context = job.frame.sparkSession.sparkContext
    job.start()
    try:
        while job.is_alive():
            job.join(LOOK_S)
            go_on()
            if progress is not None:
                progress(*_tasks(context, job.name))
    except BaseException:
        # Again and again: what Spark has not begun yet cannot be cancelled yet.
        cancel = context.cancelJobsWithTag if job.guest else context.cancelJobGroup
        while job.is_alive():
            cancel(job.name)
            job.join(LOOK_S)
        raise
    return job


class _Job(Thread):
    """Its name is its job group, or its tag."""

    def __init__(
        self, frame: DataFrame, what: str, fetch: Callable[[DataFrame], Any], *, guest: bool
    ) -> None:
        super().__init__(name=f"halocline-{next(_numbers)}", daemon=True)
        self.frame, self.guest = frame, guest
        self._what, self._fetch = what, fetch
        like_here = inheritable_thread_target(frame.sparkSession)
        self._work = like_here(self._as_guest) if guest else self._in_group
        self.answer: Any = None
        self.error: BaseException | None = None

    def _in_group(self) -> Any:
        # A job group belongs to the thread, in Java as in Python.
        self.frame.sparkSession.sparkContext.setJobGroup(self.name, self._what)
        return self._fetch(self.frame)

    def _as_guest(self) -> Any:
        self.frame.sparkSession.sparkContext.addJobTag(self.name)
        return self._fetch(self.frame)

    def run(self) -> None:
        try:
            self.answer = self._work()
        except BaseException as error:  # noqa: BLE001 the caller's thread raises it
            self.error = error


def _tasks(context: Any, group: str) -> tuple[int, int]:
    tracker = context.statusTracker()
    done = total = 0
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info is not None else ():
            known = tracker.getStageInfo(stage)
            if known is not None:
                done += known.numCompletedTasks
                total += known.numTasks
    return done, total

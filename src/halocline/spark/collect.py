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
from typing import Any, Final

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
    context = frame.sparkSession.sparkContext
    group = f"halocline-{next(_numbers)}"
    job = _Job(frame, group, what, guest=guest)
    job.start()
    try:
        while job.is_alive():
            job.join(LOOK_S)
            go_on()
            if progress is not None:
                progress(*_tasks(context, group))
    except BaseException:
        # Again and again: what Spark has not begun yet cannot be cancelled yet.
        cancel = context.cancelJobsWithTag if guest else context.cancelJobGroup
        while job.is_alive():
            cancel(group)
            job.join(LOOK_S)
        raise
    if job.error is not None and guest:
        raise typed(what, job.error) from job.error
    if job.error is not None:
        reason = reason_of(text_of(job.error)) or type(job.error).__name__
        raise UnavailableError(f"{what}: the Spark job failed: {reason}") from job.error
    return job.rows


class _Job(Thread):
    def __init__(self, frame: DataFrame, group: str, what: str, *, guest: bool) -> None:
        super().__init__(name=group, daemon=True)
        self._frame, self._group, self._what = frame, group, what
        like_here = inheritable_thread_target(frame.sparkSession)
        self._collect = like_here(self._as_guest) if guest else self._in_group
        self.rows: list[Any] = []
        self.error: BaseException | None = None

    def _in_group(self) -> list[Any]:
        # A job group belongs to the thread, in Java as in Python.
        self._frame.sparkSession.sparkContext.setJobGroup(self._group, self._what)
        return self._frame.collect()

    def _as_guest(self) -> list[Any]:
        self._frame.sparkSession.sparkContext.addJobTag(self._group)
        return self._frame.collect()

    def run(self) -> None:
        try:
            self.rows = self._collect()
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

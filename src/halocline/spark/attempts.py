"""Attempts: which task this is, and which attempt of it, so that no other means the same files.

Names of files are made of both (objects/jobwriter.py). The driver sees the lines of one attempt of
each task, the one that won. The files of the others belong to the job, nobody refers to them, and
GC removes them.
"""

from __future__ import annotations

from typing import Final

RETRIES: Final = 4


def task_here(attempts: int) -> tuple[int, int]:
    """Inside a task: the number of its partition, and that of this attempt."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "runs inside a task"
    attempt = attempt_of(context.attemptNumber(), context.taskAttemptId(), attempts)
    return context.partitionId(), attempt


def attempt_of(number: int, unique: int, attempts: int) -> int:
    """A number for one attempt of a task; another that still runs can hardly have the same.

    `number` counts the attempts of a task in one attempt of its stage, so it tells a task from its
    speculative copy and from one that failed, but begins again with the stage. `unique` goes on in
    the whole application, so it tells a stage's tasks from those of its next attempt, unless
    their ids are a multiple of `attempts / 4` apart.
    """
    return number % RETRIES + RETRIES * (unique % (attempts // RETRIES))

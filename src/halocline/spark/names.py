"""Names: what one attempt of a task calls its files, so that no other attempt can mean them.

    place of the file * attempts + attempt, or the next that is free        --> number --> key

Spark may run a task again while an earlier attempt of it still lives: a speculative copy, a task
that was lost and was not, a task of a stage that failed. All write the same rows, but Parquet files
of equal rows need not be equal, and the commit names the digest of each. So an attempt begins at a
number that others hardly have, and makes its files with `put_new`: a name that is taken is passed
over. What an attempt reports is what it wrote itself, and nobody writes there again.

The driver sees the lines of one attempt of each task, the one that won. The files of the others
belong to the job, nobody refers to them, and GC removes them.
"""

from __future__ import annotations

from typing import Final

from halocline.errors import UnavailableError
from halocline.objects.shelf import object_key
from halocline.spark.probe import store_at

RETRIES: Final = 4


class Names:
    """Puts the files of one attempt into the store."""

    def __init__(
        self, root: str, table_id: int, job_id: int, *, attempt: int, attempts: int
    ) -> None:
        """`attempts` is how many names there are for each file of the job."""
        self._store = store_at(root)
        self._table_id, self._job_id = table_id, job_id
        self._attempt, self._attempts = attempt, attempts

    def put(self, place: int, data: bytes) -> tuple[int, str]:
        """Store a file of the job; its number and its key."""
        for step in range(self._attempts):
            number = place * self._attempts + (self._attempt + step) % self._attempts
            key = object_key(self._table_id, self._job_id, number)
            try:
                self._store.put_new(key, data)
            except FileExistsError:
                continue
            return number, key
        raise UnavailableError(f"all {self._attempts} names for one file are taken, as {key} is")


def attempt_here(attempts: int) -> int:
    """Inside a task: the number of this attempt."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "runs inside a task"
    return attempt_of(context.attemptNumber(), context.taskAttemptId(), attempts)


def attempt_of(number: int, unique: int, attempts: int) -> int:
    """A number for one attempt of a task; another that still runs can hardly have the same.

    `number` counts the attempts of a task in one attempt of its stage, so it tells a task from its
    speculative copy and from one that failed, but begins again with the stage. `unique` goes on in
    the whole application, so it tells a stage's tasks from those of its next attempt, unless
    their ids are a multiple of `attempts / 4` apart.
    """
    return number % RETRIES + RETRIES * (unique % (attempts // RETRIES))

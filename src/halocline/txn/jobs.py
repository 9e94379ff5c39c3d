"""Jobs: how a writer of files announces itself, and how what it wrote becomes part of the table.

    start_job --JOB record, durable--> files <job>-<n>.parquet --> commit_reshapes --> visible
                                       '-- crash, conflict: nobody refers to them, GC removes them

The record exists before the first file does, so every file in the store belongs to a job that the
log knows: one that is live, one that has committed, or a dead one whose files may go. A job that
fails deletes nothing itself.

`commit_reshapes` is the commit of background work. It takes a timestamp like any commit, but
changes no row, so it can never conflict with a user's transaction; only with other background work
on the same objects, which `still` finds out under the lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from halocline.errors import HaloclineError, UnavailableError
from halocline.rows.reshape import Reshape
from halocline.rows.system import JobNode
from halocline.txn.record import begin_record

if TYPE_CHECKING:
    from halocline.txn.commit import Committer
    from halocline.txn.commits import Commits
    from halocline.txn.workspace import TableChanges


def jobs_of(workspaces: Iterable[TableChanges]) -> list[JobNode]:
    """The jobs that are over when their transaction is."""
    parts = [changes.objects for changes in workspaces]
    return [job for one in parts if one is not None for job in one.started]


def give_up(committer: Commits, jobs: Sequence[JobNode]) -> None:
    """End the jobs of a transaction that is over, and those whose transactions were forgotten.

    Whatever goes wrong here is no concern of the caller: GC tries again, and they end with the
    epoch at the latest.
    """
    forgotten = committer.forgotten
    waiting = [*jobs, *(forgotten.pop() for _ in range(len(forgotten)))]
    while waiting:
        try:
            committer.end_job(waiting[-1])
        except HaloclineError:
            forgotten.extend(waiting)
            return
        waiting.pop()


def commit_reshapes(
    committer: Committer, reshapes: Sequence[Reshape], *, still: Callable[[], bool]
) -> int:
    """Commit background work; 0 when `still` says, under the lock, that it came too late.

    A job that is not live any more comes too late as well.
    """
    engine, log = committer.engine, committer.log
    prepared = begin_record(next(committer.ids), log.epoch, reshapes)
    with committer.lock:
        committer.check_running()
        jobs = [one.job_id for one in reshapes if one.job_id]
        known = all(one.table_id in engine.tables for one in reshapes)
        if not known or any(job not in engine.jobs for job in jobs) or not still():
            return 0
        order, commit_ts = committer.log_prepared(prepared)
    log.wait(order)
    if log.failed is not None:
        raise UnavailableError("the database stopped after an error: open it again")
    return commit_ts

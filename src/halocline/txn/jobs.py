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
from typing import TYPE_CHECKING, Protocol

from halocline.errors import HaloclineError, UnavailableError, UsageError
from halocline.log import JOB
from halocline.rows.reshape import Reshape
from halocline.rows.state import TableState
from halocline.rows.system import JobNode, encode_system
from halocline.txn.record import prepare

if TYPE_CHECKING:
    from halocline.catalog import CatalogTxn
    from halocline.txn.commit import Committer
    from halocline.txn.workspace import TableChanges


class Distant(Protocol):
    """An owner in another process, as far as jobs and the catalog need it."""

    def start_job(
        self, state: TableState | None, *, rows: int, lease_us: int, job_id: int
    ) -> JobNode: ...
    def end_job(self, job: JobNode) -> None: ...
    def begin_ddl(self, snapshot: int) -> CatalogTxn: ...


def start_job(
    committer: Committer,
    state: TableState | None,
    *,
    rows: int = 0,
    lease_us: int = 0,
    job_id: int = 0,
) -> JobNode:
    """Log a job and the RowIDs it may use; durable when this returns.

    The table may be one that an open transaction is only about to create. None: the job is about
    the whole database, as a checkpoint's is; its table id is 0. `job_id` is that of a live job
    which goes on and needs further RowIDs.
    """
    if committer.distant is not None:
        return committer.distant.start_job(state, rows=rows, lease_us=lease_us, job_id=job_id)
    engine = committer.engine
    with committer.lock:
        committer.check_running()
        first = state.next_rowid if state is not None and rows else 0
        committer.promise_rowids(first + rows)
        job = JobNode(
            job_id=job_id or engine.last_job_id + 1,
            table_id=0 if state is None else state.table_id,
            first_rowid=first,
            rows=rows,
            lease_us=lease_us,
        )
        order = committer.append_system(JOB, encode_system(job))
        engine.start_job(job)
        if state is not None:
            state.skip_to(first + rows)
    committer.log.sync(order)
    return job


def end_job(committer: Committer, job: JobNode) -> None:
    """Give a job up: whatever it wrote may be removed."""
    if committer.distant is not None:
        committer.distant.end_job(job)
        return
    with committer.lock:
        if job.job_id not in committer.engine.jobs or committer.stopped:
            return
        ended = JobNode(job_id=job.job_id, table_id=job.table_id, ended=True)
        order = committer.append_system(JOB, encode_system(ended), last=True)
        committer.engine.start_job(ended)
    committer.log.wait(order)


def jobs_of(workspaces: Iterable[TableChanges]) -> list[JobNode]:
    """The jobs that are over when their transaction is."""
    parts = [changes.objects for changes in workspaces]
    return [job for one in parts if one is not None for job in one.started]


def give_up(committer: Committer, jobs: Sequence[JobNode]) -> None:
    """End the jobs of a transaction that is over, and those whose transactions were forgotten.

    Whatever goes wrong here is no concern of the caller: GC tries again, and they end with the
    epoch at the latest.
    """
    forgotten = committer.forgotten
    waiting = [*jobs, *(forgotten.pop() for _ in range(len(forgotten)))]
    while waiting:
        try:
            end_job(committer, waiting[-1])
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
    if committer.distant is not None:
        raise UsageError("background work is committed by the process that owns the database")
    engine, log = committer.engine, committer.log
    prepared = prepare(next(committer.ids), log.epoch, None, (), {}, 0, reshapes)
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

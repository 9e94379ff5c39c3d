"""Sweep: files in the object store that nothing refers to and no job will commit.

    list the store  ->  then, under the commit lock: live jobs, objects of all tables, checkpoints
                    ->  a listed file that none of them knows may go

Why the listing comes first. A job is logged before its first file exists, and the commit that adds
its files to a table ends the job in the same fold. So a file that was there at the listing had a
job then; if that job is not live now, it has committed, and then some table or checkpoint refers to
the file (or did, and GC has just let go of it), or it is dead. Whatever appears after the listing
is left to the next sweep.

A job with a lease ends when the lease does, but only by a record in the log: from then on it cannot
commit, and only then may its files go. A job without one ends with its epoch.

Invariants
- Only files with a name that some job of this log has given are ever deleted; others are reported.
- What a dead job has left half-written is treated like its files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass

from halocline.checkpoint.load import files_of, read_root
from halocline.log.record import JOB, encode_body
from halocline.objects.shelf import job_of
from halocline.rows.engine import EngineState
from halocline.rows.system import JobNode
from halocline.store import Objects
from halocline.store.files import TEMPORARY
from halocline.txn import Committer


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a sweep found: files that may go, files of live jobs, and files that are not ours."""

    dead: list[str]
    live: list[str]
    foreign: list[str]


def list_files(objects: Objects) -> list[str]:
    """Everything in the store, half-written files included."""
    return [*objects.list(), *objects.list(temporary=True)]


def end_lapsed_jobs(committer: Committer, now_us: int) -> int:
    """End the jobs whose lease is over, durably; returns how many."""
    engine = committer.engine
    with committer.lock:
        committer.check_running()
        lapsed = [job for job in engine.jobs.values() if 0 < job.lease_us < now_us]
        order = 0
        for job in lapsed:
            ended = JobNode(job_id=job.job_id, table_id=job.table_id, ended=True)
            order = committer.append_system(JOB, encode_body(ended), last=True)
            engine.start_job(ended)
    if order:
        # Durable before a file goes: a restart must not bring the job back without its files.
        committer.log.sync(order)
    return len(lapsed)


def judge(committer: Committer, listed: Iterable[str]) -> Verdict:
    """Which of the listed files may go. The listing was made before this call."""
    engine = committer.engine
    with committer.lock:
        # Taken together: a commit turns a live job into entries in one fold. Tiers and the set of
        # kept files never change, so they can be looked through after the lock is free.
        jobs = frozenset(engine.jobs)
        last_job = engine.last_job_id
        tiers = [state.shape.tier for state in engine.tables.values()]
        needed = set(engine.kept_files)
    for tier in tiers:
        needed.update(entry.key for entry in tier.everything())
    return _judge(listed, jobs, last_job, needed)


def make_room(engine: EngineState, bound: int) -> int:
    """Delete what nothing can refer to any more, before there is a log to say so; how many files.

    For an opening on a full disk, which has no room for a log file. The caller holds the lock of
    the database, so jobs without a lease are dead; `bound` is the floor, or the oldest pin. What
    goes here is what GC would find first.
    """
    objects = engine.shelf.objects
    needed = {
        entry.key
        for state in engine.tables.values()
        for entry in state.shape.tier.everything()
        if entry.deleted_at > bound
    }
    for node in engine.checkpoints:
        needed.update(files_of(read_root(objects, node), node.key))
    jobs = [job.job_id for job in engine.jobs.values() if job.lease_us]
    verdict = _judge(list_files(objects), jobs, engine.last_job_id, needed)
    for key in verdict.dead:
        with suppress(OSError):
            objects.delete(key)
    return len(verdict.dead)


def _judge(
    listed: Iterable[str], jobs: Collection[int], last_job: int, needed: Collection[str]
) -> Verdict:
    verdict = Verdict([], [], [])
    for key in listed:
        if key in needed:
            continue
        job = _job_of(key.removesuffix(TEMPORARY))
        if job is None or job > last_job:
            verdict.foreign.append(key)
        elif job in jobs:
            verdict.live.append(key)
        else:
            verdict.dead.append(key)
    return verdict


def _job_of(key: str) -> int | None:
    """The job whose file has exactly this key; None when no job can have named it so."""
    try:
        return job_of(key)
    except ValueError:
        return None

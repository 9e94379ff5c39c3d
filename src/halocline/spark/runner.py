"""Compaction on Spark: one more runner of the planner, for all but small groups.

    plan, job (compaction/) --> group --cut by key ranges--> tasks (rewrite.py) --> files, RowIDs
                                                                                        |
           one commit: old objects end, new ones come, tombstones shorter  <------------'

Planning, claims, the rules for tombstones and the commit are those of `db.compact`: no user's
transaction can fail for it, deletes and updates that commit meanwhile survive, and it loses to a
TRUNCATE or to another compaction of the same objects. Groups can be larger here: a hundred
overlapping objects become one sorted run in one go.

Small groups are rewritten by this process, which takes less time than to start a job.

Invariants
- Every row of the inputs was written once or dropped once, before anything is committed.
- A job that is killed leaves files that nobody refers to, and GC removes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil
from typing import Any, Final

import numpy as np
from pyspark.sql import SparkSession

from halocline.compaction import CompactPolicy, CompactReport, Group, LocalRunner, Plan, policy_of
from halocline.compaction.gather import object_rows_of
from halocline.compaction.rewrite import GroupWork, RewriteOutcome, shorten
from halocline.compaction.runs import MergeRun, runs_of, split
from halocline.errors import UsageError
from halocline.objects import SharedJob
from halocline.objects.shelf import parse_key
from halocline.options import GIB, MIB, Options
from halocline.rows.state import TableState
from halocline.schema.batches import Int64Array
from halocline.spark.collect import Progress, collect
from halocline.spark.owner import check_here
from halocline.spark.rewrite import (
    ATTEMPTS,
    FIRST_OF_DRIVER,
    ORDINALS,
    TASKS_MAX,
    Rewriting,
    run,
)
from halocline.spark.sessions import check_workers, prepare
from halocline.spark.sessions import session as start_session
from halocline.spark.worker import LINE_SQL, check_undamaged, file_in

LOCAL_BYTES_MAX: Final = 64 * MIB
"""Groups up to this are rewritten in less time than a Spark job takes to start."""
GROUP_BYTES_MAX: Final = 64 * GIB
GROUP_OBJECTS_MAX: Final = 1024
WAVES: Final = 2
"""Tasks per core: one that is slow then holds up a half of the time, not all of it."""
TASK_OBJECTS_MAX: Final = ORDINALS // 16
"""Objects planned for a task: it may find more rows in its range than a sample of keys said."""


def compact(
    session: SparkSession | None,
    db: Any,
    table: str | None = None,
    plan: Plan | CompactPolicy | None = None,
    progress: Progress | None = None,
) -> CompactReport:
    """Rewrite what is out of shape, of one table or of all; small groups here, the rest on Spark.

    `plan`: a policy instead of the usual one, or a plan of which exactly the groups are carried
    out. `progress` is told how many tasks of a job are done, of how many. Without a session one is
    started when it is needed.
    """
    owner = check_here(db)
    if session is not None:
        prepare(session)
    if plan is not None and not isinstance(plan, (Plan, CompactPolicy)):
        raise UsageError(f"plan= takes a Plan or a CompactPolicy, not {type(plan).__name__}")
    if isinstance(plan, Plan) and table is None:
        raise UsageError("a plan is about one table: name it")
    policy = plan if isinstance(plan, CompactPolicy) else None
    runner = SparkRunner(owner.core.options, session, policy=policy, progress=progress)
    given = plan if isinstance(plan, Plan) else None
    report: CompactReport = owner.compact(table, runner=runner, plan=given)
    return report


def settle(
    session: SparkSession | None,
    db: Any,
    table: str | None = None,
    progress: Progress | None = None,
) -> int:
    """Bring one table, or all, into a state in which every row of its files counts.

    What `db.settle` does, with objects of any size: flushes, rewrites what has dead rows, and
    returns the timestamp at which `table.files(at=ts, exact=True)` names the files.
    """
    owner = check_here(db)
    if session is not None:
        prepare(session)
    runner = SparkRunner(owner.core.options, session, progress=progress)
    return owner.settle(table, runner=runner)


class SparkRunner:
    """Carries out groups on executors."""

    name = "spark"

    def __init__(
        self,
        options: Options,
        session: SparkSession | None = None,
        *,
        policy: CompactPolicy | None = None,
        progress: Progress | None = None,
        go_on: Callable[[], None] | None = None,
    ) -> None:
        self._options = options
        self._session = session
        self._policy = policy
        self._progress = progress
        self._local = LocalRunner(options, go_on)
        self._local_bytes = min(options.compact_local_bytes, LOCAL_BYTES_MAX)

    def policy(self, state: TableState) -> CompactPolicy:
        if self._policy is not None:
            # What is written cannot be larger: it would be too small for ever.
            most = object_rows_of(state, self._options)
            rows_max = min(self._policy.object_rows_max, most)
            return replace(self._policy, object_rows_max=rows_max)
        return replace(
            policy_of(state, self._options),
            group_bytes_max=GROUP_BYTES_MAX,
            group_objects_max=GROUP_OBJECTS_MAX,
        )

    def why_not(self, group: Group) -> str:
        return ""

    def go_on(self) -> None:
        self._local.go_on()

    def rewrite(self, work: GroupWork) -> RewriteOutcome:
        group = work.group
        if group.size_bytes <= self._local_bytes or not group.inputs:
            return self._local.rewrite(work)
        if not work.state.shelf.root:
            raise UsageError("the objects of this database are in memory: Spark cannot read them")
        work.state.shelf.check_root()  # tasks find their files by path
        if self._session is None:
            self._session = start_session()
        check_workers(self._session)
        return _OnSpark(self._session, work, self._progress).run()


class _OnSpark:
    """One group on Spark."""

    def __init__(self, session: SparkSession, work: GroupWork, progress: Progress | None) -> None:
        self._session, self._work, self._progress = session, work, progress
        self._rows_max = object_rows_of(work.state, work.options)
        self._runs = runs_of(work.group, work.tier)

    def run(self) -> RewriteOutcome:
        work, outcome = self._work, RewriteOutcome()
        rewriting = self._told()
        dropped = self._join(self._collect(rewriting), outcome)
        outcome.tasks = len(rewriting.runs)
        shorten(work, work.writer(FIRST_OF_DRIVER), dropped, outcome)
        return outcome

    def _told(self) -> Rewriting:
        work, state = self._work, self._work.state
        dead = work.ended_in([file for run in self._runs for file in run.files])
        return Rewriting(
            root=state.shelf.root,
            schema=state.schema.to_wire(),
            job=SharedJob(
                options=work.options,
                table_id=state.table_id,
                job_id=work.job_id,
                ordinals=ORDINALS,
                attempts=ATTEMPTS,
            ),
            dead=np.ascontiguousarray(dead).tobytes(),
            runs=tuple(map(tuple, self._tasks())),
            rows_max=self._rows_max,
        )

    def _tasks(self) -> list[list[MergeRun]]:
        """Runs, cut by key ranges where that makes work for idle cores, dealt out to tasks."""
        wanted = WAVES * self._session.sparkContext.defaultParallelism
        parts = [part for run in self._runs for part in self._parts(run, wanted)]
        if self._work.group.merge:
            return [[part] for part in parts]
        objects = sum(part.objects(self._rows_max) for part in parts)
        count = max(ceil(objects / TASK_OBJECTS_MAX), min(len(parts), wanted))
        ordered = sorted(parts, key=lambda part: part.size_bytes, reverse=True)
        count = min(count, len(parts), TASKS_MAX)
        return [ordered[place::count] for place in range(count)]

    def _parts(self, run: MergeRun, wanted: int) -> list[MergeRun]:
        """A run as it is, or in parts that a task can write; a merge in parts for all cores."""
        objects = run.objects(self._rows_max)
        count = ceil(objects / TASK_OBJECTS_MAX)
        if self._work.group.merge:
            count = max(count, min(objects, wanted))
        if count < 2:
            return [run]
        state = self._work.state
        return split(run, state.shelf.reader, state.schema, min(count, TASKS_MAX))

    def _collect(self, rewriting: Rewriting) -> list[Any]:
        session, name = self._session, self._work.state.entry.name
        told = session.sparkContext.broadcast(rewriting)
        count = len(rewriting.runs)
        try:
            numbers = session.range(0, count, 1, count)
            return collect(
                numbers.mapInArrow(run(told), LINE_SQL),
                f"compaction of table {name!r}",
                go_on=self._work.go_on,
                progress=self._progress,
            )
        finally:
            told.unpersist()

    def _join(self, lines: Sequence[Any], outcome: RewriteOutcome) -> Int64Array:
        """Note what the tasks have written; the RowIDs that they have dropped, ascending."""
        check_undamaged(lines)
        files = [file_in(line) for line in lines if line.kind == "data"]
        files.sort(key=lambda file: parse_key(file.key))
        outcome.add_rows(self._runs, files, self._work.group.level)
        found = [np.frombuffer(line.content, np.int64) for line in lines if line.kind == "dropped"]
        dropped = np.sort(np.concatenate(found))
        kept = sum(entry.stats.rows for entry in outcome.created)
        assert kept + len(dropped) == outcome.rows_in, "a row was lost on the way"
        return dropped

"""Compaction, doing half: plan, rewrite, commit, until nothing is owed.

    gather --> plan --> for each group: job --> a runner's files --> commit --> plan again
                          |                                 '-- lost: others ended an object of it
                          '-- too large for the runner, or waits for a tombstone object: left

A compaction is a transaction that changes no row: it ends old objects and adds new ones in one
commit. It never blocks users and never makes one of their commits fail; it can only lose itself,
to a TRUNCATE, a DROP or another compaction of the same objects, and then leaves its files to GC.

`claim` keeps jobs of this process apart: only one at a time may take an object. Two that did would
find out at their commit, but one would have worked for nothing. A plan is made, and what it takes
is claimed, in one turn; work that goes on elsewhere (Spark) then lets others have theirs.

Invariants
- A job drops rows by a snapshot that was visible before it began.
- What is claimed is released, whatever happens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from threading import Lock, RLock

from halocline.compaction.gather import Gatherer, is_current
from halocline.compaction.plan import CompactPolicy, Group, Plan
from halocline.compaction.report import CompactReport, GroupReport, Left, TableCompaction
from halocline.compaction.rewrite import GroupWork, RewriteOutcome
from halocline.compaction.runner import LocalRunner, Runner
from halocline.compaction.shape import ObjectShape, measure
from halocline.errors import HaloclineError, UnavailableError
from halocline.ids import NEVER, ObjectId
from halocline.rows.reshape import Reshape
from halocline.rows.state import TableState
from halocline.txn.commit import Committer
from halocline.txn.core import Core
from halocline.txn.jobs import commit_reshapes, give_up

ROUNDS_MAX = 64
"""Plans that one call carries out: writers may go on making work for ever."""


class Compactor:
    """Plans and commits for every runner of one database. Safe to share between threads."""

    def __init__(self, core: Core, gatherer: Gatherer) -> None:
        self._core = core
        self._committer: Committer = core.own
        self._gatherer = gatherer
        self._local = LocalRunner(core.options)
        self._lock = Lock()
        self._turn = RLock()
        """One who compacts here at a time; `claim` is for jobs beside it."""
        self._busy: set[ObjectId] = set()
        self._stopping = False

    def stop(self) -> None:
        """Break off what runs, in this thread or in others: the database is being closed."""
        self._stopping = True

    def run(
        self,
        states: Sequence[TableState],
        runner: Runner | None = None,
        plan: Plan | None = None,
        *,
        settle: bool = False,
    ) -> CompactReport:
        """Bring tables into shape, as far as the runner can; this process, unless one is given.

        Waits for a group that the background has begun, because the caller wants the result. With
        `plan` exactly its groups are carried out, once; with `settle` every object that has a dead
        row, or other columns than the table, is rewritten, too.
        """
        self._committer.check_reachable()  # also when there is nothing to do
        done: list[TableCompaction] = []
        trouble: HaloclineError | None = None
        chosen = runner or self._local
        # Work that is done elsewhere must not keep small groups waiting here.
        with self._turn if chosen.name == "local" else nullcontext():
            for state in states:
                try:
                    done.append(self._table(state, chosen, plan, settle=settle))
                except HaloclineError as error:  # the other tables are not to suffer for it
                    trouble = trouble or error
        if trouble is not None:
            raise trouble
        return CompactReport(tables=tuple(done))

    def step(self, state: TableState) -> bool:
        """One group of one table; False when nothing that can be done here is owed."""
        if not self._turn.acquire(blocking=False):
            return False  # somebody is at it
        try:
            with self._core.pinned() as ts:
                state = state.newest  # as new as every object that is visible
                plan = self._plan(state, ts, self._local.policy(state))
                small = [group for group in plan.groups if not self._local.why_not(group)]
                return any(self._claimed(state, group, ts) is not None for group in small)
        finally:
            self._turn.release()

    @contextmanager
    def claim(self, ids: Sequence[ObjectId]) -> Iterator[bool]:
        """Keep other jobs of this process away from some objects; False when one is taken."""
        with self._lock:
            free = self._busy.isdisjoint(ids)
            if free:
                self._busy.update(ids)
        try:
            yield free
        finally:
            if free:
                with self._lock:
                    self._busy.difference_update(ids)

    def _plan(self, state: TableState, ts: int, policy: CompactPolicy) -> Plan:
        if state.dropped_at != NEVER or not state.shape.tier:
            return Plan(groups=(), deferred=())
        return self._gatherer.plan(state, ts, policy, frozenset(self._busy))

    def _table(
        self, state: TableState, runner: Runner, given: Plan | None, *, settle: bool
    ) -> TableCompaction:
        before, done, lost = self._measure(state), list[GroupReport](), 0
        policy = runner.policy(state)
        if settle:
            policy = replace(policy, dead_percent=0, outdated=True)
        for _ in range(ROUNDS_MAX if given is None else 1):
            with ExitStack() as held:
                with self._turn:
                    ts = held.enter_context(self._core.pinned())
                    state = state.newest  # as new as every object that is visible
                    plan = given or self._plan(state, ts, policy)
                    mine = [group for group in plan.groups if not runner.why_not(group)]
                    free = [held.enter_context(self.claim(taken(group))) for group in mine]
                results = [
                    self._group(state, group, ts, runner) if is_free else None
                    for group, is_free in zip(mine, free, strict=True)
                ]
            done += [result for result in results if result is not None]
            lost += results.count(None)
            if not mine:
                break
        left = [(group, runner.why_not(group)) for group in plan.groups]
        return TableCompaction(
            name=state.entry.name,
            before=before,
            after=self._measure(state),
            done=tuple(done),
            deferred=tuple(Left.of(group, _WAITS) for group in plan.deferred),
            too_large=tuple(Left.of(group, why) for group, why in left if why),
            lost=lost,
        )

    def _measure(self, state: TableState) -> ObjectShape:
        with self._core.pinned() as ts:
            return measure(self._gatherer.stats(state, state.shape.tier, ts))

    def _claimed(self, state: TableState, group: Group, ts: int) -> GroupReport | None:
        with self.claim(taken(group)) as free:
            return self._group(state, group, ts, self._local) if free else None

    def _group(
        self, state: TableState, group: Group, ts: int, runner: Runner
    ) -> GroupReport | None:
        """Rewrite and commit one group that has been claimed; None when others were faster."""
        tier = state.shape.tier
        if state.dropped_at != NEVER or not is_current(tier, taken(group), ts):
            return None
        committer = self._committer

        def go_on() -> None:
            self._check_running()
            runner.go_on()

        go_on()
        job = committer.start_job(state)
        try:
            work = GroupWork(
                state=state,
                tier=tier,
                ts=ts,
                job_id=job.job_id,
                group=group,
                options=self._core.options,
                go_on=go_on,
            )
            outcome = runner.rewrite(work)
            commit_ts = self._commit(state, outcome, job.job_id, taken(group))
        except BaseException as error:
            give_up(committer, [job])
            if isinstance(error, OSError):
                raise UnavailableError(f"compaction cannot write: {error}") from error
            raise
        if not commit_ts:
            give_up(committer, [job])
            return None
        return _done(group, outcome, commit_ts)

    def _check_running(self) -> None:
        if self._stopping:
            raise UnavailableError("the database is being closed")

    def _commit(
        self, state: TableState, outcome: RewriteOutcome, job_id: int, taken: tuple[ObjectId, ...]
    ) -> int:
        created = [*outcome.created, *outcome.beside]
        reshape = Reshape(state.table_id, created=created, ended=outcome.ended, job_id=job_id)

        def still() -> bool:
            return state.dropped_at == NEVER and is_current(state.shape.tier, taken)

        return commit_reshapes(self._committer, [reshape], still=still)


_WAITS = "needs a tombstone object that another job has taken"


def taken(group: Group) -> tuple[ObjectId, ...]:
    """All objects that a group reads and may end."""
    return group.inputs + group.tombstones


def _done(group: Group, outcome: RewriteOutcome, commit_ts: int) -> GroupReport:
    return GroupReport(
        reason=group.reason,
        job=group.job,
        commit_ts=commit_ts,
        tasks=outcome.tasks,
        objects_in=len(group.inputs) + len(group.tombstones),
        objects_out=len(outcome.created),
        rows_in=outcome.rows_in,
        rows_dropped=outcome.rows_dropped,
        tombstones_dropped=outcome.tombstones_dropped,
        bytes_read=outcome.bytes_read,
        bytes_written=outcome.bytes_written,
    )

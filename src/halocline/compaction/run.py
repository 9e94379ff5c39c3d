"""Compaction, doing half: plan, rewrite, commit, until nothing is owed.

    gather --> plan --> for each group: job --> files --> commit --> plan again
                          |                                 '-- lost: others ended an object of it
                          '-- too large for this process, or waits for a tombstone object: left

A compaction is a transaction that changes no row: it ends old objects and adds new ones in one
commit. It never blocks users and never makes one of their commits fail; it can only lose itself,
to a TRUNCATE or to another compaction of the same objects, and then leaves its files to GC.

`claim` keeps jobs of this process apart: only one at a time may take an object. Two that did would
find out at their commit, but one would have worked for nothing.

Invariants
- A job drops rows by a snapshot that was visible before it began.
- What is claimed is released, whatever happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock, RLock

from halocline.compaction.gather import Gatherer, is_current, policy_of
from halocline.compaction.plan import Group, Plan
from halocline.compaction.report import CompactReport, Done, Left, TableCompaction
from halocline.compaction.rewrite import Outcome, Rewriter
from halocline.compaction.shape import Shape, measure
from halocline.errors import HaloclineError, UnavailableError
from halocline.ids import NEVER, ObjectId
from halocline.rows.reshape import Reshape
from halocline.rows.state import TableState
from halocline.txn.commit import Committer
from halocline.txn.core import Core
from halocline.txn.jobs import commit_reshapes, give_up, start_job

ROUNDS_MAX = 64
"""Plans that one call carries out: writers may go on making work for ever."""


class Compactor:
    """The local runner of one database. Safe to share between threads."""

    def __init__(self, core: Core, gatherer: Gatherer) -> None:
        assert core.committer is not None, "only the owner compacts"
        self._core = core
        self._committer: Committer = core.committer
        self._gatherer = gatherer
        self._lock = Lock()
        self._turn = RLock()
        """One who compacts at a time; `claim` is for jobs beside this runner."""
        self._busy: set[ObjectId] = set()
        self._stopping = False

    def stop(self) -> None:
        """Break off what runs, in this thread or in others: the database is being closed."""
        self._stopping = True

    def run(self, states: Sequence[TableState]) -> CompactReport:
        """Bring tables into shape, as far as that can be done here.

        Waits for a group that the background has begun: whoever asks wants the result.
        """
        done: list[TableCompaction] = []
        trouble: HaloclineError | None = None
        with self._turn:
            for state in states:
                try:
                    done.append(self._table(state))
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
                small, _ = self._fitting(self._plan(state, ts))
                return any(self._group(state, group, ts) is not None for group in small)
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

    def _plan(self, state: TableState, ts: int) -> Plan:
        if state.dropped_at != NEVER or not state.shape.tier:
            return Plan(groups=(), deferred=())
        policy = policy_of(state, self._core.options)
        return self._gatherer.plan(state, ts, policy, frozenset(self._busy))

    def _fitting(self, plan: Plan) -> tuple[list[Group], list[Group]]:
        """Groups that may be rewritten here, and those that are too large."""
        limit = self._core.options.compact_local_bytes
        small = [group for group in plan.groups if group.size_bytes <= limit]
        return small, [group for group in plan.groups if group.size_bytes > limit]

    def _table(self, state: TableState) -> TableCompaction:
        before, done, lost = self._measure(state), list[Done](), 0
        for _ in range(ROUNDS_MAX):
            with self._core.pinned() as ts:
                plan = self._plan(state, ts)
                small, large = self._fitting(plan)
                results = [self._group(state, group, ts) for group in small]
            done += [result for result in results if result is not None]
            lost += results.count(None)
            if not small:
                break
        return TableCompaction(
            name=state.entry.name,
            before=before,
            after=self._measure(state),
            done=tuple(done),
            deferred=tuple(Left.of(group, _WAITS) for group in plan.deferred),
            too_large=tuple(Left.of(group, self._above_limit()) for group in large),
            lost=lost,
        )

    def _above_limit(self) -> str:
        limit = self._core.options.compact_local_bytes
        return f"larger than compact_local_bytes, {limit}"

    def _measure(self, state: TableState) -> Shape:
        with self._core.pinned() as ts:
            return measure(self._gatherer.stats(state, state.shape.tier, ts))

    def _group(self, state: TableState, group: Group, ts: int) -> Done | None:
        """Rewrite and commit one group; None when others were faster."""
        taken = group.inputs + group.tombstones
        with self.claim(taken) as free:
            tier = state.shape.tier
            if not free or not is_current(tier, taken):
                return None
            committer = self._committer
            job = start_job(committer, state)
            try:
                rewriter = Rewriter(state, tier, ts, job.job_id, self._core.options)
                outcome = rewriter.run(group, go_on=self._check_running)
                commit_ts = self._commit(state, outcome, job.job_id, taken)
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
        self, state: TableState, outcome: Outcome, job_id: int, taken: tuple[ObjectId, ...]
    ) -> int:
        reshape = Reshape(
            state.table_id, created=outcome.created, ended=outcome.ended, job_id=job_id
        )
        still: Callable[[], bool] = lambda: is_current(state.shape.tier, taken)  # noqa: E731
        return commit_reshapes(self._committer, [reshape], still=still)


_WAITS = "needs a tombstone object that another job has taken"


def _done(group: Group, outcome: Outcome, commit_ts: int) -> Done:
    return Done(
        reason=group.reason,
        job=group.job,
        commit_ts=commit_ts,
        objects_in=len(group.inputs) + len(group.tombstones),
        objects_out=len(outcome.created),
        rows_in=outcome.rows_in,
        rows_dropped=outcome.rows_dropped,
        tombstones_dropped=outcome.tombstones_dropped,
        bytes_read=outcome.bytes_read,
        bytes_written=outcome.bytes_written,
    )

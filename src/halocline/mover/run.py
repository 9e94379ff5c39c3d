"""Tuple mover, doing half: rows and tombstones of L0 become objects.

    measure --> plan_move --freeze?--> close the page, tidy, undo GC --> plan again
        --> job logged --> files written --> one commit: ranges leave L0, objects come --> trim

The commit changes no row: it swaps where rows are. A row that is updated or deleted while its
object is being written needs nothing special, as the tombstone names its RowID and is found in
memory whatever the row stands in. A snapshot that is open sees the same versions in the object.

Invariants
- One move of a table at a time: `state.turn` is held from plan to trim.
- Undo GC may not thin a page after we have read it: it would forget the tombstone of a row that the
  object then brings back. It waits for its turn, and `still` makes sure of it.
- The range of a move begins where the last one ended, so all RowIDs below the pivot have moved.
- A crash or an error before the commit leaves L0 as it was; the files belong to a dead job.

Not here: what to move (plan.py), when (background.py), what rows look like (gather.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Final

from halocline.catalog import ObjectEntry
from halocline.errors import UnavailableError
from halocline.ids import NEVER
from halocline.index import write_beside
from halocline.mover.gather import gather_rows, gather_tombstones
from halocline.mover.measure import measure
from halocline.mover.plan import L0Stats, MovePlan, MovePolicy, due_tables, plan_move
from halocline.mover.pressure import Pressure
from halocline.objects import JobWriter, ObjectFile
from halocline.rows.page import FrozenPage
from halocline.rows.reshape import Reshape, new_entry
from halocline.rows.state import TableState
from halocline.rows.system import JobNode
from halocline.rows.tidy import tidy
from halocline.rows.trim import may_trim, trim
from halocline.rows.undo import collect
from halocline.show import report_html
from halocline.txn import Core
from halocline.txn.jobs import commit_reshapes, give_up

TRIES: Final = 3
IDLE_S: Final = 0.5
BUSY_S: Final = 0.1
"""How often L0 is measured while rows are written, and for a while after."""
BUSY_FOR_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What has left L0 and what was written for it."""

    rows: int = 0
    tombstones: int = 0
    objects: int = 0
    size_bytes: int = 0
    """Of the files."""

    _repr_html_ = report_html

    @classmethod
    def of(cls, files: Sequence[ObjectFile]) -> Moved:
        """What these files hold."""
        found = [file.stats for file in files]
        return cls(
            rows=sum(stats.rows for stats in found if stats.kind == "data"),
            tombstones=sum(stats.rows for stats in found if stats.kind == "tombstone"),
            objects=len(found),
            size_bytes=sum(stats.size_bytes for stats in found),
        )

    def __add__(self, other: Moved) -> Moved:
        names = [field.name for field in fields(self)]
        return Moved(**{name: getattr(self, name) + getattr(other, name) for name in names})


class Mover:
    """Moves rows out of L0 of all tables of one database. Safe to call from any thread."""

    def __init__(self, core: Core, budget_bytes: int) -> None:
        self._core = core
        self._committer = core.own
        self._policy = MovePolicy.of(core.options, budget_bytes)
        self._last_ts, self._busy_until = 0, 0.0
        self.pressure = Pressure(core.engine, self._policy, budget_bytes, core.clock)

    def flush(self, states: Iterable[TableState]) -> Moved:
        """Empty L0 of these tables; rows that are committed meanwhile may stay.

        One that was dropped may be among them: older snapshots see it, and it holds back the log.
        """
        total = Moved()
        for state in states:
            try:
                total += self._move(state, flush=True)
            except OSError as error:
                text = f"table {state.entry.name!r} cannot be flushed: {error}"
                raise UnavailableError(text) from error
        return total

    def step(self) -> float:
        """Move what is due in any table, then let go of what can be (the background's part).

        Returns the seconds after which it should be called again.
        """
        give_up(self._committer, [])
        core, pressure = self._core, self.pressure
        states = {s.table_id: s for s in list(core.engine.tables.values()) if _lives(s)}
        pressure.keep(list(states))
        found = [self._measure(state) for state in states.values()]
        for state in states.values():
            self._slow_down(state)
        for table_id, share in due_tables(found, self._policy, over_bytes=pressure.over_bytes):
            self._move(states[table_id], free_bytes=share)
        bound = core.oldest_writer()
        for state in states.values():
            if may_trim(state, bound):
                with state.turn:  # nothing moves between the bound and the trimming
                    trim(state, core.oldest_writer([state]), self._committer.lock)
        return 0.0 if pressure.over_bytes else self._rest_s()

    def _rest_s(self) -> float:
        now, last_ts = self._core.clock.monotonic(), self._core.engine.last_ts
        if last_ts != self._last_ts:
            self._last_ts, self._busy_until = last_ts, now + BUSY_FOR_S
        return BUSY_S if now < self._busy_until else IDLE_S

    def _settled_ts(self) -> int:
        """A timestamp up to which no commit is half folded."""
        with self._committer.lock:
            return self._core.engine.last_ts

    def _measure(self, state: TableState, *, frozen: bool = False) -> L0Stats:
        core = self._core
        now_us = core.clock.wall_us()
        stats = measure(state, core.engine.times, now_us, frozen=frozen)
        if not frozen:
            self.pressure.note(stats)
        return stats

    def _move(self, state: TableState, *, flush: bool = False, free_bytes: int = 0) -> Moved:
        """Move what the plan says, of one table."""

        def plan_for(found: L0Stats) -> MovePlan:
            return plan_move(found, self._policy, flush=flush, free_bytes=free_bytes)

        core, lock = self._core, self._committer.lock
        lived = _lives(state)
        for _ in range(TRIES):
            with state.turn:
                state = state.newest  # it may have been altered since
                plan = plan_for(self._measure(state))
                if plan.idle or _lives(state) != lived or not (lived or flush):
                    return Moved()
                if plan.freeze:
                    with lock:
                        state.close_page()
                tidy(state, lock)
                self._slow_down(state)
                floor = core.oldest_needed()
                collect(state, floor, lock)
                moved = self._carry_out(state, plan_for, floor)
                if moved is not None:
                    trim(state, core.oldest_writer([state]), lock)
                    self._measure(state)
                    self.pressure.ease()
                    return moved
        return Moved()

    def _slow_down(self, state: TableState) -> None:
        """Makes every commit to the table wait while memory is short."""
        if self.pressure.over_bytes:
            state.owes = True

    def _carry_out(
        self, state: TableState, plan_for: Callable[[L0Stats], MovePlan], floor: int
    ) -> Moved | None:
        """Write the objects of a plan and commit them; None when the table is not as it was."""
        until_ts = self._settled_ts()
        # Not the active page, nor one that was closed just now: their rows may still be tuples.
        found = self._measure(state, frozen=True)
        plan = plan_for(found)
        if plan.idle:
            return Moved()
        ranges = _span(state, plan)
        pages = _pages_in(state, ranges)
        pivot = state.moved_rowid
        lived = _lives(state)
        job = self._committer.start_job(state)
        try:
            files, beside = self._write(state, job, plan, pages, (until_ts, floor))
            moved = Moved.of(files)
            assert moved.rows == _rows_in(pages, ranges), "a row would be lost"
            flushed = plan.tombstones is not None or found.tombstones is None
            reshape = Reshape(
                state.table_id,
                created=[*(new_entry(file, moved=True) for file in files), *beside],
                ranges=ranges,
                flushed_ts=until_ts if flushed else 0,
                job_id=job.job_id,
            )

            def still() -> bool:
                there = {id(page) for page in state.shape.pages}
                same = all(id(page) in there for page in pages) and state.moved_rowid == pivot
                return same and _lives(state) == lived

            committed = commit_reshapes(self._committer, [reshape], still=still)
        except BaseException:
            give_up(self._committer, [job])
            raise
        if not committed:
            give_up(self._committer, [job])
            return None
        return moved

    def _write(
        self,
        state: TableState,
        job: JobNode,
        plan: MovePlan,
        pages: Sequence[FrozenPage],
        ended: tuple[int, int],
    ) -> tuple[list[ObjectFile], list[ObjectEntry]]:
        """Writes the files of a plan, and index objects beside them; tombstones `ended` up to a
        commit_ts, but for those that no snapshot from the floor on needs."""
        # Its objects serve older snapshots too: they keep what those show of dropped columns.
        schema, shelf = state.kept_schema(ended[1]), state.shelf
        writer = JobWriter(
            shelf.objects, schema, self._core.options, table_id=state.table_id, job_id=job.job_id
        )
        tables = (gather_rows(pages, one.rows, schema) for one in plan.objects)
        files = [writer.rows(table) for table in tables if table.num_rows]
        if plan.tombstones is not None:
            files += writer.tombstones(gather_tombstones(state, state.flushed_ts, *ended))
        indexes, data = state.newest.entry.indexes, [new_entry(file) for file in files]
        beside = write_beside(shelf.reader, schema, writer, indexes, data)
        return files, list(beside)


def _lives(state: TableState) -> bool:
    return state.dropped_at == NEVER


def _span(state: TableState, plan: MovePlan) -> list[tuple[int, int]]:
    """From where the last move ended to the end of this one: what lies between is gone or is in
    objects, and replay, which knows nothing of undo GC, may still have it in pages."""
    if not plan.objects:
        return []
    return [(max(1, state.moved_rowid), plan.objects[-1].rows.end)]


def _pages_in(state: TableState, ranges: Sequence[tuple[int, int]]) -> list[FrozenPage]:
    found: list[FrozenPage] = []
    for page in state.shape.pages:
        if any(page.start < end for _, end in ranges):
            assert isinstance(page, FrozenPage), "only frozen pages move"
            found.append(page)
    return found


def _rows_in(pages: Sequence[FrozenPage], ranges: Sequence[tuple[int, int]]) -> int:
    held = [page.rowid_array(len(page)) for page in pages]
    return sum(int(((r >= start) & (r < end)).sum()) for r in held for start, end in ranges)

"""Pressure: L0 of all tables shares one budget, and writers wait when it is used up.

    commit --a page is full, a batch arrived--> after_commit --over the budget--> a short wait
                                                    |                                  ^
                                                    '--wakes--> mover --rows moved--> ease

No commit pays per row. One that closes a page, or brings a batch, measures its table when it has
been acknowledged; the mover looks by itself as well, ten times a second while rows arrive, as a
page of wide rows can be large. Only when memory is short do all commits to a table come here.

The wait is outside every lock and has a bound: a moment that grows with the excess, and the time
the mover surely needs for what this commit brought. So writers settle at the speed of the mover,
never fail, and a mover that cannot work (a full disk) makes them slow, not stuck.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition, Lock
from typing import Final

from halocline.clock import Clock
from halocline.ids import NEVER
from halocline.mover.measure import measure
from halocline.mover.plan import L0Stats, MovePolicy, write_delay_s
from halocline.options import MIB
from halocline.rows.engine import EngineState
from halocline.rows.state import TableState

MOVED_BYTES_PER_S: Final = 32 * MIB
"""What the mover manages on a slow machine that is busy."""
WAIT_S_MAX: Final = 5.0
MEASURE_EVERY_S: Final = 0.005


class Pressure:
    """Bytes in L0 by table as last measured, the budget, and those who wait."""

    def __init__(
        self, engine: EngineState, policy: MovePolicy, budget_bytes: int, clock: Clock
    ) -> None:
        self._engine = engine
        self._policy = policy
        self._clock = clock
        self._used: dict[int, int] = {}
        # A lock of its own, as a Condition takes its lock in Python: Ctrl-C could leave it taken.
        self._lock = Lock()
        self._eased = Condition(self._lock)
        self._measured_at = 0.0
        self.budget_bytes = budget_bytes
        self.wake: Callable[[], None] | None = None
        """Wakes the mover; None while there is no mover to wait for."""

    @property
    def used_bytes(self) -> int:
        return sum(list(self._used.values()))

    @property
    def over_bytes(self) -> int:
        """How much must leave L0, 0 when all is well."""
        return max(0, self.used_bytes - self.budget_bytes)

    def note(self, stats: L0Stats) -> None:
        """Take note of the bytes of a table."""
        self._used[stats.table] = stats.size_bytes

    def keep(self, tables: list[int]) -> None:
        """Forget all tables but these."""
        for table_id in [known for known in list(self._used) if known not in tables]:
            self._used.pop(table_id, None)

    def ease(self) -> None:
        """Wake the writers that wait, because something has left L0."""
        with self._lock:
            self._eased.notify_all()

    def stop(self) -> None:
        """Let all writers go, for good."""
        self.wake = None
        self.ease()

    def after_commit(self, state: TableState) -> None:
        """Measure the table of a commit; wake the mover and wait for it where that is due."""
        wake = self.wake
        now = self._clock.monotonic()
        short = self.over_bytes > 0
        if wake is None or (not short and now - self._measured_at < MEASURE_EVERY_S):
            return
        self._measured_at = now
        brought = self._measure(state, wake)
        delay_s = write_delay_s(self.used_bytes, self.budget_bytes, self._policy)
        if delay_s > 0:
            wake()
            state.owes = True  # the next commit comes here too, however small it is
            surely_s = max(0, brought) / MOVED_BYTES_PER_S
            self._wait(min(delay_s + surely_s, WAIT_S_MAX))

    def _measure(self, state: TableState, wake: Callable[[], None]) -> int:
        """By how much the table has grown."""
        if state.dropped_at != NEVER:
            return 0
        engine, policy = self._engine, self._policy
        stats = measure(state, engine.times, self._clock.wall_us())
        before = self._used.get(stats.table, 0)
        self.note(stats)
        ended = 0 if stats.tombstones is None else stats.tombstones.count
        if (
            stats.size_bytes >= policy.bytes_min
            or stats.row_count >= policy.rows_min
            or ended >= policy.tombstones_min
        ):
            wake()
        return stats.size_bytes - before

    def _wait(self, seconds: float) -> None:
        with self._lock:
            self._eased.wait_for(lambda: self.over_bytes == 0 or self.wake is None, seconds)

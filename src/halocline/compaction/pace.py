"""Pace: compaction in the background, a little at a time.

    every half second --> step: too early? nothing new? --> plan --> one group --> rest as long

A database must stay healthy without calls of `compact`, and a busy one must not notice. So a step
rewrites one group at most and then rests for as long as that took; after a plan that found nothing
it rests ten times as long as planning took. Tables whose objects and tombstones are what they were
when nothing was owed are not planned for at all.

It runs in a thread of its own: a merge of a gigabyte takes half a minute, and rows must go on
leaving L0 meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from halocline.clock import Clock
from halocline.compaction.run import Compactor
from halocline.errors import HaloclineError
from halocline.rows.state import TableState
from halocline.rows.tier import Tier

LOOK_S: Final = 5.0
"""The least time between two looks that find nothing."""
REST_S_MAX: Final = 60.0


class Pace:
    """When to compact what."""

    def __init__(
        self, compactor: Compactor, states: Callable[[], Iterable[TableState]], clock: Clock
    ) -> None:
        self._compactor = compactor
        self._states = states
        self._clock = clock
        self._well: dict[int, tuple[Tier, int]] = {}
        """Tables of which nothing was owed: their objects and tombstones then."""
        self._again_at = 0.0

    def step(self) -> bool:
        """Rewrite one group, if it is time; True when something was done."""
        began = self._clock.monotonic()
        if began < self._again_at:
            return False
        done = False
        trouble: HaloclineError | None = None
        for state in self._states():
            seen = (state.shape.tier, len(state.deletes))
            if not seen[0] or self._is_well(state, seen):
                continue
            try:
                done = self._compactor.step(state)
            except HaloclineError as error:  # the other tables are not to suffer for it
                trouble = trouble or error
                continue
            if done:
                break
            self._well[state.table_id] = seen
        now = self._clock.monotonic()
        rest_s = now - began if done else max(LOOK_S, 10 * (now - began))
        self._again_at = now + min(rest_s, REST_S_MAX)
        if trouble is not None:
            raise trouble
        return done

    def _is_well(self, state: TableState, seen: tuple[Tier, int]) -> bool:
        known = self._well.get(state.table_id)
        return known is not None and known[0] is seen[0] and known[1] == seen[1]

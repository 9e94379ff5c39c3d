"""What the planner is told of L0."""

from __future__ import annotations

import tracemalloc
from threading import Lock

import pyarrow as pa

from halocline.mover.measure import measure
from halocline.mover.plan import L0Stats
from halocline.rows.engine import Times
from halocline.rows.nodes import Append, Delete, key_run
from halocline.rows.state import TableState
from halocline.rows.tidy import tidy
from tests.unit.rows.rig import fold, state_of

SECOND = 1_000_000


def _times(stamps: int) -> Times:
    times = Times()
    for ts in range(1, stamps + 1):
        times.extend([ts], [ts * SECOND])
    return times


def _filled(rows: int, page_rows: int = 4) -> TableState:
    state = state_of("int", page_rows)
    for number in range(1, rows + 1):
        fold(state, Append(1, [(number, f"k{number}", 0)], first_rowid=number), number)
    return state


def _look(state: TableState, now_s: int = 100) -> L0Stats:
    return measure(state, _times(50), now_s * SECOND)


def test_pages_ranges_and_ages() -> None:
    state = _filled(10)
    stats = _look(state)
    assert [tuple(page.rows) for page in stats.pages] == [(1, 5), (5, 9)]
    assert [page.row_count for page in stats.pages] == [4, 4]
    assert [page.age_s for page in stats.pages] == [99, 95]
    assert stats.active is not None
    assert (tuple(stats.active.rows), stats.active.age_s) == ((9, 11), 91)
    assert stats.tombstones is None


def test_only_frozen_pages_on_demand() -> None:
    state = _filled(10)
    tidy(state, Lock())
    state.close_page()
    stats = measure(state, _times(50), 0, frozen=True)
    assert [tuple(page.rows) for page in stats.pages] == [(1, 5), (5, 9)]
    assert stats.active is None


def test_a_clock_that_was_set_back_makes_rows_young() -> None:
    stats = _look(_filled(4), now_s=0)
    assert all(page.age_s == 0 for page in stats.pages)


def test_only_tombstones_that_are_not_flushed_count() -> None:
    state = _filled(10)
    fold(state, Delete(1, [1, 2], [1, 2]), 11)
    fold(state, Delete(1, [3], [3]), 12)
    stats = _look(state).tombstones
    assert stats is not None
    assert (stats.count, stats.age_s) == (3, 89)
    state.flushed_ts = 11
    rest = _look(state).tombstones
    assert rest is not None
    assert (rest.count, rest.age_s) == (1, 88)
    assert rest.size_bytes < stats.size_bytes
    state.flushed_ts = 12
    assert _look(state).tombstones is None


def test_sizes_are_near_the_truth() -> None:
    """Tuples, the dict of keys and all: a guess that is good enough to plan by."""
    rows = 5000
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    state = _filled(rows, page_rows=10_000)
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    guess = _look(state).size_bytes
    assert used * 0.66 < guess < used * 1.75, (used, guess)


def test_a_bulk_page_weighs_its_arrow_bytes_and_its_keys() -> None:
    state = state_of("int", 10_000)
    rows = [(number, "x" * 100, number) for number in range(5000)]
    table = state.schema.to_table(rows)
    fold(state, Append(1, table=table, run=key_run(table, state.schema), first_rowid=1), 1)
    (page,) = _look(state).pages
    assert isinstance(table, pa.Table)
    assert table.nbytes <= page.size_bytes <= table.nbytes * 1.3

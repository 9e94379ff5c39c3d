"""Which pages leave L0, when and how: each reason by example, the invariants by property."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halocline.ids import TableId
from halocline.mover.plan import (
    L0Stats,
    MovePlan,
    MovePolicy,
    MoveReason,
    PageStats,
    RowIdRange,
    TombstoneStats,
    due_tables,
    plan_move,
    share_pressure,
    write_delay_s,
)

POLICY = MovePolicy(
    object_rows_max=16,
    object_bytes_max=1000,
    rows_min=16,
    bytes_min=800,
    age_s_max=60,
    tombstones_min=10,
    tombstone_bytes_min=500,
)
T = TableId(1)


def page(start: int, rows: int = 4, size: int = 40, age: float = 1.0, end: int = 0) -> PageStats:
    span = RowIdRange(start, end or start + rows)
    return PageStats(rows=span, row_count=rows, size_bytes=size, age_s=age)


def l0(*pages: PageStats, active: PageStats | None = None, dead: Any = None) -> L0Stats:
    return L0Stats(table=T, pages=pages, active=active, tombstones=dead)


def dead(count: int = 1, size: int = 10, age: float = 1.0) -> TombstoneStats:
    return TombstoneStats(count=count, size_bytes=size, age_s=age)


def ranges(plan: MovePlan) -> list[list[tuple[int, int]]]:
    return [[tuple(span) for span in one.ranges] for one in plan.objects]


def test_nothing_is_due_below_every_limit():
    plan = plan_move(l0(page(1), page(5), active=page(9), dead=dead()), POLICY)
    assert plan == MovePlan(table=T)
    assert plan.idle


def test_l09_l15_reaching_the_row_limit_moves_one_full_object():
    plan = plan_move(l0(page(1), page(5), page(9), page(13)), POLICY)
    assert plan.reason is MoveReason.ROWS
    assert ranges(plan) == [[(1, 17)]]
    assert plan.objects[0].row_count == 16


def test_rows_move_in_full_objects_and_the_rest_stays():
    plan = plan_move(l0(*[page(1 + 4 * at) for at in range(6)]), POLICY)
    assert ranges(plan) == [[(1, 17)]]


def test_one_row_below_the_limit_nothing_moves():
    assert plan_move(l0(page(1), page(5), page(9), page(13, rows=3)), POLICY).idle


def test_bytes_move_wide_rows_before_there_are_many():
    plan = plan_move(l0(page(1, size=500), page(5, size=450), page(9, size=100)), POLICY)
    assert plan.reason is MoveReason.BYTES
    assert ranges(plan) == [[(1, 9)]]


def test_plan_move_stops_when_the_object_is_full():
    plan = plan_move(
        l0(page(1, size=600), page(5, size=600), page(9, size=600)), POLICY, flush=True
    )
    assert ranges(plan) == [[(1, 5)], [(5, 9)], [(9, 13)]]


def test_age_moves_all_frozen_pages_and_leaves_a_young_active_page():
    plan = plan_move(l0(page(1, age=60), page(5), active=page(9)), POLICY)
    assert plan.reason is MoveReason.AGE
    assert not plan.freeze
    assert ranges(plan) == [[(1, 9)]]


def test_an_old_active_page_is_frozen_first():
    plan = plan_move(l0(page(1), active=page(5, age=61)), POLICY)
    assert (plan.reason, plan.freeze, plan.objects) == (MoveReason.AGE, True, ())


def test_flush_freezes_the_active_page_and_then_takes_everything():
    first = plan_move(l0(page(1), active=page(5)), POLICY, flush=True)
    assert first.freeze
    then = plan_move(l0(page(1), page(5)), POLICY, flush=True)
    assert ranges(then) == [[(1, 9)]]
    assert then.reason is MoveReason.FLUSH


def test_flush_of_an_empty_table_does_nothing():
    empty = RowIdRange(9, 9)
    active = PageStats(rows=empty, row_count=0, size_bytes=0, age_s=0)
    assert plan_move(l0(active=active), POLICY, flush=True).idle
    assert plan_move(l0(), POLICY, flush=True, free_bytes=100).idle


def test_k07_the_active_page_counts_so_that_wide_rows_cannot_pile_up_in_it():
    plan = plan_move(l0(active=page(1, rows=2, size=900)), POLICY)
    assert plan.freeze
    assert plan.reason is MoveReason.BYTES


def test_pressure_takes_whole_objects_from_the_front_until_enough_is_free():
    pages = [page(1 + 4 * at, size=250) for at in range(8)]
    plan = plan_move(l0(*pages, active=page(40)), POLICY, free_bytes=1200)
    assert plan.reason is MoveReason.PRESSURE
    assert ranges(plan) == [[(1, 17)], [(17, 33)]]
    assert not plan.freeze


def test_pressure_needs_the_active_page_only_when_frozen_ones_are_not_enough():
    plan = plan_move(l0(page(1), active=page(5)), POLICY, free_bytes=41)
    assert plan.freeze


def test_gaps_between_pages_stay_gaps():
    plan = plan_move(l0(page(1), page(100)), POLICY, flush=True)
    assert ranges(plan) == [[(1, 5), (100, 104)]]


def test_a_page_with_more_rows_than_an_object_is_cut_by_rowid():
    plan = plan_move(l0(page(1, rows=40, size=400)), POLICY, flush=True)
    assert ranges(plan) == [[(1, 17)], [(17, 33)], [(33, 41)]]
    assert sum(one.size_bytes for one in plan.objects) == 400


def test_a_page_that_undo_has_emptied_still_leaves():
    plan = plan_move(l0(page(1, rows=0, size=0, age=99, end=5)), POLICY)
    assert ranges(plan) == [[(1, 5)]]
    assert plan.objects[0].row_count == 0


@pytest.mark.parametrize(
    ("stats", "flush", "reason"),
    [
        (dead(), True, MoveReason.FLUSH),
        (dead(age=60), False, MoveReason.AGE),
        (dead(count=10), False, MoveReason.ROWS),
        (dead(size=500), False, MoveReason.BYTES),
    ],
)
def test_k05_tombstones_flush_by_the_same_reasons(
    stats: TombstoneStats, flush: bool, reason: MoveReason
):
    plan = plan_move(l0(dead=stats), POLICY, flush=flush)
    assert plan.tombstones is reason
    assert plan.reason is None


def test_tombstones_below_every_limit_and_none_at_all_stay():
    assert plan_move(l0(dead=dead(count=9, size=499, age=59)), POLICY).tombstones is None
    assert plan_move(l0(dead=dead(count=0)), POLICY, flush=True).tombstones is None


def test_under_pressure_tombstones_go_only_when_pages_are_not_enough():
    enough = plan_move(l0(page(1, size=100), dead=dead(size=50)), POLICY, free_bytes=100)
    assert enough.tombstones is None
    short = plan_move(l0(page(1, size=100), dead=dead(size=50)), POLICY, free_bytes=101)
    assert short.tombstones is MoveReason.PRESSURE


def test_pressure_is_shared_largest_table_first():
    tables = [
        L0Stats(table=TableId(at), pages=(page(1, size=size),))
        for at, size in ((1, 100), (2, 300), (3, 300))
    ]
    assert share_pressure(tables, 0) == {}
    assert share_pressure(tables, 50) == {2: 50}
    assert share_pressure(tables, 350) == {2: 300, 3: 50}
    assert share_pressure(tables, 9999) == {2: 300, 3: 300, 1: 100}


def test_tables_come_most_urgent_first_and_idle_ones_not_at_all():
    tables = [
        L0Stats(table=TableId(1), pages=(page(1),)),
        L0Stats(table=TableId(2), pages=(page(1, age=70),)),
        L0Stats(table=TableId(3), pages=(page(1),)),
        L0Stats(table=TableId(4), pages=(page(1, size=500),)),
        L0Stats(table=TableId(5), tombstones=dead(count=10)),
    ]
    assert due_tables(tables, POLICY, over_bytes=10) == [(4, 10), (2, 0), (5, 0)]


def test_writers_wait_longer_the_further_l0_is_above_its_budget_but_never_long():
    delays = [write_delay_s(used, 1000, POLICY) for used in range(0, 3000, 50)]
    assert delays == sorted(delays)
    assert write_delay_s(1000, 1000, POLICY) == 0
    assert 0 < write_delay_s(1100, 1000, POLICY) < POLICY.delay_s_max / 10
    assert write_delay_s(10**9, 1000, POLICY) == POLICY.delay_s_max


# -- properties ----------------------------------------------------------------------------------


@st.composite
def tables(draw: st.DrawFn) -> L0Stats:
    pages: list[PageStats] = []
    start = draw(st.integers(1, 50))
    for _ in range(draw(st.integers(0, 12))):
        length = draw(st.integers(1, 40))
        rows = draw(st.one_of(st.just(length), st.integers(0, length)))
        age = draw(st.sampled_from([0.0, 59.9, 60.0, 600.0]))
        size = draw(st.integers(0, 700))
        pages.append(page(start, rows=rows, size=size, age=age, end=start + length))
        start += length + draw(st.sampled_from([0, 0, 3]))
    active = pages.pop() if pages and draw(st.booleans()) else None
    buffer = draw(
        st.one_of(
            st.none(),
            st.builds(dead, st.integers(0, 40), st.integers(0, 600), st.sampled_from([0.0, 60.0])),
        )
    )
    return l0(*pages, active=active, dead=buffer)


ASKED = {"flush": st.booleans(), "free": st.sampled_from([0, 0, 1, 500, 5000])}


def carried_out(table: L0Stats, plan: MovePlan) -> L0Stats:
    """L0 after the plan: the front is gone, or the active page is frozen."""
    left = None if plan.tombstones else table.tombstones
    if plan.freeze:
        assert table.active is not None
        return replace(table, pages=(*table.pages, table.active), active=None, tombstones=left)
    end = plan.objects[-1].ranges[-1].end if plan.objects else 0
    kept = []
    for one in table.pages:
        if one.rows.start >= end:
            kept.append(one)
        elif one.rows.end > end:
            length = one.rows.end - end
            share = one.size_bytes * length // (one.rows.end - one.rows.start)
            span = RowIdRange(end, one.rows.end)
            rows = min(one.row_count, length)
            kept.append(replace(one, rows=span, row_count=rows, size_bytes=share))
    return replace(table, pages=tuple(kept), tombstones=left)


@given(table=tables(), **ASKED)
def test_objects_take_a_prefix_of_the_pages_in_rowid_order_within_limits(
    table: L0Stats, flush: bool, free: int
) -> None:
    plan = plan_move(table, POLICY, flush=flush, free_bytes=free)
    spans = [span for one in plan.objects for span in one.ranges]
    assert all(a.end <= b.start for a, b in pairwise(spans))
    moved = {rowid for span in spans for rowid in range(*span)}
    end = max(moved, default=0) + 1
    assert moved == {rowid for one in table.pages for rowid in range(*one.rows) if rowid < end}
    for one in plan.objects:
        assert one.row_count <= POLICY.object_rows_max
        several = sum(one.ranges[0].start <= p.rows.start < one.ranges[-1].end for p in table.pages)
        assert one.size_bytes <= POLICY.object_bytes_max or several <= 1
        for left, right in pairwise(one.ranges):
            assert left.end < right.start


@given(table=tables(), **ASKED)
def test_every_reason_fires_exactly_when_it_should(table: L0Stats, flush: bool, free: int) -> None:
    plan = plan_move(table, POLICY, flush=flush, free_bytes=free)
    active = [table.active] if table.active is not None and table.active.row_count else []
    pages = [*table.pages, *active]
    fired = {
        MoveReason.FLUSH: flush,
        MoveReason.PRESSURE: free > 0,
        MoveReason.AGE: any(one.age_s >= 60 for one in pages),
        MoveReason.ROWS: sum(one.row_count for one in pages) >= 16,
        MoveReason.BYTES: sum(one.size_bytes for one in pages) >= 800,
    }
    assert (plan.reason is not None) == (bool(pages) and any(fired.values()))
    assert plan.reason is None or fired[plan.reason]
    assert (plan.reason is not None) == (plan.freeze or bool(plan.objects))
    assert not plan.freeze or active


@given(table=tables(), **ASKED)
def test_carrying_out_plans_ends_and_leaves_nothing_that_is_due(
    table: L0Stats, flush: bool, free: int
) -> None:
    before = table.size_bytes
    for _ in range(50):
        left = max(0, free - (before - table.size_bytes))
        plan = plan_move(table, POLICY, flush=flush, free_bytes=left)
        if plan.idle:
            break
        table = carried_out(table, plan)
    else:
        pytest.fail("plans without end")
    assert not flush or not (table.pages or (table.active and table.active.row_count))
    frozen = sum(one.row_count for one in table.pages)
    assert frozen + (table.active.row_count if table.active else 0) < POLICY.rows_min
    assert all(one.age_s < 60 for one in table.pages)
    assert before - table.size_bytes >= min(free, before) or not table.pages

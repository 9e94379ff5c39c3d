"""Each reason of the compaction planner by example: when it fires, and when it must not."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from halocline.compaction.plan import (
    CompactPolicy,
    CompactReason,
    Group,
    Job,
    Plan,
    plan_compaction,
)
from halocline.compaction.shape import measure
from halocline.compaction.stats import InputStats, Reach
from halocline.ids import ObjectId

POLICY = CompactPolicy(
    object_rows_max=100,
    object_bytes_max=1000,
    depth_max=3,
    small_objects_min=3,
    tombstone_objects_max=2,
    group_objects_max=8,
    group_bytes_max=8000,
)


def key(number: int) -> bytes:
    return number.to_bytes(4, "big")


def data(id: int, low: int = 0, high: int = 9, **other: Any) -> InputStats:
    """A full data object of level 2 with keys low..high."""
    values: dict[str, Any] = {"rows": 100, "size_bytes": 1000, "level": 2}
    values |= {"rowid_min": id * 1000, "rowid_max": id * 1000 + 999} | other
    return InputStats(id=ObjectId(id), key_min=key(low), key_max=key(high), **values)


def tombstone(
    id: int, rowids: tuple[int, int], low: int = 0, high: int = 9999, **other: Any
) -> Any:
    values: dict[str, Any] = {"rows": 1, "size_bytes": 10, "kind": "tombstone"} | other
    return InputStats(
        id=ObjectId(id),
        key_min=key(low),
        key_max=key(high),
        rowid_min=rowids[0],
        rowid_max=rowids[1],
        **values,
    )


def plan(*objects: InputStats, **other: Any) -> Plan:
    return plan_compaction(objects, POLICY, **other)


def only(found: Plan) -> Group:
    assert len(found.groups) == 1, found
    assert not found.deferred
    return found.groups[0]


def test_a_table_in_shape_needs_nothing():
    objects = [data(at, at * 10, at * 10 + 9) for at in range(1, 50)]
    assert plan(*objects) == Plan(groups=(), deferred=())
    assert plan() == Plan(groups=(), deferred=())


# -- dead rows -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "dead_rows", "fires"),
    [
        (100, 20, False),
        (100, 21, True),
        (5, 1, False),
        (7, 1, False),
        (7, 2, True),
        (100, 100, True),
    ],
)
def test_k08_more_than_20_percent_dead_triggers_and_exactly_20_does_not(
    rows: int, dead_rows: int, fires: bool
):
    found = plan(data(1, rows=rows, dead_rows=dead_rows))
    assert bool(found.groups) is fires
    if fires:
        group = only(found)
        assert (group.reason, group.inputs, group.merge) == (CompactReason.DEAD, (1,), False)
        assert group.live_rows == rows - dead_rows


def test_l12_l16_dead_objects_are_rewritten_alone_so_that_they_can_run_side_by_side():
    found = plan(data(1, dead_rows=50), data(2, 20, 29), data(3, 30, 39, dead_rows=50))
    assert [group.inputs for group in found.groups] == [(1,), (3,)]


# -- overlap -------------------------------------------------------------------------------------


def test_overlap_up_to_the_limit_is_left_alone():
    assert not plan(*[data(at) for at in range(1, 4)]).groups


def test_overlap_above_the_limit_merges_objects_that_hold_one_key():
    group = only(plan(*[data(at) for at in range(1, 5)], data(9, 50, 59)))
    assert group.reason is CompactReason.OVERLAP
    assert group.merge
    assert group.inputs == (1, 2, 3, 4)


def test_ranges_that_touch_in_one_key_overlap():
    chain = [data(1, 0, 10), data(2, 10, 20), data(3, 10, 30), data(4, 10, 10)]
    assert only(plan(*chain)).reason is CompactReason.OVERLAP
    apart = [data(1, 0, 9), data(2, 10, 20), data(3, 10, 30), data(4, 10, 10)]
    assert not plan(*apart).groups


def test_overlap_prefers_low_levels_and_small_objects():
    objects = [data(at, level=1, rows=60, size_bytes=200) for at in (5, 6, 7)]
    objects += [data(1, level=2), data(2, level=2, size_bytes=900)]
    group = only(plan(*objects))
    assert group.inputs == (5, 6, 7)
    assert group.level == 2
    assert group.job is Job.L1_MERGE


def test_overlap_takes_larger_objects_along_once_they_are_no_larger_than_the_rest():
    objects = [data(at, level=1, rows=60, size_bytes=400) for at in (5, 6, 7)]
    group = only(plan(*objects, data(1, level=2), data(2, level=2, size_bytes=3000)))
    assert group.inputs == (1, 5, 6, 7)


def test_a_deep_pile_becomes_several_groups_within_the_limits():
    found = plan(*[data(at) for at in range(1, 31)])
    assert all(group.reason is CompactReason.OVERLAP for group in found.groups)
    assert len(found.groups) == 4
    assert all(2 <= len(group.inputs) <= POLICY.group_objects_max for group in found.groups)


def test_two_objects_may_always_meet_even_above_the_byte_limit():
    objects = [data(at, size_bytes=7000) for at in range(1, 5)]
    assert len(only(plan(*objects)).inputs) == 2


def test_tables_without_keys_have_no_overlap():
    objects = [
        InputStats(id=ObjectId(at), rows=100, size_bytes=1000, rowid_min=at, rowid_max=at)
        for at in range(1, 9)
    ]
    assert not plan(*objects).groups
    assert measure(objects).depth_max == 0


# -- small objects -------------------------------------------------------------------------------


def small(id: int, low: int, rows: int = 10, **other: Any) -> InputStats:
    return data(id, low, low, rows=rows, size_bytes=rows * 10, level=1, **other)


def test_l10_small_objects_of_one_size_merge_one_level_up():
    group = only(plan(small(1, 10), small(2, 20), small(3, 30)))
    assert group.reason is CompactReason.SMALL
    assert (group.inputs, group.merge, group.level) == ((1, 2, 3), True, 2)
    assert group.job is Job.L1_MERGE


def test_fewer_small_objects_than_the_limit_wait():
    assert not plan(small(1, 10), small(2, 20), data(3, 30, 39)).groups


def test_small_objects_of_different_sizes_wait_for_their_equals():
    assert not plan(small(1, 10, rows=1), small(2, 20, rows=6), small(3, 30, rows=40)).groups


def test_half_an_object_is_not_small():
    halves = [data(at, at * 10, at * 10, rows=50, size_bytes=10) for at in range(1, 9)]
    assert not plan(*halves).groups


def test_small_groups_respect_the_limits_and_leave_no_group_of_one():
    found = plan(*[small(at, at * 10) for at in range(1, 10)])
    assert [len(group.inputs) for group in found.groups] == [8]


# -- tombstones ----------------------------------------------------------------------------------


def test_a_tombstone_object_concerns_objects_whose_keys_and_rowids_both_meet():
    objects = [data(1, 0, 9), data(2, 10, 19), data(3, 20, 29)]
    reach = Reach([*objects, tombstone(9, (1000, 2999), 5, 9)])
    assert [one.id for one in reach.met_by(reach.tombstones[0])] == [1]
    assert reach.counts(objects).tolist() == [1]
    assert reach.counts(objects[1:]).tolist() == [0]


def test_a_tombstone_object_that_concerns_nothing_is_spent():
    group = only(plan(data(1), tombstone(9, (5000, 5001))))
    assert group.reason is CompactReason.SPENT
    assert (group.inputs, group.tombstones, group.spent) == ((), (9,), (9,))
    assert group.job is None


def test_a_tombstone_object_that_reaches_into_l0_is_not_spent():
    x = tombstone(9, (5000, 5001))
    assert not plan(data(1), x, l0=[(5001, 5002)]).groups
    assert plan(data(1), x, l0=[(5002, 5003)]).groups


def test_fold_needs_more_tombstones_than_5_percent_of_the_rows_they_concern():
    assert not plan(data(1), tombstone(9, (1000, 1999), rows=5)).groups
    group = only(plan(data(1), data(2, 50, 59), tombstone(9, (1000, 1999), rows=6)))
    assert group.reason is CompactReason.FOLD
    assert (group.inputs, group.tombstones, group.spent) == ((1,), (9,), (9,))


def test_fold_takes_all_objects_concerned_or_none():
    many = [data(at, at * 10, at * 10 + 9) for at in range(1, 10)]
    assert not plan(*many, tombstone(99, (1000, 9999), rows=500)).groups
    group = only(plan(*many[:8], tombstone(99, (1000, 9999), rows=500)))
    assert len(group.inputs) == 8


def test_a_rewrite_takes_every_tombstone_object_that_concerns_it_and_knows_what_is_left():
    whole, shared = tombstone(8, (1000, 1500)), tombstone(9, (1000, 2999))
    group = only(plan(data(1, dead_rows=50), data(2, 10, 19), whole, shared))
    assert group.reason is CompactReason.DEAD
    assert group.tombstones == (8, 9)
    assert group.spent == (8,)


def test_only_one_job_at_a_time_consumes_a_tombstone_object():
    apart = [data(1, 0, 9, dead_rows=50), data(2, 10, 19, dead_rows=50)]
    shared = tombstone(9, (1000, 2999))
    group = only(plan(*apart, shared))
    assert group.inputs == (1, 2)
    assert not group.merge
    crowd = [data(at, 100, 109, rowid_min=1, rowid_max=9000) for at in (3, 4, 5, 6)]
    found = plan(*apart, *crowd, shared)
    assert [one.reason for one in found.groups] == [CompactReason.OVERLAP]
    assert [one.reason for one in found.deferred] == [CompactReason.DEAD]
    assert found.owed == found.groups + found.deferred


def test_objects_and_tombstones_of_running_jobs_are_left_alone():
    dead = data(1, dead_rows=50)
    assert not plan(dead, busy={ObjectId(1)}).owed
    found = plan(dead, tombstone(9, (1000, 1999)), busy={ObjectId(9)})
    assert not found.groups
    assert [group.inputs for group in found.deferred] == [(1,)]


def test_k06_too_many_tombstone_objects_merge_with_their_neighbours():
    objects = [data(1, rows=100), data(2, 20, 29)]
    few = [tombstone(10 + at, (1000 + at, 1000 + at)) for at in range(2)]
    assert not plan(*objects, *few).groups
    more = [*few, tombstone(30, (2000, 2000))]
    group = only(plan(*objects, *more))
    assert group.reason is CompactReason.TOMBSTONES
    assert (group.tombstones, group.spent, group.inputs) == ((10, 11, 30), (), ())


def test_full_tombstone_objects_do_not_merge():
    wide = [data(at, at, at, rows=10**6) for at in range(1, 20)]
    full = [tombstone(50 + at, (1, 10**6), rows=100) for at in range(5)]
    assert not plan(*wide, *full).groups


# -- jobs and levels -----------------------------------------------------------------------------


def test_k01_the_jobs_that_rewrite_objects_are_cases_of_one_plan():
    assert only(plan(small(1, 1), small(2, 2), small(3, 3))).job is Job.L1_MERGE
    assert only(plan(data(1, dead_rows=90))).job is Job.L2_BLOCK_COMPACT
    wide = data(1, rows=10_000, dead_rows=9_000)
    assert only(plan(wide)).job is Job.L2_SEGMENT_COMPACT
    assert only(plan(*[data(at) for at in range(1, 5)])).job is Job.L2_MERGE


def test_d02_levels_are_numbers_and_stop_at_the_policys_highest():
    deep = CompactPolicy(levels_max=5)
    objects = [data(1, level=4, dead_rows=90), data(2, 50, 59, level=9, dead_rows=90)]
    found = plan_compaction(objects, deep)
    assert [group.level for group in found.groups] == [5, 5]
    assert plan_compaction(objects[:1], CompactPolicy()).groups[0].level == 2


# -- cost ----------------------------------------------------------------------------------------


def many(count: int, tombstones: int, width: int) -> list[InputStats]:
    chance = random.Random(7)
    objects = []
    for at in range(1, count - tombstones + 1):
        low = chance.randrange(10**6)
        dead = chance.choice([0, 0, 10, 40])
        size = chance.choice([10, 200, 1000])
        high = low + chance.randrange(width)
        objects.append(
            data(at, low, high, rows=size // 10, size_bytes=size, dead_rows=dead % size // 10)
        )
    for at in range(count - tombstones + 1, count + 1):
        start = chance.randrange(count * 1000)
        objects.append(tombstone(at, (start, start + 50_000), rows=chance.randrange(1, 100)))
    return objects


@pytest.mark.parametrize(
    ("tombstones", "width"), [(0, 10**6), (0, 1000), (2000, 1000), (5000, 10**6)]
)
def test_planning_and_measuring_10000_objects_takes_less_than_a_second(tombstones: int, width: int):
    objects = many(10_000, tombstones, width)
    best = 9.0
    for _ in range(2):
        started = time.process_time()
        found = plan_compaction(objects, CompactPolicy(object_rows_max=100, object_bytes_max=1000))
        measure(objects)
        best = min(best, time.process_time() - started)
    print(f"{len(found.groups)} groups, {len(found.deferred)} deferred, {best * 1000:.0f} ms")
    assert best < 1

"""Ranges of a compute node's cache: the examples of the source documents, and laws behind them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halocline import CorruptionError, SnapshotExpiredError, UsageError
from halocline.node.cache import Answer, Cache, CacheItem, Span, apply, missing


def test_n02_a_larger_checkpoint_becomes_the_head() -> None:
    cache = Cache([10, 5, 1])
    assert not cache.see(10)
    assert not cache.see(7)
    assert cache.checkpoints == [10, 5, 1]
    assert cache.see(12)
    assert cache.checkpoints == [12, 10, 5, 1]


def test_n03_an_item_begins_as_what_its_checkpoint_says() -> None:
    assert CacheItem(10).span == Span(0, 10)


def test_n04_ranges_that_overlap_extend_the_item() -> None:
    item = CacheItem(80, 100)
    assert item.extend(80, Span(90, 110)) == Span(101, 110)
    assert item.span == Span(0, 110)


def test_n04_ranges_inside_change_nothing() -> None:
    item = CacheItem(80, 100)
    assert item.extend(80, Span(85, 95)) is None
    assert item.span == Span(0, 100)


def test_n04_a_gap_is_an_error() -> None:
    item = CacheItem(80, 100)
    with pytest.raises(CorruptionError, match="gap"):
        item.extend(80, Span(110, 120))
    assert item.span == Span(0, 100)


def test_n04_neighbours_are_accepted() -> None:
    item = CacheItem(80, 90)
    assert item.extend(80, Span(91, 100)) == Span(91, 100)


def test_n04_a_range_of_another_checkpoint_is_refused() -> None:
    with pytest.raises(UsageError, match="checkpoint"):
        CacheItem(80, 100).extend(60, Span(90, 110))


@pytest.mark.parametrize(("snapshot", "checkpoint"), [(70, 60), (100, 80), (80, 80), (20, 20)])
def test_n05_the_checkpoint_of_a_snapshot(snapshot: int, checkpoint: int) -> None:
    assert Cache([80, 60, 30, 20]).choose(snapshot) == checkpoint


def test_n05_a_snapshot_below_all_checkpoints_has_expired() -> None:
    with pytest.raises(SnapshotExpiredError):
        Cache([80, 60, 30, 20]).choose(19)


def test_n06_an_item_in_use_is_not_pruned() -> None:
    cache = Cache([80, 60, 30])
    with cache.use(65) as item:
        assert item.checkpoint == 60
        assert cache.prune(1) == [30]
        assert cache.checkpoints == [80, 60]
    assert cache.prune(1) == [60]
    assert cache.checkpoints == [80]
    assert not cache.items


def test_n07_an_answer_comes_from_ranges_and_commands() -> None:
    item = CacheItem(80, 90)
    assert missing(item, 100) == Span(91, 100)
    answer = Answer(80, [Span(91, 95)], Span(96, 100))
    assert apply(item, answer) == [("stored", Span(91, 95)), ("commands", Span(96, 100))]
    assert item.span == Span(0, 100)
    assert missing(item, 100) is None


def test_n07_an_answer_with_a_hole_is_refused_where_the_hole_is() -> None:
    item = CacheItem(80, 90)
    with pytest.raises(CorruptionError):
        apply(item, Answer(80, [Span(91, 93)], Span(96, 100)))
    assert item.span == Span(0, 93)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20))))
def test_whatever_arrives_an_item_has_all_up_to_its_end(parts: list[tuple[int, int]]) -> None:
    item, folded = CacheItem(10), set(range(11))
    for start, length in parts:
        before = item.end
        try:
            fresh = item.extend(10, Span(start, start + length))
        except CorruptionError:
            assert start > before + 1
            continue
        if fresh is not None:
            assert fresh.start == before + 1  # each commit once, in order
            folded |= set(range(fresh.start, fresh.end + 1))
        assert folded == set(range(item.end + 1))

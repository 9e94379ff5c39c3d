"""The shape of a table: counts, shares and overlap depth, against counting by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from halocline.compaction.shape import measure
from halocline.compaction.stats import InputStats
from halocline.ids import ObjectId


def test_an_empty_table_has_a_shape():
    shape = measure([])
    assert (shape.data_objects, shape.depth_max, shape.depth_mean, shape.dead_share) == (0, 0, 0, 0)


def test_k06_the_three_goals_are_numbers_of_the_shape():
    def one(id: int, low: bytes, high: bytes, level: int) -> InputStats:
        return InputStats(
            id=ObjectId(id),
            level=level,
            rows=10,
            dead_rows=id,
            size_bytes=100,
            key_min=low,
            key_max=high,
            rowid_min=1,
            rowid_max=10,
        )

    gone = InputStats(
        id=ObjectId(9), kind="tombstone", rows=6, size_bytes=5, rowid_min=1, rowid_max=9
    )
    shape = measure([one(1, b"a", b"c", 1), one(2, b"b", b"d", 1), one(3, b"d", b"e", 2), gone])
    assert (shape.data_objects, shape.tombstone_objects, shape.tombstones) == (3, 1, 6)
    assert shape.levels == ((1, 2), (2, 1))
    assert (shape.rows, shape.dead_rows, shape.dead_share) == (30, 6, 0.2)
    assert shape.size_bytes == 305
    assert shape.depth_max == 2
    assert shape.depth_mean == (1 + 2 + 2) / 3


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5)), max_size=25))
def test_depth_is_the_most_ranges_that_hold_one_key(ranges: list[tuple[int, int]]) -> None:
    objects = [
        InputStats(
            id=ObjectId(at + 1),
            rows=1,
            size_bytes=1,
            key_min=bytes([low]),
            key_max=bytes([low + width]),
            rowid_min=1,
            rowid_max=1,
        )
        for at, (low, width) in enumerate(ranges)
    ]
    counted = [sum(low <= key <= low + width for low, width in ranges) for key in range(20)]
    assert measure(objects).depth_max == max(counted)

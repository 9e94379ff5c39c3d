"""Pages: rows by RowID, stamps that ascend, marks of what ended, freezing, thinning."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from halocline.rows.page import ActivePage, FrozenPage, Marks
from halocline.schema.batches import from_arrow
from halocline.schema.schema import Schema

SCHEMA = Schema.define({"id": int, "s": str, "l": "int[]"}, "id")


def row(n: int) -> tuple[object, ...]:
    return (n, None if n % 3 == 0 else f"s{n}", [n] if n % 2 else None)


def active(count: int, start: int = 10) -> ActivePage:
    """A page whose row n has stamp 100 + n // 2."""
    page = ActivePage(SCHEMA, start)
    for n in range(count):
        page.stamps.append(100 + n // 2)
        page.rows.append(row(n))
    return page


@pytest.mark.parametrize("frozen", [False, True])
def test_h02_a_row_is_found_by_its_row_id(frozen: bool) -> None:
    page = active(5).freeze() if frozen else active(5)
    assert [page.row(10 + n) for n in range(5)] == [row(n) for n in range(5)]
    assert page.row(9) is None
    assert page.row(15) is None
    assert [page.stamp(10 + n) for n in range(5)] == [100, 100, 101, 101, 102]
    assert (page.start, page.end, len(page)) == (10, 15, 5)
    assert page.rowid_array(5).tolist() == [10, 11, 12, 13, 14]
    assert page.stamp_array(5).tolist() == [100, 100, 101, 101, 102]
    assert page.offsets_of(np.array([12, 14])).tolist() == [2, 4]


@pytest.mark.parametrize("frozen", [False, True])
def test_a_snapshot_sees_a_prefix(frozen: bool) -> None:
    page = active(6).freeze() if frozen else active(6)
    seen = [page.visible_count(6, ts) for ts in (99, 100, 101, 102, 103)]
    assert seen == [0, 2, 4, 6, 6]


def test_a_page_of_one_commit_has_one_stamp() -> None:
    page = FrozenPage(SCHEMA, 1, SCHEMA.to_arrow([row(0), row(1)]), 7)
    assert (page.stamp(1), page.stamp(2), page.stamp_array(2).tolist()) == (7, 7, [7, 7])
    assert (page.visible_count(2, 6), page.visible_count(2, 7)) == (0, 2)


def test_the_arrow_prefix_of_the_active_page_grows_and_is_shared() -> None:
    page = active(3)
    first = page.batch(2)
    assert from_arrow(first) == [row(0), row(1)]
    whole = page.batch(3)
    assert from_arrow(whole) == [row(n) for n in range(3)]
    assert page.batch(3) is whole
    assert from_arrow(page.batch(1)) == [row(0)]
    assert from_arrow(first) == [row(0), row(1)], "a batch that was handed out stays"
    assert page.batch(0).num_rows == 0


def test_freezing_keeps_rows_stamps_and_marks() -> None:
    page = active(5)
    page.batch(3)
    page.marks.add(1, 200)
    frozen = page.freeze()
    assert from_arrow(frozen.batch(5)) == page.rows
    assert frozen.stamp_array(5).tolist() == page.stamps
    assert frozen.marks.until(200).tolist() == [1]


def test_a_delete_that_races_with_the_freeze_is_seen_through_both() -> None:
    page = active(5)
    frozen = page.freeze()
    page.marks.add(2, 300)
    frozen.marks.add(4, 301)
    for one in (page, frozen):
        assert one.marks.until(299).tolist() == []
        assert one.marks.until(300).tolist() == [2]
        assert sorted(one.marks.until(301).tolist()) == [2, 4]


def test_marks_count_from_their_stamp_on() -> None:
    marks = Marks()
    assert marks.until(10**9).tolist() == []
    for offset, ts in ((3, 5), (1, 7), (0, 6)):
        marks.add(offset, ts)
    assert [sorted(marks.until(ts).tolist()) for ts in (4, 5, 6, 7)] == [[], [3], [0, 3], [0, 1, 3]]


def test_a_thinned_page_keeps_its_range_and_the_marks_of_what_is_left() -> None:
    page = active(6).freeze()
    for offset, ts in ((0, 200), (3, 200), (5, 300)):
        page.marks.add(offset, ts)
    gone = np.zeros(6, dtype=np.bool_)
    gone[[0, 3]] = True
    thin = page.without(gone)
    assert (thin.start, thin.end, len(thin)) == (10, 16, 4)
    assert [thin.row(10 + n) for n in range(6)] == [
        None if n in (0, 3) else row(n) for n in range(6)
    ]
    assert thin.rowid_array(4).tolist() == [11, 12, 14, 15]
    assert thin.stamp(15) == 102
    assert thin.marks.until(300).tolist() == [3]
    assert thin.offsets_of(np.array([10, 11, 13, 15])).tolist() == [0, 3]
    assert thin.visible_count(4, 101) == 2
    assert page.row(10) == row(0), "the old page is left to those who read it"


def test_a_page_can_be_thinned_again_and_to_nothing() -> None:
    page = active(4).freeze()
    thin = page.without(np.array([True, False, False, False]))
    thinner = thin.without(np.array([False, True, False]))
    assert thinner.rowid_array(2).tolist() == [11, 13]
    assert [thinner.row(rowid) for rowid in (10, 11, 12, 13)] == [None, row(1), None, row(3)]
    empty = thinner.without(np.array([True, True]))
    assert (len(empty), empty.start, empty.end) == (0, 10, 14)
    assert empty.row(11) is None
    assert empty.visible_count(0, 10**9) == 0
    assert empty.batch(0).schema == SCHEMA.arrow


def test_a_sliced_batch_reads_as_its_own_rows() -> None:
    batch = SCHEMA.to_arrow([row(n) for n in range(20)])
    page = FrozenPage(SCHEMA, 100, batch.slice(7, 5), 1)
    assert [page.row(100 + n) for n in range(5)] == [row(7 + n) for n in range(5)]
    assert isinstance(page.batch(5), pa.RecordBatch)

"""Which objects stand for a table at a timestamp (T-02, T-04, T-05)."""

from __future__ import annotations

import pytest

from halocline.catalog.entries import ObjectEntry
from halocline.ids import NEVER, ObjectId, TableId


def thing(number: int, start: int, end: int, create: int, drop: int = 0) -> ObjectEntry:
    """([start, end], [create, drop]) as the source document writes it: 0 means not dropped."""
    return ObjectEntry(
        id=ObjectId(number),
        table_id=TableId(1),
        commit_ts_min=start,
        commit_ts_max=end,
        created_at=create,
        deleted_at=drop or NEVER,
    )


def view(objects: list[ObjectEntry], ts: int) -> list[int]:
    """The ids of those that stand for their table at `ts`."""
    return [entry.id for entry in objects if entry.counts_at(ts)]


@pytest.mark.parametrize(
    ("create", "drop", "ts", "counts"),
    [
        (5, 0, 4, False),
        (5, 0, 5, True),
        (5, 0, 1000, True),
        (5, 9, 4, False),
        (5, 9, 5, True),
        (5, 9, 8, True),
        (5, 9, 9, False),
        (5, 9, 10, False),
    ],
)
def test_t04_an_object_counts_from_its_creation_until_before_its_drop(
    create: int, drop: int, ts: int, counts: bool
) -> None:
    assert thing(1, 1, 4, create, drop).counts_at(ts) is counts


@pytest.mark.parametrize(
    ("ts", "counts"),
    [(1, False), (2, True), (4, True), (5, True), (8, True), (9, False)],
)
def test_t04_a_moved_object_also_counts_for_snapshots_older_than_itself(
    ts: int, counts: bool
) -> None:
    moved = ObjectEntry(
        id=ObjectId(1),
        table_id=TableId(1),
        moved=True,
        commit_ts_min=2,
        commit_ts_max=4,
        created_at=5,
        deleted_at=9,
    )
    assert moved.counts_at(ts) is counts


def test_t04_an_uncommitted_object_counts_for_nobody() -> None:
    entry = ObjectEntry(id=ObjectId(1), table_id=TableId(1), commit_ts_min=3, commit_ts_max=3)
    assert not any(entry.counts_at(ts) for ts in (0, 3, 1 << 40))
    assert entry.stamped(3, NEVER).counts_at(3)


def test_t02_the_read_view_of_txn_2_is_seg_2_and_seg_4() -> None:
    # The figure is not in the text; these intervals give the view that the text states for Txn-2,
    # which starts at 20: seg-1 was compacted into seg-2, seg-3 into seg-4, seg-5 comes later.
    segments = [
        thing(1, 1, 5, create=5, drop=10),
        thing(2, 1, 9, create=10),
        thing(3, 11, 14, create=14, drop=18),
        thing(4, 11, 17, create=18, drop=25),
        thing(5, 21, 24, create=24),
    ]
    assert view(segments, 20) == [2, 4]


def test_t02_at_block_level_the_view_holds_the_odd_blocks_of_both() -> None:
    # Blocks x-2 and x-4 were rewritten: one before Txn-2 started, one after it.
    blocks = []
    for segment, create in ((2, 10), (4, 18)):
        blocks += [
            thing(10 * segment + 1, 1, 9, create),
            thing(10 * segment + 2, 1, 9, create, drop=19),
            thing(10 * segment + 3, 1, 9, create=19),
            thing(10 * segment + 4, 1, 9, create=22),
            thing(10 * segment + 5, 1, 9, create, drop=22),
        ]
    assert view(blocks, 20) == [21, 23, 25, 41, 43, 45]


def test_t05_the_view_at_commit_has_what_committed_since_the_start() -> None:
    # Txn-2 runs from 10 to 20; seg2 and seg3 are created by others meanwhile.
    segments = [
        thing(1, 1, 8, create=8),
        thing(2, 11, 12, create=12),
        thing(3, 13, 17, create=17),
        thing(4, 21, 22, create=22),
    ]
    assert view(segments, 10) == [1]
    assert view(segments, 20) == [1, 2, 3]


def test_t07_a_rewrite_is_a_new_object_and_older_readers_keep_the_old_one() -> None:
    old, new = thing(1, 1, 5, create=5, drop=12), thing(2, 1, 5, create=12)
    assert view([old, new], 11) == [1]
    assert view([old, new], 12) == [2]

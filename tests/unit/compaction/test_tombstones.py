"""Tombstone objects through time: the rows that each snapshot sees, before and after a merge.

data object  rows 1 to 6, committed at 10
A            created 100, ended 200: flushed from memory, row 1 ended at 50, row 2 at 90
B            created  80, ended 200: a bulk delete of rows 3 and 4
C            created 200: A and B in one
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from halocline.catalog import ObjectEntry
from halocline.compaction import CompactReason
from halocline.ids import NEVER
from halocline.objects.columns import (
    CHANGED,
    COMMIT_TS,
    ROWID,
    SUCCESSOR,
    tombstone_columns,
    tombstone_schema,
)
from halocline.rows.reshape import Reshape
from halocline.rows.undo import forget_objects
from tests.unit.compaction.rig import Compacted, versions_seen
from tests.unit.rows.rig import Version

ENDED = {1: 50, 2: 90, 3: 80, 4: 80}


def built(again: int = 0) -> tuple[Compacted, ObjectEntry, ObjectEntry]:
    """The table at 199, with A and B; B may name a row of A `again`, later than A does."""
    story = Compacted(0, "int")
    for rowid in range(1, 7):
        row = (rowid, f"k{rowid}", 0)
        story.versions[rowid] = Version(rowid, rowid, row, 10, ENDED.get(rowid, NEVER))
    found: list[Any] = list(story.versions.values())
    a = b = None
    for story.ts in (20, 80, 100):
        story.job += 1
        if story.ts == 20:
            entry = story._data(found, 0, moved=True)
        elif story.ts == 80:
            named = [*found[2:4], *(v for v in found if v.rowid == again)]
            entry = b = story._dead(named, [0] * len(named), 0, committed=False)
        else:
            entry = a = story._dead(found[:2], [0, 0], 0)
        story._reshape(Reshape(story.live.table_id, [entry]))
    story.live.skip_to(7)
    story.ts = 199
    assert a is not None
    assert b is not None
    by_id = story.live.shape.tier.by_id
    return story, by_id[a.id], by_id[b.id]


def merged(again: int = 0) -> tuple[Compacted, ObjectEntry]:
    """The same at 200, with C in their place."""
    story, a, b = built(again)
    story.policy = replace(
        story.policy, tombstone_objects_max=1, fold_percent=10**6, dead_percent=100
    )
    (group,) = story.plan().groups
    assert group.reason is CompactReason.TOMBSTONES
    assert set(group.tombstones) == {a.id, b.id}
    (c,) = story.carry_out(group, 199).created
    return story, story.live.shape.tier.by_id[c.id]


def left_at(ts: int) -> set[int]:
    """The rows that a snapshot sees, by definition."""
    return {rowid for rowid in range(1, 7) if ts >= 10 and ENDED.get(rowid, NEVER) > ts}


SNAPSHOTS = [9, 10, 49, 50, 79, 80, 89, 90, 99, 100, 150, 199]


def test_m03_the_entries_are_those_of_the_table() -> None:
    story, a, b = built()
    assert (a.created_at, a.deleted_at, a.commit_ts_min) == (100, NEVER, 50)
    assert (b.created_at, b.deleted_at, b.commit_ts_min) == (80, NEVER, 80)
    story, c = merged()
    after = story.live.shape.tier.by_id
    assert (c.created_at, c.deleted_at, c.commit_ts_min) == (200, NEVER, 50)
    assert after[a.id].deleted_at == after[b.id].deleted_at == 200
    assert (c.stats.rowid_min, c.stats.rowid_max) == (1, 4)
    assert (c.stats.key_min, c.stats.key_max) == (a.stats.key_min, b.stats.key_max)


@pytest.mark.parametrize("ts", SNAPSHOTS)
def test_m04_before_the_merge_each_snapshot_sees_the_right_rows(ts: int) -> None:
    story, _, _ = built()
    assert set(versions_seen(story.live, ts)) == left_at(ts)


@pytest.mark.parametrize("ts", [*SNAPSHOTS, 200, 1000])
def test_m04_m05_after_the_merge_they_see_the_same(ts: int) -> None:
    story, _ = merged()
    assert set(versions_seen(story.live, ts)) == left_at(ts)


@pytest.mark.parametrize("ts", [200, 201, 1000])
def test_m04_m06_c_stands_alone_once_a_and_b_are_collected(ts: int) -> None:
    """C needs no rule of its own: it was created, and then A and B ended."""
    from threading import Lock

    story, c = merged()
    forget_objects(story.live, 200, Lock())
    tier = story.live.shape.tier
    assert tier.tombstones == (c,)
    assert set(versions_seen(story.live, ts)) == left_at(ts)


def test_m05_a_moved_object_hides_no_row_from_snapshots_before_its_end() -> None:
    """The commit timestamps of rows decide inside an object that counts."""
    story, a, _ = built()
    assert a.counts_at(50)
    assert not a.counts_at(49)
    assert 2 in versions_seen(story.live, 89)
    assert 2 not in versions_seen(story.live, 90)


def test_m01_columns_before_and_after_the_commit() -> None:
    story, a, b = built()
    names = [[c.name for c in tombstone_columns(story.schema, committed=x)] for x in (False, True)]
    assert names[0] == [ROWID, "id", SUCCESSOR, CHANGED]
    assert names[1] == [ROWID, "id", COMMIT_TS, SUCCESSOR, CHANGED]
    assert not b.stats.committed
    assert a.stats.committed


def test_m02_all_rows_of_an_uncommitted_object_end_when_it_was_created() -> None:
    story, _, b = built()
    reader, schema = story.live.shelf.reader, tombstone_schema(story.schema)
    assert reader.read(b.file, schema).column(COMMIT_TS).to_pylist() == [80, 80]
    story, c = merged()
    assert c.stats.committed, "a rewrite fills it in"
    reader = story.live.shelf.reader
    assert reader.read(c.file, schema).column(COMMIT_TS).to_pylist() == [50, 90, 80, 80]


@pytest.mark.parametrize("make", [lambda: built(again=1)[0], lambda: merged(again=1)[0]])
def test_the_earliest_tombstone_of_a_row_counts(make: Any) -> None:
    story = make()
    for ts in SNAPSHOTS:
        assert set(versions_seen(story.live, ts)) == left_at(ts)


def test_a_merge_keeps_the_earliest_tombstone_of_a_row() -> None:
    story, c = merged(again=1)
    table = story.live.shelf.reader.read(c.file, tombstone_schema(story.schema))
    assert table.column(ROWID).to_pylist() == [1, 2, 3, 4]
    assert table.column(COMMIT_TS).to_pylist() == [50, 90, 80, 80]

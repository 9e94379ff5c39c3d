"""Rewriting real objects: every snapshot sees what it saw before, and the table gets better."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from halocline.compaction.gather import Gatherer
from halocline.compaction.plan import CompactReason
from halocline.compaction.shape import measure
from halocline.ids import NEVER
from halocline.objects.columns import COMMIT_TS, ROWID
from halocline.rows.nodes import Append, Delete
from halocline.rows.reshape import Reshape
from tests.unit.compaction.rig import Compacted
from tests.unit.rows.rig import KEYED, seeds


@pytest.mark.parametrize("kind", KEYED)
@pytest.mark.parametrize("seed", seeds(2, 60))
def test_k03_every_snapshot_sees_the_same_rows_through_random_compactions(
    kind: str, seed: int
) -> None:
    story = Compacted(seed, kind)
    for _ in range(40):
        story.step()
    story.check_all()


@pytest.mark.parametrize("kind", KEYED)
@pytest.mark.parametrize("seed", seeds(2, 60))
def test_k03_deletes_and_updates_that_commit_meanwhile_survive(kind: str, seed: int) -> None:
    story = Compacted(seed, kind)
    story.rewrite = lambda: None  # type: ignore[method-assign]
    for _ in range(25):
        story.step()
    ts = story.ts
    for group in story.plan().groups:
        story.carry_out(group, ts, meanwhile=lambda: [story.commit() for _ in range(3)])
        story.flush()
    story.check_all()


@pytest.mark.parametrize("kind", KEYED)
@pytest.mark.parametrize("seed", seeds(1, 40))
def test_k06_compaction_comes_to_an_end_and_reaches_its_goals(kind: str, seed: int) -> None:
    story = Compacted(seed, kind)
    story.rewrite = lambda: None  # type: ignore[method-assign]
    for _ in range(40):
        story.step()
    before = measure(story.gatherer.stats(story.live, story.live.shape.tier, story.ts))
    for _ in range(50):
        groups = story.plan().groups
        if not groups:
            break
        for group in groups:
            story.carry_out(group, story.ts)
    after = measure(story.gatherer.stats(story.live, story.live.shape.tier, story.ts))
    assert not story.plan().owed
    assert after.depth_max <= story.policy.depth_max
    assert after.data_objects <= before.data_objects
    assert after.tombstone_objects <= max(before.tombstone_objects, 2)
    assert after.dead_share <= 0.2
    story.check_all()


@pytest.mark.parametrize("kind", KEYED)
@pytest.mark.parametrize("seed", seeds(1, 30))
def test_dead_rows_are_counted_exactly_and_remembered(kind: str, seed: int) -> None:
    story = Compacted(seed, kind)
    for _ in range(30):
        story.step()
        state, gatherer = story.live, story.gatherer
        for one in gatherer.stats(state, state.shape.tier, story.ts):
            if one.kind == "data":
                rowids = story._rowids(state.shape.tier.by_id[one.id])
                ended = [rowid for rowid in rowids if story.versions[rowid].ended <= story.ts]
                assert one.dead_rows == len(ended)
        again = gatherer.stats(state, state.shape.tier, story.ts)
        assert again == Gatherer().stats(state, state.shape.tier, story.ts)


@pytest.mark.parametrize("kind", KEYED)
def test_a_rewrite_keeps_rowids_and_timestamps_and_drops_exactly_what_ended(kind: str) -> None:
    story = Compacted(11, kind)
    story.rewrite = lambda: None  # type: ignore[method-assign]
    while len(story.live.shape.tier.data) < 4:
        story.step()
    group = next(group for group in story.plan().owed if group.inputs)
    tier = story.live.shape.tier
    held = {rowid for id in group.inputs for rowid in story._rowids(tier.by_id[id])}
    live = {rowid for rowid in held if story.versions[rowid].ended > story.ts}
    outcome = story.carry_out(group, story.ts)
    written = [entry for entry in outcome.created if entry.kind == "data"]
    rowids: list[int] = []
    for entry in written:
        assert entry.stats.committed
        assert not entry.moved
        assert entry.level == group.level
        table = story.live.shelf.reader.read(entry.file, story.schema)
        rowids += table.column(ROWID).to_pylist()
        stamps = dict(zip(rowids, table.column(COMMIT_TS).to_pylist(), strict=False))
        assert all(story.versions[r].began == stamp for r, stamp in stamps.items())
    assert sorted(rowids) == sorted(live)
    assert outcome.rows_dropped == len(held - live)
    story.check_all()


def test_folding_a_tombstone_object_that_also_concerns_another_object() -> None:
    """Only the tombstones of dropped rows leave it; those of the other object's rows stay."""
    for seed in range(200):
        story = Compacted(seed, "int")
        story.rewrite = lambda: None  # type: ignore[method-assign]
        for _ in range(25):
            story.step()
        partial = [
            group
            for group in story.plan().groups
            if group.inputs and set(group.tombstones) - set(group.spent)
        ]
        if partial:
            break
    group = partial[0]
    tier = story.live.shape.tier
    held = {rowid for id in group.inputs for rowid in story._rowids(tier.by_id[id])}
    kept = set(group.tombstones) - set(group.spent)
    named = {id: set(_tombstones(story, id)) for id in kept}
    outcome = story.carry_out(group, story.ts)
    replaced = [entry for entry in outcome.created if entry.kind == "tombstone"]
    assert len(replaced) <= 1, "what is left of several is joined"
    left = {rowid for entry in replaced for rowid in _tombstones(story, entry.id)}
    assert left == set().union(*(named[id] - held for id in kept if named[id] & held))
    untouched = [id for id in kept if not named[id] & held]
    assert all(story.live.shape.tier.by_id[id].deleted_at == NEVER for id in untouched)
    story.check_all()


def _tombstones(story: Compacted, id: int) -> list[int]:
    from halocline.objects.columns import tombstone_schema

    entry = story.live.shape.tier.by_id[id]
    table = story.live.shelf.reader.read(entry.file, tombstone_schema(story.schema))
    rowids: list[int] = np.asarray(table.column(ROWID)).tolist()
    return rowids


def test_merging_tombstone_objects_keeps_the_earliest_of_each_rowid() -> None:
    story = Compacted(5, "text")
    story.policy = replace(
        story.policy, fold_percent=10**6, dead_percent=100, depth_max=100, small_objects_min=100
    )
    story.rewrite = lambda: None  # type: ignore[method-assign]
    for _ in range(20):
        story.step()
    for _ in range(4):
        story.flush()
        story.commit()
    joins = [g for g in story.plan().owed if g.reason is CompactReason.TOMBSTONES]
    for group in joins:
        named = set().union(*(_tombstones(story, id) for id in group.tombstones))
        outcome = story.carry_out(group, story.ts)
        (entry,) = outcome.created
        assert _tombstones(story, entry.id) == sorted(named)
        assert entry.stats.committed
    assert joins
    story.check_all()


def test_what_came_after_the_snapshot_is_known_but_not_touched() -> None:
    """Rows may have left L0 for an object that a plan by an older snapshot must not rewrite."""
    story = Compacted(7, "int")
    story.rewrite = lambda: None  # type: ignore[method-assign]
    for _ in range(25):
        story.step()
    tier = story.live.shape.tier
    for ts in range(story.ts):
        plan = story.gatherer.plan(story.live, ts, story.policy, frozenset())
        taken = [id for group in plan.groups for id in group.inputs + group.tombstones]
        taken += [id for group in plan.deferred for id in group.inputs]
        assert all(tier.by_id[id].created_at <= ts for id in taken)


def test_a_tombstone_object_that_names_rows_of_l0_is_never_spent() -> None:
    story = Compacted(1, "int")
    story.ts = 1
    first = Append(1, [(n, f"k{n:02d}", 0) for n in range(6)])
    story.fold(first)
    story.ts, story.job = 2, 1
    gone = [story.versions[rowid] for rowid in (1, 2)]
    story._reshape(Reshape(1, [story._dead(gone, [0, 0], 0, committed=False)]))
    story.live.fold(Delete(1, [1, 2], [0, 1]), 2)
    for rowid in (1, 2):
        story.versions[rowid] = story.versions[rowid]._replace(ended=2)
    assert not story.plan().owed
    story.check_all()

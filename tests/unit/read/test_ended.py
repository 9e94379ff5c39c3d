"""RowIDs that ended by a snapshot: the same set wherever the tombstones are (R-09, R-11)."""

from __future__ import annotations

from threading import Lock

import numpy as np
import pytest

from halocline.errors import CorruptionError
from halocline.ids import NEVER
from halocline.read.ended import ended_rowids
from halocline.rows.deletes import DeletionBuffer
from halocline.rows.trim import trim
from tests.unit.objects.rig import empty
from tests.unit.read.rig import Tiers
from tests.unit.rows.rig import KEYED, seeds


@pytest.mark.parametrize("kind", KEYED)
@pytest.mark.parametrize("seed", seeds(4, 30))
def test_r11_memory_and_objects_together_know_every_end(kind: str, seed: int) -> None:
    tiers = Tiers(seed, kind)
    for _ in range(30):
        old = tiers.live.shape.tier
        tiers.step()
        ts = tiers.rng.randrange(tiers.ts + 1)
        low, high = sorted(tiers.rng.choices(range(tiers.live.next_rowid + 2), k=2))
        state, ends = tiers.live, tiers.versions.values()
        for first, last in ((0, NEVER), (low, high)):
            wanted = [v.rowid for v in ends if v.ended <= ts and first <= v.rowid < last]
            for tier in (old, state.shape.tier):
                found = ended_rowids(state, tier, ts, first, last)
                assert found.tolist() == sorted(wanted), (kind, seed)


def test_an_array_of_singles_grows_with_the_buffer_and_survives_a_trim() -> None:
    deletes = DeletionBuffer()
    for rowid in range(1000):
        deletes.ended[(rowid * 7) % 1000] = (rowid // 2 + 1, 0, (), None)
        if rowid % 50 == 0:
            (found,) = deletes.ended_by(NEVER, 0, 10**6)
            assert found.tolist() == sorted(deletes.ended)
    (half,) = deletes.ended_by(250, 0, 10**6)
    assert half.tolist() == sorted(rowid for rowid, one in deletes.ended.items() if one[0] <= 250)
    everything = set(deletes.ended)
    for rowid in range(500):
        deletes.ended.pop(rowid)
    deletes.ended[5000] = (900, 0, (), None)
    (found,) = deletes.ended_by(900, 0, 10**6)
    assert set(found.tolist()) == everything | {5000}, "what was true once is true for ever"


def test_arrays_of_a_buffer_that_was_emptied_are_let_go() -> None:
    deletes = DeletionBuffer()
    deletes.ended.update({rowid: (rowid, 0, (), None) for rowid in range(1, 20_001)})
    assert len(deletes.ended_by(NEVER, 0, 10**6)[0]) == 20_000
    for rowid in range(1, 20_000):
        del deletes.ended[rowid]
    (found,) = deletes.ended_by(NEVER, 0, 10**6)
    assert found.tolist() == [20_000]


def test_r09_what_is_handed_out_is_not_what_is_cached() -> None:
    tiers = Tiers(1, "int")
    while not tiers.live.shape.tier.tombstones:
        tiers.step()
    tiers.flush()
    trim(tiers.live, tiers.ts, Lock())
    state = tiers.live
    first = ended_rowids(state, state.shape.tier, tiers.ts)
    wanted = first.tolist()
    first[:] = 0
    assert ended_rowids(state, state.shape.tier, tiers.ts).tolist() == wanted


def test_an_object_too_large_for_the_pool_is_read_each_time() -> None:
    tiers = Tiers(1, "int")
    for _ in range(20):
        tiers.step()
    tiers.flush()
    wanted = ended_rowids(tiers.live, tiers.live.shape.tier, tiers.ts).tolist()
    pool = tiers.live.shelf.index
    empty(pool)
    held = pool.pin("all of it", lambda: (None, pool.budget_bytes))
    tiers.live.shelf.reader._index = type(pool)("spare", 1 << 20)
    assert ended_rowids(tiers.live, tiers.live.shape.tier, tiers.ts).tolist() == wanted
    held.close()
    pool.budget_bytes = 64
    assert ended_rowids(tiers.live, tiers.live.shape.tier, tiers.ts).tolist() == wanted


def test_a_missing_tombstone_object_is_named() -> None:
    tiers = Tiers(2, "text")
    while not tiers.live.shape.tier.tombstones:
        tiers.step()
    state = tiers.live
    entry = state.shape.tier.tombstones[0]
    state.shelf.objects.delete(entry.key)
    with pytest.raises(CorruptionError) as caught:
        ended_rowids(state, state.shape.tier, entry.created_at)
    assert entry.key in str(caught.value)
    assert np.int64 is ended_rowids(state, type(state.shape.tier)(), 0).dtype.type

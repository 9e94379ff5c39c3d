"""Many rows at once: locate_many is locate for each key, take is row for each RowID."""

from __future__ import annotations

import random
from threading import Lock
from typing import Any

import numpy as np
import pytest

from halocline.read.locate import first_rowid_after, locate_in_memory
from halocline.read.point import find, get
from halocline.rows.resident import take
from halocline.rows.tidy import tidy
from halocline.rows.undo import collect
from tests.unit.rows.rig import Story, seeds, state_of

KINDS = ["int", "text", "pair"]


def _same(story: Story, keys: Any, ts: int) -> None:
    wanted = [story.live.locate(key, ts) for key in keys]
    assert wanted == [story.locate(key, ts) for key in keys]
    assert locate_in_memory(story.live, keys, ts).tolist() == wanted
    if story.kind == "int":
        assert locate_in_memory(story.live, np.array(keys, dtype=np.int64), ts).tolist() == wanted
    for key, rowid in zip(keys, wanted, strict=True):
        assert find(story.live, key, ts) == rowid
        row = get(story.live, key, ts)
        assert row == (story.versions[rowid].row if rowid else None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", seeds(4))
def test_locate_many_is_locate_for_each(kind: str, seed: int, sim: bool) -> None:
    story = Story(seed, kind)
    rng = random.Random(seed)
    lock = Lock()
    floor = 0
    for _ in range(50 if sim else 20):
        story.commit()
        if rng.random() < 0.3:
            tidy(story.live, lock)
        if rng.random() < 0.1:
            floor = rng.randrange(floor, story.ts + 1)
            collect(story.live, floor, lock)
        keys = rng.choices(story.keys(), k=10)
        for ts in {floor, story.ts, rng.randrange(floor, story.ts + 1)}:
            _same(story, keys, ts)


def test_no_keys_and_no_rows() -> None:
    state = state_of("int")
    assert locate_in_memory(state, [], 5).tolist() == []
    assert locate_in_memory(state, [1, 2], 5).tolist() == [0, 0]
    assert locate_in_memory(state, np.array([1, 2]), 5).tolist() == [0, 0]
    assert take(state.shape, np.zeros(0, np.int64)) == state.schema.arrow.empty_table()
    assert find(state, 1, 5) == 0
    assert first_rowid_after(state, 0) == state.next_rowid


@pytest.mark.parametrize("kind", [*KINDS, "none"])
def test_take_gives_rows_in_the_order_asked_for(kind: str) -> None:
    story = Story(5, kind)
    for _ in range(25):
        story.commit()
    rng = random.Random(5)
    lock = Lock()
    for _ in range(2):
        rowids = rng.choices(sorted(story.versions), k=30)
        table = take(story.live.shape, np.array(rowids, dtype=np.int64))
        assert table.schema == story.schema.arrow
        assert story.schema.from_table(table) == [story.versions[r].row for r in rowids]
        tidy(story.live, lock)
    collect(story.live, story.ts, lock)
    living = [v.rowid for v in story.versions.values() if v.ended > story.ts]
    rng.shuffle(living)
    table = take(story.live.shape, np.array(living, dtype=np.int64))
    assert story.schema.from_table(table) == [story.versions[r].row for r in living]


@pytest.mark.parametrize("kind", [*KINDS, "none"])
def test_first_rowid_after_parts_old_from_new(kind: str) -> None:
    story = Story(9, kind)
    lock = Lock()
    for _ in range(25):
        story.commit()
    for _ in range(2):
        for ts in range(story.ts + 1):
            newer = [v.rowid for v in story.versions.values() if v.began > ts]
            first = first_rowid_after(story.live, ts)
            assert first == min(newer, default=story.live.next_rowid)
        tidy(story.live, lock)


def test_first_rowid_after_steps_over_pages_that_were_emptied() -> None:
    from halocline.rows.nodes import Append, Delete
    from tests.unit.rows.rig import fold

    state, lock = state_of("int", page_rows=2), Lock()
    fold(state, Append(1, [(n, "x", n) for n in range(6)], first_rowid=1), 1)
    fold(state, Delete(1, [3, 4], [2, 3]), 2)
    fold(state, Append(1, [(9, "x", 9)], first_rowid=7), 3)
    tidy(state, lock)
    assert collect(state, 2, lock) == 2
    assert first_rowid_after(state, 2) == 7
    assert first_rowid_after(state, 0) == 1
    assert locate_in_memory(state, [2, 3, 4, 9], 3).tolist() == [0, 0, 5, 7]

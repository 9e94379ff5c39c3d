"""Undo GC and tidying: what nobody can see goes, what anybody can see stays."""

from __future__ import annotations

import random
from threading import Lock

import pytest

from halocline.database.check import check_engine
from halocline.options import Options
from halocline.read.locate import locate_in_memory
from halocline.rows.engine import EngineState
from halocline.rows.memtree import RUNS_MAX
from halocline.rows.nodes import Append, Delete, Update, key_run
from halocline.rows.page import ActivePage, FrozenPage
from halocline.rows.state import TableState
from halocline.rows.tidy import tidy
from halocline.rows.trim import trim
from halocline.rows.undo import collect
from tests.unit.rows.rig import (
    KEYED,
    Story,
    contents,
    fold,
    scan_table,
    seeds,
    state_of,
    tombstones,
)


def checked(state: TableState) -> None:
    """db.check() for one table, whatever its floor is."""
    engine = EngineState(Options())
    engine.tables[1] = state
    engine.floor = state.last_ts
    assert check_engine(engine, state.last_ts) == []


@pytest.mark.parametrize("kind", KEYED)
@pytest.mark.parametrize("seed", seeds(4))
def test_every_snapshot_from_the_floor_on_survives(kind: str, seed: int, sim: bool) -> None:
    """Commits, freezing and collecting in random order; the replayed state is never collected."""
    story = Story(seed, kind)
    rng = random.Random(seed + 1000)
    lock = Lock()
    floor = 0
    for _ in range(60 if sim else 25):
        story.commit()
        if rng.random() < 0.3:
            tidy(story.live, lock)
        if rng.random() < 0.2:
            floor = rng.randrange(floor, story.ts + 1)
            collect(story.live, floor, lock)
            story.check(story.live, floor)
            checked(story.live)
    tidy(story.live, lock)
    collect(story.live, floor, lock)
    story.check(story.live, floor)
    checked(story.live)
    kept = {v.rowid for v in story.versions.values() if v.ended > floor}
    assert kept <= contents(story.live).keys(), seed
    assert {rowid for rowid in tombstones(story.live) if rowid in kept} == {
        v.rowid for v in story.versions.values() if floor < v.ended <= story.ts
    }


@pytest.mark.parametrize("kind", KEYED)
def test_g04_everything_that_ended_in_a_frozen_page_goes(kind: str) -> None:
    story = Story(11, kind, page_rows=3)
    for _ in range(40):
        story.commit()
    state, lock = story.live, Lock()
    tidy(state, lock)
    frozen = {
        rowid
        for page, count in state.shape.counted()
        if isinstance(page, FrozenPage)
        for rowid in page.rowid_array(count).tolist()
    }
    dead = {v.rowid for v in story.versions.values() if v.ended <= story.ts} & frozen
    assert collect(state, story.ts, lock) == len(dead) > 20
    left = contents(state)
    assert not dead & left.keys()
    assert not dead & set(state.deletes.ended)
    assert not dead & set(state.tree.recent.values())
    assert not dead & set(state.tree.older.values())
    assert not dead & {int(rowid) for run in state.tree.runs for rowid in run.rowids}
    assert collect(state, story.ts, lock) == 0
    story.check(state, story.ts)


def test_g04_nothing_above_the_floor_goes() -> None:
    state, lock = state_of("int", page_rows=1), Lock()
    fold(state, Append(1, [(1, "a", 0), (2, "b", 0)], first_rowid=1), 1)
    fold(state, Delete(1, [1], [1]), 5)
    state.close_page()
    tidy(state, lock)
    assert collect(state, 4, lock) == 0
    assert state.locate(1, 4) == 1
    assert collect(state, 5, lock) == 1
    assert (state.locate(1, 5), state.row(1), state.locate(2, 5)) == (0, None, 2)
    assert state.undone == 1


def test_one_who_follows_keeps_tombstones_until_a_flush_has_passed_them() -> None:
    """The owner may be moving these very rows: they would come back to life in an object."""
    story = Story(7, "int")
    lock = Lock()
    for _ in range(25):
        story.commit()
    state = story.live
    tidy(state, lock)
    before = tombstones(state)
    assert collect(state, story.ts, lock, follows=True)
    gone = before.keys() - contents(state).keys()
    assert gone
    assert tombstones(state) == before
    state.flushed_ts = story.ts
    trim(state, story.ts, lock)
    assert not gone & tombstones(state).keys()


def test_the_active_page_is_left_alone() -> None:
    state, lock = state_of("int", page_rows=10), Lock()
    fold(state, Append(1, [(1, "a", 0)], first_rowid=1), 1)
    fold(state, Delete(1, [1], [1]), 2)
    assert collect(state, 2, lock) == 0
    assert state.row(1) == (1, "a", 0)


def test_a_key_comes_back_after_it_was_collected() -> None:
    for bulk in (False, True):
        state, lock = state_of("int", page_rows=2), Lock()
        ts = 0
        for life in range(4):
            ts += 2
            rows = [(n, f"life {life}", n) for n in range(6)]
            table = state.schema.to_table(rows)
            first = state.next_rowid
            if bulk:
                node = Append(1, table=table, run=key_run(table, state.schema), first_rowid=first)
            else:
                node = Append(1, rows, first_rowid=first)
            fold(state, node, ts - 1)
            targets = list(range(first, first + 6))
            if life < 3:
                fold(state, Delete(1, targets, list(range(6))), ts)
            state.close_page()
            tidy(state, lock)
            collect(state, ts, lock)
            checked(state)
        assert [state.row(state.locate(n, ts)) for n in range(6)] == rows
        assert state.tree.range(None, None) == list(range(6))
        assert list(locate_in_memory(state, list(range(7)), ts))[6] == 0


def test_a_page_that_was_emptied_leaves_the_shape() -> None:
    """Or else a row that is updated all day would leave a trail of pages for every scan to walk."""
    state, lock = state_of("int", page_rows=4), Lock()
    fold(state, Append(1, [(1, "x", 0)], first_rowid=1), 1)
    for ts in range(2, 200):
        target = state.locate(1, ts - 1)
        fold(state, Update(1, [target], (3,), [(1, "x", ts)], first_rowid=state.next_rowid), ts)
        if ts % 20 == 0:
            tidy(state, lock)
            collect(state, ts, lock)
            assert len(state.shape.pages) <= 6
            assert len(state.shape.starts) == len(state.shape.pages)
            assert state.row(state.locate(1, ts)) == (1, "x", ts)
            checked(state)
    assert [state.row(rowid) for rowid in (1, 50, 100)] == [None] * 3
    assert (state.page_of(1), state.locate(1, 199)) == (None, 199)
    assert locate_in_memory(state, [1, 2], 199).tolist() == [199, 0]


def test_tidy_freezes_every_closed_page_and_nothing_else() -> None:
    state, lock = state_of("int", page_rows=2), Lock()
    fold(state, Append(1, [(n, "x", n) for n in range(7)], first_rowid=1), 1)
    before = contents(state)
    assert state.owes
    tidy(state, lock)
    assert not state.owes
    assert [type(page) for page, _ in state.shape.counted()] == [FrozenPage] * 3 + [ActivePage]
    assert contents(state) == before
    tidy(state, lock)
    assert contents(state) == before


def test_deleting_while_a_page_freezes_loses_nothing() -> None:
    """The delete comes between the copy and the swap, as it may when two threads commit."""

    class Between:
        """A lock that lets somebody else in first."""

        def __init__(self) -> None:
            self.done = False

        def __enter__(self) -> None:
            if not self.done:
                self.done = True
                fold(state, Delete(1, [2], [1]), 2)
                fold(state, Append(1, [(50, "late", 0)], first_rowid=state.next_rowid), 3)

        def __exit__(self, *_: object) -> None:
            return None

    state = state_of("int", page_rows=2)
    fold(state, Append(1, [(n, "x", n) for n in range(5)], first_rowid=1), 1)
    tidy(state, Between())  # type: ignore[arg-type]
    assert isinstance(state.page_of(2), FrozenPage)
    assert [state.locate(1, ts) for ts in (1, 2, 3)] == [2, 0, 0]
    assert state.locate(50, 3) == 6
    assert [row[0] for row in state.schema.from_table(scan_table(state, 3))] == [0, 2, 3, 4, 50]
    assert scan_table(state, 1).num_rows == 5
    checked(state)


def test_two_that_tidy_at_once_and_a_collection_between_them() -> None:
    """The second swap must not bring back rows that were collected after the first."""
    state, lock = state_of("int", page_rows=2), Lock()
    fold(state, Append(1, [(n, "x", n) for n in range(4)], first_rowid=1), 1)
    fold(state, Delete(1, [1], [0]), 2)
    state.close_page()

    class Late:
        """The second thread takes the lock only after the first has tidied and collected."""

        def __init__(self) -> None:
            self.done = False

        def __enter__(self) -> None:
            if not self.done:
                self.done = True
                tidy(state, lock)
                assert collect(state, 2, lock) == 1

        def __exit__(self, *_: object) -> None:
            return None

    tidy(state, Late())  # type: ignore[arg-type]
    assert state.row(1) is None
    assert sorted(contents(state)) == [2, 3, 4]
    checked(state)


def test_many_runs_are_merged_into_few() -> None:
    for kind in ("int", "text", "pair"):
        state, lock = state_of(kind, page_rows=100), Lock()
        most = 0
        for ts in range(1, 40):
            rows = [(n, f"k{n}", ts) for n in range(ts * 3, ts * 3 + 3)]
            table = state.schema.to_table(rows)
            run = key_run(table, state.schema)
            fold(state, Append(1, table=table, run=run, first_rowid=state.next_rowid), ts)
            if state.owes:
                tidy(state, lock)
            most = max(most, len(state.tree.runs))
        assert most <= RUNS_MAX + 1
        assert len(state.tree.range(None, None)) == 117
        assert sum(len(run) for run in state.tree.runs) == 117
        for page, count in state.shape.counted():
            for rowid in page.rowid_array(count).tolist():
                row = page.row(rowid)
                assert state.key_of is not None
                assert row is not None
                assert state.locate(state.key_of(row), 40) == rowid

"""The fold: the same records give the same state everywhere, and the state shows every snapshot."""

from __future__ import annotations

import numpy as np
import pytest

from halocline.rows.nodes import Append, Delete, Update, key_run
from halocline.rows.page import ActivePage, FrozenPage
from tests.unit.rows.rig import KEYED, Story, contents, fold, seeds, state_of, tombstones

SEEDS = seeds(4)


@pytest.mark.parametrize("kind", KEYED)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_replayed_state_equals_the_live_one(kind: str, seed: int, sim: bool) -> None:
    for page_rows in (1, 4, 64):
        story = Story(seed * 100 + page_rows, kind, page_rows)
        for _ in range(100 if sim else 15):
            story.commit()
        live, replayed = story.live, story.replayed
        assert contents(live) == contents(replayed)
        assert tombstones(live) == tombstones(replayed)
        assert (live.next_rowid, live.last_ts) == (replayed.next_rowid, replayed.last_ts)
        assert live.tree.range(None, None) == replayed.tree.range(None, None)
        for key in story.keys() if live.key_of is not None else []:
            assert list(live.tree.versions(key)) == list(replayed.tree.versions(key))


@pytest.mark.parametrize("kind", KEYED)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_state_shows_every_snapshot(kind: str, seed: int, sim: bool) -> None:
    story = Story(seed, kind)
    for _ in range(50 if sim else 14):
        story.commit()
    story.check(story.live)
    story.check(story.replayed)


@pytest.mark.parametrize("kind", KEYED)
def test_tombstones_name_key_successor_and_columns(kind: str) -> None:
    story = Story(7, kind)
    for _ in range(40):
        story.commit()
    ended = {v.rowid: v for v in story.versions.values() if v.ended <= story.ts}
    found = tombstones(story.live)
    assert found.keys() == ended.keys()
    for rowid, (commit_ts, successor, changed, key) in found.items():
        assert (commit_ts, key) == (ended[rowid].ended, ended[rowid].key)
        if successor:
            after = story.versions[successor]
            assert (after.began, after.key, changed) == (commit_ts, key, (3,))
            assert after.row[:2] == ended[rowid].row[:2]
        else:
            assert changed == ()


def test_rows_fill_a_page_and_then_the_next() -> None:
    state = state_of("int", page_rows=3)
    fold(state, Append(1, [(n, "x", 0) for n in range(8)], first_rowid=1), 1)
    assert [(page.start, count) for page, count in state.shape.counted()] == [
        (1, 3),
        (4, 3),
        (7, 2),
    ]
    assert [state.row(rowid)[0] for rowid in range(1, 9)] == list(range(8))
    assert state.row(9) is None
    assert state.row(0) is None
    assert state.owes


def test_a_gap_in_the_row_ids_starts_another_page() -> None:
    state = state_of("int", page_rows=10)
    fold(state, Append(1, [(1, "x", 0)], first_rowid=1), 1)
    state.skip_to(100)
    assert state.next_rowid == 100
    fold(state, Append(1, [(2, "x", 0)], first_rowid=100), 2)
    assert [page.start for page, _ in state.shape.counted()] == [1, 100]
    assert state.page_of(50) is None
    assert state.row(100) == (2, "x", 0)
    state.skip_to(5)
    assert state.next_rowid == 101


def test_arrow_becomes_frozen_pages_without_a_copy() -> None:
    state = state_of("int", page_rows=4)
    table = state.schema.to_table([(n, "x", n) for n in range(10)])
    fold(state, Append(1, [(100, "y", 0)], first_rowid=1), 1)
    fold(state, Append(1, table=table, run=key_run(table, state.schema), first_rowid=2), 2)
    kinds = [type(page) for page, _ in state.shape.counted()]
    assert kinds == [ActivePage, FrozenPage, FrozenPage, FrozenPage]
    frozen = state.shape.counted()[1][0]
    assert isinstance(frozen, FrozenPage)
    ours = frozen.arrow.column("n").buffers()[1]
    assert ours.address == table.column("n").chunk(0).buffers()[1].address
    assert state.shape.active.start == state.next_rowid == 12


def test_rows_of_several_commits_have_a_timestamp_each() -> None:
    for many in (1, 2, 5, 9):
        state = state_of("int", page_rows=4)
        state.fold(Append(1, [(n, "x", 0) for n in range(many)], first_rowid=3), 10, many)
        assert contents(state) == {3 + n: ((n, "x", 0), 10 + n) for n in range(many)}
        assert (state.last_ts, state.next_rowid) == (9 + many, 3 + many)
        for n in range(many):
            assert [bool(state.locate(n, ts)) for ts in (9 + n, 10 + n)] == [False, True]


def test_a_commit_fills_a_page_that_others_have_begun() -> None:
    state = state_of("int", page_rows=4)
    for first, many in ((1, 1), (2, 1), (3, 5), (8, 1), (9, 3)):
        rows = [(n, "x", 0) for n in range(first, first + many)]
        fold(state, Append(1, rows, first_rowid=first), first)
    assert [(page.start, count) for page, count in state.shape.counted()] == [
        (1, 4),
        (5, 4),
        (9, 3),
    ]
    assert [state.row(rowid)[0] for rowid in range(1, 12)] == list(range(1, 12))


def test_the_active_page_is_closed_when_it_is_full() -> None:
    state = state_of("int", page_rows=2)
    fold(state, Append(1, [(1, "x", 0), (2, "x", 0)], first_rowid=1), 1)
    assert len(state.shape.pages) == 0
    fold(state, Append(1, [(3, "x", 0)], first_rowid=3), 2)
    assert (len(state.shape.pages), len(state.shape.active), state.owes) == (1, 1, True)


def test_an_update_links_both_versions() -> None:
    for bulk in (False, True):
        state = state_of("int", page_rows=2)
        fold(state, Append(1, [(n, "x", 0) for n in range(3)], first_rowid=1), 1)
        rows = [(0, "x", 7), (2, "x", 8)]
        if bulk:
            table = state.schema.to_table(rows)
            run = key_run(table, state.schema)
            node = Update(1, np.array([1, 3]), (3,), table=table, keys=[0, 2], run=run)
        else:
            node = Update(1, [1, 3], (3,), rows)
        node.first_rowid = 4
        fold(state, node, 2)
        assert list(state.tree.versions(0)) == [4, 1]
        assert tuple(state.deletes.find(3) or ()) == (2, 5, (3,), 2)
        assert (state.locate(0, 1), state.locate(0, 2), state.locate(1, 2)) == (1, 4, 2)
        assert state.next_rowid == 6


def test_a_key_that_was_deleted_and_inserted_again_is_two_rows() -> None:
    state = state_of("int")
    fold(state, Append(1, [(1, "a", 0)], first_rowid=1), 1)
    fold(state, Delete(1, [1], [1]), 2)
    fold(state, Append(1, [(1, "b", 0)], first_rowid=2), 3)
    assert [state.locate(1, ts) for ts in range(5)] == [0, 1, 0, 2, 2]
    assert list(state.tree.versions(1)) == [2, 1]


def test_a_table_without_a_key_has_an_empty_memtree() -> None:
    story = Story(3, "none")
    for _ in range(20):
        story.commit()
    assert not story.live.tree.recent
    assert not story.live.tree.runs

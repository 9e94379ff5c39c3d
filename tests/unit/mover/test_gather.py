"""What a move takes out of L0: every version once, in the order of objects, and all tombstones."""

from __future__ import annotations

from threading import Lock
from typing import Any

import pytest

from halocline.mover.gather import gather_rows, gather_tombstones
from halocline.objects.columns import COMMIT_TS, ROWID, SUCCESSOR
from halocline.rows.page import FrozenPage
from halocline.rows.state import TableState
from halocline.rows.tidy import tidy
from halocline.rows.undo import collect
from tests.unit.rows.rig import KEYED, Story
from tests.unit.rows.rig import tombstones as in_memory


def _frozen(state: TableState) -> list[FrozenPage]:
    state.close_page()
    tidy(state, Lock())
    return [page for page in state.shape.pages if isinstance(page, FrozenPage)]


def _story(kind: str, seed: int) -> Story:
    story = Story(seed, kind)
    for _ in range(25):
        story.commit()
    return story


@pytest.mark.parametrize("kind", KEYED)
@pytest.mark.parametrize("seed", range(5))
def test_all_versions_of_a_range_by_key_then_rowid(kind: str, seed: int) -> None:
    story = _story(kind, seed)
    state = story.live
    pages = _frozen(state)
    low, high = state.next_rowid // 4, state.next_rowid * 3 // 4
    for start, end in ((1, state.next_rowid), (low, high), (1, low), (high, state.next_rowid)):
        table = gather_rows(pages, (start, end), state.schema)
        wanted = [version for version in story.versions.values() if start <= version.rowid < end]
        wanted.sort(key=lambda version: ((version.key,) if kind != "none" else (), version.rowid))
        assert table.column(ROWID).to_pylist() == [version.rowid for version in wanted]
        assert table.column(COMMIT_TS).to_pylist() == [version.began for version in wanted]
        rows = state.schema.from_table(table.drop_columns([ROWID, COMMIT_TS]))
        assert rows == [version.row for version in wanted]


@pytest.mark.parametrize("kind", KEYED)
@pytest.mark.parametrize("seed", range(5))
def test_tombstones_by_rowid_with_all_five_fields(kind: str, seed: int) -> None:
    story = _story(kind, seed)
    state = story.live
    everything = in_memory(state)
    for after, until in ((0, story.ts), (story.ts // 3, story.ts * 2 // 3), (story.ts, story.ts)):
        table = gather_tombstones(state, after, until, floor=0)
        wanted = {rowid: one for rowid, one in everything.items() if after < one[0] <= until}
        found: dict[int, Any] = {}
        for row in table.to_pylist():
            key = tuple(row[name] for name in state.schema.primary_key)
            plain = None if not key else key[0] if len(key) == 1 else key
            ended = (row[COMMIT_TS], row[SUCCESSOR] or 0, tuple(row["_changed"]), plain)
            found[row[ROWID]] = ended
        assert found == wanted
        assert table.column(ROWID).to_pylist() == sorted(wanted)


def test_tombstones_are_left_out_only_when_their_row_is_gone() -> None:
    story = _story("int", 3)
    state = story.live
    floor = story.ts * 2 // 3
    _frozen(state)
    before = in_memory(state)
    assert gather_tombstones(state, 0, story.ts, floor).num_rows == len(before), "rows are there"
    # One that memory kept although undo GC has removed its row, as runs of tombstones do.
    assert collect(state, floor, Lock()) > 0
    gone = {rowid: one for rowid, one in before.items() if one[0] <= floor}
    state.deletes.ended.update(gone)  # type: ignore[arg-type]
    kept = gather_tombstones(state, 0, story.ts, floor).column(ROWID).to_pylist()
    assert kept == sorted(set(before) - set(gone))
    # A row below the pivot may be in an object: nothing is left out.
    state.moved_rowid = state.next_rowid
    assert gather_tombstones(state, 0, story.ts, floor).num_rows == len(before)


def test_nothing_gives_empty_tables() -> None:
    state = Story(0, "int").live
    assert gather_rows([], [(1, 10)], state.schema).num_rows == 0
    assert gather_tombstones(state, 0, 10, 0).num_rows == 0

"""Housekeeping of L0 that a commit leaves behind: freeze full pages, merge runs.

    commit fold --owes--> tidy (no lock: build) --> swap (commit lock: one reference)

Freezing 8192 rows of six columns takes some milliseconds, so it may not happen under the commit
lock: the committer that filled the page does it after its acknowledgement is due to nobody else.
"""

from __future__ import annotations

from threading import Lock
from typing import TypeVar

from halocline.rows.deletes import TombstoneRun, merge_tombstones
from halocline.rows.memtree import RUNS_MAX, Run, merge_runs
from halocline.rows.page import ActivePage, FrozenPage, Page
from halocline.rows.state import Shape, TableState


def tidy(state: TableState, commit_lock: Lock) -> None:
    """Freeze what is closed and merge what has piled up. Safe to call from any thread."""
    state = state.newest  # it may have been altered since
    state.owes = False
    closed = [page for page in state.shape.pages if isinstance(page, ActivePage)]
    frozen = {page.start: page.freeze() for page in closed}
    if frozen:
        with commit_lock:
            _swap_pages(state, frozen)
    keys = _worth_merging(state.tree.runs)
    if keys:
        merged = merge_runs(keys)
        with commit_lock:
            state.tree.swap_runs(keys, merged)
    ended = _worth_merging(state.deletes.runs)
    if ended:
        tombstones = merge_tombstones(ended)
        with commit_lock:
            state.deletes.swap_runs(ended, tombstones)


R = TypeVar("R", Run, TombstoneRun)


def _worth_merging(runs: tuple[R, ...]) -> tuple[R, ...]:
    """The newest runs, up to the first that is larger than all after it: each key is merged
    O(log n) times."""
    if len(runs) <= RUNS_MAX:
        return ()
    total = 0
    first = len(runs)
    while first and (len(runs) - first < 2 or len(runs[first - 1]) <= total):
        first -= 1
        total += len(runs[first])
    return runs[first:]


def _swap_pages(state: TableState, frozen: dict[int, FrozenPage]) -> None:
    state = state.newest
    shape = state.shape
    pages: list[Page] = []
    for page in shape.pages:
        # Two threads may freeze the same page; the first swap wins, both are equal.
        replace = isinstance(page, ActivePage) and page.start in frozen
        pages.append(frozen[page.start] if replace else page)
    state.shape = Shape(shape.starts, tuple(pages), shape.active, shape.tier)

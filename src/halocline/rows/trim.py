"""Trim: memtree and deletion buffer let go of what objects hold.

    move folded (pages gone, objects there) --> trim(bound) --> memory is free

The fold of a move swaps one reference; keys and tombstones of the moved rows stay behind in memory.
That is harmless: a key whose row has no page is looked up in the objects. They are let go here, in
small steps under the commit lock, except for those newer than `bound`, the oldest snapshot from
which somebody may still commit: that commit must find out about them without reading a file.

A tombstone may go when it is in an object (its commit_ts is at most `flushed_ts`) and its row is
not in L0 any more, for scans of L0 ask memory alone.
"""

from __future__ import annotations

from threading import Lock
from typing import Any

import numpy as np

from halocline.rows.members import is_among
from halocline.rows.resident import resident
from halocline.rows.state import Ghost, TableState
from halocline.schema.batches import Int64Array

STEP = 2000
"""Keys that one turn under the commit lock lets go: less than a millisecond."""


def trim(state: TableState, bound: int, commit_lock: Lock) -> None:
    """Let go of moved rows and flushed tombstones with commit_ts <= bound."""
    with state.turn:
        until = min(bound, state.flushed_ts)
        _trim_rows(state, bound, commit_lock)
        _trim_tombstones(state, until, commit_lock)
        state.trimmed_ts = max(state.trimmed_ts, until)


def may_trim(state: TableState, bound: int) -> bool:
    """Would `trim` find anything? Asked often, so it looks at no row."""
    if not state.ghosts and state.flushed_ts <= state.trimmed_ts:
        return False
    if any(int(ghost.stamps[0]) <= bound for ghost in state.ghosts if len(ghost.stamps)):
        return True
    return len(state.deletes) > 0 and min(bound, state.flushed_ts) > state.trimmed_ts


def newest_moved(state: TableState) -> int:
    """The newest change that `trim` could let go of, whatever the bound."""
    moved = [int(ghost.stamps.max()) for ghost in state.ghosts if len(ghost.stamps)]
    return max([state.flushed_ts, *moved])


def _trim_rows(state: TableState, bound: int, commit_lock: Lock) -> None:
    ghosts = state.ghosts
    leaving = [ghost.rowids[ghost.stamps <= bound] for ghost in ghosts]
    gone = np.sort(np.concatenate([np.zeros(0, dtype=np.int64), *leaving]))
    if len(gone):
        if state.key_of is not None:
            forget_keys(state, gone, commit_lock)
        with commit_lock:
            state.undone += 1
    with commit_lock:
        kept = [Ghost(g.rowids[g.stamps > bound], g.stamps[g.stamps > bound]) for g in ghosts]
        state.ghosts = (
            *(ghost for ghost in kept if len(ghost.rowids)),
            *state.ghosts[len(ghosts) :],
        )


def forget_keys(state: TableState, gone: Int64Array, commit_lock: Lock) -> None:
    """Let the memtree forget these versions; `gone` ascends."""
    tree = state.tree
    # dict.copy() never gives up the interpreter, so commits cannot interfere. A list of items may:
    # it makes a tuple of each, and any of them can start the collector of cycles.
    # Most keys that stay are newer than all that go: a cheap test comes first.
    low, high = int(gone[0]), int(gone[-1])
    newest = [pair for pair in tree.recent.copy().items() if low <= pair[1] <= high]
    keys = _matching(newest, gone)
    for begin in range(0, len(keys), STEP):
        with commit_lock:
            for key, rowid in keys[begin : begin + STEP]:
                if tree.recent.get(key) == rowid:
                    tree.drop(key)
    # Looked at only now: a commit beside the loop above may have linked to a version that goes.
    older = [pair for pair in tree.older.copy().items() if low <= pair[1] <= high]
    links = _matching(older, gone)
    for begin in range(0, len(links), STEP):
        with commit_lock:
            for newer, _ in links[begin : begin + STEP]:
                tree.older.pop(newer, None)
    if keys:
        with commit_lock:
            tree.forget_order()
    for run in tree.runs:
        mask = ~is_among(run.rowids, gone)
        if not mask.all():
            thin = run.kept(mask)
            with commit_lock:
                tree.swap_run(run, thin)


def _matching(pairs: list[tuple[Any, int]], gone: Int64Array) -> list[tuple[Any, int]]:
    if not pairs:
        return []
    rowids = np.fromiter((rowid for _, rowid in pairs), dtype=np.int64, count=len(pairs))
    hits = is_among(rowids, gone)
    return [pair for pair, hit in zip(pairs, hits.tolist(), strict=True) if hit]


def _trim_tombstones(state: TableState, until: int, commit_lock: Lock) -> None:
    deletes = state.deletes
    singles = [(rowid, one[0]) for rowid, one in deletes.ended.copy().items() if one[0] <= until]
    if singles:
        rowids = np.fromiter((rowid for rowid, _ in singles), np.int64, len(singles))
        leaving = rowids[~resident(state.shape, rowids)].tolist()
        for begin in range(0, len(leaving), STEP):
            with commit_lock:
                for rowid in leaving[begin : begin + STEP]:
                    deletes.ended.pop(rowid, None)
    for run in deletes.runs:
        mask = (run.stamps > until) | resident(state.shape, run.rowids)
        if not mask.all():
            thin = run.kept(mask)
            with commit_lock:
                deletes.swap_run(run, thin)

"""Undo GC: versions that no snapshot at or above the floor can see leave L0.

A version whose tombstone has commit_ts <= floor is invisible to every allowed reader. Its row is
cut out of its frozen page, then the memtree forgets it, then the deletion buffer does.

The order is what keeps readers safe without a lock. A reader looks at the memtree, then at the
tombstone, then at the page. If it misses the tombstone because it is already forgotten, the page it
reads next no longer has the row, and "no row" means "ended long ago".

Only frozen pages are thinned: the active page is small and will freeze.
"""

from __future__ import annotations

from threading import Lock

import numpy as np

from halocline.rows.memtree import Run
from halocline.rows.page import FrozenPage, Mask
from halocline.rows.state import Shape, TableState


def collect(state: TableState, floor: int, commit_lock: Lock) -> int:
    """Remove what ended at or before the floor; returns the number of versions removed."""
    gone: set[int] = set()
    for page in state.shape.pages:
        if isinstance(page, FrozenPage):
            with commit_lock:
                gone |= _thin(state, page, floor)
    if gone:
        with commit_lock:
            _forget(state, gone)
    return len(gone)


def _thin(state: TableState, page: FrozenPage, floor: int) -> set[int]:
    """Cut the dead rows out of one page and swap it. Caller holds the commit lock."""
    dead = _ended_by(state, page, floor)
    if not dead.any():
        return set()
    shape = state.shape
    place = next((i for i, other in enumerate(shape.pages) if other is page), None)
    if place is None:
        return set()
    gone = set(page.rowid_array(len(page))[dead].tolist())
    # A page that nothing is left of goes: its RowIDs then have no page, which means the same.
    starts, pages = list(shape.starts), list(shape.pages)
    if dead.all():
        del starts[place], pages[place]
    else:
        pages[place] = page.without(dead)
    state.shape = Shape(tuple(starts), tuple(pages), shape.active)
    return gone


def _ended_by(state: TableState, page: FrozenPage, floor: int) -> Mask:
    dead = np.zeros(len(page), dtype=np.bool_)
    dead[page.marks.until(floor)] = True
    for run in state.deletes.runs:
        if run.ts_min <= floor:
            dead[page.offsets_of(run.within(page.start, page.end, floor))] = True
    return dead


def _forget(state: TableState, gone: set[int]) -> None:
    """Memtree first, tombstones last. Caller holds the commit lock."""
    state.undone += 1
    tree, deletes = state.tree, state.deletes
    for newer in [newer for newer, older in tree.older.items() if older in gone]:
        tree.unlink_older(newer)
    for key in [key for key, rowid in tree.recent.items() if rowid in gone]:
        tree.drop(key)
    tree.forget_order()
    removed = np.fromiter(gone, dtype=np.int64, count=len(gone))
    thinned = []
    for run in tree.runs:
        kept = ~np.isin(run.rowids, removed)
        if kept.all():
            thinned.append(run)
        elif kept.any():
            keys = run.keys
            left = (
                keys[kept]
                if isinstance(keys, np.ndarray)
                else [key for key, keep in zip(keys, kept, strict=True) if keep]
            )
            thinned.append(Run(left, run.rowids[kept]))
    tree.runs = tuple(thinned)
    for rowid in gone:
        deletes.ended.pop(rowid, None)
    deletes.runs = tuple(run for run in deletes.runs if not np.isin(run.rowids, removed).all())

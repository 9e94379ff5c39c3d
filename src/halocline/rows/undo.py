"""Undo GC: versions that no snapshot at or above the floor can see leave L0.

A version whose tombstone has commit_ts <= floor is invisible to every allowed reader. Its row is
cut out of its frozen page, then the memtree forgets it, then the deletion buffer does.

The order is what keeps readers safe without a lock. A reader looks at the memtree, then at the
tombstone, then at the page. If it misses the tombstone because it is already forgotten, the page it
reads next no longer has the row, and "no row" means "ended long ago".

Only frozen pages are thinned: the active page is small and will freeze. Objects that ended leave
the table here too; their files are GC's business (checkpoint/gc.py).
"""

from __future__ import annotations

from bisect import bisect_left
from threading import Lock

import numpy as np

from halocline.catalog.entries import ObjectEntry
from halocline.rows.page import FrozenPage
from halocline.rows.state import Shape, TableState
from halocline.rows.trim import STEP, forget_keys
from halocline.schema.batches import BoolArray, Int64Array

_NONE: Int64Array = np.zeros(0, dtype=np.int64)


def collect(state: TableState, floor: int, commit_lock: Lock, *, follows: bool = False) -> int:
    """Remove what ended at or before the floor; returns the number of versions removed.

    Waits for a move of this table: what we forget must not be on its way into an object. One who
    follows cannot wait for the owner's move, which may have begun under an older floor and bring
    such a row in an object. So it keeps tombstones, until a flush has passed them (trim.py).
    """
    removed: list[Int64Array] = []
    state = state.newest
    with state.turn:
        for page in state.shape.pages:
            # Asked without the lock first: most pages have nothing to give, and marks only grow.
            if isinstance(page, FrozenPage) and _ended_by(state, page, floor).any():
                with commit_lock:
                    removed.append(_thin(state, page, floor))
        gone = np.concatenate([_NONE, *removed])
        if len(gone):
            _forget_rows(state, gone, commit_lock)
            if not follows:
                _forget_tombstones(state, gone, commit_lock)
    return len(gone)


def _thin(state: TableState, page: FrozenPage, floor: int) -> Int64Array:
    """Cut the dead rows out of one page and swap it. Caller holds the commit lock."""
    state = state.newest
    dead = _ended_by(state, page, floor)
    shape = state.shape
    place = bisect_left(shape.starts, page.start)
    if place == len(shape.pages) or shape.pages[place] is not page:
        return _NONE  # it has moved meanwhile
    gone = page.rowid_array(len(page))[dead]
    # A page that nothing is left of goes: its RowIDs then have no page, which means the same.
    starts, pages = list(shape.starts), list(shape.pages)
    if dead.all():
        del starts[place], pages[place]
    else:
        pages[place] = page.without(dead)
    state.shape = Shape(tuple(starts), tuple(pages), shape.active, shape.tier)
    return gone


def _ended_by(state: TableState, page: FrozenPage, floor: int) -> BoolArray:
    dead = np.zeros(len(page), dtype=np.bool_)
    dead[page.marks.until(floor)] = True
    for run in state.deletes.runs:
        if run.ts_min <= floor:
            dead[page.offsets_of(run.within(page.start, page.end, floor))] = True
    return dead


def _forget_rows(state: TableState, gone: Int64Array, commit_lock: Lock) -> None:
    """The memtree comes before the tombstones, both in small steps under the commit lock."""
    if state.key_of is not None:
        forget_keys(state, gone, commit_lock)
    with commit_lock:
        # Between the two: a vectorised look-up that still met a key here looks again.
        state.undone += 1


def _forget_tombstones(state: TableState, gone: Int64Array, commit_lock: Lock) -> None:
    deletes = state.deletes
    singles = [rowid for rowid in gone.tolist() if rowid in deletes.ended]
    for begin in range(0, len(singles), STEP):
        with commit_lock:
            for rowid in singles[begin : begin + STEP]:
                deletes.ended.pop(rowid, None)
    for run in deletes.runs:
        kept = np.isin(run.rowids, gone, invert=True)
        if not kept.all():
            thin = run.kept(kept)
            with commit_lock:
                deletes.swap_run(run, thin)


def forget_objects(state: TableState, bound: int, commit_lock: Lock) -> list[ObjectEntry]:
    """Take objects that ended at or before the bound out of the table; returns them."""
    ended = [one for one in state.shape.tier.everything() if one.deleted_at <= bound]
    if ended:
        with commit_lock:
            state = state.newest
            shape = state.shape
            tier = shape.tier.without({one.id for one in ended})
            state.shape = Shape(shape.starts, shape.pages, shape.active, tier)
    return ended

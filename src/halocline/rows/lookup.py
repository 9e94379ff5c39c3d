"""Finding many rows of L0 at once: keys to RowIDs, RowIDs to rows. Vectorised; no lock.

    keys --locate_many--> RowIDs visible at S (0: none) --take--> Arrow table, in the order asked

A batch that has to be checked against the table must not cost a Python call per row: dictionary
lookups go through `map`, runs through np.searchsorted, and only the rows that changed since the
snapshot, or sit in a run and a dict at once, are decided one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa

from halocline.rows.members import is_among
from halocline.rows.memtree import Run
from halocline.rows.page import FrozenPage, Int64Array, Mask
from halocline.rows.state import Shape, TableState


def locate_many(state: TableState, keys: Sequence[Any] | Int64Array, ts: int) -> Int64Array:
    """RowID of the version of each key that is visible at `ts`; 0 where there is none."""
    while True:
        undone = state.undone
        found = _locate_many(state, keys, ts)
        # Undo GC may have forgotten a tombstone after the memtree was read: look again.
        if state.undone == undone:
            return found


def _locate_many(state: TableState, keys: Sequence[Any] | Int64Array, ts: int) -> Int64Array:
    plain = keys.tolist() if isinstance(keys, np.ndarray) else keys
    tree = state.tree
    recent, runs = tree.recent, tree.runs
    found = np.zeros(len(plain), dtype=np.int64)
    if recent:
        found = np.fromiter(map(recent.get, plain, repeat(0)), dtype=np.int64, count=len(plain))
    for run in runs:
        np.maximum(found, _in_run(run, keys, plain), out=found)
    places = np.nonzero(found)[0]
    if not len(places):
        return found
    deletes = state.deletes
    if deletes.ended or deletes.runs:
        _drop_ended(state, found, places, plain, ts)
    if state.last_ts > ts:
        # Something newer than the snapshot may have been seen: decide those rows one by one.
        for place in places[_newer(state, found[places], ts)]:
            found[place] = state.locate(plain[place], ts)
    return found


def keys_between(state: TableState, low: Any, high: Any) -> Sequence[Any] | Int64Array:
    """Keys of the memtree in [low, high), ascending, each once, whatever their visibility."""
    keys = state.tree.range(low, high)
    return np.array(keys, dtype=np.int64) if state.schema.int_key else keys


def take(shape: Shape, rowids: Int64Array, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of these versions as Arrow, in the order given. All must be in these pages."""
    schema = shape.active.schema.arrow
    if columns is not None:
        schema = pa.schema([schema.field(name) for name in columns])
    order = np.argsort(rowids, kind="stable")
    ascending = rowids[order]
    batches = []
    for page, count in shape.counted():
        begin, end = np.searchsorted(ascending, [page.start, page.end])
        if begin < end:
            offsets = page.offsets_of(ascending[begin:end])
            batch = page.batch(count)
            batch = batch if columns is None else batch.select(list(columns))
            batches.append(batch.take(pa.array(offsets)))
    table = pa.Table.from_batches(batches, schema=schema)
    assert table.num_rows == len(rowids), "a version that was found has no row"
    back = np.empty(len(order), dtype=np.int64)
    back[order] = np.arange(len(order))
    return table if np.array_equal(back, np.arange(len(back))) else table.take(pa.array(back))


def resident(shape: Shape, rowids: Int64Array) -> Mask:
    """Which of these versions have a row in these pages."""
    order = np.argsort(rowids, kind="stable")
    ascending = rowids[order]
    inside = np.zeros(len(rowids), dtype=np.bool_)
    for page, count in shape.counted():
        begin, end = np.searchsorted(ascending, [page.start, page.start + count])
        if isinstance(page, FrozenPage) and page.rowids is not None:
            begin, end = np.searchsorted(ascending, [page.start, page.end])
            inside[order[begin:end]] = is_among(ascending[begin:end], page.rowids)
        else:
            inside[order[begin:end]] = True
    return inside


def _in_run(run: Run, keys: Sequence[Any] | Int64Array, plain: Sequence[Any]) -> Int64Array:
    """The largest RowID of each key in the run, 0 where it has none."""
    found = np.zeros(len(plain), dtype=np.int64)
    if not len(run):
        return found
    if isinstance(run.keys, np.ndarray):
        wanted = np.asarray(keys, dtype=np.int64)
        inside = (wanted >= run.keys[0]) & (wanted <= run.keys[-1])
        if not inside.any():
            return found
        last = np.searchsorted(run.keys, wanted, side="right") - 1
        hit = inside & (run.keys[last] == wanted)
        found[hit] = run.rowids[last[hit]]
        return found
    for place, key in enumerate(plain):
        versions = run.find(key)
        if versions:
            found[place] = versions[-1]
    return found


def _drop_ended(
    state: TableState, found: Int64Array, places: Int64Array, plain: Sequence[Any], ts: int
) -> None:
    """Zero out newest versions that have ended, or step to the one visible at `ts`."""
    ended = state.deletes.ended
    rowids = found[places]
    hits = np.fromiter(map(ended.__contains__, rowids.tolist()), dtype=np.bool_, count=len(rowids))
    for run in state.deletes.runs:
        hits |= is_among(rowids, run.rowids)
    for place in places[hits]:
        found[place] = state.locate(plain[place], ts)


def _newer(state: TableState, rowids: Int64Array, ts: int) -> Int64Array:
    """Which of the RowIDs (0 allowed) have a stamp above `ts`. Stamps rise with RowIDs."""
    return np.nonzero(rowids >= first_rowid_after(state, ts))[0]


def first_rowid_after(state: TableState, ts: int) -> int:
    """The smallest RowID whose commit_ts is above `ts`; the next RowID when there is none."""
    first = state.next_rowid
    for page, count in reversed(state.pages()):
        if not count:
            continue
        visible = page.visible_count(count, ts)
        if visible < count:
            first = int(page.rowid_array(count)[visible])
        if visible:
            break
    return first

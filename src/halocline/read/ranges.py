"""Range reads: visible rows with low <= key < high, in key order, from all tiers.

    memtree keys in the range --> L0 rows  \\
                                             > merged by key --> Located, in key order
    objects: numbers low..high, by block   /

Of an object only the key blocks between the two bounds are read, and of its rows only those that
are handed out. A limit cuts the range into windows, from the near end on: a window is chosen such
that no source has more than so many versions in it, which takes a bisection in each, and is then
read like a range of its own. Most limits are met by the first window.

Each window is right by itself: memtree, deletion buffer, shape, in this order. What moves between
two windows is seen where it is then.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from halocline.catalog import ObjectEntry
from halocline.objects import ObjectStats
from halocline.objects.keybytes import key_bytes
from halocline.read.ended import ended_mask
from halocline.read.locate import Keys, Located, key_columns, locate_in_memory
from halocline.rows.resident import resident
from halocline.rows.state import TableState
from halocline.rows.tier import Tier
from halocline.schema.batches import Int64Array

NONE: Int64Array = np.zeros(0, dtype=np.int64)
SLACK = 32
"""A window has some more versions than rows are wanted: a few of them will have ended."""


def read_range(
    state: TableState,
    low: Any,
    high: Any,
    ts: int,
    *,
    reverse: bool = False,
    limit: int | None = None,
    without: Int64Array = NONE,
) -> pa.Table:
    """Rows visible at `ts` in key order. None leaves an end open; `without`: RowIDs to skip."""
    if limit is None:
        return _window(state, low, high, ts, reverse, without).take()
    found: list[pa.Table] = []
    for begin, end in _windows(state, low, high, ts, limit, reverse=reverse):
        located = _window(state, begin, end, ts, reverse, without)
        found.append(located.take(located.found()[:limit]))
        limit -= found[-1].num_rows
        if limit <= 0:
            break
    return pa.concat_tables(found) if found else state.schema.arrow.empty_table()


def _windows(
    state: TableState, low: Any, high: Any, ts: int, limit: int, *, reverse: bool
) -> Iterator[tuple[Any, Any]]:
    """[low, high) in pieces, nearest first."""
    count = limit + SLACK
    while limit:
        cut = _cut(state, low, high, ts, count, reverse=reverse)
        count *= 2
        if cut is None:
            yield low, high
            return
        if reverse:
            yield cut, high
            high = cut
        elif cut != low:  # else one key has that many versions
            yield low, cut
            low = cut


def _cut(state: TableState, low: Any, high: Any, ts: int, count: int, *, reverse: bool) -> Any:
    """A key that leaves at most about `count` versions of each source in the first window."""
    cut = state.tree.cut(low, high, count, reverse=reverse)
    finder, key_bytes_of = state.finder, state.schema.key_bytes
    assert finder is not None
    nearer: list[tuple[ObjectStats, int]] = []
    for entry in _nearest(state, low, high, ts, reverse=reverse):
        stats, file = entry.stats, entry.file
        assert file is not None
        if cut is not None:
            edge = key_bytes_of(cut)
            if stats.key_max < edge if reverse else stats.key_min >= edge:
                break  # This one and all others are beyond the cut: they need not be read.
        begin, end = _numbers(state, entry, low, high)
        near = end - count if reverse else begin + count
        if _rows_before(nearer, stats, reverse=reverse) > count:
            near = end - 1 if reverse else begin  # enough small objects, side by side
        if begin <= near < end:
            key = finder.key_at(file, near)
            cut = key if cut is None else (max if reverse else min)(cut, key)
        nearer.append((stats, end - begin))
    return cut


def _rows_before(
    nearer: list[tuple[ObjectStats, int]], stats: ObjectStats, *, reverse: bool
) -> int:
    """Rows of objects that end before this one begins."""
    if reverse:
        return sum(rows for other, rows in nearer if other.key_min > stats.key_max)
    return sum(rows for other, rows in nearer if other.key_max < stats.key_min)


def _nearest(
    state: TableState, low: Any, high: Any, ts: int, *, reverse: bool
) -> list[ObjectEntry]:
    """Objects that meet a range, by the end at which it is read first."""
    found = _meeting(state, state.shape.tier, low, high, ts)
    if reverse:
        found.sort(key=lambda entry: entry.stats.key_max, reverse=True)
    return found


def _meeting(state: TableState, tier: Tier, low: Any, high: Any, ts: int) -> list[ObjectEntry]:
    if not tier:
        return []
    key_bytes_of = state.schema.key_bytes
    least = b"" if low is None else key_bytes_of(low)
    most = None if high is None else key_bytes_of(high)
    return [entry for entry in tier.meeting(least, most) if entry.counts_at(ts)]


def _numbers(state: TableState, entry: ObjectEntry, low: Any, high: Any) -> tuple[int, int]:
    """Between which numbers of an object its keys in [low, high) are."""
    finder, file = state.finder, entry.file
    assert finder is not None
    assert file is not None
    begin = 0 if low is None else finder.bound(file, low)
    end = file.stats.rows if high is None else finder.bound(file, high)
    return begin, max(begin, end)


def _window(
    state: TableState, low: Any, high: Any, ts: int, reverse: bool, without: Int64Array
) -> Located:
    """All visible rows of a range, in order."""
    found = state.tree.range(low, high)
    keys: Keys = np.array(found, dtype=np.int64) if state.schema.int_key else found
    rowids = locate_in_memory(state, keys, ts)
    shape = state.shape
    kept = rowids > 0
    kept[kept] = resident(shape, rowids[kept])
    kept &= ~np.isin(rowids, without)
    places = np.nonzero(kept)[0]
    parts: list[tuple[ObjectEntry | None, Int64Array, Int64Array]] = [(None, rowids[places], NONE)]
    columns = [key_columns(state.schema, keys, places)]
    finder = state.finder
    assert finder is not None
    for entry in _meeting(state, shape.tier, low, high, ts):
        begin, end = _numbers(state, entry, low, high)
        if begin == end:
            continue
        assert entry.file is not None
        versions = finder.slice(entry.file, begin, end)
        kept = versions.commit_ts <= ts
        kept[kept] = ~ended_mask(state, versions.rowids[kept], ts)
        kept &= ~np.isin(versions.rowids, without)
        places = np.nonzero(kept)[0]
        if len(places):
            parts.append((entry, versions.rowids[places], begin + places))
            columns.append(versions.keys.take(pa.array(places)))
    order = _order([table for table in columns if table.num_rows], state.schema.primary_key)
    return _sorted(state, shape, parts, order[::-1] if reverse else order)


def _order(columns: list[pa.Table], names: tuple[str, ...]) -> Int64Array:
    """Where each row of these tables goes when they are merged by key; each of them is sorted."""
    if len(columns) < 2:
        return np.arange(columns[0].num_rows if columns else 0)
    keys = key_bytes(pa.concat_tables(columns).combine_chunks(), names)
    order: Int64Array = pc.sort_indices(keys).to_numpy().astype(np.int64)
    return order


def _sorted(
    state: TableState,
    shape: Any,
    parts: list[tuple[ObjectEntry | None, Int64Array, Int64Array]],
    order: Int64Array,
) -> Located:
    """What was found in each source, at its place in the order."""
    back = np.empty(len(order), dtype=np.int64)
    back[order] = np.arange(len(order))
    located = Located(state, shape, np.zeros(len(order), dtype=np.int64))
    at = 0
    for entry, rowids, numbers in parts:
        places = back[at : at + len(rowids)]
        located.rowids[places] = rowids
        if entry is not None:
            located.add(entry, places, rowids, numbers)
        at += len(rowids)
    return located

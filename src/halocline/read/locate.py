"""Many keys at once: the version of each that is visible at S, in any tier. Vectorised; no lock.

    keys --> L0 --not answered--> objects that meet the batch (Finder.find_many)
              |                      '--> stamps <= S, no tombstone (ended.py)
              '-------> Located <----'
                        .rowids, .take(): rows in the order asked

The rule is that of one key (point.py). A batch must not cost a Python call per row: dictionary
lookups go through `map`, runs through np.searchsorted, and only the rows that changed since the
snapshot, or sit in a run and a dict at once, are decided one by one.

Objects are asked only for keys that L0 has not answered with a live row. Of each object only the
blocks that can hold one of them are read.

What was found stays found: a Located keeps the pages and the object entries it was found in, so
that a move in between changes nothing for whoever takes the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa

from halocline.catalog.entries import ObjectEntry
from halocline.objects import ObjectReader
from halocline.objects.columns import ROWID
from halocline.read.ended import ended_mask
from halocline.rows.members import is_among
from halocline.rows.memtree import Run
from halocline.rows.resident import resident, take
from halocline.rows.state import Shape, TableState
from halocline.schema.batches import BoolArray, Int64Array
from halocline.schema.schema import Schema

Keys = Sequence[Any] | Int64Array
IN_PAGES = -1
FEW = 4096
"""So many whole rows of an object, or fewer, are read as point reads do it, out of blocks that are
kept in memory: a thousand of a million rows take 10 ms then, and 250 ms out of the file."""


class Located:
    """Versions that were found, one place for each key that was asked for."""

    __slots__ = (
        "_entries",
        "_finder",
        "_numbers",
        "_reader",
        "_schema",
        "_sources",
        "rowids",
        "shape",
    )

    def __init__(self, state: TableState, shape: Shape, rowids: Int64Array) -> None:
        self.rowids = rowids
        """RowID of the version visible for each key; 0 where there is none."""
        self._schema: Schema = state.schema
        self._reader: ObjectReader = state.shelf.reader
        self._finder = state.finder
        self.shape = shape
        self._entries: list[ObjectEntry] = []
        # For each place the object it is in, by position in `_entries`, and its number there.
        self._sources = np.full(len(rowids), IN_PAGES, dtype=np.int64)
        self._numbers = np.zeros(len(rowids), dtype=np.int64)

    def add(
        self, entry: ObjectEntry, places: Int64Array, rowids: Int64Array, numbers: Int64Array
    ) -> None:
        """Versions that were found in an object."""
        self.rowids[places] = rowids
        self._sources[places] = len(self._entries)
        self._numbers[places] = numbers
        self._entries.append(entry)

    def found(self) -> Int64Array:
        """Places of keys that have a visible version."""
        return np.nonzero(self.rowids)[0]

    def known(self) -> BoolArray:
        """Which places have a row, in a page or in an object."""
        mask = self._sources >= 0
        mask[~mask] = resident(self.shape, self.rowids[~mask])
        return mask

    def take(
        self, places: Int64Array | None = None, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Rows in the order of the places, which must be found ones; all found ones by default."""
        if places is None:
            places = self.found()
        sources = self._sources[places]
        tables, order = [], []
        for source in np.unique(sources).tolist():
            members = np.nonzero(sources == source)[0]
            order.append(members)
            tables.append(self._take_from(source, places[members], columns))
        if not tables:
            return take(self.shape, places, columns)
        if len(tables) == 1:
            return tables[0]
        back = np.argsort(np.concatenate(order), kind="stable")
        return pa.concat_tables(tables).take(pa.array(back))

    def _take_from(
        self, source: int, places: Int64Array, columns: Sequence[str] | None
    ) -> pa.Table:
        if source == IN_PAGES:
            return take(self.shape, self.rowids[places], columns)
        file = self._entries[source].file
        assert file is not None
        numbers = self._numbers[places]
        finder = self._finder
        if finder is not None and columns is None and len(numbers) <= FEW:
            return finder.take(file, numbers)
        return self._reader.take(file, self._schema, numbers, columns=columns, hidden=())


def locate_many(
    state: TableState,
    keys: Keys,
    ts: int,
    *,
    table: pa.Table | None = None,
) -> Located:
    """The version of each key that is visible at `ts`. `table` holds the same keys as columns, if
    the caller has them: that saves making columns of them."""
    rowids = locate_in_memory(state, keys, ts)
    shape = state.shape
    if not shape.tier and not state.ghosts:
        return Located(state, shape, rowids)
    moved = rowids > 0
    moved[moved] = ~resident(shape, rowids[moved])
    rowids[moved] = 0
    located = Located(state, shape, rowids)
    absent = np.nonzero(rowids == 0)[0]
    if len(absent):
        _ask_objects(state, located, absent, key_columns(state.schema, keys, absent, table), ts)
    return located


def locate_in_memory(state: TableState, keys: Keys, ts: int) -> Int64Array:
    """RowID of the version of each key that is visible at `ts`, as far as the memtree knows it; 0
    where there is none."""
    while True:
        undone = state.undone
        found = _locate_once(state, keys, ts)
        # Undo GC may have forgotten a tombstone after the memtree was read: look again.
        if state.undone == undone:
            return found


def _locate_once(state: TableState, keys: Keys, ts: int) -> Int64Array:
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
        for place in places[found[places] >= first_rowid_after(state, ts)]:
            found[place] = state.locate(plain[place], ts)
    return found


def _in_run(run: Run, keys: Keys, plain: Sequence[Any]) -> Int64Array:
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


def first_rowid_after(state: TableState, ts: int) -> int:
    """The smallest RowID whose commit_ts is above `ts`; the next RowID when there is none. Stamps
    rise with RowIDs."""
    first = state.next_rowid
    for page, count in reversed(state.shape.counted()):
        if not count:
            continue
        visible = page.visible_count(count, ts)
        if visible < count:
            first = int(page.rowid_array(count)[visible])
        if visible:
            break
    return first


def key_columns(
    schema: Schema,
    keys: Keys,
    places: Int64Array | None = None,
    table: pa.Table | None = None,
) -> pa.Table:
    """The keys at these places, or all, as columns."""
    places = np.arange(len(keys)) if places is None else places
    if table is not None:
        return table.select(list(schema.primary_key)).take(pa.array(places))
    if isinstance(keys, np.ndarray):
        (field,) = schema.key_fields
        return pa.table([pa.array(keys[places]).cast(field.type)], schema=schema.key_fields)
    return schema.key_table([keys[place] for place in places.tolist()])


def _ask_objects(
    state: TableState, located: Located, places: Int64Array, keys: pa.Table, ts: int
) -> None:
    """Look for keys in objects; `places` says where in `located` each of them belongs."""
    finder = state.finder
    assert finder is not None
    batch = finder.batch(keys)
    low, high = batch.bounds
    for entry in located.shape.tier.meeting(low, high):
        if not entry.counts_at(ts):
            continue
        assert entry.file is not None
        hits = finder.find_many(entry.file, batch)
        kept = hits.commit_ts <= ts
        kept[kept] = ~ended_mask(state, hits.rowids[kept], ts)
        if kept.any():
            at = places[hits.positions[kept]]
            located.add(entry, at, hits.rowids[kept], hits.numbers[kept])


def locate_rowids(
    state: TableState,
    located: Located,
    places: Int64Array,
    keys: pa.Table,
    entries: Sequence[ObjectEntry],
) -> None:
    """Find versions in objects by RowID: those at these places of `located`. `keys` are their keys
    as columns; a table without a primary key is searched by RowID alone."""
    rowids = located.rowids[places]
    finder = state.finder
    if finder is None:
        finder, keys = state.finder_by_rowid("data"), pa.table({ROWID: rowids})
    batch = finder.batch(keys)
    low, high = batch.bounds
    for entry in entries:
        stats, file = entry.stats, entry.file
        assert file is not None
        if stats.order == "key" and (stats.key_max < low or high < stats.key_min):
            continue
        hits = finder.find_many(file, batch)
        same = hits.rowids == rowids[hits.positions]
        if same.any():
            located.add(entry, places[hits.positions[same]], hits.rowids[same], hits.numbers[same])

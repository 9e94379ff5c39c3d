"""What others did to a table since a timestamp: the walk that every check begins with.

    gather      pages with rows that are new, versions that have ended   by reference, memory only
    fresh_keys  keys and RowIDs of these rows; `touched` adds the keys of what has ended
    Fates       how a version ended, by tombstones in memory or in objects that others have brought

Nothing that is newer than the oldest open transaction leaves memory unseen: rows that have left L0
are remembered as ghosts, so that their keys are known without reading a file.

Not here: what to do about it (conflict.py, blind.py), when is looked (check.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from halocline.catalog.entries import ObjectEntry
from halocline.objects.columns import CHANGED, ROWID, SUCCESSOR, tombstone_schema
from halocline.read.locate import Keys
from halocline.rows.deletes import Tombstone
from halocline.rows.members import distinct, is_among
from halocline.rows.page import ActivePage, Page
from halocline.rows.state import TableState
from halocline.schema.batches import Int64Array
from halocline.schema.compiled import Row
from halocline.txn.objectparts import file_of

Fate = Callable[[int], Tombstone | None]
"""How a version ended, as far as the asker can know; None while it lives."""
NONE: Int64Array = np.zeros(0, dtype=np.int64)


class Delta(NamedTuple):
    """What became of one table after some timestamp, as far as memory tells."""

    pages: list[tuple[Page, int, int]]
    """Pages with rows that are new, and the places where these begin and end."""
    ghosts: list[Int64Array]
    """RowIDs of rows that are new and have left L0 already."""
    ended: Int64Array
    ended_keys: Sequence[Any]
    until: int

    def __len__(self) -> int:
        return sum(end - begin for _, begin, end in self.pages) + len(self.ended)


def gather(state: TableState, since: int, until: int) -> Delta:
    """What is newer than `since`, by reference. Everything up to `until` has been folded, and
    nothing of it leaves memory while a transaction is open from before it: no lock is needed."""
    if until <= since:
        return Delta([], [], NONE, (), until)
    pages = []
    for page, count in reversed(state.shape.counted()):
        begin, end = page.visible_count(count, since), page.visible_count(count, until)
        if begin < end:
            pages.append((page, begin, end))
        if begin:
            break
    # After the pages: a row that has left them meanwhile is here.
    newer = [one.rowids[(one.stamps > since) & (one.stamps <= until)] for one in state.ghosts]
    ghosts = [rowids for rowids in newer if len(rowids)]
    ended, _, _, keys = state.deletes.between(since, until)
    return Delta(pages, ghosts, ended, keys, until)


def fresh_keys(state: TableState, delta: Delta) -> tuple[Keys, Int64Array]:
    """Keys and RowIDs of the rows that are new, side by side."""
    keys: list[Any] = []
    rowids = [NONE]
    for page, begin, end in delta.pages:
        rowids.append(page.rowid_array(end)[begin:end])
        if isinstance(page, ActivePage):
            assert state.key_of is not None
            keys.append(list(map(state.key_of, page.rows[begin:end])))
        else:
            part = page.batch(end).slice(begin, end - begin)
            keys.append(keys_of(state, part))
    if delta.ghosts:
        moved = moved_keys(state, np.sort(np.concatenate(delta.ghosts)))
        keys.append([key for key, _ in moved])
        rowids.append(np.array([rowid for _, rowid in moved], dtype=np.int64))
    found = np.concatenate(rowids)
    if state.schema.int_key:
        arrays = [np.asarray(part, dtype=np.int64) for part in keys]
        return np.concatenate([NONE, *arrays]), found
    return [key for part in keys for key in part], found


def touched(state: TableState, delta: Delta) -> Keys:
    """Keys, each once, of all versions that began or ended."""
    fresh, _ = fresh_keys(state, delta)
    if isinstance(fresh, np.ndarray):
        return distinct(np.concatenate([np.array(delta.ended_keys, dtype=np.int64), fresh]))
    return list(dict.fromkeys([*delta.ended_keys, *fresh]))


def keys_of(state: TableState, table: Any) -> Keys:
    """The keys of a table, as an array if they are integers."""
    schema = state.schema
    return schema.int_keys(table) if schema.int_key else schema.keys_of(table)


def moved_keys(state: TableState, rowids: Int64Array) -> list[tuple[Any, int]]:
    """Keys whose newest version is one of these: the memtree still knows them."""
    wanted = set(rowids.tolist())
    found = [(key, rowid) for key, rowid in list(state.tree.recent.items()) if rowid in wanted]
    for run in state.tree.runs:
        places = np.nonzero(is_among(run.rowids, rowids))[0].tolist()
        found += [(run.view[place], run.ids[place]) for place in places]
    return found


def plain(key: Any) -> Any:
    """A key out of an array, as callers know it."""
    return key.item() if isinstance(key, np.integer) else key


def live_since(state: TableState, rowid: int, fate: Fate) -> int:
    """commit_ts of a version that the memtree knows, 0 when it has ended."""
    if fate(rowid) is not None:
        return 0
    stamp = state.stamp(rowid)
    # What the truncating transaction inserted itself has its very timestamp, and lives.
    return 0 if stamp < state.shape.tier.last_truncate_ts else stamp


class Fates:
    """How versions ended: memory, and the tombstone objects of others."""

    def __init__(self, state: TableState, entries: Iterable[ObjectEntry]) -> None:
        self._state = state
        ends = [entry for entry in entries if entry.kind == "tombstone"]
        # The earliest tombstone of a version counts.
        self._entries = sorted(ends, key=lambda entry: entry.created_at)
        self._loaded: dict[int, pa.Table] = {}

    def find(self, rowid: int) -> Tombstone | None:
        tombstone = self._state.deletes.find(rowid)
        if tombstone is not None:
            return tombstone
        for entry in self._entries:
            if entry.stats.rowid_min <= rowid <= entry.stats.rowid_max:
                table = self._table(entry)
                rowids = table.column(ROWID).to_numpy()
                place = int(np.searchsorted(rowids, rowid))
                if place < len(rowids) and rowids[place] == rowid:
                    return self._at(entry, table, place)
        return None

    def among(self, rowids: Int64Array, since: int) -> Int64Array:
        """Which of these, ascending, are ended by tombstone objects that came after `since`."""
        found = [np.zeros(0, dtype=np.int64)]
        for entry in self._entries:
            if entry.created_at <= since:
                continue
            near = rowids[np.searchsorted(rowids, entry.stats.rowid_min) :]
            near = near[: np.searchsorted(near, entry.stats.rowid_max, "right")]
            if len(near):
                theirs = self._table(entry).column(ROWID).to_numpy()
                found.append(near[is_among(near, theirs)])
        return np.concatenate(found)

    def ends(
        self, entry: ObjectEntry, among: Callable[[Keys], Sequence[int]]
    ) -> Iterator[tuple[int, Any]]:
        """RowID and key of every version that one of the objects ends, of keys that `among`
        picks."""
        table = self._table(entry)
        rowids, keys = table.column(ROWID), keys_of(self._state, table)
        for place in among(keys):
            yield rowids[place].as_py(), plain(keys[place])

    @property
    def entries(self) -> Sequence[ObjectEntry]:
        return self._entries

    def _table(self, entry: ObjectEntry) -> pa.Table:
        found = self._loaded.get(entry.id)
        if found is None:
            schema, reader = self._state.schema, self._state.shelf.reader
            hidden = [ROWID, SUCCESSOR, CHANGED]
            found = reader.read(
                file_of(entry),
                tombstone_schema(schema),
                columns=list(schema.primary_key),
                hidden=hidden,
            ).combine_chunks()
            self._loaded[entry.id] = found
        return found

    def _at(self, entry: ObjectEntry, table: pa.Table, place: int) -> Tombstone:
        one = table.slice(place, 1)
        keys = self._state.schema.keys_of(one) if self._state.key_of is not None else [None]
        changed = one.column(CHANGED)[0].as_py() or ()
        successor = one.column(SUCCESSOR)[0].as_py() or 0
        return Tombstone(entry.created_at, successor, tuple(changed), keys[0])


def read_row(state: TableState, key: Any, rowid: int) -> Row:
    """The row of a version, wherever it is. An open transaction may need it, so it is somewhere."""
    row = find_version(state, key, rowid)
    assert row is not None, "a version that an open transaction may need is gone"
    return row


def find_version(state: TableState, key: Any, rowid: int) -> Row | None:
    """The row of a version, wherever it is; None when it is gone."""
    while True:
        row = state.row(rowid)
        if row is not None:
            return row
        tier = state.shape.tier
        for entry in tier.data:
            stats = entry.stats
            if stats.rowid_min <= rowid <= stats.rowid_max:
                found = _row_in(state, entry, key, rowid)
                if found is not None:
                    return found
        if state.shape.tier is tier:
            return None


def _row_in(state: TableState, entry: ObjectEntry, key: Any, rowid: int) -> Row | None:
    file = file_of(entry)
    if state.finder is not None:
        for found in state.finder.find(file, key):
            if found.rowid == rowid:
                return found.row
        return None
    for found in state.finder_by_rowid("data").find(file, rowid):
        return found.row[1:]  # behind the RowID, by which such rows are found
    return None

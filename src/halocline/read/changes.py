"""The change feed: every row version that began or ended in (since, until], wherever it is now.

    version began, nothing preceded it  -> insert
    version began as a successor        -> update_after
    version ended with a successor      -> update_before
    version ended without one           -> delete

Events come in commit order; inside a commit the befores and deletes come first, then the afters and
inserts, so that applying them one by one never meets a key twice.

Beginnings are in pages and data objects, ends in the deletion buffer and tombstone objects. Each
RowID begins and ends once, so reading it in two places changes nothing, and where the rows are now
does not matter: the feed is the same before and after every move, rewrite and collection.

- All objects are read that stood for the table at any moment of [since, until]. What a rewrite
  made after `since` is left out: the objects it replaced hold the same, and more.
- A version that began and ended in one commit was never visible; its successor is an insert.
- A bulk job may have ended a version that had ended before: the earliest tombstone counts, so one
  whose version had ended by `since`, or was dropped by then, is no event.
- Rows of an object that TRUNCATE ended have no tombstones: those that lived end with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from halocline.catalog import ObjectEntry
from halocline.errors import UsageError
from halocline.objects import ObjectFile
from halocline.objects.columns import COMMIT_TS, ROWID, SUCCESSOR, tombstone_schema
from halocline.objects.keybytes import key_bytes
from halocline.read.ended import ended_mask, ended_rowids
from halocline.read.locate import Located, locate_rowids
from halocline.rows.resident import resident
from halocline.rows.state import Shape, TableState
from halocline.schema.batches import BoolArray, Int64Array
from halocline.schema.schema import Schema

KINDS = ("delete", "update_before", "update_after", "insert")
DELETE, BEFORE, AFTER, INSERT = range(4)
_NONE: Int64Array = np.zeros(0, dtype=np.int64)


class _Part(NamedTuple):
    """Versions that began, or ended, as one source tells of them."""

    rowids: Int64Array = _NONE
    stamps: Int64Array = _NONE
    successors: Int64Array = _NONE
    """Of versions that ended; 0: none."""
    entry: ObjectEntry | None = None
    """The object that holds their rows, at these numbers, where that is known."""
    numbers: Int64Array = _NONE
    keys: pa.Table | None = None
    """Their keys, where a row that has left its page must be searched for."""


class Events(NamedTuple):
    """All events of a table, in order: place in `located`, commit_ts, place in KINDS."""

    located: Located
    places: Int64Array
    stamps: Int64Array
    kinds: Int64Array


def changes_schema(schema: Schema) -> pa.Schema:
    return schema.arrow.append(pa.field("_change", pa.string(), nullable=False)).append(
        pa.field("_commit_ts", pa.int64(), nullable=False)
    )


def read_changes(state: TableState, since: int, until: int, *, net: bool = False) -> pa.Table:
    """All events of one table, in order, with their rows; with `net`, what is left of them."""
    events = read_events(state, since, until, rows=True)
    table = events.located.take(events.places)
    names = pa.array(KINDS).take(pa.array(events.kinds))
    columns = [*table.columns, names, pa.array(events.stamps, pa.int64())]
    found = pa.Table.from_arrays(columns, schema=changes_schema(state.schema))
    return _net(found, state.schema) if net else found


def _net(changes: pa.Table, schema: Schema) -> pa.Table:
    """What is left of some changes: one row for each key that is not as it was before them.

    A row that was there before is in the first change of its key, one that is there now in the
    last; a key that came and went has neither, and one that is as before has two equal ones.
    """
    if not schema.primary_key:
        raise UsageError("net=True tells rows apart by key, and this table has none")
    if not changes.num_rows:
        return changes
    keys = key_bytes(changes.combine_chunks(), list(schema.primary_key))
    numbered = pa.table({"key": keys, "n": pa.array(np.arange(changes.num_rows))})
    ends = numbered.group_by("key").aggregate([("n", "min"), ("n", "max")])
    ends = ends.sort_by("n_max")
    first, last = (changes.take(ends.column(name)) for name in ("n_min", "n_max"))
    was = pc.not_equal(first.column("_change"), "insert").to_numpy()
    is_there = pc.not_equal(last.column("_change"), "delete").to_numpy()
    same = _same_rows(first.select(schema.names), last.select(schema.names))
    kinds = np.where(was, np.where(is_there, AFTER, DELETE), INSERT)
    place = last.schema.get_field_index("_change")
    named = last.set_column(place, last.schema.field(place), pa.array(KINDS).take(pa.array(kinds)))
    return named.filter(pa.array((was | is_there) & ~(was & is_there & same)))


def _same_rows(some: pa.Table, others: pa.Table) -> BoolArray:
    """Which rows of two tables are equal, NULL to NULL and NaN to NaN."""
    same = np.ones(some.num_rows, dtype=np.bool_)
    for left, right in zip(some.columns, others.columns, strict=True):
        if pa.types.is_nested(left.type):  # Arrow does not compare these
            pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
            same &= np.fromiter((a == b for a, b in pairs), np.bool_, len(left))
            continue
        equal = pc.fill_null(pc.equal(left, right), False)
        if pa.types.is_floating(left.type):
            both = pc.fill_null(pc.and_(pc.is_nan(left), pc.is_nan(right)), False)
            equal = pc.or_(equal, both)
        equal = pc.or_(equal, pc.and_(pc.is_null(left), pc.is_null(right)))
        same &= equal.to_numpy()
    return same


def read_events(state: TableState, since: int, until: int, *, rows: bool = False) -> Events:
    """All events of one table, in order; with `rows`, it is also found out where their rows are."""
    # The deletion buffer before the shape: what leaves it is in the shape by then.
    rowids, stamps, successors, keys = state.deletes.between(since, until)
    shape = state.shape
    standing, tombstones = shape.tier.between(since, until)
    data, tombstones = _replaced(standing, since), _replaced(tombstones, since)
    known = state.schema.key_table(keys) if data and state.schema.primary_key else None
    ends = [_Part(rowids, stamps, successors, keys=known)]
    ends += [_ends_of(state, entry, since, until) for entry in tombstones]
    ends += [_truncated(state, entry, since, until) for entry in standing if entry.truncated]
    begins = [_began_in_pages(shape, since, until)]
    begins += [_began_in(state, entry, since, until) for entry in data]
    began, ended = _once(begins), _once(ends)
    if any(since < e.created_at <= until and not e.stats.committed for e in (*data, *tombstones)):
        located = Located(state, shape, ended[:, 0].copy())
        _find_ended(state, located, ended, ends, data)
        known = located.known() | np.isin(ended[:, 0], began[:, 0])
        ended = ended[known & ~ended_mask(state, ended[:, 0], since)]
    born_dead = _born_dead(began, ended)
    began = began[~np.isin(began[:, 0], born_dead)]
    ended = ended[~np.isin(ended[:, 0], born_dead)]
    return _in_order(state, shape, data, began, ended, begins, ends if rows else ())


def _replaced(entries: Sequence[ObjectEntry], since: int) -> list[ObjectEntry]:
    """Objects less those that a rewrite made after `since`: what these replaced is here, too."""
    return [
        entry
        for entry in entries
        if entry.moved or not entry.stats.committed or entry.created_at <= since
    ]


# Beginnings.


def _began_in_pages(shape: Shape, since: int, until: int) -> _Part:
    rowids, stamps = [_NONE], [_NONE]
    for page, count in shape.counted():
        begin, end = page.visible_count(count, since), page.visible_count(count, until)
        if begin < end:
            rowids.append(page.rowid_array(count)[begin:end])
            stamps.append(page.stamp_array(count)[begin:end])
    return _Part(np.concatenate(rowids), np.concatenate(stamps))


def _began_in(state: TableState, entry: ObjectEntry, since: int, until: int) -> _Part:
    if entry.commit_ts_max <= since or entry.commit_ts_min > until:
        return _Part()
    rowids, stamps = _read_stamps(state, entry)
    numbers = np.nonzero((stamps > since) & (stamps <= until))[0]
    return _Part(rowids[numbers], stamps[numbers], entry=entry, numbers=numbers)


def _read_stamps(state: TableState, entry: ObjectEntry) -> tuple[Int64Array, Int64Array]:
    reader = state.shelf.reader
    table = reader.read(_file(entry), state.schema, columns=[], hidden=[ROWID, COMMIT_TS])
    return table.column(ROWID).to_numpy(), table.column(COMMIT_TS).to_numpy()


# Ends.


def _ends_of(state: TableState, entry: ObjectEntry, since: int, until: int) -> _Part:
    """The tombstones of an object."""
    schema = tombstone_schema(state.schema)
    if entry.commit_ts_max <= since or entry.commit_ts_min > until:
        return _Part()
    names = [*state.schema.primary_key, SUCCESSOR]
    table = state.shelf.reader.read(_file(entry), schema, columns=names, hidden=[ROWID, COMMIT_TS])
    stamps = table.column(COMMIT_TS).to_numpy()
    table = table.filter(pa.array((stamps > since) & (stamps <= until)))
    return _Part(
        table.column(ROWID).to_numpy(),
        table.column(COMMIT_TS).to_numpy(),
        pc.fill_null(table.column(SUCCESSOR), 0).to_numpy(),
        keys=table.select(list(state.schema.primary_key)),
    )


def _truncated(state: TableState, entry: ObjectEntry, since: int, until: int) -> _Part:
    """The rows that lived when their object was ended by TRUNCATE."""
    ts = entry.deleted_at
    if not since < ts <= until:
        return _Part()
    rowids, stamps = _read_stamps(state, entry)
    low, high = entry.stats.rowid_min, entry.stats.rowid_max + 1
    # Its tombstones ended with it, so the moment before is asked.
    dead = np.isin(rowids, ended_rowids(state, state.shape.tier, ts - 1, low, high))
    numbers = np.nonzero((stamps < ts) & ~dead)[0]
    count = len(numbers)
    fill = np.full(count, ts, dtype=np.int64), np.zeros(count, dtype=np.int64)
    return _Part(rowids[numbers], *fill, entry=entry, numbers=numbers)


# Both together.


def _once(parts: Sequence[_Part]) -> Int64Array:
    """RowID, commit_ts, successor, part and place in it: each RowID once, its earliest."""
    tables = []
    for number, part in enumerate(parts):
        count = len(part.rowids)
        after = part.successors if len(part.successors) else np.zeros(count, dtype=np.int64)
        where = np.full(count, number, dtype=np.int64), np.arange(count)
        tables.append(np.stack([part.rowids, part.stamps, after, *where], axis=1))
    table: Int64Array = np.concatenate(tables)
    table = table[np.lexsort((table[:, 3], table[:, 1], table[:, 0]))]
    first = np.append(True, table[1:, 0] != table[:-1, 0])[: len(table)]
    once: Int64Array = table[first]
    return once


def _born_dead(began: Int64Array, ended: Int64Array) -> Int64Array:
    """RowIDs of versions that ended in the commit that brought them."""
    both, begin, end = np.intersect1d(began[:, 0], ended[:, 0], True, return_indices=True)
    dead: Int64Array = both[began[begin, 1] == ended[end, 1]]
    return dead


def _in_order(
    state: TableState,
    shape: Shape,
    data: Sequence[ObjectEntry],
    began: Int64Array,
    ended: Int64Array,
    begins: Sequence[_Part],
    ends: Sequence[_Part],
) -> Events:
    """Events in commit order; in a commit what ended comes first."""
    after = np.isin(began[:, 0], ended[:, 2])
    before = np.isin(ended[:, 2], began[:, 0])
    kinds = np.concatenate([np.where(before, BEFORE, DELETE), np.where(after, AFTER, INSERT)])
    both = np.concatenate([ended, began])
    order = np.lexsort((both[:, 0], kinds >= AFTER, both[:, 1]))
    located = Located(state, shape, both[:, 0].copy())
    if ends:
        _find_ended(state, located, ended, ends, data)
        _find_began(located, began, begins, len(ended))
    return Events(located, order, both[order, 1], kinds[order])


def _find_began(located: Located, began: Int64Array, begins: Sequence[_Part], first: int) -> None:
    for number, part in enumerate(begins):
        if part.entry is not None:
            mine = np.nonzero(began[:, 3] == number)[0]
            numbers = part.numbers[began[mine, 4]]
            located.add(part.entry, first + mine, began[mine, 0], numbers)


def _find_ended(
    state: TableState,
    located: Located,
    ended: Int64Array,
    ends: Sequence[_Part],
    data: Sequence[ObjectEntry],
) -> None:
    """Say where the rows are that ended: in pages, in a known object, or to be found by key."""
    away = ~resident(located.shape, ended[:, 0])
    places, keys = [_NONE], []
    for number, part in enumerate(ends):
        mine = np.nonzero(away & (ended[:, 3] == number))[0]
        if part.entry is not None:
            located.add(part.entry, mine, ended[mine, 0], part.numbers[ended[mine, 4]])
        elif len(mine):
            places.append(mine)
            if part.keys is not None:
                keys.append(part.keys.take(pa.array(ended[mine, 4])))
    wanted = np.concatenate(places)
    if len(wanted):
        table: Any = pa.concat_tables(keys) if state.schema.primary_key else None
        locate_rowids(state, located, wanted, table, data)


def _file(entry: ObjectEntry) -> ObjectFile:
    assert entry.file is not None
    return entry.file

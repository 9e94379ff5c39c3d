"""db.check(): what must hold, in memory and in every file, verified from scratch.

    table --one snapshot, one shape--> pages | objects one by one | RowIDs in windows | keys merged

- Pages: stamps ascend, ranges of RowIDs never overlap, the memtree finds the live row of a key.
- Objects, ended ones included: the file is there and what the catalog says (objects/inspect.py).
- Index objects: each is what its kind makes of its data object (database/indexes.py).
- RowIDs: none is in two places that count now; a tombstone names a version that is there, with the
  same key and not from the future, or one that ended at or before the floor; the tombstone of a row
  in L0 is in memory. A bulk job may end a version that had ended before: that one may be gone.
- Keys: none has two live rows, whatever tier they are in.

Problems are collected, not raised: a damaged file is named once and left out of all that follows.
Everything is vectorised; memory holds one object, one window of RowIDs or one slab of keys, and
for small tables each file is decoded only once. Commits and background work may go on meanwhile:
what is looked at is a snapshot that the caller has pinned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from halocline.catalog import ObjectEntry
from halocline.checkpoint.load import find_damage
from halocline.compaction.merge import dropper, merge, rowids_of
from halocline.database.indexes import index_problems
from halocline.database.role import Role
from halocline.errors import CorruptionError, HaloclineError
from halocline.ids import NEVER
from halocline.log.recover import read_log
from halocline.objects.columns import COMMIT_TS, ROWID, tombstone_schema
from halocline.objects.inspect import inspect
from halocline.objects.keybytes import key_bytes
from halocline.objects.order import sort_rows
from halocline.options import Options
from halocline.read.ended import ended_rowids
from halocline.rows import EngineState, TableState
from halocline.rows.page import Page
from halocline.rows.state import Shape
from halocline.schema.batches import Int64Array, column_values
from halocline.store import Files

WINDOW_ROWS: Final = 2_000_000
"""Rows that are compared at once: some 200 MB."""
SHOWN_MAX: Final = 10
"""Rows of one kind of problem that are named."""

_NONE: Final[Int64Array] = np.zeros(0, dtype=np.int64)
_NARROW: Final = [pa.field(name, pa.int64(), nullable=False) for name in (ROWID, COMMIT_TS)]


def check_engine(engine: EngineState, ts: int) -> list[str]:
    """Every problem found in any table, as the snapshot `ts` sees it."""
    problems = []
    for state in list(engine.tables.values()):
        if state.dropped_at <= engine.floor:
            continue  # nobody can read it: GC may have removed its files
        found = _Check(engine, state, ts).run()
        problems += [f"table {state.entry.name!r}: {text}" for text in found]
    return problems


def check_checkpoints(role: Role) -> list[str]:
    """Every file of a checkpoint that is not what was written."""
    problems, engine = [], role.core.engine
    for node in engine.checkpoints:
        found = find_damage(engine.shelf.objects, node)
        role.refresh()
        if node in engine.checkpoints:  # no newer one has taken its place meanwhile
            problems += found
    return problems


def check_log(files: Files, options: Options) -> list[str]:
    """What is wrong with the log, from its first entry to its last."""
    try:
        for _ in read_log(files, options).entries():
            pass
    except CorruptionError as error:
        return [str(error)]
    return []


class _Part(NamedTuple):
    """Where some rows or tombstones are, and how to read keys, `_rowid`, `_commit_ts` of them."""

    name: str
    rows: int
    rowid_min: int
    rowid_max: int
    load: Callable[[], Any]
    counts: bool = True
    """Does it stand for the table at the snapshot?"""


class _Check:
    """One table at one snapshot."""

    def __init__(self, engine: EngineState, state: TableState, ts: int) -> None:
        self.engine, self.state, self.ts = engine, state, ts
        self.keys = list(state.schema.primary_key)
        # Memory first, then the shape: what has left the one is in the other. The pivot follows the
        # shape, so it is asked before it.
        self.pivot = state.moved_rowid
        self.memory = state.deletes.between(0, ts)[:2]
        self.shape: Shape = state.shape
        self.tables: dict[int, Any] | None = {}
        """Narrow tables of objects; None when all of them together are too large to be kept."""
        self.hidden: list[tuple[int, int]] = []
        """RowIDs that may be in a damaged file."""

    def run(self) -> Iterator[str]:
        yield from self.check_pages()
        yield from self.check_successors()
        good, bad = [], []
        if sum(entry.stats.rows for entry in self.shape.tier.by_id.values()) > WINDOW_ROWS:
            self.tables = None
        for entry in self.shape.tier.by_id.values():
            if entry.created_at > self.ts and not entry.moved:
                continue  # It came after the snapshot: the next check has it.
            if entry.deleted_at <= self.engine.floor:
                continue  # No snapshot may be opened that reads it: GC may take the file.
            found = list(self.check_object(entry))
            if not found:
                good.append(entry)
            elif entry.id in self.state.shape.tier.by_id:  # GC has not collected it meanwhile.
                bad.append(entry)
                yield from found
        good_ids = {entry.id for entry in good}
        yield from index_problems(self.state, self.shape.tier, good_ids)
        entries = self.shape.tier.by_id.values()
        self.bulk = [entry.created_at for entry in entries if not entry.stats.committed]
        self.hidden = [(e.stats.rowid_min, e.stats.rowid_max) for e in bad if e.kind == "data"]
        try:
            yield from self.check_rowids(good)
            # Without all tombstones nobody can tell which rows are live.
            if self.keys and all(entry.kind == "data" for entry in bad):
                yield from self.check_keys([entry for entry in good if entry.kind == "data"])
        except HaloclineError as error:
            known = self.state.shape.tier.by_id
            if all(entry.id in known for entry in good):  # else GC has taken what we were reading
                yield str(error)

    # Pages.

    def check_pages(self) -> Iterator[str]:
        end, stamp = 0, 0
        for page, count in self.shape.counted():
            stamps = page.stamp_array(count)
            if page.start < end:
                yield f"page at RowID {page.start} overlaps the one before it"
            if count and page.rowid_array(count)[0] < self.pivot:
                yield f"the page at RowID {page.start} holds rows that have moved"
            if count and (stamps[0] < stamp or (stamps[1:] < stamps[:-1]).any()):
                yield f"commit timestamps fall in the page at RowID {page.start}"
            end = page.end
            stamp = int(stamps[-1]) if count else stamp
        if self.state.next_rowid < end:
            yield f"next RowID {self.state.next_rowid} lies below the rows"

    def check_successors(self) -> Iterator[str]:
        """A version lives on under the same key, as far as it does so in L0."""
        state, deletes = self.state, self.state.deletes
        if state.key_of is None:
            return
        first = (*self.shape.pages, self.shape.active)[0].start
        pairs = [(rowid, one[1], one[3]) for rowid, one in deletes.ended.copy().items() if one[1]]
        for run in deletes.runs:
            indexes = np.flatnonzero(run.successors >= first)
            keys = [run.keys[index] for index in indexes.tolist()]
            numbers = (run.rowids[indexes].tolist(), run.successors[indexes].tolist(), keys)
            pairs += zip(*numbers, strict=True)
        for rowid, successor, key in pairs:
            row = state.row(successor)
            if row is not None and state.key_of(row) != key:
                yield f"the successor of RowID {rowid} has another key"

    def page_table(self, page: Page, count: int) -> Any:
        """Keys, `_rowid` and `_commit_ts` of a page."""
        table = pa.Table.from_batches([page.batch(count)]).select(self.keys)
        for field, values in zip(
            _NARROW, (page.rowid_array(count), page.stamp_array(count)), strict=True
        ):
            table = table.append_column(field, pa.array(values))
        return table

    # Objects, one by one.

    def check_object(self, entry: ObjectEntry) -> Iterator[str]:
        assert entry.file is not None
        stats = entry.stats
        problems, narrow = inspect(self.state.shelf.reader, entry.file, self.state.schema)
        if narrow is not None and self.tables is not None:
            self.tables[entry.id] = narrow
        yield from problems
        stamps = (stats.commit_ts_min, stats.commit_ts_max)
        if not stats.committed:
            stamps = (entry.created_at, entry.created_at)
        if (entry.commit_ts_min, entry.commit_ts_max) != stamps:
            yield f"{entry.key}: its entry gives its rows other timestamps than the file does"
        if entry.commit_ts_max > entry.created_at:
            yield f"{entry.key}: it holds rows that are younger than itself"
        if entry.deleted_at <= entry.created_at:
            yield f"{entry.key}: it ended before it began"
        if stats.rowid_max >= self.state.next_rowid:
            yield f"{entry.key}: it names RowIDs that were not issued yet"

    def load(self, entry: ObjectEntry) -> Any:
        """Keys, `_rowid` and `_commit_ts` of an object."""
        if self.tables is not None and entry.id in self.tables:
            return self.tables[entry.id]
        assert entry.file is not None
        schema = self.state.schema
        seen = tombstone_schema(schema) if entry.kind == "tombstone" else schema
        reader = self.state.shelf.reader
        table = reader.read(entry.file, seen, columns=self.keys, hidden=[ROWID, COMMIT_TS])
        if self.tables is not None:
            self.tables[entry.id] = table
        return table

    def part(self, entry: ObjectEntry) -> _Part:
        stats, counts = entry.stats, entry.counts_at(self.ts)
        load = partial(self.load, entry)
        return _Part(entry.key, stats.rows, stats.rowid_min, stats.rowid_max, load, counts)

    # RowIDs, a window at a time.

    def check_rowids(self, good: Sequence[ObjectEntry]) -> Iterator[str]:
        pages = [
            _Part(
                f"the page at RowID {page.start}",
                count,
                page.start,
                page.end - 1,
                partial(self.page_table, page, count),
            )
            for page, count in self.shape.counted()
        ]
        objects = [self.part(entry) for entry in good if entry.kind == "data"]
        buried = [self.part(entry) for entry in good if entry.kind == "tombstone"]
        buffer = pa.table(list(self.memory), schema=pa.schema(_NARROW))
        for low, high in _windows([*objects, *pages, *buried]):
            in_l0, in_objects = ([_cut(one, low, high) for one in x] for x in (pages, objects))
            yield from _overlaps([*objects, *pages], [*in_objects, *in_l0])
            rows = _by_rowid([*in_l0, *in_objects])
            memory = _between(buffer, low, high)
            yield from self.check_tombstones("the deletion buffer", memory, rows)
            for part in buried:
                named = _cut(part, low, high)
                yield from self.check_tombstones(part.name, named, rows)
                if part.counts:
                    here = np.concatenate([_NONE, *map(rowids_of, in_l0)])
                    owed = np.intersect1d(rowids_of(named), here)
                    owed = np.setdiff1d(owed, rowids_of(memory))
                    yield from _shown(
                        part.name, "ends a row of L0 and memory has no tombstone", owed
                    )

    def check_tombstones(self, name: str, named: Any, rows: Any) -> Iterator[str]:
        """Some tombstones against all rows, by RowID, that there are in this window."""
        targets, stamps = rowids_of(named), named.column(COMMIT_TS).to_numpy()
        existing = rowids_of(rows)
        indexes = np.searchsorted(existing, targets)
        indexes[indexes == len(existing)] = 0
        found = existing[indexes] == targets if len(existing) else np.zeros(len(targets), np.bool_)
        lost = ~found & (stamps > self.engine.floor) & ~np.isin(stamps, self.bulk)
        for first, last in self.hidden:
            lost &= (targets < first) | (targets > last)
        yield from _shown(name, "ends a row that is nowhere", targets[lost])
        began = rows.column(COMMIT_TS).to_numpy()[indexes[found]]
        young = began > stamps[found]
        yield from _shown(name, "ends a row before it began", targets[found][young])
        if self.keys and set(self.keys) <= set(named.column_names) and found.any():
            theirs = key_bytes(rows.take(pa.array(indexes[found])), self.keys)
            ours = key_bytes(named.filter(pa.array(found)), self.keys)
            other = pc.not_equal(theirs, ours).to_numpy(zero_copy_only=False)
            yield from _shown(name, "ends a row of another key", targets[found][other])

    # Keys, in their order.

    def check_keys(self, data: Sequence[ObjectEntry]) -> Iterator[str]:
        """No key is live twice, and the memtree knows those that are live in L0."""
        # With what memory had when the shape was taken: undo GC may since have let go of a row that
        # is still in a page of that shape, and of its tombstone.
        ended = ended_rowids(self.state, self.shape.tier, self.ts)
        drop = dropper(np.union1d(ended, self.memory[0]))
        others = []
        for page, count in self.shape.counted():
            table = self.page_table(page, count).slice(0, page.visible_count(count, self.ts))
            table = table.filter(pa.array(~drop(rowids_of(table))))
            yield from self.check_memtree(table)
            others.append(sort_rows(table, self.keys))
        counting = [entry for entry in data if entry.counts_at(self.ts)]
        if self.tables is not None:  # read already
            tables = [self.load(entry) for entry in counting]
            others += [table.filter(pa.array(~drop(rowids_of(table)))) for table in tables]
            counting = []
        files = [entry.file for entry in counting if entry.file is not None]
        reader, schema = self.state.shelf.reader, self.state.schema
        for slab in merge(reader, files, schema, columns=self.keys, drop=drop, others=others):
            yield from self.check_slab(slab)

    def check_memtree(self, table: Any) -> Iterator[str]:
        columns = [_values(table.column(name)) for name in self.keys]
        keys = columns[0] if len(columns) == 1 else zip(*columns, strict=True)
        tree, deletes = self.state.tree, self.state.deletes
        for key, rowid in zip(keys, rowids_of(table).tolist(), strict=True):
            if tree.newest(key) == rowid:
                continue
            # Whoever has ended it since then may have put another version there; and the mover may
            # have taken the row away, which comes before the key is forgotten.
            if deletes.find(rowid) is None and self.state.row(rowid) is not None:
                yield f"the memtree does not find the live row of key {key!r}"

    def check_slab(self, slab: Any) -> Iterator[str]:
        stamps = slab.column(COMMIT_TS).to_numpy()
        if len(stamps) and stamps.max() > self.ts:
            slab = slab.filter(pa.array(stamps <= self.ts))
        same = np.ones(max(0, slab.num_rows - 1), dtype=np.bool_)
        for name in self.keys:
            column = slab.column(name).combine_chunks()
            same &= pc.equal(column[:-1], column[1:]).to_numpy(zero_copy_only=False)
        rowids = rowids_of(slab)
        for index in np.flatnonzero(same)[:SHOWN_MAX].tolist():
            key = tuple(_values(slab.column(name).slice(index, 1))[0] for name in self.keys)
            shown = key[0] if len(key) == 1 else key
            twins = f"RowIDs {rowids[index]} and {rowids[index + 1]}"
            yield f"key {shown!r} is live twice: {twins}"


def _windows(parts: Sequence[_Part]) -> Iterator[tuple[int, int]]:
    """Ranges of RowIDs, [low, high), that hold about WINDOW_ROWS rows each."""
    low, rows = 0, 0
    for part in sorted(parts, key=lambda part: part.rowid_min):
        if rows + part.rows > WINDOW_ROWS and part.rowid_min > low:
            yield low, part.rowid_min
            low, rows = part.rowid_min, 0
        rows += part.rows
    yield low, NEVER


def _cut(part: _Part, low: int, high: int) -> Any:
    """The rows of a part in a window."""
    if part.rowid_min < high and low <= part.rowid_max:
        return _between(part.load(), low, high)
    return pa.schema(_NARROW).empty_table()


def _between(table: Any, low: int, high: int) -> Any:
    rowids = rowids_of(table)
    inside = (rowids >= low) & (rowids < high)
    return table if inside.all() else table.filter(pa.array(inside))


def _by_rowid(tables: Sequence[Any]) -> Any:
    empty = pa.schema(_NARROW).empty_table()
    table = pa.concat_tables([empty, *tables], promote_options="default")
    return table.take(pa.array(np.argsort(rowids_of(table), kind="stable")))


def _overlaps(parts: Sequence[_Part], tables: Sequence[Any]) -> Iterator[str]:
    """No RowID is in two places that count."""
    pairs = zip(parts, tables, strict=True)
    homes_of = [(part.name, rowids_of(table)) for part, table in pairs if part.counts]
    ranked = np.sort(np.concatenate([_NONE, *(rowids for _, rowids in homes_of)]))
    twice = np.unique(ranked[1:][ranked[1:] == ranked[:-1]])
    for rowid in twice[:SHOWN_MAX].tolist():
        homes = [name for name, rowids in homes_of if rowid in rowids]
        yield f"RowID {rowid} is in {' and in '.join(homes)}"


def _shown(name: str, problem: str, rowids: Int64Array) -> Iterator[str]:
    if len(rowids):
        few = ", ".join(map(str, rowids[:SHOWN_MAX].tolist()))
        more = f" and {len(rowids) - SHOWN_MAX} more" if len(rowids) > SHOWN_MAX else ""
        yield f"{name}: it {problem}: RowID {few}{more}"


def _values(column: Any) -> list[Any]:
    return [value for chunk in column.chunks for value in column_values(chunk)]

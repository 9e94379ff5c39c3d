"""Look-ups: the rows of one key, or of a range of keys, of an index, in its order. Without DuckDB.

    key or bounds --> range of index keys
        data objects with an index object --content--> positions --take--> rows less dead and late
        data objects without              --their columns, compared-->  the same
        pages of L0                       --an order made when first needed--> rows
        the transaction's own rows        --compared
    all of it --> compared with the whole values, sorted by key and RowID, cut

Keys of long texts are cut in an index (index/keys.py), so what it names is compared once more, with
keys that are not. Pages are never indexed: a closed one is sorted when somebody first looks
something up in it, and that order goes with the page.

With a limit an object gives its rows in pieces, in the order of keys, until there are enough.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from halocline.catalog import IndexEntry, ObjectEntry
from halocline.errors import CorruptionError, UsageError
from halocline.index import kind_of
from halocline.index.build import file_of
from halocline.index.content import IndexContent
from halocline.index.keys import after, key_bytes, part_of
from halocline.objects.columns import ROWID
from halocline.objects.read import Numbers
from halocline.read.indexed import fitted, in_memory, in_turns, rows_at
from halocline.read.plan import NONE, ScanPlan
from halocline.read.scan import alive_mask, shown_schema, take_plan
from halocline.read.view import View, check_limit
from halocline.rows.page import FrozenPage, Page
from halocline.schema.column import TableColumn
from halocline.schema.compiled import column_checks

PIECE_ROWS: Final = 1024
"""With a limit, so many rows of an object are read at once, or the limit."""


class KeyBounds(NamedTuple):
    """Keys from `low` to below `high`, as exact bytes and as an index holds them."""

    low: bytes
    high: bytes | None
    index_low: bytes
    index_high: bytes | None


def look_up(
    view: View,
    index: IndexEntry,
    key: Sequence[Any],
    low: Any,
    high: Any,
    columns: Sequence[str] | None,
    limit: int | None,
) -> pa.Table:
    """The rows that an index leads to; `key` holds none or one, `low` and `high` may be None."""
    check_limit(limit)
    if key and (low is not None or high is not None):
        raise UsageError("lookup takes a key, or low= and high=")
    kind = kind_of(index.kind)
    if kind is None or not kind.in_order:
        raise UsageError(f"index {index.name!r} has no order to look up in: use where=")
    found = _Lookup(view, index, limit)
    shown = list(found.schema.names) if columns is None else found.named(columns)
    return found.run(found.bounds(key, low, high), shown)


class _Lookup:
    """One look-up."""

    def __init__(self, view: View, index: IndexEntry, limit: int | None) -> None:
        self.view, self.index, self.limit = view, index, limit
        self.state, self.schema = view.state, view.state.schema
        places = {int(column.id): column for column in self.schema.columns}
        if not set(index.columns) <= places.keys():
            raise UsageError(f"the table has not the columns of {index.name!r} at this snapshot")
        self.parts: list[TableColumn] = [places[id] for id in index.columns]
        self.names = [column.name for column in self.parts]
        self.without = NONE if view.own is None else view.own.ended()

    def named(self, columns: Sequence[str]) -> list[str]:
        """The columns that the caller wants to see."""
        if isinstance(columns, str) or not isinstance(columns, Sequence) or not columns:
            raise UsageError("columns= must be a list of names")
        return [self.schema.names[self.schema.position(name)] for name in columns]

    # What is asked for.

    def bounds(self, key: Sequence[Any], low: Any, high: Any) -> KeyBounds:
        """The keys that the caller means."""
        if key:
            exact, rough = self._key(key[0], nulls=True)
            return KeyBounds(exact, after(exact), rough, after(rough))
        first = b"" if low is None and high is None else b"\1"
        starts = (first, first) if low is None else self._key(low)
        if high is None:
            return KeyBounds(starts[0], None, starts[1], None)
        exact, rough = self._key(high)
        # Whole texts below the bound may be cut to what the bound is cut to.
        last = rough if rough == exact else after(rough)
        return KeyBounds(starts[0], exact, starts[1], last)

    def _key(self, given: Any, *, nulls: bool = False) -> tuple[bytes, bytes]:
        """A key, or the first parts of one, exact and as an index holds it."""
        values = given if len(self.parts) > 1 and isinstance(given, tuple) else (given,)
        if not 0 < len(values) <= len(self.parts):
            names = ", ".join(self.names)
            raise UsageError(f"{given!r} is no key of {self.index.name!r}: give ({names})")
        exact, rough = b"", b""
        checks = column_checks(self.parts, frozenset())
        for column, check, value in zip(self.parts, checks, values, strict=False):
            plain = None if value is None and nulls else check(value)
            if plain is None and not nulls:
                raise UsageError(f"NULL is no bound of {column.name!r}")
            if exact == rough:  # behind a text that is cut nothing is in order
                rough += part_of(column.type, plain)
            exact += part_of(column.type, plain, cut=False)
        return exact, rough

    # Where rows are.

    def run(self, bounds: KeyBounds, shown: Sequence[str]) -> pa.Table:
        """Rows of every tier, sorted and cut."""
        schema, own = self.schema, self.view.own
        names = [name for name in schema.names if name in {*shown, *self.names}]
        mine = () if own is None else own.data()
        plan = take_plan(self.state, self.view.ts, without=self.without, own=mine)
        fields = pa.schema([shown_schema(schema, rowids=True).field(n) for n in [*names, ROWID]])
        tables = [fields.empty_table()]

        def read(one: tuple[ObjectEntry, Numbers | None]) -> list[pa.Table]:
            return list(self._of_object(plan, *one, bounds, names))

        def is_near(one: tuple[ObjectEntry, Numbers | None]) -> bool:
            entry, rows = one
            if rows is None:
                return False
            first = rows if self.limit is None else rows[: max(PIECE_ROWS, self.limit)]
            return in_memory(self.state, self.schema, plan, entry, first, names)

        parts = [(entry, self._named(entry, bounds)) for entry in plan.objects]
        parts = [(entry, rows) for entry, rows in parts if rows is None or len(rows)]
        for found in in_turns(read, parts, is_near):
            tables += found
        for page, count in plan.pages:
            tables += self._of_page(plan, page, count, bounds, names)
        for table, ids in [] if own is None else own.tables():
            mask = _between(self._keys(table), bounds.low, bounds.high)
            chosen = table.select(names).append_column(ROWID, pa.array(ids, pa.int64()))
            tables.append(chosen.filter(mask))
        table = pa.concat_tables([fitted(one, fields) for one in tables])
        return self._ordered(table, bounds).select(shown)

    def _ordered(self, table: pa.Table, bounds: KeyBounds) -> pa.Table:
        """What has been found, less what only a cut key has named, in the order of the index."""
        found = self._keys(table)
        meant = _between(found, bounds.low, bounds.high)
        if not pc.all(meant).as_py():
            table, found = table.filter(meant), found.filter(meant)
        ids = table.column(ROWID).to_numpy()
        ranks = np.where(ids < 0, (1 << 62) - ids, ids)  # own rows come last, as they were given
        keys = pa.table({"key": found, "rank": pa.array(ranks)})
        order = pc.sort_indices(keys, [("key", "ascending"), ("rank", "ascending")])
        return table.take(order if self.limit is None else order[: self.limit])

    def _keys(self, table: Any) -> Any:
        return key_bytes([_whole(table.column(name)) for name in self.names], cut=False)

    def _of_object(
        self,
        plan: ScanPlan,
        entry: ObjectEntry,
        positions: Numbers | None,
        bounds: KeyBounds,
        names: list[str],
    ) -> Iterator[pa.Table]:
        left = self.limit
        if positions is None:
            positions = self._searched(entry, bounds)
        step = len(positions) if left is None else max(PIECE_ROWS, left)
        for start in range(0, len(positions), max(step, 1)):
            piece = positions[start : start + step]
            order = np.sort(piece)
            table = rows_at(self.state, self.schema, plan, entry, order, names)
            if left is None:
                yield table
                return
            table = table.filter(_between(self._keys(table), bounds.low, bounds.high))
            yield table
            left -= table.num_rows
            if left <= 0:
                return

    def _named(self, entry: ObjectEntry, bounds: KeyBounds) -> Numbers | None:
        """Rows of an object that its index object names, in the order of keys; None: it has none
        that can be read."""
        shelf = self.state.shelf
        tier = self.state.newest.shape.tier
        found = tier.index_object(entry.id, self.index.id, self.view.ts)
        if found is not None:
            try:
                content = IndexContent(shelf, file_of(found))
                spread = content.spread([(bounds.index_low, bounds.index_high)])
                positions = content.positions(spread)
            except CorruptionError as error:
                shelf.damaged[found.id] = str(error)
            else:
                shelf.note_use(self.index.id, entry.stats.rows - len(positions))
                return positions
        return None if self._may_hold(entry, bounds) else NONE

    def _searched(self, entry: ObjectEntry, bounds: KeyBounds) -> Numbers:
        """Rows of an object that are meant, without an index object; with a limit in the order of
        keys."""
        file, reader = file_of(entry), self.state.shelf.reader
        table = reader.read(file, self.schema, columns=self.names, hidden=())
        keys = self._keys(table)
        chosen = np.flatnonzero(np.asarray(_between(keys, bounds.low, bounds.high)))
        if self.limit is None:
            return chosen
        order: Numbers = pc.sort_indices(keys.take(pa.array(chosen))).to_numpy().astype(np.int64)
        return chosen[order]

    def _may_hold(self, entry: ObjectEntry, bounds: KeyBounds) -> bool:
        """Can the zonemap of the first column rule the object out?"""
        column, stats = self.parts[0], entry.stats
        zone = stats.zonemaps.get(column.id)
        if zone is None or stats.schema_version != self.schema.version:
            return True
        if zone.nulls or zone.nans or zone.min is None or zone.max is None:
            return True
        least, most = part_of(column.type, zone.min), part_of(column.type, zone.max)
        above = bounds.index_high is not None and least >= bounds.index_high
        return not above and (after(most) or b"\2") > bounds.index_low

    def _of_page(
        self, plan: ScanPlan, page: Page, count: int, bounds: KeyBounds, names: list[str]
    ) -> Iterator[pa.Table]:
        visible = page.visible_count(count, plan.ts)
        if not visible:
            return
        if isinstance(page, FrozenPage):
            offsets = self._in_page(page, bounds)
        else:
            keys = self._keys(page.batch(count))
            offsets = np.flatnonzero(np.asarray(_between(keys, bounds.low, bounds.high)))
        offsets = offsets[offsets < visible]
        if not len(offsets):
            return
        kept = alive_mask(page, plan.runs, visible, plan.ts, self.without)
        if kept is not None:
            offsets = offsets[kept[offsets]]
        batch = page.batch(count).select(names).take(pa.array(offsets))
        rowids = page.rowid_array(count)[offsets]
        yield pa.Table.from_batches([batch.append_column(ROWID, pa.array(rowids))])

    def _in_page(self, page: FrozenPage, bounds: KeyBounds) -> Numbers:
        """Rows of a closed page, by the order that is made for it when it is first needed."""
        columns = self.index.columns
        known = page.orders.get(columns)
        if known is None:
            keys = self._keys(page.arrow)
            order = pc.sort_indices(keys)
            known = keys.take(order), order.to_numpy().astype(np.int64)
            page.orders[columns] = known
        keys, offsets = known
        first = _place(keys, bounds.low)
        last = len(keys) if bounds.high is None else _place(keys, bounds.high)
        return offsets[first:last]


def _whole(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _place(keys: Any, key: bytes) -> int:
    return bisect_left(range(len(keys)), key, key=lambda at: keys[at].as_py())


def _between(keys: Any, low: bytes, high: bytes | None) -> Any:
    """Which keys lie in a range."""
    mask = pc.greater_equal(keys, pa.scalar(low, pa.binary()))
    if high is not None:
        mask = pc.and_(mask, pc.less(keys, pa.scalar(high, pa.binary())))
    return mask

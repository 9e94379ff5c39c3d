"""View: one table as a reader sees it, at a snapshot and under the reader's own changes.

    own rows of the transaction (Own) --miss--> table at the snapshot
                 |                                     |
                 '-----------> rows, ids <-------------'

Most readers have changed nothing: their view is the table at a timestamp. A transaction that has
written hands in what it did as an `Own`; nothing here knows how it keeps that.

Every visible row has an id: a positive one is the RowID of the committed version that is seen, or
that an own update replaces, or of a row in an own object; a negative one stands for a row that the
transaction has inserted and holds in memory. `update` and `delete` by predicate act on ids.

Not here: SQL (query.py), which files stand for a table (plan.py), what the transaction did
(txn/workspace.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from halocline.catalog import ObjectEntry
from halocline.errors import UsageError
from halocline.objects.columns import ROWID
from halocline.objects.keybytes import key_bytes
from halocline.read.indexed import HowRead, read_indexed
from halocline.read.locate import Located, locate_many
from halocline.read.plan import NONE
from halocline.read.point import find_row
from halocline.read.ranges import read_range
from halocline.read.scan import memory_table, take_plan
from halocline.read.source import Source, source_of
from halocline.rows.members import is_among
from halocline.rows.state import TableState
from halocline.schema.batches import Int64Array
from halocline.schema.compiled import Row

if TYPE_CHECKING:
    from halocline.read.prune import Predicate

BATCH = 8
"""Fewer keys than this are looked up one by one: 20 us each, and a batch costs 200."""
Seen = tuple[Row | None, int]
"""A row and its id; (None, 0) for a key that has no row."""


class Own(Protocol):
    """What a transaction has done to a table, as far as reading needs it."""

    def row(self, key: Any) -> Seen | None:
        """The row of a key that was written; None when `ends` and the table must be asked."""

    def show(self, keys: Iterable[Any] | None = None) -> None:
        """The rows of these keys, or all, are about to be shown to the caller."""

    def ends(self, rowid: int) -> bool:
        """Is this version ended or replaced?"""

    def ended(self) -> Int64Array:
        """All versions that are ended or replaced, ascending."""

    def data(self) -> Sequence[ObjectEntry]:
        """Objects with rows that were written."""

    def tables(self) -> list[tuple[pa.Table, Int64Array]]:
        """Rows in memory that were written, with their ids."""

    def between(
        self, low: Any, high: Any, without: Int64Array, *, reverse: bool, limit: int | None
    ) -> list[pa.Table]:
        """Rows that were written with low <= key < high, in no order."""


class View(NamedTuple):
    """A table at a timestamp, and what the reader itself has done to it."""

    state: TableState
    ts: int
    own: Own | None = None

    def shown(self, keys: Iterable[Any] | None = None) -> View:
        """This view, of which the caller is about to see the rows of these keys, or all."""
        if self.own is not None:
            self.own.show(keys)
        return self

    def see(self, key: Any) -> Seen:
        """Row and id of one key."""
        own = None if self.own is None else self.own.row(key)
        if own is not None:
            return own
        found = find_row(self.state, key, self.ts)
        if found is None or (self.own is not None and self.own.ends(found[0])):
            return None, 0
        return found[1], found[0]

    def see_many(self, keys: Sequence[Any]) -> list[Seen]:
        """Row and id of each key. What may be in objects is looked up all at once."""
        if len(keys) < BATCH or not self.state.shape.tier:
            return [self.see(key) for key in keys]
        located, seen = self._locate(keys)
        places = located.found()
        rows = self.state.schema.from_table(located.take(places))
        for place, row in zip(places.tolist(), rows, strict=True):
            seen[place] = (row, int(located.rowids[place]))
        return [(None, 0) if one is None else one for one in seen]

    def rows_of(self, keys: Sequence[Any]) -> pa.Table:
        """The rows of these keys, in their order; absent keys are left out."""
        located, seen = self._locate(keys)
        mine = [(place, one[0]) for place, one in enumerate(seen) if one and one[0] is not None]
        if not mine:
            return located.take()
        places = located.found()
        own = self.state.schema.to_table([row for _, row in mine])
        order = np.argsort([*places.tolist(), *(place for place, _ in mine)], kind="stable")
        return pa.concat_tables([located.take(places), own]).take(pa.array(order))

    def between(self, low: Any, high: Any, *, reverse: bool, limit: int | None) -> pa.Table:
        """Rows with low <= key < high in key order."""
        schema = self.state.schema
        if low is not None and high is not None and low >= high:
            return schema.arrow.empty_table()
        without = NONE if self.own is None else self.own.ended()
        table = read_range(
            self.state, low, high, self.ts, reverse=reverse, limit=limit, without=without
        )
        own: list[pa.Table] = []
        if self.own is not None:
            own = self.own.between(low, high, without, reverse=reverse, limit=limit)
        if not own:
            return table
        both = pa.concat_tables([table, *own])
        order = "descending" if reverse else "ascending"
        keys = key_bytes(both.combine_chunks(), schema.primary_key)
        places = pc.array_sort_indices(keys, order=order)
        return both.take(places if limit is None else places[:limit])

    def source(
        self, predicate: Predicate | None = None, *, ids: bool = False, how: HowRead | None = None
    ) -> Source:
        """Every visible row; with `ids`, their ids as column `_rowid`.

        Rows that cannot satisfy the predicate may be left out of what comes from objects. `how` is
        told how the table is read.
        """
        state, own = self.state, self.own
        without = NONE if own is None else own.ended()
        mine = () if own is None else own.data()
        plan = take_plan(state, self.ts, predicate, without=without, own=mine)
        memory = memory_table(state.schema, plan, without, rowids=ids)
        if own is not None:
            tables = [_with_ids(*pair, ids) for pair in own.tables()]
            memory = pa.concat_tables([memory, *tables]) if tables else memory
        if how is not None:
            how.objects = len(state.shape.tier.at(self.ts)[0]) + len(mine)
            how.pruned, how.rows_in_memory = how.objects - len(plan.objects), memory.num_rows
        if predicate is not None and state.newest.entry.indexes:
            seen = HowRead() if how is None else how
            conditions = predicate.conditions()
            plan, found = read_indexed(state, plan, conditions, rowids=ids, how=seen)
            memory = pa.concat_tables([memory, found]) if found.num_rows else memory
        versions = state.newest.entry.altered
        return source_of(state.shelf, state.schema, plan, memory, rowids=ids, versions=versions)

    def _locate(self, keys: Sequence[Any]) -> tuple[Located, list[Seen | None]]:
        """Versions of the table, less those of keys that the reader has written; and these."""
        wanted = np.array(keys, dtype=np.int64) if self.state.schema.int_key else keys
        located = locate_many(self.state, wanted, self.ts)
        seen: list[Seen | None] = [None] * len(keys)
        if self.own is not None:
            seen = [self.own.row(key) for key in keys]
            located.rowids[is_among(located.rowids, self.own.ended())] = 0
            located.rowids[[place for place, one in enumerate(seen) if one is not None]] = 0
        return located, seen


def _with_ids(table: pa.Table, ids: Int64Array, wanted: bool) -> pa.Table:
    return table.append_column(ROWID, pa.array(ids, pa.int64())) if wanted else table


def check_limit(limit: object) -> None:
    """UsageError for a limit that is not a number of rows."""
    if limit is not None and (type(limit) is not int or limit < 0):
        raise UsageError(f"limit must be a whole number of rows, not {limit!r}")

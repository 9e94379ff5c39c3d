"""Probe, in an executor: which keys of a batch a table has, and where.

    canonical rows, in key order --> rows of L0 that travelled along  --> RowIDs, 0 where absent
                                 --> objects whose key range meets     --> the rows themselves, if
                                     the batch: bloom, block, key          somebody wants them

Only key blocks are read, and of those only what the filters let through; data columns are read for
the rows that were found and only when asked for. What had ended by the snapshot travels along as an
array of RowIDs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from halocline.objects import ObjectFile, Shelf
from halocline.objects.columns import ROWID
from halocline.rows.members import is_among
from halocline.schema.batches import Int64Array
from halocline.schema.schema import Schema
from halocline.spark.worker import shelf_at


@dataclass(frozen=True)
class Base:
    """A table at a snapshot; it travels to executors."""

    root: str
    schema: dict[str, Any]
    snapshot: int
    objects: tuple[ObjectFile, ...]
    """Data objects; their rows, where they have no commit_ts, have that of the entry."""
    dead: bytes
    """RowIDs that had ended, ascending, as int64."""
    rows: bytes
    """Rows of L0 with `_rowid`, as an Arrow stream."""


class Probe:
    """Finds keys in one table at one snapshot."""

    def __init__(self, base: Base, schema: Schema) -> None:
        self._schema = schema
        self._shelf = shelf_at(base.root)
        self._finder = self._shelf.finder(schema)
        self._snapshot = base.snapshot
        self._files = base.objects
        self._dead = np.frombuffer(base.dead, dtype=np.int64)
        with pa.ipc.open_stream(base.rows) as reader:
            self._rows = reader.read_all()

    def find(self, table: pa.Table) -> ProbedKeys:
        """Where the keys of a canonical table are."""
        batch = self._finder.batch(table)
        found = ProbedKeys(self._shelf, self._schema, table.num_rows)
        low, high = batch.bounds
        for file in self._files:
            if file.stats.key_min > high or file.stats.key_max < low:
                continue
            hits = self._finder.find_many(file, batch)
            alive = (hits.commit_ts <= self._snapshot) & ~is_among(hits.rowids, self._dead)
            found.add(file, hits.positions[alive], hits.rowids[alive], hits.numbers[alive])
        if self._rows.num_rows:
            found.add_rows(self._rows, *_match(self._schema, table, self._rows))
        return found


class ProbedKeys:
    """RowID of each key, 0 where the table has none, and how to get at the rows."""

    def __init__(self, shelf: Shelf, schema: Schema, count: int) -> None:
        self.rowids: Int64Array = np.zeros(count, dtype=np.int64)
        self._shelf = shelf
        self._schema = schema
        self._files: list[tuple[ObjectFile, Int64Array, Int64Array]] = []
        self._rows: tuple[Any, Int64Array, Int64Array] | None = None
        self._taken: dict[tuple[str, ...], pa.Table] = {}

    def add(
        self, file: ObjectFile, positions: Int64Array, rowids: Int64Array, numbers: Int64Array
    ) -> None:
        if len(positions):
            self.rowids[positions] = rowids
            self._files.append((file, positions, numbers))

    def add_rows(self, rows: Any, positions: Int64Array, places: Int64Array) -> None:
        """Rows that came along from L0 are newer than any in an object."""
        if len(positions):
            self.rowids[positions] = rows.column(ROWID).to_numpy()[places]
            self._rows = (rows, positions, places)

    def rows(self, wanted: Int64Array, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows at these positions, which were found; in ascending order of positions."""
        names = tuple(self._schema.names if columns is None else columns)
        found = self._taken.get(names)
        if found is None:
            found = self._taken[names] = self._take(list(names))
        places = np.searchsorted(np.flatnonzero(self.rowids), wanted)
        return found if len(places) == found.num_rows else found.take(pa.array(places))

    def _take(self, names: list[str]) -> pa.Table:
        """Some columns of all rows that were found, in the order of their keys in the batch."""
        parts, order = [], []
        for file, positions, numbers in self._files:
            rows = self._shelf.reader.take(file, self._schema, numbers, columns=names, hidden=())
            parts.append(rows)
            order.append(positions)
        if self._rows is not None:
            rows, positions, places = self._rows
            parts.append(rows.select(names).take(pa.array(places)))
            order.append(positions)
        if not parts:
            return self._schema.arrow.empty_table().select(names)
        whole = pa.concat_tables(parts)
        return whole.take(pa.array(np.argsort(np.concatenate(order), kind="stable")))


def _match(schema: Schema, table: pa.Table, rows: pa.Table) -> tuple[Int64Array, Int64Array]:
    """Positions in `table` and places in `rows` of the keys that both have."""
    names = list(schema.primary_key)
    ours = table.select(names).append_column("_position", pa.array(np.arange(table.num_rows)))
    theirs = rows.select(names).append_column("_place", pa.array(np.arange(rows.num_rows)))
    both = theirs.join(ours, names, join_type="inner")
    return both.column("_position").to_numpy(), both.column("_place").to_numpy()

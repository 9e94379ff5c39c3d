"""Rewrite: the files of one group become better files.

    data objects --merge, or one by one--> live rows --cut--> data objects, one level up
    tombstone objects ----------- less the rows that were dropped ---> tombstone objects

A version is dropped iff it ended at or before the job's snapshot. Snapshots older than the commit
of the job go on reading the inputs, so nobody misses it; and since every row of the inputs had
committed by the job's snapshot, no key has two rows in what is left: cutting anywhere is cutting
between keys.

A tombstone leaves a tombstone object only with its row: what else the object names may be in
objects that are not part of this group. What is left of several is written as one: each rewrite
would otherwise leave as many of them as it found, and smaller ones. Deletes that commit while the
job runs name RowIDs, and these are the same in the new files, so they need nothing.

Not here: which files (plan.py), the job and its commit (run.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final

import numpy as np
import pyarrow as pa

from halocline.catalog import ObjectEntry
from halocline.compaction.gather import OBJECT_BYTES_MAX, object_rows_of
from halocline.compaction.merge import SLAB_BYTES, SLAB_ROWS, Drop, dropper, merge, rowids_of
from halocline.compaction.plan import CompactReason, Group
from halocline.config import Options
from halocline.objects import ObjectFile, ObjectStats, write_data, write_tombstones
from halocline.objects.columns import COMMIT_TS, ROWID, tombstone_schema
from halocline.objects.shelf import object_id, object_key
from halocline.read.ended import ended_rowids
from halocline.rows.page import Int64Array, Mask
from halocline.rows.reshape import new_entry
from halocline.rows.state import TableState
from halocline.rows.tier import Tier

_NONE: Final = np.zeros(0, dtype=np.int64)


@dataclass(slots=True)
class Outcome:
    """Files that a group became, and the objects it ends."""

    created: list[ObjectEntry] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    rows_in: int = 0
    rows_dropped: int = 0
    tombstones_dropped: int = 0
    bytes_read: int = 0

    @property
    def bytes_written(self) -> int:
        return sum(entry.stats.size_bytes for entry in self.created)


class Rewriter:
    """Carries out one group in the name of one job."""

    def __init__(
        self, state: TableState, tier: Tier, ts: int, job_id: int, options: Options
    ) -> None:
        self._state, self._tier, self._ts = state, tier, ts
        self._job_id, self._options = job_id, options
        self._rows_max = object_rows_of(state, options)
        self._reader = state.shelf.reader
        self._number = 0
        self._dropped: list[Int64Array] = []
        self._go_on: Callable[[], None] = lambda: None
        self.outcome = Outcome()

    def run(self, group: Group, go_on: Callable[[], None] | None = None) -> Outcome:
        """Write the files of a group; `go_on` is asked now and then, and raises to break off."""
        self._go_on = go_on or self._go_on
        inputs = [self._tier.by_id[id] for id in group.inputs]
        for run in [inputs] if group.merge and inputs else [[one] for one in inputs]:
            live_rows = group.live_rows if group.merge else run[0].stats.rows
            self._rewrite(run, live_rows, group.level)
        outcome = self.outcome
        outcome.ended += group.inputs
        outcome.rows_dropped = sum(map(len, self._dropped))
        taken = [self._tier.by_id[id] for id in group.tombstones]
        outcome.bytes_read += sum(entry.stats.size_bytes for entry in taken)
        if group.reason is CompactReason.TOMBSTONES:
            self._join(taken)
        else:
            self._shorten(taken, frozenset(group.spent))
        return outcome

    def _rewrite(self, inputs: Sequence[ObjectEntry], live_rows: int, level: int) -> None:
        """One sorted run of the live rows of these objects, in objects of equal size."""
        state, files = self._state, [_file(entry) for entry in inputs]
        rows = sum(file.stats.rows for file in files)
        size_bytes = sum(file.stats.size_bytes for file in files)
        slabs = merge(
            self._reader,
            files,
            state.schema,
            drop=self._drop(inputs),
            # A slab is in memory three times while it is sorted, beside the object that it goes to.
            slab_rows=min(SLAB_ROWS, max(1, self._rows_max // 4)),
            slab_bytes=min(SLAB_BYTES, state.shelf.data.budget_bytes // 4),
        )
        for table in cut(slabs, self._object_rows(live_rows, size_bytes * live_rows / rows)):
            key = object_key(state.table_id, self._job_id, self._number)
            stats = write_data(
                state.shelf.objects,
                key,
                table,
                state.schema,
                order=files[0].stats.order,
                options=self._options,
            )
            self._add(key, stats, level)
        self.outcome.rows_in += rows
        self.outcome.bytes_read += size_bytes

    def _object_rows(self, rows: int, size_bytes: float) -> int:
        """Rows of each output, so that none is over the limits and all are alike."""
        count = max(1, ceil(rows / self._rows_max), ceil(size_bytes / OBJECT_BYTES_MAX))
        return min(self._rows_max, max(1, ceil(rows / count)))

    def _drop(self, inputs: Sequence[ObjectEntry]) -> Drop:
        """Which rows have ended; it remembers those it was asked about and said yes to."""
        low = min(entry.stats.rowid_min for entry in inputs)
        high = max(entry.stats.rowid_max for entry in inputs)
        has_ended = dropper(ended_rowids(self._state, self._tier, self._ts, low, high + 1))

        def drop(rowids: Int64Array) -> Mask:
            self._go_on()
            gone = has_ended(rowids)
            if gone.any():
                self._dropped.append(rowids[gone])
            return gone

        return drop

    def _shorten(self, taken: Sequence[ObjectEntry], spent: frozenset[int]) -> None:
        """The tombstone objects less the rows that were dropped; what is left of several is joined.

        One that names none of them stays as it is.
        """
        outcome, dropped = self.outcome, np.sort(np.concatenate([_NONE, *self._dropped]))
        left: list[Any] = []
        for entry in sorted(taken, key=lambda entry: entry.stats.rowid_min):
            self._go_on()
            if entry.id in spent:
                outcome.ended.append(entry.id)
                outcome.tombstones_dropped += entry.stats.rows
                continue
            ends = [entry.stats.rowid_min, entry.stats.rowid_max + 1]
            part = dropped[slice(*np.searchsorted(dropped, ends).tolist())]
            if not len(part):
                continue
            table = self._tombstones(entry)
            gone = dropper(part)(rowids_of(table))
            if not gone.any():
                continue
            outcome.ended.append(entry.id)
            outcome.tombstones_dropped += int(np.count_nonzero(gone))
            table = table.filter(pa.array(~gone))
            if sum(part.num_rows for part in [*left, table]) > self._options.object_rows:
                self._write_tombstones(left)
                left = []
            left.append(table)
        self._write_tombstones(left)

    def _join(self, taken: Sequence[ObjectEntry]) -> None:
        """One tombstone object out of several."""
        self.outcome.ended += [entry.id for entry in taken]
        self._write_tombstones([self._tombstones(entry) for entry in taken])

    def _tombstones(self, entry: ObjectEntry) -> Any:
        return self._reader.read(_file(entry), tombstone_schema(self._state.schema))

    def _write_tombstones(self, tables: Sequence[Any]) -> None:
        """One object of some tombstones, if there are any; the earliest of a RowID counts."""
        if not sum(table.num_rows for table in tables):
            return
        table = pa.concat_tables(tables)
        table = table.sort_by([(ROWID, "ascending"), (COMMIT_TS, "ascending")])
        rowids = rowids_of(table)
        first = np.append(True, rowids[1:] != rowids[:-1])
        if not first.all():
            self.outcome.tombstones_dropped += int(np.count_nonzero(~first))
            table = table.filter(pa.array(first))
        state = self._state
        key = object_key(state.table_id, self._job_id, self._number)
        stats = write_tombstones(
            state.shelf.objects, key, table, state.schema, options=self._options
        )
        self._add(key, stats, 1)

    def _add(self, key: str, stats: ObjectStats, level: int) -> None:
        id = object_id(self._job_id, self._number)
        self.outcome.created.append(new_entry(self._state.table_id, id, key, stats, level=level))
        self._number += 1


def cut(slabs: Iterable[Any], rows: int) -> Iterator[Any]:
    """The same rows in tables of exactly so many rows; the last one may have fewer."""
    held: list[Any] = []
    count = 0
    for slab in slabs:
        held.append(slab)
        count += slab.num_rows
        while count >= rows:
            table = pa.concat_tables(held)
            yield table.slice(0, rows)
            held = [table.slice(rows)]
            count -= rows
    if count:
        yield pa.concat_tables(held)


def _file(entry: ObjectEntry) -> ObjectFile:
    assert entry.file is not None, "an object without a file"
    return entry.file

"""Shorten: tombstone objects less the rows that a rewrite has dropped.

    RowIDs that were dropped, tombstone objects that were taken --> tombstone objects, shorter

A tombstone leaves its object only with its row: what else the object names may be in objects that
are not part of the group. What is left of several is written as one: each rewrite would otherwise
leave as many of them as it found, and smaller ones.

Every runner ends a group with this, wherever its rows were rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from halocline.catalog import ObjectEntry
from halocline.compaction.merge import dropper, rowids_of
from halocline.compaction.plan import CompactReason, Group
from halocline.compaction.runs import file_of
from halocline.objects import ObjectStats, write_tombstones
from halocline.objects.columns import COMMIT_TS, ROWID, tombstone_schema
from halocline.objects.shelf import object_id, object_key
from halocline.options import Options
from halocline.rows.page import Int64Array
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
    tasks: int = 0
    """Parts of the work that ran elsewhere; 0 when it was done by this process."""

    @property
    def bytes_written(self) -> int:
        return sum(entry.stats.size_bytes for entry in self.created)


class Shortener:
    """The tombstone objects of one group, in the name of one job."""

    def __init__(
        self,
        state: TableState,
        tier: Tier,
        job_id: int,
        options: Options,
        go_on: Callable[[], None],
        first_number: int,
    ) -> None:
        self._state, self._tier, self._job_id = state, tier, job_id
        self._options, self._go_on = options, go_on
        self._number = first_number

    def run(self, group: Group, dropped: Sequence[Int64Array], outcome: Outcome) -> None:
        """Write what is left of the group's tombstone objects; say so in the outcome."""
        outcome.ended += group.inputs
        outcome.rows_dropped = sum(map(len, dropped))
        taken = [self._tier.by_id[id] for id in group.tombstones]
        outcome.bytes_read += sum(entry.stats.size_bytes for entry in taken)
        if group.reason is CompactReason.TOMBSTONES:
            outcome.ended += [entry.id for entry in taken]
            self._write([self._read(entry) for entry in taken], outcome)
        else:
            gone = np.sort(np.concatenate([_NONE, *dropped]))
            self._shorten(taken, frozenset(group.spent), gone, outcome)

    def _shorten(
        self,
        taken: Sequence[ObjectEntry],
        spent: frozenset[int],
        dropped: Int64Array,
        outcome: Outcome,
    ) -> None:
        """Shortens one tombstone object, unless it names no dropped row."""
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
            table = self._read(entry)
            gone = dropper(part)(rowids_of(table))
            if not gone.any():
                continue
            outcome.ended.append(entry.id)
            outcome.tombstones_dropped += int(np.count_nonzero(gone))
            table = table.filter(pa.array(~gone))
            if sum(part.num_rows for part in [*left, table]) > self._options.object_rows:
                self._write(left, outcome)
                left = []
            left.append(table)
        self._write(left, outcome)

    def _read(self, entry: ObjectEntry) -> Any:
        reader, schema = self._state.shelf.reader, tombstone_schema(self._state.schema)
        return reader.read(file_of(self._tier, entry.id), schema)

    def _write(self, tables: Sequence[Any], outcome: Outcome) -> None:
        """One object of some tombstones, if there are any; the earliest of a RowID counts."""
        if not sum(table.num_rows for table in tables):
            return
        table = pa.concat_tables(tables)
        table = table.sort_by([(ROWID, "ascending"), (COMMIT_TS, "ascending")])
        rowids = rowids_of(table)
        first = np.append(True, rowids[1:] != rowids[:-1])
        if not first.all():
            outcome.tombstones_dropped += int(np.count_nonzero(~first))
            table = table.filter(pa.array(first))
        state = self._state
        key = object_key(state.table_id, self._job_id, self._number)
        stats = write_tombstones(
            state.shelf.objects, key, table, state.schema, options=self._options
        )
        outcome.created.append(entry_of(state, self._job_id, self._number, stats))
        self._number += 1


def entry_of(
    state: TableState, job_id: int, number: int, stats: ObjectStats, level: int = 1
) -> ObjectEntry:
    """The entry of the n-th file of a job."""
    key = object_key(state.table_id, job_id, number)
    return new_entry(state.table_id, object_id(job_id, number), key, stats, level=level)

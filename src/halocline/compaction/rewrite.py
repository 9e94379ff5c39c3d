"""Rewrite: the files of one group become better files.

    data objects --merge, or one by one--> live rows --cut--> data objects, one level up
    tombstone objects ----------- less the rows that were dropped ---> tombstone objects

A version is dropped iff it ended at or before the job's snapshot. Snapshots older than the commit
of the job go on reading the inputs, so no reader misses it; and since every row of the inputs had
committed by the job's snapshot, no key has two rows in what is left: cutting anywhere is cutting
between keys.

A tombstone leaves its object only with its row: what else the object names may be in objects that
are not part of the group. What is left of several is written as one: each rewrite would otherwise
leave as many of them as it found, and smaller ones. Every runner ends a group with `shorten`,
wherever its rows were rewritten.

Deletes that commit while the job runs name RowIDs, and these are the same in the new files, so they
need nothing.

Not here: which files (plan.py), writing a run of rows (runs.py), the job and its commit (run.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from halocline.catalog import ObjectEntry
from halocline.compaction.gather import object_rows_of
from halocline.compaction.merge import SLAB_BYTES, Dropped, dropper, rowids_of
from halocline.compaction.plan import CompactReason, Group
from halocline.compaction.runs import MergeRun, file_of, runs_of, write_run
from halocline.index import write_beside
from halocline.objects import JobWriter, ObjectFile
from halocline.objects.columns import COMMIT_TS, ROWID, tombstone_schema
from halocline.objects.shelf import FILES_PER_JOB
from halocline.options import Options
from halocline.read.ended import ended_rowids
from halocline.rows.reshape import new_entry
from halocline.rows.state import TableState
from halocline.rows.tier import Tier
from halocline.schema.batches import Int64Array


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupWork:
    """One group to be rewritten in the name of a job."""

    state: TableState
    tier: Tier
    ts: int
    """Rows that had ended by this snapshot are dropped."""
    job_id: int
    group: Group
    options: Options
    go_on: Callable[[], None] = lambda: None
    """To be called now and then; it raises when the work should be broken off."""

    def writer(self, first_place: int = 0) -> JobWriter:
        """The writer of this process; tasks, if there are any, have the places before."""
        return JobWriter(
            self.state.shelf.objects,
            self.state.schema,
            self.options,
            table_id=self.state.table_id,
            job_id=self.job_id,
            places=range(first_place, FILES_PER_JOB),
        )

    def ended_in(self, files: Sequence[ObjectFile]) -> Int64Array:
        """RowIDs within the range of some objects that had ended, ascending, each once."""
        low = min(file.stats.rowid_min for file in files)
        high = max(file.stats.rowid_max for file in files)
        return ended_rowids(self.state, self.tier, self.ts, low, high + 1)


@dataclass(slots=True)
class RewriteOutcome:
    """Files that a group became, and the objects it ends."""

    created: list[ObjectEntry] = field(default_factory=list)
    beside: list[ObjectEntry] = field(default_factory=list)
    """Index objects of what was created."""
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

    def add_rows(self, runs: Sequence[MergeRun], files: Sequence[ObjectFile], level: int) -> None:
        """What was read in some runs, and the data objects that were written of it."""
        read = [file.stats for run in runs for file in run.files]
        self.rows_in += sum(stats.rows for stats in read)
        self.bytes_read += sum(stats.size_bytes for stats in read)
        self.created += [new_entry(file, level=level) for file in files]


def rewrite(work: GroupWork) -> RewriteOutcome:
    """Carry out one group in this process."""
    state, writer, outcome = work.state, work.writer(), RewriteOutcome()
    dropped = Dropped(work.go_on)
    for run in runs_of(work.group, work.tier):
        files = write_run(
            run,
            state.shelf.reader,
            state.schema,
            writer,
            drop=dropped.by(work.ended_in(run.files)),
            rows_max=object_rows_of(state, work.options),
            slab_bytes=min(SLAB_BYTES, state.shelf.data.budget_bytes // 4),
        )
        outcome.add_rows([run], list(files), work.group.level)
    shorten(work, writer, dropped.rowids, outcome)
    indexes = state.newest.entry.indexes
    reader, schema = state.shelf.reader, state.schema
    outcome.beside += write_beside(reader, schema, writer, indexes, outcome.created)
    return outcome


def shorten(
    work: GroupWork, writer: JobWriter, dropped: Int64Array, outcome: RewriteOutcome
) -> None:
    """Write what is left of the group's tombstone objects; say so in the outcome."""
    group = work.group
    outcome.ended += group.inputs
    outcome.rows_dropped = len(dropped)
    taken = [work.tier.by_id[id] for id in group.tombstones]
    outcome.bytes_read += sum(entry.stats.size_bytes for entry in taken)
    if group.reason is CompactReason.TOMBSTONES:
        outcome.ended += [entry.id for entry in taken]
        _write(writer, [_read(work, entry) for entry in taken], outcome)
        return
    left: list[Any] = []
    for entry in sorted(taken, key=lambda entry: entry.stats.rowid_min):
        work.go_on()
        table = _left_of(work, entry, dropped)
        if table is None:
            continue
        outcome.ended.append(entry.id)
        outcome.tombstones_dropped += entry.stats.rows - table.num_rows
        if sum(part.num_rows for part in [*left, table]) > work.options.object_rows:
            _write(writer, left, outcome)
            left = []
        left.append(table)
    _write(writer, left, outcome)


def _left_of(work: GroupWork, entry: ObjectEntry, dropped: Int64Array) -> Any:
    """The tombstones whose rows were not dropped; None when the object can stay as it is."""
    if entry.id in work.group.spent:
        return tombstone_schema(work.state.schema).arrow.empty_table()
    ends = [entry.stats.rowid_min, entry.stats.rowid_max + 1]
    part = dropped[slice(*np.searchsorted(dropped, ends).tolist())]
    if not len(part):
        return None
    table = _read(work, entry)
    gone = dropper(part)(rowids_of(table))
    return table.filter(pa.array(~gone)) if gone.any() else None


def _read(work: GroupWork, entry: ObjectEntry) -> Any:
    schema = tombstone_schema(work.state.schema)
    return work.state.shelf.reader.read(file_of(work.tier, entry.id), schema)


def _write(writer: JobWriter, tables: Sequence[Any], outcome: RewriteOutcome) -> None:
    """One object of some tombstones, if there are any; the earliest of a RowID counts."""
    tables = [table for table in tables if table.num_rows]
    if not tables:
        return
    table = pa.concat_tables(tables)
    table = table.sort_by([(ROWID, "ascending"), (COMMIT_TS, "ascending")])
    rowids = rowids_of(table)
    first = np.append(True, rowids[1:] != rowids[:-1])
    if not first.all():
        outcome.tombstones_dropped += int(np.count_nonzero(~first))
        table = table.filter(pa.array(first))
    outcome.created += [new_entry(file) for file in writer.tombstones(table)]

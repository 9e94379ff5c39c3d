"""Rewrite: the files of one group become better files, in this process.

    data objects --merge, or one by one--> live rows --cut--> data objects, one level up
    tombstone objects ----------- less the rows that were dropped ---> tombstone objects

A version is dropped iff it ended at or before the job's snapshot. Snapshots older than the commit
of the job go on reading the inputs, so no reader misses it; and since every row of the inputs had
committed by the job's snapshot, no key has two rows in what is left: cutting anywhere is cutting
between keys.

Deletes that commit while the job runs name RowIDs, and these are the same in the new files, so they
need nothing.

Not here: which files (plan.py), writing a run of rows (runs.py), tombstones (shorten.py), the job
and its commit (run.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from halocline.compaction.gather import object_rows_of
from halocline.compaction.merge import SLAB_BYTES, Drop, dropper
from halocline.compaction.plan import Group
from halocline.compaction.runs import Run, runs_of, write_run
from halocline.compaction.shorten import Outcome, Shortener, entry_of
from halocline.objects import ObjectFile
from halocline.objects.shelf import object_key
from halocline.options import Options
from halocline.read.ended import ended_rowids
from halocline.rows.page import Int64Array, Mask
from halocline.rows.state import TableState
from halocline.rows.tier import Tier


class Rewriter:
    """Carries out one group in the name of one job."""

    def __init__(
        self, state: TableState, tier: Tier, ts: int, job_id: int, options: Options
    ) -> None:
        self._state, self._tier, self._ts = state, tier, ts
        self._job_id, self._options = job_id, options
        self._number = 0
        self._dropped: list[Int64Array] = []
        self._go_on: Callable[[], None] = lambda: None
        self.outcome = Outcome()

    def run(self, group: Group, go_on: Callable[[], None] | None = None) -> Outcome:
        """Write the files of a group; `go_on` is asked now and then, and raises to break off."""
        self._go_on = go_on or self._go_on
        for run in runs_of(group, self._tier):
            self._rewrite(run, group.level)
        shortener = Shortener(
            self._state, self._tier, self._job_id, self._options, self._go_on, self._number
        )
        shortener.run(group, self._dropped, self.outcome)
        return self.outcome

    def _rewrite(self, run: Run, level: int) -> None:
        state, outcome = self._state, self.outcome
        written = write_run(
            run,
            state.shelf.reader,
            state.schema,
            put=self._put,
            drop=self._drop(run),
            rows_max=object_rows_of(state, self._options),
            options=self._options,
            slab_bytes=min(SLAB_BYTES, state.shelf.data.budget_bytes // 4),
        )
        for _, stats in written:
            outcome.created.append(entry_of(state, self._job_id, self._number, stats, level))
            self._number += 1
        outcome.rows_in += sum(file.stats.rows for file in run.files)
        outcome.bytes_read += sum(file.stats.size_bytes for file in run.files)

    def _put(self, data: bytes) -> str:
        key = object_key(self._state.table_id, self._job_id, self._number)
        self._state.shelf.objects.put(key, data)
        return key

    def _drop(self, run: Run) -> Drop:
        """Which rows have ended; it remembers those it was asked about and said yes to."""
        has_ended = dropper(ended_in(run.files, self._state, self._tier, self._ts))

        def drop(rowids: Int64Array) -> Mask:
            self._go_on()
            gone = has_ended(rowids)
            if gone.any():
                self._dropped.append(rowids[gone])
            return gone

        return drop


def ended_in(files: Sequence[ObjectFile], state: TableState, tier: Tier, ts: int) -> Int64Array:
    """RowIDs within the range of some objects that had ended by `ts`, ascending, each once."""
    low = min(file.stats.rowid_min for file in files)
    high = max(file.stats.rowid_max for file in files)
    return ended_rowids(state, tier, ts, low, high + 1)

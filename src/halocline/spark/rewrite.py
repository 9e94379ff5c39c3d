"""The task of a compaction: its share of the rows comes out of the objects, and goes into new ones.

    objects --verified, merged by key (compaction/)--> rows less what has ended --> objects
                                                              |
    lines (worker.py): data, a file;  dropped, RowIDs;  damaged, a file that cannot be read

Inputs are sorted already, so nothing is shuffled: a task reads, of every input, the blocks that
meet its range of keys. Tasks share the job (objects/jobwriter.py), so attempts never meet, and only
the winning one's lines reach the driver.

A damaged input is reported, not raised: Spark would try again, and the driver has to name the file.

Nothing here talks to the database: objects are read and written, that is all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from halocline.compaction.merge import Dropped
from halocline.compaction.runs import MergeRun, write_run
from halocline.errors import CorruptionError
from halocline.objects import SharedJob
from halocline.schema.schema import Schema
from halocline.spark.worker import damage_line, file_line, line, shelf_at, task_here

ORDINALS: Final = 256
ATTEMPTS: Final = 8
TASKS_MAX: Final = 500
FIRST_OF_DRIVER: Final = TASKS_MAX * ORDINALS * ATTEMPTS
"""Places from here on are for the files that the driver writes, with one attempt each."""


@dataclass(frozen=True)
class Rewriting:
    """What all tasks of a compaction are told; it travels."""

    root: str
    schema: dict[str, Any]
    job: SharedJob
    dead: bytes
    """RowIDs that had ended, ascending, as int64."""
    runs: tuple[tuple[MergeRun, ...], ...]
    """By task."""
    rows_max: int


def run(rewriting: Any) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for mapInArrow over task numbers; `rewriting` is a broadcast `Rewriting`."""

    def partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from _lines(rewriting.value, number)

    return partition


def _lines(rewriting: Rewriting, number: int) -> Iterator[pa.RecordBatch]:
    """One task: some runs, one after the other."""
    schema, shelf = Schema.from_wire(rewriting.schema), shelf_at(rewriting.root)
    _, attempt = task_here(ATTEMPTS)
    writer = rewriting.job.writer(shelf.objects, schema, number, attempt)
    dropped = Dropped()
    drop = dropped.by(np.frombuffer(rewriting.dead, dtype=np.int64))
    try:
        for run in rewriting.runs[number]:
            rows_max = rewriting.rows_max
            for file in write_run(run, shelf.reader, schema, writer, drop=drop, rows_max=rows_max):
                yield file_line("data", file)
    except CorruptionError as error:
        yield damage_line(error)
        return
    rowids = dropped.rowids
    yield line("dropped", len(rowids), rowids.tobytes())

"""The task of a compaction: its share of the rows comes out of the objects, and goes into new ones.

    objects --verified, merged by key (compaction/)--> rows less what has ended --> objects
                                                              |
    one row per object: number, rows, statistics;  RowIDs that were dropped;  a damaged file

Inputs are sorted already, so nothing is shuffled: a task reads, of every input, the blocks that
meet its range of keys. Each file of a task has a number of its own, by (task, ordinal, attempt), so
attempts never meet (names.py), and only the winning one's rows reach the driver.

A damaged input is reported, not raised: Spark would try again, and the driver has to name the file.

Nothing here talks to the database: objects are read and written, that is all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from halocline.compaction.merge import Drop, dropper
from halocline.compaction.runs import Run, write_run
from halocline.errors import CorruptionError
from halocline.objects import ObjectFile, ObjectStats
from halocline.objects.batch import Int64Array
from halocline.options import Options
from halocline.schema.schema import Schema
from halocline.spark.names import Names, attempt_here
from halocline.spark.probe import shelf_at

ORDINALS: Final = 256
ATTEMPTS: Final = 8
TASKS_MAX: Final = 500
FIRST_OF_DRIVER: Final = TASKS_MAX * ORDINALS * ATTEMPTS
"""Numbers from here on are for the files that the driver writes."""

REPORT: Final = pa.schema(
    [
        pa.field("kind", pa.string()),
        pa.field("number", pa.int64()),
        pa.field("rows", pa.int64()),
        pa.field("content", pa.binary()),
        pa.field("text", pa.string()),
    ]
)
REPORT_SQL: Final = "kind string, number bigint, rows bigint, content binary, text string"


@dataclass(frozen=True)
class Share:
    """A run, as plain values: places of its files in `Rewriting.files`, range of keys, size."""

    files: tuple[int, ...]
    low: bytes
    high: bytes | None
    live_rows: int
    live_share: float
    size_bytes: int


@dataclass(frozen=True)
class Rewriting:
    """What all tasks of a compaction are told; plain values, because they travel."""

    root: str
    schema: dict[str, Any]
    table_id: int
    job_id: int
    files: tuple[tuple[str, int, list[Any]], ...]
    """Store key, commit_ts of rows without one, and statistics of each input."""
    dead: bytes
    """RowIDs that had ended, ascending, as int64."""
    shares: tuple[tuple[Share, ...], ...]
    """By task."""
    rows_max: int
    options: dict[str, Any]


def run(rewriting: Any) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for mapInArrow over task numbers; `rewriting` is a broadcast `Rewriting`."""

    def partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from _Task(rewriting.value, number).run()

    return partition


class _Task:
    """One task: some runs, one after the other."""

    def __init__(self, rewriting: Rewriting, number: int) -> None:
        self._rewriting = rewriting
        self._place = number * ORDINALS
        self._names = Names(
            rewriting.root,
            rewriting.table_id,
            rewriting.job_id,
            attempt=attempt_here(ATTEMPTS),
            attempts=ATTEMPTS,
        )
        self._ordinal = 0
        self._number = 0
        self._runs = [_run_of(rewriting, share) for share in rewriting.shares[number]]
        self._dead = np.frombuffer(rewriting.dead, dtype=np.int64)
        self._dropped: list[Int64Array] = []

    def run(self) -> Iterator[pa.RecordBatch]:
        try:
            for run in self._runs:
                yield from self._write(run)
        except CorruptionError as error:
            yield _row("damaged", text=error.path, content=error.reason.encode())
            return
        dropped = np.concatenate([np.zeros(0, dtype=np.int64), *self._dropped])
        yield _row("dropped", rows=len(dropped), content=dropped.tobytes())

    def _write(self, run: Run) -> Iterator[pa.RecordBatch]:
        rewriting = self._rewriting
        shelf = shelf_at(rewriting.root)
        written = write_run(
            run,
            shelf.reader,
            Schema.from_wire(rewriting.schema),
            put=self._put,
            drop=self._drop(),
            rows_max=rewriting.rows_max,
            options=Options(**rewriting.options),
        )
        for _, stats in written:
            content = msgspec.msgpack.encode(stats.to_wire())
            yield _row("data", number=self._number, rows=stats.rows, content=content)

    def _put(self, data: bytes) -> str:
        assert self._ordinal < ORDINALS, "the driver makes tasks smaller than this"
        self._number, key = self._names.put(self._place + self._ordinal, data)
        self._ordinal += 1
        return key

    def _drop(self) -> Drop:
        has_ended = dropper(self._dead)

        def drop(rowids: Int64Array) -> Any:
            gone = has_ended(rowids)
            if gone.any():
                self._dropped.append(rowids[gone])
            return gone

        return drop


def _run_of(rewriting: Rewriting, share: Share) -> Run:
    wires = [rewriting.files[place] for place in share.files]
    return Run(
        files=tuple(
            ObjectFile(key, ObjectStats.from_wire(stats), commit_ts)
            for key, commit_ts, stats in wires
        ),
        low=share.low,
        high=share.high,
        live_rows=share.live_rows,
        live_share=share.live_share,
        size_bytes=share.size_bytes,
    )


def _row(
    kind: str, *, number: int = 0, rows: int = 0, content: bytes = b"", text: str = ""
) -> pa.RecordBatch:
    row = {"kind": kind, "number": number, "rows": rows, "content": content, "text": text}
    return pa.RecordBatch.from_pylist([row], schema=REPORT)

"""What tasks share: who this one is, where the objects are, and what it tells the driver.

    task_here   which task, which attempt of it: names of files are made of both (objects/jobwriter)
    shelf_at    the objects of a database, opened once per worker process
    lines       one row for each thing that a task has to tell:
                kind      what the line is about; each kind of job has its own
                rows      how many rows that is
                content   a file as msgpack; keys, or RowIDs, as bytes; or why it has given up

A task never raises for what is wrong with its input: Spark would try again, three times, and the
driver could not say it in one error, whichever of the tasks found it first. The driver sees the
lines of one attempt of each task, the one that won. The files of the others belong to the job,
nothing refers to them, and GC removes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa

from halocline.errors import CorruptionError
from halocline.objects import ObjectFile, Shelf
from halocline.options import MIB
from halocline.store import PyarrowObjects

RETRIES: Final = 4
MEMORY_BYTES: Final = 512 * MIB
LINE: Final = pa.schema(
    [
        pa.field("kind", pa.string()),
        pa.field("rows", pa.int64()),
        pa.field("content", pa.binary()),
    ]
)
LINE_SQL: Final = "kind string, rows bigint, content binary"
DAMAGED: Final = "damaged"
_encode = msgspec.msgpack.Encoder().encode
_shelves: dict[str, Shelf] = {}


def task_here(attempts: int) -> tuple[int, int]:
    """Inside a task: the number of its partition, and that of this attempt."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "runs inside a task"
    attempt = attempt_of(context.attemptNumber(), context.taskAttemptId(), attempts)
    return context.partitionId(), attempt


def attempt_of(number: int, unique: int, attempts: int) -> int:
    """A number for one attempt of a task; another that still runs can hardly have the same.

    `number` counts the attempts of a task in one attempt of its stage, so it tells a task from its
    speculative copy and from one that failed, but begins again with the stage. `unique` goes on in
    the whole application, so it tells a stage's tasks from those of its next attempt, unless
    their ids are a multiple of `attempts / 4` apart.
    """
    return number % RETRIES + RETRIES * (unique % (attempts // RETRIES))


def shelf_at(root: str) -> Shelf:
    """The objects of a database with their reader and its pools."""
    shelf = _shelves.get(root)
    if shelf is None:
        store = PyarrowObjects.open(root)
        shelf = _shelves[root] = Shelf(store, memory_bytes=MEMORY_BYTES, root=root)
    return shelf


def chunks(batches: Iterator[pa.RecordBatch], rows_max: int) -> Iterator[pa.Table]:
    """Batches joined up to `rows_max` rows: each step costs something however few they are."""
    waiting: list[pa.RecordBatch] = []
    held = 0
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            part = batch.slice(start, rows_max - held)
            waiting.append(part)
            held += part.num_rows
            start += part.num_rows
            if held == rows_max:
                yield pa.Table.from_batches(waiting)
                waiting, held = [], 0
    if held:
        yield pa.Table.from_batches(waiting)


def line(kind: str, rows: int, content: bytes) -> pa.RecordBatch:
    """One line, as a task returns it."""
    row = {"kind": kind, "rows": rows, "content": content}
    return pa.RecordBatch.from_pylist([row], schema=LINE)


def file_line(kind: str, file: ObjectFile) -> pa.RecordBatch:
    """A file that the task has written."""
    return line(kind, file.stats.rows, _encode(file.to_wire()))


def damage_line(error: CorruptionError) -> pa.RecordBatch:
    """A file that the task could not read."""
    return line(DAMAGED, 0, _encode([error.path, error.reason]))


def file_in(line: Any) -> ObjectFile:
    """The file that a line is about."""
    return ObjectFile.from_wire(msgspec.msgpack.decode(bytes(line.content), strict=False))


def check_undamaged(lines: Sequence[Any]) -> None:
    """CorruptionError if a task has found a damaged file."""
    for one in lines:
        if one.kind == DAMAGED:
            raise CorruptionError(*msgspec.msgpack.decode(bytes(one.content)))

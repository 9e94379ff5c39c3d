"""How the rows of a write travel from tasks to the one process that commits them.

    few rows   inside the message of their task
    more       in files of a job (objects/jobwriter.py), which the message names:
                 objects   sorted, encoded: append, overwrite, upserts of all columns. The commit
                           looks at their keys and adds the files of those attempts that won
                 others    rows as they are: the commit reads them
               where a task has no job to write for, or no names left: inside the message, too

    batch    its writer logs a job with a lease, names and RowIDs for all tasks      Reserved
    stream   each task that has many rows logs such a job for itself: Spark makes the writer of a
             stream anew for every micro-batch, most of which are small

Rows of a task are in no order that others share, so the objects of two tasks may overlap; keys that
stand in two of them are found by the commit, which reads the keys of all objects and nothing else.

The job is in the log before a file exists, and its lease outlives the process that logged it. A
write that never comes to its commit leaves files that nothing refers to: GC removes them once the
lease is over, and those of tasks that lost a race, or ran twice, once the job has ended. What the
process that commits writes itself belongs to a job of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import xxhash
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from halocline import Database
from halocline.catalog.entries import ObjectEntry
from halocline.clock import SystemClock
from halocline.errors import ConflictError, CorruptionError, DuplicateKeyError, NotFoundError
from halocline.objects import ObjectFile, SharedJob
from halocline.objects.jobwriter import PLACE_ROWS, JobWriter
from halocline.objects.order import Ordered, key_order, repeats
from halocline.objects.shelf import FILES_PER_JOB, parse_key
from halocline.options import MIB
from halocline.rows.reshape import new_entry
from halocline.rows.state import TableState
from halocline.rows.system import JobNode
from halocline.schema.schema import Schema
from halocline.spark.worker import chunks, shelf_at
from halocline.spark.worker import task_here as spark_task_here
from halocline.store import Objects
from halocline.txn import Transaction
from halocline.txn.task_objects import insert, upsert
from pyspark_halocline.parts import from_stream, to_stream

MESSAGE_BYTES: Final = 4 * MIB
"""Rows of one task that travel in its message; more become files."""
MESSAGE_ROWS: Final = 1 << 20
"""The limit for rows that take hardly any room."""
FILE_BYTES: Final = 256 * MIB
"""Rows of so many bytes become a file, however few they are."""
TASKS: Final = 2048
ORDINALS: Final = 32
ATTEMPTS: Final = 16
LEASE_S: Final = 86_400.0
assert TASKS * ORDINALS * ATTEMPTS <= FILES_PER_JOB


@dataclass
class TaskMessage(WriterCommitMessage):
    """What one task tells the commit."""

    rows: int = 0
    data: bytes = b""
    """Rows as an Arrow stream."""
    made: list[ObjectFile] = field(default_factory=list)
    """Objects that the task has made of its rows, or of most of them."""
    files: list[tuple[str, bytes]] = field(default_factory=list)
    """Files with rows as an Arrow stream: the key of each, and its digest."""
    problem: str = ""
    """What is wrong with the input. The commit says it, once, whichever task found it first."""
    repeated: bytes = b""
    """Keys that come more than once in the input of the task."""
    query: str = ""
    """The id of the streaming query, which only tasks are told."""

    @property
    def jobs(self) -> list[JobNode]:
        """The jobs that the task has written files for."""
        keys = [*(one.key for one in self.made), *(key for key, _ in self.files)]
        return [_job_of(key) for key in keys]


@dataclass(frozen=True)
class Reserved:
    """A job for the tasks of one write, and where the objects are; it travels."""

    root: str
    job: SharedJob

    @property
    def node(self) -> JobNode:
        return JobNode(job_id=self.job.job_id, table_id=self.job.table_id)

    def writer(self, schema: Schema, task: int, attempt: int) -> JobWriter:
        """Writes the files of one attempt of a task."""
        return self.job.writer(shelf_at(self.root).objects, schema, task, attempt)


def reserve(db: Database, table: str, *, tasks: int = TASKS) -> Reserved | None:
    """Log a job for a write; None when executors could not write where the objects are."""
    core = db.core
    with db.begin() as txn:
        state = txn.state_of(table)
    if not state.shelf.root or core.committer is None:
        return None
    lease_us = SystemClock().wall_us() + int(LEASE_S * 1e6)
    rows = tasks * ORDINALS * PLACE_ROWS
    job = core.committer.start_job(state, rows=rows, lease_us=lease_us)
    shared = SharedJob(
        options=core.options,
        table_id=job.table_id,
        job_id=job.job_id,
        first_rowid=job.first_rowid,
        ordinals=ORDINALS,
        attempts=ATTEMPTS,
    )
    return Reserved(state.shelf.root, shared)


def task_here() -> tuple[int, int] | None:
    """The number of the task and of the attempt; None outside a task, or beyond TASKS of them."""
    if TaskContext.get() is None:
        return None
    task, attempt = spark_task_here(ATTEMPTS)
    return (task, attempt) if task < TASKS else None


class Stage:
    """Takes the rows of one task, and fills in its message."""

    def __init__(
        self, schema: Schema, start: Callable[[], JobWriter | None], *, objects: bool
    ) -> None:
        """`start` is asked once, when rows are too many for a message; `objects`: of which kind."""
        self.message = TaskMessage()
        self._schema, self._objects = schema, objects
        self._start: Callable[[], JobWriter | None] | None = start
        self._writer: JobWriter | None = None
        self._held: list[pa.Table] = []

    def add(self, table: pa.Table) -> None:
        """Take rows; DuplicateKeyError when a key comes twice in one object's worth."""
        self.message.rows += table.num_rows
        self._held.append(table)
        many = self._rows > MESSAGE_ROWS or self._bytes > MESSAGE_BYTES
        if self._start is not None and many:
            self._writer, self._start = self._start(), None
        while self._writer is not None:
            most = self._writer.options.object_rows
            if self._rows < most and self._bytes < FILE_BYTES:
                break
            self._write(most)

    def finish(self) -> TaskMessage:
        """All rows are here."""
        if self._writer is not None:
            self._write(self._rows)
        if self._rows:
            self.message.data = to_stream(pa.concat_tables(self._held))
        return self.message

    @property
    def _rows(self) -> int:
        return sum(one.num_rows for one in self._held)

    @property
    def _bytes(self) -> int:
        return sum(one.nbytes for one in self._held)

    def _write(self, most: int) -> None:
        """Some of the rows that wait become a file; its task may have used up its names with it."""
        assert self._writer is not None
        whole = pa.concat_tables(self._held)
        table, self._held = whole.slice(0, most), [whole.slice(most)]
        if table.num_rows and self._objects:
            self.message.made.append(self._writer.new_rows(self._sorted(table)))
        elif table.num_rows:
            data = to_stream(table)
            digest = xxhash.xxh3_128_digest(data)
            self.message.files.append((self._writer.put_bytes(data), digest))
        if not self._writer.places_left:
            self._writer = None

    def _sorted(self, table: pa.Table) -> pa.Table:
        schema = self._schema
        if not schema.primary_key:
            return table
        table = Ordered(table, key_order(table, schema)).take(0, table.num_rows)
        again = repeats(table, schema)
        if again.num_rows:
            keys = list(dict.fromkeys(schema.keys_of(again.slice(0, 1000))))
            raise DuplicateKeyError("", keys[:10], total=len(keys), inside=True)
        return table


def travelled(objects: Objects, messages: Sequence[TaskMessage]) -> Iterator[pa.RecordBatch]:
    """All rows that have come in messages, and in files that are no objects of the table."""
    for message in messages:
        for key, digest in message.files:
            data = _read(objects, key)
            if xxhash.xxh3_128_digest(data) != digest:
                raise CorruptionError(key, "it is not what its task wrote")
            yield from from_stream(data).to_batches()
        if message.data:
            yield from from_stream(message.data).to_batches()


def join(txn: Transaction, table: str, made: Iterable[ObjectFile]) -> None:
    """Insert the rows of these objects; DuplicateKeyError when a key is taken or comes twice."""
    changes = txn.changes_of(table)
    insert(changes, _entries(changes.home, made), txn.snapshot)


def join_upsert(
    txn: Transaction, table: str, made: Iterable[ObjectFile], rest: Iterable[pa.RecordBatch]
) -> None:
    """Upsert the rows of these objects, and the rest; DuplicateKeyError when a key comes twice."""
    changes, core = txn.changes_of(table), txn.core
    entries = _entries(changes.home, made)
    tables = map(changes.schema.table, chunks(iter(rest), core.options.object_rows))
    upsert(core.writing, changes, entries, tables, txn.snapshot)


def _entries(home: TableState, made: Iterable[ObjectFile]) -> list[ObjectEntry]:
    entries = []
    for one in made:
        if _job_of(one.key).table_id != home.table_id:
            reason = "it is another table now than when the write began"
            raise ConflictError(reason, table=home.entry.name)
        _read(home.shelf.objects, one.key, 0)
        entries.append(new_entry(one))
    return entries


def _read(objects: Objects, key: str, size: int | None = None) -> bytes:
    try:
        return objects.read(key, 0, size)
    except FileNotFoundError:
        raise NotFoundError("object", key, hint="its lease is over: run the write again") from None


def _job_of(key: str) -> JobNode:
    name = parse_key(key)
    return JobNode(job_id=name.job_id, table_id=name.table_id)

"""Objects that the tasks of a write make themselves, so that their rows travel no further.

    writer    of a batch: logs a job with a lease, names and RowIDs for all tasks      Reserved
    write     of a stream: each task that has many rows logs such a job for itself
              sorts by key, encodes, puts files under names of its own  (objects/jobwriter.py)
    commit    looks at keys, adds the files of those attempts that won: their jobs end with it

Spark makes the writer of a stream anew for every micro-batch, most of which are small: so there it
reserves nothing. And the process that commits knows of a stream's tasks what their messages say.

Rows of a task are in no order that others share, so the objects of two tasks may overlap; keys that
stand in two of them are found by the commit, which reads the keys of all objects and nothing else.

The job is in the log before a file exists, and its lease outlives the process that logged it. A
write that never comes to its commit leaves files that nobody refers to: GC removes them once the
lease is over. Whoever lost a race, or was a task for the second time, leaves such files too. What
the process that commits writes itself belongs to a job of its own.

A job of a batch is shared by its tasks (objects/jobwriter.py). In a job that one task has logged
for itself, task and attempt are 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from halocline import Database
from halocline.catalog.entries import ObjectEntry
from halocline.clock import SystemClock
from halocline.errors import ConflictError, DuplicateKeyError, NotFoundError
from halocline.objects import ObjectFile, SharedJob
from halocline.objects.jobwriter import PLACE_ROWS
from halocline.objects.order import Ordered, key_order, repeats
from halocline.objects.shelf import FILES_PER_JOB, parse_key
from halocline.options import MIB
from halocline.rows.reshape import new_entry
from halocline.rows.state import TableState
from halocline.rows.system import JobNode
from halocline.schema.schema import Schema
from halocline.spark.worker import shelf_at
from halocline.spark.worker import task_here as spark_task_here
from halocline.store import Objects
from halocline.txn import Transaction
from halocline.txn.task_objects import insert, upsert

TASKS: Final = 512
ORDINALS: Final = 32
ATTEMPTS: Final = 32
LEASE_S: Final = 86_400.0
OBJECT_BYTES: Final = 256 * MIB
"""Rows of so many bytes become an object, however few they are."""
assert TASKS * ORDINALS * ATTEMPTS <= FILES_PER_JOB


@dataclass(frozen=True)
class Reserved:
    """A job for the tasks of one write, and where the objects are; it travels."""

    root: str
    job: SharedJob

    @property
    def node(self) -> JobNode:
        return JobNode(job_id=self.job.job_id, table_id=self.job.table_id)


def job_of(file: ObjectFile) -> JobNode:
    """The job that a task has made an object for."""
    table_id, job_id, _ = parse_key(file.key)
    return JobNode(job_id=job_id, table_id=table_id)


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
    shared = SharedJob.of(
        core.options,
        table_id=job.table_id,
        job_id=job.job_id,
        first_rowid=job.first_rowid,
        ordinals=ORDINALS,
        attempts=ATTEMPTS,
    )
    return Reserved(state.shelf.root, shared)


def task_here() -> tuple[int, int] | None:
    """The number of the task and of the attempt; None outside a task, or beyond TASKS of them."""
    from pyspark import TaskContext

    if TaskContext.get() is None:
        return None
    task, attempt = spark_task_here(ATTEMPTS)
    return (task, attempt) if task < TASKS else None


class ObjectStage:
    """Takes the rows of one task and makes objects of them."""

    def __init__(self, reserved: Reserved, schema: Schema, task: int, attempt: int) -> None:
        self._schema = schema
        self._most = reserved.job.object_rows
        self._writer = reserved.job.writer(shelf_at(reserved.root).objects, schema, task, attempt)
        self._held: list[pa.Table] = []
        self.made: list[ObjectFile] = []

    def add(self, table: pa.Table) -> None:
        """Take canonical rows; DuplicateKeyError when a key comes twice in one object's worth."""
        self._held.append(table)
        while sum(one.num_rows for one in self._held) >= self._most:
            whole = pa.concat_tables(self._held)
            self._held = [whole.slice(self._most)]
            self._write(whole.slice(0, self._most))
        if sum(one.nbytes for one in self._held) >= OBJECT_BYTES:
            whole, self._held = pa.concat_tables(self._held), []
            self._write(whole)

    @property
    def is_full(self) -> bool:
        """Has this task used up all its names? Rows that come now have to travel."""
        return self._writer.places_left <= 2

    def finish(self) -> list[ObjectFile]:
        """All rows are here."""
        whole = pa.concat_tables(self._held) if self._held else None
        if whole is not None and whole.num_rows:
            self._write(whole)
        return self.made

    def _write(self, table: pa.Table) -> None:
        schema = self._schema
        if schema.primary_key:
            table = Ordered(table, key_order(table, schema)).take(0, table.num_rows)
            again = repeats(table, schema)
            if again.num_rows:
                keys = list(dict.fromkeys(schema.keys_of(again.slice(0, 1000))))
                raise DuplicateKeyError("", keys[:10], total=len(keys), inside=True)
        self.made.append(self._writer.new_rows(table))


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
    chunks = _chunks(changes.schema, rest, core.options.object_rows)
    upsert(core.writing, changes, entries, chunks, txn.snapshot)


def _entries(home: TableState, made: Iterable[ObjectFile]) -> list[ObjectEntry]:
    entries = []
    for one in made:
        if job_of(one).table_id != home.table_id:
            reason = "it is another table now than when the write began"
            raise ConflictError(reason, table=home.entry.name)
        _check_there(home.shelf.objects, one.key)
        entries.append(new_entry(one))
    return entries


def _chunks(schema: Schema, batches: Iterable[pa.RecordBatch], rows_max: int) -> Iterator[pa.Table]:
    """Rows that travelled, as canonical tables for an object each."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(one.num_rows for one in waiting) >= rows_max:
            yield schema.table(pa.Table.from_batches(waiting))
            waiting = []
    if any(one.num_rows for one in waiting):
        yield schema.table(pa.Table.from_batches(waiting))


def _check_there(objects: Objects, key: str) -> None:
    try:
        objects.size(key)
    except FileNotFoundError:
        raise NotFoundError("object", key, hint="its lease is over: run the write again") from None

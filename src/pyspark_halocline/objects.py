"""Objects that the tasks of a write make themselves, so that their rows travel no further.

    writer    logs a job with a lease: names and RowIDs for all tasks          Reserved
    write     sorts by key, encodes, puts files under names of its own         (spark/names.py)
    commit    takes the job over, looks at keys, adds the files of those attempts that won

Rows of a task are in no order that others share, so the objects of two tasks may overlap; keys that
stand in two of them are found by the commit, which reads the keys of all objects and nothing else.

The job is in the log before a file exists, and its lease outlives the process that logged it. A
write that never comes to its commit leaves files that nobody refers to: GC removes them once the
lease is over. Whoever lost a race, or was a task for the second time, leaves such files too.

    number of a file = (task * ORDINALS + ordinal) * ATTEMPTS + attempt        below FIRST_OF_COMMIT
    RowIDs of a file = first of the job + (task * ORDINALS + ordinal) * 2^20
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from halocline import Database
from halocline.clock import SystemClock
from halocline.config import MIB, Options
from halocline.errors import ConflictError, DuplicateKeyError, NotFoundError
from halocline.objects import ObjectStats
from halocline.objects.columns import ROWID
from halocline.objects.order import Ordered, key_order, repeats
from halocline.objects.shelf import FILES_PER_JOB, object_id
from halocline.objects.write import encode_data
from halocline.rows.reshape import new_entry
from halocline.rows.system import JobNode
from halocline.schema import Schema
from halocline.spark.names import Names, attempt_here
from halocline.spark.owner import state_of
from halocline.store import Objects
from halocline.txn import Transaction
from halocline.txn.jobs import start_job
from halocline.txn.objectparts import ObjectParts
from halocline.txn.premade import insert_objects

TASKS: Final = 512
ORDINALS: Final = 32
ATTEMPTS: Final = 32
RANGE_ROWS: Final = 1 << 20
FIRST_OF_COMMIT: Final = TASKS * ORDINALS * ATTEMPTS
"""Numbers from here on are for what the process that commits writes itself."""
LEASE_S: Final = 86_400.0
OBJECT_BYTES: Final = 256 * MIB
"""Rows of so many bytes become an object, however few they are."""
assert FIRST_OF_COMMIT < FILES_PER_JOB


@dataclass(frozen=True)
class Reserved:
    """A job for the tasks of one write; plain values, because they travel."""

    root: str
    """Where the objects are."""
    job: dict[str, Any]
    object_rows: int
    row_group_rows: int
    page_rows: int

    @property
    def node(self) -> JobNode:
        return JobNode(**self.job)


class Made(NamedTuple):
    """One object that a task has made."""

    number: int
    key: str
    stats: bytes


def reserve(db: Database, table: str) -> Reserved | None:
    """Log a job for a write; None when executors could not write where the objects are."""
    core = db.core
    with db.begin() as txn:
        state = state_of(txn, table)
    if not state.shelf.root or core.committer is None:
        return None
    lease_us = SystemClock().wall_us() + int(LEASE_S * 1e6)
    rows = TASKS * ORDINALS * RANGE_ROWS
    job = start_job(core.committer, state, rows=rows, lease_us=lease_us)
    options = core.options
    return Reserved(
        root=state.shelf.root,
        job=msgspec.to_builtins(job),
        object_rows=min(options.object_rows, RANGE_ROWS),
        row_group_rows=options.row_group_rows,
        page_rows=options.page_rows,
    )


def task_here() -> tuple[int, int] | None:
    """Inside a task: its number, and that of this attempt; None when there are too many tasks."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None or context.partitionId() >= TASKS:
        return None
    return context.partitionId(), attempt_here(ATTEMPTS)


class ObjectStage:
    """Takes the rows of one task and makes objects of them."""

    def __init__(self, reserved: Reserved, schema: Schema, task: int, attempt: int) -> None:
        job = reserved.node
        self._schema = schema
        self._most = reserved.object_rows
        self._names = Names(
            reserved.root, job.table_id, job.job_id, attempt=attempt, attempts=ATTEMPTS
        )
        self._options = Options(
            object_rows=reserved.object_rows,
            row_group_rows=reserved.row_group_rows,
            page_rows=reserved.page_rows,
        )
        self._first_rowid = job.first_rowid
        self._place = task * ORDINALS
        self._end = self._place + ORDINALS
        self._held: list[pa.Table] = []
        self._made: list[Made] = []

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
        return self._place >= self._end - 2

    def finish(self) -> list[Made]:
        """All rows are here."""
        whole = pa.concat_tables(self._held) if self._held else None
        if whole is not None and whole.num_rows:
            self._write(whole)
        return self._made

    def _write(self, table: pa.Table) -> None:
        schema = self._schema
        if schema.primary_key:
            table = Ordered(table, key_order(table, schema)).take(0, table.num_rows)
            again = repeats(table, schema)
            if again.num_rows:
                keys = list(dict.fromkeys(schema.keys_of(again.slice(0, 1000))))
                raise DuplicateKeyError("", keys[:10], total=len(keys), inside=True)
        first = self._first_rowid + self._place * RANGE_ROWS
        rowids = np.arange(first, first + table.num_rows, dtype=np.int64)
        table = table.append_column(ROWID, pa.array(rowids))
        data, stats = encode_data(table, schema, options=self._options)
        number, key = self._names.put(self._place, data)
        self._made.append(Made(number, key, msgspec.msgpack.encode(stats.to_wire())))
        self._place += 1


def join(txn: Transaction, table: str, reserved: Reserved, made: Iterable[Made]) -> None:
    """Insert the rows of these objects; DuplicateKeyError when a key is taken or comes twice."""
    changes, job = txn.changes_of(table), reserved.node
    home = changes.home
    if home.table_id != job.table_id:
        raise ConflictError("it is another table now than when the write began", table=table)
    parts = ObjectParts(home)
    parts.job, parts.files = job, FIRST_OF_COMMIT
    parts.spans.append((job.first_rowid, job.first_rowid + job.rows))
    entries = []
    for one in made:
        _check_there(home.shelf.objects, one.key)
        stats = ObjectStats.from_wire(msgspec.msgpack.decode(one.stats, strict=False))
        number = object_id(job.job_id, one.number)
        entries.append(new_entry(home.table_id, number, one.key, stats))
    insert_objects(changes, parts, entries, txn.snapshot)


def _check_there(objects: Objects, key: str) -> None:
    try:
        objects.size(key)
    except FileNotFoundError:
        raise NotFoundError("object", key, hint="its lease is over: run the write again") from None

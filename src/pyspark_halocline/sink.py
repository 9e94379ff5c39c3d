"""Writes: executors check rows and make objects of them, one process commits all of them at once.

    writer     checks columns and types before a job starts          SchemaError
    write      executors: nulls, values, keys  --message, files--> (travel.py)
    commit     one transaction: append, overwrite, ignore, upsert, or changes applied; a token

Each write carries a token, so a commit that is tried again, or whose answer got lost, happens once:
a batch write has one of its own, or that of its option `token`; a stream's is (query, batch), which
is what makes a sink take every micro-batch exactly once.

Keys are enforced by the transaction, against the table as it is then and inside the input. Until it
commits nobody sees a row; `abort` deletes nothing, because the commit may have happened.

Tasks that append, overwrite or upsert make objects of their rows themselves, unless they are few;
the process that commits reads nothing but the keys. Of the other writes all rows pass through it:
those of `ignore` and `changes`, and upserts of some of the columns, which need the rows that are
there. For more of that there is `halocline.spark.load`.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, Literal

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from halocline import Database
from halocline.clock import SystemClock
from halocline.errors import (
    ConflictError,
    DuplicateKeyError,
    HaloclineError,
    NotFoundError,
    SchemaError,
    UsageError,
)
from halocline.objects.jobwriter import JobWriter
from halocline.rows.system import JobNode
from halocline.schema.schema import Schema
from halocline.spark.stream import QUERY_ID, stream_token
from halocline.spark.types import arrow_schema, check_types, proper_names
from halocline.spark.worker import chunks
from halocline.txn import Transaction
from pyspark_halocline.altered import read_back, renamed
from pyspark_halocline.apply import FEED, apply_changes, check_feed
from pyspark_halocline.connect import at_owner, open_to_read
from pyspark_halocline.options import Settings
from pyspark_halocline.travel import (
    Reserved,
    Stage,
    TaskMessage,
    join,
    join_upsert,
    reserve,
    task_here,
    travelled,
)

Messages = list[WriterCommitMessage | None]
CHUNK_ROWS = 122_880


class _Writer:
    """What writes of batches and of streams have in common."""

    def __init__(self, settings: Settings, schema: StructType, *, overwrite: bool) -> None:
        with open_to_read(settings.address) as db, db.begin() as txn:
            table = txn.state_of(settings.table).schema
            self._root = "" if settings.address.uri else db.path
        self._settings = settings
        self._overwrite = overwrite
        check_input(schema, table, settings)
        self._wire = table.to_wire()
        own = [name for name in schema.names if name not in FEED]
        self._given = tuple([table.names[table.position(name)] for name in own])
        self._draws = _lacks_key(schema, table)
        self._reserved: Reserved | None = None

    @property
    def _makes_objects(self) -> bool:
        """May tasks make objects of whole rows, without asking what the table has?"""
        if self._draws:  # keys are drawn by the commit, once
            return False
        whole = len(self._given) == len(Schema.from_wire(self._wire).names)
        upsert = self._settings.on_conflict == "upsert" and whole and not self._overwrite
        return upsert or self._settings.on_conflict == "error"

    def _start(self, table: Schema) -> JobWriter | None:
        """In an executor that has many rows: who writes them. None: they travel in the message."""
        return None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In an executor: the rows of one task, checked."""
        table = Schema.from_wire(self._wire)
        stage = Stage(table, lambda: self._start(table), objects=self._makes_objects)
        message, done = stage.message, 0
        try:
            for chunk in chunks(iterator, CHUNK_ROWS):
                stage.add(self._conformed(table, chunk, done))
                done += chunk.num_rows
            stage.finish()
        except SchemaError as error:
            message.problem = str(error)
        except DuplicateKeyError as error:
            message.rows, message.repeated = error.total, table.encode_keys(error.keys)
        message.query = _query()
        return message

    def _commit(self, given: Sequence[WriterCommitMessage | None], token: Any) -> None:
        messages = [one for one in given if isinstance(one, TaskMessage)]
        try:
            self._complain(messages)
            self._commit_rows(messages, token)
        except (ConflictError, DuplicateKeyError, NotFoundError, UsageError):
            self._give_up(messages)
            raise

    def _complain(self, messages: Sequence[TaskMessage]) -> None:
        """Raise what tasks have found wrong with their rows."""
        for message in messages:
            if message.problem:
                raise SchemaError(message.problem)
        found = [message for message in messages if message.repeated]
        if found:
            table = Schema.from_wire(self._wire)
            keys = [key for one in found for key in table.decode_keys(one.repeated)]
            total = sum(one.rows for one in found)
            keys = list(dict.fromkeys(keys))
            raise DuplicateKeyError(self._settings.table, keys, total=total, inside=True)

    def _commit_rows(self, messages: Sequence[TaskMessage], token: Any) -> None:
        if not self._overwrite and not sum(message.rows for message in messages):
            self._give_up(messages)
            if self._settings.token is not None:
                keep = Transaction.keep_token
                at_owner(self._settings.address, lambda db: db.run(keep, token=token))
            return
        at_owner(self._settings.address, lambda db: self._commit_at(db, messages, token))

    def _commit_at(self, db: Database, messages: Sequence[TaskMessage], token: Any) -> None:
        """Commit once, however often this is tried."""
        done = db.run(lambda txn: self._change(txn, messages), token=token)
        if not done or not any(message.made for message in messages):
            # It had been committed before, or all rows have travelled.
            with suppress(HaloclineError):
                self._end_jobs(db, messages)

    def _give_up(self, messages: Sequence[TaskMessage]) -> None:
        """End the jobs of the tasks, whose files are not wanted; else their lease ends them."""
        if self._jobs(messages):
            with suppress(HaloclineError):
                at_owner(self._settings.address, lambda db: self._end_jobs(db, messages))

    def _end_jobs(self, db: Database, messages: Sequence[TaskMessage]) -> None:
        for job in self._jobs(messages):
            db.core.writing.end_job(job)

    def _jobs(self, messages: Sequence[TaskMessage]) -> list[JobNode]:
        """The jobs that tasks have written files for, or could have."""
        jobs = {job.job_id: job for message in messages for job in message.jobs}
        if self._reserved is not None:
            jobs[self._reserved.node.job_id] = self._reserved.node
        return list(jobs.values())

    def _change(self, txn: Transaction, messages: Sequence[TaskMessage]) -> bool:
        """All rows into one transaction."""
        name, mode = self._settings.table, self._settings.on_conflict
        state, written = txn.state_of(name), Schema.from_wire(self._wire)
        schema = self._columns_of(written)
        rows = travelled(state.shelf.objects, messages)
        made = [one for message in messages for one in message.made]
        if state.schema.version != written.version:
            schema = renamed(schema, written, state.schema)
            rows = (pa.RecordBatch.from_arrays(one.columns, schema=schema) for one in rows)
            if mode == "upsert":
                # Whole rows are some columns now, so they are not objects that others can replace.
                rows, made = chain(read_back(state, made, schema), rows), []
        if self._overwrite:
            txn.truncate(name)
        if mode == "error":
            if made:
                join(txn, name, made)
            txn.insert(name, pa.RecordBatchReader.from_batches(schema, rows))
            return True
        if made:
            join_upsert(txn, name, made, rows)
            return True
        table = pa.Table.from_batches(rows, schema=schema)
        if mode == "upsert":
            txn.upsert(name, table)
        elif mode == "ignore":
            txn.insert(name, table, on_conflict="ignore")
        else:
            apply_changes(txn, name, table)
        return True

    @property
    def _columns(self) -> Literal["all", "given"]:
        upsert = self._settings.on_conflict == "upsert" and not self._draws
        return "given" if upsert else "all"

    def _columns_of(self, table: Schema) -> pa.Schema:
        """The columns of rows that travel: all of the table's, or those that are updated."""
        names = set(self._given if self._columns == "given" else table.names)
        names -= set(table.primary_key if self._draws else ())
        fields = [table.arrow.field(name) for name in table.names if name in names]
        return pa.schema([*fields, *(FEED.values() if self._is_feed else ())])

    @property
    def _is_feed(self) -> bool:
        return self._settings.on_conflict == "changes"

    def _conformed(self, table: Schema, chunk: pa.Table, done: int) -> pa.Table:
        """Canonical rows; an error names the row of the task."""
        own = chunk.select([name for name in chunk.column_names if name not in FEED])
        try:
            rows = table.table(own, columns=self._columns)
        except SchemaError as error:
            row = None if error.row is None else error.row + done
            raise SchemaError(error.reason, column=error.column, row=row) from None
        if self._draws:
            rows = rows.drop_columns(list(table.primary_key))
        for name, field in FEED.items() if self._is_feed else ():
            rows = rows.append_column(field, chunk.column(name))
        return rows


class BatchWriter(_Writer, DataSourceArrowWriter):
    """`df.write`: append, or overwrite the table."""

    def __init__(self, settings: Settings, schema: StructType, *, overwrite: bool) -> None:
        super().__init__(settings, schema, overwrite=overwrite)
        self._token = settings.token or f"spark-{SystemClock().random_bytes(16).hex()}"
        if self._root:
            self._reserved = at_owner(settings.address, lambda db: reserve(db, settings.table))

    def _start(self, table: Schema) -> JobWriter | None:
        here = task_here()
        if here is None or self._reserved is None:
            return None
        return self._reserved.writer(table, *here)

    def commit(self, messages: Messages) -> None:
        """In a process of its own: make all rows visible, once."""
        self._commit(messages, self._token)

    def abort(self, messages: Messages) -> None:
        """Nothing was made visible, or all of it: there is nothing to undo."""


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """`df.writeStream`: each micro-batch once. Output mode "complete" overwrites the table."""

    def __init__(self, settings: Settings, schema: StructType, *, overwrite: bool) -> None:
        if settings.token is not None:
            raise UsageError("a stream has a token of its own, made of query and batch")
        super().__init__(settings, schema, overwrite=overwrite)
        self._host = socket.gethostname()

    def _start(self, table: Schema) -> JobWriter | None:
        # From another machine a task can reach the files, but not whoever owns the database.
        if not self._root or socket.gethostname() != self._host:
            return None
        settings = self._settings
        job = at_owner(settings.address, lambda db: reserve(db, settings.table, tasks=1))
        return None if job is None else job.writer(table, 0, 0)

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        """In a process of its own: make the micro-batch visible, once."""
        queries = {one.query for one in messages if isinstance(one, TaskMessage)}
        if not queries:
            return  # a batch without a task has no rows either
        if len(queries) > 1 or "" in queries:
            raise UsageError("Spark does not say which streaming query this is: nothing is written")
        self._commit(messages, stream_token(queries.pop(), self._settings.table, batchId))

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        """As for a batch: there is nothing to undo."""


def check_input(given: StructType, table: Schema, settings: Settings) -> None:
    """Names, types and key columns before a job starts; SchemaError."""
    is_feed = settings.on_conflict == "changes"
    if is_feed:
        check_feed(arrow_schema(given))
    own = StructType([field for field in given.fields if not (is_feed and field.name in FEED)])
    names = proper_names(own, table)
    if settings.on_conflict != "error" and not table.primary_key:
        raise UsageError(f"onConflict={settings.on_conflict} needs a table with a primary key")
    if is_feed and _lacks_key(own, table):
        raise SchemaError("a key column is missing", column=table.primary_key[0])
    whole = settings.on_conflict != "upsert" or _lacks_key(own, table)
    check_types(own, names, table, whole=whole)


def _lacks_key(given: StructType, table: Schema) -> bool:
    """Are keys to be drawn for the rows of an input?"""
    names = [name.lower() for name in given.names]
    return table.identity is not None and table.primary_key[0].lower() not in names


def _query() -> str:
    context = TaskContext.get()
    return (context and context.getLocalProperty(QUERY_ID)) or ""

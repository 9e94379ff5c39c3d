"""The task of a write job: rows in key order come in, objects go out, a line per object comes back.

    batches (Arrow, sorted by key) --up to object_rows--> conform --> probe --> decide --> objects
                                                                       (probe.py)   |
    one row per object: kind, number, key in the store, statistics <----------------'

Each object of a partition has a range of 2^20 RowIDs of its own, by (partition, ordinal); attempts
of a task reuse it under another file name, and only the winning attempt's lines reach the driver.
A task never raises for what a user did wrong: it reports, so that the driver can say it in one
error, whichever of the tasks found it first.

Nothing here talks to the database: objects are read and written, that is all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec
import numpy as np
import pyarrow as pa

from halocline.config import Options
from halocline.errors import SchemaError
from halocline.objects.batch import Int64Array
from halocline.objects.columns import CHANGED, HIDDEN, ROWID, SUCCESSOR
from halocline.objects.order import repeats
from halocline.objects.shelf import object_key
from halocline.objects.write import encode_data, encode_tombstones
from halocline.schema import Schema
from halocline.spark.probe import Base, Found, Probe, shelf_at

Mode = Literal["error", "ignore", "upsert", "update", "delete"]
ORDINALS: Final = 16
ATTEMPTS: Final = 16
RANGE_ROWS: Final = 1 << 20
PARTITIONS_MAX: Final = (1 << 20) // (ORDINALS * ATTEMPTS)
KEYS_SHOWN: Final = 10

LINE: Final = pa.schema(
    [
        pa.field("kind", pa.string()),
        pa.field("number", pa.int64()),
        pa.field("key", pa.string()),
        pa.field("rows", pa.int64()),
        pa.field("stats", pa.binary()),
    ]
)
LINE_SQL: Final = "kind string, number bigint, key string, rows bigint, stats binary"
_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True)
class Task:
    """What all tasks of a job are told; plain values, because they travel."""

    table_id: int
    job_id: int
    first_rowid: int
    mode: Mode
    columns: tuple[str, ...]
    """Columns of the input, in the table's spelling."""
    object_rows: int
    row_group_rows: int
    page_rows: int


def run(task: Task, base: Any) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for mapInArrow; `base` is a broadcast `Base`."""

    def partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = _Partition(task, base.value)
        yield from writer.write(batches)

    return partition


class _Partition:
    """One partition of the input."""

    def __init__(self, task: Task, base: Base) -> None:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "runs inside a task"
        self._place = context.partitionId() * ORDINALS
        # Ids of attempts are unique in a session, so two of one task differ.
        self._attempt = context.taskAttemptId() % ATTEMPTS
        self._ordinal = 0
        self._task = task
        self._schema = Schema.from_wire(base.schema)
        self._probe = Probe(base, self._schema)
        self._shelf = shelf_at(base.root)
        self._options = Options(
            object_rows=task.object_rows,
            row_group_rows=task.row_group_rows,
            page_rows=task.page_rows,
        )
        self._ends: list[pa.Table] = []
        self._last: pa.Table | None = None

    def write(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            for chunk in _chunks(batches, self._task.object_rows):
                yield from self._chunk(chunk)
            yield from self._tombstones()
        except SchemaError as error:
            yield _line("schema", 0, str(error), 0, b"")

    def _chunk(self, chunk: pa.Table) -> Iterator[pa.RecordBatch]:
        schema, mode = self._schema, self._task.mode
        whole = set(self._task.columns) == set(schema.names)
        table = schema.table(chunk, columns="all" if whole else "given")
        table, again = self._distinct(table)
        if again.num_rows and mode != "ignore":
            yield self._complaint("repeated", again)
            return
        found = self._probe.find(table)
        known = np.flatnonzero(found.rowids)
        if mode == "error" and len(known):
            yield self._complaint("taken", table.take(pa.array(known)))
            return
        if mode == "delete":
            self._end(table.take(pa.array(known)), found.rowids[known], None)
            return
        if mode == "update" and len(known) < table.num_rows:
            absent = np.flatnonzero(found.rowids == 0)
            yield self._complaint("absent", table.take(pa.array(absent)))
            return
        if mode == "ignore" and len(known):
            table = table.take(pa.array(np.flatnonzero(found.rowids == 0)))
            known = known[:0]
        whole = self._filled(table, found, known)
        fresh = np.flatnonzero(found.rowids == 0) if len(known) else np.arange(whole.num_rows)
        # Inserted rows and successors apart: a commit asks different questions about them.
        yield from self._rows("data", whole, fresh)
        yield from self._rows("successor", whole, known, found.rowids[known])

    def _distinct(self, table: pa.Table) -> tuple[pa.Table, pa.Table]:
        """The first row of each key, and the keys of the others; the chunk before counts too."""
        schema = self._schema
        keys = table.select(list(schema.primary_key))
        before = 0 if self._last is None else 1
        joined = keys if self._last is None else pa.concat_tables([self._last, keys])
        self._last = keys.slice(keys.num_rows - 1)
        again = repeats(joined.combine_chunks(), schema)
        if not again.num_rows:
            return table, again
        plain = schema.keys_of(joined)
        kept = [
            place - before
            for place in range(before, len(plain))
            if not place or plain[place] != plain[place - 1]
        ]
        return table.take(pa.array(kept, pa.int64())), again

    def _filled(self, table: pa.Table, found: Found, known: Int64Array) -> pa.Table:
        """Whole rows: what the input leaves out comes from the row that is replaced, or is null."""
        schema = self._schema
        if table.num_columns == len(schema.names):
            return table
        old = found.rows() if len(known) else schema.arrow.empty_table()
        # The place of each row in `old`, null where there is none.
        places = np.full(table.num_rows, -1, dtype=np.int64)
        places[known] = np.arange(len(known))
        index = pa.array(places, mask=places < 0)
        arrays = [
            table.column(name) if name in table.column_names else old.column(name).take(index)
            for name in schema.names
        ]
        whole = pa.Table.from_arrays(arrays, schema=schema.arrow)
        return schema.table(whole)

    def _rows(
        self, kind: str, table: pa.Table, places: Int64Array, targets: Int64Array | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Some rows of a chunk as an object; `targets` are the versions that they succeed."""
        if not len(places):
            return
        if len(places) < table.num_rows:
            table = table.take(pa.array(places))
        ordinal, number = self._next()
        first = self._task.first_rowid + (self._place + ordinal) * RANGE_ROWS
        rowids = np.arange(first, first + table.num_rows, dtype=np.int64)
        data, stats = encode_data(
            table.append_column(ROWID, pa.array(rowids)), self._schema, options=self._options
        )
        key = self._put(number, data)
        yield _line(kind, number, key, table.num_rows, _encode(stats.to_wire()))
        if targets is not None:
            self._end(table, targets, rowids)

    def _end(self, keys: pa.Table, targets: Int64Array, successors: Int64Array | None) -> None:
        if not len(targets):
            return
        names = list(self._schema.primary_key)
        after = pa.nulls(len(targets), pa.int64()) if successors is None else pa.array(successors)
        table = keys.select(names).append_column(ROWID, pa.array(targets))
        self._ends.append(table.append_column(SUCCESSOR, after))

    def _tombstones(self) -> Iterator[pa.RecordBatch]:
        """The versions that end, by RowID, as tombstone objects."""
        if not self._ends:
            return
        ends = pa.concat_tables(self._ends).sort_by(ROWID)
        changed = None
        if self._task.mode != "delete":
            positions = [self._schema.position(name) for name in self._task.columns]
            keys = self._schema.key_set
            changed = list(self._schema.ids_of([p for p in positions if p not in keys]))
        column = pa.array([changed], HIDDEN[CHANGED].type)
        for start in range(0, ends.num_rows, self._task.object_rows):
            part = ends.slice(start, self._task.object_rows)
            same = column.take(pa.array(np.zeros(part.num_rows, dtype=np.int64)))
            part = part.append_column(CHANGED, same)
            _, number = self._next()
            data, stats = encode_tombstones(part, self._schema, options=self._options)
            key = self._put(number, data)
            yield _line("tombstone", number, key, part.num_rows, _encode(stats.to_wire()))

    def _next(self) -> tuple[int, int]:
        ordinal = self._ordinal
        self._ordinal += 1
        if ordinal >= ORDINALS:
            raise SchemaError(f"more than {ORDINALS} objects in one partition: use more partitions")
        return ordinal, (self._place + ordinal) * ATTEMPTS + self._attempt

    def _put(self, number: int, data: bytes) -> str:
        key = object_key(self._task.table_id, self._task.job_id, number)
        self._shelf.objects.put(key, data)
        return key

    def _complaint(self, kind: str, rows: pa.Table) -> pa.RecordBatch:
        keys = self._schema.keys_of(rows.slice(0, KEYS_SHOWN))
        return _line(kind, 0, "", rows.num_rows, self._schema.encode_keys(keys))


def _chunks(batches: Iterator[pa.RecordBatch], rows_max: int) -> Iterator[pa.Table]:
    """Batches joined up to `rows_max` rows."""
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


def _line(kind: str, number: int, key: str, rows: int, stats: bytes) -> pa.RecordBatch:
    columns = [[kind], [number], [key], [rows], [stats]]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, LINE, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=LINE)

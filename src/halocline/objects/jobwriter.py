"""JobWriter: the one writer of object files, for transactions, mover, compaction and Spark tasks.

    job (in the log already) --> JobWriter --encode, put under the next name--> ObjectFile
                                    '-- one writer has all names of a job, or tasks share them

A file is called `<table id>/<job id>-<number>.parquet`, so its key tells whose it is (shelf.py),
and an `ObjectFile`, key and statistics, is all that comes back. The names of a job:

    number = place * attempts + attempt, or the next of that place that is free     below 2^20

One who has the job to himself counts places from 0 and has one attempt. Tasks (`SharedJob`) have
`ordinals` places each, from `task * ordinals` on. Spark may run a task again while an earlier
attempt of it still lives: a speculative copy, a task that was lost and was not, a task of a stage
that failed. All write the same rows, but Parquet files of equal rows need not be equal, and the
commit names the digest of each. So an attempt begins at a number that others hardly have, and a
name that is taken is passed over. Nobody ever writes where a file is.

Of RowIDs that are reserved before the rows are known, each place has 2^20, by its number: attempts
of a task give out the same ones, and only the files of one attempt are committed.

Not here: sorting rows (order.py), Parquet (write.py), the log's part of a job (txn/jobs.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from halocline.errors import UnavailableError, UsageError
from halocline.objects.columns import CHANGED, HIDDEN, ROWID, SUCCESSOR, Order
from halocline.objects.order import cuts
from halocline.objects.shelf import FILES_PER_JOB, index_key, object_key
from halocline.objects.stats import ObjectFile, ObjectStats
from halocline.objects.write import encode_data, encode_index, encode_tombstones
from halocline.options import Options
from halocline.schema.batches import Int64Array
from halocline.schema.schema import Schema
from halocline.store.files import Buffer
from halocline.store.objects import Objects

PLACE_ROWS: Final = 1 << 20
"""RowIDs of each place, which is also the most rows that a file of a task may have."""
EncodedObject = tuple[bytes, ObjectStats]


class JobWriter:
    """Writes files of one job. Encoding may be done by any thread, putting by one at a time."""

    def __init__(
        self,
        objects: Objects,
        schema: Schema,
        options: Options,
        *,
        table_id: int,
        job_id: int,
        first_rowid: int = 0,
        places: range = range(FILES_PER_JOB),
        attempt: int = 0,
        attempts: int = 1,
    ) -> None:
        """`attempts` is how many names there are for each place."""
        self.options = options
        self._objects, self._schema = objects, schema
        self._table_id, self._job_id = table_id, job_id
        self._first_rowid = first_rowid
        self._places, self._next = places, places.start
        self._attempt, self._attempts = attempt, attempts

    @property
    def places_left(self) -> int:
        """How many files it may still write."""
        return self._places.stop - self._next

    @property
    def next_rowid(self) -> int:
        """The first RowID of the next place."""
        return self._first_rowid + self._next * PLACE_ROWS

    def rows(self, table: pa.Table, *, order: Order = "key") -> ObjectFile:
        """Write rows that have their RowIDs, in the order that is said, as one data object."""
        return self.put(self.encode_rows(table, order=order))

    def new_rows(self, table: pa.Table, schema: Schema | None = None) -> ObjectFile:
        """Write rows in key order as one data object; they get the RowIDs of its place.

        `schema` is that of the rows, if they are not whole rows of the table.
        """
        table = with_rowids(table, self.next_rowid)
        return self.put(encode_data(table, schema or self._schema, options=self.options))

    def tombstones(self, table: pa.Table) -> list[ObjectFile]:
        """Write tombstones, which stand in the order of RowIDs, as few objects of equal size."""
        return [self.put(self.encode_tombstones(part)) for part in self.pieces(table)]

    def pieces(self, table: pa.Table) -> list[pa.Table]:
        """Cut a table into as few parts of equal size as objects may hold."""
        edges = cuts(table.num_rows, self.options.object_rows)
        return [table.slice(start, stop - start) for start, stop in edges]

    def encode_rows(self, table: pa.Table, *, order: Order = "key") -> EncodedObject:
        return encode_data(table, self._schema, order=order, options=self.options)

    def encode_tombstones(self, table: pa.Table) -> EncodedObject:
        return encode_tombstones(table, self._schema, options=self.options)

    def index(self, table: pa.Table, schema_version: int, target: int, index_id: int) -> ObjectFile:
        """Write what an index has of a data object."""
        data, stats = encode_index(table, schema_version, options=self.options)
        name = partial(index_key, self._table_id, target, index_id, self._job_id)
        return ObjectFile(self.put_bytes(data, name), stats)

    def put(self, encoded: EncodedObject) -> ObjectFile:
        """Store an object at the next place; OSError when the store cannot take it."""
        data, stats = encoded
        return ObjectFile(self.put_bytes(data), stats)

    def put_bytes(self, data: Buffer, name: Callable[[int], str] | None = None) -> str:
        """Store a file of any content at the next place; returns its key."""
        name = name or partial(object_key, self._table_id, self._job_id)
        place = self._take_place()
        for step in range(self._attempts):
            number = place * self._attempts + (self._attempt + step) % self._attempts
            key = name(number)
            try:
                self._objects.put_new(key, data)
            except FileExistsError:
                continue
            return key
        raise UnavailableError(f"all {self._attempts} names for one file are taken, as {key} is")

    def _take_place(self) -> int:
        if self._next >= self._places.stop:
            raise UsageError(
                f"a task would have to write more than {len(self._places)} objects: "
                f"split the input by key into several jobs"
            )
        self._next += 1
        return self._next - 1


@dataclass(frozen=True, kw_only=True)
class SharedJob:
    """A job whose files many tasks write, each under names and RowIDs of its own.

    Plain values, because they travel.
    """

    options: Options
    """How large objects become."""
    table_id: int
    job_id: int
    first_rowid: int = 0
    ordinals: int
    """How many objects a task may write."""
    attempts: int
    """How many attempts of a task have names of their own."""

    @property
    def object_rows(self) -> int:
        """Most rows in an object: no more than its place has RowIDs."""
        return min(self.options.object_rows, PLACE_ROWS)

    def writer(self, objects: Objects, schema: Schema, task: int, attempt: int) -> JobWriter:
        """The writer of one attempt of a task."""
        first = task * self.ordinals
        return JobWriter(
            objects,
            schema,
            replace(self.options, object_rows=self.object_rows),
            table_id=self.table_id,
            job_id=self.job_id,
            first_rowid=self.first_rowid,
            places=range(first, first + self.ordinals),
            attempt=attempt,
            attempts=self.attempts,
        )


def with_rowids(table: pa.Table, first: int) -> pa.Table:
    """The rows with RowIDs that count on from `first`."""
    rowids = np.arange(first, first + table.num_rows, dtype=np.int64)
    return table.append_column(ROWID, pa.array(rowids))


def tombstone_table(
    table: pa.Table, successors: Int64Array | None, changed: tuple[int, ...]
) -> pa.Table:
    """`_rowid` and key columns of versions that end, with what follows each beside them.

    `changed` are the ids of the columns that an update wrote; without successors rows are deleted.
    """
    count = table.num_rows
    if successors is None:
        after, columns = pa.nulls(count, pa.int64()), pa.nulls(count, HIDDEN[CHANGED].type)
    else:
        offsets = np.arange(count + 1, dtype=np.int32) * np.int32(len(changed))
        items = np.tile(np.array(changed, dtype=np.int32), count)
        after = pa.array(successors)
        columns = pa.ListArray.from_arrays(pa.array(offsets), pa.array(items))
    return table.append_column(SUCCESSOR, after).append_column(CHANGED, columns)

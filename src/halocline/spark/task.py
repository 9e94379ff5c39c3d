"""The task of a write job: rows in key order come in, objects go out, a line per object comes back.

    batches (Arrow, sorted by key) --up to object_rows--> conform --> probe --> decide --> objects
                                                                       (probe.py)   |
    one line per object: its kind, the file (worker.py) <-----------------------------'

| line      | what it is about                                             | joins the table |
|-----------|--------------------------------------------------------------|-----------------|
| data      | rows that the table has not                                  | yes             |
| successor | rows that take the place of others                           | yes             |
| tombstone | the versions that end                                        | yes             |
| held      | blind: rows, or keys, that the table has and the job ignores, or deletes | no  |
| absent    | blind: keys to be deleted that the table has not             | no              |
| schema, usage, repeated, taken, missing, damaged | something is wrong   | no              |

Names and RowIDs of the objects come from the job, which its tasks share (objects/jobwriter.py). The
fewer partitions a job has, the more objects each may write, and the more attempts have names of
their own.

Nothing here talks to the database: objects are read and written, that is all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa

from halocline.errors import CorruptionError, SchemaError, UsageError
from halocline.objects import SharedJob
from halocline.objects.columns import ROWID, SUCCESSOR, key_schema
from halocline.objects.jobwriter import tombstone_table
from halocline.objects.order import same_as_before
from halocline.objects.shelf import FILES_PER_JOB
from halocline.schema.batches import Int64Array
from halocline.schema.schema import Schema
from halocline.spark.condition import holds
from halocline.spark.probe import Base, Probe, ProbedKeys
from halocline.spark.worker import chunks, damage_line, file_line, line, shelf_at, task_here
from halocline.txn.blind import Mode

Matched = Literal["error", "update", "delete", "ignore"]
Absent = Literal["error", "insert", "ignore"]
ORDINALS_MIN: Final = 16
ORDINALS_MAX: Final = 128
ATTEMPTS_MIN: Final = 16
ATTEMPTS_MAX: Final = 256
PARTITIONS_MAX: Final = FILES_PER_JOB // (ORDINALS_MIN * ATTEMPTS_MIN)
KEYS_SHOWN: Final = 10
BLIND: Final[dict[tuple[str, str], Mode]] = {
    ("update", "insert"): "upsert",
    ("ignore", "insert"): "ignore",
    ("delete", "ignore"): "delete",
}
"""Jobs that others never make fail, by what they do to rows that match and to others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What a job shall do with rows whose key the table has, and with others; it travels."""

    matched: Matched
    absent: Absent
    columns: tuple[str, ...] = ()
    """Columns of the input, in the table's spelling."""
    condition: str = ""
    """Which of the rows that match are meant; empty: all."""
    extra: tuple[str, ...] = ()
    """Columns of the input that only the condition knows."""
    draws: bool = False
    """Does the input lack the identity column? Then every row is new, and gets a key."""
    key_offset: int = 0
    """A row's key less its RowID, then: both are reserved for the job, and used in step."""

    @property
    def blind(self) -> Mode | None:
        return None if self.condition else BLIND.get((self.matched, self.absent))

    @property
    def takes_repeats(self) -> bool:
        """Whether a key may come twice: the rows are ignored, or nothing but the key counts."""
        return self.matched == "ignore" or self.blind == "delete"


def shares(partitions: int) -> tuple[int, int]:
    """Objects of a partition, and attempts of each, when a job has so many partitions."""
    # How many rows a partition gets is a guess: Spark knows the bytes of its input at best.
    room = FILES_PER_JOB // (partitions * ATTEMPTS_MIN * 8)
    ordinals = max(ORDINALS_MIN, min(ORDINALS_MAX, room))
    return ordinals, min(ATTEMPTS_MAX, FILES_PER_JOB // (partitions * ordinals))


def run(
    job: SharedJob, spec: Spec, base: Any
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for mapInArrow; `base` is a broadcast `Base`."""

    def partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from Partition(job, spec, base.value, *task_here(job.attempts)).write(batches)

    return partition


class Partition:
    """One partition of the input, in one attempt."""

    def __init__(self, job: SharedJob, spec: Spec, base: Base, number: int, attempt: int) -> None:
        self._spec, self._rows_max = spec, job.object_rows
        self._schema = schema = Schema.from_wire(base.schema)
        self._probe = Probe(base, schema)
        self._writer = job.writer(shelf_at(base.root).objects, schema, number, attempt)
        self._ends: list[pa.Table] = []
        self._last: pa.Table | None = None
        self._repeated = False

    def write(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            for chunk in chunks(batches, self._rows_max):
                yield from self._chunk(chunk)
            yield from self._tombstones()
        except SchemaError as error:
            yield line("schema", 0, str(error).encode())
        except UsageError as error:  # a condition that fails on these rows, or too many of them
            yield line("usage", 0, str(error).encode())
        except CorruptionError as error:
            yield damage_line(error)

    def _chunk(self, chunk: pa.Table) -> Iterator[pa.RecordBatch]:
        schema, spec = self._schema, self._spec
        whole = set(spec.columns) == set(schema.names)
        given = chunk.select(list(spec.columns))
        table = schema.table(given, columns="all" if whole or spec.draws else "given")
        if spec.draws:
            table = self._with_keys(table)
        again = self._repeats(table)
        if again.any():
            if not spec.takes_repeats:
                yield self._complaint("repeated", table.filter(pa.array(self._once(again))))
                return
            table = table.filter(pa.array(~again))
        self._repeated = False
        if not table.num_rows:
            return
        found = self._probe.find(table)
        known, fresh = np.flatnonzero(found.rowids), np.flatnonzero(found.rowids == 0)
        if spec.matched == "error" and len(known):
            yield self._complaint("taken", _some(table, known))
            return
        if spec.absent == "error" and len(fresh):
            yield self._complaint("missing", _some(table, fresh))
            return
        if spec.condition and len(known):
            source = table
            for name in spec.extra:
                source = source.append_column(name, chunk.column(name))
            known = known[holds(spec.condition, _some(source, known), found.rows(known))]
        yield from self._matching(table, found, known)
        yield from self._others(table, fresh)

    def _with_keys(self, table: pa.Table) -> pa.Table:
        """The rows of the next object, with keys that go with its RowIDs."""
        at = self._schema.key_positions[0]
        first = self._writer.next_rowid + self._spec.key_offset
        keys = pa.array(np.arange(first, first + table.num_rows, dtype=np.int64))
        return table.set_column(at, self._schema.arrow.field(at), keys)

    def _matching(
        self, table: pa.Table, found: ProbedKeys, known: Int64Array
    ) -> Iterator[pa.RecordBatch]:
        """Rows whose key the table has: a version ends, and perhaps another takes its place."""
        spec = self._spec
        rows, targets = _some(table, known), found.rowids[known]
        if spec.matched == "update":
            yield from self._rows("successor", self._filled(rows, found, known), targets)
        elif spec.matched == "delete":
            self._end(rows, targets, None)
            if spec.blind:
                yield from self._side("held", rows)
        elif spec.blind:
            yield from self._rows("held", self._filled(rows, None, known[:0]))

    def _others(self, table: pa.Table, fresh: Int64Array) -> Iterator[pa.RecordBatch]:
        """Rows whose key the table has not."""
        rows = _some(table, fresh)
        if self._spec.absent == "insert":
            yield from self._rows("data", self._filled(rows, None, fresh[:0]))
        elif self._spec.blind:
            yield from self._side("absent", rows)

    def _repeats(self, table: pa.Table) -> Any:
        """Which rows have the key of the row before; the chunk before counts too."""
        keys = table.select(list(self._schema.primary_key))
        joined = keys if self._last is None else pa.concat_tables([self._last, keys])
        before = joined.num_rows - keys.num_rows
        self._last = keys.slice(keys.num_rows - 1)
        return same_as_before(joined.combine_chunks(), self._schema)[before:]

    def _once(self, again: Any) -> Any:
        """Of the rows that have the key of the row before, the first of each key."""
        before = np.concatenate([[self._repeated], again[:-1]])
        self._repeated = bool(again[-1])
        return again & ~before

    def _filled(self, rows: pa.Table, found: ProbedKeys | None, known: Int64Array) -> pa.Table:
        """Whole rows: what the input leaves out comes from the row that is replaced, or is null."""
        schema = self._schema
        missing = [name for name in schema.names if name not in rows.column_names]
        if not missing:
            return rows
        if found is not None and len(known):
            old = found.rows(known, missing)
            for name in missing:
                rows = rows.append_column(schema.arrow.field(name), old.column(name))
        return schema.table(rows)

    def _rows(
        self, kind: str, table: pa.Table, targets: Int64Array | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Rows as an object; `targets` are the versions that they succeed."""
        if not table.num_rows:
            return
        file = self._writer.new_rows(table)
        yield file_line(kind, file)
        if targets is not None:
            first = file.stats.rowid_min
            self._end(table, targets, np.arange(first, first + len(targets), dtype=np.int64))

    def _side(self, kind: str, table: pa.Table) -> Iterator[pa.RecordBatch]:
        """Keys alone, for the driver to find."""
        if table.num_rows:
            keys = table.select(list(self._schema.primary_key))
            yield file_line(kind, self._writer.new_rows(keys, key_schema(self._schema)))

    def _end(self, keys: pa.Table, targets: Int64Array, successors: Int64Array | None) -> None:
        if len(targets):
            table = keys.select(list(self._schema.primary_key))
            table = table.append_column(ROWID, pa.array(targets))
            after = np.zeros(len(targets), np.int64) if successors is None else successors
            self._ends.append(table.append_column(SUCCESSOR, pa.array(after)))

    def _tombstones(self) -> Iterator[pa.RecordBatch]:
        """The versions that end, by RowID, as tombstone objects."""
        if not self._ends:
            return
        ends = pa.concat_tables(self._ends).sort_by(ROWID)
        after, schema = None, self._schema
        if self._spec.matched == "update":
            after = ends.column(SUCCESSOR).to_numpy()
        positions = {schema.position(name) for name in self._spec.columns} - schema.key_set
        table = tombstone_table(ends.drop_columns(SUCCESSOR), after, schema.ids_of(positions))
        for file in self._writer.tombstones(table):
            yield file_line("tombstone", file)

    def _complaint(self, kind: str, rows: pa.Table) -> pa.RecordBatch:
        keys = self._schema.keys_of(rows.slice(0, KEYS_SHOWN))
        return line(kind, rows.num_rows, self._schema.encode_keys(keys))


def _some(table: pa.Table, places: Int64Array) -> pa.Table:
    return table if len(places) == table.num_rows else table.take(pa.array(places))

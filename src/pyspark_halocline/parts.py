"""Parts: a table at a snapshot, cut into pieces that executors read on their own.

    plan_parts   plan (read/plan.py) --> objects side by side, up to 64 MB | rows of L0, up to 4 MB
    read_part    files --verified reader--> less the dead, less the late --predicate--> Arrow

A part carries what its executor needs: names and statistics of its files, which RowIDs of them
have ended, the columns and the predicate. Rows that are in no object travel inside it. So whoever
reads it needs the objects, and not the database.

The process that plans ends before the first row is read, so it leaves a lease behind
(checkpoint/leases.py): GC keeps the snapshot's files until that is over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import sqlglot
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from sqlglot import exp

from halocline import Database
from halocline.catalog.entries import ObjectEntry
from halocline.checkpoint.leases import write_lease
from halocline.clock import SystemClock
from halocline.errors import CorruptionError
from halocline.objects import ObjectFile, ObjectStats, Shelf
from halocline.objects.columns import COMMIT_TS, ROWID
from halocline.options import MIB
from halocline.read.duck import as_schema
from halocline.read.plan import ScanPlan
from halocline.read.predicate import compile_where
from halocline.read.scan import memory_table, take_plan
from halocline.read.statement import parse_where
from halocline.rows.members import is_among
from halocline.rows.state import TableState
from halocline.schema.batches import Int64Array
from halocline.schema.ipc import check_own
from halocline.schema.schema import Schema
from halocline.spark.condition import query_here
from halocline.spark.worker import shelf_at
from halocline.store import LocalFiles
from pyspark_halocline.connect import open_to_read
from pyspark_halocline.options import Address

HERE: Final = Address()
PARTITION_BYTES: Final = 64 * MIB
ROWS_BYTES: Final = 4 * MIB
"""Rows of L0 in one partition: a task must fit into one message of Spark's."""
BATCH_ROWS: Final = 65_536


class Wanted(NamedTuple):
    """What of the table is wanted, in plain values: the same for all partitions of a read."""

    root: str
    """The folder of the objects, as this machine sees it; empty for a database that is served."""
    schema: dict[str, Any]
    ts: int
    columns: tuple[str, ...]
    where: str | None = None
    address: Address = HERE


@dataclass
class ScanPart(InputPartition):
    """Some of the rows of a table at a snapshot."""

    wanted: Wanted
    files: tuple[tuple[str, int, list[Any], bool], ...] = ()
    """Store key, created_at, statistics, and whether some rows are newer than the snapshot."""
    dead: bytes = b""
    """RowIDs in the ranges of these files that had ended, as int64."""
    rows: bytes = b""
    """Rows of L0 as an Arrow stream."""


def hold(db: Database, ts: int, seconds: float) -> None:
    """Keep a snapshot, which the caller has open, readable after this process has ended.

    That of a server is kept by its retention time alone.
    """
    if ts and "://" not in db.path:
        # A directory that we may not write to: as with any reader there, nobody is told.
        with suppress(OSError):
            write_lease(LocalFiles(db.path), SystemClock(), ts, seconds)


def plan_parts(
    state: TableState,
    ts: int,
    columns: tuple[str, ...],
    where: str | None = None,
    address: Address = HERE,
) -> Iterator[ScanPart]:
    """The table at a snapshot as partitions; files that cannot match are left out."""
    schema = state.schema
    name = state.entry.name
    predicate = None if where is None else compile_where(where, None, schema, name)
    plan = take_plan(state, ts, predicate)
    checked = None if where is None else parse_where(where, schema, name)
    root = "" if address.uri else state.shelf.root
    wanted = Wanted(root, schema.to_wire(), ts, columns, checked, address)
    for group in _groups(plan.objects):
        yield ScanPart(
            wanted,
            files=tuple([_told(entry, late=entry in plan.late) for entry in group]),
            dead=_dead_in(group, plan),
        )
    for rows in pieces(memory_table(schema, plan)):
        yield ScanPart(wanted, rows=to_stream(rows))


def read_part(part: ScanPart, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The rows of a partition, as Spark wants to have them."""
    target = to_arrow_schema(schema, timezone="UTC")
    for table in _tables(part):
        shown = as_schema(_matching(table, part.wanted).select(part.wanted.columns), target)
        yield from shown.to_batches(max_chunksize=BATCH_ROWS)


def pieces(table: pa.Table) -> Iterator[pa.Table]:
    """A table in pieces that are small enough to travel."""
    rows = max(1, int(ROWS_BYTES / max(1, table.nbytes) * table.num_rows))
    for start in range(0, table.num_rows, rows):
        yield table.slice(start, rows)


def to_stream(table: pa.Table) -> bytes:
    """Rows as bytes."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        # Combined: a slice would take the buffers of the whole table along.
        writer.write_table(table.combine_chunks())
    return bytes(sink.getvalue().to_pybytes())


def from_stream(data: bytes) -> pa.Table:
    """What `to_stream` made; CorruptionError when it can be nothing of the kind."""
    try:
        check_own(data)
    except ValueError as error:
        raise CorruptionError("rows of a partition", str(error)) from None
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()


def _groups(entries: Sequence[ObjectEntry]) -> Iterator[list[ObjectEntry]]:
    """Objects side by side up to PARTITION_BYTES."""
    group: list[ObjectEntry] = []
    size = 0
    for entry in entries:
        if group and size + entry.stats.size_bytes > PARTITION_BYTES:
            yield group
            group, size = [], 0
        group.append(entry)
        size += entry.stats.size_bytes
    if group:
        yield group


def _told(entry: ObjectEntry, *, late: bool) -> tuple[str, int, list[Any], bool]:
    return entry.key, entry.created_at, entry.stats.to_wire(), late


def _dead_in(entries: Sequence[ObjectEntry], plan: ScanPlan) -> bytes:
    """The dead RowIDs between the lowest and the highest RowID of some objects."""
    low = min(entry.stats.rowid_min for entry in entries)
    high = max(entry.stats.rowid_max for entry in entries)
    begin, end = np.searchsorted(plan.dead, [low, high + 1])
    return bytes(plan.dead[begin:end].astype(np.int64).tobytes())


def _tables(part: ScanPart) -> Iterator[pa.Table]:
    """All visible rows of a partition, with the columns that are needed."""
    if not part.files and not part.rows:
        return
    schema = Schema.from_wire(part.wanted.schema)
    needed = _needed(schema, part.wanted)
    if part.rows:
        yield from_stream(part.rows).select(needed)
    dead: Int64Array = np.frombuffer(part.dead, dtype=np.int64)
    with _shelf(part.wanted) as shelf:
        for key, created_at, stats, late in part.files:
            file = ObjectFile(key, ObjectStats.from_wire(stats), created_at)
            for table in shelf.reader.scan(file, schema, columns=needed, hidden=[ROWID, COMMIT_TS]):
                kept = ~is_among(table.column(ROWID).to_numpy(), dead)
                if late:
                    kept &= table.column(COMMIT_TS).to_numpy() <= part.wanted.ts
                yield table if kept.all() else table.filter(pa.array(kept))


@contextmanager
def _shelf(wanted: Wanted) -> Iterator[Shelf]:
    """The objects: from the folder, or from the server for as long as they are read."""
    if not wanted.address.uri:
        yield shelf_at(wanted.root)
        return
    with open_to_read(wanted.address) as db:
        yield db.core.engine.shelf


def _needed(schema: Schema, wanted: Wanted) -> list[str]:
    """The columns that are shown, and those that the predicate looks at."""
    names = set(wanted.columns)
    if wanted.where is not None:
        tree = sqlglot.parse_one(wanted.where, read="duckdb")
        # A column, or a struct and its field, or a variable of a lambda: take what is a column.
        parts = {part.name.lower() for one in tree.find_all(exp.Column) for part in one.parts}
        names |= {name for name in schema.names if name.lower() in parts}
    return [name for name in schema.names if name in names]


def _matching(table: pa.Table, wanted: Wanted) -> pa.Table:
    """The rows that the predicate holds for: DuckDB decides which, Arrow keeps the exact types."""
    if wanted.where is None or not table.num_rows:
        return table
    view = table.append_column("_place", pa.array(np.arange(table.num_rows)))
    text = f"select _place from _view where {wanted.where} order by _place"
    return table.take(query_here(text, {"_view": view}).column(0))

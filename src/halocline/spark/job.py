"""A write job from the driver's side: check, run the tasks, put their files into one transaction.

    DataFrame --range-partition, sort by key--> tasks (task.py) --lines: one per object--> driver
                                                                                            |
                 one transaction: files handed in (txn/task_objects), checks against others |
                 who committed meanwhile, one commit record  <------------------------------'

What the input is checked against is a snapshot; what others commit while the job runs is looked at
by the commit, in rounds, so that the commit lock is never held for long. Upsert, ignore and delete
are blind: others never make them fail (txn/blind.py). Until the commit nobody sees a row; after a
failure nobody refers to the files, and GC removes them.

Not here: what a task does (task.py), which jobs there are (writes.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from halocline.catalog.entries import ObjectEntry
from halocline.errors import DuplicateKeyError, NotFoundError, SchemaError, UsageError
from halocline.objects import ObjectFile, SharedJob
from halocline.objects.jobwriter import PLACE_ROWS
from halocline.options import MIB
from halocline.read.scan import memory_table, take_plan
from halocline.rows.reshape import new_entry
from halocline.rows.state import TableState
from halocline.schema.schema import Schema
from halocline.show import report_html
from halocline.spark.collect import collect
from halocline.spark.owner import SparkOwner, check_writer
from halocline.spark.probe import Base
from halocline.spark.sessions import check_workers, clone, prepare
from halocline.spark.task import PARTITIONS_MAX, Spec, run, shares
from halocline.spark.trouble import told
from halocline.spark.types import check_types, definition, proper_names, quoted
from halocline.spark.worker import LINE_SQL, check_undamaged, file_in
from halocline.txn import Transaction, task_objects
from halocline.txn.definitions import begin_evolved
from halocline.txn.task_objects import TaskFiles
from halocline.txn.workspace import TableChanges

PARTITION_BYTES: Final = 64 * MIB
PARTITIONS_UNKNOWN: Final = 200
"""Parts of an input of which Spark cannot say how large it is."""
FIRST: Final = "spark.sql.adaptive.coalescePartitions.initialPartitionNum"
LEAST: Final = "spark.sql.adaptive.coalescePartitions.minPartitionSize"
ENOUGH: Final = "spark.sql.adaptive.advisoryPartitionSizeInBytes"
FEW: Final = {
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.adaptive.coalescePartitions.enabled": "true",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "true",
    LEAST: "8m",
    ENOUGH: "192m",
    "spark.sql.adaptive.optimizeSkewsInRebalancePartitions.enabled": "false",
}
"""How Spark puts parts together: as many as there are cores, if each is at least so large; more
when these become too large. It counts its own bytes, compressed."""
ROWS_ALONG_MAX: Final = 2_000
"""Rows of L0 that travel to the tasks; more are flushed first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What a write job did."""

    table: str
    commit_ts: int | None
    """None when there was nothing to write, and no token to be remembered."""
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    objects: int = 0
    bytes_written: int = 0
    already_committed: bool = False
    """The token had been committed before: nothing was done."""

    _repr_html_ = report_html


def check_input(df: object, db: object) -> SparkOwner:
    """UsageError unless these are a DataFrame and a database that can be written."""
    owner = check_writer(db)
    if not isinstance(df, DataFrame):
        raise UsageError(f"expected a Spark DataFrame, not {type(df).__name__}")
    if df.isStreaming:
        raise UsageError(
            "a streaming DataFrame never ends: write it with writeStream.foreachBatch and "
            "halocline.spark.foreach_batch(db, table)"
        )
    prepare(df.sparkSession)
    return owner


def write(
    df: DataFrame,
    db: object,
    name: str,
    spec_for: Callable[[Schema], Spec],
    token: Any,
    new_key: Sequence[str] | None = None,
    evolve: bool | None = None,
) -> LoadReport:
    """Run a job in one transaction, for a table of any schema; one commit, or none.

    With `new_key` a table that is missing is made, with the columns of the DataFrame; with `evolve`
    one that is there gets those that it has not. None: that is not on offer.
    """
    owner = check_input(df, db)
    _shorten_memory(owner, name)
    with told(f"a job on {name!r}"), owner.begin(token=token) as txn:
        if new_key is not None and not txn.already_committed:
            _make_table(df, txn, name, new_key)
        fresh = None if evolve is None else _unknown(df, txn, name, evolve=evolve)
        changes = txn.changes_of(name) if not fresh else _evolved(owner, txn, name, fresh)
        spec = spec_for(changes.schema)
        spec = replace(spec, columns=columns_of(df, changes.schema, spec))
        if txn.already_committed:
            return LoadReport(table=name, commit_ts=txn.commit_ts, already_committed=True)
        if not changes.home.shelf.root:
            raise UsageError("the objects of this database are in memory: Spark cannot write there")
        changes.home.shelf.check_root()  # tasks find their files by path
        check_workers(df.sparkSession)
        lines = _run(df, owner, txn, changes, spec)
        changes.home.shelf.check_root()  # what they have written is where the commit looks for it
        report = join(changes, spec, lines)
        txn.keep_token()
        blind = changes.blind
    if blind is not None:
        inserted, updated, deleted = blind.counts()
        report = replace(report, inserted=inserted, updated=updated, deleted=deleted)
    return replace(report, commit_ts=txn.commit_ts)


def _shorten_memory(owner: SparkOwner, name: str) -> None:
    """Flush a table that has many rows in L0, before the snapshot: they need not travel then."""
    state = owner.core.state_of(name, owner.core.newest_ts())
    if state is not None and sum(count for _, count in state.shape.counted()) > ROWS_ALONG_MAX:
        owner.flush(name)


def _make_table(df: DataFrame, txn: Transaction, name: str, key: Sequence[str]) -> None:
    """Create the table unless it is there; UsageError if it is, with another key."""
    if not txn.has_table(name):
        txn.create_table(name, definition(df), key)
    found = txn.state_of(name).schema.primary_key
    if [one.lower() for one in key] != [one.lower() for one in found]:
        there, asked = ", ".join(found) or "none", ", ".join(key)
        raise UsageError(f"table {name!r} is there, and its primary key is {there}, not {asked}")


def _unknown(df: DataFrame, txn: Transaction, name: str, *, evolve: bool) -> T.StructType | None:
    """The columns of the DataFrame that the table has not; SchemaError if it is not to get them."""
    known = {column.lower() for column in txn.state_of(name).schema.names}
    fresh = T.StructType([field for field in df.schema if field.name.lower() not in known])
    if fresh.names and not evolve:
        text = ", ".join(map(repr, fresh.names))
        reason = f"table {name!r} has no column {text}: leave it out, or add it with evolve=True"
        raise SchemaError(reason, column=fresh.names[0])
    return fresh if fresh.names and not txn.already_committed else None


def _evolved(owner: SparkOwner, txn: Transaction, name: str, fresh: T.StructType) -> TableChanges:
    """The table with further columns, which it has when the job commits."""
    if owner.core.owned is None:
        reason = "evolve=True works where the database was opened first: here, call alter_table"
        raise UsageError(reason)
    return begin_evolved(txn, name, dict(zip(fresh.names, definition(fresh).types, strict=True)))


def columns_of(df: DataFrame, schema: Schema, spec: Spec) -> tuple[str, ...]:
    """The input's columns in the table's spelling; SchemaError before a long job starts."""
    own = T.StructType([field for field in df.schema.fields if field.name not in spec.extra])
    given = proper_names(own, schema)
    if not schema.primary_key:
        raise UsageError("jobs that write need a table with a primary key")
    for key in schema.primary_key:
        if key not in given.values() and not spec.draws:
            raise SchemaError("a key column is missing", column=key)
    if spec.blind == "delete":
        given = {name: proper for name, proper in given.items() if proper in schema.primary_key}
    whole = spec.absent == "insert" and (spec.matched != "update" or spec.draws)
    check_types(own, given, schema, whole=whole)
    return schema.primary_key if spec.blind == "delete" else tuple(given.values())


def _run(
    df: DataFrame, owner: SparkOwner, txn: Transaction, changes: TableChanges, spec: Spec
) -> list[Any]:
    """Run the tasks; the lines that they send back."""
    partitions, name = _partitions(df), changes.entry.name
    state, schema = changes.home, changes.home.schema
    job = start(owner, changes, partitions)
    if spec.draws:
        rows = partitions * job.ordinals * PLACE_ROWS
        first = owner.core.writing.keys.draw(state, rows, changes.top)
        spec = replace(spec, key_offset=first - job.first_rowid)
    base = df.sparkSession.sparkContext.broadcast(pack_base(state, txn.snapshot))
    found = by_key(df, partitions, schema, spec)
    try:
        lines = found.mapInArrow(run(job, spec, base), LINE_SQL)
        return collect(lines, f"a job on {name!r}", go_on=owner.core.check_open, guest=True)
    finally:
        base.unpersist()


def by_key(df: DataFrame, partitions: int, schema: Schema, spec: Spec) -> DataFrame:
    """The rows of the input, cut by key ranges and sorted by key.

    Spark's estimate of their size may be far too high, as for every join. So it cuts them into
    `partitions` by that, and puts together what has turned out small, once it has shuffled them:
    the number of objects follows the rows that arrive. It does so only where no number is asked
    for, which then is a setting; hence the session of our own, with the plan of the caller's.
    """
    session = df.sparkSession
    own = clone(session, FEW | {FIRST: str(partitions)})
    assert session._jvm is not None
    of_plan = session._jvm.org.apache.spark.sql.classic.Dataset.ofRows
    given = DataFrame(of_plan(own._jsparkSession, df._jdf.logicalPlan()), own)
    wanted = [_named(given, schema, column) for column in spec.columns]
    rows = given.select(*wanted, *(given[quoted(column)] for column in spec.extra))
    if spec.draws:  # keys follow the order of the rows, whatever that is
        return rows.hint("rebalance")
    keys = [quoted(column) for column in schema.primary_key]
    return rows.repartitionByRange(*keys).sortWithinPartitions(*keys)


def start(owner: SparkOwner, changes: TableChanges, partitions: int) -> SharedJob:
    """Log a job for so many tasks."""
    core, (ordinals, attempts) = owner.core, shares(partitions)
    job = task_objects.start(core.writing, changes, rows=partitions * ordinals * PLACE_ROWS)
    return SharedJob(
        options=core.options,
        table_id=job.table_id,
        job_id=job.job_id,
        first_rowid=job.first_rowid,
        ordinals=ordinals,
        attempts=attempts,
    )


def pack_base(state: TableState, snapshot: int) -> Base:
    """What executors need to know of a table at a snapshot; L0 travels whole."""
    plan = take_plan(state, snapshot)
    rows = memory_table(state.schema, plan, rowids=True)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return Base(
        root=state.shelf.root,
        schema=state.schema.to_wire(),
        snapshot=snapshot,
        objects=tuple(
            ObjectFile(entry.key, entry.stats, entry.created_at) for entry in plan.objects
        ),
        dead=np.ascontiguousarray(plan.dead, dtype=np.int64).tobytes(),
        rows=sink.getvalue().to_pybytes(),
    )


def _partitions(df: DataFrame) -> int:
    """Into how many parts the input is cut at first; never fewer than the cores."""
    # py4j makes a plain int of Scala's BigInt; an unknown size is 2^63 - 1 or more.
    size = int(str(df._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))
    least = df.sparkSession.sparkContext.defaultParallelism
    guess = size // PARTITION_BYTES if size < 1 << 50 else PARTITIONS_UNKNOWN
    return int(min(PARTITIONS_MAX, max(least, guess)))


def join(changes: TableChanges, spec: Spec, lines: Sequence[Any]) -> LoadReport:
    """Hand the files in to the transaction, or say what was wrong with the input."""
    schema, name = changes.schema, changes.entry.name
    _complain(schema, name, lines)
    files: dict[str, list[ObjectEntry]] = {}
    for line in lines:
        files.setdefault(line.kind, []).append(new_entry(file_in(line)))
    changed = frozenset[int]()
    if spec.blind == "upsert":
        changed = frozenset(map(schema.position, spec.columns)) - schema.key_set
    written = schema.ids_of(map(schema.position, spec.columns))
    task_objects.join(
        changes, TaskFiles(**files), blind=spec.blind, changed=changed, written=written
    )
    data, successors, ends = (files.get(kind, []) for kind in ("data", "successor", "tombstone"))
    joined = [*data, *successors, *ends]
    ended = sum(entry.stats.rows for entry in ends)
    return LoadReport(
        table=name,
        commit_ts=None,
        inserted=sum(entry.stats.rows for entry in data),
        updated=ended if spec.matched == "update" else 0,
        deleted=ended if spec.matched == "delete" else 0,
        objects=len(joined),
        bytes_written=sum(entry.stats.size_bytes for entry in joined),
    )


def _complain(schema: Schema, name: str, lines: Sequence[Any]) -> None:
    """Raise what tasks have reported, if any did: damage first, then what is wrong with rows."""
    check_undamaged(lines)
    for kind in ("schema", "usage", "repeated", "taken", "missing"):
        found = [line for line in lines if line.kind == kind]
        if not found:
            continue
        if kind in ("schema", "usage"):
            error = SchemaError if kind == "schema" else UsageError
            raise error(bytes(found[0].content).decode())
        named = (key for line in found for key in schema.decode_keys(bytes(line.content)))
        keys = list(dict.fromkeys(named))
        if kind == "missing":
            raise NotFoundError("row", keys[0], hint=f"no such key in table {name!r}")
        total = sum(line.rows for line in found)
        raise DuplicateKeyError(name, keys[:10], inside=kind == "repeated", total=total)


def _named(df: DataFrame, schema: Schema, name: str) -> Any:
    given = next(one for one in df.columns if one.lower() == name.lower())
    column = df[quoted(given)]
    kind = df.schema[given].dataType
    if isinstance(kind, T.StringType) and kind != T.StringType():
        # Spark would sort by the column's collation: keys are in the order of their bytes.
        column = F.collate(column, "UTF8_BINARY")
    return column.alias(schema.names[schema.position(name)])

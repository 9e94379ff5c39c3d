"""A write job from the driver's side: check, run the tasks, put their files into one transaction.

    DataFrame --range-partition, sort by key--> tasks (task.py) --lines: one per object--> driver
                                                                                            |
                 one transaction: objects into the workspace, checks against what others    |
                 committed meanwhile, one commit record  <-----------------------------------'

What the input is checked against is a snapshot; what others commit while the job runs is looked at
by the commit, in rounds, so that the commit lock is never held for long. Upsert, ignore and delete
are blind: others never make them fail (txn/blind.py). Until the commit nobody sees a row; after a
failure nobody refers to the files, and GC removes them.

Not here: what a task does (task.py), which jobs there are (load.py, merge.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from halocline.catalog.entries import ObjectEntry
from halocline.errors import (
    CorruptionError,
    DuplicateKeyError,
    NotFoundError,
    SchemaError,
    UsageError,
)
from halocline.objects import ObjectStats
from halocline.objects.columns import CHANGED, ROWID, SUCCESSOR, tombstone_schema
from halocline.objects.shelf import object_id
from halocline.rows.reshape import new_entry
from halocline.rows.state import TableState
from halocline.schema.schema import Schema
from halocline.spark.base import ROWS_ALONG_MAX, pack_base
from halocline.spark.collect import collect
from halocline.spark.owner import Owner, check_writer, state_of
from halocline.spark.session import prepare
from halocline.spark.task import (
    LINE_SQL,
    PARTITIONS_MAX,
    RANGE_ROWS,
    Absent,
    Matched,
    Task,
    run,
    shares,
)
from halocline.spark.types import arrow_schema
from halocline.spark.workers import check_workers
from halocline.txn import Transaction
from halocline.txn.blind import Blind, Mode
from halocline.txn.jobs import start_job
from halocline.txn.objectparts import Ending, ObjectParts, file_of

PARTITION_BYTES: Final = 192 << 20
BLIND: Final[dict[tuple[str, str], Mode]] = {
    ("update", "insert"): "upsert",
    ("ignore", "insert"): "ignore",
    ("delete", "ignore"): "delete",
}
"""Jobs that others never make fail, by what they do to rows that match and to others."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What a job shall do with rows whose key the table has, and with others."""

    matched: Matched
    absent: Absent
    columns: tuple[str, ...] = ()
    """Columns of the input, in the table's spelling."""
    condition: str = ""
    extra: tuple[str, ...] = ()
    """Columns of the input that only the condition knows."""

    @property
    def blind(self) -> Mode | None:
        return None if self.condition else BLIND.get((self.matched, self.absent))


def check_input(df: object, db: object) -> Owner:
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


def write(df: DataFrame, owner: Owner, name: str, spec: Spec, token: Any) -> LoadReport:
    """Run a job whose input has been checked; one commit, or none."""
    with owner.begin(token=token) as txn:
        state = state_of(txn, name)
        if txn.already_committed:
            return LoadReport(table=name, commit_ts=txn.commit_ts, already_committed=True)
        if not state.shelf.root:
            raise UsageError("the objects of this database are in memory: Spark cannot write there")
        state.shelf.check_root()  # tasks find their files by path
    check_workers(df.sparkSession)
    if sum(count for _, count in state.pages()) > ROWS_ALONG_MAX:
        owner.flush(name)  # so that L0 need not travel
    with owner.begin(token=token) as txn:
        lines = _run(df, owner, txn, name, spec)
        state.shelf.check_root()  # what they have written is where the commit looks for it
        report = join(txn, name, spec, lines)
        txn.keep_token()
        blind = txn.changes_of(name).blind
    if blind is not None:
        inserted, updated, deleted = blind.counts()
        report = replace(report, inserted=inserted, updated=updated, deleted=deleted)
    return replace(report, commit_ts=txn.commit_ts)


def columns_of(
    df: DataFrame,
    schema: Schema,
    spec: Spec,
) -> tuple[str, ...]:
    """The input's columns in the table's spelling; SchemaError before a long job starts."""
    given: dict[str, str] = {}
    for name in df.columns:
        if name in spec.extra:
            continue
        proper = schema.names[schema.position(name)]
        if proper in given.values():
            raise SchemaError("the column is there twice", column=proper)
        given[name] = proper
    if not schema.primary_key:
        raise UsageError("jobs that write need a table with a primary key")
    for key in schema.primary_key:
        if key not in given.values():
            raise SchemaError("a key column is missing", column=key)
    if spec.blind == "delete":
        given = {name: proper for name, proper in given.items() if proper in schema.primary_key}
    # An empty table of the input's types goes through the same checks as the rows will.
    empty = arrow_schema(df.select(*map(quoted, given)).schema).empty_table()
    empty = empty.rename_columns(list(given.values()))
    whole = spec.absent == "insert" and spec.matched != "update"
    schema.table(empty, columns="all" if whole else "given")
    return schema.primary_key if spec.blind == "delete" else tuple(given.values())


def _run(df: DataFrame, owner: Owner, txn: Transaction, name: str, spec: Spec) -> list[Any]:
    """Run the tasks; the lines that they send back."""
    session, state = df.sparkSession, state_of(txn, name)
    partitions = _partitions(df)
    task = start(owner, txn, name, spec, partitions)
    base = session.sparkContext.broadcast(pack_base(state, txn.snapshot))
    schema = state.schema
    wanted = [_named(df, schema, column) for column in spec.columns]
    keys = [quoted(column) for column in schema.primary_key]
    rows = df.select(*wanted, *(df[quoted(column)] for column in spec.extra))
    rows = rows.repartitionByRange(partitions, *keys).sortWithinPartitions(*keys)
    try:
        lines = rows.mapInArrow(run(task, base), LINE_SQL)
        return collect(lines, f"a job on {name!r}", go_on=owner.core.check_open, guest=True)
    finally:
        base.unpersist()


def start(owner: Owner, txn: Transaction, name: str, spec: Spec, partitions: int) -> Task:
    """Log the job, and give the transaction room for its files."""
    core, state = owner.core, state_of(txn, name)
    assert core.committer is not None
    # Without a lease: the job lives in this process, so it is dead as soon as another owns the
    # database, and what it wrote goes with the next GC.
    ordinals, attempts = shares(partitions)
    job = start_job(core.committer, state, rows=partitions * ordinals * RANGE_ROWS)
    parts = ObjectParts(state)
    parts.job = job
    parts.spans.append((job.first_rowid, job.first_rowid + job.rows))
    txn.changes_of(name).objects = parts
    return Task(
        table_id=state.table_id,
        job_id=job.job_id,
        first_rowid=job.first_rowid,
        matched=spec.matched,
        absent=spec.absent,
        columns=spec.columns,
        blind=spec.blind is not None,
        condition=spec.condition,
        extra=spec.extra,
        ordinals=ordinals,
        attempts=attempts,
        object_rows=core.options.object_rows,
        row_group_rows=core.options.row_group_rows,
        page_rows=core.options.page_rows,
    )


def _partitions(df: DataFrame) -> int:
    """Enough that a partition is an object or two; never fewer than the cores."""
    # py4j makes a plain int of Scala's BigInt; an unknown size is 2^63 - 1 or more.
    size = int(str(df._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))
    least = df.sparkSession.sparkContext.defaultParallelism
    guess = size // PARTITION_BYTES if size < 1 << 50 else least
    return int(min(PARTITIONS_MAX, max(least, guess)))


def join(txn: Transaction, name: str, spec: Spec, lines: Sequence[Any]) -> LoadReport:
    """Put the files into the transaction's workspace, or say what was wrong with the input."""
    changes, state = txn.changes_of(name), state_of(txn, name)
    _complain(state.schema, name, lines)
    parts = changes.objects
    assert parts is not None
    assert parts.job is not None
    kinds = ("data", "successor", "tombstone", "held", "absent")
    entries: dict[str, list[ObjectEntry]] = {kind: [] for kind in kinds}
    for line in lines:
        stats = ObjectStats.from_wire(msgspec.msgpack.decode(line.stats, strict=False))
        number = object_id(parts.job.job_id, line.number)
        entries[line.kind].append(new_entry(state.table_id, number, line.key, stats))
    endings = [_ending(state, entry) for entry in entries["tombstone"]]
    parts.add(inserts=entries["data"], successors=entries["successor"], endings=endings)
    if spec.blind is not None:
        positions = frozenset(map(state.schema.position, spec.columns)) - state.schema.key_set
        changed = positions if spec.blind == "upsert" else frozenset()
        held, absent = entries["held"], entries["absent"]
        changes.blind = Blind(spec.blind, parts, changed, absent=absent, held=held)
    ended = sum(len(one.targets) for one in endings)
    joined = [entry for kind in kinds[:3] for entry in entries[kind]]
    return LoadReport(
        table=name,
        commit_ts=None,
        inserted=sum(entry.stats.rows for entry in entries["data"]),
        updated=ended if spec.matched == "update" else 0,
        deleted=ended if spec.matched == "delete" else 0,
        objects=len(joined),
        bytes_written=sum(entry.stats.size_bytes for entry in joined),
    )


def _ending(state: TableState, entry: ObjectEntry) -> Ending:
    """A tombstone object, as the commit needs it."""
    table = state.shelf.reader.read(
        file_of(entry),
        tombstone_schema(state.schema),
        columns=[SUCCESSOR, CHANGED],
        hidden=[ROWID],
    )
    targets = np.ascontiguousarray(table.column(ROWID).to_numpy())
    after = table.column(SUCCESSOR)
    if after.null_count:
        return Ending(entry, targets, None, frozenset())
    ids = set(table.column(CHANGED).slice(0, 1).to_pylist()[0] or ())
    changed = frozenset(
        position for position, column in enumerate(state.schema.columns) if column.id in ids
    )
    return Ending(entry, targets, np.ascontiguousarray(after.to_numpy()), changed)


def _complain(schema: Schema, name: str, lines: Sequence[Any]) -> None:
    """Raise what tasks have reported, if any did: damage first, then what is wrong with rows."""
    for kind in ("corrupt", "schema", "usage", "repeated", "taken", "missing"):
        found = [line for line in lines if line.kind == kind]
        if not found:
            continue
        if kind == "corrupt":
            raise CorruptionError(found[0].key, bytes(found[0].stats).decode())
        if kind == "schema":
            raise SchemaError(found[0].key)
        if kind == "usage":
            raise UsageError(found[0].key)
        named = (key for line in found for key in schema.decode_keys(bytes(line.stats)))
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


def quoted(name: str) -> str:
    """A column's name for Spark."""
    return "`" + name.replace("`", "``") + "`"

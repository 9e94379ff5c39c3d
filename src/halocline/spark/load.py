"""Write jobs: load, delete and update a table from a DataFrame, all or nothing.

    DataFrame --range-partition, sort by key--> tasks (task.py) --lines: one per object--> driver
                                                                                            |
                 one transaction: objects into the workspace, checks against what others    |
                 committed meanwhile, one commit record  <-----------------------------------'

What the input is checked against is a snapshot; what others commit while the job runs is checked at
the commit, in memory and in rounds, so that the commit lock is never held for long. Until that
commit nobody sees a row; after a failure nobody refers to the files, and GC removes them.

Not here: what a task does (task.py), deciding at commit (txn/).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args

import msgspec
import numpy as np
from pyspark.sql import DataFrame

from halocline.config import parse_duration
from halocline.errors import (
    DuplicateKeyError,
    NotFoundError,
    SchemaError,
    UsageError,
)
from halocline.objects import ObjectStats
from halocline.objects.columns import CHANGED, ROWID, SUCCESSOR, tombstone_schema
from halocline.objects.shelf import object_id
from halocline.rows.lookup import resident
from halocline.rows.reshape import new_entry
from halocline.rows.state import TableState
from halocline.schema import Schema
from halocline.spark.base import ROWS_ALONG_MAX, pack_base
from halocline.spark.owner import Owner, check_writer, state_of
from halocline.spark.session import prepare
from halocline.spark.task import (
    LINE_SQL,
    ORDINALS,
    PARTITIONS_MAX,
    RANGE_ROWS,
    Mode,
    Task,
    run,
)
from halocline.spark.types import arrow_schema
from halocline.spark.workers import check_workers
from halocline.txn import Transaction
from halocline.txn.commands import Kind
from halocline.txn.jobs import start_job
from halocline.txn.objectparts import Ending, ObjectParts, file_of
from halocline.txn.workspace import TableChanges

OnConflict = Literal["error", "ignore", "upsert"]
LEASE: Final = "1d"
PARTITION_BYTES: Final = 192 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What a write job did."""

    table: str
    commit_ts: int | None
    """None when there was nothing to write."""
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    objects: int = 0
    bytes_written: int = 0
    already_committed: bool = False
    """The token had been committed before: nothing was done."""


def load(
    df: DataFrame, db: Any, table: str, on_conflict: OnConflict = "error", token: Any = None
) -> LoadReport:
    """Insert the rows of a DataFrame; a key that exists is an error, is ignored or is updated."""
    if on_conflict not in get_args(OnConflict):
        raise UsageError(f"on_conflict is error, ignore or upsert, not {on_conflict!r}")
    return _write(df, db, table, on_conflict, token)


def delete(df: DataFrame, db: Any, table: str, token: Any = None) -> LoadReport:
    """Delete the rows whose keys the DataFrame holds; keys that do not exist are fine."""
    return _write(df, db, table, "delete", token)


def update(df: DataFrame, db: Any, table: str, token: Any = None) -> LoadReport:
    """Write the DataFrame's columns into the rows with its keys; NotFoundError if one is absent."""
    return _write(df, db, table, "update", token)


def _write(df: DataFrame, db: Any, name: str, mode: Mode, token: Any) -> LoadReport:
    owner = check_writer(db)
    if not isinstance(df, DataFrame):
        raise UsageError(f"expected a Spark DataFrame, not {type(df).__name__}")
    prepare(df.sparkSession)
    with owner.begin(token=token) as txn:
        state = state_of(txn, name)
        if txn.already_committed:
            return LoadReport(table=name, commit_ts=txn.commit_ts, already_committed=True)
        columns = _columns(df, state.schema, mode)
        _check_store(df, state)
    check_workers(df.sparkSession)
    if sum(count for _, count in state.pages()) > ROWS_ALONG_MAX:
        owner.flush(name)  # so that L0 need not travel
    with owner.begin(token=token) as txn:
        state = state_of(txn, name)
        lines = _run(df, owner, txn, state, mode, columns)
        report = _join(txn, state, name, mode, lines)
    return replace(report, commit_ts=txn.commit_ts)


def _columns(df: DataFrame, schema: Schema, mode: Mode) -> tuple[str, ...]:
    """The input's columns in the table's spelling; SchemaError before a long job starts."""
    given: dict[str, str] = {}
    for name in df.columns:
        position = schema.position(name)
        proper = schema.names[position]
        if proper in given.values():
            raise SchemaError("the column is there twice", column=proper)
        given[name] = proper
    if not schema.primary_key:
        raise UsageError("jobs that write need a table with a primary key")
    for key in schema.primary_key:
        if key not in given.values():
            raise SchemaError("a key column is missing", column=key)
    if mode == "delete":
        return schema.primary_key
    # An empty table of the input's types goes through the same checks as the rows will.
    empty = arrow_schema(df.schema).empty_table().rename_columns(list(given.values()))
    schema.table(empty, columns="all" if mode in ("error", "ignore") else "given")
    return tuple(given.values())


def _check_store(df: DataFrame, state: TableState) -> None:
    if not state.shelf.root:
        raise UsageError("the objects of this database are in memory: Spark cannot write there")


def _run(
    df: DataFrame,
    owner: Owner,
    txn: Transaction,
    state: TableState,
    mode: Mode,
    columns: Sequence[str],
) -> list[Any]:
    """Run the tasks; the lines that they send back."""
    session, core = df.sparkSession, owner.core
    assert core.committer is not None
    partitions = _partitions(df)
    job = start_job(
        core.committer,
        state,
        rows=partitions * ORDINALS * RANGE_ROWS,
        lease_us=core.clock.wall_us() + int(parse_duration(LEASE) * 1e6),
    )
    parts = ObjectParts(state)
    parts.job = job
    parts.spans.append((job.first_rowid, job.first_rowid + job.rows))
    txn.changes_of(state.entry.name).objects = parts
    task = Task(
        table_id=state.table_id,
        job_id=job.job_id,
        first_rowid=job.first_rowid,
        mode=mode,
        columns=tuple(columns),
        object_rows=core.options.object_rows,
        row_group_rows=core.options.row_group_rows,
        page_rows=core.options.page_rows,
    )
    base = session.sparkContext.broadcast(pack_base(state, txn.snapshot))
    schema = state.schema
    wanted = [_named(df, schema, name) for name in columns]
    keys = [_quoted(name) for name in schema.primary_key]
    rows = df.select(*wanted).repartitionByRange(partitions, *keys).sortWithinPartitions(*keys)
    try:
        return rows.mapInArrow(run(task, base), LINE_SQL).collect()
    finally:
        base.unpersist()


def _partitions(df: DataFrame) -> int:
    """Enough that a partition is an object or two; never fewer than the cores."""
    # py4j makes a plain int of Scala's BigInt; an unknown size is 2^63 - 1 or more.
    size = int(str(df._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))
    least = df.sparkSession.sparkContext.defaultParallelism
    guess = size // PARTITION_BYTES if size < 1 << 50 else least
    return int(min(PARTITIONS_MAX, max(least, guess)))


def _join(
    txn: Transaction, state: TableState, name: str, mode: Mode, lines: Sequence[Any]
) -> LoadReport:
    """Put the files into the transaction's workspace, or say what was wrong with the input."""
    _complain(state.schema, name, lines)
    parts = txn.changes_of(name).objects
    assert parts is not None
    assert parts.job is not None
    entries: dict[str, list[Any]] = {"data": [], "successor": [], "tombstone": []}
    size = 0
    for line in lines:
        stats = ObjectStats.from_wire(msgspec.msgpack.decode(line.stats, strict=False))
        size += stats.size_bytes
        number = object_id(parts.job.job_id, line.number)
        entries[line.kind].append(new_entry(state.table_id, number, line.key, stats))
    endings = [_ending(state, entry) for entry in entries["tombstone"]]
    parts.add(inserts=entries["data"], successors=entries["successor"], endings=endings)
    ended = sum(len(one.targets) for one in endings)
    for one in endings:
        _keep_in_memory(txn.changes_of(name), one)
    return LoadReport(
        table=name,
        commit_ts=None,
        inserted=sum(entry.stats.rows for entry in entries["data"]),
        updated=0 if mode == "delete" else ended,
        deleted=ended if mode == "delete" else 0,
        objects=sum(map(len, entries.values())),
        bytes_written=size,
    )


def _ending(state: TableState, entry: Any) -> Ending:
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


def _keep_in_memory(changes: TableChanges, one: Ending) -> None:
    """The tombstone of a row that is in L0 is in memory: such rows leave the file. They are few."""
    state, parts = changes.state, changes.objects
    assert parts is not None
    left = []
    for place in np.flatnonzero(resident(state.shape, one.targets)).tolist():
        target = int(one.targets[place])
        old = state.row(target)
        if old is None:
            continue  # it has just moved into an object
        key = state.schema.key_of(old)
        left.append(place)
        if one.successors is None:
            changes.delete(target, key)
            continue
        # The successor in the object is born dead, and one in memory takes its place.
        successor = int(one.successors[place])
        changes.update(target, None, parts.row(successor), set(one.changed))
        changes.updates[target].key = key
        changes.deletes[successor] = key
        changes.commands.append(Kind.DELETE_COMMITTED)
    if left:
        one.drop(left)


def _complain(schema: Schema, name: str, lines: Sequence[Any]) -> None:
    for kind in ("schema", "repeated", "taken", "absent"):
        found = [line for line in lines if line.kind == kind]
        if not found:
            continue
        if kind == "schema":
            raise SchemaError(found[0].key)
        keys = [key for line in found for key in schema.decode_keys(bytes(line.stats))]
        if kind == "absent":
            raise NotFoundError("row", keys[0], hint=f"no such key in table {name!r}")
        raise DuplicateKeyError(name, keys[:10], inside=kind == "repeated")


def _named(df: DataFrame, schema: Schema, name: str) -> Any:
    given = next(one for one in df.columns if schema.names[schema.position(one)] == name)
    return df[_quoted(given)].alias(name)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"

"""Scan: a table at a snapshot as a DataFrame over Spark's own Parquet reader.

    plan (read/plan.py) --clean files-------------------> read.parquet -------------.
                        --dirty, late files, dead-------> read.parquet, left anti ---+--> union
                        --rows of L0 as Arrow or a file-> createDataFrame / parquet -'

Nothing of the rows passes through Python, except those of L0. Filters and column choices of the
caller reach both Parquet scans, because all that stands above them is a projection, an anti-join on
`_rowid` and a union.

Files are named one by one: no listing, no globbing, nothing ignored when it is missing or damaged;
page checksums are verified by the reader.

Not here: keeping the files alive (pins.py), writing those of L0 (lease.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from halocline.catalog.entries import ObjectEntry
from halocline.errors import UsageError
from halocline.objects.columns import COMMIT_TS, ROWID
from halocline.read.plan import ScanPlan
from halocline.read.predicate import compile_where
from halocline.read.scan import memory_table, take_plan
from halocline.rows.state import TableState
from halocline.schema.batches import Int64Array
from halocline.schema.evolve import KEPT
from halocline.schema.schema import Schema
from halocline.spark.condition import check_where
from halocline.spark.dialect import translate_where
from halocline.spark.files import read_files
from halocline.spark.lease import LeasedFiles
from halocline.spark.owner import SparkOwner, check_owner
from halocline.spark.pins import SessionPin
from halocline.spark.sessions import prepare
from halocline.spark.trouble import told
from halocline.spark.types import constant_sql, quoted, spark_schema, type_sql

ROWS_IN_PLAN_MAX: Final = 20_000
"""More rows of L0 than this travel as a file: 1 M rows inside the plan cost 3-4 s per query."""
BROADCAST_MAX: Final = 2_000_000
"""More dead rows than this are joined by a shuffle: 2 M take some 50 MB of every executor."""


def table(
    session: SparkSession,
    db: Any,
    name: str,
    at: Any = None,
    columns: Sequence[str] | None = None,
    where: str | None = None,
) -> DataFrame:
    """The rows of a table, now or at a point in time, as a DataFrame.

    The snapshot is fixed by this call and stays readable until `release(session)`, the end of the
    session or of the lease. `where` is an expression as in `txn.scan`; it also prunes files.
    """
    owner = check_owner(db)
    prepare(session)
    pin = SessionPin(session, owner, at)
    try:
        return frame(session, owner, name, pin, columns=columns, where=where)
    except BaseException:
        pin.release()  # nobody got a DataFrame that would read it
        raise


def frame(
    session: SparkSession,
    owner: SparkOwner,
    name: str,
    pin: SessionPin,
    *,
    columns: Sequence[str] | None = None,
    where: str | None = None,
) -> DataFrame:
    """The DataFrame of one table at a pinned snapshot."""
    with owner.begin(at=pin.ts) as txn:
        state = txn.state_of(name)
        schema = state.schema
        names = _names(schema, columns)
        predicate = None if where is None else compile_where(where, None, schema)
        text = None if where is None else translate_where(where, schema, name)
        if where is not None:
            check_where(where, schema, name)
        plan = take_plan(state, pin.ts, predicate)
        rows = memory_table(schema, plan)
    files = LeasedFiles(owner.core, state, pin.jobs)
    if text is None:
        return plan_frame(session, state, plan, rows, files, names)
    # The filter may be about columns that nobody wants to see; Spark reads no others.
    whole = plan_frame(session, state, plan, rows, files, schema.names)
    with told(f"where={where!r}"):
        return whole.where(text).selectExpr(*map(quoted, names))


def plan_frame(
    session: SparkSession,
    state: TableState,
    plan: ScanPlan,
    rows: pa.Table,
    files: LeasedFiles,
    names: Sequence[str],
) -> DataFrame:
    """A plan and its rows in memory as a DataFrame of these columns."""
    parts = []
    if plan.clean:
        parts.append(_read(session, state, plan.clean))
    gone = _dead(session, files, plan.dead)
    if plan.dirty:
        parts.append(_without(_read(session, state, plan.dirty), gone))
    if plan.late:
        late = _read(session, state, plan.late).where(F.col(COMMIT_TS) <= F.lit(plan.ts))
        parts.append(_without(late, gone))
    if rows.num_rows or not parts:
        parts.append(files.frame(session, rows, max_rows=ROWS_IN_PLAN_MAX))
    shown = [quoted(name) for name in names]  # as text: a call into Java for all, not for each
    return reduce(DataFrame.unionAll, [part.selectExpr(*shown) for part in parts])


def _read(session: SparkSession, state: TableState, entries: Sequence[ObjectEntry]) -> DataFrame:
    """Files with the columns of today: one scan for each version of the schema, by its own names.

    Spark can read columns by their ids, and is wrong about filters then. This keeps push-down.
    """
    state.shelf.check_root()
    alike: dict[tuple[int, tuple[int, ...]], list[str]] = {}
    for entry in entries:
        version = entry.stats.schema_version
        extras = () if version == state.schema.version else entry.stats.extras
        alike.setdefault((version, extras), []).append(_path(state, entry))
    shown = spark_schema(state.schema.arrow, hidden=True)
    parts = []
    for (version, extras), paths in alike.items():
        if version == state.schema.version:
            part = read_files(session, paths, shown)
        else:
            fields, texts = _projection(state, version, extras)
            part = read_files(session, paths, spark_schema(fields, hidden=True))
            part = part.selectExpr(*texts, ROWID, COMMIT_TS)
        parts.append(part)  # all with the columns of `shown`, in that order
    return reduce(DataFrame.unionAll, parts)


def _projection(
    state: TableState, version: int, extras: Sequence[int]
) -> tuple[pa.Schema, list[str]]:
    """What to read of files of an older version, and how it becomes the columns of today."""
    versions = state.newest.entry.altered
    inside = {one.id: (one.name, one.type) for one in versions[version].schema.columns}
    for older in versions:
        kept = [one for one in older.schema.columns if one.id in extras]
        inside |= {one.id: (f"{KEPT}{one.id}", one.type) for one in kept}
    fields, texts = [], []
    for column in state.schema.columns:
        name, type = inside.get(column.id, ("", None))
        if not name:
            text = constant_sql(column.absent and column.absent.value, column.type)
        else:
            fields.append(pa.field(name, type))
            text = quoted(name)
            if type != column.type:
                text = f"try_cast({text} as {type_sql(column.type)})"
        texts.append(f"{text} as {quoted(column.name)}")
    return pa.schema(fields), texts


def _path(state: TableState, entry: ObjectEntry) -> str:
    assert entry.file is not None
    path = state.shelf.path_of(entry.file)
    if not path:
        raise UsageError("the objects of this database are in memory: Spark cannot read them")
    return path


def _dead(session: SparkSession, files: LeasedFiles, dead: Int64Array) -> DataFrame | None:
    """The RowIDs that have ended, told how to travel to the rows."""
    if not len(dead):
        return None
    ids = pa.table({ROWID: pa.array(np.asarray(dead), pa.int64())})
    gone = files.frame(session, ids, max_rows=ROWS_IN_PLAN_MAX)
    # Without a hint Spark would go by the size of the file, in which RowIDs take hardly a byte.
    return gone.hint("broadcast" if len(dead) <= BROADCAST_MAX else "merge")


def _without(rows: DataFrame, gone: DataFrame | None) -> DataFrame:
    """Rows whose version has not ended."""
    return rows if gone is None else rows.join(gone, on=ROWID, how="left_anti")


def _names(schema: Schema, columns: Sequence[str] | None) -> list[str]:
    if columns is None:
        return list(schema.names)
    if isinstance(columns, str) or not columns:
        raise UsageError("columns= must be a list of names")
    return [schema.names[schema.position(name)] for name in columns]

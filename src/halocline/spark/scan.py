"""Scan: a table at a snapshot as a DataFrame over Spark's own Parquet reader.

    plan (read/plan.py) --clean files-------------------> read.parquet -------------.
                        --dirty, late files, dead-------> read.parquet, left anti ---+--> union
                        --rows of L0 as Arrow or a file-> createDataFrame / parquet -'

Nothing of the rows passes through Python, except those of L0. Filters and column choices of the
caller reach both Parquet scans, because all that stands above them is a projection, an anti-join on
`_rowid` and a union.

Files are named one by one: no listing, no globbing, nothing ignored when it is missing or damaged;
page checksums are verified by the reader.

Not here: keeping the files alive (pins.py), writing them (write.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, Final

import numpy as np
import pyarrow as pa
import sqlglot
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from halocline.catalog.entries import ObjectEntry
from halocline.errors import UsageError
from halocline.objects.columns import COMMIT_TS, ROWID
from halocline.read.prune import compile_where
from halocline.read.scan import memory_table, take_plan
from halocline.read.statement import parse_where
from halocline.rows.page import Int64Array
from halocline.rows.state import TableState
from halocline.schema import Schema
from halocline.spark.files import read_files
from halocline.spark.lease import LeasedFiles
from halocline.spark.owner import Owner, check_owner, state_of
from halocline.spark.pins import Pin, hold
from halocline.spark.session import prepare
from halocline.spark.types import spark_schema

ROWS_IN_PLAN_MAX: Final = 20_000
"""More rows of L0 than this travel as a file: 1 M rows inside the plan cost 3-4 s per query."""
BROADCAST_MAX: Final = 8_000_000
"""More dead rows than this are joined by a shuffle."""


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
    pin = hold(session, owner, at)
    try:
        return frame(session, owner, name, pin, columns=columns, where=where)
    except BaseException:
        pin.release()  # nobody got a DataFrame that would read it
        raise


def frame(
    session: SparkSession,
    owner: Owner,
    name: str,
    pin: Pin,
    *,
    columns: Sequence[str] | None = None,
    where: str | None = None,
) -> DataFrame:
    """The DataFrame of one table at a pinned snapshot."""
    with owner.begin(at=pin.ts) as txn:
        state = state_of(txn, name)
        schema = state.schema
        names = _names(schema, columns)
        predicate = None if where is None else compile_where(where, None, schema)
        plan = take_plan(state, pin.ts, predicate)
        rows = memory_table(schema, plan)
    files = LeasedFiles(owner, state)
    parts = []
    if plan.clean:
        parts.append(_read(session, state, plan.clean))
    if plan.dirty:
        parts.append(_without(session, files, _read(session, state, plan.dirty), plan.dead))
    if plan.late:
        late = _read(session, state, plan.late).where(F.col(COMMIT_TS) <= F.lit(pin.ts))
        parts.append(_without(session, files, late, plan.dead))
    if rows.num_rows or not parts:
        parts.append(files.frame(session, rows, max_rows=ROWS_IN_PLAN_MAX))
    result = reduce(DataFrame.unionAll, [part.select(*map(_column, names)) for part in parts])
    return result if where is None else result.where(to_spark(where, schema, name))


def to_spark(where: str, schema: Schema, table: str) -> str:
    """A predicate in Spark's dialect; UsageError when it is not one."""
    checked = parse_where(where, schema, table)
    try:
        return sqlglot.transpile(checked, read="duckdb", write="spark")[0]
    except sqlglot.errors.SqlglotError as error:
        raise UsageError(f"this predicate has no form in Spark: {where!r}") from error


def _read(session: SparkSession, state: TableState, entries: Sequence[ObjectEntry]) -> DataFrame:
    paths = [_path(state, entry) for entry in entries]
    return read_files(session, paths, spark_schema(state.schema.arrow, hidden=True))


def _path(state: TableState, entry: ObjectEntry) -> str:
    assert entry.file is not None
    path = state.shelf.path_of(entry.file)
    if not path:
        raise UsageError("the objects of this database are in memory: Spark cannot read them")
    return path


def _without(
    session: SparkSession, files: LeasedFiles, rows: DataFrame, dead: Int64Array
) -> DataFrame:
    """Rows whose version has not ended. The dead are few, so they travel to the rows."""
    if not len(dead):
        return rows
    ids = pa.table({ROWID: pa.array(np.asarray(dead), pa.int64())})
    gone = files.frame(session, ids, max_rows=ROWS_IN_PLAN_MAX)
    gone = F.broadcast(gone) if len(dead) <= BROADCAST_MAX else gone
    return rows.join(gone, on=ROWID, how="left_anti")


def _names(schema: Schema, columns: Sequence[str] | None) -> list[str]:
    if columns is None:
        return list(schema.names)
    if isinstance(columns, str) or not columns:
        raise UsageError("columns= must be a list of names")
    return [schema.names[schema.position(name)] for name in columns]


def _column(name: str) -> Any:
    return F.col("`" + name.replace("`", "``") + "`")

"""Query: a SELECT of the local engine, run by Spark, with the same rows and types.

    text --translate--> Spark's text     (dialect.py; UsageError before anything starts)
         --DuckDB, empty tables--> the types of the result
    tables --plan, pruned--> DataFrames as views of a session that only this query has
         --Spark--> Arrow --cast--> pa.Table

The views stand under the names that the statement uses, in a clone of the caller's session: his own
views and settings stay as they are, and two queries never meet. ANSI mode is on there whatever he
has chosen, so an overflow is an error and never another number.

The snapshot is that of the caller's transaction, which holds it while the query runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from halocline.errors import HaloclineError, UnavailableError, UsageError
from halocline.read.plan import ScanPlan
from halocline.read.predicate import predicate_of
from halocline.read.scan import memory_table, take_plan
from halocline.read.statement import check_params, parse_query
from halocline.rows.state import TableState
from halocline.rows.system import JobNode
from halocline.spark.collect import collect_arrow
from halocline.spark.dialect import translate
from halocline.spark.lease import LeasedFiles
from halocline.spark.scan import plan_frame
from halocline.spark.sessions import clone, prepare, running, session
from halocline.spark.trouble import is_of_the_input, reason_of
from halocline.spark.types import quoted
from halocline.txn import Core, Transaction
from halocline.txn.jobs import give_up

_SETTINGS: Final = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "false",
    # A product that needs more than 38 digits is an error, as it is in DuckDB, and is not rounded.
    "spark.sql.decimalOperations.allowPrecisionLoss": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
}
QueryTable = tuple[str, TableState, ScanPlan]


def find_session(*, start: bool) -> SparkSession | None:
    """The session that runs; with `start`, one that is started now if there is none."""
    return session() if start else running()


def run_query(
    found: SparkSession, core: Core, txn: Transaction, text: str, params: Sequence[Any] | None
) -> pa.Table:
    """Run a SELECT over what the transaction sees; UsageError when it has no form in Spark."""
    parsed = parse_query(text)
    values = check_params(params)
    states = {
        name: txn.state_of(name)
        for name in parsed.tables
        if name.lower() not in parsed.defined or txn.has_table(name)
    }
    empty = {name: state.schema.arrow.empty_table() for name, state in states.items()}
    local = core.duck.query(parsed.text, values, empty, parsed.quoted).schema
    translated = translate(text, values, [state.schema for state in states.values()])
    parts: list[QueryTable] = []
    for name, state in states.items():
        predicate = predicate_of(text, name, values, state.schema)
        parts.append((name, state, take_plan(state, txn.snapshot, predicate)))
    jobs: list[JobNode] = []
    try:
        own = clone(prepare(found), _SETTINGS)
        for name, state, plan in parts:
            rows = memory_table(state.schema, plan)
            files = LeasedFiles(core, state, jobs)
            frame = plan_frame(own, state, plan, rows, files, state.schema.names)
            frame.createOrReplaceTempView(quoted(name))
        result = own.sql(translated.text, args=translated.args)
        # By place: names may come twice, and DuckDB has names of its own for what has none.
        placed = result.toDF(*(f"c{place}" for place in range(len(result.columns))))
        table = collect_arrow(placed, "a query", go_on=core.check_open)
    except (PySparkException, Py4JError) as error:
        raise _translate(error, parts) from error
    finally:
        _activate(found)
        if jobs and core.committer is not None:
            give_up(core.committer, jobs)
    return _conform(table, local)


def _activate(found: SparkSession) -> None:
    """Making DataFrames in the clone has made it the active session of this thread: undo that."""
    SparkSession._activeSession = found
    assert found._jvm is not None
    found._jvm.SparkSession.setActiveSession(found._jsparkSession)


def _conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Give rows the names and types of the local engine."""
    try:
        columns = [
            column.cast(field.type) for column, field in zip(table.columns, schema, strict=True)
        ]
    except (pa.ArrowException, ValueError) as error:
        raise UsageError(
            f"Spark's answer does not fit the types of the local engine ({error}): cast it in the "
            f"statement, or run it with engine='local'"
        ) from error
    return pa.Table.from_arrays(columns, schema=schema)


def _translate(error: Exception, parts: Sequence[QueryTable]) -> HaloclineError:
    """What the caller can do about it: restore a file, mend the statement, or try again."""
    text = str(error)
    if is_of_the_input(text):
        return UsageError(f"Spark refuses this query: {reason_of(text)}")
    try:
        for _, table, plan in parts:
            for entry in plan.objects:
                if entry.file is not None and entry.file.key in text:
                    table.shelf.reader.verify(entry.file, again=True)
    except HaloclineError as better:
        return better
    return UnavailableError(f"Spark could not run this query: {reason_of(text)}")

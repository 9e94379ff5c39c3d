"""Engines: where a SELECT runs, here or on Spark (reader orchestration).

    local   DuckDB in this process; always
    spark   the session that runs, or one that is started now
    auto    few bytes: DuckDB here; many: Spark, if a session runs and has a form for the statement

What counts is the size of the objects that are left when the statement's predicates have ruled out
the others. Both engines give the same rows and types, so `auto` is about time alone. Spark is
imported only when it is asked for, or when somebody has imported it already.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from halocline.errors import UnavailableError, UsageError
from halocline.read.predicate import predicate_of
from halocline.read.scan import take_plan
from halocline.read.statement import check_params, parse_query
from halocline.txn import Core, Transaction

ENGINES: Final = ("local", "spark", "auto")
STREAM_ROWS: Final = 65536


def select(
    core: Core,
    txn: Transaction,
    text: str,
    params: Sequence[Any] | None,
    engine: str,
    *,
    stream: bool,
) -> pa.Table | pa.RecordBatchReader:
    """Run a SELECT over what the transaction sees, on the engine that was asked for."""
    if engine not in ENGINES:
        raise UsageError(f"engine is local, spark or auto, not {engine!r}")
    table = None
    if engine == "spark":
        table = _on_spark(core, txn, text, params, start=True)
    elif engine == "auto" and "pyspark" in sys.modules:
        table = _if_large(core, txn, text, params)
    if table is None:
        return txn.sql(text, params, stream=stream)
    return table.to_reader(STREAM_ROWS) if stream else table


def bytes_to_read(txn: Transaction, text: str, params: Sequence[Any] | None) -> int:
    """How large the objects are that a statement has to look into."""
    parsed, values = parse_query(text), check_params(params)
    total = 0
    for name in parsed.tables:
        if name.lower() in parsed.defined and not txn.has_table(name):
            continue
        state = txn.state_of(name)
        plan = take_plan(state, txn.snapshot, predicate_of(text, name, values, state.schema))
        total += sum(entry.stats.size_bytes for entry in plan.objects)
    return total


def _if_large(
    core: Core, txn: Transaction, text: str, params: Sequence[Any] | None
) -> pa.Table | None:
    """The answer of a session that runs; None when this is for DuckDB."""
    if bytes_to_read(txn, text, params) < core.options.spark_bytes:
        return None
    try:
        return _on_spark(core, txn, text, params, start=False)
    except (UsageError, UnavailableError):
        return None  # no form in Spark, or Spark has trouble: DuckDB knows, or says it better


def _on_spark(
    core: Core, txn: Transaction, text: str, params: Sequence[Any] | None, *, start: bool
) -> pa.Table | None:
    try:
        from halocline.spark import query
    except ImportError as error:
        raise UnavailableError(
            f"engine='spark' needs pyspark ({error}): pip install 'halocline[spark]'"
        ) from error
    session = query.find_session(start=start)
    return None if session is None else query.run_query(session, core, txn, text, params)

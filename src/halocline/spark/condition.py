"""Conditions that are tried out before a job: that of a merge, and `where=` of a table.

The condition of a merge is an SQL predicate over a row of the input and the row it meets.

    "source.updated > target.updated" --check, driver--> DuckDB text --holds, executor--> which rows

It is parsed and bound as `where=` is: one expression, no subqueries, no aggregates; every column is
named with its side. The driver runs it once over no rows, so that a wrong type is an error before
the job. NULL counts as false. It decides about rows that match and about nothing else, at the
job's snapshot.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from halocline.errors import UsageError
from halocline.options import MIB
from halocline.read.duck import Duck
from halocline.read.statement import parse_condition, parse_where
from halocline.schema.schema import Schema

SOURCE, TARGET = "source", "target"
DUCK_BYTES: Final = 256 * MIB
"""What the conditions of one process of Spark's may use."""
_duck: list[Duck] = []
"""One per process, made when first needed."""


def check_condition(text: str, source: pa.Schema, target: pa.Schema) -> tuple[str, set[str]]:
    """The condition as DuckDB text, and the columns of the input that it names.

    UsageError or SchemaError for what cannot work.
    """
    bound, used = parse_condition(text, {SOURCE: source.names, TARGET: target.names})
    kind = _run(bound, source.empty_table(), target.empty_table()).schema.field(0).type
    if not pa.types.is_boolean(kind):
        raise UsageError(f"condition= must be true or false, and {text!r} is {kind}")
    return bound, {name for side, name in used if side == SOURCE}


def check_where(text: str, schema: Schema, name: str) -> None:
    """UsageError for a `where=` that DuckDB would refuse: Spark would find out row by row."""
    bound = parse_where(text, schema, name)
    # A row of nulls: over no rows at all, constants would not be looked at.
    row = pa.table({field.name: pa.nulls(1, field.type) for field in schema.arrow})
    query_here(f"select 1 from _view where {bound}", {"_view": row})


def holds(bound: str, source: pa.Table, target: pa.Table) -> npt.NDArray[np.bool_]:
    """For which pairs of rows, side by side, the condition is true."""
    found = _run(bound, source, target).column(0)
    return np.asarray(found.fill_null(False).to_numpy(zero_copy_only=False), dtype=np.bool_)


def _run(bound: str, source: pa.Table, target: pa.Table) -> pa.Table:
    text = f"select {bound} from {SOURCE} positional join {TARGET}"
    return query_here(text, {SOURCE: source, TARGET: target})


def query_here(text: str, views: dict[str, pa.Table]) -> pa.Table:
    """Run a checked SELECT over tables of this process, which may be an executor."""
    if not _duck:
        _duck.append(Duck(DUCK_BYTES, threads=1))
    return _duck[0].query(text, (), views)

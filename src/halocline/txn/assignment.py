"""Assignments: what an update makes of a row, from constants, amounts and expressions.

    {"stock": hc.add(-1)} --read_assignment--> Assignment --work_out--> values of each row

The sum that an amount gives is only a forecast: it is made again, from the newest row, when others
have added to the same number meanwhile (conflict.py). An expression is worked out once, over the
row that the transaction sees, so the columns that it reads count as written, also those that the
same update adds to.

Many rows at once (where.py) are worked out by DuckDB, amounts too, and are then plain writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from halocline.errors import SchemaError, UsageError
from halocline.read.duck import Duck
from halocline.schema import convert
from halocline.schema.batches import column_values
from halocline.schema.compiled import Row
from halocline.schema.schema import Schema
from halocline.schema.terms import Add, Expr
from halocline.schema.types import kind

_SQL_TYPES: Final = {
    "bool": "BOOLEAN",
    "string": "VARCHAR",
    "binary": "BLOB",
    "date": "DATE",
    "time": "TIME",
    "timestamp": "TIMESTAMP",
    "timestamptz": "TIMESTAMPTZ",
}
_SIZED: Final = {
    ("int", 8): "TINYINT",
    ("int", 16): "SMALLINT",
    ("int", 32): "INTEGER",
    ("int", 64): "BIGINT",
    ("float", 32): "REAL",
    ("float", 64): "DOUBLE",
}


class Assignment(NamedTuple):
    """Column positions and what becomes of them."""

    values: dict[int, Any]
    """Constants, checked."""
    amounts: dict[int, Any]
    """What is added, in the type of the column."""
    exprs: dict[int, Expr]

    @property
    def is_constant(self) -> bool:
        return not self.amounts and not self.exprs


class NewValues(NamedTuple):
    """What an update makes of one row."""

    values: dict[int, Any]
    """Of the columns that it sets."""
    reads: frozenset[int] = frozenset()
    """Columns that count as written because an expression has read them."""
    added: Mapping[int, Any] = MappingProxyType({})
    """Amounts of columns that were only added to: no expression has read them."""


def constants(schema: Schema, given: Mapping[str, Any]) -> dict[int, Any] | None:
    """Check values that are constants, as nearly all are; None when one of them is a term."""
    try:
        return schema.partial(given)
    except SchemaError:
        if _has_terms(given):
            return None
        raise


def _has_terms(given: Mapping[str, Any]) -> bool:
    return any(isinstance(value, (Add, Expr)) for value in given.values())


def read_assignment(schema: Schema, given: Mapping[str, Any]) -> Assignment:
    """Check what an update was given; SchemaError names the column that does not fit."""
    checked = constants(schema, given)
    if checked is not None:
        return Assignment(checked, {}, {})
    return read_terms(schema, given)


def read_terms(schema: Schema, given: Mapping[str, Any]) -> Assignment:
    """Check what an update was given, when there are terms in it."""
    plain = {name: value for name, value in given.items() if not isinstance(value, (Add, Expr))}
    assignment = Assignment(schema.partial(plain), {}, {})
    for name, term in given.items():
        if name in plain:
            continue
        at = schema.position(name)
        if at in assignment.values or at in assignment.amounts or at in assignment.exprs:
            raise SchemaError("is named twice", column=schema.names[at])
        if at in schema.key_set:
            raise SchemaError(f"{term!r} cannot change a key column", column=schema.names[at])
        if isinstance(term, Add):
            assignment.amounts[at] = schema.amount(at, term.amount)
        else:
            assignment.exprs[at] = term
    return assignment


def work_out(
    duck: Duck, schema: Schema, table: str, assignment: Assignment, rows: Sequence[Row]
) -> list[NewValues]:
    """What becomes of each of these rows."""
    computed: dict[int, pa.ChunkedArray] = {}
    reads: frozenset[int] = frozenset()
    if assignment.exprs and rows:
        computed, reads = work_out_table(
            duck, schema, table, Assignment({}, {}, assignment.exprs), schema.to_table(rows)
        )
    columns = {
        at: [value for chunk in column.chunks for value in column_values(chunk)]
        for at, column in computed.items()
    }
    added = {at: amount for at, amount in assignment.amounts.items() if at not in reads}
    found = []
    for place, row in enumerate(rows):
        values = dict(assignment.values)
        for at, amount in assignment.amounts.items():
            values[at] = schema.plus(at, row[at], amount)
        for at, column in columns.items():
            values[at] = column[place]
        found.append(NewValues(values, reads, added))
    return found


def work_out_table(
    duck: Duck, schema: Schema, table: str, assignment: Assignment, rows: pa.Table
) -> tuple[dict[int, pa.ChunkedArray], frozenset[int]]:
    """Columns that amounts and expressions make of many rows, and the positions that were read."""
    from halocline.read.source import quote
    from halocline.read.statement import check_params, parse_expression

    terms = dict(assignment.exprs)
    for at, amount in assignment.amounts.items():
        terms[at] = Expr(f"{quote(schema.names[at])} + ?", [amount])
    texts: list[str] = []
    params: list[Any] = []
    reads: set[int] = set()
    for at, term in terms.items():
        text, names = parse_expression(term.text, schema, table)
        reads.update(schema.position(name) for name in names)
        params += check_params(term.params)
        texts.append(f"{_cast(text, schema.columns[at].type)} as c{at}")
    place = pa.array(np.arange(rows.num_rows, dtype=np.int64))
    view = rows.select(list(schema.names)).append_column("_place", place)
    query = f"select {', '.join(texts)} from _view order by _place"
    try:
        found = duck.query(query, params, {"_view": view})
    except UsageError as error:
        reason = str(error).partition("\n")[0]  # without the text of our query
        raise SchemaError(reason, column=_culprit(duck, schema, table, assignment, rows)) from error
    given = {at: found.schema.get_field_index(f"c{at}") for at in terms}
    fitting = convert.conform(found, schema.columns, schema.arrow, given, absent=False)
    columns = {at: fitting.column(schema.names[at]) for at in terms}
    return columns, frozenset(reads) - schema.key_set


def _culprit(
    duck: Duck, schema: Schema, table: str, assignment: Assignment, rows: pa.Table
) -> str | None:
    """The column whose amount or expression failed: each is tried by itself."""
    terms = {**assignment.exprs, **assignment.amounts}
    if len(terms) == 1:
        (only,) = terms
        return schema.names[only]
    for at in sorted(terms):
        exprs = {at: assignment.exprs[at]} if at in assignment.exprs else {}
        amounts = {at: assignment.amounts[at]} if at in assignment.amounts else {}
        try:
            work_out_table(duck, schema, table, Assignment({}, amounts, exprs), rows)
        except SchemaError:
            return schema.names[at]
    return None


def _cast(text: str, type: Any) -> str:
    """The expression in the type of its column, rounded as SQL does. Nested values stay as is."""
    family = kind(type)
    if family == "decimal":
        return f"cast({text} as DECIMAL({type.precision:d},{type.scale:d}))"
    name = _SQL_TYPES.get(family) or (
        _SIZED[family, type.bit_width] if family in ("int", "float") else ""
    )
    return f"cast({text} as {name})" if name else text

"""Queries of a transaction: scans, SQL, and changes by predicate.

    what the transaction sees (view.py) --Arrow--> DuckDB (read/duck.py) --Arrow--> caller

Only the tables a statement names are handed over, under the names it uses for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from halocline.errors import UsageError
from halocline.read.statement import check_params, parse_order, parse_query, parse_where
from halocline.schema import Schema
from halocline.txn import write
from halocline.txn.view import visible
from halocline.txn.workspace import TableChanges

LIMIT_MAX = (1 << 62) - 1

if TYPE_CHECKING:
    from halocline.txn.core import Core
    from halocline.txn.work import Work


def select(
    core: Core, txn: Work, text: str, params: Sequence[Any] | None, *, stream: bool
) -> pa.Table | pa.RecordBatchReader:
    """Run a checked SELECT over what the transaction sees."""
    parsed = parse_query(text)
    values = check_params(params)
    tables: dict[str, pa.Table] = {}
    for name in parsed.tables:
        if name.lower() in parsed.defined and not txn.has_table(name):
            continue  # a WITH defines it; one that takes a table's name may still read the table
        changes = txn.changes_of(name)
        txn.note_scan(changes)
        tables[name] = visible(changes, txn.snapshot)
    run = core.duck.stream if stream else core.duck.query
    return run(parsed.text, values, tables, parsed.quoted)


def scan(
    core: Core,
    txn: Work,
    changes: TableChanges,
    columns: Sequence[str] | None,
    where: str | None,
    params: Sequence[Any] | None,
    order: str | Sequence[str] | None,
    limit: int | None,
) -> pa.Table:
    """Filter, order and cut one table; types stay those of the schema."""
    schema = changes.schema
    check_limit(limit)
    if columns is not None and (isinstance(columns, str) or not isinstance(columns, Sequence)):
        raise UsageError("columns= must be a list of names")
    names = _columns(schema, columns)
    limit = None if limit is None else min(limit, LIMIT_MAX)
    table = visible(changes, txn.snapshot)
    if where is not None or order is not None:
        places = _places(core, changes, table, where, params, order, limit)
        return table.select(names).take(places)
    check = check_params(params)
    if check:
        raise UsageError("params= without where=")
    table = table.select(names)
    return table if limit is None else table.slice(0, limit)


def _columns(schema: Schema, columns: Sequence[str] | None) -> list[str]:
    if columns is None:
        return list(schema.names)
    names = [schema.names[schema.position(name)] for name in columns]
    if not names or len(set(names)) < len(names):
        raise UsageError("columns= must name at least one column, and each once")
    return names


def check_limit(limit: object) -> None:
    if limit is not None and (type(limit) is not int or limit < 0):
        raise UsageError(f"limit must be a whole number of rows, not {limit!r}")


def update_where(
    core: Core,
    txn: Work,
    changes: TableChanges,
    where: str,
    params: Sequence[Any] | None,
    values: Mapping[int, Any],
) -> int:
    """Set columns to constants in all rows that match."""
    found = _matching(core, txn, changes, where, params)
    schema = changes.schema
    touches_key = not schema.key_set.isdisjoint(values)
    bulk, rest = _split_bulk(core, changes, found, touches_key=touches_key)
    if touches_key:
        write.move_rows(changes, rest, values, txn.snapshot)
        return len(rest)
    for row_id, row in rest:
        key = None if changes.state.key_of is None else changes.state.key_of(row)
        write.update_row(changes, row_id, key, row, dict(values), txn.snapshot)
    if bulk is not None:
        fresh = {
            schema.names[position]: _repeat(value, schema.arrow.field(position).type, bulk.num_rows)
            for position, value in values.items()
        }
        base = bulk.drop_columns("_rowid")
        write.add_update_part(changes, base, _ids(bulk), pa.table(fresh), list(values))
    return int(found.num_rows)


def _repeat(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    if pa.types.is_nested(kind):
        return pa.array([value] * count, kind)
    return pa.repeat(pa.scalar(value, kind), count)


def delete_where(
    core: Core,
    txn: Work,
    changes: TableChanges,
    where: str,
    params: Sequence[Any] | None,
) -> int:
    """End all rows that match."""
    found = _matching(core, txn, changes, where, params)
    bulk, rest = _split_bulk(core, changes, found, touches_key=False)
    for row_id, row in rest:
        key = None if changes.state.key_of is None else changes.state.key_of(row)
        write.remove(changes, row_id, key)
    if bulk is not None:
        write.add_delete_part(changes, bulk.drop_columns("_rowid"), _ids(bulk))
    return int(found.num_rows)


def _matching(
    core: Core, txn: Work, changes: TableChanges, where: str, params: Sequence[Any] | None
) -> pa.Table:
    table = visible(changes, txn.snapshot, ids=True)
    return table.take(_places(core, changes, table, where, params, None, None))


def _places(
    core: Core,
    changes: TableChanges,
    table: pa.Table,
    where: str | None,
    params: Sequence[Any] | None,
    order: str | Sequence[str] | None,
    limit: int | None,
) -> pa.ChunkedArray:
    """Positions of the rows that match, in order: DuckDB decides, Arrow keeps the exact types."""
    values = check_params(params)
    text = "select _place from _view"
    if where is not None:
        text += f" where {parse_where(where, changes.schema, changes.entry.name)}"
    elif values:
        raise UsageError("params= without where=")
    if order is not None:
        text += f" order by {parse_order(order, changes.schema, changes.entry.name)}, _place"
    elif where is not None:
        text += " order by _place"
    if limit is not None:
        text += f" limit {limit}"
    view = table.append_column("_place", pa.array(np.arange(table.num_rows, dtype=np.int64)))
    return core.duck.query(text, values, {"_view": view}).column(0)


def _split_bulk(
    core: Core, changes: TableChanges, found: pa.Table, *, touches_key: bool
) -> tuple[pa.Table | None, list[tuple[int, tuple[Any, ...]]]]:
    """Many untouched committed rows go as one part, ascending by RowID; others one by one."""
    ids = _ids(found)
    if found.num_rows <= core.options.bulk_rows or touches_key:
        return None, _rows(changes, found, ids)
    plain = (ids > 0) & ~np.isin(ids, changes.ended())
    bulk = found.filter(pa.array(plain))
    bulk = bulk.take(pa.array(np.argsort(_ids(bulk), kind="stable")))
    rest = found.filter(pa.array(~plain))
    return bulk if bulk.num_rows else None, _rows(changes, rest, _ids(rest))


def _rows(
    changes: TableChanges, found: pa.Table, ids: np.ndarray[Any, np.dtype[np.int64]]
) -> list[tuple[int, tuple[Any, ...]]]:
    rows = changes.schema.from_table(found.drop_columns("_rowid"))
    return list(zip(ids.tolist(), rows, strict=True))


def _ids(table: pa.Table) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.ascontiguousarray(table.column("_rowid").to_numpy())

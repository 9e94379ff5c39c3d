"""Queries of a transaction: scans, SQL, counts, and which rows a predicate means.

    what the transaction sees (view.py) --Arrow, files--> DuckDB (read/duck.py) --Arrow--> caller

Only the tables a statement names are handed over, under the names it uses for them, and of their
objects only those that the predicate cannot rule out.

A table that is all in memory is filtered by position: DuckDB says which rows, Arrow takes them. Of
one with objects the columns that are asked for come out of DuckDB, and are cast to the types of the
schema. A stream holds its snapshot until it is read to the end or dropped, so that GC leaves its
files alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from halocline.errors import UnavailableError, UsageError
from halocline.objects.columns import ROWID
from halocline.read.conjuncts import predicate_of
from halocline.read.duck import as_schema
from halocline.read.prune import Predicate, compile_where
from halocline.read.quote import quote
from halocline.read.scan import count_known, count_rows, take_plan, unclean
from halocline.read.source import Source, readable_by_others, source_of
from halocline.read.statement import check_params, parse_order, parse_query, parse_where
from halocline.schema.schema import Schema
from halocline.txn.pin import Pin
from halocline.txn.view import check_limit, visible
from halocline.txn.workspace import TableChanges

LIMIT_MAX = (1 << 62) - 1
STREAM_ROWS = 65536
_PLACE = f"{ROWID} < 0, abs({ROWID})"
"""Committed rows by RowID, then those that the transaction has inserted, in their order."""

if TYPE_CHECKING:
    from halocline.txn.core import Core
    from halocline.txn.work import Work


def select(
    core: Core, txn: Work, text: str, params: Sequence[Any] | None, *, stream: bool
) -> pa.Table | pa.RecordBatchReader:
    """Run a checked SELECT over what the transaction sees."""
    parsed = parse_query(text)
    values = check_params(params)
    tables: dict[str, pa.Table | Source] = {}
    own = False
    for name in parsed.tables:
        if name.lower() in parsed.defined and not txn.has_table(name):
            continue  # a WITH defines it; one that takes a table's name may still read the table
        changes = txn.changes_of(name)
        txn.note_scan(changes)
        own |= bool(changes.objects)
        # Reading a predicate takes a while: only where there is something to prune.
        objects = bool(changes.state.shape.tier)
        predicate = predicate_of(text, name, values, changes.schema) if objects else None
        tables[name] = visible(changes, txn.snapshot, predicate)
    if not stream or own:
        # A pin keeps no files that only this transaction knows: they may go when it ends.
        table = core.duck.query(parsed.text, values, tables, parsed.quoted)
        return table.to_reader(STREAM_ROWS) if stream else table
    pin = Pin(core.pins, txn.snapshot)
    return pinned(core.duck.stream(parsed.text, values, tables, parsed.quoted), pin)


def scan(
    core: Core,
    txn: Work,
    changes: TableChanges,
    columns: Sequence[str] | None,
    where: str | None,
    params: Sequence[Any] | None,
    order: str | Sequence[str] | None,
    limit: int | None,
    *,
    stream: bool,
) -> pa.Table | pa.RecordBatchReader:
    """Filter, order and cut one table; types stay those of the schema."""
    schema = changes.schema
    check_limit(limit)
    if columns is not None and (isinstance(columns, str) or not isinstance(columns, Sequence)):
        raise UsageError("columns= must be a list of names")
    names = _columns(schema, columns)
    limit = None if limit is None else min(limit, LIMIT_MAX)
    values = check_params(params)
    if where is None and values:
        raise UsageError("params= without where=")
    predicate = _predicate(changes, where, values)
    table = visible(changes, txn.snapshot, predicate, ids=order is not None)
    if isinstance(table, Source) and not table.files and where is None and order is None:
        table = table.memory  # nothing is asked of it that would need DuckDB
    if isinstance(table, Source):
        text = _text(changes, names, where, order, limit, _PLACE)
        fields = pa.schema([schema.arrow.field(name) for name in names])
        if not stream:
            return as_schema(core.duck.query(text, values, {"_view": table}), fields)
        pin = Pin(core.pins, txn.snapshot)
        return pinned(core.duck.stream(text, values, {"_view": table}), pin, fields)
    if where is not None or order is not None:
        table = _take(core, changes, table, where, values, order, limit).select(names)
    else:
        table = table.select(names)
        table = table if limit is None else table.slice(0, limit)
    return table.to_reader(STREAM_ROWS) if stream else table


def matching(
    core: Core,
    txn: Work,
    changes: TableChanges,
    where: str,
    params: Sequence[Any] | None,
    columns: Sequence[str] | None = None,
) -> pa.Table:
    """The rows that a predicate holds for: these columns (all by default), and `_rowid`."""
    values = check_params(params)
    predicate = _predicate(changes, where, values)
    names = [*(changes.schema.names if columns is None else columns), ROWID]
    table = visible(changes, txn.snapshot, predicate, ids=True)
    if not isinstance(table, Source):
        return _take(core, changes, table, where, values, None, None).select(names)
    text = _text(changes, names, where, None, None, "")
    found = core.duck.query(text, values, {"_view": table})
    return as_schema(found, pa.schema([table.memory.schema.field(name) for name in names]))


def count(core: Core, txn: Work, changes: TableChanges) -> int:
    """How many rows a snapshot sees, without the transaction's own changes."""
    state = changes.state
    if not readable_by_others(state.shelf):
        return count_rows(state, txn.snapshot)
    plan = take_plan(state, txn.snapshot)
    known, rest = count_known(plan), unclean(plan)
    if not rest.objects:
        return known
    source = source_of(state.shelf, state.schema, rest, state.schema.arrow.empty_table())
    try:
        found = core.duck.query("select count(*) from _view", [], {"_view": source})
    except UnavailableError:
        # Many dead rows and little memory: the reader needs a row group at a time.
        return count_rows(state, txn.snapshot)
    return known + int(found.column(0)[0].as_py())


def pinned(
    reader: pa.RecordBatchReader, pin: Pin, schema: pa.Schema | None = None
) -> pa.RecordBatchReader:
    """The same batches, cast to a schema, from a reader that holds a pin for as long as it can
    still be read."""
    fields = reader.schema if schema is None else schema

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            for batch in reader:
                yield batch if schema is None else as_schema(batch, schema)
        finally:
            pin.close()

    # Such a reader can be read on after close(), so its pin goes when it is exhausted or dropped.
    return pa.RecordBatchReader.from_batches(fields, batches())


def _predicate(changes: TableChanges, where: str | None, values: Sequence[Any]) -> Predicate | None:
    """What prunes objects; nothing when the table has none."""
    if where is None or not changes.state.shape.tier:
        return None
    return compile_where(where, values, changes.schema, changes.entry.name)


def _text(
    changes: TableChanges,
    names: Sequence[str],
    where: str | None,
    order: str | Sequence[str] | None,
    limit: int | None,
    place: str,
) -> str:
    """The SELECT over `_view` that a scan means; `place` decides between equal rows."""
    text = f"select {', '.join(map(quote, names))} from _view"
    if where is not None:
        text += f" where {parse_where(where, changes.schema, changes.entry.name)}"
    if order is not None:
        text += f" order by {parse_order(order, changes.schema, changes.entry.name)}, {place}"
    elif place == "_place":
        text += " order by _place"
    return text if limit is None else f"{text} limit {limit}"


def _take(
    core: Core,
    changes: TableChanges,
    table: pa.Table,
    where: str | None,
    values: Sequence[Any],
    order: str | Sequence[str] | None,
    limit: int | None,
) -> pa.Table:
    """Rows of a table in memory: DuckDB decides which, Arrow keeps the exact types."""
    text = _text(changes, ["_place"], where, order, limit, "_place")
    view = table.append_column("_place", pa.array(np.arange(table.num_rows, dtype=np.int64)))
    return table.take(core.duck.query(text, values, {"_view": view}).column(0))


def _columns(schema: Schema, columns: Sequence[str] | None) -> list[str]:
    if columns is None:
        return list(schema.names)
    names = [schema.names[schema.position(name)] for name in columns]
    if not names or len(set(names)) < len(names):
        raise UsageError("columns= must name at least one column, and each once")
    return names

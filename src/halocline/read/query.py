"""Queries: SQL, scans, counts, and which rows a predicate means.

    what the reader sees (view.py) --Arrow, files--> DuckDB (duck.py) --Arrow--> caller

Only the tables a statement names are handed over, under the names it uses for them, and of their
objects only those that the predicate cannot rule out.

Of a table that is all in memory rows are picked by position: DuckDB says which, Arrow takes them.
Of one with objects the columns that are asked for come out of DuckDB, and are cast to the types of
the schema. A stream holds its snapshot until it is read to the end or dropped, so that GC leaves
its files alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from halocline.errors import UnavailableError, UsageError
from halocline.objects.columns import ROWID
from halocline.read.duck import STREAM_ROWS, Duck, as_schema
from halocline.read.indexed import HowRead, told
from halocline.read.predicate import compile_where, predicate_of
from halocline.read.prune import Predicate
from halocline.read.scan import count_known, count_rows, take_plan, unclean
from halocline.read.source import Source, quote, readable_by_others, source_of
from halocline.read.statement import Query, check_params, parse_order, parse_query, parse_where
from halocline.read.view import View, check_limit
from halocline.rows.state import TableState
from halocline.schema.schema import Schema

LIMIT_MAX = (1 << 62) - 1
_PLACE = f"{ROWID} < 0, abs({ROWID})"
"""Committed rows by RowID, then those that the transaction has inserted, in their order."""


class Hold(Protocol):
    """A snapshot that is kept until it is closed or dropped."""

    def close(self) -> None: ...


class StatementReader(Protocol):
    """A transaction, as far as a statement needs it."""

    def has_table(self, name: str) -> bool: ...
    def view_of(self, name: str) -> View:
        """A table that is about to be read as a whole."""

    def hold(self) -> Hold: ...


EXPLAINED: Final = pa.schema(
    [
        ("table", pa.string()),
        ("objects", pa.int64()),
        ("pruned", pa.int64()),
        ("indexed", pa.int64()),
        ("index", pa.string()),
        ("blocks", pa.int64()),
        ("blocks_of", pa.int64()),
        ("rows", pa.int64()),
        ("rows_in_memory", pa.int64()),
    ]
)


def explain(reader: StatementReader, text: str, params: Sequence[Any] | None) -> pa.Table:
    """How a SELECT would read each of its tables; it is not run."""
    ways: dict[str, HowRead] = {}
    _sources(reader, parse_query(text), check_params(params), ways)
    rows = [
        {
            "table": name,
            "objects": how.objects,
            "pruned": how.pruned,
            "indexed": how.answered,
            "index": told(how) or None,
            "blocks": how.blocks,
            "blocks_of": how.blocks_of,
            "rows": how.rows,
            "rows_in_memory": how.rows_in_memory,
        }
        for name, how in ways.items()
    ]
    return pa.Table.from_pylist(rows, schema=EXPLAINED)


def select(
    duck: Duck, reader: StatementReader, text: str, params: Sequence[Any] | None, *, stream: bool
) -> pa.Table | pa.RecordBatchReader:
    """Run a checked SELECT over what the reader sees."""
    parsed = parse_query(text)
    values = check_params(params)
    tables, own = _sources(reader, parsed, values, None)
    if not stream or own:
        # A pin keeps no files that only this transaction knows: they may go when it ends.
        table = duck.query(parsed.text, values, tables, parsed.quoted)
        return table.to_reader(STREAM_ROWS) if stream else table
    pin = reader.hold()
    return pinned(duck.stream(parsed.text, values, tables, parsed.quoted), pin)


def _sources(
    reader: StatementReader, parsed: Query, values: Sequence[Any], ways: dict[str, HowRead] | None
) -> tuple[dict[str, Source], bool]:
    """The tables that a statement names; whether files are among them that only the reader has."""
    tables: dict[str, Source] = {}
    own = False
    for name in parsed.tables:
        if name.lower() in parsed.defined and not reader.has_table(name):
            continue  # a WITH defines it; one that takes a table's name may still read the table
        view = reader.view_of(name)
        own |= view.own is not None and bool(view.own.data())
        # Reading a predicate takes a while: only where there is something to prune.
        objects = view.state.shape.tier.by_id
        schema = view.state.schema
        predicate = predicate_of(parsed.text, name, values, schema) if objects else None
        how = None if ways is None else ways.setdefault(name, HowRead())
        tables[name] = view.source(predicate, how=how)
    return tables, own


def scan(
    duck: Duck,
    reader: StatementReader,
    name: str,
    columns: Sequence[str] | None,
    where: str | None,
    params: Sequence[Any] | None,
    order: str | Sequence[str] | None,
    limit: int | None,
    *,
    stream: bool,
) -> pa.Table | pa.RecordBatchReader:
    """Filter, order and cut one table; types stay those of the schema."""
    view = reader.view_of(name)
    check_limit(limit)
    if columns is not None and (isinstance(columns, str) or not isinstance(columns, Sequence)):
        raise UsageError("columns= must be a list of names")
    names = _columns(view.state.schema, columns)
    limit = None if limit is None else min(limit, LIMIT_MAX)
    values = check_params(params)
    if where is None and values:
        raise UsageError("params= without where=")
    source = view.source(_predicate(view.state, where, values), ids=order is not None)
    if not source.files or not stream:
        table = _rows(duck, view.state, source, names, where, values, order, limit)
        return table.to_reader(STREAM_ROWS) if stream else table
    text = _text(view.state, names, where, order, limit, _PLACE)
    fields = pa.schema([source.memory.schema.field(name) for name in names])
    pin = reader.hold()
    return pinned(duck.stream(text, values, {"_view": source}), pin, fields)


def matching(
    duck: Duck,
    view: View,
    where: str,
    params: Sequence[Any] | None,
    columns: Sequence[str] | None = None,
) -> pa.Table:
    """The rows that a predicate holds for: these columns (all by default), and `_rowid`."""
    values = check_params(params)
    names = [*(view.state.schema.names if columns is None else columns), ROWID]
    source = view.source(_predicate(view.state, where, values), ids=True)
    return _rows(duck, view.state, source, names, where, values, None, None)


def count(duck: Duck, state: TableState, ts: int) -> int:
    """How many rows a snapshot sees."""
    if not readable_by_others(state.shelf):
        return count_rows(state, ts)
    plan = take_plan(state, ts)
    known, rest = count_known(plan), unclean(plan)
    if not rest.objects:
        return known
    empty, versions = state.schema.arrow.empty_table(), state.newest.entry.altered
    source = source_of(state.shelf, state.schema, rest, empty, versions=versions)
    try:
        found = duck.query("select count(*) from _view", [], {"_view": source})
    except UnavailableError:
        # Many dead rows and little memory: the reader needs a row group at a time.
        return count_rows(state, ts)
    return known + int(found.column(0)[0].as_py())


def pinned(
    reader: pa.RecordBatchReader, pin: Hold, schema: pa.Schema | None = None
) -> pa.RecordBatchReader:
    """Cast the batches of a reader to a schema, and hold a pin for as long as it can still be
    read."""
    fields = reader.schema if schema is None else schema

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            for batch in reader:
                yield batch if schema is None else as_schema(batch, schema)
        finally:
            pin.close()

    # Such a reader can be read on after close(), so its pin goes when it is exhausted or dropped.
    return pa.RecordBatchReader.from_batches(fields, batches())


def _predicate(state: TableState, where: str | None, values: Sequence[Any]) -> Predicate | None:
    """What prunes objects; nothing when the table has none."""
    if where is None or not state.shape.tier:
        return None
    return compile_where(where, values, state.schema, state.entry.name)


def _rows(
    duck: Duck,
    state: TableState,
    source: Source,
    names: Sequence[str],
    where: str | None,
    values: Sequence[Any],
    order: str | Sequence[str] | None,
    limit: int | None,
) -> pa.Table:
    """The rows that are asked for, under the exact types of the schema."""
    memory = source.memory
    if source.files:
        text = _text(state, names, where, order, limit, _PLACE)
        fields = pa.schema([memory.schema.field(name) for name in names])
        return as_schema(duck.query(text, values, {"_view": source}), fields)
    if where is None and order is None:  # nothing is asked of it that would need DuckDB
        return memory.select(names).slice(0, limit)
    text = _text(state, ["_place"], where, order, limit, _PLACE if order else "_place")
    view = memory.append_column("_place", pa.array(np.arange(memory.num_rows, dtype=np.int64)))
    return memory.take(duck.query(text, values, {"_view": view}).column(0)).select(names)


def _text(
    state: TableState,
    names: Sequence[str],
    where: str | None,
    order: str | Sequence[str] | None,
    limit: int | None,
    place: str,
) -> str:
    """The SELECT over `_view` that a scan means; `place` decides between equal rows."""
    text = f"select {', '.join(map(quote, names))} from _view"
    if where is not None:
        text += f" where {parse_where(where, state.schema, state.entry.name)}"
    if order is not None:
        text += f" order by {parse_order(order, state.schema, state.entry.name)}, {place}"
    elif place == "_place":
        text += " order by _place"
    return text if limit is None else f"{text} limit {limit}"


def _columns(schema: Schema, columns: Sequence[str] | None) -> list[str]:
    if columns is None:
        return list(schema.names)
    names = [schema.names[schema.position(name)] for name in columns]
    if not names or len(set(names)) < len(names):
        raise UsageError("columns= must name at least one column, and each once")
    return names

"""What a database and a table look like when somebody shows them in a terminal or a notebook.

    >>> db                                     >>> db.table("orders")
    Database shop: owner, 2 tables             Table 'orders' of shop: 1,204 rows, key (id)
      table   rows   key  columns                id     status  amount
      orders  1,204  id   id, status, amount     int64  string  decimal(12,2)
                                                 1      new     12.00

Looking never fails and never takes long: rows are counted by what is known of pages and objects,
of the rows themselves the first few are read, by key where there is one. Where tombstones lie over
objects the count says "about". Whatever goes wrong, a line with the name is left.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from halocline.objects.columns import ROWID
from halocline.read.ranges import read_range
from halocline.read.scan import count_known, scan_pages, take_plan
from halocline.rows.members import is_among
from halocline.rows.state import TableState
from halocline.schema.batches import from_arrow
from halocline.schema.compression import ZSTD
from halocline.schema.schema import Schema, TableColumn
from halocline.show import cell_text, html_table, text_table

if TYPE_CHECKING:
    from halocline.database.database import Database
    from halocline.database.table import Table

ROWS_SHOWN = 5
OBJECTS_TRIED = 2
LOOKED_AT = 64
"""Rows at the start of an object that are looked at, as the first may have ended."""
TABLES_SHOWN = 30
COLUMNS_SHOWN = 30
WIDTH = 100
"""Of a line of text; columns that do not fit are named below the table."""


class Picture(NamedTuple):
    """A title, lines of headings, lines of cells, and a note below."""

    title: str
    heads: list[list[str]]
    rows: list[list[str]]
    notes: str = ""

    def text(self) -> str:
        lines = text_table([*self.heads, *self.rows], left=1 << 30) if self.heads else []
        return "\n".join(
            [self.title, *(f"  {line}" for line in lines), *([self.notes] if self.notes else [])]
        )

    def html(self) -> str:
        return html_table(self.title, self.heads, self.rows, self.notes)


def database_picture(db: Database) -> Picture:
    """Its path, its role, and its tables with the number of their rows."""
    try:
        return _database(db)
    except Exception as error:  # noqa: BLE001 (looking never fails)
        return Picture(f"Database {db.path}{_why(error)}", [], [])


def table_picture(table: Table, width: int = WIDTH) -> Picture:
    """Columns with their types, the number of rows, and the first of them."""
    db = table._database
    try:
        return _table(db, table.name, width)
    except Exception as error:  # noqa: BLE001 (looking never fails)
        return Picture(f"Table {table.name!r} of {db.path}{_why(error)}", [], [])


def _why(error: Exception) -> str:
    text = cell_text(str(error), WIDTH)
    return " (closed)" if text.endswith("is closed") else f" ({text})"


def _database(db: Database) -> Picture:
    with db._begin_reading() as txn:
        names = txn.tables()
        rows = []
        for name in names[:TABLES_SHOWN]:
            state = txn.state_of(name)
            schema = state.schema
            columns = cell_text(", ".join(schema.names), 60)
            count = _count(state, txn.snapshot)
            rows.append([cell_text(name), count, ", ".join(schema.primary_key), columns])
    tables = f"{len(names)} table{'s' if len(names) != 1 else ''}"
    more = len(names) - len(rows)
    notes = f"and {more} more: db.tables() names them all" if more else ""
    heads = [["table", "rows", "key", "columns"]] if rows else []
    return Picture(f"Database {db.path}: {db.role}, {tables}", heads, rows, notes)


def _table(db: Database, name: str, width: int) -> Picture:
    with db._begin_reading() as txn:
        state = txn.state_of(name)
        schema = state.schema
        count = _count(state, txn.snapshot)
        first = _first_rows(state, txn.snapshot)
    shown = list(schema.names[:COLUMNS_SHOWN])
    batches = first.select(shown).combine_chunks().to_batches()
    values = [row for batch in batches for row in from_arrow(batch)]
    columns = [
        [column.name, cell_text(column.type_name), *(cell_text(row[at]) for row in values)]
        for at, column in enumerate(schema.columns[:COLUMNS_SHOWN])
    ]
    fits = _fitting(columns, width)
    lines = [list(line) for line in zip(*columns[:fits], strict=True)]
    left = schema.names[fits:]
    words = [f"and {len(left)} more columns: {', '.join(left)}"] if left else []
    words += [f"{c.name}: {column_words(c)}" for c in schema.columns if column_words(c)]
    words += check_words(schema)
    notes = "; ".join([*words, *table_words(schema)])
    key = f"key ({', '.join(schema.primary_key)})" if schema.primary_key else "no key"
    title = f"Table {name!r} of {db.path}: {count} rows, {key}"
    return Picture(title, lines[:2], lines[2:], cell_text(notes, 4 * WIDTH))


def column_words(column: TableColumn) -> str:
    """What a column has besides its name and type."""
    words = ["identity"] if column.identity else []
    words += [] if column.default is None else [f"default {column.default}"]
    words += [f"codec {column.compression}"] if column.compression else []
    return ", ".join([*words, column.comment] if column.comment else words)


def table_words(schema: Schema) -> list[str]:
    """What a table has besides its columns."""
    words = [] if schema.compression == ZSTD else [f"codec {schema.compression}"]
    return [*words, schema.comment] if schema.comment else words


def check_words(schema: Schema) -> list[str]:
    """The checks of a table, each with its name."""
    return [
        f"check {check.name}: {schema.check_text(check)}{'' if check.valid else ' (not yet valid)'}"
        for check in schema.checks
        if check.name
    ]


def schema_lines(db: Database) -> list[str]:
    """Every table with a line for each of its columns."""
    lines: list[str] = []
    with db._begin_reading() as txn:
        for name in txn.tables():
            schema = txn.state_of(name).schema
            lines.append(": ".join([name, ", ".join(table_words(schema))]).removesuffix(": "))
            cells = [
                [
                    column.name,
                    column.type_name if column.nullable else f"{column.type_name} not null",
                    "key" if at in schema.key_set else "",
                    cell_text(column_words(column), WIDTH),
                ]
                for at, column in enumerate(schema.columns)
            ]
            lines += [f"  {line}" for line in text_table(cells, left=4)]
            lines += [f"  {line}" for line in check_words(schema)]
    return lines


def _fitting(columns: list[list[str]], width: int) -> int:
    """How many columns fit into a line; one at least."""
    used = 0
    for at, column in enumerate(columns):
        used += max(map(len, column)) + 2
        if at and used > width:
            return at
    return len(columns)


def _count(state: TableState, ts: int) -> str:
    """The number of rows as far as it is known without reading a file."""
    data, tombstones = state.shape.tier.at(ts)
    if not tombstones:
        plan = take_plan(state, ts)
        if not (plan.dirty or plan.late):
            return f"{count_known(plan):,}"
    memory = sum(page.visible_count(count, ts) for page, count in state.shape.counted())
    ended = max(len(state.deletes), sum(entry.stats.rows for entry in tombstones))
    return f"about {max(0, memory + sum(entry.stats.rows for entry in data) - ended):,}"


def _first_rows(state: TableState, ts: int) -> pa.Table:
    """A few rows: the first by key, or those that are found first."""
    if state.schema.primary_key:
        return read_range(state, None, None, ts, limit=ROWS_SHOWN)
    plan = take_plan(state, ts)
    parts = [pa.Table.from_batches([batch]) for batch in islice(scan_pages(plan), 1)]
    for entry in (*plan.clean, *plan.dirty)[:OBJECTS_TRIED]:
        assert entry.file is not None
        numbers = np.arange(min(LOOKED_AT, entry.stats.rows))
        rows = state.shelf.reader.take(entry.file, state.schema, numbers, hidden=[ROWID])
        kept = ~is_among(rows.column(ROWID).to_numpy(), plan.dead)
        parts.append(rows.filter(pa.array(kept)).select(list(state.schema.names)))
    return pa.concat_tables([state.schema.arrow.empty_table(), *parts]).slice(0, ROWS_SHOWN)

"""Returning: what an insert or an upsert has stored, handed back to its caller.

    write.py --rows, tables, as they were stored--> Returned --result--> a dict for a dict,
                                                                         else a pa.Table

Rows come back in the order of the input, with the values that they were stored with: defaults and
keys that were made included. An upsert gives back whole rows, as the transaction sees them after
it. What was left out (`on_conflict="ignore"`, `reject=`) does not come back.

Nothing is read again: rows are noted where they enter the workspace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from halocline.errors import UsageError
from halocline.objects.order import key_order
from halocline.schema.compiled import Row
from halocline.schema.schema import Schema
from halocline.schema.values import show

Returning = bool | Sequence[str]


class Returned:
    """The rows of one call, as they were stored."""

    def __init__(self, schema: Schema, rows: Any, returning: Returning) -> None:
        """`rows` are the input, which tells what comes back; `returning` is what was asked for."""
        self.names = _read(schema, returning)
        self._schema = schema
        self._as_dict = isinstance(rows, Mapping)
        self._rows: list[Row] = []
        self._tables: list[pa.Table] = []
        self._order: pa.Table | None = None

    def rows(self, rows: Sequence[Row]) -> None:
        """Rows that were stored one by one."""
        if self._as_dict:
            self._rows += rows
        elif rows:
            self.table(self._schema.to_table(rows))

    def table(self, table: pa.Table) -> None:
        """Rows that were stored at once."""
        kept = {*self.names, *self._schema.primary_key}
        self._tables.append(table.select([n for n in self._schema.names if n in kept]))

    def through(self, chunks: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """Tables on their way to be stored, one after the other."""
        for chunk in chunks:
            self.table(chunk)
            yield chunk

    def in_order_of(self, keys: pa.Table) -> None:
        """The rows that come now have these keys, all of them, and come in any order."""
        assert not self._tables, "the first rows of the call"
        self._order = keys.select(list(self._schema.primary_key))

    def start_over(self) -> None:
        """What was noted has not been stored: the call goes on without some of its rows."""
        self._rows, self._tables, self._order = [], [], None

    def keys(self) -> list[Any]:
        """The keys of the rows."""
        found = [key for table in self._tables for key in self._schema.keys_of(table)]
        return [*map(self._schema.key_of, self._rows), *found]

    def result(self) -> Any:
        """What the caller gets: None for a dict that was left out."""
        if self._as_dict:
            rows = self._rows or [
                row for table in self._tables for row in self._schema.from_table(table)
            ]
            return _select(self._schema, rows[0], self.names) if rows else None
        if not self._tables:
            return self._schema.arrow.empty_table().select(list(self.names))
        table = pa.concat_tables(self._tables)
        if self._order is not None:
            table = table.take(pa.array(self._places(table)))
        return table.select(list(self.names))

    def _places(self, table: pa.Table) -> Any:
        """Where the row of each key of the input stands."""
        assert self._order is not None
        assert self._order.num_rows == table.num_rows
        here, there = (_order_of(one, self._schema) for one in (table, self._order))
        places = np.empty(len(here), dtype=np.int64)
        places[there] = here
        return places


def _order_of(table: pa.Table, schema: Schema) -> Any:
    order = key_order(table, schema)
    return np.arange(table.num_rows) if order is None else order


def returned_of(schema: Schema, rows: Any, returning: Returning) -> Returned | None:
    """Where to note the rows of a call; None when nothing was asked for."""
    return None if returning is False else Returned(schema, rows, returning)


def _read(schema: Schema, returning: object) -> tuple[str, ...]:
    """The columns that were asked for, in the spelling of the table; UsageError for anything else,
    SchemaError for a name that it has not."""
    if returning is True:
        return schema.names
    if isinstance(returning, (list, tuple)) and returning:
        if all(isinstance(name, str) for name in returning):
            names = tuple([schema.names[schema.position(name)] for name in returning])
            if len(set(names)) == len(names):
                return names
    raise UsageError(f"returning= is True or a list of different columns, not {show(returning)}")


def returned_row(schema: Schema, row: Row, returning: Returning) -> dict[str, Any]:
    """One row, for its caller to keep."""
    return _select(schema, row, _read(schema, returning))


def _select(schema: Schema, row: Row, names: Sequence[str]) -> dict[str, Any]:
    values = schema.as_dict(row)
    return values if names == schema.names else {name: values[name] for name in names}

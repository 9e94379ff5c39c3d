"""A write into a table that is altered while its tasks run.

    rows and objects as tasks wrote them --renamed, read_back--> rows by the names of today

A column is its id. One that was dropped or changed since fails the write; one that was added is not
in the rows, so rows that are there keep what they have in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from halocline.errors import SchemaError
from halocline.objects import ObjectFile
from halocline.rows.state import TableState
from halocline.schema.evolve import in_the_way
from halocline.schema.schema import Schema


def renamed(fields: pa.Schema, written: Schema, table: Schema) -> pa.Schema:
    """Columns that tasks have written, under the names of today; SchemaError if one is not there
    any more, or another."""
    ids = {column.name: column.id for column in written.columns}
    if why := in_the_way(written, table, [ids[name] for name in fields.names if name in ids]):
        raise SchemaError(
            f"while rows were written, the table was altered, which {why}: run it again"
        )
    names = {column.id: column.name for column in table.columns}
    return pa.schema([f.with_name(names[ids[f.name]]) if f.name in ids else f for f in fields])


def read_back(
    state: TableState, made: Iterable[ObjectFile], fields: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The rows of objects that are of an older version, as rows of these columns."""
    for file in made:
        rows = state.shelf.reader.read(file, state.schema, columns=fields.names, hidden=())
        yield from rows.cast(fields).to_batches()

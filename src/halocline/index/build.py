"""Build index objects: what an index has of one data object, as a file beside it.

    data object --columns, verified--> kind.build --> <data object>.<index id>.<job>-<n>.parquet

Whoever writes data objects calls `write_beside` for them (move, compaction, bulk commits); for
older objects the background does (compaction/indexes.py). A column that the data object has not
is read as what readers see in its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from halocline.catalog import IndexEntry, ObjectEntry
from halocline.catalog.indexes import columns_of
from halocline.errors import CorruptionError
from halocline.index.registry import IndexKind, kind_of
from halocline.objects import JobWriter, ObjectFile, ObjectReader
from halocline.objects.columns import index_columns
from halocline.rows.reshape import new_entry
from halocline.schema.schema import Schema


def write_beside(
    reader: ObjectReader,
    schema: Schema,
    writer: JobWriter,
    indexes: Sequence[IndexEntry],
    entries: Sequence[ObjectEntry],
) -> Iterator[ObjectEntry]:
    """Write the index objects of some new data objects, whatever else is among the entries."""
    for index in indexes:
        kind = kind_of(index.kind)
        if kind is None or len(columns_of(schema, index)) < len(index.columns):
            continue  # not installed, or of a version of the table that comes only now
        for entry in entries:
            if entry.kind == "data":
                table = content_of(reader, schema, kind, index, file_of(entry))
                yield new_entry(writer.index(table, schema.version, entry.id, index.id))


def content_of(
    reader: ObjectReader, schema: Schema, kind: IndexKind, index: IndexEntry, file: ObjectFile
) -> pa.Table:
    """What an index has of a data object."""
    table = reader.read(file, schema, columns=columns_of(schema, index), hidden=())
    return kind.build([column.combine_chunks() for column in table.columns])


def difference(
    reader: ObjectReader, schema: Schema, index: IndexEntry, entry: ObjectEntry, data: ObjectEntry
) -> str:
    """How an index object differs from its data; empty when it is what it should be."""
    kind, file = kind_of(index.kind), file_of(entry)
    try:
        reader.verify(file, again=True)
        with reader.tail(file) as tail:
            directory = tail.directory
            parts = [
                reader.blocks(file, directory, [block], index_columns())
                for block in range(directory.blocks)
            ]
        if kind is None:
            return ""
        wanted = content_of(reader, schema, kind, index, file_of(data))
    except CorruptionError as error:
        return str(error)
    found = pa.concat_tables(parts).cast(wanted.schema)
    if not found.equals(wanted):
        return f"{entry.key}: it does not say what is in {data.key}"
    return ""


def file_of(entry: ObjectEntry) -> ObjectFile:
    """The file of an entry."""
    assert entry.file is not None
    return entry.file

"""Inspect: is a file exactly what its entry in the catalog says?

    file --digest--> rows, order, ranges, zonemaps, counted again --> every difference, in words

Reading trusts the statistics: a zonemap that is too narrow hides rows, a wrong order makes point
reads miss them. The digest proves that the bytes are those that were written; all else proves that
the writer was right.

A large object is read a column at a time, so that memory holds one column of a million rows. What
is inside is looked at once in the life of a process: as long as the digest is right, it is as it
was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc

from halocline.errors import HaloclineError
from halocline.objects.columns import COMMIT_TS, ROWID, tombstone_schema
from halocline.objects.keybytes import is_sorted, key_bytes, range_of
from halocline.objects.read import ObjectReader
from halocline.objects.stats import ObjectFile
from halocline.objects.zonemap import zonemap
from halocline.schema.schema import Schema
from halocline.schema.types import TIMESTAMP

WHOLE_BYTES_MAX: Final = 1 << 20
"""Files up to this size are decoded in one go."""


def inspect(reader: ObjectReader, file: ObjectFile, schema: Schema) -> tuple[list[str], Any]:
    """Every way in which a data or tombstone object differs from its statistics, and, where it was
    at hand, a pa.Table of its keys, `_rowid` and `_commit_ts`."""
    try:
        reader.verify(file, again=True)
        if reader.inspected.get(file.id) is file.stats:
            return [], None
        first = _first(reader, file, schema)
        found = [f"{file.path}: {text}" for text in _differences(reader, file, schema, first)]
        if not found:
            reader.inspected[file.id] = file.stats
        return found, first.select([*schema.primary_key, ROWID, COMMIT_TS])
    except HaloclineError as error:
        return [str(error)], None


def _first(reader: ObjectReader, file: ObjectFile, schema: Schema) -> Any:
    """All columns of a small object, the keys of a large one, and hidden columns."""
    small = file.stats.size_bytes <= WHOLE_BYTES_MAX
    columns = None if small else schema.primary_key
    return reader.read(file, _seen(file, schema), columns=columns)


def _seen(file: ObjectFile, schema: Schema) -> Schema:
    return tombstone_schema(schema) if file.stats.kind == "tombstone" else schema


def _differences(
    reader: ObjectReader, file: ObjectFile, schema: Schema, first: Any
) -> Iterator[str]:
    stats, seen = file.stats, _seen(file, schema)
    keys = schema.primary_key
    yield from _ranges(first, file, keys)
    if first.num_rows != stats.rows:
        yield f"it has {first.num_rows} rows, not {stats.rows}"
    for column in seen.columns:
        name, zone = column.name, stats.zonemaps.get(column.id)
        # A date that has become a moment since has bounds that are dates.
        if zone is None or (stats.schema_version != schema.version and column.type == TIMESTAMP):
            continue
        table = first if name in first.column_names else reader.read(file, seen, columns=[name])
        if zonemap(table.column(name)) != zone:
            yield f"the zonemap of column {name!r} is not that of its values"


def _ranges(table: Any, file: ObjectFile, keys: Sequence[str]) -> Iterator[str]:
    stats = file.stats
    order = list(keys) if stats.order == "key" and keys else [ROWID]
    if not is_sorted([table.column(name) for name in order]):
        yield f"its rows are not sorted by {', '.join(order)}"
    if keys and range_of(key_bytes(table, keys)) != (stats.key_min, stats.key_max):
        yield "its range of keys is not the one in the catalog"
    rowids = table.column(ROWID).to_numpy()
    if (rowids.min(), rowids.max()) != (stats.rowid_min, stats.rowid_max):
        yield "its range of RowIDs is not the one in the catalog"
    ranked = np.sort(rowids)  # np.unique takes ten times as long
    if (ranked[1:] == ranked[:-1]).any():
        yield "it holds a RowID twice"
    if stats.committed:
        stamps = pc.min_max(table.column(COMMIT_TS))
        if (stamps["min"].as_py(), stamps["max"].as_py()) != (
            stats.commit_ts_min,
            stats.commit_ts_max,
        ):
            yield "its range of commit timestamps is not the one in the catalog"

"""The object list of one table, as a Parquet file of its own.

    Tier --encode--> one row per object: id, kind, level, interval, location, ranges, statistics
         <-decode---

Any tool that reads Parquet can read it: it is the answer to "which files make up this table?". The
columns for the eye and for pruning stand beside `statistics`, which has everything in the form the
log uses. `deleted_at` is the largest int64 for an object that had not ended within the checkpoint;
the tail may still end it.

A checkpoint writes the list of a table anew only if it has changed.

Not here: index objects, which have a list of their own (indexlist.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from halocline.catalog.entries import ObjectEntry
from halocline.errors import CorruptionError
from halocline.ids import NEVER, ObjectId, TableId
from halocline.objects import ObjectFile, ObjectStats
from halocline.rows.tier import Tier

VERSION: Final = b"1"
_pack = msgspec.msgpack.Encoder().encode
COLUMNS: Final[dict[str, tuple[Any, Callable[[ObjectEntry], Any]]]] = {
    "object_id": (pa.int64(), lambda entry: entry.id),
    "kind": (pa.string(), lambda entry: entry.kind),
    "level": (pa.int32(), lambda entry: entry.level),
    "moved": (pa.bool_(), lambda entry: entry.moved),
    "truncated": (pa.bool_(), lambda entry: entry.truncated),
    "created_at": (pa.int64(), lambda entry: entry.created_at),
    "deleted_at": (pa.int64(), lambda entry: entry.deleted_at),
    "location": (pa.string(), lambda entry: entry.key),
    "commit_ts_min": (pa.int64(), lambda entry: entry.commit_ts_min),
    "commit_ts_max": (pa.int64(), lambda entry: entry.commit_ts_max),
    "pk_min": (pa.binary(), lambda entry: entry.stats.key_min),
    "pk_max": (pa.binary(), lambda entry: entry.stats.key_max),
    "rowid_min": (pa.int64(), lambda entry: entry.stats.rowid_min),
    "rowid_max": (pa.int64(), lambda entry: entry.stats.rowid_max),
    "rows": (pa.int64(), lambda entry: entry.stats.rows),
    "size_bytes": (pa.int64(), lambda entry: entry.stats.size_bytes),
    "has_tombstone": (pa.bool_(), lambda entry: False),  # that depends on others
    "statistics": (pa.binary(), lambda entry: _pack(entry.stats.to_wire())),
}
"""Type of each column, and what it says of an object."""
SCHEMA: Final = pa.schema(
    [pa.field(name, type, nullable=False) for name, (type, _) in COLUMNS.items()]
)
PLAIN_ROWS: Final = 64
"""Lists of so few objects are not compressed: that would take most of the time of reading them."""


def encode_objects(table_id: int, tier: Tier) -> bytes:
    """The file that lists these objects, by id."""
    entries = sorted(tier.by_id.values(), key=lambda entry: entry.id)
    columns = {name: [value(entry) for entry in entries] for name, (_, value) in COLUMNS.items()}
    columns["has_tombstone"] = _have_tombstones(entries, tier.tombstones)
    facts = {b"halocline.checkpoint": VERSION, b"halocline.table": str(table_id).encode()}
    table = pa.table(columns, schema=SCHEMA.with_metadata(facts))
    sink = pa.BufferOutputStream()
    codec = "zstd" if len(entries) > PLAIN_ROWS else "none"
    pq.write_table(table, sink, compression=codec, use_dictionary=False, write_page_checksum=True)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def decode_objects(data: bytes, table_id: int, key: str) -> Tier:
    """The objects that a file lists; CorruptionError for what makes no sense.

    The caller has compared the bytes with their digest.
    """
    try:
        # 0.25 ms for a few objects, where `pq.read_table` takes 1 ms: there may be many tables.
        table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
        table.validate(full=True)
        facts = table.schema.metadata or {}
        if facts.get(b"halocline.checkpoint") != VERSION:
            raise ValueError("an object list of an unknown version")
        if facts.get(b"halocline.table") != str(table_id).encode():
            raise ValueError("the object list of another table")
        if not table.schema.remove_metadata().equals(SCHEMA):
            raise ValueError("an object list with other columns")
        return Tier([_entry(table_id, row) for row in table.to_pylist()])
    except (OSError, ValueError, TypeError, KeyError, RecursionError, pa.ArrowException) as error:
        raise CorruptionError(key, f"it cannot be read: {error}") from error


def _entry(table_id: int, row: dict[str, Any]) -> ObjectEntry:
    stats = ObjectStats.from_wire(msgspec.msgpack.decode(row["statistics"]))
    if row["kind"] != stats.kind:
        raise ValueError(f"object {row['object_id']} is not of kind {row['kind']!r}")
    written_at = 0 if stats.committed else row["created_at"]
    return ObjectEntry(
        id=ObjectId(row["object_id"]),
        table_id=TableId(table_id),
        kind=row["kind"],
        level=row["level"],
        moved=row["moved"],
        truncated=row["truncated"],
        commit_ts_min=row["commit_ts_min"],
        commit_ts_max=row["commit_ts_max"],
        created_at=row["created_at"],
        deleted_at=row["deleted_at"],
        file=ObjectFile(row["location"], stats, written_at),
    )


def _have_tombstones(
    entries: Sequence[ObjectEntry], tombstones: Sequence[ObjectEntry]
) -> list[bool]:
    """A hint for readers: may some row of this object have ended? Ranges of RowIDs tell."""
    lows = np.array([entry.stats.rowid_min for entry in entries], dtype=np.int64)
    highs = np.array([entry.stats.rowid_max for entry in entries], dtype=np.int64)
    found = np.zeros(len(entries), dtype=np.bool_)
    for one in tombstones:
        if one.deleted_at == NEVER:
            found |= (lows <= one.stats.rowid_max) & (highs >= one.stats.rowid_min)
    found &= np.array([entry.kind == "data" for entry in entries], dtype=np.bool_)
    return found.tolist()

"""The index list of one table: its index objects in a checkpoint, sorted by (object, index).

    Tier --encode--> blocks of rows: key, value    key   = object id, index id: 12 bytes, big-endian
         <-decode---                               value = where the index object is, and the rest
    find(object, index) --bounds of a block, binary search in its keys--> the one value, decoded

A Parquet file of two columns whose row groups are the blocks, so the key column of a block has its
bounds in the footer. Looking one up touches no value but the one that it finds: a block whose
bounds exclude the key is passed over; else its keys are searched, and only if the key is among them
its value is decoded. A checkpoint has one list a table, written anew only if the table has changed.

An index object that has ended is listed while its data object is, for GC; `find` gives the one that
has not.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from halocline.catalog.entries import ObjectEntry
from halocline.errors import CorruptionError
from halocline.ids import NEVER, TableId
from halocline.rows.reshape import entry_from_wire, entry_to_wire
from halocline.rows.tier import Tier

VERSION: Final = b"1"
BLOCK_ROWS: Final = 1024
SCHEMA: Final = pa.schema(
    [pa.field("key", pa.binary(), nullable=False), pa.field("value", pa.binary(), nullable=False)]
)
_pack = msgspec.msgpack.Encoder().encode


def encode_indexes(table_id: int, tier: Tier) -> bytes:
    """The file that lists the index objects of a table."""
    entries = sorted(tier.index_objects.values(), key=lambda one: (_key(one), -one.deleted_at))
    values = [_pack((one.created_at, one.deleted_at, entry_to_wire(one))) for one in entries]
    facts = {b"halocline.indexes": VERSION, b"halocline.table": str(table_id).encode()}
    columns = {"key": [_key(one) for one in entries], "value": values}
    table = pa.table(columns, schema=SCHEMA.with_metadata(facts))
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, use_dictionary=False) as writer:
        writer.write_table(table, row_group_size=BLOCK_ROWS)
    data: bytes = sink.getvalue().to_pybytes()
    return data


class IndexList:
    """One such file. The caller has compared its bytes with their digest."""

    def __init__(self, data: bytes, table_id: int, key: str) -> None:
        self._table_id, self._key = table_id, key
        try:
            self._file = pq.ParquetFile(pa.BufferReader(data))
            fields = self._file.schema_arrow
            facts = fields.metadata or {}
            if facts.get(b"halocline.indexes") != VERSION:
                raise ValueError("an index list of an unknown version")
            if facts.get(b"halocline.table") != str(table_id).encode():
                raise ValueError("the index list of another table")
            if not fields.remove_metadata().equals(SCHEMA):
                raise ValueError("an index list with other columns")
        except (OSError, ValueError, pa.ArrowException) as error:
            raise CorruptionError(key, f"it cannot be read: {error}") from error

    def entries(self) -> Iterator[ObjectEntry]:
        """All index objects."""
        for block in range(self._file.num_row_groups):
            for value in self._read(block, "value").to_pylist():
                yield self._entry(value)

    def find(self, target: int, index_id: int) -> ObjectEntry | None:
        """The index object that an index has of a data object; None when it has none."""
        wanted = _pair(target, index_id)
        for block in range(self._file.num_row_groups):
            bounds = self._file.metadata.row_group(block).column(0).statistics
            if bounds is not None and not bounds.min <= wanted <= bounds.max:
                continue
            keys = self._read(block, "key")
            place = bisect_left(range(len(keys)), wanted, key=lambda at: keys[at].as_py())
            if place < len(keys) and keys[place].as_py() == wanted:
                entry = self._entry(self._read(block, "value")[place].as_py())
                return entry if entry.deleted_at == NEVER else None
        return None

    def _read(self, block: int, column: str) -> Any:
        try:
            table = self._file.read_row_group(block, columns=[column], use_threads=False)
            table.validate(full=True)
        except (OSError, pa.ArrowException) as error:
            raise CorruptionError(self._key, f"it cannot be read: {error}") from error
        return table.column(0)

    def _entry(self, value: bytes) -> ObjectEntry:
        try:
            created_at, deleted_at, wire = msgspec.msgpack.decode(value, type=tuple[int, int, Any])
            entry = entry_from_wire(TableId(self._table_id), tuple(wire))
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            raise CorruptionError(self._key, f"an index object makes no sense: {error}") from error
        return entry.stamped(created_at, deleted_at)


def _key(entry: ObjectEntry) -> bytes:
    return _pair(entry.target, entry.index_id)


def _pair(target: int, index_id: int) -> bytes:
    return target.to_bytes(8, "big") + index_id.to_bytes(4, "big")

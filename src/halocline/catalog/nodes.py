"""DDL in the log: six node payloads, each a version byte and a msgpack map.

    +---------+------------------------------------------------------------+
    | 1 byte  | msgpack map, field names as keys                           |
    | version |                                                            |
    +---------+------------------------------------------------------------+

    DDL_CT  create table     table_id, name, schema, layout, options, next_column_id
    DDL_DT  drop table       table_id, name
    DDL_CD  create database  database_id, name
    DDL_DD  drop database    database_id, name
    DDL_CI  create index     table_id, index_id u32, index_type u32, columns u16[], desc
    DDL_DI  drop index       table_id, index_id u32

A node holds no timestamp: the commit record around it does, so nodes are encoded when the command
is given, long before the commit lock. A drop names the id as well as the name; on replay both must
fit, which catches a log that belongs to another history.

Bytes from a log are hostile until checked. A version we do not know is refused, never guessed at,
and so are unknown fields, ids out of range, impossible names and trailing bytes. msgspec bounds
every length by the bytes that are there before it allocates.

Not here: the frame around a node (log/record.py), the schema's own wire form (schema/schema.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import msgspec

from halocline.catalog.entries import IndexEntry, TableEntry
from halocline.catalog.names import check_name
from halocline.errors import CorruptionError, UsageError
from halocline.ids import ColumnId, IndexId, TableId
from halocline.log import DDL_CD, DDL_CI, DDL_CT, DDL_DD, DDL_DI, DDL_DT

if TYPE_CHECKING:
    from halocline.schema.schema import Schema

VERSION: Final = 1

_Id = Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]
_U16 = Annotated[int, msgspec.Meta(ge=1, le=(1 << 16) - 1)]
_U32Id = Annotated[int, msgspec.Meta(ge=1, le=(1 << 32) - 1)]
_U32 = Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)]

Buffer: TypeAlias = bytes | bytearray | memoryview


class CreateTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    table_id: _Id
    name: str
    schema: dict[str, Any]
    layout: str
    options: dict[str, Any]
    next_column_id: _Id


class DropTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    table_id: _Id
    name: str


class CreateDatabase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    database_id: _Id
    name: str


class DropDatabase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    database_id: _Id
    name: str


class CreateIndex(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    table_id: _Id
    index_id: _U32Id
    index_type: _U32
    columns: tuple[_U16, ...]
    desc: str


class DropIndex(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    table_id: _Id
    index_id: _U32Id


Node: TypeAlias = CreateTable | DropTable | CreateDatabase | DropDatabase | CreateIndex | DropIndex

_CLASSES: Final[Mapping[int, type[Node]]] = {
    DDL_CT: CreateTable,
    DDL_DT: DropTable,
    DDL_CD: CreateDatabase,
    DDL_DD: DropDatabase,
    DDL_CI: CreateIndex,
    DDL_DI: DropIndex,
}
_TYPES: Final[Mapping[type[Node], int]] = {cls: number for number, cls in _CLASSES.items()}
_DECODERS: Final = {number: msgspec.msgpack.Decoder(cls) for number, cls in _CLASSES.items()}
_ENCODER: Final = msgspec.msgpack.Encoder()


def encode(node: Node) -> tuple[int, bytes]:
    """(node type, payload) for the log; UsageError for values that replay would refuse."""
    node_type = _TYPES[type(node)]
    try:
        payload = bytes((VERSION,)) + _ENCODER.encode(node)
        # Read it back: a record that is logged but cannot be replayed would lock the database out.
        decode(node_type, payload)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"a definition must consist of plain values: {error}") from error
    except CorruptionError as error:
        raise UsageError(f"this definition cannot be stored: {error.reason}") from error
    return node_type, payload


def plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """A private copy of the options, as replay will read them (a tuple comes back as a list)."""
    try:
        return msgspec.msgpack.decode(_ENCODER.encode(dict(options)), type=dict[str, Any])
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"options must be plain values under string names: {error}") from error


def decode(node_type: int, payload: Buffer) -> Node:
    """The node in `payload`; CorruptionError for anything that `encode` would not have written."""
    decoder = _DECODERS.get(node_type)
    if decoder is None:
        raise _corrupt(node_type, "not a DDL node")
    if len(payload) == 0:
        raise _corrupt(node_type, "the payload is empty")
    if payload[0] != VERSION:
        raise _corrupt(node_type, f"version {payload[0]} is unknown; this engine reads {VERSION}")
    try:
        node: Node = decoder.decode(memoryview(payload)[1:])
        if not isinstance(node, (CreateIndex, DropIndex)):
            check_name("stored", node.name)
    # msgspec's own errors are ValueErrors; bad UTF-8 and too deep nesting surface as Python's.
    except (ValueError, RecursionError, UsageError) as error:
        raise _corrupt(node_type, str(error)) from error
    return node


def table_entry(node: CreateTable, schema: Schema) -> TableEntry:
    """The entry that a node makes, not yet committed."""
    return TableEntry(
        id=TableId(node.table_id),
        name=node.name,
        schema=schema,
        layout=node.layout,
        options=MappingProxyType(node.options),
        next_column_id=ColumnId(node.next_column_id),
    )


def index_entry(node: CreateIndex) -> IndexEntry:
    """The entry that a node makes, not yet committed."""
    return IndexEntry(
        id=IndexId(node.index_id),
        table_id=TableId(node.table_id),
        index_type=node.index_type,
        columns=tuple(ColumnId(column) for column in node.columns),
        desc=node.desc,
    )


def _corrupt(node_type: int, reason: str) -> CorruptionError:
    return CorruptionError("log", f"DDL node of type {node_type}: {reason}")

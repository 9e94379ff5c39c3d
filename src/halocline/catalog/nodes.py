"""DDL in the log: five nodes, each with a body (log/record.py) that is a map.

    DDL_CT  create table   table_id, name, schema, layout, options, next_column_id
    DDL_UT  alter table    table_id, name, schema, change, new_name
    DDL_DT  drop table     table_id, name
    DDL_CI  create index   table_id, name (of the table), index_id, index_type, columns, desc
    DDL_DI  drop index     table_id, name (of the table), index_id

The name of an index is its `desc`.

A node holds no timestamp: the commit record around it does, so nodes are encoded when the command
is given, long before the commit lock. Drop and alter name the id as well as the name; on replay
both must fit, which catches a log that belongs to another history.

Bytes from a log are hostile until checked. A version we do not know is refused, never guessed at,
and so are unknown fields, ids out of range, impossible names and trailing bytes. msgspec bounds
every length by the bytes that are there before it allocates.

Not here: the frame around a node (log/record.py), the schema's own wire form (schema/schema.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import msgspec

from halocline.catalog.entries import TableEntry
from halocline.catalog.indexes import COLUMNS_MAX, IndexEntry
from halocline.catalog.names import check_name
from halocline.errors import CorruptionError, UsageError
from halocline.ids import ColumnId, TableId
from halocline.log.record import (
    DDL_CI,
    DDL_CT,
    DDL_DI,
    DDL_DT,
    DDL_UT,
    decode_body,
    encode_body,
)
from halocline.store.files import Buffer

if TYPE_CHECKING:
    from halocline.schema.schema import Schema

_Id = Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]
_U32 = Annotated[int, msgspec.Meta(ge=1, le=(1 << 32) - 1)]
_Columns = Annotated[list[_Id], msgspec.Meta(min_length=1, max_length=COLUMNS_MAX)]


class CreateTableNode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    table_id: _Id
    name: str
    schema: dict[str, Any]
    layout: str
    options: dict[str, Any]
    next_column_id: _Id


class DropTableNode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    table_id: _Id
    name: str


class AlterTableNode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    table_id: _Id
    name: str
    schema: dict[str, Any]
    change: str
    new_name: str = ""
    """Empty: the table keeps its name."""


class CreateIndexNode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    table_id: _Id
    name: str
    index_id: _U32
    index_type: _U32
    columns: _Columns
    desc: str

    @property
    def entry(self) -> IndexEntry:
        """The definition, not yet committed."""
        columns = tuple(self.columns)
        return IndexEntry(id=self.index_id, name=self.desc, kind=self.index_type, columns=columns)


class DropIndexNode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    table_id: _Id
    name: str
    index_id: _U32


DdlNode: TypeAlias = (
    CreateTableNode | DropTableNode | AlterTableNode | CreateIndexNode | DropIndexNode
)

_CLASSES: Final[Mapping[int, type[DdlNode]]] = {
    DDL_CT: CreateTableNode,
    DDL_DT: DropTableNode,
    DDL_UT: AlterTableNode,
    DDL_CI: CreateIndexNode,
    DDL_DI: DropIndexNode,
}
_TYPES: Final[Mapping[type[DdlNode], int]] = {cls: number for number, cls in _CLASSES.items()}
_ENCODER: Final = msgspec.msgpack.Encoder()


def encode(node: DdlNode) -> tuple[int, bytes]:
    """(node type, payload) for the log; UsageError for values that replay would refuse."""
    node_type = _TYPES[type(node)]
    try:
        payload = encode_body(node)
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


def decode(node_type: int, payload: Buffer) -> DdlNode:
    """The node in `payload`; CorruptionError for anything that `encode` would not have written."""
    fields = _CLASSES.get(node_type)
    if fields is None:
        raise CorruptionError("log", f"node type {node_type} is not a node about a table")
    node = decode_body(payload, fields)
    try:
        check_name("stored", node.name)
        if isinstance(node, AlterTableNode) and node.new_name:
            check_name("stored", node.new_name)
        if isinstance(node, CreateIndexNode):
            check_name("stored", node.desc)
    except UsageError as error:
        raise CorruptionError("log", f"{fields.__name__}: {error}") from error
    return node


def table_entry(node: CreateTableNode, schema: Schema) -> TableEntry:
    """The entry that a node makes, not yet committed."""
    return TableEntry(
        id=TableId(node.table_id),
        name=node.name,
        schema=schema,
        layout=node.layout,
        options=MappingProxyType(node.options),
        next_column_id=ColumnId(node.next_column_id),
    )


def renamed_entry(entry: TableEntry, name: str, place: int = 0) -> TableEntry:
    """The entry of a table under another name: the next version of its schema, column by column."""
    schema = replace(entry.schema, version=entry.schema.version + 1)
    return entry.with_schema(schema, f"rename table {entry.name} to {name}", name, place)

"""DML nodes: what a commit record says about rows, in memory and as bytes.

    workspace --> Append | Update | Delete --encode--> node payload --> log
                        |                                                |
                        '------------------> fold <-------decode---------'

A node payload starts with a head of 28 bytes:

    version 1 | form 1 | flags 2 | table id 8 | schema version 4 | first RowID 8 | count 4

The RowID is written as zero and patched in place under the commit lock, when it is known. `count`
is the number of rows, or of versions that end. The rows are in that version of the table's schema,
0 until it is altered. The one flag is AMOUNTS; what is not known is refused. Then the rows:

    form 0   msgpack: Append [rows], Update [changed ids, targets, rows], Delete [targets, keys]
    form 1   Arrow IPC stream, LZ4: the rows, with `_target` beside them in Update and Delete;
             the changed ids stand in the stream's schema metadata. A Delete may have `_successor`
             beside that: RowIDs of rows that objects of the same commit hold, 0 for none

A changed column has its id, or the negative of its id if it was only added to (`hc.add`). The row
of such an update holds the sum. With AMOUNTS, which only a workspace on its way to the owner has,
it holds what is to be added.

Nodes are msgspec structs, because one is made for every commit: 0.2 us, a dataclass takes 0.6.

Rows i of a node get RowID first + i. Keys of a Delete travel as rows of the key columns. Bytes come
from disk or network, so every decoder checks and raises CorruptionError.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from struct import error as StructError
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from halocline.errors import CorruptionError
from halocline.log.record import DML_A, DML_D, DML_U, Info
from halocline.rows.memtree import Run, sort_run
from halocline.schema.batches import Int64Array
from halocline.schema.compiled import Row
from halocline.schema.ipc import check_own
from halocline.schema.schema import Schema

_Encoding, _Arrow = msgspec.MsgspecError, pa.ArrowException
VERSION: Final = 2
HEAD: Final = Struct("<BBHQIQI")
FLAGS_AT: Final = 2
FIRST_ROWID_AT: Final = 16
"""Offset of the first RowID in a node payload."""

ROWS, ARROW = 0, 1
AMOUNTS: Final = 1
"""Flag of an Update: columns that are added to hold amounts, not sums."""
_IPC_END: Final = b"\xff\xff\xff\xff\0\0\0\0"
_THREADS_BYTES_MIN: Final = 256 * 1024
"""Smaller batches are packed and unpacked in this thread: 10 us, where waking Arrow's own threads
takes 30, and milliseconds on a busy machine. Larger ones gain a third by them."""
_WRITE: Final = [pa.ipc.IpcWriteOptions(compression="lz4", use_threads=on) for on in (False, True)]
_READ: Final = [pa.ipc.IpcReadOptions(use_threads=on) for on in (False, True)]
_pack_head, _unpack_head = HEAD.pack, HEAD.unpack_from
_encode = msgspec.msgpack.Encoder().encode
_ints = msgspec.msgpack.Decoder(tuple[tuple[int, ...], msgspec.Raw])
_update = msgspec.msgpack.Decoder(tuple[tuple[int, ...], tuple[int, ...], msgspec.Raw])


class Append(msgspec.Struct):
    """New rows of one table."""

    table_id: int
    rows: Sequence[Row] = ()
    table: pa.Table | None = None
    run: Run | None = None
    first_rowid: int = 0
    keys: Sequence[Any] = ()
    """Of `rows`, where they are known already."""
    body: bytes = b""
    """What follows the head, where the rows came as bytes: they are not encoded again."""
    version: int = 0
    """Of the schema, beside `body` and in what was decoded."""

    @property
    def count(self) -> int:
        """RowIDs this node takes."""
        return len(self.rows) if self.table is None else int(self.table.num_rows)


class Update(msgspec.Struct):
    """Versions that are succeeded by others; `changed` are column ids, negative if added to."""

    table_id: int
    targets: Sequence[int] | Int64Array
    changed: tuple[int, ...]
    rows: Sequence[Row] = ()
    table: pa.Table | None = None
    keys: Sequence[Any] = ()
    run: Run | None = None
    first_rowid: int = 0
    body: bytes = b""
    amounts: bool = False
    """Do the rows hold amounts in the columns that are added to? Never in the log."""
    version: int = 0

    @property
    def count(self) -> int:
        return len(self.targets)


class Delete(msgspec.Struct):
    """Versions that end. Targets as an array, here and in Update, mean the bulk form."""

    table_id: int
    targets: Sequence[int] | Int64Array
    keys: Sequence[Any]
    first_rowid: int = 0
    successors: Sequence[int] | Int64Array | None = None
    """Rows that take their place, 0: none. In the log they are those of objects that the same
    commit brings, and the form is the bulk form."""
    changed: tuple[int, ...] = ()
    version: int = 0

    @property
    def count(self) -> int:
        return 0


RowNode = Append | Update | Delete


def encode_node(node: RowNode, schema: Schema | None) -> tuple[int, bytes]:
    """(node type, payload) with the first RowID left zero. Without a schema it has its bytes."""
    if isinstance(node, Delete):
        kind, many = DML_D, len(node.targets)
        form, body = _delete_body(node, schema)
    else:
        kind, many = (DML_A if isinstance(node, Append) else DML_U), node.count
        form, body = (ROWS, node.body) if node.body else _rows_body(node, schema)
    flags = AMOUNTS if isinstance(node, Update) and node.amounts else 0
    version = node.version if schema is None else schema.version
    return kind, _pack_head(VERSION, form, flags, node.table_id, version, 0, many) + body


def _rows_body(node: Append | Update, schema: Schema | None) -> tuple[int, bytes]:
    if isinstance(node, Update):
        return _update_body(node, schema)
    if node.table is not None:
        return ARROW, _to_ipc(node.table)
    assert schema is not None
    return ROWS, schema.encode_rows(node.rows)


def _update_body(node: Update, schema: Schema | None) -> tuple[int, bytes]:
    if node.table is None:
        assert schema is not None
        rows = msgspec.Raw(schema.encode_rows(node.rows))
        return ROWS, _encode((node.changed, node.targets, rows))
    table = node.table.append_column("_target", pa.array(node.targets, pa.int64()))
    return ARROW, _to_ipc(table.replace_schema_metadata({b"changed": _encode(node.changed)}))


def _delete_body(node: Delete, schema: Schema | None) -> tuple[int, bytes]:
    assert schema is not None
    if not isinstance(node.targets, np.ndarray):
        keys = schema.encode_keys(node.keys) if schema.primary_key else _encode(None)
        return ROWS, _encode((list(node.targets), msgspec.Raw(keys)))
    targets = pa.array(node.targets, pa.int64())
    if schema.primary_key:
        table = schema.key_table(node.keys).append_column("_target", targets)
    else:
        table = pa.table({"_target": targets})
    if node.successors is not None:
        table = table.append_column("_successor", pa.array(node.successors, pa.int64()))
        table = table.replace_schema_metadata({b"changed": _encode(node.changed)})
    return ARROW, _to_ipc(table)


def table_of(payload: bytes | memoryview) -> int:
    """The table a DML node payload speaks of."""
    return read_head(payload, AMOUNTS)[1]


def version_of(payload: bytes | memoryview) -> int:
    """The version of the schema that the rows of a DML node payload are in."""
    return read_head(payload, AMOUNTS)[4]


def read_head(payload: bytes | memoryview, known: int = 0) -> tuple[int, int, int, int, int]:
    """(form, table id, first RowID, count, schema version); CorruptionError for a flag that is not
    `known`."""
    if len(payload) < HEAD.size:
        raise CorruptionError("log", "a node is shorter than its head")
    version, form, flags, table_id, schema_version, first, many = _unpack_head(payload)
    if version != VERSION or flags & ~known:
        reason = f"node version {version}, flags {flags:#x}"
        raise CorruptionError("log", f"{reason}: not known to this program")
    return form, table_id, first, many, schema_version


def decode_node(
    kind: int, payload: bytes | memoryview, schema: Schema, *, amounts: bool = False
) -> RowNode:
    """The node that was encoded; CorruptionError when the bytes make no sense.

    `amounts`: may it be an update that holds amounts?
    """
    flags = AMOUNTS if amounts and kind == DML_U else 0
    form, table_id, first, many, version = read_head(payload, flags)
    if version != schema.version:
        raise CorruptionError("log", f"a node of table {table_id} is in another schema")
    body = memoryview(payload)[HEAD.size :]
    try:
        if form == ROWS:
            node = _decode_rows(kind, table_id, first, body, schema)
        elif form == ARROW:
            node = _decode_arrow(kind, table_id, first, body, schema)
        else:
            raise ValueError(f"form {form} is unknown")
        found = len(node.targets) if isinstance(node, Delete) else node.count
        if found != many:
            raise ValueError(f"it has {found} rows, not {many}")
        node.version = version
        if isinstance(node, Update):
            node.amounts = bool(payload[FLAGS_AT])
    except (OSError, TypeError, ValueError, KeyError, StructError, _Encoding, _Arrow) as error:
        raise CorruptionError(
            "log", f"a node of table {table_id} cannot be decoded: {error}"
        ) from error
    return node


def check_rows_of_each(info: Info, nodes: Sequence[RowNode], all_nodes: int) -> None:
    """CorruptionError unless a commit of several transactions has a row for each."""
    one = nodes[0] if len(nodes) == 1 == all_nodes else None
    if not isinstance(one, Append) or one.table is not None or len(one.rows) != info.commits:
        raise CorruptionError("log", f"commit {info.first_ts} has no row for each transaction")
    if info.token is not None:
        raise CorruptionError("log", f"commit {info.first_ts} has one token for {info.commits}")


def _decode_rows(kind: int, table_id: int, first: int, body: memoryview, schema: Schema) -> RowNode:
    if kind == DML_A:
        return Append(table_id, schema.decode_rows(body), first_rowid=first)
    if kind == DML_U:
        changed, targets, raw = _update.decode(body)
        rows = schema.decode_rows(raw)
        if len(rows) != len(targets):
            raise ValueError("targets and rows differ in number")
        return Update(table_id, targets, changed, rows, first_rowid=first)
    if kind == DML_D:
        targets, raw = _ints.decode(body)
        keys = schema.decode_keys(raw) if schema.primary_key else [None] * len(targets)
        if len(keys) != len(targets):
            raise ValueError("targets and keys differ in number")
        return Delete(table_id, targets, keys, first_rowid=first)
    raise ValueError(f"node type {kind} is not a DML node")


def _decode_arrow(
    kind: int, table_id: int, first: int, body: memoryview, schema: Schema
) -> RowNode:
    if bytes(body[-8:]) != _IPC_END:
        raise ValueError("the Arrow stream has been cut")
    check_own(body)
    options = _READ[len(body) >= _THREADS_BYTES_MIN]
    with pa.ipc.open_stream(pa.py_buffer(body), options=options) as reader:
        table = reader.read_all()
    # A bad offset in a batch from outside kills the process unless it is found here.
    table.validate(full=True)
    if kind == DML_A:
        rows = _conform(table, schema)
        return Append(table_id, table=rows, run=key_run(rows, schema), first_rowid=first)
    targets = _targets(table.column("_target"))
    if kind == DML_U:
        changed = msgspec.msgpack.decode(table.schema.metadata[b"changed"], type=tuple[int, ...])
        rows = _conform(table.drop_columns("_target"), schema)
        keys = schema.keys_of(rows) if schema.primary_key else [None] * len(targets)
        run = key_run(rows, schema)
        return Update(table_id, targets, changed, table=rows, keys=keys, run=run, first_rowid=first)
    if kind == DML_D:
        _check_fields(table, schema.key_fields)
        keys = schema.keys_of(table) if schema.primary_key else [None] * len(targets)
        node = Delete(table_id, targets, keys, first_rowid=first)
        return _with_successors(node, table) if "_successor" in table.column_names else node
    raise ValueError(f"node type {kind} is not a DML node")


def _with_successors(node: Delete, table: pa.Table) -> Delete:
    column = table.column("_successor")
    if column.type != pa.int64() or column.null_count:
        raise ValueError("successors are not RowIDs")
    node.successors = np.ascontiguousarray(column.to_numpy())
    node.changed = msgspec.msgpack.decode(table.schema.metadata[b"changed"], type=tuple[int, ...])
    return node


def _conform(table: pa.Table, schema: Schema) -> pa.Table:
    """The rows under the table's own schema; a cast would stumble over null structs."""
    if table.schema.names != schema.arrow.names:
        raise ValueError("the columns are not those of the table")
    _check_fields(table, schema.arrow)
    return pa.Table.from_arrays(table.columns, schema=schema.arrow)


def _check_fields(table: pa.Table, fields: Iterable[pa.Field]) -> None:
    """Types must be the table's, and what may not be null is not."""
    for field in fields:
        column = table.column(field.name)
        if column.type != field.type or (column.null_count and not field.nullable):
            raise ValueError(f"column {field.name!r} is not what the table has")


def _targets(column: pa.ChunkedArray) -> Int64Array:
    """RowIDs of a bulk node: whole numbers, ascending, each once."""
    if column.type != pa.int64() or column.null_count:
        raise ValueError("targets are not RowIDs")
    targets = np.ascontiguousarray(column.to_numpy())
    if (np.diff(targets) <= 0).any():
        raise ValueError("targets do not ascend")
    return targets


def key_run(table: pa.Table, schema: Schema) -> Run | None:
    """The table's keys, sorted, with offsets for RowIDs; None without a primary key."""
    if not schema.primary_key:
        return None
    return sort_run(schema.int_keys(table) if schema.int_key else schema.keys_of(table))


def _to_ipc(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    options = _WRITE[table.nbytes >= _THREADS_BYTES_MIN]
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data

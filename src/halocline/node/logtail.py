"""Logtail: commit records as messages that need no knowledge of the log's own format.

    ObjectTombstones  _commit_ts, location (null: every data object)   files that end
    Objects           _commit_ts, location, is_tombstone, moved,       files that begin to count
                      commit_ts_min, rowid_min, rowid_max, key_min, key_max
    RowTombstones     _commit_ts, _rowid, key columns                  rows that end
    Rows              _commit_ts, _rowid, the table's columns          rows that begin

Each message is one Arrow IPC stream. Its schema's metadata says which kind it is, the database, the
table's id and name, the commit's timestamp and the order of the log entry it comes from. Messages
of one record follow each other in the order above and take effect together. docs/formats/logtail.md
says how to apply them.

Not here: reading the log (log/follow.py), pushing its messages (push.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from halocline.errors import CorruptionError
from halocline.log.record import DML_A, DML_D, DML_U, Info, Record
from halocline.objects.shelf import FILES_PER_JOB, object_key
from halocline.rows.nodes import (
    Append,
    RowNode,
    Update,
    check_rows_of_each,
    decode_node,
    table_of,
    version_of,
)
from halocline.rows.reshape import KINDS as OBJECT_NODES
from halocline.rows.reshape import Reshape, decode_reshapes
from halocline.rows.state import TableState
from halocline.schema.ipc import check_stream

VERSION: Final = b"1"
MESSAGE_BYTES_MAX: Final = 1 << 30
"""Unpacked. Larger ones are never sent."""
StateOf = Callable[[int], TableState | None]
_OBJECTS: Final = pa.schema(
    [
        pa.field("_commit_ts", pa.int64(), nullable=False),
        pa.field("location", pa.string(), nullable=False),
        pa.field("is_tombstone", pa.bool_(), nullable=False),
        pa.field("moved", pa.bool_(), nullable=False),
        pa.field("schema_version", pa.int64(), nullable=False),
        pa.field("commit_ts_min", pa.int64(), nullable=False),
        pa.field("rowid_min", pa.int64(), nullable=False),
        pa.field("rowid_max", pa.int64(), nullable=False),
        pa.field("key_min", pa.binary(), nullable=False),
        pa.field("key_max", pa.binary(), nullable=False),
    ]
)
_ENDED: Final = pa.schema(
    [pa.field("_commit_ts", pa.int64(), nullable=False), pa.field("location", pa.string())]
)


def messages_of(record: Record, state_of: StateOf, database: str) -> list[tuple[int, list[bytes]]]:
    """(commit_ts, its messages) for each transaction of a record; a table that is not known any
    more has none."""
    info = record.info
    if info is None:
        return []
    nodes: list[tuple[TableState, RowNode]] = []
    for kind, payload in record.nodes:
        if kind in (DML_A, DML_D, DML_U):
            state = state_of(table_of(payload))
            if state is not None:
                state = state.at_version(version_of(payload))
                nodes.append((state, decode_node(kind, payload, state.schema)))
    if info.commits > 1:
        return _of_each(record, info, nodes, database)
    objects = decode_reshapes([node for node in record.nodes if node[0] in OBJECT_NODES])
    found = [one for state, node in nodes for one in _of_node(state, node, info.first_ts)]
    for reshape in objects:
        state = state_of(reshape.table_id)
        if state is not None:
            found += _of_objects(state, reshape, info.first_ts)
    return [(info.first_ts, _encode(found, database, record.order, info.first_ts))]


def _of_each(
    record: Record, info: Info, nodes: list[tuple[TableState, RowNode]], database: str
) -> list[tuple[int, list[bytes]]]:
    """The messages of transactions that inserted a row each."""
    stamps = range(info.first_ts, info.first_ts + info.commits)
    if not nodes:
        return [(ts, []) for ts in stamps]
    ((state, node),) = nodes
    check_rows_of_each(info, [node], len(record.nodes))
    assert isinstance(node, Append)
    found = []
    for place, ts in enumerate(stamps):
        rowid = node.first_rowid + place
        one = Append(node.table_id, rows=node.rows[place : place + 1], first_rowid=rowid)
        found.append((ts, _encode(_of_node(state, one, ts), database, record.order, ts)))
    return found


FoundMessages = list[tuple[int, str, pa.Table, TableState]]


def _of_node(state: TableState, node: RowNode, ts: int) -> FoundMessages:
    found: FoundMessages = []
    if isinstance(node, (Append, Update)):
        table = state.schema.to_table(node.rows) if node.table is None else node.table
        rowids = np.arange(node.first_rowid, node.first_rowid + node.count, dtype=np.int64)
        found.append((3, "Rows", _stamped(table, ts, rowids), state))
    if not isinstance(node, Append):
        found.append((2, "RowTombstones", _stamped(_keys(state, node), ts, node.targets), state))
    return found


def _keys(state: TableState, node: Any) -> pa.Table:
    """The keys of rows that end, as columns; a table without a key has none."""
    if state.key_of is None:
        return pa.table({"_": pa.nulls(len(node.targets))}).select([])
    keys = node.keys
    if isinstance(node, Update) and node.table is None:
        keys = [state.key_of(row) for row in node.rows]
    table: pa.Table = state.schema.key_table(keys)
    return table


def _stamped(table: pa.Table, ts: int, rowids: Sequence[int] | Any) -> pa.Table:
    ids = pa.array(rowids, pa.int64())
    stamps = pa.array(np.full(len(ids), ts, dtype=np.int64))
    columns = [stamps, ids, *table.columns]
    hidden = [pa.field(name, pa.int64(), nullable=False) for name in ("_commit_ts", "_rowid")]
    return pa.Table.from_arrays(columns, schema=pa.schema([*hidden, *table.schema]))


def _of_objects(state: TableState, reshape: Reshape, ts: int) -> FoundMessages:
    found: FoundMessages = []
    brought = [entry for entry in reshape.created if entry.kind != "index"]
    if brought:
        rows = [
            {
                "_commit_ts": ts,
                "location": entry.key,
                "is_tombstone": entry.kind == "tombstone",
                "moved": entry.moved,
                "schema_version": entry.stats.schema_version,
                "commit_ts_min": min(entry.commit_ts_min, ts),
                "rowid_min": entry.stats.rowid_min,
                "rowid_max": entry.stats.rowid_max,
                "key_min": entry.stats.key_min,
                "key_max": entry.stats.key_max,
            }
            for entry in brought
        ]
        found.append((1, "Objects", pa.Table.from_pylist(rows, schema=_OBJECTS), state))
    ended: list[str | None] = [
        object_key(state.table_id, *divmod(number, FILES_PER_JOB)) for number in reshape.ended
    ]
    if reshape.truncate:
        ended = [None]
    if ended:
        columns = [pa.array([ts] * len(ended), pa.int64()), pa.array(ended, pa.string())]
        found.append((0, "ObjectTombstones", pa.Table.from_arrays(columns, schema=_ENDED), state))
    return found


def _encode(found: FoundMessages, database: str, order: int, ts: int) -> list[bytes]:
    """The messages of one commit, in their order."""
    messages = []
    for _, kind, table, state in sorted(found, key=lambda one: one[0]):  # stable
        metadata = {
            b"version": VERSION,
            b"kind": kind.encode(),
            b"table_id": b"%d" % state.table_id,
            b"table": state.entry.name.encode(),
            b"database": database.encode(),
            b"order": b"%d" % order,
            b"commit_ts": b"%d" % ts,
        }
        if kind in ("Rows", "RowTombstones"):
            metadata[b"schema_version"] = b"%d" % state.schema.version
        table = table.replace_schema_metadata(metadata)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        messages.append(sink.getvalue().to_pybytes())
    return messages


def read_message(data: bytes) -> tuple[dict[str, str], pa.Table]:
    """(metadata, rows) of a message; CorruptionError when it is none."""
    try:
        check_stream(data, MESSAGE_BYTES_MAX)
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            table = reader.read_all()
        table.validate(full=True)
        found = table.schema.metadata or {}
        metadata = {key.decode(): value.decode() for key, value in found.items()}
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptionError("logtail", f"a message cannot be read: {error}") from error
    if metadata.get("version", "").encode() != VERSION:
        reason = f"messages of version {metadata.get('version')} are not known here"
        raise CorruptionError("logtail", reason)
    return metadata, table

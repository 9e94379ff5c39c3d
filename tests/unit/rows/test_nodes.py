"""Node payloads: exact both ways, and CorruptionError for bytes that were never written."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halocline.errors import CorruptionError
from halocline.log.record import DML_A, DML_D, DML_U
from halocline.rows.nodes import (
    ARROW,
    FIRST_ROWID_AT,
    HEAD,
    ROWS,
    VERSION,
    Append,
    Delete,
    RowNode,
    Update,
    decode_node,
    encode_node,
    key_run,
    table_of,
)
from halocline.schema.schema import Schema
from tests.unit.rows.rig import seeds, through_bytes
from tests.unit.schema.pools import few, maybe_null, same, types, values

COLUMNS = {"id": int, "s": str, "d": "decimal(20,2)", "l": "int[]", "t": "struct<a: string>"}
SCHEMA = Schema.define(COLUMNS, "id")
PAIR = Schema.define(COLUMNS, ["s", "id"])
BARE = Schema.define(COLUMNS)
SCHEMAS = {"single": SCHEMA, "pair": PAIR, "none": BARE}


def _rows(count: int) -> list[tuple[Any, ...]]:
    return [(n, f"x{n}", None, [n, None], {"a": "b" * n}) for n in range(count)]


def head(
    form: int = ROWS, count: int = 0, *, version: int = VERSION, flags: int = 0, schema: int = 0
) -> bytes:
    """The head of a node of table 7."""
    return HEAD.pack(version, form, flags, 7, schema, 5, count)


def nodes(schema: Schema, count: int = 12) -> list[RowNode]:
    """A node of every kind and form."""
    rows = _rows(count)
    table = schema.to_table(rows)
    run = key_run(table, schema)
    keys = schema.keys_of(table) if schema.primary_key else [None] * count
    targets = list(range(100, 100 + count))
    array = np.array(targets, dtype=np.int64)
    return [
        Append(7, rows, first_rowid=5),
        Append(7, table=table, run=run, first_rowid=5),
        Update(7, targets, (2, 3), rows, first_rowid=5),
        Update(7, array, (2, 3), table=table, keys=keys, run=run, first_rowid=5),
        Delete(7, targets, keys, first_rowid=0),
        Delete(7, array, keys, first_rowid=0),
        Delete(7, array, keys, successors=array * 2, changed=(2, 3)),
    ]


def _equal(left: RowNode, right: RowNode, schema: Schema) -> None:
    assert type(left) is type(right)
    assert (left.table_id, left.first_rowid, left.count) == (
        right.table_id,
        right.first_rowid,
        right.count,
    )
    if isinstance(left, Delete) and isinstance(right, Delete):
        assert list(left.keys) == list(right.keys)
        assert left.changed == right.changed
        assert (left.successors is None) == (right.successors is None)
        if left.successors is not None and right.successors is not None:
            assert left.successors.tolist() == right.successors.tolist()
    elif not isinstance(left, Delete) and not isinstance(right, Delete):
        assert list(left.rows) == list(right.rows)
        assert left.table == right.table
        assert (left.run is None) == (right.run is None)
        if left.run is not None and right.run is not None:
            assert list(left.run.keys) == list(right.run.keys)
            assert left.run.rowids.tolist() == right.run.rowids.tolist()
    if not isinstance(left, Append) and not isinstance(right, Append):
        assert np.asarray(left.targets).tolist() == np.asarray(right.targets).tolist()
        assert isinstance(left.targets, np.ndarray) == isinstance(right.targets, np.ndarray)
    if isinstance(left, Update) and isinstance(right, Update):
        assert left.changed == right.changed
        if left.table is not None:
            assert list(left.keys) == list(right.keys)


@pytest.mark.parametrize("kind", SCHEMAS)
@pytest.mark.parametrize("count", [1, 12])
def test_a_node_comes_back_as_it_went(kind: str, count: int) -> None:
    schema = SCHEMAS[kind]
    for node in nodes(schema, count):
        _equal(through_bytes(node, schema), node, schema)


@few(3)
@given(st.data())
def test_rows_of_any_type_come_back_in_both_forms(data: st.DataObject) -> None:
    type = data.draw(types())
    schema = Schema.define(pa.schema([("k", pa.int64()), ("c", type)]), "k")
    cells = data.draw(st.lists(maybe_null(values(type)), min_size=1, max_size=4))
    rows = list(enumerate(cells))
    table = schema.to_table(rows)
    plain = through_bytes(Append(1, rows), schema)
    bulk = through_bytes(Append(1, table=table, run=key_run(table, schema)), schema)
    assert isinstance(plain, Append)
    assert isinstance(bulk, Append)
    assert same(list(plain.rows), rows)
    assert bulk.table is not None
    assert same(schema.from_table(bulk.table), rows)
    assert bulk.table.schema == schema.arrow


def test_the_head_is_28_bytes_with_the_row_id_to_be_patched() -> None:
    for node in nodes(SCHEMA):
        kind, payload = encode_node(node, SCHEMA)
        version, form, flags, table_id, schema_version, first, count = HEAD.unpack_from(payload)
        assert HEAD.size == 28
        assert (version, table_id, first, FIRST_ROWID_AT) == (VERSION, 7, 0, 16)
        assert (flags, schema_version, count) == (0, 0, 12)
        assert form in (ROWS, ARROW)
        assert kind == {Append: DML_A, Update: DML_U, Delete: DML_D}[type(node)]
        assert table_of(payload) == table_of(memoryview(payload)) == 7


@pytest.mark.parametrize("kind", SCHEMAS)
def test_every_cut_is_an_error(kind: str) -> None:
    """At the borders of Arrow's messages too, where a stream may end without its end mark."""
    schema = SCHEMAS[kind]
    for node in nodes(schema):
        type_, payload = encode_node(node, schema)
        for end in range(len(payload)):
            with pytest.raises(CorruptionError):
                decode_node(type_, payload[:end], schema)


def test_rows_that_claim_to_be_huge_are_not_unpacked() -> None:
    table = pa.table({"id": pa.array([1], pa.int64()), "text": ["x" * (64 << 20)]})
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    payload = head(ARROW, 1) + sink.getvalue().to_pybytes()
    with pytest.raises(CorruptionError, match="once unpacked"):
        decode_node(DML_A, payload, SCHEMA)


@pytest.mark.parametrize("kind", SCHEMAS)
@pytest.mark.parametrize("seed", seeds(2, 3))
def test_mutated_bytes_give_a_corruption_error_or_a_node(kind: str, seed: int, sim: bool) -> None:
    """Checksums come first in the log; the decoder must not rely on them."""
    schema = SCHEMAS[kind]
    rng = random.Random(seed)
    for node in nodes(schema):
        right, payload = encode_node(node, schema)
        for _ in range(5000 if sim else 150):
            data = bytearray(payload)
            for _ in range(rng.choice([1, 1, 2, 8])):
                data[rng.randrange(len(data))] = rng.choice([0, 255, rng.randrange(256)])
            wanted = rng.choice([right, right, right, DML_A, DML_D, DML_U])
            try:
                found = decode_node(wanted, bytes(data), schema)
            except CorruptionError:
                continue
            _well_formed(found, schema)


def _well_formed(node: RowNode, schema: Schema) -> None:
    """What the fold relies on, whatever the bytes said."""
    if not isinstance(node, Delete):
        count = len(node.rows) if node.table is None else node.table.num_rows
        if node.table is not None:
            node.table.validate(full=True)
            assert node.table.schema == schema.arrow
            assert (node.run is None) == (not schema.primary_key)
        if isinstance(node, Update):
            assert len(node.targets) == count
    if not isinstance(node, Append):
        if isinstance(node.targets, np.ndarray):
            assert node.targets.dtype == np.int64
            assert (np.diff(node.targets) > 0).all()
            assert len(node.keys) == len(node.targets)
        else:
            assert all(type(target) is int for target in node.targets)


def _ipc(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return head(ARROW, table.num_rows) + sink.getvalue().to_pybytes()


TABLE = SCHEMA.to_table(_rows(3))
NULL = pa.array([None], pa.int64())
CHANGED = {b"changed": msgspec.msgpack.encode((2,))}


def _update(targets: Any, table: pa.Table = TABLE, metadata: Any = CHANGED) -> bytes:
    table = table.append_column("_target", targets)
    return _ipc(table.replace_schema_metadata(metadata))


HOSTILE: dict[str, tuple[int, bytes]] = {
    "empty": (DML_A, b""),
    "short head": (DML_A, head()[:-1]),
    "newer version": (DML_A, head(version=VERSION + 1) + b"\x90"),
    "flags": (DML_A, head(flags=1) + b"\x90"),
    "another schema": (DML_A, head(schema=1) + b"\x90"),
    "more rows than it says": (DML_A, head() + SCHEMA.encode_rows(_rows(1))),
    "fewer rows than it says": (DML_A, head(count=1) + b"\x90"),
    "unknown form": (DML_A, head(9) + b"\x90"),
    "unknown type": (99, head() + b"\x90"),
    "unknown type of arrow": (99, _ipc(TABLE)),
    "no body": (DML_A, head()),
    "rows are a map": (DML_A, head() + b"\x80"),
    "huge array": (DML_A, head() + b"\xdd\xff\xff\xff\xff"),
    "huge text": (DML_A, head() + b"\x91\x95\x01\xdb\xff\xff\xff\xff"),
    "deep nesting": (DML_A, head() + b"\x91" * 100_000),
    "trailing bytes": (DML_A, head() + b"\x90\x90"),
    "not arrow": (DML_A, head(ARROW) + b"hello world"),
    "other columns": (DML_A, _ipc(pa.table({"id": [1]}))),
    "other types": (DML_A, _ipc(TABLE.set_column(1, "s", pa.array([[1], [2], [3]])))),
    "null key": (DML_A, _ipc(TABLE.set_column(0, "id", pa.array([1, None, 3])))),
    "columns in another order": (DML_A, _ipc(TABLE.select(["s", "id", "d", "l", "t"]))),
    "update without metadata": (DML_U, _update(pa.array([1, 2, 3]), metadata=None)),
    "update without changed": (DML_U, _update(pa.array([1, 2, 3]), metadata={b"x": b"y"})),
    "changed is no list": (DML_U, _update(pa.array([1, 2, 3]), metadata={b"changed": b"\xc1"})),
    "update without target": (DML_U, _ipc(TABLE.replace_schema_metadata(CHANGED))),
    "targets are text": (DML_U, _update(pa.array(["1", "2", "3"]))),
    "targets are floats": (DML_U, _update(pa.array([1.0, 2.0, 3.0]))),
    "a target is null": (DML_U, _update(pa.array([1, None, 3]))),
    "targets fall": (DML_U, _update(pa.array([3, 2, 1]))),
    "a target twice": (DML_U, _update(pa.array([1, 1, 2]))),
    "delete without target": (DML_D, _ipc(pa.table({"id": [1, 2]}))),
    "delete without keys": (DML_D, _ipc(pa.table({"_target": [1, 2]}))),
    "delete by text": (DML_D, _ipc(pa.table({"id": [1], "_target": ["x"]}))),
    "delete of nulls": (
        DML_D,
        _ipc(pa.table({"id": pa.array([None], pa.int64()), "_target": [1]})),
    ),
    "delete of other keys": (DML_D, _ipc(pa.table({"id": ["a"], "_target": [1]}))),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bytes_are_corruption(name: str) -> None:
    kind, payload = HOSTILE[name]
    for data in (payload, memoryview(payload)):
        with pytest.raises(CorruptionError):
            decode_node(kind, data, SCHEMA)


def test_targets_rows_and_keys_must_agree_in_number() -> None:
    rows = msgspec.Raw(SCHEMA.encode_rows(_rows(2)))
    keys = msgspec.Raw(SCHEMA.encode_keys([1, 2]))
    encode = msgspec.msgpack.encode
    for kind, body in (
        (DML_U, encode(((2,), (1,), rows))),
        (DML_U, encode(((2,), (1, 2, 3), rows))),
        (DML_D, encode(((1,), keys))),
        (DML_D, encode(((1, 2, 3), keys))),
        (DML_D, encode((("1", "2"), keys))),
        (DML_D, encode(((1, 2), None))),
    ):
        with pytest.raises(CorruptionError):
            decode_node(kind, head(count=2) + body, SCHEMA)


def test_a_value_that_does_not_fit_its_column_is_corruption() -> None:
    for row in (
        (1, "s", "1.5", None, None),
        (1, "s", "1E+999999999", None, None),
        (1, "s", "NaN", None, None),
        (1, 2, None, None, None),
        (None, "s", None, None, None),
        (2**63, "s", None, None, None),
        (1, "s", None, [2**31], None),
        (1, "s", None, None, {"b": "x"}),
        (1, "s"),
        (1, "s", None, None, None, None),
    ):
        with pytest.raises(CorruptionError):
            decode_node(DML_A, head(count=1) + msgspec.msgpack.encode([row]), SCHEMA)
    bad_text = b"\x91\x95\x01\xa2\xff\xfe\xc0\xc0\xc0"
    with pytest.raises(CorruptionError):
        decode_node(DML_A, head(count=1) + bad_text, SCHEMA)

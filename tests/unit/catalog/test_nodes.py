"""DDL nodes: what is written is read back, and nothing else is accepted."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halocline.catalog import Catalog
from halocline.catalog.nodes import (
    CreateIndexNode,
    CreateTableNode,
    DdlNode,
    DropIndexNode,
    DropTableNode,
    decode,
    encode,
    plain,
)
from halocline.errors import CorruptionError, UsageError
from halocline.log.record import BODY_VERSION, DDL_CD, DDL_CI, DDL_CT, DDL_DD, DDL_DI, DDL_DT, DML_A
from tests.unit.catalog.driver import SCHEMA, Driver, make

NODES: list[tuple[int, DdlNode]] = [
    (
        DDL_CT,
        CreateTableNode(
            table_id=7,
            name="Orders",
            schema=SCHEMA.to_wire(),
            layout="heap",
            options={"codec": {"note": "lz4"}},
            next_column_id=3,
        ),
    ),
    (DDL_DT, DropTableNode(table_id=7, name="Orders")),
    (
        DDL_CI,
        CreateIndexNode(
            table_id=7, name="Orders", index_id=8, index_type=1, columns=[2, 1], desc="By day"
        ),
    ),
    (DDL_DI, DropIndexNode(table_id=7, name="Orders", index_id=8)),
]
each_node = pytest.mark.parametrize(
    ("node_type", "node"), NODES, ids=[type(node).__name__ for _, node in NODES]
)


def as_map(node: DdlNode) -> dict[str, Any]:
    return msgspec.structs.asdict(node)


def pack(fields: Any) -> bytes:
    return BODY_VERSION + msgspec.msgpack.encode(fields)


@each_node
def test_w11_every_ddl_node_is_read_back_as_it_was_written(node_type: int, node: DdlNode) -> None:
    number, payload = encode(node)
    assert number == node_type
    for form in (payload, bytearray(payload), memoryview(payload)):
        assert decode(node_type, form) == node


@each_node
def test_t17_a_node_starts_with_its_version_and_unknown_ones_are_refused(
    node_type: int, node: DdlNode
) -> None:
    _, payload = encode(node)
    assert payload[:1] == BODY_VERSION == b"\x01"
    for version in (0, 2, 255):
        with pytest.raises(CorruptionError, match=f"version {version} is unknown"):
            decode(node_type, bytes([version]) + payload[1:])


@each_node
def test_cut_and_lengthened_payloads_are_corrupt(node_type: int, node: DdlNode) -> None:
    _, payload = encode(node)
    for end in range(len(payload)):
        with pytest.raises(CorruptionError):
            decode(node_type, payload[:end])
    with pytest.raises(CorruptionError):
        decode(node_type, payload + b"\x00")


@each_node
def test_missing_and_unknown_fields_are_corrupt(node_type: int, node: DdlNode) -> None:
    fields = as_map(node)
    with pytest.raises(CorruptionError):
        decode(node_type, pack({**fields, "extra": 1}))
    for gone in fields:
        with pytest.raises(CorruptionError):
            decode(node_type, pack({key: fields[key] for key in fields if key != gone}))


@each_node
def test_ids_out_of_range_are_corrupt(node_type: int, node: DdlNode) -> None:
    fields = as_map(node)
    for field in [name for name in fields if name.endswith("_id")]:
        for bad in (0, -1, 1 << 63, "1", 1.5, None):
            with pytest.raises(CorruptionError):
                decode(node_type, pack({**fields, field: bad}))


@pytest.mark.parametrize("name", ["", "_hidden", "a\x00b", "line\nbreak", "x" * 256, "é" * 128])
def test_names_that_could_not_have_been_created_are_corrupt(name: str) -> None:
    for number in (DDL_CT, DDL_DT):
        fields = as_map(dict(NODES)[number])
        with pytest.raises(CorruptionError):
            decode(number, pack({**fields, "name": name}))


@pytest.mark.parametrize(
    "tail",
    [
        b"\xdd\xff\xff\xff\xff",  # an array that claims 2**32 - 1 members
        b"\xdf\xff\xff\xff\xff",  # a map that does
        b"\xdb\xff\xff\xff\xff",  # a string of 4 GiB
        b"\xa2\xff\xfe",  # a string that is not UTF-8
        b"\x91" * 100_000,  # nesting without end
        b"\x81\x91\x01\x01",  # a map whose key is an array
    ],
    ids=["array", "map", "string", "utf-8", "nesting", "key"],
)
def test_hostile_values_are_corrupt(tail: bytes) -> None:
    payload = b"\x01\x81\xa7options\x81\xa1k" + tail
    with pytest.raises(CorruptionError):
        decode(DDL_CT, payload)


def test_a_node_type_that_is_not_about_tables_is_corrupt() -> None:
    for node_type in (DML_A, DDL_CD, DDL_DD, 0, 255):
        with pytest.raises(CorruptionError, match="not a node about a table"):
            decode(node_type, b"\x01\x80")


@given(st.sampled_from([number for number, _ in NODES]), st.binary(max_size=200))
def test_random_bytes_are_corrupt_and_nothing_worse(node_type: int, noise: bytes) -> None:
    for payload in (noise, b"\x01" + noise):
        with pytest.raises(CorruptionError):
            decode(node_type, payload)


@given(st.sampled_from(NODES), st.data())
def test_a_changed_byte_is_corrupt_or_another_valid_node(
    numbered: tuple[int, DdlNode], data: st.DataObject
) -> None:
    node_type, payload = numbered[0], bytearray(encode(numbered[1])[1])
    position = data.draw(st.integers(0, len(payload) - 1))
    payload[position] ^= data.draw(st.integers(1, 255))
    catalog = Catalog()
    # The log's own checksum catches the flip; what gets past it must not do harm here.
    try:
        again = encode(decode(node_type, payload))
        assert decode(*again) == decode(node_type, payload)
        if node_type == DDL_CT:
            catalog.apply(node_type, payload, 1)
    except CorruptionError:
        assert catalog.tables(1) == []


def test_options_are_kept_as_replay_will_read_them() -> None:
    given = {"sort": ("a", "b"), "codec": {"a": "lz4"}}
    kept = plain(given)
    assert kept == {"sort": ["a", "b"], "codec": {"a": "lz4"}}
    given["codec"]["a"] = "zstd"  # type: ignore[index]
    assert kept["codec"] == {"a": "lz4"}, "the caller's dict is not ours"


@pytest.mark.parametrize("options", [{"x": object()}, {1: "x"}, {"x": 1 << 70}, {"x": "\ud800"}])
def test_options_that_cannot_be_stored_are_a_usage_error(options: Any) -> None:
    driver = Driver()
    sub = driver.begin()
    with pytest.raises(UsageError):
        sub.create_table("m", SCHEMA, layout="clustered", options=options)
    assert sub.tables() == []
    assert sub.nodes() == []


def test_a_definition_that_replay_would_refuse_is_refused_at_once() -> None:
    sub = Driver().begin()
    with pytest.raises(UsageError, match="cannot be stored"):
        sub.create_table("m", SCHEMA, layout=5, options={})  # type: ignore[arg-type]
    assert sub.table("m") is None
    make(sub, "m")

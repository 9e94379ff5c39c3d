"""Payloads: their layout, what comes back, and what hostile bytes do to their decoder."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halocline.errors import CorruptionError, UsageError
from halocline.log import record
from halocline.log.format import AC, CKP, PC, RB, UC, Entry
from halocline.log.record import (
    EPOCH,
    INFO,
    META,
    STAMP_AT,
    Info,
    add_node,
    add_serials,
    decode_payload,
    decode_record,
    encode_commit,
    encode_system_payload,
    stamp,
)

NODES = st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=40)), max_size=6)
TOKENS = st.one_of(
    st.none(),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=300),
    st.tuples(st.sampled_from(["app", "é"]), st.integers(0, 2**63 - 1)),
)
U64, U32 = st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)


def test_w10_meta_layout() -> None:
    data = encode_system_payload(0x0102030405060708, [])
    assert data == struct.pack("<QH", 0x0102030405060708, 0) + struct.pack("<I", 0)


def test_w10_the_info_of_a_commit_has_a_fixed_head() -> None:
    data = encode_commit(9, 3, [(1, b"n")], count=2)
    stamp(data, STAMP_AT, 70, 80)
    assert data == (
        struct.pack("<QH", 9, 25)
        + struct.pack("<QQIIB", 70, 80, 3, 2, 0)
        + struct.pack("<I", 1)
        + struct.pack("<BI", 1, 1)
        + b"n"
    )


def test_w10_a_token_follows_the_fixed_head() -> None:
    data = encode_commit(9, 3, [], token=("app", 7))
    assert data[8:10] == struct.pack("<H", 25 + 6)
    assert data[34:-4] == b"\x01" + b"\x92\xa3app\x07"


def test_w11_node_types_have_the_documented_values() -> None:
    names = (
        "DML_A DML_D DML_U DDL_CT DDL_DT DDL_CD DDL_DD DDL_CI DDL_DI "
        "OBJ_C OBJ_D PAGE_M JOB FLOOR EPOCH SNAPSHOT"
    )
    assert [getattr(record, name) for name in names.split()] == list(range(1, 17))


def test_w12_node_layout() -> None:
    data = encode_system_payload(1, [(3, b"abc")])
    assert data[14:] == b"\x03" + struct.pack("<I", 3) + b"abc"


@given(U64, U64, U64, U32, st.integers(1, 2**32 - 1), TOKENS, NODES)
def test_w12_payloads_come_back(
    txn_id: int, ts: int, wall_us: int, epoch: int, count: int, token: Any, nodes: Any
) -> None:
    data = encode_commit(txn_id, epoch, nodes[:2], count=count, token=token)
    stamp(data, STAMP_AT, ts, wall_us)
    for node in nodes[2:]:
        add_node(data, *node)
    info = Info(ts, wall_us, epoch, count, token)
    assert decode_payload(bytes(data)) == (txn_id, info, nodes)
    data = encode_system_payload(txn_id, nodes)
    assert decode_payload(bytes(data)) == (txn_id, None, nodes)


def test_w09_nodes_keep_the_order_in_which_they_were_given() -> None:
    nodes = [(1, b"E6-1"), (3, b"E6-2"), (1, b"E6-3")]
    found = decode_record(Entry(1, 1, AC, 1, bytes(encode_commit(6, 1, nodes)), 1))
    assert found.nodes == nodes


COMMIT = bytes(encode_commit(1, 1, [(1, b"abc"), (2, b"defg")], token="once"))


def test_every_shorter_or_longer_payload_is_corruption() -> None:
    for data in (COMMIT, bytes(encode_system_payload(1, [(EPOCH, b"abc")]))):
        for size in range(len(data)):
            with pytest.raises(CorruptionError):
                decode_payload(data[:size])
        with pytest.raises(CorruptionError):
            decode_payload(data + b"\0")


@pytest.mark.parametrize("count", [3, 1 << 16, 0xFFFFFFFF])
def test_a_count_beyond_the_bytes_is_corruption_at_once(count: int) -> None:
    data = bytes(encode_system_payload(1, [(1, b"abc"), (2, b"d")]))
    with pytest.raises(CorruptionError):
        decode_payload(data[:10] + struct.pack("<I", count) + data[14:])


def test_more_nodes_than_are_allowed_are_not_looked_at() -> None:
    data = bytes(encode_system_payload(1, [(1, b"abc")] * 3))
    assert len(decode_payload(data, nodes_max=3)[2]) == 3
    with pytest.raises(UsageError, match="at most 2 parts"):
        decode_payload(data, nodes_max=2)


def test_a_node_length_beyond_the_bytes_is_corruption() -> None:
    data = encode_system_payload(1, [(1, b"abc")])
    struct.pack_into("<I", data, 15, 0xFFFFFFF0)
    with pytest.raises(CorruptionError):
        decode_payload(bytes(data))


def _with_info(info: bytes) -> bytes:
    return struct.pack("<QH", 1, len(info)) + info + struct.pack("<I", 0)


@pytest.mark.parametrize(
    "info",
    [
        b"info",
        INFO.pack(1, 1, 1, 0, 0),
        INFO.pack(1, 1, 1, 1, 0)[:-1],
        INFO.pack(1, 1, 1, 1, 0) + b"\xa1t",
        INFO.pack(1, 1, 1, 1, 1),
        INFO.pack(1, 1, 1, 1, 1) + b"\x05",
        INFO.pack(1, 1, 1, 1, 1) + b"\x91\xa1a",
        INFO.pack(1, 1, 1, 1, 1) + b"\x92\xa1a\xa1b",
        INFO.pack(1, 1, 1, 1, 1) + b"\xa2\xff\xfe",
        INFO.pack(1, 1, 1, 1, 1) + b"\xa1t\xa1t",
    ],
    ids=repr,
)
def test_info_that_makes_no_sense_is_corruption(info: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode_payload(_with_info(info))


@pytest.mark.parametrize("flags", [4, 5, 128])
def test_a_flag_that_is_not_known_is_refused(flags: int) -> None:
    with pytest.raises(CorruptionError, match="newer than this program"):
        decode_payload(_with_info(INFO.pack(1, 1, 1, 1, flags) + b"\xa1t"))


def test_hostile_bytes_are_decoded_or_corruption_never_anything_else() -> None:
    draw = random.Random(5)
    outcomes = {"decoded": 0, "corrupt": 0}
    for _ in range(20_000):
        data = bytearray(COMMIT if draw.random() < 0.8 else draw.randbytes(draw.randrange(60)))
        for _ in range(draw.randrange(1, 4)):
            if data:
                data[draw.randrange(len(data))] = draw.choice((0, 1, 127, 128, 255))
        try:
            _, _, nodes = decode_payload(bytes(data))
        except CorruptionError:
            outcomes["corrupt"] += 1
        else:
            outcomes["decoded"] += 1
            assert sum(len(body) for _, body in nodes) <= len(data)
    assert min(outcomes.values()) > 1000


SYSTEM = bytes(encode_system_payload(0, [(EPOCH, b"e")]))


@pytest.mark.parametrize(
    ("group", "type", "payload"),
    [
        *((1, kind, COMMIT) for kind in (UC, PC, RB, CKP, 0x14, 0)),
        *((2, kind, COMMIT) for kind in (AC, UC, PC)),
        *((3, kind, SYSTEM) for kind in (UC, PC, RB, 0x14)),
        (1, AC, SYSTEM),
        (3, AC, COMMIT),
        (3, CKP, COMMIT),
    ],
)
def test_w06_entries_that_nothing_writes_are_refused(group: int, type: int, payload: bytes) -> None:
    """Parts of transactions among them: they are never taken for whole ones."""
    with pytest.raises(CorruptionError, match=rf"entry 7 has type {type:#x} in group {group}"):
        decode_record(Entry(group, 1, type, 7, payload, 1))


def test_system_nodes_come_with_their_type() -> None:
    for type in (AC, CKP):
        found = decode_record(Entry(3, 1, type, 1, SYSTEM, 1))
        assert (found.group, found.type, found.order, found.info) == (3, type, 1, None)
        assert found.nodes == [(EPOCH, b"e")]


def test_serials_stand_behind_the_nodes() -> None:
    data = encode_commit(9, 3, [(1, b"nodes")], count=2)
    plain = bytes(data)
    add_serials(data, [(5, 1), (0, 0)])
    _, info, nodes = decode_payload(bytes(data))
    assert info is not None
    assert (info.serials, info.commits, nodes) == (((5, 1), (0, 0)), 2, [(1, b"nodes")])
    for damaged in (data[:-1], data + b"x", data[:-16], plain + bytes(32)):
        with pytest.raises(CorruptionError):
            decode_payload(bytes(damaged))
    INFO.pack_into(data, META.size, 1, 1, 3, 1 << 31, 2)
    with pytest.raises(CorruptionError):
        decode_payload(bytes(data))

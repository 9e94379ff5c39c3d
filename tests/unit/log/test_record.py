"""Payloads: W-10 to W-12, and what hostile bytes do to their decoder."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halocline.errors import CorruptionError, UsageError
from halocline.log import AC, NO_PREVIOUS, PC, RB, UC, decode_payload, encode_payload, record

NODES = st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=40)), max_size=6)


def test_w10_meta_layout() -> None:
    data = encode_payload(0x0102030405060708, b"info", [])
    assert data == struct.pack("<QH", 0x0102030405060708, 4) + b"info" + struct.pack("<I", 0)


@pytest.mark.parametrize("type", [UC, PC, RB])
def test_w10_prevptr_is_12_bytes_and_only_in_uc_pc_rb(type: int) -> None:
    plain = encode_payload(1, b"i", [(1, b"n")])
    linked = encode_payload(1, b"i", [(1, b"n")], prev=(2, 9))
    assert len(linked) == len(plain) + 12
    assert linked[11:23] == struct.pack("<IQ", 2, 9)
    assert decode_payload(bytes(linked), type=type).previous == (2, 9)
    assert decode_payload(bytes(plain), type=AC).previous is None


def test_w10_a_first_part_points_nowhere() -> None:
    data = encode_payload(1, b"", [], prev=NO_PREVIOUS)
    assert decode_payload(bytes(data), type=UC).previous is None


def test_w11_node_types_have_the_documented_values() -> None:
    names = (
        "DML_A DML_D DML_U DDL_CT DDL_DT DDL_CD DDL_DD DDL_CI DDL_DI "
        "OBJ_C OBJ_D PAGE_M JOB FLOOR EPOCH SNAPSHOT"
    )
    assert [getattr(record, name) for name in names.split()] == list(range(1, 17))


def test_w12_node_layout() -> None:
    data = encode_payload(1, b"", [(3, b"abc")])
    assert data[14:] == b"\x03" + struct.pack("<I", 3) + b"abc"


@given(st.integers(0, 2**64 - 1), st.binary(max_size=50), NODES)
def test_w12_payloads_come_back(txn_id: int, info: bytes, nodes: list[tuple[int, bytes]]) -> None:
    data = bytes(encode_payload(txn_id, info, nodes))
    assert decode_payload(data, type=AC) == (txn_id, info, None, nodes)
    data = bytes(encode_payload(txn_id, info, nodes, prev=(2, 3)))
    assert decode_payload(data, type=PC) == (txn_id, info, (2, 3), nodes)


def test_the_encoded_payload_can_be_patched_in_place() -> None:
    data = encode_payload(1, b"ABCD", [])
    data[10:14] = b"WXYZ"
    assert decode_payload(bytes(data), type=AC).info == b"WXYZ"


def test_info_that_is_too_long_is_refused() -> None:
    with pytest.raises(UsageError):
        encode_payload(1, bytes(0x10000), [])


def test_every_shorter_or_longer_payload_is_corruption() -> None:
    data = bytes(encode_payload(1, b"info", [(1, b"abc"), (2, b"defg")], prev=(2, 1)))
    for size in range(len(data)):
        with pytest.raises(CorruptionError):
            decode_payload(data[:size], type=PC)
    with pytest.raises(CorruptionError):
        decode_payload(data + b"\0", type=PC)


@pytest.mark.parametrize("count", [3, 1 << 16, 0xFFFFFFFF])
def test_a_count_beyond_the_bytes_is_corruption_at_once(count: int) -> None:
    data = bytes(encode_payload(1, b"", [(1, b"abc"), (2, b"d")]))
    with pytest.raises(CorruptionError):
        decode_payload(data[:10] + struct.pack("<I", count) + data[14:], type=AC)


def test_a_node_length_beyond_the_bytes_is_corruption() -> None:
    data = bytearray(encode_payload(1, b"", [(1, b"abc")]))
    struct.pack_into("<I", data, 15, 0xFFFFFFF0)
    with pytest.raises(CorruptionError):
        decode_payload(bytes(data), type=AC)


def test_hostile_bytes_are_decoded_or_corruption_never_anything_else() -> None:
    draw = random.Random(5)
    valid = bytes(encode_payload(9, b"info", [(1, b"abc"), (2, b"x" * 20)], prev=(2, 1)))
    outcomes = {"decoded": 0, "corrupt": 0}
    for _ in range(20_000):
        data = bytearray(valid if draw.random() < 0.8 else draw.randbytes(draw.randrange(60)))
        for _ in range(draw.randrange(1, 4)):
            if data:
                data[draw.randrange(len(data))] = draw.choice((0, 1, 127, 128, 255))
        try:
            found = decode_payload(bytes(data), type=draw.choice((AC, UC, PC, RB, 0x40, 0)))
        except CorruptionError:
            outcomes["corrupt"] += 1
        else:
            outcomes["decoded"] += 1
            assert sum(len(body) for _, body in found.nodes) <= len(data)
    assert min(outcomes.values()) > 1000

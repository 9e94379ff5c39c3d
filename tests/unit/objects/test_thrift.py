"""Thrift's compact protocol: what is written is read back, and nonsense is refused quickly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halocline.objects.thrift import (
    BINARY,
    DOUBLE,
    I32,
    I64,
    LIST,
    STRUCT,
    TRUE,
    ThriftError,
    blob,
    items,
    number,
    read_struct,
    struct,
)


@given(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=200), st.lists(st.integers(0, 9)))
def test_structs_come_back(value: int, data: bytes, numbers: list[int]) -> None:
    inner = struct([(3, I32, number(-1))])
    encoded = struct(
        [
            (1, I64, number(value)),
            (2, BINARY, blob(data)),
            (9, LIST, items(I32, [number(n) for n in numbers])),
            (10, STRUCT, inner),
            (11, TRUE, b""),
            (12, DOUBLE, bytes(8)),
            (13, LIST, items(TRUE, [b"\1", b"\2"])),
        ]
    )
    record = read_struct(b"??" + encoded + b"!!", 2)
    assert record == {
        1: value,
        2: data,
        9: numbers,
        10: {3: -1},
        11: True,
        12: 0.0,
        13: [True, False],
    }
    assert (record.start, record.end) == (2, 2 + len(encoded))


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        read_struct(data)
    except ThriftError:
        pass


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x16",
        b"\x16" + b"\xff" * 20,  # An integer without end.
        b"\x18\xff\xff\xff\xff\x0f",  # A string of 4 GiB.
        b"\x19\xf5\xff\xff\xff\xff\x0f",  # A list of four thousand million.
        b"\x1c" * 100,  # Structs in structs.
        b"\x19\x19" * 100,  # Lists in lists.
        b"\x1f",
        b"\x17\0\0",
    ],
)
def test_what_is_no_thrift_is_refused(data: bytes) -> None:
    with pytest.raises(ThriftError):
        read_struct(data)

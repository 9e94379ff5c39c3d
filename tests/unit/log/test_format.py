"""Bytes of files and entries: sizes, places, marks, masks, versions."""

from __future__ import annotations

import struct
from dataclasses import replace
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halocline.errors import CorruptionError, UsageError
from halocline.log.format import (
    AC,
    CKP,
    FRAME_BYTES,
    HEADER,
    HEADER_BYTES,
    MARK,
    MASKED,
    PC,
    RB,
    SECTOR,
    UC,
    ZERO_RUN,
    FileHeader,
    align,
    decode_file_header,
    file_seed,
    mask,
)
from halocline.log.frame import frame
from halocline.log.scan import Cursor, read_entries
from tests.store.faulty import FaultyFiles
from tests.unit.log.rig import ROOMY, commit, image, payload, places, recovered, start

FILE = FileHeader(
    uuid=bytes(range(16)),
    number=3,
    epoch=2,
    size=4096,
    first_order=17,
    previous_crc=0xDEADBEEF,
    previous_end=900,
    lsns=(11, 4, 1),
)


W04 = struct.Struct("<IQIB")
"""Group, LSN, length, type: what the source documents call the header of an entry."""


def _cursor(offset: int = SECTOR) -> Cursor:
    return Cursor(number=1, epoch=1, offset=offset, order=1, crc=0)


def test_w04_entry_header_is_17_bytes() -> None:
    entry, _ = frame(_cursor(), file_seed(1), 0, 1, AC, b"payload")
    assert W04.size == 17
    assert struct.unpack_from("<IQIB", entry) == (1, 1, 7, AC)


def test_w04_length_counts_the_payload_only() -> None:
    entry, _ = frame(_cursor(), file_seed(1), 0, 1, AC, b"x" * 1000)
    assert W04.unpack_from(entry)[2] == 1000
    assert len(entry) == 38 + 1000 + 5
    assert (HEADER_BYTES, FRAME_BYTES) == (38, 43)


def test_w05_types_have_the_documented_values() -> None:
    assert (AC, PC, UC, RB, CKP) == (0x10, 0x11, 0x12, 0x13, 0x40)


def test_header_holds_order_synced_crc_over_the_file_number_and_the_mark() -> None:
    at = Cursor(number=9, epoch=1, offset=SECTOR, order=55, crc=0)
    entry, _ = frame(at, file_seed(9), 50, 3, CKP, b"abc")
    order, synced, crc, mark = struct.unpack_from("<QQIB", entry, 17)
    assert (order, synced, mark) == (55, 50, MARK)
    assert crc == crc32(struct.pack("<I", 9) + entry[:33])


def test_trailer_continues_the_crc_of_the_entry_before() -> None:
    at = _cursor()
    at.crc = 0x01020304
    entry, crc = frame(at, file_seed(1), 0, 1, AC, b"abc")
    assert struct.unpack("<IB", entry[-5:]) == (crc, MARK)
    assert crc == crc32(struct.pack("<I", 0x01020304) + entry[:-5])


@given(st.integers(0, 100_000))
def test_a_header_never_straddles_a_sector(offset: int) -> None:
    start_at = align(offset)
    assert start_at // SECTOR == (start_at + HEADER_BYTES - 1) // SECTOR
    assert 0 <= start_at - offset < HEADER_BYTES
    entry, _ = frame(_cursor(offset), file_seed(1), 0, 1, AC, b"abc")
    pad = start_at - offset
    assert not any(entry[:pad])
    assert entry[pad + HEADER_BYTES - 1] == MARK


def test_entries_on_disk_keep_their_headers_inside_sectors() -> None:
    files = FaultyFiles()
    log, _ = start(files, ROOMY)
    for number in range(120):
        commit(log, payload(number, 20 + number * 7 % 300))
    log.close()
    data = image(files, 1)
    for begin, _ in places(data, 120):
        assert begin % SECTOR <= SECTOR - HEADER_BYTES
    assert [entry.order for entry in recovered(files).entries()] == list(range(1, 121))


@given(st.binary(max_size=6000), st.integers(1, 2**64 - 1))
def test_mask_twice_gives_the_payload_back(data: bytes, order: int) -> None:
    assert mask(mask(data, order), order) == data


@pytest.mark.parametrize("size", [256, 257, 511, 512, 4095, 4096, 4097, 100_000])
def test_a_zero_run_of_256_is_masked_and_comes_back(size: int) -> None:
    data = b"head" + bytes(size) + b"tail"
    entry, _ = frame(_cursor(), file_seed(1), 0, 1, AC, data)
    assert W04.unpack_from(entry)[3] == AC | MASKED
    assert ZERO_RUN not in entry
    found = list(read_entries(bytes(SECTOR) + entry, 0, SECTOR + len(entry), _cursor()))
    assert [(one.type, one.payload) for one in found] == [(AC, data)]


def test_shorter_zero_runs_are_left_alone() -> None:
    data = b"x" + bytes(255) + b"y" + bytes(255)
    entry, _ = frame(_cursor(), file_seed(1), 0, 1, AC, data)
    assert W04.unpack_from(entry)[3] == AC
    assert data in entry


def test_no_share_of_a_written_entry_is_all_zero() -> None:
    files = FaultyFiles()
    log, _ = start(files, ROOMY)
    contents = [bytes(3000), b"\x01" + bytes(700), bytes(255) + b"\x07" + bytes(255), b""]
    for content in contents * 3:
        commit(log, content)
    log.close()
    data = image(files, 1)
    for begin, end in places(data, 12):
        for at in range(begin - begin % SECTOR, end, SECTOR):
            assert any(data[max(begin, at) : min(end, at + SECTOR)])
    assert [entry.payload for entry in recovered(files).entries()] == contents * 3


@pytest.mark.parametrize(
    ("group", "type"), [(0, AC), (4, AC), (-1, AC), (1, -1), (1, 0x80), (1, 0x90)]
)
def test_groups_and_types_that_cannot_be_written_are_refused(group: int, type: int) -> None:
    with pytest.raises(UsageError):
        frame(_cursor(), file_seed(1), 0, group, type, b"")


def test_file_header_is_one_sector_and_comes_back() -> None:
    data = FILE.encode()
    assert len(data) == SECTOR
    assert data[-1] == MARK
    assert decode_file_header(data, "f") == FILE
    assert data[:8] == b"HALO-LOG"


def test_a_header_that_never_arrived_is_none_in_every_torn_form() -> None:
    data = FILE.encode()
    for length in range(SECTOR):
        assert decode_file_header(data[:length].ljust(SECTOR, b"\0"), "f") is None


def test_every_flipped_bit_of_a_file_header_is_corruption() -> None:
    data = FILE.encode()
    for bit in range(SECTOR * 8):
        damaged = bytearray(data)
        damaged[bit >> 3] ^= 1 << (bit & 7)
        with pytest.raises(CorruptionError):
            decode_file_header(bytes(damaged), "f")


@pytest.mark.parametrize("version", [1, 2, 77])
def test_another_version_is_refused_by_its_number(version: int) -> None:
    body = bytearray(FILE.encode()[: SECTOR - 5])
    struct.pack_into("<I", body, 8, version)
    data = bytes(body) + struct.pack("<IB", crc32(body), MARK)
    with pytest.raises(UsageError, match=f"version {version}; this release reads 3"):
        decode_file_header(data, "log/00000003.log")


def test_bytes_of_another_file_are_not_headers_of_this_one() -> None:
    entry, _ = frame(_cursor(), file_seed(1), 0, 1, AC, b"abc")
    assert HEADER.unpack_from(entry)[6] != crc32(entry[:33], file_seed(2))


def test_file_headers_differ_in_every_field() -> None:
    changed = [
        replace(FILE, number=4),
        replace(FILE, epoch=3),
        replace(FILE, size=8192),
        replace(FILE, first_order=18),
        replace(FILE, previous_crc=1),
        replace(FILE, previous_end=901),
        replace(FILE, lsns=(11, 4, 2)),
    ]
    assert len({one.encode() for one in [FILE, *changed]}) == len(changed) + 1
    for one in changed:
        assert decode_file_header(one.encode(), "f") == one

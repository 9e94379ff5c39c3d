"""The example in docs/formats/log.md: decoded by the log, and written by it byte for byte."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from zlib import crc32

from halocline.log import Log
from halocline.log.format import AC
from halocline.log.names import path_of
from halocline.log.record import (
    DML_A,
    FLOOR,
    STAMP_AT,
    Info,
    decode_record,
    encode_commit,
    encode_system_payload,
    stamp,
)
from halocline.log.recover import read_log
from halocline.rows.nodes import Append, decode_node, encode_node
from halocline.schema.schema import Schema
from halocline.txn.record import ROWID_IN_NODE
from tests.clock import ManualClock
from tests.store.faulty import FaultyFiles
from tests.unit.log.rig import TINY, image, recovered

DOCUMENT = Path(__file__).parents[3] / "docs" / "formats" / "log.md"
LINE = re.compile(r"([0-9a-f]{4})  ((?:[0-9a-f]{2} )*[0-9a-f]{2})  +(\S.*)")
CRC_OF = re.compile(r"CRC of (?:((?:[0-9a-f]{2} ){4})and )?bytes (\w{4}) to (\w{4})")
UUID = bytes(range(16))
SCHEMA = Schema.define({"id": int, "name": str}, "id")
INFO = Info(5, 1_767_225_600_000_000, 1)
ROW = Append(2, [(1, "a")], first_rowid=9)


def _lines() -> list[tuple[int, bytes, str]]:
    text = DOCUMENT.read_text(encoding="utf-8")
    (block,) = re.findall(r"```hex\n(.*?)```", text, re.DOTALL)
    matches = [LINE.fullmatch(line) for line in block.splitlines() if line]
    assert all(matches)
    return [(int(match[1], 16), bytes.fromhex(match[2]), match[3]) for match in matches if match]


def _image() -> bytes:
    data = bytearray(2048)
    end = 0
    for offset, content, _ in _lines():
        assert offset >= end, hex(offset)
        end = offset + len(content)
        data[offset:end] = content
    return bytes(data)


def test_the_example_of_the_document_is_a_valid_log() -> None:
    files = FaultyFiles()
    files.makedirs("log")
    files.create(path_of(1), 2048).pwrite(_image(), 0)
    recovery = read_log(files, TINY)
    assert (recovery.uuid, recovery.epoch, recovery.tail.offset) == (UUID, 1, 0x2B7)
    found = list(recovery.entries())
    assert [(one.group, one.lsn, one.type, one.order) for one in found] == [
        (1, 1, AC, 1),
        (3, 1, AC, 2),
    ]
    commit, system = map(decode_record, found)
    assert (commit.txn_id, commit.info, len(commit.nodes)) == (7, INFO, 1)
    ((kind, payload),) = commit.nodes
    assert kind == DML_A
    assert decode_node(kind, payload, SCHEMA) == ROW
    assert (system.txn_id, system.info, system.nodes) == (8, None, [(FLOOR, b"\x05")])


def test_the_log_writes_exactly_the_bytes_of_the_document() -> None:
    files = FaultyFiles()
    recovery = replace(recovered(files), uuid=UUID)
    log = Log.start(files, recovery, options=TINY, clock=ManualClock())
    commit = encode_commit(7, INFO.epoch, [encode_node(ROW, SCHEMA)])
    stamp(commit, STAMP_AT, INFO.first_ts, INFO.wall_us)
    rowid_at = commit.index(DML_A, 39) + ROWID_IN_NODE
    commit[rowid_at : rowid_at + 8] = ROW.first_rowid.to_bytes(8, "little")
    for group, data in ((1, commit), (3, encode_system_payload(8, [(FLOOR, b"\x05")]))):
        log.reserve(len(data))
        log.wait(log.append(group, AC, data))
    log.close()
    assert image(files, 1) == _image()


def test_the_checksums_of_the_document_cover_what_it_says() -> None:
    data = _image()
    checked = 0
    for _, content, text in _lines():
        match = CRC_OF.match(text)
        if match:
            prefix = bytes.fromhex(match[1] or "")
            covered = data[int(match[2], 16) : int(match[3], 16) + 1]
            assert content == crc32(prefix + covered).to_bytes(4, "little"), text
            checked += 1
    assert checked == 5

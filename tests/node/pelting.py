"""Requests that no client would send: mutated ones, random ones, and pieces of them.

samples      one good request of every kind, none of which can change a row
bad_body     a sample after some damage; bad_frame: the same in a frame with a valid CRC
"""

from __future__ import annotations

import random
import struct
from typing import Any
from zlib import crc32

import pyarrow as pa

from halocline.node import wire
from halocline.node.wire import HEAD, TableReads, encode

SPARED = 32
"""The first bytes of a commit hold its snapshot. They stay: it is one that has not happened yet, so
that a commit which survives its mutation is refused."""
LATE = 1 << 40
SCHEMA = {"columns": [], "key": [], "last_id": 0}


def samples(snapshot: int = LATE) -> list[bytes]:
    """One good request of every kind that cannot change a row, and of those that can, broken."""
    table = pa.table({"id": range(1000, 1010), "text": ["y"] * 10})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    node = struct.pack("<BBQQ", 1, 1, 1, 0) + sink.getvalue().to_pybytes()
    record = struct.pack("<QHI", 0, 0, 1) + struct.pack("<BI", 1, len(node)) + node
    rows = encode([[500, "z"], [501, None]])
    few = struct.pack("<BBQQ", 1, 0, 1, 0) + rows
    small = struct.pack("<QHI", 0, 0, 1) + struct.pack("<BI", 1, len(few)) + few
    ended = struct.pack("<BBQQ", 1, 0, 1, 0) + encode([[1, 2], [[0], [1]]])
    delete = struct.pack("<QHI", 0, 0, 1) + struct.pack("<BI", 2, len(ended)) + ended
    reads = (TableReads(1, b"", (), True),)
    requests: list[Any] = [
        wire.Ping(),
        wire.Commit(snapshot, 1, record),
        wire.Commit(snapshot, 1, small),
        wire.Commit(snapshot, 1, delete),
        wire.Commit(snapshot, 1, record[:-9], "token", True),
        wire.Commit(snapshot, 1, b"", None, False, 7, (1,), (2,), reads),
        wire.FindCommit("token", (0, 0)),
        wire.FindCommit(("application", 7), (0, 0)),
        wire.FindCommit(None, (1 << 62, 1)),
        wire.TakeTurns(3, ((1, b"k"), (9, b"")), 1, True),
        wire.EndTurns(3),
        wire.StartJob(77, 10),
        wire.StartJob(1, 10),
        wire.EndJob(3),
        wire.BeginDdl(snapshot),
        wire.CallCatalog("table", 9, "t"),
        wire.CallCatalog("tables", 9),
        wire.CallCatalog("create_table", 9, "u", SCHEMA, "clustered"),
        wire.CallCatalog("create_table", 9, "u"),
        wire.CallCatalog("drop_table", 9, "t"),
        wire.CallCatalog("end", 9),
        wire.ListCheckpoints(),
        wire.Command("health"),
        wire.Command("flush", "nowhere"),
        wire.Command("gc"),
        wire.WaitVisible(1),
        wire.ReadFile("log/checkpoint", 0, 100),
        wire.ReadFile("log/00000001.log", 1 << 40, 1 << 62),
        wire.ReadFile("../LOCK", 0, 100),
        wire.ListLog(),
        wire.Look("log/00000001.log", 0),
        wire.Look("log/00000001.log", 1 << 62),
        wire.Look("../LOCK", 0),
        wire.ReadObject("1/1-1.parquet", 0, 100),
        wire.PutObject("1/1-1.parquet", b"PAR1"),
        wire.PinSnapshot(1),
    ]
    return [encode(request) for request in requests]


def bad_body(chance: random.Random, good: bytes, spared: int = SPARED) -> bytes:
    """A request, shorter, longer, or with other bytes in it."""
    body = bytearray(good)
    is_commit = body[2:8] == b"commit"
    match chance.randrange(5):
        case 0:
            body = bytearray(chance.randbytes(chance.randrange(200)))
        case 1:
            del body[chance.randrange(len(body)) :]
        case 2:
            at = chance.randrange(min(spared, len(body)), len(body) + 1)
            body[at:at] = chance.randbytes(chance.randrange(1, 20))
        case _:
            for _ in range(chance.randrange(1, 6)):
                at = chance.randrange(len(body))
                if not (is_commit and at < spared):
                    body[at] = chance.randrange(256)
    return bytes(body)


def bad_frame(chance: random.Random, good: bytes, spared: int = SPARED) -> bytes:
    """A frame that may end too early."""
    body = bad_body(chance, good, spared)
    frame = HEAD.pack(len(body), crc32(body)) + body
    return frame[: chance.randrange(len(frame))] if chance.randrange(10) == 0 else frame

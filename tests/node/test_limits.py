"""Small requests that would become large: refused before they are unpacked, with what to do."""

from __future__ import annotations

import resource
import struct
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import halocline as hc
from halocline.node import Server, limits, server, session, wire
from halocline.node.limits import Room, read_record, read_request
from halocline.node.logtail import read_message
from halocline.node.session import Session
from halocline.node.wire import encode
from halocline.rows.nodes import HEAD, VERSION
from halocline.schema.ipc import check_stream, unpacked_bytes
from tests.node.handles import ask, calling, greet, secret_of
from tests.roles import owner_of

MIB = 1 << 20


@pytest.fixture
def db(tmp_path: Path) -> Iterator[hc.Database]:
    with hc.open(tmp_path / "db", options=hc.Options(background=False)) as db:
        db.create_table("t", {"id": int, "text": str}, "id")
        with db.begin() as txn:
            txn.insert("t", {"id": 1, "text": "x"})
        yield db
        assert db.table("t").count() == 1
        assert not db.check()


def _stream(table: pa.Table, codec: str | None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _record(*nodes: bytes, kind: int = 1) -> bytes:
    body = b"".join(struct.pack("<BI", kind, len(node)) + node for node in nodes)
    return struct.pack("<QHI", 0, 0, len(nodes)) + body


def _node(form: int, body: bytes) -> bytes:
    return HEAD.pack(VERSION, form, 0, 1, 0, 0, 0) + body


def _bomb() -> bytes:
    """Two gigabytes of the same letter, in rows of 64 MiB: a few hundred kilobytes."""
    text = pa.array(["x" * (64 * MIB)], pa.string())
    batch = pa.record_batch([pa.array([7]), text], names=["id", "text"])
    return _stream(pa.Table.from_batches([batch] * 32), "zstd")


def _liar() -> bytes:
    """A small stream one of whose buffers claims to be 2^60 bytes long."""
    data = _stream(pa.table({"id": range(1000), "text": ["x" * 100] * 1000}), "lz4")
    honest = struct.pack("<q", 100_000)
    front, found, back = data.rpartition(honest)  # the last offset looks the same
    assert found
    return front + struct.pack("<q", 1 << 60) + back


def _answers(db: hc.Database, way: str) -> Callable[[Any], Any]:
    """Ask as another process does: through the socket, or as another machine."""
    if way == "tcp":
        door = db.serve()
        return lambda request: ask(door, request)

    def through_the_socket(request: Any) -> Any:
        with calling(db) as channel:
            greet(channel, secret_of(db))
            channel.send(request)
            body = channel.receive(MIB)
            assert body is not None
            return wire.decode_reply(body)

    return through_the_socket


@pytest.mark.parametrize("way", ["socket", "tcp"])
@pytest.mark.parametrize("make", [_bomb, _liar])
def test_a_stream_that_would_become_huge_is_not_unpacked(
    db: hc.Database, way: str, make: Callable[[], bytes]
) -> None:
    asks, stream = _answers(db, way), make()
    assert len(stream) < MIB
    assert unpacked_bytes(stream) > 1 << 30
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    reply = asks(wire.Commit(db.visible_ts, 1, _record(_node(1, stream))))
    assert reply.kind == "UsageError"
    assert "commit fewer" in reply.fields["text"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_many_streams_count_together() -> None:
    stream = _stream(pa.table({"id": [1], "text": ["x" * (200 * MIB)]}), "zstd")
    node = _node(1, stream)
    assert read_record(_record(*[node] * 5))[1] > 1000 * MIB
    with pytest.raises(hc.UsageError, match="commit fewer"):
        read_record(_record(*[node] * 6))


@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
def test_the_size_of_a_stream_is_that_of_its_table(codec: str | None) -> None:
    table = pa.table(
        {
            "id": pa.array([1, None, 3], pa.int64()),
            "text": ["a" * 5000, None, ""],
            "list": [[1, 2], [], None],
            "flag": [True, False, None],
        }
    )
    data = _stream(table, codec)
    with pa.ipc.open_stream(data) as reader:
        read = reader.read_all()
    assert read.nbytes <= unpacked_bytes(data) <= read.nbytes + 64 * 12
    check_stream(data, unpacked_bytes(data))
    with pytest.raises(ValueError, match="once unpacked"):
        check_stream(data, unpacked_bytes(data) - 1)


def test_streams_that_are_none() -> None:
    table = pa.table({"id": range(100)})
    data = _stream(table, "lz4")
    for at in range(0, len(data), 3):
        for value in (0, 0x7F, 0xFF):
            changed = data[:at] + bytes([value]) + data[at + 1 :]
            try:
                unpacked_bytes(changed)
                unpacked_bytes(data[:at])
            except ValueError:
                continue
    coded = pa.table({"id": pa.array(["a", "b"]).dictionary_encode()})
    with pytest.raises(ValueError, match="type 2"):
        unpacked_bytes(_stream(coded, None))


def test_a_message_of_the_logtail_is_looked_at_first() -> None:
    with pytest.raises(hc.CorruptionError, match="once unpacked"):
        read_message(_bomb())


@pytest.mark.parametrize("way", ["socket", "tcp"])
def test_many_small_objects_are_not_made(db: hc.Database, way: str) -> None:
    """A byte of msgpack can be a list: eight million of them would be half a gigabyte."""
    asks = _answers(db, way)
    lists: Any = [[]] * (2 * MIB)
    schema = {"columns": lists, "key": [], "last_id": 0}
    assert (
        "too long" in asks(wire.CallCatalog("create_table", 9, "u", schema, "heap")).fields["text"]
    )
    lists = msgspec.Raw(b"\xdd" + (20 * MIB).to_bytes(4, "big") + b"\x90" * (20 * MIB))
    notes = ("upsert", (), lists, ())
    commit = ["commit", db.visible_ts, 1, b"", None, False, 0, (), (), None, [(1, 1, 1, (), notes)]]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "too long" in asks(commit).fields["text"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000
    many = _record(_node(0, encode([[None]] * (limits.ROWS_MAX + 1))))
    assert "bulk_rows" in asks(wire.Commit(db.visible_ts, 1, many)).fields["text"]
    parts = struct.pack("<QHI", 0, 0, limits.NODES_MAX + 1)
    assert "commit fewer" in asks(wire.Commit(db.visible_ts, 1, parts)).fields["text"]


def test_files_and_records_may_be_long() -> None:
    file = wire.PutObject("1/1-0.parquet", bytes(9 * MIB))
    assert read_request(encode(file)) == file
    assert isinstance(read_request(encode(wire.Commit(1, 1, bytes(9 * MIB)))), wire.Commit)


def test_large_commits_share_a_room() -> None:
    room = Room()
    with (
        room.take(limits.ROOM_BYTES + 1),  # alone, anything goes that a request may bring
        pytest.raises(hc.UnavailableError, match="try again"),
        room.take(limits.LARGE_BYTES),
    ):
        pass
    with room.take(limits.LARGE_BYTES), room.take(limits.LARGE_BYTES):
        pass


# -- so many and no more -------------------------------------------------------------------------


def test_a_process_has_only_so_many_jobs(db: hc.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "OPEN_MAX", 2)
    mine = Session(1, count(1))
    answer = owner_of(db).answers.answer
    jobs = [answer(mine, wire.StartJob(1, 10)) for _ in range(2)]
    with pytest.raises(hc.UnavailableError, match="commit or roll back"):
        answer(mine, wire.StartJob(1, 10))
    answer(mine, wire.StartJob(1, 10, jobs[0].job_id))
    answer(mine, wire.EndJob(jobs[0].job_id))
    answer(mine, wire.StartJob(1, 10))
    for _ in range(2):
        answer(mine, wire.BeginDdl(db.visible_ts))
    with pytest.raises(hc.UnavailableError, match="create or drop tables"):
        answer(mine, wire.BeginDdl(db.visible_ts))
    mine.end(db.core)


def test_a_server_has_only_so_many_sessions(
    db: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "SESSIONS_MAX", 3)
    door: Server = db.serve()
    for _ in range(3):
        assert isinstance(ask(door, wire.Ping()), wire.Done)
    full = ask(door, wire.Ping())
    assert full.kind == "UnavailableError"
    assert "try later" in full.fields["text"]
    door.reap(float("inf"))
    assert isinstance(ask(door, wire.Ping()), wire.Done)

"""Strangers at the owner's door: wrong tokens, other releases, damaged and invented requests.

    10,000 frames in the long run, mutated or random --> errors or a closed connection, nothing else

Nothing that arrives may stop the owner, keep it busy, make it allocate what a length claims, or
change a row. Mutated requests carry a valid CRC: they get as far as they can.
"""

from __future__ import annotations

import os
import random
import resource
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import pyarrow as pa
import pytest

import halocline as hc
from halocline.node import Service, service, wire
from halocline.node.channel import BrokenChannelError, Channel
from halocline.node.endpoint import read_endpoint, write_endpoint
from halocline.node.wire import HEAD, Hello, encode

ROWS = 20


@pytest.fixture
def db(tmp_path: Path) -> Iterator[hc.Database]:
    options = hc.Options(background=False, bulk_rows=4, object_rows_min=8)
    with hc.open(tmp_path / "db", options=options) as db:
        db.create_table("t", {"id": int, "text": str}, "id")
        with db.begin() as txn:
            txn.insert("t", [{"id": key, "text": "x"} for key in range(ROWS)])
        yield db
        assert not db.check()


@contextmanager
def calling(db: hc.Database) -> Iterator[Channel]:
    """A bare connection; nothing has been said yet."""
    endpoint = read_endpoint(db.path)
    assert endpoint is not None
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(20)
        sock.connect(endpoint.socket)
        yield Channel(sock)


def greet(db: hc.Database, channel: Channel, **changed: Any) -> Any:
    endpoint = read_endpoint(db.path)
    assert endpoint is not None
    facts: dict[str, Any] = {
        "version": wire.VERSION,
        "token": endpoint.secret,
        "pid": os.getpid(),
        "session": 0,
    }
    channel.send(Hello(**(facts | changed)))
    body = channel.receive(1 << 16)
    return None if body is None else msgspec.msgpack.decode(body)


def _state(db: hc.Database) -> Any:
    with db.begin() as txn:
        return db.tables(), txn.scan("t").sort_by("id").to_pylist()


# -- who may come in -----------------------------------------------------------------------------


def test_a_wrong_token_is_refused(db: hc.Database) -> None:
    for token in (b"", b"x" * 32, bytes(32), b"x" * 1000):
        with calling(db) as channel:
            kind, error, fields, _ = greet(db, channel, token=token)
            assert (kind, error) == ("failed", "UsageError")
            assert "token" in fields["text"]
            assert channel.receive(100) is None
    assert len(_state(db)[1]) == ROWS


def test_another_release_is_told_so(db: hc.Database) -> None:
    with calling(db) as channel:
        kind, error, fields, _ = greet(db, channel, version=wire.VERSION + 1)
    assert (kind, error) == ("failed", "UsageError")
    assert "same release" in fields["text"]


def test_opening_with_a_wrong_token_is_a_usage_error(db: hc.Database) -> None:
    endpoint = read_endpoint(db.path)
    assert endpoint is not None
    write_endpoint(db.path, msgspec.structs.replace(endpoint, token="00" * 32))
    with pytest.raises(hc.UsageError, match="token"):
        hc.open(db.path)
    write_endpoint(db.path, endpoint)
    hc.open(db.path).close()


@pytest.mark.parametrize("text", ["", "{}", "null", "[1]", '{"version": 1}', "x" * 10_000])
def test_an_endpoint_file_that_makes_no_sense(
    db: hc.Database, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Service, "mend", lambda service: None)
    monkeypatch.setattr("halocline.node.link.FIND_S", 0.05)
    Path(db.path, "endpoint").write_text(text)
    with pytest.raises(hc.UnavailableError, match=str(os.getpid())) as error:
        hc.open(db.path)
    assert f"{Path(db.path, 'endpoint')} is damaged" in str(error.value)
    assert "safe to delete" in str(error.value)


@pytest.mark.parametrize("damage", ["rewritten", "deleted", "a link"])
def test_an_endpoint_file_that_was_damaged_is_mended(db: hc.Database, damage: str) -> None:
    before = read_endpoint(db.path)
    file = Path(db.path, "endpoint")
    if damage == "rewritten":
        file.write_text("{}")
    else:
        file.unlink()
    if damage == "a link":
        file.symlink_to(db.path)
    with hc.open(db.path) as node:  # it looks for the owner until the file is there again
        assert node.role == "node"
        assert node.table("t").count() == ROWS
    assert read_endpoint(db.path) == before


def test_nobody_else_may_read_the_endpoint_or_reach_the_socket(db: hc.Database) -> None:
    endpoint = read_endpoint(db.path)
    assert endpoint is not None
    assert Path(db.path, "endpoint").stat().st_mode & 0o777 == 0o600
    assert Path(endpoint.socket).parent.stat().st_mode & 0o777 == 0o700
    assert len(os.fsencode(endpoint.socket)) < 108


def test_a_full_owner_says_so(db: hc.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "CONNECTIONS_MAX", 1)
    monkeypatch.setattr("halocline.node.link.FIND_S", 0.05)
    with calling(db) as channel:
        assert greet(db, channel)[0] == "welcome"
        with pytest.raises(hc.UnavailableError, match="try later"):
            hc.open(db.path)
    # The place is free again as soon as the owner has seen that the other one is gone.
    monkeypatch.setattr("halocline.node.link.FIND_S", 20.0)
    hc.open(db.path).close()


def test_nothing_is_answered_before_the_token(db: hc.Database) -> None:
    with calling(db) as channel:
        channel.send(wire.Command("gc"))
        assert channel.receive(100) is None
    with calling(db) as channel, suppress(ConnectionError):
        channel.sock.sendall(HEAD.pack(wire.HELLO_BYTES_MAX + 1, 0) + bytes(100))
        assert not channel.sock.recv(100)


# -- what may be said ----------------------------------------------------------------------------


def test_a_length_that_nobody_honours_allocates_nothing(db: hc.Database) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for size in (wire.FRAME_BYTES_MAX, 1 << 31, (1 << 32) - 1):
        with calling(db) as channel:
            greet(db, channel)
            channel.sock.sendall(HEAD.pack(size, 0) + b"x" * 1000)
            channel.sock.shutdown(socket.SHUT_WR)
            with suppress(BrokenChannelError, ConnectionError):
                assert channel.receive(1 << 16) is None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_a_damaged_frame_ends_the_connection(db: hc.Database) -> None:
    body = encode(wire.Command("flush"))
    with calling(db) as channel:
        greet(db, channel)
        channel.sock.sendall(HEAD.pack(len(body), crc32(body) ^ 1) + body)
        assert channel.receive(100) is None


def test_random_and_mutated_requests_change_nothing(db: hc.Database, sim: bool) -> None:
    before = _state(db)
    late = 1 << 40  # a snapshot in the future: a commit that survives mutation is refused
    _pelt(db, _samples(late), 10_000 if sim else 2000, spare=20)
    assert _state(db) == before


def test_mutated_workspaces_are_refused_or_committed_whole(db: hc.Database, sim: bool) -> None:
    """Whoever has the token may write what fits the tables; nothing else gets in."""
    commits = [body for body in _samples(db.visible_ts) if body[2:8] == b"commit"]
    _pelt(db, commits, 10_000 if sim else 2000, spare=0)
    tables, rows = _state(db)
    assert tables == ["t"]
    assert len({row["id"] for row in rows}) == len(rows)


def _pelt(db: hc.Database, samples: list[bytes], count: int, *, spare: int) -> None:
    """Send so many bad frames, and expect an answer or a closed door for each."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    endpoint = read_endpoint(db.path)
    assert endpoint is not None
    channel: Channel | None = None
    for _ in range(count):
        if channel is None:
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(30)
            sock.connect(endpoint.socket)
            channel = Channel(sock)
            assert greet(db, channel)[0] == "welcome"
        if not _survives(channel, _bad_frame(chance, samples, spare)):
            channel.close()
            channel = None
    if channel is not None:
        channel.close()


def _survives(channel: Channel, frame: bytes) -> bool:
    """Does the connection outlive this frame?"""
    try:
        channel.sock.sendall(frame)
        if len(frame) < HEAD.size or HEAD.unpack_from(frame)[0] + HEAD.size > len(frame):
            channel.sock.shutdown(socket.SHUT_WR)  # it would wait for the rest
        return channel.receive(1 << 24) is not None
    except TimeoutError:
        pytest.fail("the owner hangs")
    except OSError:
        return False


def _samples(snapshot: int) -> list[bytes]:
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
    reads = (wire.TableReads(1, b"", (), True),)
    requests: list[Any] = [
        wire.Ping(),
        wire.Commit(snapshot, 1, record),
        wire.Commit(snapshot, 1, small),
        wire.Commit(snapshot, 1, delete),
        wire.Commit(snapshot, 1, record[:-9], "token", True),
        wire.Commit(snapshot, 1, b"", None, False, 7, (1,), (2,), reads),
        wire.FindToken("token"),
        wire.FindToken(("application", 7)),
        wire.StartJob(77, 10),
        wire.EndJob(3),
        wire.BeginDdl(snapshot),
        wire.FindTable(9, "t"),
        wire.ListTables(9),
        wire.CreateTable(9, "u", {"columns": [], "key": [], "last_id": 0}, "clustered"),
        wire.DropTable(9, "t"),
        wire.EndDdl(9),
        wire.ListCheckpoints(),
        wire.Command("health"),
    ]
    return [encode(request) for request in requests]


def _bad_frame(chance: random.Random, samples: list[bytes], spare: int) -> bytes:
    body = bytearray(chance.choice(samples))
    match chance.randrange(5):
        case 0:
            body = bytearray(chance.randbytes(chance.randrange(200)))
        case 1:
            del body[chance.randrange(len(body)) :]
        case 2:
            at = chance.randrange(min(spare, len(body)), len(body) + 1)
            body[at:at] = chance.randbytes(chance.randrange(1, 20))
        case _:
            for _ in range(chance.randrange(1, 6)):
                # The first bytes of a commit hold its snapshot.
                at = chance.randrange(len(body))
                if not (body[2:8] == b"commit" and at < spare):
                    body[at] = chance.randrange(256)
    frame = HEAD.pack(len(body), crc32(body)) + body
    if chance.randrange(10) == 0:
        frame = frame[: chance.randrange(len(frame))]
    return bytes(frame)

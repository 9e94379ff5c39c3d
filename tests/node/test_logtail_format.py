"""The page docs/formats/logtail.md, taken at its word: its bytes decoded, its protocol spoken.

Nothing of node/ is used by the client here: sockets, struct, zlib, plain msgpack and Arrow.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import pyarrow as pa
import pytest

import halocline as hc
from halocline.node import wire
from halocline.node.certificate import own_certificate
from tests.node.test_logtail import Copy

PAGE = Path(__file__).resolve().parents[2] / "docs" / "formats" / "logtail.md"
pack, unpack = msgspec.msgpack.encode, msgspec.msgpack.decode


def _blocks() -> list[bytes]:
    text = PAGE.read_text(encoding="utf-8")
    return [bytes.fromhex(block) for block in re.findall(r"```hex\n(.*?)```", text, re.DOTALL)]


def _body(frame: bytes) -> bytes:
    length, crc = struct.unpack_from("<II", frame)
    assert len(frame) == 8 + length
    assert crc32(frame[8:]) == crc
    return frame[8:]


def _table(message: bytes) -> tuple[dict[str, str], pa.Table]:
    with pa.ipc.open_stream(message) as reader:
        table = reader.read_all()
    facts = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
    return facts, table


# -- the bytes on the page -----------------------------------------------------------------------


def test_the_frames_on_the_page_are_what_it_says() -> None:
    request, reply, _ = _blocks()
    assert unpack(_body(request)) == ["subscribe", 41, "t"]
    assert request == wire.frame(wire.Subscribe(41, "t"))
    assert unpack(_body(reply)) == ["done", ["pushed", 41, 41, []]]
    pushed = msgspec.Raw(wire.encode(wire.Pushed(41, 41, ())))
    assert reply == wire.frame(wire.Done(pushed))


def test_the_message_on_the_page_is_what_it_says() -> None:
    facts, table = _table(_blocks()[2])
    assert facts.pop("database") in PAGE.read_text(encoding="utf-8")
    assert facts == {
        "version": "1",
        "kind": "Rows",
        "table_id": "1",
        "table": "t",
        "commit_ts": "2",
        "order": "3",
    }
    assert table.schema.types == [pa.int64(), pa.int64(), pa.int64(), pa.string()]
    assert table.to_pylist() == [
        {"_commit_ts": 2, "_rowid": 1, "id": 7, "text": "seven"},
        {"_commit_ts": 2, "_rowid": 2, "id": 8, "text": None},
    ]


# -- a client that knows the page alone ----------------------------------------------------------


class Socket:
    """The transport for processes of one machine."""

    def __init__(self, db: hc.Database) -> None:
        facts = json.loads(Path(db.path, "endpoint").read_text(encoding="utf-8"))
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.settimeout(30)
        self._sock.connect(facts["socket"])
        self._say(["hello", 1, bytes.fromhex(facts["token"]), 1, 0])
        assert self._hear()[0] == "welcome"

    def ask(self, *request: Any) -> Any:
        self._say(list(request))
        return self._hear()

    def subscribe(self, *request: Any) -> Iterator[Any]:
        self._say(["subscribe", *request])
        while True:
            yield self._hear()

    def close(self) -> None:
        self._sock.close()

    def _say(self, message: list[Any]) -> None:
        body = pack(message)
        self._sock.sendall(struct.pack("<II", len(body), crc32(body)) + body)

    def _hear(self) -> Any:
        length, _ = struct.unpack("<II", self._read(8))
        return unpack(self._read(length))

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._sock.recv(size - len(data))
            assert piece, "hung up"
            data += piece
        return data


class Plain(Socket):
    """The transport for other machines, on a loopback address."""

    def __init__(self, db: hc.Database) -> None:
        door = db.serve()
        self._sock = self._connected(door.uri)
        self._say(["hello", 1, door.token.encode(), 1, 0])
        assert self._hear()[0] == "welcome"

    def _connected(self, uri: str) -> socket.socket:
        host, _, port = uri.removeprefix("halocline://").rpartition(":")
        return socket.create_connection((host, int(port)), 30)


class Tls(Plain):
    """The transport for other machines."""

    def __init__(self, db: hc.Database) -> None:
        certificate, key = own_certificate(db.path)
        door = db.serve(tls=(certificate, key))
        context = ssl.create_default_context(cafile=certificate)
        sock = self._connected(door.uri)
        self._sock = context.wrap_socket(sock, server_hostname="halocline")
        self._say(["hello", 1, door.token.encode(), 1, 0])
        assert self._hear()[0] == "welcome"


@pytest.fixture
def db(tmp_path: Path) -> Iterator[hc.Database]:
    options = hc.Options(background=False, object_rows_min=12)
    with hc.open(tmp_path / "db", options=options) as db:
        db.create_table("t", {"id": int, "v": int}, "id")
        yield db
        assert not db.check()


@pytest.mark.parametrize("transport", [Socket, Plain, Tls])
def test_a_client_that_knows_the_page_alone_has_the_table(db: hc.Database, transport: Any) -> None:
    with db.begin() as txn:
        txn.insert("t", {"id": 1, "v": 1})
    client, copy = transport(db), Copy(db.path)
    _, [tag, _, visible_ts] = client.ask("ping")
    assert (tag, visible_ts) == ("position", db.visible_ts)
    assert client.ask("checkpoints") == ["done", []]
    replies = client.subscribe(0, "t")
    assert next(replies) == ["done", ["pushed", 0, 0, []]]
    with db.begin() as txn:
        txn.upsert("t", [{"id": key, "v": key * 10} for key in range(30)])
    db.flush()
    with db.begin() as txn:
        txn.delete("t", where="id > 20")
    last = txn.commit_ts
    assert last is not None
    end = 0
    while end < last:
        done, [tag, start, until, messages] = next(replies)
        assert (done, tag) == ("done", "pushed")
        assert start <= end + 1
        for facts, table in map(_table, messages):
            assert end < int(facts["commit_ts"]) <= until
            copy.apply(facts["kind"], table)
        end = max(end, until)
    client.close()
    found = db.table("t").to_arrow().sort_by("id").to_pylist()
    assert sorted(copy.live(), key=lambda row: row["id"]) == found


@pytest.mark.parametrize("transport", [Socket, Plain, Tls])
def test_what_fails_is_told_as_the_page_says(db: hc.Database, transport: Any) -> None:
    for request, kind in (((0, "missing"), "NotFoundError"), ((99,), "UsageError")):
        client = transport(db)
        failed, found, fields, keys = next(client.subscribe(*request))
        assert (failed, found, keys) == ("failed", kind, None)
        assert fields["text"]
        client.close()

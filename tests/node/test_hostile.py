"""Strangers at the owner's door: wrong tokens, other releases, damaged and invented requests.

    frames, mutated or random --> errors or a closed connection, nothing else

Nothing that arrives may stop the owner, keep it busy, make it allocate what a length claims, or
change a row. Mutated requests carry a valid CRC: they get as far as they can. The owner is this
process here; tests/process/test_fuzz.py has one of its own, and looks after its memory.
"""

from __future__ import annotations

import os
import random
import resource
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import pytest

import halocline as hc
from halocline.node import Service, service, wire
from halocline.node.channel import BrokenChannelError, Channel
from halocline.node.endpoint import read_endpoint, write_endpoint
from halocline.node.wire import HEAD, encode
from tests.node.handles import calling, greet, secret_of, survives
from tests.node.pelting import SPARED, bad_frame, samples

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


def _state(db: hc.Database) -> Any:
    with db.begin() as txn:
        return db.tables(), txn.scan("t").sort_by("id").to_pylist()


# -- who may come in -----------------------------------------------------------------------------


def test_a_wrong_token_is_refused(db: hc.Database) -> None:
    for token in (b"", b"x" * 32, bytes(32), b"x" * 1000):
        with calling(db) as channel:
            kind, error, fields, _ = greet(channel, token)
            assert (kind, error) == ("failed", "UsageError")
            assert "token" in fields["text"]
            assert channel.receive(100) is None
    assert len(_state(db)[1]) == ROWS


def test_another_release_is_told_so(db: hc.Database) -> None:
    with calling(db) as channel:
        kind, error, fields, _ = greet(channel, secret_of(db), version=wire.VERSION + 1)
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
        assert greet(channel, secret_of(db))[0] == "welcome"
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
            greet(channel, secret_of(db))
            channel.sock.sendall(HEAD.pack(size, 0) + b"x" * 1000)
            channel.sock.shutdown(socket.SHUT_WR)
            with suppress(BrokenChannelError, ConnectionError):
                assert channel.receive(1 << 16) is None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_a_damaged_frame_ends_the_connection(db: hc.Database) -> None:
    body = encode(wire.Command("flush"))
    with calling(db) as channel:
        greet(channel, secret_of(db))
        channel.sock.sendall(HEAD.pack(len(body), crc32(body) ^ 1) + body)
        assert channel.receive(100) is None


def test_random_and_mutated_requests_change_nothing(db: hc.Database, sim: bool) -> None:
    before = _state(db)
    _pelt(db, samples(), 10_000 if sim else 500, SPARED)
    assert _state(db) == before


def test_mutated_workspaces_are_refused_or_committed_whole(db: hc.Database, sim: bool) -> None:
    """Whoever has the token may write what fits the tables; nothing else gets in."""
    commits = [body for body in samples(db.visible_ts) if body[2:8] == b"commit"]
    _pelt(db, commits, 10_000 if sim else 1000, spared=0)
    tables, rows = _state(db)
    assert tables == ["t"]
    assert len({row["id"] for row in rows}) == len(rows)


def _pelt(db: hc.Database, good: list[bytes], count: int, spared: int) -> None:
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
            assert greet(channel, secret_of(db))[0] == "welcome"
        if not survives(channel, bad_frame(chance, chance.choice(good), spared)):
            channel.close()
            channel = None
    if channel is not None:
        channel.close()

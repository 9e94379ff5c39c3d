"""Ten thousand bad requests against a server in a process of its own, through each of its doors.

    test --mutated or random requests--> owner: an error or a closed door for each, in time
    afterwards it is the same process, with the same rows, and has not grown

`make test` sends a thousand through each door, `make sim` all of them.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from zlib import crc32

import pytest

import halocline as hc
from halocline.node import wire
from halocline.node.channel import Channel
from halocline.node.endpoint import read_endpoint
from halocline.node.wire import HEAD, Hello
from tests.node.handles import dialing, survives
from tests.node.pelting import bad_frame, samples
from tests.process.children import SMALL
from tests.process.nursery import Child, Nursery

ANSWER_S = 30.0
GROWTH_KB_MAX = 100_000
COUNTS = [1000, pytest.param(10_000, marks=pytest.mark.sim)]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "db")


@pytest.fixture
def owner(nursery: Nursery, path: str) -> Iterator[Child]:
    """Lives through the test, keeps its rows and its size, and closes as always."""
    # Without maintenance: a move of its rows, on a slow machine, is a commit of its own.
    child = Child(nursery, "owner", path=path, background=False)
    assert child.said == {"open": True}
    child.ask("create")
    child.ask("insert", first=1, count=20)
    before, size = child.ask("state"), child.ask("size")["value"]
    yield child
    assert child.ask("state") == before
    grown = child.ask("size")["value"] - size
    print(f"grew by {grown:,} KB")
    assert grown < GROWTH_KB_MAX
    assert child.ask("check") == {"value": []}
    assert child.end() == 0
    with hc.open(path, options=SMALL) as db:
        assert not db.check()


@pytest.mark.parametrize("count", COUNTS)
def test_bad_frames_at_the_socket(
    owner: Child, path: str, chance: random.Random, count: int
) -> None:
    good = samples()
    channel: Channel | None = None
    for _ in range(count):
        channel = channel or _greeted(path)
        if not survives(channel, bad_frame(chance, chance.choice(good))):
            channel.close()
            channel = None
    if channel is not None:
        channel.close()


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("tls", [False, True])
def test_bad_frames_over_tcp(owner: Child, chance: random.Random, tls: bool, count: int) -> None:
    """With strangers in between who do not even say hello."""
    uri, token = owner.ask("serve_tls" if tls else "serve")["value"]
    good = samples()
    channel: Channel | None = None
    with ExitStack() as stack:
        for number in range(count):
            if number % 50 == 0:
                _shout(int(uri.rpartition(":")[2]), chance)
            if channel is None:
                channel = stack.enter_context(dialing(uri, tls=tls))
                hello = wire.encode(Hello(wire.VERSION, token.encode(), 1, 0))
                if chance.randrange(4) == 0:
                    survives(channel, bad_frame(chance, hello, 0))
                channel = channel if _is_greeted(channel, hello) else None
            if channel is None or not survives(channel, bad_frame(chance, chance.choice(good))):
                stack.close()
                channel = None


def _is_greeted(channel: Channel, hello: bytes) -> bool:
    frame = HEAD.pack(len(hello), crc32(hello)) + hello
    return survives(channel, frame)


def _greeted(path: str) -> Channel:
    endpoint = read_endpoint(path)
    assert endpoint is not None
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(ANSWER_S)
    sock.connect(endpoint.socket)
    channel = Channel(sock)
    channel.send(Hello(wire.VERSION, endpoint.secret, 1, 0))
    assert channel.receive(1 << 16) is not None
    return channel


def _shout(port: int, chance: random.Random) -> None:
    """Bytes that are neither frames nor TLS, or begin as if they were."""
    start = chance.choice((b"", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n"))
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S) as sock:
            sock.sendall(start + chance.randbytes(chance.randrange(5000)))
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(1 << 16):
                pass
    except TimeoutError:
        pytest.fail("the server hangs")
    except OSError:
        pass  # it has had enough

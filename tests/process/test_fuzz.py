"""Ten thousand bad requests against a server in a process of its own, through each of its doors.

    test --mutated or random requests--> owner: an error or a closed door for each, in time
    afterwards it is the same process, with the same rows, and has not grown

`make test` sends a thousand through each door, `make sim` all of them.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyarrow import ArrowException, flight

import halocline as hc
from halocline.node import wire
from halocline.node.channel import Channel
from halocline.node.endpoint import read_endpoint
from halocline.node.flight import ASK
from halocline.node.wire import Hello
from tests.node.pelting import bad_body, bad_call, bad_frame, samples
from tests.node.test_hostile import survives
from tests.process.children import SMALL
from tests.process.nursery import Child, Nursery

ANSWER_S = 30.0
EXCHANGE = flight.FlightCallOptions(timeout=10 * ANSWER_S)
GROWTH_KB_MAX = 100_000
COUNTS = [1000, pytest.param(10_000, marks=pytest.mark.sim)]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "db")


@pytest.fixture
def owner(nursery: Nursery, path: str) -> Iterator[Child]:
    """Lives through the test, keeps its rows and its size, and closes as always."""
    child = Child(nursery, "owner", path=path)
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
def test_bad_calls_over_flight(owner: Child, chance: random.Random, count: int) -> None:
    uri, token = owner.ask("serve")["value"]
    port = int(uri.rpartition(":")[2])
    good = samples()
    options = flight.FlightCallOptions(timeout=ANSWER_S)
    with flight.connect(uri) as client:
        for number in range(count):
            if number % 50 == 0:
                _shout(port, chance)
            kind = ASK if chance.randrange(20) else chance.choice(("", "x", "ask" * 100))
            body = bad_call(chance, chance.choice(good), token)
            try:
                results: list[Any] = list(client.do_action(flight.Action(kind, body), options))
            except flight.FlightTimedOutError:
                pytest.fail("the server hangs")
            except flight.FlightError:
                assert kind != ASK, "every call gets an answer"
                continue
            assert len(results) == 1
            wire.decode_returned(results[0].body.to_pybytes())


@pytest.mark.parametrize("count", COUNTS)
def test_bad_calls_in_exchanges(owner: Child, chance: random.Random, count: int) -> None:
    uri, token = owner.ask("serve")["value"]
    good = samples()
    with flight.connect(uri) as client:
        ends: tuple[Any, Any] | None = None
        for number in range(count):
            ends = ends or _begun(client, chance, token)
            body = bad_call(chance, chance.choice(good), token)
            if number % 20 == 0:
                body = chance.choice((wire.NIL, b"", chance.randbytes(chance.randrange(500))))
            if not _answered(ends, body):
                ends = None
        if ends is not None:
            _let_go(ends)


def _begun(client: Any, chance: random.Random, token: str) -> tuple[Any, Any]:
    """An exchange, which may begin badly: then nothing in it is answered."""
    hello = wire.encode(wire.Call(wire.VERSION, token.encode(), 0, b""))
    if chance.randrange(4) == 0:
        hello = bad_body(chance, hello)
    descriptor = flight.FlightDescriptor.for_command(hello)
    ends: tuple[Any, Any] = client.do_exchange(descriptor, EXCHANGE)
    return ends


def _answered(ends: tuple[Any, Any], body: bytes) -> bool:
    """Does the exchange go on? If not, it is over on both sides."""
    writer, reader = ends
    try:
        writer.write_metadata(body)
        if body == wire.NIL:
            return True
        wire.decode_returned(reader.read_chunk().app_metadata.to_pybytes())
        return True
    except flight.FlightTimedOutError:
        pytest.fail("the server hangs")
    except (StopIteration, flight.FlightError, ArrowException):
        _let_go(ends)
        return False


def _let_go(ends: tuple[Any, Any]) -> None:
    writer, reader = ends
    reader.cancel()
    with suppress(ArrowException, flight.FlightError):
        writer.close()


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
    """Bytes that are not even HTTP/2, or begin as if they were."""
    start = chance.choice((b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n"))
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

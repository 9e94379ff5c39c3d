"""Handles of one database, and bare connections to its owner, for the tests of this folder.

put, rows            what most tests do with a handle
far                  a handle that is connected to a server
calling, dialing     a connection on which nothing has been said yet: the socket, or a server
greet, ask           Hello and its answer; one request and its answer
"""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

import halocline as hc
from halocline.node import Server, wire
from halocline.node.channel import Channel
from halocline.node.endpoint import read_endpoint
from halocline.node.tls import TlsSocket
from halocline.node.wire import HEAD, Hello

ANSWER_S = 30
WAIT_S = 30.0


def put(db: hc.Database, key: int, value: int = 0, **arguments: Any) -> int:
    """Insert one row into t; its commit_ts."""
    with db.begin(**arguments) as txn:
        txn.insert("t", {"id": key, "v": value})
    assert txn.commit_ts is not None
    return txn.commit_ts


def rows(db: hc.Database, table: str = "t") -> list[tuple[Any, ...]]:
    """All rows of a table, sorted."""
    return sorted(tuple(row.values()) for row in db.table(table).to_arrow().to_pylist())


def far(server: Server, certificate: tuple[str, str] | None = None, **named: Any) -> hc.Database:
    """A handle of another machine; the certificate is the one that the server has."""
    token = named.pop("token", server.token)
    return hc.connect(server.uri, token, tls_roots=certificate and certificate[0], **named)


def until(condition: Callable[[], object]) -> None:
    """Wait for something that happens soon."""
    limit = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.002)


@contextmanager
def calling(db: hc.Database) -> Iterator[Channel]:
    """A connection to the owner's socket."""
    endpoint = read_endpoint(db.path)
    assert endpoint is not None
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(ANSWER_S)
        sock.connect(endpoint.socket)
        yield Channel(sock)


@contextmanager
def dialing(address: Server | str, *, tls: bool = False) -> Iterator[Channel]:
    """A connection to a server."""
    uri = address if isinstance(address, str) else address.uri
    host, _, port = uri.removeprefix("halocline://").rpartition(":")
    with socket.create_connection((host, int(port)), ANSWER_S) as sock:
        yield Channel(tls_over(sock) if tls else sock)


def tls_over(sock: socket.socket) -> TlsSocket:
    """TLS with whomever is there."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return TlsSocket(sock, context)


def secret_of(db: hc.Database) -> bytes:
    endpoint = read_endpoint(db.path)
    assert endpoint is not None
    return endpoint.secret


def greet(channel: Channel, token: bytes, **changed: Any) -> Any:
    """Say hello; the answer as plain values, None when they hang up."""
    facts = {"version": wire.VERSION, "token": token, "pid": os.getpid(), "session": 0}
    channel.send(Hello(**(facts | changed)))
    body = channel.receive(1 << 16)
    return None if body is None else msgspec.msgpack.decode(body)


def ask(server: Server, request: Any, *, tls: bool = False, **changed: Any) -> Any:
    """What a server answers to one request; the refusal, if it does not get so far."""
    with dialing(server, tls=tls) as channel:
        hello = greet(channel, **({"token": server.token.encode()} | changed))
        if hello[0] == "failed":
            return wire.Failed(*hello[1:])
        channel.send(request)
        body = channel.receive(1 << 24)
    assert body is not None
    return wire.decode_reply(body)


def survives(channel: Channel, frame: bytes) -> bool:
    """Does the connection outlive this frame?"""
    try:
        channel.sock.sendall(frame)
        if len(frame) < HEAD.size or HEAD.unpack_from(frame)[0] + HEAD.size > len(frame):
            channel.sock.shutdown(socket.SHUT_WR)  # it would wait for the rest
        return channel.receive(1 << 24) is not None
    except TimeoutError:
        raise AssertionError("the owner hangs") from None
    except OSError:
        return False


def port_of(server: Server) -> int:
    return int(server.uri.rpartition(":")[2])

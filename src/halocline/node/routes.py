"""Routes: the two ways to an owner, for a Link.

    NearRoute   the socket that the endpoint file names; when nobody listens there, take over
    FarRoute    TCP to a server on another machine, with TLS; sessions there have leases

On one machine a connection that is open leads to a living process, so an answer may take as long as
it takes, while the owner greets others meanwhile. When the owner is gone, the first process that
gets its lock becomes the owner; the others find its endpoint. A lock that is held by a process
which does not answer is left alone: it may have been paused, and may go on at any moment.

Between machines bytes can be lost without a word, so every answer has a time limit, and a silent
connection is given up for another one. Nobody takes over from there.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from halocline.errors import HaloclineError, UnavailableError, UsageError
from halocline.node.channel import Channel
from halocline.node.endpoint import NAME as ENDPOINT
from halocline.node.endpoint import DamagedEndpointError, read_endpoint
from halocline.node.link import Link, Local, outcome_of
from halocline.node.server import is_loopback
from halocline.node.wire import (
    Command,
    Commit,
    PutObject,
    ReadFile,
    ReadObject,
    Request,
)

PATIENCE_S: Final = 5
"""An owner of this machine that says nothing for so long is asked whether it is still there."""
CALL_S: Final = 5.0
"""How long a server may take for an answer that needs little work."""
WORK_S: Final = 30.0
"""How long a commit of rows may take, and what brings or fetches much; then it counts as lost."""
BULK_S: Final = 3600.0
"""How long a commit that brings files may take, and a maintenance call."""
SECOND_BYTES: Final = 1 << 20
"""Bytes that a slow line carries in a second."""
IDLE_S: Final = 30.0
"""Half of what a server allows."""
SCHEME: Final = "halocline"


class LockHeldError(Exception):
    """Another process has the lock; `holder` is what is known of it, `serves` whether it answers
    others at all."""

    def __init__(self, holder: str, serves: bool = True) -> None:
        self.holder = holder
        self.serves = serves
        super().__init__(holder)


TakeOver = Callable[[], Local]
"""Become the owner; LockHeldError when another process has the lock."""


class NearRoute:
    """To the owner of a database on this machine, or to its place."""

    idle_s = inf
    far = False

    def __init__(self, path: str, take_over: TakeOver) -> None:
        self.name = path
        self._take_over = take_over
        self._lock = threading.Lock()
        """One thread at a time takes over."""
        self._local: Local | None = None

    def dial(self) -> tuple[Channel, bytes]:
        endpoint = read_endpoint(self.name)
        if endpoint is None:
            if os.path.lexists(Path(self.name, ENDPOINT)):
                raise DamagedEndpointError(self.name)
            raise FileNotFoundError("it has not said where")
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            channel = Channel(sock)
            channel.limit(PATIENCE_S, PATIENCE_S)
            sock.connect(endpoint.socket)
        except BaseException:
            sock.close()
            raise
        return channel, endpoint.secret

    def limits_s(self, request: Request) -> tuple[float, float]:
        return PATIENCE_S, PATIENCE_S

    def instead(self, refused: Exception, late: bool) -> Local | None:
        with self._lock:
            try:
                self._local = self._local or self._take_over()
            except LockHeldError as held:
                if isinstance(refused, UsageError):
                    raise refused from None
                if not held.serves or late or isinstance(refused, BlockingIOError):
                    raise self._unavailable(held, refused) from None
            return self._local

    def check_awake(self, link: Link, request: Request) -> None:
        try:
            link.put_spare()
        except HaloclineError:
            return  # it has said why it takes nobody in: it is awake
        except OSError:
            text = f"process {link.pid} has {self.name} open and does not answer"
            raise UnavailableError(text, outcome=outcome_of(request)) from None

    def _unavailable(self, held: LockHeldError, refused: Exception) -> UnavailableError:
        why = "it does not answer"
        if not held.serves:
            why = "close it there, or open it here with read_only=True"
        elif isinstance(refused, UnavailableError):
            return refused
        elif not isinstance(refused, (BlockingIOError, FileNotFoundError)):
            why = f"it cannot be reached: {refused}"
        return UnavailableError(f"{self.name} is open for writing in {held.holder}; {why}")


class FarRoute:
    """To a server on another machine."""

    far = True

    def __init__(self, uri: str, token: str, tls_roots: str | None) -> None:
        """`tls_roots` is the text of a PEM file. Without it a loopback address is spoken to in the
        clear: nobody listens there, and the certificate of the server would be for another name."""
        self.name = uri
        self._host, self._port = _address(uri)
        self._token = token.encode()
        self._tls = None
        self._has_probed = False
        if tls_roots is not None or not is_loopback(self._host):
            from halocline.node.tls import Believer  # most programs need none

            self._tls = Believer(self._host, tls_roots)

    @property
    def idle_s(self) -> float:
        return IDLE_S

    def dial(self) -> tuple[Channel, bytes]:
        channel = Channel(self._connect() if self._tls is None else self._tls.wrap(self._connect))
        channel.limit(CALL_S, CALL_S)
        return channel, self._token

    def _connect(self) -> socket.socket:
        sock = socket.create_connection((self._host, self._port), CALL_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        Channel(sock).limit(CALL_S, CALL_S)  # for the handshake of TLS
        return sock

    def limits_s(self, request: Request) -> tuple[float, float]:
        return _answer_s(request), WORK_S

    def instead(self, refused: Exception, late: bool) -> None:
        if isinstance(refused, UsageError):
            raise refused
        hung_up = isinstance(refused, (ConnectionError, BlockingIOError))
        if hung_up and self._tls is None and (late or not self._has_probed):
            self._has_probed = True
            if self._wants_tls():
                text = f"the server at {self.name} wants TLS: pass tls_roots=, the path of its"
                raise UsageError(f"{text} certificate") from refused
        if late:
            why = str(refused)
            if isinstance(refused, BlockingIOError):
                why = f"no answer within {CALL_S:.0f} s"
            raise UnavailableError(f"{self.name} does not answer: {why}") from refused

    def _wants_tls(self) -> bool:
        """Is TLS what the other side waits for? It may then take us for somebody who is mistaken,
        and hang up."""
        from halocline.node.tls import speaks_tls  # most programs need none

        try:
            return speaks_tls(self._connect())
        except OSError:
            return False

    def check_awake(self, link: Link, request: Request) -> None:
        raise ConnectionResetError(f"no answer within {_answer_s(request):.0f} s")


def _address(uri: str) -> tuple[str, int]:
    try:
        parts = urlsplit(uri)
        host, port = parts.hostname, parts.port
    except (ValueError, AttributeError, TypeError):
        parts, host, port = None, None, None
    if parts is not None and parts.scheme in ("grpc", "grpc+tls"):
        new = f"{SCHEME}://{parts.netloc}"
        raise UsageError(f"{uri!r} is an address of an older version: it is {new!r} now")
    if parts is None or parts.scheme != SCHEME or not host or not port or parts.path:
        raise UsageError(f"a server is named like '{SCHEME}://host:port', not {uri!r}")
    return host, port


def _answer_s(request: Request) -> float:
    """The longest time in which nothing of an answer may come from a server."""
    match request:
        case Command():
            return BULK_S
        case Commit():
            return BULK_S if request.objects else WORK_S + len(request.record) // SECOND_BYTES
        case PutObject():
            return WORK_S + len(request.data) // SECOND_BYTES
        case ReadObject() | ReadFile() if request.size > SECOND_BYTES:
            return WORK_S + request.size // SECOND_BYTES
    return CALL_S

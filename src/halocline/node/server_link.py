"""The way to an owner on another machine: the requests of Link, over TCP with TLS.

    ask(request) --> a connection that is free, or a new one --> reply
    stream(request) --> a connection of its own --> replies until somebody hangs up

Between machines bytes can be lost without a word, so every answer has a time limit, and a silent
connection is given up for another one. No connection ends a session: it has a lease, which every
request renews; somebody who has nothing to ask says so now and then.

Invariants
- A commit is given up as `not_committed` only if its last byte never left this process, or if the
  server has said so. When its answer is lost, only its token tells.
- A connection whose answer was not read to its end is never used again, nor one that was idle for
  IDLE_S: the server would end it some time later, and a request must not meet that.
"""

from __future__ import annotations

import os
import socket
import threading
import weakref
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit
from weakref import WeakSet

import msgspec

from halocline.clock import Clock
from halocline.errors import HaloclineError, UnavailableError, UsageError
from halocline.log.bell import Bell
from halocline.node.channel import Channel
from halocline.node.faults import SchemaOf, from_wire, lost_answer
from halocline.node.server import is_loopback
from halocline.node.spin import Spin
from halocline.node.streams import ChannelStream
from halocline.node.wire import (
    FRAME_BYTES_MAX,
    READ_BYTES_MAX,
    VERSION,
    Command,
    Commit,
    Failed,
    FindToken,
    Hello,
    Ping,
    PinSnapshot,
    Position,
    PutObject,
    ReadFile,
    ReadObject,
    ReadTail,
    Reply,
    Request,
    Subscribe,
    Welcome,
    decode_reply,
)

SCHEME: Final = "halocline"
BEAT_S: Final = 15.0
FIND_S: Final = 10.0
"""How long a server that does not answer is tried again."""
CALL_S: Final = 5.0
"""How long an answer may take that needs little work."""
WORK_S: Final = 30.0
"""How long a commit of rows may take, and what brings or fetches much; then it counts as lost."""
BULK_S: Final = 3600.0
"""How long a commit that brings files may take, and a maintenance call."""
SECOND_BYTES: Final = 1 << 20
"""Bytes that a slow line carries in a second."""
IDLE_S: Final = 30.0
"""Half of what the server allows."""
PAUSE_S: Final = 0.05
SPIN_S: Final = 0.0005
"""How long an answer is looked for before the thread sleeps."""
_decode_greeting = msgspec.msgpack.Decoder(Welcome | Failed).decode


class UnheardError(ConnectionError):
    """Nobody has heard the request, and nobody will."""


class ServerLink:
    """Connections to an owner on another machine; what `Link` is on one. Thread-safe."""

    local = None

    def __init__(self, uri: str, token: str, clock: Clock, tls_roots: str | None) -> None:
        """`tls_roots` is the text of a PEM file. Without it a loopback address is spoken to in the
        clear: nobody listens there, and the certificate of the server would be for another name."""
        self._uri = uri
        self._host, self._port = _address(uri)
        self._token = token.encode()
        self._clock = clock
        self._tls = None
        if tls_roots is not None or not is_loopback(self._host):
            from halocline.node.tls import Believer  # most programs need none

            self._tls = Believer(self._host, tls_roots)
        self._lock = threading.Lock()
        self._idle: list[tuple[Channel, float]] = []
        self._all: WeakSet[Channel] = WeakSet()
        self._spin = Spin(clock, SPIN_S)
        self._session = 0
        self.epoch = 0
        self.closed = False
        self.schema_of: SchemaOf = lambda table: None
        self.pin: Any = None
        """Told again to an owner that has forgotten us."""
        self._bell = Bell()
        arguments = (weakref.ref(self), self._bell)
        threading.Thread(target=_beats, args=arguments, name="halocline-beat", daemon=True).start()

    def wake(self) -> None:
        """Nobody here can take over: the next request finds out."""

    def ask(self, request: Request, kind: Any) -> Any:
        """The owner's answer. Errors are those that the owner has met."""
        until = self._clock.monotonic() + FIND_S
        while True:
            if self.closed:
                raise UsageError(f"the database {self._uri} is closed")
            try:
                reply = self._exchange(request)
            except OSError as error:
                if not isinstance(error, UnheardError):
                    if isinstance(request, Commit):
                        return self._resolve(request, error)
                    if (lost := lost_answer(request)) is not None:
                        raise lost from error
                if self._clock.monotonic() >= until:
                    raise UnavailableError(f"{self._uri} does not answer: {error}") from error
                self._clock.sleep(PAUSE_S)
                continue
            if isinstance(reply, Failed):
                raise from_wire(reply, self.schema_of)
            return msgspec.msgpack.decode(reply.value, type=kind)

    def stream(self, request: Subscribe) -> ChannelStream:
        """A subscription. It has a connection of its own: a slow reader holds up nothing else."""
        if self.closed:
            raise UsageError(f"the database {self._uri} is closed")
        channel = self._connect()
        channel.limit(0, CALL_S)
        return ChannelStream(channel, request, self.schema_of)

    def close(self) -> None:
        self.closed = True
        self._bell.ring()
        self.drop_idle(0.0)

    def abandon(self) -> None:
        """In a forked child: the connections stay the parent's."""
        self.closed = True
        for channel in list(self._all):
            channel.close()

    def beat(self) -> None:
        """Renew the lease, and tell again what is still read here."""
        self.drop_idle(IDLE_S)
        with suppress(HaloclineError, OSError):
            if self.pin is not None:
                self.pin.tell()
            else:
                self.ask(Ping(), Position)

    def drop_idle(self, older_s: float) -> None:
        """Close the connections that nobody has used for so long."""
        limit = self._clock.monotonic() - older_s
        with self._lock:
            old = [channel for channel, since in self._idle if since <= limit]
            self._idle = [pair for pair in self._idle if pair[1] > limit]
        for channel in old:
            channel.close()

    # One request.

    def _exchange(self, request: Request) -> Reply:
        """UnheardError when it was not sent, another OSError when its answer is lost."""
        channel = self._take() or self._connect()
        try:
            limit_s = _limit_s(request)
            channel.limit(limit_s, WORK_S)
            try:
                channel.send(request)
            except OSError as error:  # it never arrived whole, so nothing has happened
                raise UnheardError(str(error)) from error
            reply = _receive(channel, self._spin, limit_s)
        except BaseException:  # Ctrl-C too: its answer is still on the way
            channel.close()
            raise
        self._put(channel)
        return reply

    def _resolve(self, request: Commit, error: OSError) -> int:
        text = f"{self._uri} was lost while it committed"
        if request.token is None:
            raise UnavailableError(f"{text}: {error}", outcome="unknown") from error
        try:
            found: int = self.ask(FindToken(request.token), int)
        except UnavailableError as again:
            raise UnavailableError(f"{text}: {again.reason}", outcome="unknown") from error
        if not found:
            # Not there now; whether a request that is still on its way will bring it, nobody knows.
            text = f"{text}; commit again with the same token"
            raise UnavailableError(text, outcome="unknown") from error
        return found

    # Connections.

    def _take(self) -> Channel | None:
        """A connection that is free and has not been closed by the other side, as far as is known
        here: over TCP a send into a closed connection succeeds."""
        limit = self._clock.monotonic() - IDLE_S
        while True:
            with self._lock:
                if not self._idle:
                    return None
                channel, since = self._idle.pop()
            if since > limit and channel.is_open():
                return channel
            channel.close()

    def _put(self, channel: Channel) -> None:
        with self._lock:
            self._idle.append((channel, self._clock.monotonic()))
        if self.closed:
            self.drop_idle(0.0)

    def _connect(self) -> Channel:
        """Say hello; UnheardError when nobody answers, UsageError when we are not let in."""
        while True:
            try:
                channel = Channel(self._dial() if self._tls is None else self._tls.wrap(self._dial))
                self._all.add(channel)
            except OSError as error:
                raise _unheard(error) from error
            try:
                if self._greet(channel):
                    return channel
                channel.close()
            except BaseException as error:
                channel.close()
                if isinstance(error, (OSError, msgspec.MsgspecError, UnavailableError)):
                    raise _unheard(error) from error
                raise

    def _greet(self, channel: Channel) -> bool:
        """Join our session, or begin one; False when another thread has begun one meanwhile."""
        channel.limit(CALL_S, CALL_S)
        mine = self._session
        with suppress(BrokenPipeError):  # they refuse us unheard, and have said why
            channel.send(Hello(VERSION, self._token, os.getpid(), mine))
        body = channel.receive(FRAME_BYTES_MAX)
        if body is None:
            raise ConnectionResetError("the server hung up")
        welcome = _decode_greeting(body)
        if isinstance(welcome, Failed):
            raise from_wire(welcome, self.schema_of)
        if mine not in (0, welcome.session) and self.pin is not None:
            # It has forgotten us. What is still read here is told before anything else is asked.
            channel.send(PinSnapshot(self.pin.renew()))
            _receive(channel, self._spin, CALL_S)
        with self._lock:
            if self._session != mine != welcome.session:
                return False
            self._session, self.epoch = welcome.session, welcome.epoch
        return True

    def _dial(self) -> socket.socket:
        sock = socket.create_connection((self._host, self._port), CALL_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        Channel(sock).limit(CALL_S, CALL_S)  # for the handshake of TLS
        return sock


def _unheard(error: Exception) -> UnheardError:
    text = f"no answer within {CALL_S:.0f} s" if isinstance(error, BlockingIOError) else str(error)
    return UnheardError(text)


def _receive(channel: Channel, spin: Spin, limit_s: float) -> Reply:
    """The reply; OSError when it is lost."""
    try:
        body = channel.receive(FRAME_BYTES_MAX, spin)
        if body is None:
            raise ConnectionResetError("the server has hung up")
        reply: Reply = decode_reply(body)
    except BlockingIOError as error:
        raise ConnectionResetError(f"no answer within {limit_s:.0f} s") from error
    except msgspec.MsgspecError as error:
        raise ConnectionResetError(str(error)) from error
    return reply


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


def _limit_s(request: Request) -> float:
    """The longest time in which nothing of an answer may come."""
    match request:
        case Command():
            return BULK_S
        case Commit():
            return BULK_S if request.objects else WORK_S + len(request.record) // SECOND_BYTES
        case PutObject():
            return WORK_S + len(request.data) // SECOND_BYTES
        case ReadObject() | ReadFile() if request.size > SECOND_BYTES:
            return WORK_S + request.size // SECOND_BYTES
        case ReadTail():
            return WORK_S + READ_BYTES_MAX // SECOND_BYTES
    return CALL_S


def _beats(ref: weakref.ref[ServerLink], stop: Bell) -> None:
    """Renew the lease of a link for as long as somebody holds it."""
    while not stop.wait(BEAT_S):
        link = ref()
        if link is None or link.closed:
            return
        link.beat()
        del link

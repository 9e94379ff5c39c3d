"""Link: how a compute node reaches the owner, whoever that is at the moment.

    ask(request) --> a connection that is free, or a new one --> reply
                      '-- nobody there: find the new owner, or become it (`take_over`)

When the owner is gone, whoever notices first and gets the lock becomes the owner; the others find
its endpoint. From then on, requests of transactions that began before are answered in this process,
by the same code. A lock that is held by a process which does not answer is left alone: it may have
been paused, and may go on at any moment.

What may be sent twice is sent again to the new owner. A commit may be if it has a token: it happens
once, however often it arrives. Without one the outcome is unknown when the connection ends between
request and reply.

Invariants
- A request is given up as `not_committed` only if its last byte never left this process.
- One connection carries one request at a time; threads have one each, and leave it to the next.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock, RLock
from typing import Any, Final, NamedTuple
from weakref import WeakSet

import msgspec

from halocline.clock import Clock
from halocline.errors import (
    ConflictError,
    HaloclineError,
    Outcome,
    UnavailableError,
    UsageError,
)
from halocline.node.channel import Channel
from halocline.node.dispatch import Dispatch
from halocline.node.endpoint import NAME as ENDPOINT
from halocline.node.endpoint import DamagedEndpointError, Endpoint, read_endpoint
from halocline.node.faults import SchemaOf, from_wire, lost_answer
from halocline.node.push import Feed
from halocline.node.session import Session
from halocline.node.spin import Spin
from halocline.node.streams import ChannelStream
from halocline.node.wire import (
    FRAME_BYTES_MAX,
    VERSION,
    Commit,
    Failed,
    FindToken,
    Hello,
    Reply,
    Request,
    Subscribe,
    Welcome,
    decode_reply,
)

PATIENCE_S: Final = 5
"""An owner that says nothing for so long is asked whether it is still there."""
FIND_S: Final = 10.0
"""How long the owner is looked for, while the lock is held by somebody."""
PAUSE_S: Final = 0.005
HEARD_S: Final = 0.001
SPIN_S: Final = 0.0005
"""How long an answer is looked for before the thread sleeps."""
_decode_greeting = msgspec.msgpack.Decoder(Welcome | Failed).decode


class Local(NamedTuple):
    """This process has become the owner."""

    answers: Dispatch
    session: Session


class NobodyError(Exception):
    """There is no owner that answers; `holder` is what is known of the one that has the lock."""

    def __init__(self, holder: str, serves: bool = True) -> None:
        self.holder = holder
        self.serves = serves
        super().__init__(holder)


TakeOver = Callable[[], Local]
"""Become the owner; NobodyError when somebody else has the lock."""


class Link:
    """Connections of one compute node to the owner. Thread-safe."""

    pin = None
    """Pins of this machine are files."""

    def __init__(self, path: str, clock: Clock, take_over: TakeOver, schema_of: SchemaOf) -> None:
        self._path = path
        self._clock = clock
        self._take_over = take_over
        self._schema_of = schema_of
        self._idle: list[Channel] = []
        self._all: WeakSet[Channel] = WeakSet()
        self._lock = Lock()
        self._turn = RLock()
        """One thread at a time looks for the owner."""
        self._heard = -HEARD_S
        self._spin = Spin(clock, SPIN_S)
        self._session = 0
        self._pid = 0
        self.epoch = 0
        self.local: Local | None = None
        self.closed = False

    def open(self) -> None:
        """Find the owner, or become it."""
        self._put(self._find())

    def is_up(self) -> bool:
        """Has nobody told us that the owner is gone? Costs a system call, unless it has just
        answered: one that died since is noticed by the next request."""
        if self.local is not None or self._clock.monotonic() < self._heard + HEARD_S:
            return True
        channel = self._take()  # nobody uses it meanwhile
        if channel is None:
            return True
        if not channel.is_open():
            channel.close()
            return False
        self._put(channel)
        return True

    def wake(self) -> None:
        """Before work begins: if the owner is gone, find the next one, or become it."""
        if not self.is_up():
            self._put(self._find())

    def ask(self, request: Request, kind: Any) -> Any:
        """The owner's answer. Errors are those that the owner has met."""
        while True:
            if self.closed:
                raise UsageError(f"the database {self._path} is closed")
            if self.local is not None:
                return self.local.answers.answer(self.local.session, request)
            channel = self._take() or self._find()
            if channel is None:
                continue
            try:
                reply = self._exchange(channel, request)
            except BaseException:
                channel.close()
                raise
            if reply is None:
                channel.close()
                continue
            if isinstance(reply, int):
                channel.close()
                return reply
            self._put(channel)
            self._heard = self._clock.monotonic()
            if isinstance(reply, Failed):
                raise from_wire(reply, self._schema_of)
            return msgspec.msgpack.decode(reply.value, type=kind)

    def stream(self, request: Subscribe) -> Feed | ChannelStream:
        """A subscription at the owner, which may be this process."""
        if self.closed:
            raise UsageError(f"the database {self._path} is closed")
        channel = self._find()
        if channel is not None:
            return ChannelStream(channel, request, self._schema_of)
        assert self.local is not None
        return self.local.answers.hub.open(request)

    def close(self) -> None:
        self.closed = True
        self.close_idle()

    # One request.

    def _exchange(self, channel: Channel, request: Request) -> Reply | int | None:
        """The reply; None when the owner is lost and the request may be sent to the next one."""
        try:
            channel.send(request)
        except OSError:
            return None  # it never arrived whole, so nothing has happened
        try:
            while True:
                try:
                    body = channel.receive(FRAME_BYTES_MAX, self._spin)
                    break
                except BlockingIOError:
                    self._check_awake(request)
            if body is None:
                raise ConnectionResetError("the owner is gone")
            reply: Reply = decode_reply(body)
        except (OSError, msgspec.MsgspecError) as error:
            if isinstance(request, Commit):
                return self._resolve(request, error)
            if (lost := lost_answer(request)) is not None:
                raise lost from error
            return None
        return reply

    def _check_awake(self, request: Request) -> None:
        """A long request is fine as long as the owner greets others meanwhile."""
        try:
            spare = self._connect(self._endpoint())
        except HaloclineError:
            return  # it has said why it takes nobody in: it is awake
        except (OSError, NobodyError):
            text = f"process {self._pid} has {self._path} open and does not answer"
            outcome: Outcome = "unknown" if isinstance(request, Commit) else "not_committed"
            raise UnavailableError(text, outcome=outcome) from None
        # One is enough: a request may take hours, and the owner has so many places only.
        if self._idle:
            spare.close()
        else:
            self._put(spare)

    def _resolve(self, request: Commit, error: Exception) -> int:
        """The answer to a commit was lost. With a token it is sent again: it happens only once.

        One that brings files or definitions cannot be sent twice to an owner that may still be
        busy with the first: then only a token that is found tells.
        """
        text = "the owner of the database was lost while it committed"
        if request.token is None:
            raise UnavailableError(text, outcome="unknown") from error
        epoch = self.epoch
        try:
            if not (request.ddl or request.objects):
                return int(self.ask(request, int))
            found: int = self.ask(FindToken(request.token), int)
        except UnavailableError as again:  # whatever that one says: the first may have arrived
            raise UnavailableError(f"{text}: {again.reason}", outcome="unknown") from error
        if found:
            return found
        if self.local is None and self.epoch == epoch:
            raise UnavailableError(f"{text}: ask again for its token", outcome="unknown") from error
        # The next owner has read the whole log: it is not there, and nobody will bring it.
        raise ConflictError("the owner was lost before it committed") from error

    # Connections.

    def _take(self) -> Channel | None:
        """A connection that is free, if there is one. Sending finds out whether it still holds."""
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _put(self, channel: Channel | None) -> None:
        if channel is not None:
            self._idle.append(channel)
            if self.closed or self.local is not None:
                self.close_idle()

    def _find(self) -> Channel | None:
        """A connection to the owner; None when that is this process now."""
        with self._turn:
            until = self._clock.monotonic() + FIND_S
            while self.local is None:
                try:
                    return self._connect(self._endpoint())
                except (OSError, NobodyError, HaloclineError) as error:
                    refused: Exception = error
                try:
                    self.local = self._take_over()
                    self.close_idle()
                    break
                except NobodyError as nobody:
                    if isinstance(refused, UsageError):
                        raise refused from None
                    late = self._clock.monotonic() >= until
                    if not nobody.serves or late or isinstance(refused, BlockingIOError):
                        raise self._unavailable(nobody, refused) from None
                self._clock.sleep(PAUSE_S)
            return None

    def close_idle(self) -> None:
        """Connections to an owner that is gone, or of a link that is closed."""
        while (channel := self._take()) is not None:
            channel.close()

    def _endpoint(self) -> Endpoint:
        endpoint = read_endpoint(self._path)
        if endpoint is not None:
            return endpoint
        if os.path.lexists(Path(self._path, ENDPOINT)):
            raise DamagedEndpointError(self._path)
        raise NobodyError("nobody")

    def _connect(self, endpoint: Endpoint) -> Channel:
        """Say hello; OSError when nobody is there, BlockingIOError when nobody answers."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        channel = Channel(sock)
        self._all.add(channel)
        try:
            channel.limit(PATIENCE_S, PATIENCE_S)
            sock.connect(endpoint.socket)
            known = self._session if endpoint.epoch == self.epoch else 0
            with suppress(BrokenPipeError):  # they refuse us unheard, and have said why
                channel.send(Hello(VERSION, endpoint.secret, os.getpid(), known))
            body = channel.receive(FRAME_BYTES_MAX)
            if body is None:
                raise ConnectionResetError("the owner hung up")
            welcome = _decode_greeting(body)
            if isinstance(welcome, Failed):
                raise from_wire(welcome, self._schema_of)
        except (HaloclineError, OSError):
            channel.close()
            raise
        except msgspec.MsgspecError as error:
            channel.close()
            raise ConnectionResetError(str(error)) from error
        with self._lock:
            self._session, self._pid = welcome.session, welcome.pid
            self.epoch = welcome.epoch
        return channel

    def _unavailable(self, nobody: NobodyError, refused: Exception) -> UnavailableError:
        why = "it does not answer"
        if not nobody.serves:
            why = "close it there, or open it here with read_only=True"
        elif isinstance(refused, UnavailableError):
            return refused
        elif not isinstance(refused, (BlockingIOError, NobodyError)):
            why = f"it cannot be reached: {refused}"
        return UnavailableError(f"{self._path} is open for writing in {nobody.holder}; {why}")

    def abandon(self) -> None:
        """In a forked child: the connections stay the parent's."""
        self.closed = True
        for channel in list(self._all):
            channel.close()

"""Link: how a process reaches the owner, whichever process that is at the moment.

    ask(request) --> a connection that is free, or a new one by the route (routes.py) --> reply
                      '-- there is none: the route may make this process the owner
    stream(request) --> a connection of its own --> replies until one side hangs up

A request whose answer is lost is sent again, to the same owner or to the next. A commit has a
serial, or a token of the program's: it happens once, however often it arrives, and every owner
finds it in its log. Only while there is no owner to ask is its outcome unknown. Once this process
is the owner, it answers itself, by the code that answers others.

Invariants
- A request is given up as `not_committed` only if its last byte never left this process, or if the
  owner has said so.
- A connection carries one request at a time. One whose answer was not read to its end is never used
  again, nor one that was idle for longer than the route allows.
"""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import suppress
from math import inf
from typing import Any, Final, NamedTuple, Protocol
from weakref import WeakSet

import msgspec

from halocline.clock import Clock
from halocline.errors import ConflictError, HaloclineError, Outcome, UnavailableError, UsageError
from halocline.log.bell import Bell
from halocline.node.channel import Channel
from halocline.node.dispatch import Dispatch
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
    FindCommit,
    Hello,
    Ping,
    PinSnapshot,
    Position,
    Reply,
    Request,
    Subscribe,
    TakeTurns,
    Welcome,
    decode_reply,
)

FIND_S: Final = 10.0
"""How long an owner that does not answer is looked for."""
PAUSE_S: Final = 0.005
HEARD_S: Final = 0.001
"""An owner that answered so short a time ago is still there: no system call is spent on it."""
SPIN_S: Final = 0.0005
"""How long an answer is looked for before the thread sleeps."""
BEAT_S: Final = 15.0
"""How often a lease is renewed."""
_decode_greeting = msgspec.msgpack.Decoder(Welcome | Failed).decode


class Local(NamedTuple):
    """This process has become the owner."""

    answers: Dispatch
    session: Session


class Route(Protocol):
    """How connections to an owner are made, and how long it may take to answer."""

    name: str
    """The database, in messages."""
    far: bool
    """On another machine: a session has a lease, and a request that is lost again and again is
    given up."""

    @property
    def idle_s(self) -> float:
        """How long a connection may be idle and still be used."""

    def dial(self) -> tuple[Channel, bytes]:
        """A new connection, and the token to say on it; OSError when there is nobody."""

    def limits_s(self, request: Request) -> tuple[float, float]:
        """The longest step of receiving the answer, and of sending the request."""

    def instead(self, refused: Exception, late: bool) -> Local | None:
        """No connection could be made: become the owner, or return None to try again. Raises the
        error for the caller when that makes no sense, or when it has become late."""

    def check_awake(self, link: Link, request: Request) -> None:
        """The owner has said nothing for so long; returns if the answer may still come."""


class UnheardError(ConnectionError):
    """The owner has not heard the request, and never will."""


class Link:
    """Connections of one process to the owner. Thread-safe."""

    def __init__(self, route: Route, clock: Clock, schema_of: SchemaOf = lambda _: None) -> None:
        self._route = route
        self._clock = clock
        self.schema_of = schema_of
        self._idle: list[tuple[Channel, float]] = []
        self._sequences: list[tuple[int, int]] = []
        """Of the serials of commits: as many as there were commits on their way at once."""
        self._all: WeakSet[Channel] = WeakSet()
        self._lock = threading.Lock()
        self._spin = Spin(clock, SPIN_S)
        self._session = 0
        self.pid = self.epoch = 0
        """Of the owner that was greeted last."""
        self.local: Local | None = None
        self.closed = False
        self.pin: Any = None
        """A RemotePin: what this process reads, told again to an owner that has forgotten us."""
        self.far = route.far
        self._bell = Bell()
        if route.far:
            beats = (weakref.ref(self), self._bell)
            threading.Thread(target=_beats, args=beats, name="halocline-beat", daemon=True).start()

    def open(self) -> None:
        """Find the owner, or become it."""
        self.put(self._find())

    def wake(self) -> None:
        """Before work begins: if the owner is gone, find the next one, or become it.

        One that died just now is noticed by the next request.
        """
        newest = self._idle[-1:]
        if self.local is None and newest and self._clock.monotonic() >= newest[0][1] + HEARD_S:
            self.put(self._take() or self._find())

    def ask(self, request: Request, kind: Any) -> Any:
        """The owner's answer. Errors are those that the owner has met."""
        lost: Exception | None = None
        until = self._clock.monotonic() + (FIND_S if self.far else inf)
        while True:
            try:
                channel = self._take() or self._find()
                if channel is None:
                    break
                epoch = self.epoch
                reply = self._exchange(channel, request)
                if isinstance(reply, Failed):
                    raise from_wire(reply, self.schema_of)
                return msgspec.msgpack.decode(reply.value, type=kind)
            except UnheardError as error:
                failed: OSError = error
            except OSError as error:
                failed = lost = error
                if isinstance(request, Commit):
                    if found := self._find_commit(request, epoch, error):
                        return found
                    request = msgspec.structs.replace(request, again=True)
                elif (never := lost_answer(request)) is not None:
                    raise never from error
            except UnavailableError as error:
                if lost is None or not isinstance(request, Commit):
                    raise
                raise self._unknown(error.reason) from lost
            if self._clock.monotonic() >= until:
                if lost is not None and isinstance(request, Commit):
                    raise self._unknown(str(failed)) from lost
                raise UnavailableError(f"{self._route.name} does not answer: {failed}") from failed
            self._clock.sleep(PAUSE_S)
        assert self.local is not None
        return self.local.answers.answer(self.local.session, request)

    def commit(self, request: Commit, kind: Any) -> Any:
        """Have the owner commit. It gets the next serial of a sequence, if it has no token.

        A sequence that a commit of unknown outcome belongs to is not used again.
        """
        if request.token is not None:
            return self.ask(request, kind)
        try:
            sequence, number = self._sequences.pop()
        except IndexError:
            sequence, number = int.from_bytes(self._clock.random_bytes(8)) >> 1 or 1, 0
        request = msgspec.structs.replace(request, serial=(sequence, number + 1))
        try:
            answer = self.ask(request, kind)
        except HaloclineError as error:
            if not (isinstance(error, UnavailableError) and error.outcome == "unknown"):
                self._sequences.append((sequence, number + 1))
            raise
        self._sequences.append((sequence, number + 1))
        return answer

    def stream(self, request: Subscribe) -> Feed | ChannelStream:
        """A subscription. It has a connection of its own: a slow reader holds up nothing else."""
        channel = self._find()
        if channel is not None:
            return ChannelStream(channel, request, self.schema_of)
        assert self.local is not None
        return self.local.answers.hub.open(request)

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
        self.drop_idle(self._route.idle_s)
        with suppress(HaloclineError, OSError):
            if self.pin is not None:
                self.pin.tell()
            else:
                self.ask(Ping(), Position)

    # One request.

    def _exchange(self, channel: Channel, request: Request) -> Reply:
        """UnheardError when it was not sent, another OSError when its answer is lost."""
        try:
            if self.far:  # on one machine they stay as they were when it was made
                channel.limit(*self._route.limits_s(request))
            try:
                channel.send(request)
            except OSError as error:  # it never arrived whole, so nothing has happened
                raise UnheardError(str(error)) from error
            reply = self._receive(channel, request)
        except BaseException:  # Ctrl-C too: its answer is still on the way
            channel.close()
            raise
        self.put(channel)
        return reply

    def _receive(self, channel: Channel, request: Request) -> Reply:
        while True:
            try:
                spin = None if type(request) is TakeTurns else self._spin  # others come first
                body = channel.receive(FRAME_BYTES_MAX, spin)
                break
            except BlockingIOError:
                self._route.check_awake(self, request)
        if body is None:
            raise ConnectionResetError("the owner is gone")
        try:
            reply: Reply = decode_reply(body)
        except msgspec.MsgspecError as error:
            raise ConnectionResetError(str(error)) from error
        return reply

    def _find_commit(self, commit: Commit, epoch: int, error: OSError) -> int:
        """The answer to a commit was lost: its commit_ts, if it has happened; 0: send it again.

        One that brings files or definitions cannot be sent twice to an owner that may still be
        busy with the first: then it stays unknown.
        """
        try:
            found: int = self.ask(FindCommit(commit.token, commit.serial), int)
        except UnavailableError as again:  # whatever that one says: the first may have arrived
            raise self._unknown(again.reason) from error
        if found or not (commit.ddl or commit.objects):
            return found
        if self.local is None and self.epoch == epoch:
            raise self._unknown("it may still be busy with it") from error
        # The next owner has read the whole log: it is not there, and nobody will bring it.
        raise ConflictError("the owner was lost before it committed") from error

    def _unknown(self, why: str) -> UnavailableError:
        text = f"the owner of {self._route.name} was lost while it committed: {why}"
        return UnavailableError(text, outcome="unknown")

    # Connections.

    def _take(self) -> Channel | None:
        """A connection that is free, and open as far as is known here."""
        while self._idle:
            try:
                channel, since = self._idle.pop()
            except IndexError:  # another thread was faster
                return None
            if self._clock.monotonic() < since + self._route.idle_s and channel.is_open():
                return channel
            channel.close()
        return None

    def put(self, channel: Channel | None) -> None:
        """Keep a connection for the next request."""
        if channel is not None:
            self._idle.append((channel, self._clock.monotonic()))
            if self.closed or self.local is not None:
                self.drop_idle(0.0)

    def put_spare(self) -> None:
        """Make one more connection, to see whether the owner is awake. One is enough: a request
        may take hours, and the owner has only so many places."""
        spare = self.connect()
        if spare is not None and self._idle:
            spare.close()
        else:
            self.put(spare)

    def drop_idle(self, older_s: float) -> None:
        """Close the connections that were not used for so long."""
        limit = self._clock.monotonic() - older_s
        for pair in self._idle.copy():
            if pair[1] <= limit:
                with suppress(ValueError):  # another thread uses it now
                    self._idle.remove(pair)
                    pair[0].close()

    def _find(self) -> Channel | None:
        """A new connection to the owner; None when that is this process now."""
        until = self._clock.monotonic() + FIND_S
        while self.local is None:
            if self.closed:
                raise UsageError(f"the database {self._route.name} is closed")
            try:
                channel = self.connect()
                if channel is not None:
                    return channel
                continue
            except (OSError, HaloclineError) as error:
                refused: Exception = error
            self.local = self._route.instead(refused, self._clock.monotonic() >= until)
            if self.local is not None:
                self.drop_idle(0.0)
                break
            self._clock.sleep(PAUSE_S)
        return None

    def connect(self) -> Channel | None:
        """Say hello; None when another thread has just begun a session that is to be joined.

        OSError when nobody is there, BlockingIOError when nobody answers, and the owner's own error
        when it lets nobody in.
        """
        channel, token = self._route.dial()
        self._all.add(channel)
        try:
            if self._greet(channel, token):
                return channel
            channel.close()
        except BaseException:
            channel.close()
            raise
        return None

    def _greet(self, channel: Channel, token: bytes) -> bool:
        """Join our session, or begin one; False when another thread has begun one meanwhile."""
        mine = self._session
        with suppress(BrokenPipeError):  # they refuse us unheard, and have said why
            channel.send(Hello(VERSION, token, os.getpid(), mine))
        body = channel.receive(FRAME_BYTES_MAX)
        if body is None:
            raise ConnectionResetError("the owner hung up")
        try:
            welcome = _decode_greeting(body)
        except msgspec.MsgspecError as error:
            raise ConnectionResetError(str(error)) from error
        if isinstance(welcome, Failed):
            raise from_wire(welcome, self.schema_of)
        if mine not in (0, welcome.session) and self.pin is not None:
            # It has forgotten us. What is still read here is told before anything else is asked.
            channel.send(PinSnapshot(self.pin.renew()))
            self._receive(channel, Ping())
        with self._lock:
            if self._session != mine != welcome.session:
                return False
            self._session, self.epoch, self.pid = welcome.session, welcome.epoch, welcome.pid
        return True


def outcome_of(request: Request) -> Outcome:
    """What is known of a request that was sent and is not answered."""
    return "unknown" if isinstance(request, Commit) else "not_committed"


def _beats(ref: weakref.ref[Link], stop: Bell) -> None:
    """Renew the lease of a link for as long as the program holds the link."""
    while not stop.wait(BEAT_S):
        link = ref()
        if link is None or link.closed:
            return
        link.beat()
        del link

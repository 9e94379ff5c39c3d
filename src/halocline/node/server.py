"""The transaction node for other machines: the same requests, over Arrow Flight.

    FlightLink --do_exchange: Call, Call ...--> Server --Answers--> Returned, Returned ...
               --do_action("ask", Call)--> Server --Answers--> Returned
               --do_get(Call: Subscribe)--> Server --Hub--> replies, one row each, until it ends

No connection ends a session here: it has a lease, on the owner's monotonic
clock, which every request renews; a client that has nothing to ask says so now and then. A session
whose lease is over loses its pins, jobs and catalog transactions.

Whoever neither asks nor reads any more is cut off (cut.py, visitors.py): its thread would wait for
it for ever. A server that stops answers what it has read, refuses what comes then, and cuts off who
is silent.

Anything but a loopback address needs TLS and a token that the caller has chosen. Tokens are
compared in constant time; one for reading may read and pin, nothing else.

Not here: the client's side (flight.py).
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from math import inf
from typing import Any, Final

import msgspec
import pyarrow as pa

from halocline.clock import SystemClock
from halocline.errors import HaloclineError, UnavailableError, UsageError
from halocline.log.bell import Bell
from halocline.node.answers import Answers
from halocline.node.cut import cut
from halocline.node.faults import to_wire
from halocline.node.grpc import direct_reads
from halocline.node.limits import read_request
from halocline.node.owner import Owner
from halocline.node.promising import commit_look, promise_of
from halocline.node.push import Feed
from halocline.node.session import Session
from halocline.node.visitors import EXCHANGES_MAX, SENDS, WAITS, WORKS, Visitor, Visitors
from halocline.node.wire import (
    ASK,
    FRAME_BYTES_MAX,
    NIL,
    READS,
    VERSION,
    Call,
    CommitLook,
    Done,
    Reply,
    Request,
    Returned,
    Subscribe,
    decode_call,
    encode,
)

LEASE_S: Final = 60.0
SESSIONS_MAX: Final = 1024
PAUSE_S: Final = 0.05
TOKEN_BYTES: Final = 32
PUSH_S: Final = 30.0
"""How long a subscriber may take nothing of what it is sent."""
STOP_PUSH_S: Final = 1.0
"""How long a subscriber may take to hear that it is over."""
REPLIES: Final = pa.schema([pa.field("reply", pa.binary(), nullable=False)])


class Server:
    """Serves one database to other machines. `Database.serve` makes one."""

    def __init__(
        self,
        owner: Owner,
        epoch: int,
        *,
        host: str,
        port: int,
        token: str | None,
        read_token: str | None,
        tls: tuple[bytes, bytes] | None,
        sync: bool,
        numbers: Iterator[int],
    ) -> None:
        """`numbers` are for sessions and catalog transactions: none is ever given twice, by the
        next server of this owner neither."""
        if not is_loopback(host) and (tls is None or token is None):
            raise UsageError(
                f"{host} can be reached from elsewhere: give tls_cert=, tls_key= and token="
            )
        self.token = token or SystemClock().random_bytes(TOKEN_BYTES).hex()
        self._secrets = {"write": self.token.encode()}
        if read_token is not None:
            self._secrets["read"] = read_token.encode()
        self._answers = Answers(weakref.ref(owner), sync=sync)
        self._epoch = epoch
        self._clock = SystemClock()
        self._promise = promise_of(owner.core.writing, self._clock)
        self._lock = threading.Lock()
        self._sessions: dict[int, tuple[Session, float]] = {}
        self._numbers = numbers
        self._peers: dict[Feed, str] = {}
        """Who gets what is pushed."""
        self.visitors = Visitors(self._clock)
        self._stopping = self._stopped = False
        self._stop = Bell()
        scheme = "grpc" if tls is None else "grpc+tls"
        self._server = _listen(self, f"{scheme}://{_bracketed(host)}:{port}", tls)
        self.uri = f"{scheme}://{_bracketed(host)}:{self._server.port}"
        """What clients connect to."""
        self._reaper = threading.Thread(target=self._reap, name="halocline-leases", daemon=True)
        self._reaper.start()
        # Also for a program that forgets to close: later than this, pyarrow would wait for all.
        self._at_exit = weakref.finalize(self._server, self._forgotten, os.getpid())

    def stop(self) -> None:
        """Answer what was asked, then listen no more. Stopping twice is fine."""
        if not self._stopping:
            self._stopping = True
            self._stop.ring()
            self._answers.hub.stop()
            self._server.shutdown()  # waits for all; the reaper lets those go who are silent
            self._stopped = True
            self._reaper.join()
            self.reap(inf)  # nobody can come back to one of them
            self._at_exit.detach()

    def _forgotten(self, pid: int) -> None:
        if os.getpid() == pid:  # in a forked child the connections are the parent's
            self.stop()

    def answer(self, body: bytes) -> bytes:
        """One call; every error is part of the answer."""
        return self._answer(body)[1]

    def _answer(self, body: bytes, since: float | None = None) -> tuple[int, bytes]:
        """The session, 0 for one that was not let in, and the answer.

        `since`: when it came, through an exchange.
        """
        number = 0
        try:
            role, call = self._admit(body)
            session = self._session(call.session, role)
            number = session.number
            request = _request(role, call)
            if since is not None and isinstance(request, CommitLook):
                value = commit_look(self._answers, session, request, self._promise, since)
            else:
                value = self._answers.answer(session, request)
            return number, self._returned(number, value)
        except Exception as error:  # noqa: BLE001 a bug of ours must not take the owner down
            return number, self._returned(number, error)

    def converse(self, hello: bytes, reader: Any, writer: Any, peer: str) -> None:
        """An exchange: calls one after another, until the client has none or is not let in."""
        # Before anything else is read: what comes may be Arrow, which unpacks itself.
        self._admit(hello)
        with self.visitors.visit(peer) as visitor:
            try:
                self._talk(visitor, reader, writer)
            finally:
                self._promise.leave()

    def _talk(self, visitor: Visitor, reader: Any, writer: Any) -> None:
        while (body := _received(reader)) is not None:
            if body == NIL:
                continue
            visitor.turn(WORKS)
            number, answer = self._converse(visitor, body)
            visitor.turn(SENDS)
            writer.write_metadata(answer)
            if not number or self._stopping:
                return
            visitor.turn(WAITS)

    def _converse(self, visitor: Visitor, body: bytes) -> tuple[int, bytes]:
        if self._stopping:
            return 0, self._returned(0, UnavailableError("the server is stopping"))
        if not visitor.calls and len(self.visitors) > EXCHANGES_MAX:
            return 0, NIL
        visitor.calls += 1
        return self._answer(body, visitor.since)

    def push(self, body: bytes, peer: str) -> Iterator[bytes]:
        """The replies to a subscription; an error is the last of them."""
        feed: Feed | None = None
        try:
            request = _request(*self._admit(body))
            if not isinstance(request, Subscribe):
                raise UsageError("only a subscription is a stream")
            feed = self._answers.hub.open(request)
            self._peers[feed] = peer
            for pushed in feed:
                yield encode(Done(msgspec.Raw(encode(pushed))))
        except HaloclineError as error:
            yield encode(to_wire(error, self._answers.schema_of))
        finally:
            if feed is not None:
                feed.close()
                self._peers.pop(feed, None)

    def _admit(self, body: bytes) -> tuple[str, Call]:
        """Who calls, reader or writer, and what was said; UsageError for strangers."""
        try:
            call = decode_call(body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise UsageError(f"the request makes no sense: {error}") from error
        role = self._role(call.token)
        if role is None:
            raise UsageError("the token is not one of this server")
        if call.version != VERSION:
            text = f"this process speaks protocol {call.version}, the owner {VERSION}"
            raise UsageError(text)
        return role, call

    def _returned(self, session: int, value: Any) -> bytes:
        reply: Reply
        if isinstance(value, Exception):
            reply = to_wire(value, self._answers.schema_of)
        else:
            reply = Done(msgspec.Raw(encode(value)))
        return encode(Returned(session, self._epoch, encode(reply)))

    def _role(self, token: bytes) -> str | None:
        found = None
        for role, secret in self._secrets.items():
            if hmac.compare_digest(token, secret):
                found = role
        return found

    def _session(self, number: int, role: str) -> Session:
        """A session whose lease is renewed; a new one for a number that is not known any more, or
        is that of somebody with another token."""
        until = self._clock.monotonic() + LEASE_S
        with self._lock:
            session, _ = self._sessions.get(number, (None, 0.0))
            if session is None or session.role != role:
                if len(self._sessions) >= SESSIONS_MAX:
                    text = (
                        f"the server has {SESSIONS_MAX} sessions already: close one, or try later"
                    )
                    raise UnavailableError(text)
                session = Session(next(self._numbers), self._numbers, role)
            self._sessions[session.number] = (session, until)
            return session

    def _reap(self) -> None:
        while not self._stop.wait(LEASE_S / 10):
            self.reap(self._clock.monotonic())
            self.sweep(self._clock.monotonic())
        until = self._clock.monotonic() + STOP_PUSH_S
        while not self._stopped:
            now = self._clock.monotonic()
            peers = self.visitors.overdue(now, stopping=True)
            if now > until:
                peers |= set(self._peers.values())
            self._cut(peers)
            self._clock.sleep(PAUSE_S)

    def reap(self, now: float) -> None:
        """End the sessions whose lease was over by then."""
        with self._lock:
            lapsed = [one for one, until in self._sessions.values() if until < now]
            for session in lapsed:
                del self._sessions[session.number]
        for session in lapsed:
            with suppress(HaloclineError):
                self._answers.end(session)

    def sweep(self, now: float) -> None:
        """Cut off who has been silent for too long by then."""
        peers = self.visitors.overdue(now)
        peers |= {peer for feed, peer in list(self._peers.items()) if feed.stalled_s() > PUSH_S}
        self._cut(peers)

    def _cut(self, peers: set[str]) -> None:
        for peer in peers:
            with suppress(OSError):  # no descriptor is free: next time
                cut(self._server.port, peer)


def _request(role: str, call: Call) -> Request:
    """What is asked for, if the caller may."""
    try:
        request = read_request(call.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"the request makes no sense: {error}") from error
    if role == "read" and not isinstance(request, READS):
        raise UsageError("this token is for reading only")
    return request


def _listen(server: Server, location: str, tls: tuple[bytes, bytes] | None) -> Any:
    """A Flight server that hands calls on. Imported here: most programs need none."""
    from pyarrow import ArrowException, flight

    ref = weakref.ref(server)

    class Door(flight.FlightServerBase):  # type: ignore[misc]
        def do_action(self, context: Any, action: Any) -> Iterator[Any]:
            found = ref()
            if found is None or action.type != ASK:
                raise flight.FlightServerError("this server answers calls of Halocline only")
            if action.body.size > FRAME_BYTES_MAX:
                raise flight.FlightServerError(f"a call has at most {FRAME_BYTES_MAX} bytes")
            with found.visitors.visit(context.peer()) as visitor:
                visitor.turn(WORKS)
                result = flight.Result(found.answer(action.body.to_pybytes()))
                visitor.turn(SENDS)
                yield result

        def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
            found = ref()
            if found is None:
                raise flight.FlightServerError("this server has stopped")
            try:
                found.converse(descriptor.command or b"", reader, writer, context.peer())
            except (HaloclineError, ArrowException, OSError, ValueError) as error:
                raise flight.FlightServerError(str(error)) from error

        def do_get(self, context: Any, ticket: Any) -> Any:
            found = ref()
            if found is None:
                raise flight.FlightServerError("this server has stopped")
            replies = found.push(ticket.ticket, context.peer())
            batches = (_batch(reply) for reply in replies)
            return flight.GeneratorStream(REPLIES, batches)

    try:
        with direct_reads():
            return Door(location, tls_certificates=None if tls is None else [tls])
    except (OSError, flight.FlightError, ArrowException, ValueError, RuntimeError) as error:
        # A port that is taken is "did not start properly" here; gRPC has told stderr why.
        raise UnavailableError(f"{location} cannot be listened on: {error}") from error


def _received(reader: Any) -> bytes | None:
    """The next call of an exchange; None at its end."""
    try:
        chunk = reader.read_chunk()
    except StopIteration:
        return None
    data = chunk.app_metadata
    if chunk.data is not None or data is None:
        raise ValueError("an exchange brings calls, no rows")
    if data.size > FRAME_BYTES_MAX:
        raise ValueError(f"a call has at most {FRAME_BYTES_MAX} bytes")
    return bytes(data.to_pybytes())


def _batch(reply: bytes) -> pa.RecordBatch:
    return pa.record_batch([pa.array([reply], pa.binary())], schema=REPLIES)


def is_loopback(host: str) -> bool:
    """Can only this machine reach it?"""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host

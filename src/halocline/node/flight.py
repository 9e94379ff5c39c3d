"""The transaction node for other machines: the same requests, over Arrow Flight.

    FlightLink --do_action("ask", Call)--> Server --Answers--> Returned

There are no connections here that could end a session: it has a lease, on the owner's monotonic
clock, which every request renews; a client that has nothing to ask says so now and then. A session
whose lease is over loses its pins, jobs and catalog transactions.

Anything but a loopback address needs TLS and a token that the caller has chosen. Tokens are
compared in constant time; one for reading may read and pin, nothing else.
"""

from __future__ import annotations

import hmac
import ipaddress
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import msgspec

from halocline.clock import Clock, SystemClock
from halocline.errors import HaloclineError, UnavailableError, UsageError
from halocline.node.answers import Answers, Owner
from halocline.node.faults import from_wire, lost_answer, to_wire
from halocline.node.session import Session
from halocline.node.wire import (
    READ_BYTES_MAX,
    READS,
    VERSION,
    Call,
    Command,
    Commit,
    Done,
    Failed,
    FindToken,
    Ping,
    Position,
    PutObject,
    ReadFile,
    ReadObject,
    ReadTail,
    Reply,
    Request,
    Returned,
    decode_call,
    decode_reply,
    decode_request,
    decode_returned,
    encode,
)

if TYPE_CHECKING:
    from pyarrow import flight

LEASE_S: Final = 60.0
BEAT_S: Final = 15.0
FIND_S: Final = 10.0
CALL_S: Final = 5.0
"""How long an answer may take that needs little work. A server that is silent for longer is asked
again, through another connection: between two machines bytes can be lost without a word."""
WORK_S: Final = 30.0
"""How long a commit of rows may take, and what brings or fetches much; then it counts as lost."""
BULK_S: Final = 3600.0
"""How long a commit that brings files may take, and a maintenance call."""
SECOND_BYTES: Final = 1 << 20
"""Bytes that a slow line carries in a second."""
PAUSE_S: Final = 0.05
TOKEN_BYTES: Final = 32
ASK: Final = "ask"
_CHANNEL: Final = [
    ("grpc.use_local_subchannel_pool", 1),  # a new client gets a new connection
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]


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
    ) -> None:
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
        self._lock = threading.Lock()
        self._sessions: dict[int, tuple[Session, float]] = {}
        self._numbers = count((epoch << 32) + (1 << 31))
        self._stopping = threading.Event()
        scheme = "grpc" if tls is None else "grpc+tls"
        self._server = _listen(self, f"{scheme}://{_bracketed(host)}:{port}", tls)
        self.uri = f"{scheme}://{_bracketed(host)}:{self._server.port}"
        """What clients connect to."""
        self._reaper = threading.Thread(target=self._reap, name="halocline-leases", daemon=True)
        self._reaper.start()

    def stop(self) -> None:
        """Answer what was asked, then listen no more. Stopping twice is fine."""
        if not self._stopping.is_set():
            self._stopping.set()
            self._server.shutdown()
            self._reaper.join()

    def answer(self, body: bytes) -> bytes:
        """One call; every error is part of the answer."""
        try:
            call = decode_call(body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return self._returned(0, UsageError(f"the request makes no sense: {error}"))
        role = self._role(call.token)
        if role is None:
            return self._returned(0, UsageError("the token is not one of this server"))
        if call.version != VERSION:
            text = f"this process speaks protocol {call.version}, the owner {VERSION}"
            return self._returned(0, UsageError(text))
        session = self._session(call.session)
        try:
            request = decode_request(call.body)
            if role == "read" and not isinstance(request, READS):
                raise UsageError("this token is for reading only")
            value = self._answers.answer(session, request)
            return self._returned(session.number, value)
        except HaloclineError as error:
            return self._returned(session.number, error)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            wrong = UsageError(f"the request makes no sense: {error}")
            return self._returned(session.number, wrong)
        except Exception as error:  # noqa: BLE001 a bug of ours must not take the owner down
            return self._returned(session.number, error)

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

    def _session(self, number: int) -> Session:
        """A session whose lease is renewed; a new one for a number that is not known any more."""
        until = self._clock.monotonic() + LEASE_S
        with self._lock:
            session, _ = self._sessions.get(number, (None, 0.0))
            if session is None:
                session = Session(next(self._numbers), self._numbers)
            self._sessions[session.number] = (session, until)
            return session

    def _reap(self) -> None:
        while not self._stopping.wait(LEASE_S / 10):
            self.reap(self._clock.monotonic())

    def reap(self, now: float) -> None:
        """End the sessions whose lease was over by then."""
        with self._lock:
            lapsed = [one for one, until in self._sessions.values() if until < now]
            for session in lapsed:
                del self._sessions[session.number]
        for session in lapsed:
            with suppress(HaloclineError):
                self._answers.end(session)


def _listen(server: Server, location: str, tls: tuple[bytes, bytes] | None) -> Any:
    """A Flight server that hands calls on. Imported here: most programs need none."""
    from pyarrow import ArrowException, flight

    ref = weakref.ref(server)

    class Door(flight.FlightServerBase):  # type: ignore[misc]
        def do_action(self, context: Any, action: Any) -> Iterator[Any]:
            found = ref()
            if found is None or action.type != ASK:
                raise flight.FlightServerError("this server answers calls of Halocline only")
            yield flight.Result(found.answer(action.body.to_pybytes()))

    try:
        return Door(location, tls_certificates=None if tls is None else [tls])
    except (OSError, flight.FlightError, ArrowException, ValueError, RuntimeError) as error:
        # A port that is taken is "did not start properly" here; gRPC has told stderr why.
        raise UnavailableError(f"{location} cannot be listened on: {error}") from error


class FlightLink:
    """The way to an owner on another machine; what `Link` is on one. Thread-safe."""

    local = None

    def __init__(self, uri: str, token: str, clock: Clock, tls_roots: bytes | None) -> None:
        self._uri = uri
        self._token = token.encode()
        self._clock = clock
        self._tls_roots = tls_roots
        self._session = 0
        self._lock = threading.Lock()
        self.epoch = 0
        self.closed = False
        self.schema_of: Any = lambda table: None
        self.pin: Any = None
        """Told again to an owner that has forgotten us."""
        self._client = self._connect()
        self._beat = threading.Event()
        thread = threading.Thread(
            target=_beats, args=(weakref.ref(self), self._beat), name="halocline-beat", daemon=True
        )
        thread.start()

    def wake(self) -> None:
        """Nobody here can take over: the next request finds out."""

    def ask(self, request: Request, kind: Any) -> Any:
        """The owner's answer. Errors are those that the owner has met."""
        body = encode(request)
        until = self._clock.monotonic() + FIND_S
        while True:
            if self.closed:
                raise UsageError(f"the database {self._uri} is closed")
            try:
                returned = self._call(body, _limit_s(request))
            except OSError as error:
                if isinstance(request, Commit):
                    return self._resolve(request, error)
                if (lost := lost_answer(request)) is not None:
                    raise lost from error
                if self._clock.monotonic() >= until:
                    raise UnavailableError(f"{self._uri} does not answer: {error}") from error
                self._clock.sleep(PAUSE_S)
                continue
            reply = decode_reply(returned.body)
            if isinstance(reply, Failed):
                raise from_wire(reply, self.schema_of)
            return msgspec.msgpack.decode(reply.value, type=kind)

    def close(self) -> None:
        self.closed = True
        self._beat.set()
        self._client.close()

    def abandon(self) -> None:
        """In a forked child: the parent's connection cannot be used."""
        self.closed = True

    def _call(self, body: bytes, limit_s: float) -> Returned:
        from pyarrow import flight

        call = encode(Call(VERSION, self._token, self._session, body))
        client = self._client
        try:
            options = flight.FlightCallOptions(timeout=limit_s)
            (result,) = client.do_action(flight.Action(ASK, call), options)
            returned: Returned = decode_returned(result.body.to_pybytes())
        except flight.FlightTimedOutError as error:
            self._renew(client)
            raise ConnectionResetError(f"no answer within {limit_s:.0f} s") from error
        except (flight.FlightError, msgspec.MsgspecError) as error:
            raise ConnectionResetError(str(error)) from error
        known, self._session, self.epoch = self._session, returned.session, returned.epoch
        if known and known != self._session and self.pin is not None:
            self.pin.tell()
        return returned

    def _renew(self, silent: flight.FlightClient) -> None:
        """The next call takes a new connection: the old one may be dead, and nobody will tell.

        Other threads may be waiting on the old one; it goes when the last of them lets go of it.
        """
        with self._lock:
            if self._client is silent and not self.closed:
                self._client = self._connect()

    def _resolve(self, request: Commit, error: OSError) -> int:
        text = f"{self._uri} was lost while it committed"
        if request.token is None:
            raise UnavailableError(f"{text}: {error}", outcome="unknown") from error
        try:
            found: int = self.ask(FindToken(request.token), int)
        except UnavailableError as again:
            raise UnavailableError(f"{text}: {again.reason}", outcome="unknown") from error
        if not found:
            # Not there now; whether a call that is still on its way will bring it, nobody knows.
            text = f"{text}; commit again with the same token"
            raise UnavailableError(text, outcome="unknown") from error
        return found

    def _connect(self) -> flight.FlightClient:
        from pyarrow import flight

        options: dict[str, Any] = {"generic_options": _CHANNEL}
        if self._tls_roots is not None:
            options["tls_root_certs"] = self._tls_roots
        try:
            return flight.connect(self._uri, **options)
        except (flight.FlightError, ValueError, OSError) as error:
            raise UsageError(f"{self._uri!r} is not the address of a server: {error}") from error


def _limit_s(request: Request) -> float:
    """The longest time that a request may take."""
    match request:
        case Command():
            return BULK_S
        case Commit():
            return BULK_S if request.objects else WORK_S + len(request.record) / SECOND_BYTES
        case PutObject():
            return WORK_S + len(request.data) / SECOND_BYTES
        case ReadObject() | ReadFile() if request.size > SECOND_BYTES:
            return WORK_S + request.size / SECOND_BYTES
        case ReadTail():
            return WORK_S + READ_BYTES_MAX / SECOND_BYTES
    return CALL_S


def _beats(ref: weakref.ref[FlightLink], stop: threading.Event) -> None:
    """Renew the lease of a link for as long as somebody holds it."""
    while not stop.wait(BEAT_S):
        link = ref()
        if link is None or link.closed:
            return
        with suppress(HaloclineError, OSError):
            if link.pin is not None:
                link.pin.tell()
            else:
                link.ask(Ping(), Position)
        del link


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

"""The way to a transaction node on another machine, over Arrow Flight.

    ask --do_action("ask", Call)--> Server (server.py) --> Returned --> answer, or its error
    stream --do_get(Call: Subscribe)--> Server --> replies, one row each

There is no connection that could end a session, so it has a lease: every request renews it, and
somebody who has nothing to ask says so now and then.
"""

from __future__ import annotations

import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from halocline.clock import Clock
from halocline.errors import HaloclineError, UnavailableError, UsageError
from halocline.log.bell import Bell
from halocline.node.faults import from_wire, lost_answer
from halocline.node.streams import FlightStream
from halocline.node.wire import (
    ASK,
    READ_BYTES_MAX,
    VERSION,
    Call,
    Command,
    Commit,
    Failed,
    FindToken,
    Ping,
    Position,
    PutObject,
    ReadFile,
    ReadObject,
    ReadTail,
    Request,
    Returned,
    Subscribe,
    decode_reply,
    decode_returned,
    encode,
)

if TYPE_CHECKING:
    from pyarrow import flight

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
_CHANNEL: Final = [
    ("grpc.use_local_subchannel_pool", 1),  # a new client gets a new connection
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]


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
        self._beat = Bell()
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

    def stream(self, request: Subscribe) -> FlightStream:
        """A subscription. It has a connection of its own: a slow reader holds up nothing else."""
        if self.closed:
            raise UsageError(f"the database {self._uri} is closed")
        call = encode(Call(VERSION, self._token, 0, encode(request)))
        return FlightStream(self._connect(), call, self.schema_of)

    def close(self) -> None:
        self.closed = True
        self._beat.ring()
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


def _beats(ref: weakref.ref[FlightLink], stop: Bell) -> None:
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

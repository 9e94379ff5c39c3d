"""The way to a transaction node on another machine, over Arrow Flight.

    ask --Call--> Exchange (exchange.py) --> Server (server.py) --> Returned --> answer, or error
         '-- too many of them, or much to say: do_action("ask", Call), a call for this alone
    stream --do_get(Call: Subscribe)--> Server --> replies, one row each

No connection ends a session, so it has a lease: every request renews it, and somebody who has
nothing to ask says so now and then.

Invariants
- A commit is given up as `not_committed` only if it was never handed to gRPC, or if the server has
  said so. When its answer is lost, only its token tells.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from halocline.clock import Clock
from halocline.errors import HaloclineError, UnavailableError, UsageError
from halocline.log.bell import Bell
from halocline.node.exchange import (
    Exchange,
    Exchanges,
    NoExchangeError,
    UnheardError,
    keep_for_ever,
)
from halocline.node.faults import from_wire, lost_answer
from halocline.node.grpc import direct_reads
from halocline.node.streams import FlightStream
from halocline.node.trust import From, Trust
from halocline.node.wire import (
    ASK,
    READ_BYTES_MAX,
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
ALONE_BYTES: Final = 4 << 20
"""A longer request is a call of its own: the server cuts off an exchange that asks nothing for a
minute, and cannot see that half a request has come."""
PAUSE_S: Final = 0.05
WATCH_S: Final = 0.25
"""How often somebody looks for answers that are late."""
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
        self.trust: Trust | None = None
        """Of those who follow the log: a commit brings them what a look would."""
        self._client = self._connect()
        self._exchanges = Exchanges(_weakly(self), clock)
        # Also for a program that forgets to close.
        weakref.finalize(self, self._exchanges.close)
        self._bells = (Bell(), Bell())
        for work, bell in zip((_beats, _watches), self._bells, strict=True):
            thread = threading.Thread(
                target=work, args=(weakref.ref(self), bell), name="halocline-beat", daemon=True
            )
            thread.start()

    def wake(self) -> None:
        """Nobody here can take over: the next request finds out."""

    def ask(self, request: Request, kind: Any) -> Any:
        """The owner's answer. Errors are those that the owner has met."""
        body, look = self._body(request)
        until = self._clock.monotonic() + FIND_S
        while True:
            if self.closed:
                raise UsageError(f"the database {self._uri} is closed")
            try:
                reply = self._call(body, _limit_s(request), look)
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

    def stream(self, request: Subscribe) -> FlightStream:
        """A subscription. It has a connection of its own: a slow reader holds up nothing else."""
        if self.closed:
            raise UsageError(f"the database {self._uri} is closed")
        call = encode(Call(VERSION, self._token, 0, encode(request)))
        return FlightStream(self._connect(), call, self.schema_of)

    def close(self) -> None:
        self.closed = True
        for bell in self._bells:
            bell.ring()
        self._exchanges.close()
        self._client.close()

    def watch(self) -> bool:
        """Break off what is late. False when nothing can be late any more."""
        self._exchanges.watch()
        return not self.closed or self._exchanges.are_busy

    def abandon(self) -> None:
        """In a forked child: the parent's connections cannot be used."""
        self.closed = True
        keep_for_ever(self._client)
        self._exchanges.abandon()

    # One request.

    def _body(self, request: Request) -> tuple[bytes, From | None]:
        """The request as it is sent, and from where on it looks too, if it is a short commit."""
        if isinstance(request, Commit) and self.trust is not None:
            return self.trust.body(request) or (encode(request), None)
        return encode(request), None

    def _call(self, body: bytes, limit_s: float, look: From | None) -> Reply:
        """UnheardError when it was not sent, another OSError when its answer is lost."""
        if len(body) > ALONE_BYTES:
            return self._call_alone(body, limit_s, look)
        try:
            exchange = self._exchanges.take()
        except NoExchangeError:
            return self._call_alone(body, limit_s, look)
        try:
            self._doubt()  # see trust.py for when
            returned = _returned(exchange.ask(self._encoded(body), limit_s))
            reply = self._read(returned, look, exchange.sent)
        except NoExchangeError:
            self._exchanges.drop(exchange)
            self._exchanges.refused()
            return self._call_alone(body, limit_s, look)
        except UnheardError:
            self._exchanges.drop(exchange)
            self._exchanges.drop_idle()  # they led to the same server
            raise
        except BaseException:  # Ctrl-C too: its answer is still on the way
            self._exchanges.drop(exchange)
            raise
        self._exchanges.put(exchange)
        self._heard(returned)
        return reply

    def _call_alone(self, body: bytes, limit_s: float, look: From | None) -> Reply:
        from pyarrow import flight

        client = self._client
        self._doubt()
        try:
            returned = self._heard(_act(client, self._encoded(body), limit_s))
        except flight.FlightTimedOutError as error:
            self._renew(client)
            raise ConnectionResetError(f"no answer within {limit_s:.0f} s") from error
        except flight.FlightError as error:
            raise ConnectionResetError(str(error)) from error
        return self._read(returned, look)

    def _read(self, returned: Returned, look: From | None, sent: float = 0.0) -> Reply:
        try:
            reply: Reply = decode_reply(returned.body)
            if look is None or isinstance(reply, Failed) or self.trust is None:
                return reply
            return Done(self.trust.read(reply.value, look, sent))
        except msgspec.MsgspecError as error:
            raise ConnectionResetError(str(error)) from error

    def _doubt(self) -> None:
        if self.trust is not None:
            self.trust.doubt()

    def begin_exchange(self) -> Exchange:
        """A connection and an exchange. A Ping comes first: calls have deadlines, exchanges not."""
        from pyarrow import flight

        client = self._connect()
        try:
            returned = self._heard(_act(client, self._encoded(encode(Ping())), CALL_S))
            reply = decode_reply(returned.body)
            if isinstance(reply, Failed):
                raise from_wire(reply, self.schema_of)
        except flight.FlightTimedOutError as error:
            client.close()
            raise UnheardError(f"no answer within {CALL_S:.0f} s") from error
        except (flight.FlightError, OSError, msgspec.MsgspecError) as error:
            client.close()
            raise UnheardError(str(error)) from error
        except BaseException:
            client.close()
            raise
        return Exchange(client, self._encoded(b""), self._clock)

    def _encoded(self, body: bytes) -> bytes:
        return encode(Call(VERSION, self._token, self._session, body))

    def _heard(self, returned: Returned) -> Returned:
        """Keep the session; whoever has forgotten us is told again what is still read here."""
        if self.epoch != returned.epoch:
            self._doubt()
        self.epoch = returned.epoch
        if returned.session in (self._session, 0):
            return returned
        known, self._session = self._session, returned.session
        if known and self.pin is not None:
            # The answer counts whatever becomes of this; the next beat says it again.
            with suppress(HaloclineError):
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
            with direct_reads():
                return flight.connect(self._uri, **options)
        except (flight.FlightError, ValueError, OSError) as error:
            raise UsageError(f"{self._uri!r} is not the address of a server: {error}") from error


def _act(client: flight.FlightClient, call: bytes, limit_s: float) -> Returned:
    """A call for one request."""
    from pyarrow import flight

    options = flight.FlightCallOptions(timeout=limit_s)
    (result,) = client.do_action(flight.Action(ASK, call), options)
    return _returned(result.body.to_pybytes())


def _returned(answer: bytes) -> Returned:
    try:
        returned: Returned = decode_returned(answer)
        return returned
    except msgspec.MsgspecError as error:
        raise ConnectionResetError(str(error)) from error


def _weakly(link: FlightLink) -> Callable[[], Exchange]:
    """How a link begins an exchange, without keeping it in memory."""
    ref = weakref.ref(link)

    def begin() -> Exchange:
        found = ref()
        assert found is not None, "its own request asks for an exchange"
        return found.begin_exchange()

    return begin


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


def _watches(ref: weakref.ref[FlightLink], stop: Bell) -> None:
    """Notice answers that are late, for as long as somebody holds the link."""
    while True:
        stop.wait(WATCH_S)
        link = ref()
        if link is None or not link.watch():
            return
        del link

"""Server: the owner's door for other machines. The frames of the Unix socket, over TCP with TLS.

    listener --accept--> a thread: TLS, Hello, then request, answer, request, answer ...
                                      '-- Subscribe: what is committed, until somebody hangs up

A connection that breaks does not end a session here, as lines between machines do break: it has a
lease, on the owner's monotonic clock, which every request renews; a client that has nothing to ask
says so now and then. A session whose lease is over loses its pins, jobs and catalog transactions,
and its connections are closed, so that the client notices.

An address that other machines can reach needs TLS and a token that the caller has chosen. A token
for reading may read and pin, nothing else.

Invariants
- A connection says that it works before it looks whether the server stops; a server says that it
  stops before it looks who works. So a request is either refused, or waited for.
- Who has not said the token is heard for HELLO_S, up to HELLO_BYTES_MAX; of those there are few.

Not here: the client's side (routes.py), what requests do (dispatch.py).
"""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Final

from halocline.clock import SystemClock
from halocline.errors import HaloclineError, UnavailableError, UsageError
from halocline.node import wire
from halocline.node.channel import Channel
from halocline.node.dispatch import Dispatch
from halocline.node.faults import fault_of
from halocline.node.greeting import HELLO_S, accept, check_hello, refuse
from halocline.node.limits import read_request
from halocline.node.served import Served
from halocline.node.session import Session
from halocline.node.streams import push

if TYPE_CHECKING:
    import ssl

LEASE_S: Final = 60.0
SESSIONS_MAX: Final = 1024
CONNECTIONS_MAX: Final = 1024
STRANGERS_MAX: Final = 64
"""So many may be about to say who they are; the next one takes the place of the oldest."""
MEND_S: Final = 1.0
PAUSE_S: Final = 0.02
TOKEN_BYTES: Final = 32
IDLE_S: Final = 60.0
"""How long a connection may say nothing. Clients of ours end it earlier."""
REPLY_S: Final = 60.0
"""How long a caller may take nothing of its answer."""
STOP_S: Final = 600.0
STOP_REPLY_S: Final = 1.0
"""How long somebody may take to read an answer, or to hear that it is over, while it stops."""
FORGOTTEN_S: Final = 2.0
"""How long a request may take whose database was forgotten, or whose process is ending."""
_logger = logging.getLogger("halocline")


class Peer:
    """One connection, and who is at its other end once that is known."""

    __slots__ = ("session", "since", "sock", "thread", "works")

    def __init__(self, sock: socket.socket, since: float) -> None:
        self.sock = sock
        self.since = since
        self.session: Session | None = None
        self.works = False
        """A request has been read, and its answer is not there yet."""
        self.thread = threading.current_thread()

    def shut(self, how: int = socket.SHUT_RDWR) -> None:
        """From any thread."""
        with suppress(OSError):
            self.sock.shutdown(how)


class Server:
    """Serves one database to other machines. `Database.serve` makes one."""

    def __init__(
        self,
        owner: Served,
        epoch: int,
        *,
        host: str,
        port: int,
        token: str | None,
        read_token: str | None,
        tls: ssl.SSLContext | None,
        sync: bool,
        numbers: Iterator[int],
    ) -> None:
        """`numbers` are for sessions and catalog transactions: the next server of this owner goes
        on with them, so none is ever given twice."""
        if not is_loopback(host) and (tls is None or token is None):
            raise UsageError(
                f"{host} can be reached from elsewhere: give tls=(certificate, key) and token="
            )
        self.token = token or SystemClock().random_bytes(TOKEN_BYTES).hex()
        self._secrets = {"write": self.token.encode()}
        if read_token is not None:
            self._secrets["read"] = read_token.encode()
        self._answers = Dispatch(weakref.ref(owner), sync=sync)
        self._epoch = epoch
        self._clock = SystemClock()
        self._tls = tls
        self._lock = threading.Lock()
        self._sessions: dict[int, tuple[Session, float]] = {}
        self._numbers = numbers
        self._peers: dict[Peer, None] = {}
        self._mended = 0.0
        self.stopping = self._stopped = False
        self._listener = _listen(host, port)
        self._listener.settimeout(MEND_S)
        shown = f"[{host}]" if ":" in host else host
        self.uri = f"halocline://{shown}:{self._listener.getsockname()[1]}"
        """What clients connect to."""
        arguments = (weakref.ref(self), self._listener)
        threading.Thread(
            target=accept, args=arguments, name="halocline-server", daemon=True
        ).start()
        weakref.finalize(owner, self.stop, FORGOTTEN_S)

    def stop(self, wait_s: float = STOP_S) -> None:
        """Answer what was asked, then listen no more. Stopping twice is fine."""
        if self._stopped:
            return
        self.stopping = True
        with suppress(OSError):  # wakes the thread that accepts
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._answers.hub.stop()
        for peer in list(self._peers):
            peer.shut(socket.SHUT_RD)  # what has come whole is read, and nothing else
        began = self._clock.monotonic()
        me = threading.current_thread()
        while left := [peer for peer in list(self._peers) if peer.thread is not me]:
            waited_s = self._clock.monotonic() - began
            for peer in left:
                if waited_s > STOP_REPLY_S and not peer.works:
                    peer.shut()
            if waited_s > wait_s:
                break
            left[0].thread.join(PAUSE_S)
        self._stopped = True
        self.reap(inf)  # nobody can come back to one of them

    def abandon(self) -> None:
        """In a forked child: the parent goes on serving."""
        self.stopping = self._stopped = True
        self._listener.close()
        for peer in list(self._peers):
            peer.sock.close()

    # Connections.

    def admit(self, sock: socket.socket) -> None:
        """Give a connection a thread of its own."""
        peer = Peer(sock, self._clock.monotonic())
        strangers = [one for one in list(self._peers) if one.session is None]
        if len(strangers) >= STRANGERS_MAX:
            strangers[0].shut()
        if self.stopping or len(self._peers) >= CONNECTIONS_MAX:
            sock.close()
        else:
            peer.thread = threading.Thread(
                target=self._serve, args=(peer,), name="halocline-peer", daemon=True
            )
            self._peers[peer] = None
            try:
                peer.thread.start()
            except RuntimeError:  # no more threads
                del self._peers[peer]
                sock.close()
        if self._clock.monotonic() > self._mended + MEND_S:
            self.mend()

    def mend(self) -> None:
        """Hang up on silent strangers, and end the sessions whose lease is over."""
        self._mended = now = self._clock.monotonic()
        for peer in list(self._peers):
            if peer.session is None and now - peer.since > HELLO_S:
                peer.shut()
        self.reap(now)

    def _serve(self, peer: Peer) -> None:
        try:
            peer.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            channel = Channel(peer.sock)
            channel.limit(HELLO_S, HELLO_S)
            if self._tls is not None:
                from halocline.node.tls import TlsSocket  # most programs need none

                channel = Channel(TlsSocket(peer.sock, self._tls, server_side=True))
            peer.session = self._greet(channel)
            if peer.session is not None:
                channel.limit(IDLE_S, REPLY_S)
                self._talk(peer, peer.session, channel)
        except OSError:
            pass  # a connection that ends is no news
        except Exception as error:  # a bug of ours must not take the owner down
            _logger.error("a connection of another machine failed", exc_info=error)
        finally:
            self._peers.pop(peer, None)
            peer.sock.close()

    def _greet(self, channel: Channel) -> Session | None:
        """Check who is there; None after a refusal."""
        body = channel.receive(wire.HELLO_BYTES_MAX)
        if body is None:
            return None
        try:
            role, hello = check_hello(body, self._secrets)
            session = self._session(hello.session, role)
        except HaloclineError as error:
            refuse(channel, error)
            return None
        channel.send(wire.Welcome(session.number, self._epoch, os.getpid()))
        return session

    def _talk(self, peer: Peer, session: Session, channel: Channel) -> None:
        """One request after another, until the client hangs up or the server stops."""
        while (body := channel.receive(wire.FRAME_BYTES_MAX)) is not None:
            peer.works = True
            stopping = self.stopping  # what was read before is answered; the next one is refused
            try:
                request = self._read(session, body)
                del body
                if isinstance(request, wire.Subscribe):
                    feed = self._answers.hub.open(request)
                    peer.works = False
                    push(channel, feed, self._answers.schema_of)
                    return
                reply = wire.done(self._answers.answer(session, request))
            except Exception as error:  # noqa: BLE001 every error is part of an answer
                reply = wire.frame(fault_of(error, self._answers.schema_of))
            peer.works = False
            channel.sock.sendall(reply)
            if stopping:
                return

    def _read(self, session: Session, body: bytes) -> wire.Request:
        """What is asked for, if the caller may."""
        if self.stopping:
            raise UnavailableError("the server is stopping")
        with self._lock:
            if session.number not in self._sessions:
                raise UnavailableError("the server has forgotten this session: try again")
            self._sessions[session.number] = (session, self._clock.monotonic() + LEASE_S)
        request = read_request(body)
        if session.role == "read" and not request.for_readers:
            raise UsageError("this token is for reading only")
        return request

    # Sessions.

    def _session(self, number: int, role: str) -> Session:
        """A session whose lease is renewed; a new one for a number that is not known any more, or
        is that of somebody with another token."""
        until = self._clock.monotonic() + LEASE_S
        with self._lock:
            session, _ = self._sessions.get(number, (None, 0.0))
            if session is None or session.role != role:
                if len(self._sessions) >= SESSIONS_MAX:
                    raise UnavailableError(
                        f"the server has {SESSIONS_MAX} sessions already: close one, or try later"
                    )
                session = Session(next(self._numbers), self._numbers, role)
            self._sessions[session.number] = (session, until)
            return session

    def reap(self, now: float) -> None:
        """End the sessions whose lease was over by then, and hang up."""
        with self._lock:
            lapsed = [one for one, until in self._sessions.values() if until < now]
            for session in lapsed:
                del self._sessions[session.number]
        for session in lapsed:
            with suppress(HaloclineError):
                self._answers.end(session)
            for peer in list(self._peers):
                if peer.session is session and not peer.works:
                    peer.shut()


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=CONNECTIONS_MAX)
    except (OSError, OverflowError, UnicodeError) as error:
        raise UnavailableError(f"{host}:{port} cannot be listened on: {error}") from error


def is_loopback(host: str) -> bool:
    """Can only this machine reach it?"""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

"""Service: the owner's door for other processes of its machine.

    listener --accept--> RequestLoop: Hello, then request, answer, request, answer ...

Two threads that block: one accepts, one answers (request_loop.py); an idle owner costs nothing. The
database is known by a weak reference, so that a program which forgets it without closing is not
kept from doing so.

A subscription keeps its connection: a thread sends what is committed until the other side hangs up,
or takes nothing for PUSH_S.

Stopping lets every request that was read to its end be answered. After a fork the child closes its
copies of the sockets; the threads stayed with the parent.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import weakref
from contextlib import suppress
from itertools import count
from typing import Final

from halocline.errors import HaloclineError, UnavailableError, UsageError
from halocline.node.channel import Channel
from halocline.node.dispatch import Dispatch
from halocline.node.endpoint import (
    Endpoint,
    identity_of,
    listen,
    new_token,
    read_endpoint,
    remove_endpoint,
    write_endpoint,
)
from halocline.node.greeting import HELLO_S, accept, check_hello, refuse
from halocline.node.request_loop import REPLY_S, RequestLoop
from halocline.node.served import Served
from halocline.node.session import Session
from halocline.node.wire import VERSION, Welcome

_logger = logging.getLogger("halocline")
CONNECTIONS_MAX: Final = 256
STOP_S: Final = 600.0
STOP_PUSH_S: Final = 1.0
"""How long a subscriber may take to hear that it is over."""
MEND_S: Final = 2.0
"""How often the endpoint file is looked at."""
FORGOTTEN_S: Final = 2.0
"""How long a request may take whose database was forgotten, or whose process is ending."""


class Service:
    """Listens for one database, from its opening to its end."""

    def __init__(self, owner: Served, root: str, epoch: int, answers: Dispatch) -> None:
        """Begin to listen, then say where. The caller holds the lock of the database."""
        self.answers = answers
        self._owner = weakref.ref(owner)
        self._root = root
        self._lock = threading.Lock()
        self._loop = RequestLoop(answers, self._greet, self._leave)
        self._sessions: dict[int, Session] = {}
        self._last_session = epoch << 32
        self._numbers = count((epoch << 32) + 1)
        """Sessions and catalog transactions of different epochs are never taken for each other."""
        self.stopping = self._stopped = False
        remove_endpoint(root)  # of an owner that was killed
        self._listener, path = listen(CONNECTIONS_MAX, root)
        self._listener.settimeout(MEND_S)
        self._endpoint = Endpoint(
            version=VERSION,
            socket=path,
            token=new_token(),
            pid=os.getpid(),
            host=socket.gethostname(),
            epoch=epoch,
            folder=identity_of(root),
        )
        self._thread = threading.Thread(
            target=accept,
            args=(weakref.ref(self), self._listener),
            name="halocline-service",
            daemon=True,
        )
        self._thread.start()
        write_endpoint(root, self._endpoint)
        weakref.finalize(owner, self.stop, FORGOTTEN_S)

    def stop(self, wait_s: float = STOP_S) -> None:
        """Answer every request that has arrived whole, and no other. The lock is still held.

        Shutting down the way in makes the next send of the other side fail, so whoever sent a
        request knows whether it will be answered. One that Ctrl-C broke off is gone through again.
        """
        if self._stopped:
            return
        self.stopping = True
        remove_endpoint(self._root, self._endpoint)
        with suppress(OSError):  # wakes the thread that accepts
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.answers.hub.stop()
        self._loop.close(STOP_PUSH_S, wait_s)
        self._stopped = True

    def abandon(self) -> None:
        """In a forked child: the parent goes on listening."""
        self.stopping = self._stopped = True
        self._listener.close()
        self._loop.abandon()

    def mend(self) -> None:
        """Hang up on silent callers. Write the endpoint file again if it was damaged or deleted."""
        self._loop.expire(HELLO_S)
        if self.stopping or read_endpoint(self._root) is not None:
            return
        with suppress(OSError):
            write_endpoint(self._root, self._endpoint)
        if self.stopping:
            remove_endpoint(self._root, self._endpoint)

    def session(self) -> Session:
        """A session for this very process."""
        with self._lock:
            return self._open_session(0)

    # One connection.

    def admit(self, sock: socket.socket) -> None:
        """Hand a connection to the request loop."""
        channel = Channel(sock)
        if self.stopping or len(self._loop) >= CONNECTIONS_MAX:
            text = f"the owner serves {CONNECTIONS_MAX} connections already: try later"
            refuse(channel, UnavailableError("the owner is closing" if self.stopping else text))
            channel.close()
            self._loop.expire(HELLO_S)
            return
        channel.limit(0, REPLY_S)
        try:
            self._loop.admit(channel)
        except (OSError, RuntimeError):  # closed just before, or no more file numbers or threads
            channel.close()

    def _greet(self, channel: Channel, body: bytes) -> Session | None:
        """Check who is there; None after a refusal."""
        try:
            _, hello = check_hello(body, {"write": self._endpoint.secret})
        except UsageError as error:
            refuse(channel, error)
            return None
        with self._lock:
            session = self._open_session(hello.session)
        try:
            channel.send(Welcome(session.number, self._endpoint.epoch, os.getpid()))
        except OSError:
            self._leave(session)
            raise
        return session

    # Sessions. The first two with the lock held.

    def _open_session(self, number: int) -> Session:
        known = self._sessions.get(number)
        if known is not None:
            known.connections += 1
            return known
        self._last_session += 1
        session = self._sessions[self._last_session] = Session(self._last_session, self._numbers)
        return session

    def _leave(self, session: Session) -> None:
        with self._lock:
            session.connections -= 1
            last = not session.connections
            if last:
                self._sessions.pop(session.number, None)
        if last:
            try:
                self.answers.end(session)
            except HaloclineError:
                pass  # what it began ends with the owner, then
            except Exception as error:  # a bug of ours must not take the loop down
                _logger.error("a session of another process did not end", exc_info=error)

"""Exchanges: lasting calls of Arrow Flight, through which one request after another is asked.

    FlightLink --take--> Exchange --Call--> Server.converse --Returned--> Exchange --put--> idle
                 '-- none is idle: a new connection, a Ping, a new exchange

A call of its own for every request costs gRPC 0.3-0.4 ms, a message and its answer 0.11-0.17. Each
has a connection to itself, so that one which has lost bytes holds up nobody else, and the server
can end one without the others.

gRPC knows a deadline for a whole exchange only. So somebody calls `watch` now and then, which
breaks off what is late; whoever waits there learns that the answer is lost.

Invariants
- One request at a time; an exchange whose answer was not read to its end is never used again.
- UnheardError means that the request was never handed to gRPC, or that the server has ended the
  exchange in good order without an answer: it does so only between two requests. A write that fails
  says less: of those that were broken off, 1 in 50 had reached the other side whole (measured).
- An exchange that was idle for IDLE_S is not used again: the server would end it some time later,
  and a request must not meet that.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from halocline.clock import Clock
from halocline.node.wire import NIL

if TYPE_CHECKING:
    from pyarrow import flight

EXCHANGES_MAX: Final = 32
"""Threads beyond that make calls of their own."""
IDLE_S: Final = 30.0
"""Half of what the server allows."""
FULL_S: Final = 10.0
"""A server that has too many is not asked for another one before."""
HEARD_S: Final = 0.005
"""After a longer silence the line is tried before the request goes out: 0.02 ms."""


class UnheardError(ConnectionError):
    """Nobody has heard the request, and nobody will."""


class NoExchangeError(Exception):
    """The server has too many exchanges, or none at all: make a call."""


class Exchange:
    """One of them, for one thread at a time."""

    def __init__(self, client: flight.FlightClient, hello: bytes, clock: Clock) -> None:
        """Begin one; `hello` is a call that says who we are. The client is ours from now on."""
        from pyarrow import ArrowException, flight

        self._faults = (flight.FlightError, ArrowException, OSError)
        self._clock = clock
        self._client = client
        self._lock = threading.Lock()
        self._until = float("inf")
        self.late = False
        self.heard = clock.monotonic()
        self.sent = 0.0
        """Just before the last request went out, on the clock that never stops (`elapsed`)."""
        try:
            descriptor = flight.FlightDescriptor.for_command(hello)
            self._writer, self._reader = client.do_exchange(descriptor)
        except self._faults as error:
            client.close()
            raise UnheardError(str(error)) from error

    def ask(self, call: bytes, limit_s: float) -> bytes:
        """The answer. ConnectionError when it is lost: then the exchange is of no use any more."""
        self._begin(limit_s)
        self.sent = self._clock.elapsed()
        try:
            self._writer.write_metadata(call)
            answer: bytes = self._reader.read_chunk().app_metadata.to_pybytes()
        except StopIteration:
            raise UnheardError("the server has ended the exchange") from None
        except NotImplementedError as error:  # a server from before there were exchanges
            raise NoExchangeError from error
        except (AttributeError, *self._faults) as error:
            text = f"no answer within {limit_s:.0f} s" if self.late else str(error)
            raise ConnectionResetError(text) from error
        if answer == NIL:
            raise NoExchangeError
        with self._lock:
            self._until = float("inf")
        self.heard = self._clock.monotonic()
        return answer

    def _begin(self, limit_s: float) -> None:
        """From now on somebody watches; UnheardError when the line is known to be dead."""
        now = self._clock.monotonic()
        with self._lock:
            self._until = now + limit_s
        if now - self.heard > HEARD_S:
            try:
                self._writer.write_metadata(NIL)
            except self._faults as error:
                raise UnheardError(str(error)) from error

    def watch(self, now: float) -> None:
        """Break off what is late; from another thread."""
        with self._lock:
            if self._until < now and not self.late:
                self.late = True
                self._reader.cancel()

    def close(self) -> None:
        """The server is told; whoever waits here, too."""
        self._reader.cancel()
        with suppress(*self._faults):
            self._writer.close()  # else it complains on stderr that it was not closed
        self._client.close()

    def abandon(self) -> None:
        """In a forked child."""
        keep_for_ever(self._reader, self._writer, self._client)


class Exchanges:
    """Those of one link. Thread-safe."""

    def __init__(self, begin: Callable[[], Exchange], clock: Clock) -> None:
        self._begin = begin
        self._clock = clock
        self._lock = threading.Lock()
        self._idle: list[Exchange] = []
        self._all: set[Exchange] = set()
        self._opening = 0
        self._without_until = 0.0
        self._pid = os.getpid()
        self.closed = False

    @property
    def are_busy(self) -> bool:
        """Does anybody wait for an answer?"""
        return len(self._all) > len(self._idle)

    def take(self) -> Exchange:
        """One that is idle, or a new one. NoExchangeError when there are enough."""
        now = self._clock.monotonic()
        with self._lock:
            if self._idle and now - self._idle[-1].heard < IDLE_S:
                return self._idle.pop()
            many = len(self._all) + self._opening - len(self._idle) >= EXCHANGES_MAX
            if many or now < self._without_until or self.closed:
                raise NoExchangeError
            self._opening += 1
        try:
            exchange = self._begin()
        finally:
            with self._lock:
                self._opening -= 1
        with self._lock:
            self._all.add(exchange)
        return exchange

    def put(self, exchange: Exchange) -> None:
        """It has answered, and is free again."""
        with self._lock:
            if not (self.closed or exchange.late):
                self._idle.append(exchange)
                return
        self.drop(exchange)

    def drop(self, exchange: Exchange) -> None:
        """It is of no use any more."""
        with self._lock:
            self._all.discard(exchange)
        exchange.close()

    def drop_idle(self) -> None:
        """All that nobody uses."""
        with self._lock:
            idle, self._idle = self._idle, []
        for exchange in idle:
            self.drop(exchange)

    def refused(self) -> None:
        """The server has no place for one: do without for a while."""
        self._without_until = self._clock.monotonic() + FULL_S

    def watch(self) -> None:
        """Break off requests that are late, and end exchanges that nobody needs."""
        now = self._clock.monotonic()
        with self._lock:
            everybody = list(self._all)
            old = [one for one in self._idle if now - one.heard >= IDLE_S]
            self._idle = [one for one in self._idle if now - one.heard < IDLE_S]
        for exchange in old:
            self.drop(exchange)
        for exchange in everybody:
            exchange.watch(now)

    def close(self) -> None:
        """Those that are busy end with their answer. Not in a forked child."""
        self.closed = True
        if os.getpid() == self._pid:
            self.drop_idle()

    def abandon(self) -> None:
        """In a forked child. The lock may be held by a thread that is not here."""
        self.closed = True
        for exchange in list(self._all):
            exchange.abandon()


def keep_for_ever(*things: object) -> None:
    """In a forked child: gRPC's threads stayed with the parent, and to free what they work on may
    wait for them until the end of days. So it is never freed."""
    for one in things:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))

"""RequestLoop: one thread for the short requests of all connections, those of one moment together.

    poll --> frames that are whole --short commits--> fold and log them --> one sync --> all replies
                  |         '--other short ones--> reply
                  '--long ones--> a thread each, and back to the desk with the connection

A commit of another process takes some 25 us of the owner, and then waits for the disk. With a
thread for every connection each of eight writers cost it 125: threads wake, queue for the
interpreter and for the log, and wake each other. Here they come to 55 (8 writers, two cores), and
share a sync without parking (decision 0008).

Nothing that may take long runs at the desk, as everybody would wait: jobs, maintenance, large
requests, subscriptions, and tidying up behind a commit, which is where a full memory slows writers
down.

Invariants
- The thread of the desk alone polls and registers; whoever comes, or comes back, rings.
- One connection carries one request at a time: a seat is at the desk or aside, never both.
- Nobody is waited for at the desk: half a request stays with its channel, a second one for a turn.
- A request that was read to its end is answered, also while the desk is being closed.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec

from halocline.clock import SystemClock
from halocline.errors import HaloclineError
from halocline.node.channel import BrokenChannelError, Channel
from halocline.node.dispatch import Dispatch
from halocline.node.faults import fault_of, to_wire
from halocline.node.limits import Nodes, read_request, short_nodes
from halocline.node.push import Feed
from halocline.node.session import Session
from halocline.node.spin import Spin
from halocline.node.wire import (
    FRAME_BYTES_MAX,
    BeginDdl,
    CallCatalog,
    Commit,
    Done,
    EndTurns,
    Ping,
    Request,
    Subscribe,
    encode,
    frame,
)
from halocline.rows.state import TableState

SPIN_S: Final = 0.0001
"""How long the next request is looked for before the desk sleeps."""
SHORT_BYTES: Final = 1 << 14
"""Longer requests are received aside."""
PUSH_S: Final = 30
"""How long a subscriber may take nothing of what it is sent."""
REPLY_S: Final = 60
"""How long a caller may take to read its answer."""
_logger = logging.getLogger("halocline")
_SHORT: Final = (Ping, BeginDdl, CallCatalog, EndTurns)

Greet = Callable[[Channel, bytes], Session | None]
"""Checks a Hello and answers it; None after a refusal."""


class Connection:
    """A connection, and whose it is once that is known."""

    __slots__ = ("channel", "gone", "here", "number", "session", "since")

    def __init__(self, channel: Channel, since: float) -> None:
        self.channel = channel
        self.number = channel.sock.fileno()
        self.session: Session | None = None
        self.since = since
        self.here = False
        """In the loop, and not aside, or on its way back."""
        self.gone = False
        """Something went wrong aside: it cannot be gone on with."""


Logged = tuple[Connection, bytes, list[TableState]]
"""A commit that is on its way to the disk: the answer, and the tables to tidy up behind it."""


class CommitBatch:
    """The commits that share one sync, and what becomes of each.

        commit --log--------> logged ----sync----> its answer
           '---rows, together--^ '--------------> refused, with a reason

    Commits of one row wait until all that came together have been heard, and are then logged
    together as far as that is possible (row_commits.py).
    """

    __slots__ = ("_answers", "again", "logged", "refused", "rows")

    def __init__(self, answers: Dispatch) -> None:
        self._answers = answers
        self.rows: list[tuple[Connection, Session, Commit]] = []
        """Commits of one row that wait for each other."""
        self.logged: list[Logged] = []
        self.refused: list[tuple[Connection, bytes]] = []
        self.again: list[int] = []
        """Connections that have said more than one thing."""

    def __len__(self) -> int:
        return len(self.rows) + len(self.logged)

    def numbers(self) -> set[int]:
        """Of the connections whose commit will be answered after the sync."""
        return {caller.number for caller, *_ in (*self.rows, *self.logged)}

    def log(self, caller: Connection, session: Session, commit: Commit, nodes: Nodes) -> None:
        """Fold and log a short commit."""
        try:
            commit_ts, states = self._answers.log_commit(session, commit, nodes)
        except Exception as error:  # noqa: BLE001 a bug of ours must not take the owner down
            self._refuse(caller, error)
        else:
            self.logged.append((caller, done(commit_ts), states))

    def log_rows(self) -> None:
        """Those of one row: together where that is possible, or else one after the other."""
        outcomes = self._answers.log_rows([(session, commit) for _, session, commit in self.rows])
        for (caller, session, commit), outcome in zip(self.rows, outcomes, strict=True):
            if outcome is None:
                self.log(caller, session, commit, [])
            elif isinstance(outcome, Exception):
                self._refuse(caller, outcome)
            else:
                commit_ts, states = outcome
                self.logged.append((caller, done(commit_ts), states))

    def _refuse(self, caller: Connection, error: Exception) -> None:
        self.refused.append((caller, frame(fault_of(error, self._answers.schema_of))))


class RequestLoop:
    """Serves connections until it is closed. `admit` and `close` may be called from any thread."""

    def __init__(self, answers: Dispatch, greet: Greet, leave: Callable[[Session], None]) -> None:
        self._answers = answers
        self._greet = greet
        self._leave = leave
        self._lock = threading.Lock()
        self._seats: dict[int, Connection] = {}
        """All there are, at the desk and aside, by file number."""
        self._coming: deque[Connection] = deque()
        self._pushing: dict[Connection, threading.Thread] = {}
        self._ear: socket.socket | None = None
        self._bell: socket.socket | None = None
        self._poll = select.poll()
        self._spin = Spin(SystemClock(), SPIN_S)
        self._thread: threading.Thread | None = None
        self.closing = False

    def __len__(self) -> int:
        return len(self._seats)

    # From any thread.

    def admit(self, channel: Channel) -> None:
        """A connection that has just come. OSError or RuntimeError: there is no place for it."""
        seat = Connection(channel, SystemClock().monotonic())
        with self._lock:
            if self.closing:
                raise BrokenChannelError("the desk is closed")
            if self._thread is None:
                self._open()
            self._seats[seat.number] = seat
        self._return(seat)

    def _open(self) -> None:
        """For the first who comes: most databases are opened by one process alone."""
        self._ear, self._bell = socket.socketpair()
        self._ear.setblocking(False)
        self._bell.setblocking(False)
        self._poll.register(self._ear, select.POLLIN)
        thread = threading.Thread(
            target=self._run, args=(self._ear,), name="halocline-desk", daemon=True
        )
        thread.start()
        self._thread = thread

    def expire(self, hello_s: float) -> None:
        """Hang up on those who have not said who they are for so long."""
        late = SystemClock().monotonic() - hello_s
        with self._lock:
            seats = [one for one in self._seats.values() if one.session is None]
        for seat in seats:
            if seat.since < late:
                with suppress(OSError):
                    seat.channel.sock.shutdown(socket.SHUT_RDWR)

    def close(self, push_s: float, wait_s: float) -> None:
        """Answer what has arrived whole, and nothing else; subscribers get `push_s` to hear of it.

        Shutting down the way in makes the next send of the other side fail, so whoever sent a
        request knows whether it will be answered. May be broken off and begun again.
        """
        with self._lock:  # nobody is admitted any more, and the desk goes when all have gone
            self.closing = True
            seats = list(self._seats.values())
        for seat in seats:
            with suppress(OSError):
                seat.channel.sock.shutdown(socket.SHUT_RD)
        until = SystemClock().monotonic() + push_s
        for seat, thread in self._pushing.copy().items():
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - SystemClock().monotonic()))
            with suppress(OSError):
                seat.channel.sock.shutdown(socket.SHUT_RDWR)
        self._ring()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(wait_s)  # it goes when the last seat is empty

    def abandon(self) -> None:
        """In a forked child: the connections stay the parent's."""
        self.closing = True
        for seat in list(self._seats.values()):
            seat.channel.close()
        self._shut()

    def _shut(self) -> None:
        for end in (self._ear, self._bell):
            if end is not None:
                end.close()

    def _return(self, seat: Connection) -> None:
        self._coming.append(seat)
        self._ring()

    def _ring(self) -> None:
        if self._bell is not None:
            with suppress(OSError):  # full: it has been rung already; closed: nobody is there
                self._bell.send(b"!")

    # At the desk.

    def _run(self, ear: socket.socket) -> None:
        again: list[int] = []
        try:
            while not self.closing or self._seats:
                found = self._look() if again else self._spin.wait(self._look)
                ready = [number for number, _ in found or (() if again else self._poll.poll())]
                again = self._turn(ear, list(dict.fromkeys(again + ready)) if again else ready)
        finally:
            self._shut()

    def _look(self) -> list[tuple[int, int]] | None:
        return self._poll.poll(0) or None

    def _turn(self, ear: socket.socket, ready: list[int]) -> list[int]:
        """Everybody who has said something; returns those who have said more than one thing."""
        turn = CommitBatch(self._answers)
        self._hear_all(ear, ready, turn)
        self._refuse(turn)
        if turn and len(self._seats) > len(turn):  # who has come meanwhile shares the sync
            owed = turn.numbers()  # if they hang up, then after the answer
            late = [number for number, _ in self._look() or () if number not in owed]
            self._hear_all(ear, late, turn)
        if turn.rows:
            turn.log_rows()
        self._refuse(turn)
        if turn.logged:
            self._settle(turn.logged)
        return turn.again

    def _hear_all(self, ear: socket.socket, ready: list[int], turn: CommitBatch) -> None:
        for number in ready:
            seat = self._seats.get(number)
            if seat is None:
                turn.again += self._welcome(ear)
                continue
            if not seat.here:  # one of the last turn, or somebody who has its number now
                continue
            try:
                heard = self._hear(seat, turn)
            except Exception as error:  # noqa: BLE001 as in `_serve`
                _note(error)
                self._dismiss(seat)
                continue
            if heard and seat.here and seat.channel.has_more:
                turn.again.append(number)

    def _welcome(self, ear: socket.socket) -> list[int]:
        """Those who have come, or come back; which of them have said something already."""
        with suppress(BlockingIOError):
            ear.recv(1 << 12)
        again = []
        while self._coming:
            seat = self._coming.popleft()
            if seat.gone:
                self._dismiss(seat)
            else:
                self._poll.register(seat.number, select.POLLIN)
                seat.here = True
                if seat.channel.has_more:
                    again.append(seat.number)
        return again

    def _hear(self, seat: Connection, turn: CommitBatch) -> bool:
        """Take what has come; was it a whole request? OSError: they do not speak our language."""
        channel, session = seat.channel, seat.session
        try:
            body = channel.take(SHORT_BYTES)
        except BlockingIOError:
            if channel.due > SHORT_BYTES:
                if session is None:
                    raise BrokenChannelError("a greeting is short") from None
                self._put_aside(seat, self._receive)
            return False
        if body is None:
            self._dismiss(seat)
        elif session is not None:
            self._serve(seat, session, body, turn)
        else:
            seat.session = self._greet(channel, body)
            if seat.session is None:
                self._dismiss(seat)
        return True

    def _dismiss(self, seat: Connection) -> None:
        """Of the desk's thread only: what is aside comes back first."""
        if seat.here:
            seat.here = False
            self._poll.unregister(seat.number)
        with self._lock:
            self._seats.pop(seat.number, None)
        seat.channel.close()  # last: from here on the number may be somebody else's
        session, seat.session = seat.session, None
        if session is not None:
            self._leave(session)

    def _serve(self, seat: Connection, session: Session, body: bytes, turn: CommitBatch) -> None:
        try:
            request = read_request(body)
            if type(request) is Commit:
                nodes = short_nodes(request)
                if nodes is not None and request.single and request.reads is None:
                    turn.rows.append((seat, session, request))
                    return
                if nodes is not None:
                    turn.log(seat, session, request, nodes)
                    return
            elif type(request) in _SHORT:
                self._reply(seat, done(self._answers.answer(session, request)))
                return
        except Exception as error:  # noqa: BLE001 a bug of ours must not take the owner down
            self._reply(seat, frame(fault_of(error, self._answers.schema_of)))
            return
        self._put_aside(seat, partial(self._answer, request))

    def _refuse(self, turn: CommitBatch) -> None:
        """Before anybody is heard again: who has hung up behind a request is still here then."""
        for seat, reason in turn.refused:
            self._reply(seat, reason)
        turn.refused.clear()

    def _settle(self, logged: list[Logged]) -> None:
        """Wait for the disk, then tell everybody."""
        failed = b""
        try:
            self._answers.settle()
        except Exception as error:  # noqa: BLE001 as above
            failed = frame(fault_of(error, self._answers.schema_of))
        for seat, reply, states in logged:
            if states and not failed:
                self._put_aside(seat, partial(self._tidy, reply, states))
            else:
                self._reply(seat, failed or reply)

    def _reply(self, seat: Connection, reply: bytes) -> None:
        try:
            rest = seat.channel.try_send(reply)
        except OSError:
            self._dismiss(seat)
            return
        if rest:
            self._put_aside(seat, lambda seat: seat.channel.sock.sendall(rest))

    # Aside.

    def _put_aside(self, seat: Connection, work: Callable[[Connection], Any]) -> None:
        seat.here = False
        self._poll.unregister(seat.number)
        thread = threading.Thread(
            target=self._work, args=(seat, work), name="halocline-connection", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # no more threads: hanging up leaves the outcome open
            _note(error)
            self._dismiss(seat)

    def _work(self, seat: Connection, work: Callable[[Connection], Any]) -> None:
        try:
            work(seat)
        except Exception as error:  # noqa: BLE001 as in `_serve`
            _note(error)
            seat.gone = True
        finally:
            self._return(seat)

    def _receive(self, seat: Connection) -> None:
        """The rest of a long request, and its answer."""
        body = seat.channel.receive(FRAME_BYTES_MAX)
        if body is None:
            return
        try:
            request = read_request(body)
        except Exception as error:  # noqa: BLE001 as above
            seat.channel.send(fault_of(error, self._answers.schema_of))
            return
        del body
        self._answer(request, seat)

    def _answer(self, request: Request, seat: Connection) -> None:
        assert seat.session is not None
        try:
            if isinstance(request, Subscribe):
                feed = self._answers.hub.open(request)
            else:
                reply = done(self._answers.answer(seat.session, request))
                feed = None
        except Exception as error:  # noqa: BLE001 as above
            reply, feed = frame(fault_of(error, self._answers.schema_of)), None
        if feed is None:
            seat.channel.sock.sendall(reply)
        else:
            self._push(seat, feed)

    def _push(self, seat: Connection, feed: Feed) -> None:
        """Send what is committed, until somebody hangs up or it cannot go on."""
        self._pushing[seat] = threading.current_thread()
        try:
            seat.channel.limit(0, PUSH_S)
            for pushed in feed:
                seat.channel.sock.sendall(done(pushed))
        except HaloclineError as error:
            seat.channel.send(to_wire(error, self._answers.schema_of))
        finally:
            feed.close()
            del self._pushing[seat]
        seat.channel.limit(0, REPLY_S)

    def _tidy(self, reply: bytes, states: list[TableState], seat: Connection) -> None:
        """What a commit left behind; whoever brought it waits, as in a process of its own."""
        try:
            self._answers.tidy(states)
        finally:
            seat.channel.sock.sendall(reply)


def _note(error: Exception) -> None:
    """A connection that ends is no news; a bug of ours is."""
    if not isinstance(error, OSError):
        _logger.error("a connection of another process failed", exc_info=error)


def done(value: Any) -> bytes:
    """The frame of an answer."""
    return frame(Done(msgspec.Raw(encode(value))))

"""RequestLoop: one thread for the short requests of all connections, those of one moment together.

    poll --> frames that are whole --short commits--> fold and log them --> one sync --> all replies
                  |         '--other short ones--> reply
                  '--long ones--> a thread each, and back to the loop with the connection

A commit of another process takes some 25 us of the owner, and then waits for the disk. With a
thread for every connection each of eight writers cost it 125: threads wake, queue for the
interpreter and for the log, and wake each other. Here they come to 55 (8 writers, two cores), and
share a sync without parking (decision 0008).

Nothing that may take long runs in the loop, as all callers would wait: jobs, maintenance, large
requests, subscriptions, and tidying up behind a commit, which is where a full memory slows writers
down.

Invariants
- The thread of the loop alone polls and registers; another thread hands a connection in and rings.
- One connection carries one request at a time: it is in the loop or aside, never both.
- The loop waits for no caller: half a request stays with its channel, a second one for a turn.
- A request that was read to its end is answered, also while the loop is being closed.
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

from halocline.clock import SystemClock
from halocline.node.channel import BrokenChannelError, Channel
from halocline.node.dispatch import Dispatch
from halocline.node.faults import fault_of
from halocline.node.limits import Nodes, read_request, short_nodes
from halocline.node.push import Feed
from halocline.node.session import Session
from halocline.node.spin import Spin
from halocline.node.streams import push
from halocline.node.turn_waits import LOOK_MS, TurnWaits
from halocline.node.wire import (
    FRAME_BYTES_MAX,
    BeginDdl,
    CallCatalog,
    Commit,
    EndTurns,
    Ping,
    Request,
    Subscribe,
    TakeTurns,
    done,
    frame,
)
from halocline.rows.state import TableState

SPIN_S: Final = 0.0001
"""How long the next request is looked for before the loop sleeps."""
SHORT_BYTES: Final = 1 << 14
"""Longer requests are received aside."""
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
        self._callers: dict[int, Connection] = {}
        """All there are, in the loop and aside, by file number."""
        self._coming: deque[Connection] = deque()
        self._pushing: dict[Connection, threading.Thread] = {}
        self._ear: socket.socket | None = None
        self._bell: socket.socket | None = None
        self._poll = select.poll()
        self._spin = Spin(SystemClock(), SPIN_S)
        self._thread: threading.Thread | None = None
        self._turns = TurnWaits(answers, self._wake)
        self.closing = False

    def __len__(self) -> int:
        return len(self._callers)

    # From any thread.

    def admit(self, channel: Channel) -> None:
        """A connection that has just come. OSError or RuntimeError: there is no place for it."""
        caller = Connection(channel, SystemClock().monotonic())
        with self._lock:
            if self.closing:
                raise BrokenChannelError("the request loop is closed")
            if self._thread is None:
                self._open()
            self._callers[caller.number] = caller
        self._return(caller)

    def _open(self) -> None:
        """Start with the first caller: most databases are opened by one process alone."""
        self._ear, self._bell = socket.socketpair()
        self._ear.setblocking(False)
        self._bell.setblocking(False)
        self._poll.register(self._ear, select.POLLIN)
        thread = threading.Thread(
            target=self._run, args=(self._ear,), name="halocline-requests", daemon=True
        )
        thread.start()
        self._thread = thread

    def expire(self, hello_s: float) -> None:
        """Hang up on those who have not said who they are for so long."""
        late = SystemClock().monotonic() - hello_s
        with self._lock:
            callers = [one for one in self._callers.values() if one.session is None]
        for caller in callers:
            if caller.since < late:
                with suppress(OSError):
                    caller.channel.sock.shutdown(socket.SHUT_RDWR)

    def close(self, push_s: float, wait_s: float) -> None:
        """Answer what has arrived whole, and nothing else; subscribers get `push_s` to hear of it.

        Shutting down the way in makes the next send of the other side fail, so a caller
        knows whether its request will be answered. May be broken off and begun again.
        """
        with self._lock:  # none is admitted any more, and the loop ends when all have gone
            self.closing = True
            callers = list(self._callers.values())
        for caller in callers:
            with suppress(OSError):
                caller.channel.sock.shutdown(socket.SHUT_RD)
        until = SystemClock().monotonic() + push_s
        for caller, thread in self._pushing.copy().items():
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - SystemClock().monotonic()))
            with suppress(OSError):
                caller.channel.sock.shutdown(socket.SHUT_RDWR)
        self._ring()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(wait_s)  # it ends when the last caller has gone

    def abandon(self) -> None:
        """In a forked child: the connections stay the parent's."""
        self.closing = True
        for caller in list(self._callers.values()):
            caller.channel.close()
        self._shut()

    def _shut(self) -> None:
        for end in (self._ear, self._bell):
            if end is not None:
                end.close()

    def _return(self, caller: Connection) -> None:
        self._coming.append(caller)
        self._ring()

    def _ring(self) -> None:
        if self._bell is not None:
            with suppress(OSError):  # full: it has been rung already; closed: the loop has ended
                self._bell.send(b"!")

    def _wake(self) -> None:
        if threading.current_thread() is not self._thread:
            self._ring()

    # In the loop.

    def _run(self, ear: socket.socket) -> None:
        again: list[int] = []
        try:
            while not self.closing or self._callers:
                found = self._look() if again else self._spin.wait(self._look)
                longest = LOOK_MS if self._turns.waiting else None
                ready = [n for n, _ in found or (() if again else self._poll.poll(longest))]
                again = self._turn(ear, list(dict.fromkeys(again + ready)) if again else ready)
        finally:
            self._shut()

    def _look(self) -> list[tuple[int, int]] | None:
        return self._poll.poll(0) or None

    def _turn(self, ear: socket.socket, ready: list[int]) -> list[int]:
        """Serve the callers that have said something; returns those that have said more."""
        turn = CommitBatch(self._answers)
        self._hear_all(ear, ready, turn)
        self._refuse(turn)
        if turn and len(self._callers) > len(turn):  # who has come meanwhile shares the sync
            owed = turn.numbers()  # if they hang up, then after the answer
            late = [number for number, _ in self._look() or () if number not in owed]
            self._hear_all(ear, late, turn)
        if turn.rows:
            turn.log_rows()
        self._refuse(turn)
        if turn.logged:
            self._settle(turn.logged)
        if self._turns.waiting:  # asked here: no step more for who never waits
            for caller, reply in self._turns.answers():
                self._reply(caller, reply)
        return turn.again

    def _hear_all(self, ear: socket.socket, ready: list[int], turn: CommitBatch) -> None:
        for number in ready:
            caller = self._callers.get(number)
            if caller is None:
                turn.again += self._welcome(ear)
                continue
            if not caller.here:  # one of the last turn, or another one that has its number now
                continue
            try:
                heard = self._hear(caller, turn)
            except Exception as error:  # noqa: BLE001 as in `_serve`
                _note(error)
                self._dismiss(caller)
                continue
            if heard and caller.here and caller.channel.has_more:
                turn.again.append(number)

    def _welcome(self, ear: socket.socket) -> list[int]:
        """Those who have come, or come back; which of them have said something already."""
        with suppress(BlockingIOError):
            ear.recv(1 << 12)
        again = []
        while self._coming:
            caller = self._coming.popleft()
            if caller.gone:
                self._dismiss(caller)
            else:
                self._poll.register(caller.number, select.POLLIN)
                caller.here = True
                if caller.channel.has_more:
                    again.append(caller.number)
        return again

    def _hear(self, caller: Connection, turn: CommitBatch) -> bool:
        """Take what has come; was it a whole request? OSError: they do not speak our language."""
        channel, session = caller.channel, caller.session
        try:
            body = channel.take(SHORT_BYTES)
        except BlockingIOError:
            if channel.due > SHORT_BYTES:
                if session is None:
                    raise BrokenChannelError("a greeting is short") from None
                self._put_aside(caller, self._receive)
            return False
        if body is None:
            self._dismiss(caller)
        elif session is not None:
            self._serve(caller, session, body, turn)
        else:
            caller.session = self._greet(channel, body)
            if caller.session is None:
                self._dismiss(caller)
        return True

    def _dismiss(self, caller: Connection) -> None:
        """For the thread of the loop only: what is aside comes back first."""
        self._turns.drop(caller)
        if caller.here:
            caller.here = False
            self._poll.unregister(caller.number)
        with self._lock:
            self._callers.pop(caller.number, None)
        caller.channel.close()  # last: from here on another connection may have the number
        session, caller.session = caller.session, None
        if session is not None:
            self._leave(session)

    def _serve(self, caller: Connection, session: Session, body: bytes, turn: CommitBatch) -> None:
        try:
            request = read_request(body)
            if type(request) is Commit:
                nodes = short_nodes(request)
                if nodes is not None and request.single and request.reads is None:
                    turn.rows.append((caller, session, request))
                    return
                if nodes is not None:
                    turn.log(caller, session, request, nodes)
                    return
            elif type(request) is TakeTurns and not request.lasts:
                self._turns.add(caller, session, request)
                return
            elif type(request) in _SHORT:
                self._reply(caller, done(self._answers.answer(session, request)))
                return
        except Exception as error:  # noqa: BLE001 a bug of ours must not take the owner down
            self._reply(caller, frame(fault_of(error, self._answers.schema_of)))
            return
        self._put_aside(caller, partial(self._answer, request))

    def _refuse(self, turn: CommitBatch) -> None:
        """Before the next are heard: a caller that hangs up behind its request is still known."""
        for caller, reason in turn.refused:
            self._reply(caller, reason)
        turn.refused.clear()

    def _settle(self, logged: list[Logged]) -> None:
        """Wait for the disk, then send all answers."""
        failed = b""
        try:
            self._answers.settle()
        except Exception as error:  # noqa: BLE001 as above
            failed = frame(fault_of(error, self._answers.schema_of))
        for caller, reply, states in logged:
            if states and not failed:
                self._put_aside(caller, partial(self._tidy, reply, states))
            else:
                self._reply(caller, failed or reply)

    def _reply(self, caller: Connection, reply: bytes) -> None:
        try:
            rest = caller.channel.try_send(reply)
        except OSError:
            self._dismiss(caller)
            return
        if rest:
            self._put_aside(caller, lambda caller: caller.channel.sock.sendall(rest))

    # Aside.

    def _put_aside(self, caller: Connection, work: Callable[[Connection], Any]) -> None:
        caller.here = False
        self._poll.unregister(caller.number)
        thread = threading.Thread(
            target=self._work, args=(caller, work), name="halocline-connection", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # no more threads: hanging up leaves the outcome open
            _note(error)
            self._dismiss(caller)

    def _work(self, caller: Connection, work: Callable[[Connection], Any]) -> None:
        try:
            work(caller)
        except Exception as error:  # noqa: BLE001 as in `_serve`
            _note(error)
            caller.gone = True
        finally:
            self._return(caller)

    def _receive(self, caller: Connection) -> None:
        """The rest of a long request, and its answer."""
        body = caller.channel.receive(FRAME_BYTES_MAX)
        if body is None:
            return
        try:
            request = read_request(body)
        except Exception as error:  # noqa: BLE001 as above
            caller.channel.send(fault_of(error, self._answers.schema_of))
            return
        del body
        self._answer(request, caller)

    def _answer(self, request: Request, caller: Connection) -> None:
        assert caller.session is not None
        try:
            if isinstance(request, Subscribe):
                feed = self._answers.hub.open(request)
            else:
                reply = done(self._answers.answer(caller.session, request))
                feed = None
        except Exception as error:  # noqa: BLE001 as above
            reply, feed = frame(fault_of(error, self._answers.schema_of)), None
        if feed is None:
            caller.channel.sock.sendall(reply)
        else:
            self._push(caller, feed)

    def _push(self, caller: Connection, feed: Feed) -> None:
        self._pushing[caller] = threading.current_thread()
        try:
            push(caller.channel, feed, self._answers.schema_of)
        finally:
            del self._pushing[caller]
        caller.channel.limit(0, REPLY_S)

    def _tidy(self, reply: bytes, states: list[TableState], caller: Connection) -> None:
        """Tidy up behind a commit, then answer: its sender waits, as the owner's own threads do."""
        try:
            self._answers.tidy(states)
        finally:
            caller.channel.sock.sendall(reply)


def _note(error: Exception) -> None:
    """A connection that ends is no news; a bug of ours is."""
    if not isinstance(error, OSError):
        _logger.error("a connection of another process failed", exc_info=error)

"""Subscription: the commits of a database as they happen, for a program that follows it.

    stream --Pushed--> pump (a thread) --one at a time--> read() --> Delivery, Delivery ...
      ^                  |
      '--lost: open again from the end of what we have

A Delivery is one commit: its messages take effect together (logtail.py says what they mean). The
pump takes the next part from the stream only when the program has taken the last one, so a slow
program holds back its own stream, and the sender keeps nothing for it.

What has come is everything up to one timestamp (`unseen`): parts that a new connection brings again
are dropped, and a gap is an error, never a commit that is silently missing.

        up to 100, then [90, 110]    101 to 110 are new
        up to 100, then [85, 95]     nothing is
        up to 100, then [110, 120]   an error: a gap would hide commits

Invariants
- Every commit after the first position is delivered once, in order.
- `position` is the end of what `read` has returned: one that begins there again misses nothing.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from threading import Thread
from typing import Final, NamedTuple

import pyarrow as pa

from halocline.clock import Clock, SystemClock
from halocline.errors import CorruptionError, HaloclineError, UnavailableError
from halocline.log.bell import Bell
from halocline.node.logtail import read_message
from halocline.node.streams import Stream
from halocline.node.wire import Pushed
from halocline.store import MovedError

FIND_S: Final = 10.0
"""How long a stream that was lost is tried to be opened again."""
PAUSE_S: Final = 0.05
SILENCE_S: Final = 15.0
"""A stream that gives no sign of life for so long is lost."""
LOOK_S: Final = 1.0

OpenStream = Callable[[int | None], Stream | None]
"""A stream of all commits after a timestamp; None when the database was closed here."""


def unseen(end: int, start: int, stop: int) -> int | None:
    """The first new timestamp of [start, stop] when everything up to `end` has come, if any."""
    if start > stop:
        raise CorruptionError("logtail", f"[{start}, {stop}] is not a range")
    if start > end + 1:
        raise CorruptionError("logtail", f"[{start}, {stop}] leaves a gap behind {end}")
    return max(start, end + 1) if stop > end else None


class _Part(NamedTuple):
    """Messages of the commits from `start` to `end`; those before `start` were there already."""

    start: int
    end: int
    messages: tuple[bytes, ...]


class Message(NamedTuple):
    """One message of the logtail."""

    kind: str
    """Rows, RowTombstones, Objects or ObjectTombstones."""
    table: str
    table_id: int
    order: int
    rows: pa.Table
    schema_version: int | None = None
    """Of rows and of keys: how often the table had been altered when they were written."""


class Delivery(NamedTuple):
    """One commit, as far as it concerns the subscriber."""

    commit_ts: int
    messages: tuple[Message, ...]


class Subscription:
    """An iterator over commits. For one thread at a time, but for `close`."""

    def __init__(self, open_stream: OpenStream, since: int | None) -> None:
        self.pump = pump = Pump(open_stream, since)
        """Its thread keeps it, also when the subscription has been dropped."""
        self._ready: deque[Delivery] = deque()
        self._end = 0
        weakref.finalize(self, pump.close)
        pump.thread.start()
        while pump.end is None and not (pump.error or pump.closed):
            pump.full.wait(LOOK_S)
        if pump.error is not None:
            raise pump.error
        if pump.end is None:
            raise UnavailableError("the database was closed")
        self.position = pump.end
        """Every commit up to this timestamp has been returned, or was before the beginning."""

    def read(self, timeout: float | None = None) -> Delivery | None:
        """The next commit; None when none came in so many seconds, or it has been closed."""
        pump, clock = self.pump, self.pump.clock
        until = None if timeout is None else clock.monotonic() + timeout
        while not self._ready:
            part = pump.take()
            if part is not None:
                self._unpack(part)
            elif pump.error is not None and not pump.closed:
                raise pump.error
            elif pump.closed or not pump.thread.is_alive():  # a fork has left it with the parent
                return None
            else:
                left = LOOK_S if until is None else min(LOOK_S, until - clock.monotonic())
                if left <= 0:
                    return None
                if not pump.full.wait(left):
                    pump.check_alive()
        delivery = self._ready.popleft()
        self.position = delivery.commit_ts if self._ready else self._end
        return delivery

    def __iter__(self) -> Iterator[Delivery]:
        return self

    def __next__(self) -> Delivery:
        delivery = self.read()
        if delivery is None:
            raise StopIteration
        return delivery

    def close(self) -> None:
        """End it; a `read` that waits returns None. Twice is fine."""
        self.pump.stop()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _unpack(self, part: _Part) -> None:
        """Messages of one commit belong together; those that we have had are dropped."""
        found: dict[int, list[Message]] = {}
        for data in part.messages:
            facts, rows = read_message(data)
            try:
                commit_ts = int(facts["commit_ts"])
                table_id, order = int(facts["table_id"]), int(facts["order"])
                version = int(facts["schema_version"]) if "schema_version" in facts else None
                message = Message(facts["kind"], facts["table"], table_id, order, rows, version)
            except (KeyError, ValueError) as error:
                raise CorruptionError("logtail", f"a message lacks a fact: {error}") from error
            if commit_ts >= part.start:
                found.setdefault(commit_ts, []).append(message)
        self._end = part.end
        self._ready.extend(Delivery(ts, tuple(parts)) for ts, parts in found.items())
        if not found:
            self.position = part.end


class Pump:
    """Takes a stream in, in a thread of its own; the next part when the last one was taken."""

    def __init__(self, open_stream: OpenStream, since: int | None) -> None:
        self.clock: Clock = SystemClock()
        self.full, self._room = Bell(), Bell()
        self.end: int | None = None
        """Everything up to this timestamp has come; None before the first sign of life."""
        self.error: BaseException | None = None
        self.closed = False
        self._open = open_stream
        self._since = since
        self._stream: Stream | None = None
        self._slot: deque[_Part] = deque()
        self.thread = Thread(target=self.run, name="halocline-subscription", daemon=True)
        self._heard = self.clock.monotonic()
        self._well = self._heard
        """When a stream last said more than that it is there."""

    def run(self) -> None:
        while not self.closed and self.error is None:
            try:
                self._follow()
            except MovedError as error:  # in this very process: trying again brings nothing back
                self.error = error
            except (OSError, UnavailableError) as error:
                self._lost(error)
            except BaseException as error:  # noqa: BLE001 the reader's thread raises it
                self.error = error
        self.full.ring()

    def take(self) -> _Part | None:
        """What has come; the thread may go on."""
        if not self._slot:
            return None
        part = self._slot.popleft()
        self._room.ring()
        return part

    def check_alive(self) -> None:
        """A stream that is silent is lost: reading from it would never end."""
        stream = self._stream
        if stream is not None and self.clock.monotonic() - self._heard > SILENCE_S:
            self._heard = self.clock.monotonic()
            stream.stop()

    def close(self) -> None:
        self.closed = True
        if self._stream is not None:
            self._stream.stop()
        self._room.ring()
        self.full.ring()

    def stop(self) -> None:
        """As `close`, and wait until what the stream had open is closed."""
        self.close()
        self.thread.join(LOOK_S)

    def _follow(self) -> None:
        self._stream = stream = self._open(self._since if self.end is None else self.end)
        if stream is None:
            self.closed = True
            return
        try:
            for number, pushed in enumerate(stream):
                self._heard = self.clock.monotonic()
                if number or pushed.messages:  # one that only begins, and fails, is no success
                    self._well = self._heard
                self._put(pushed)
                if self.closed:
                    return
        finally:
            stream.stop()

    def _put(self, pushed: Pushed) -> None:
        if self.end is None:
            self.end = pushed.end
            self.full.ring()
        start = unseen(self.end, pushed.start, pushed.end)
        if start is None:
            return  # a sign of life, or what an earlier stream has brought
        self.end = pushed.end
        while self._slot and not self.closed:
            self._room.wait(LOOK_S)
        self._slot.append(_Part(start, pushed.end, pushed.messages))
        self.full.ring()

    def _lost(self, error: OSError | UnavailableError) -> None:
        """Try again for a while; what an owner refuses at first is not asked for twice."""
        refused = self.end is None and isinstance(error, HaloclineError)
        if refused or self.clock.monotonic() - self._well > FIND_S:
            text = f"the subscription was lost: {error}"
            self.error = error if refused else UnavailableError(text).with_cause(error)
        elif not self.closed:
            self.clock.sleep(PAUSE_S)

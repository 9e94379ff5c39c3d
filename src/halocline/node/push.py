"""Push: commits go to their subscribers, as messages, as soon as they are durable.

    commits --> log files --Follower--> Feed --Pushed--> a connection, or this very program
                    |                    ^
                    '--visible_ts moves--'  wakes the feeds that wait

The log is the buffer. A subscriber is a place in it, and nothing is kept for it but what is on its
way: commits never wait for one, and one that is slow reads older files when it comes for more. When
those are gone it is told so (SnapshotExpiredError), and begins again with a checkpoint or a read of
the table. Messages are encoded once for all who subscribe to the same.

Invariants
- What is pushed is durable: a feed reads up to the published position, as every follower does.
- The spans of a feed continue each other, without gap or overlap, from `since` on.

Not here: what a message is (logtail.py), how it travels (request_loop.py, server.py), the
subscriber's side (subscription.py).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from threading import BoundedSemaphore, Lock
from typing import Final

from halocline.clock import SystemClock
from halocline.errors import (
    CorruptionError,
    HaloclineError,
    NotFoundError,
    SnapshotExpiredError,
    UnavailableError,
    UsageError,
)
from halocline.ids import NEVER
from halocline.log import Follower, Place
from halocline.log.follow import LogGone
from halocline.log.names import LOG_DIRECTORY
from halocline.log.record import Record, decode_record
from halocline.node.logtail import messages_of
from halocline.node.served import Served
from halocline.node.wire import FRAME_BYTES_MAX, Pushed, Subscribe
from halocline.rows.state import TableState
from halocline.txn import Core

SUBSCRIBERS_MAX: Final = 64
BEAT_S: Final = 1.0
"""A feed that has nothing to tell says so this often."""
PUSH_BYTES_MAX: Final = 1 << 20
"""Messages that travel together, unless one commit has more."""
ENCODED_BYTES_MAX: Final = 16 << 20
READING_MAX: Final = 4
"""Feeds that have a log file in memory at the same time."""
PAUSE_S: Final = 0.01
GATHER_S: Final = 0.002
"""From one look at the log to the next: what is committed meanwhile travels together."""
PAGE_S: Final = 5.0
"""How long a feed looks for the published position, which the owner mends twice a second."""
GONE_TRIES: Final = 100
"""So often a feed looks whether it was the owner that has deleted a file of the log."""
BEGIN_AGAIN: Final = "read the table at a newer snapshot, or a checkpoint, and subscribe since then"
LOOK_RECORDS: Final = 256
_ENTRY_BYTES: Final = 256
_EVERYBODY: Final = 1 << 64
CommitMessages = list[tuple[int, list[bytes]]]
"""(commit_ts, its messages) for each commit of a record."""


class Hub:
    """The subscriptions of one door to a database. Thread-safe."""

    def __init__(self, owner: Callable[[], Served | None]) -> None:
        self.owner = owner
        self.encoded = Encoded()
        self.reading = BoundedSemaphore(READING_MAX)
        self.stopping = False
        self._lock = Lock()
        self._feeds: set[Feed] = set()

    def open(self, request: Subscribe) -> Feed:
        """A place in the log for a new subscriber; iterate over it, and close it."""
        owner = self.owner()
        if owner is None or owner.core.closed or self.stopping:
            raise UnavailableError("the owner is closing the database")
        feed = Feed(self, owner, request)
        with self._lock:
            full = len(self._feeds) >= SUBSCRIBERS_MAX
            if not full:
                self._feeds.add(feed)
        if full:
            feed.close()
            text = f"{SUBSCRIBERS_MAX} subscriptions are open already: close one, or try later"
            raise UnavailableError(text)
        return feed

    def feeds(self) -> list[Feed]:
        """Those that are open."""
        with self._lock:
            return list(self._feeds)

    def leave(self, feed: Feed) -> None:
        with self._lock:
            self._feeds.discard(feed)

    def stop(self) -> None:
        """End them all, with an error that says why. Those that are sending end when they have."""
        self.stopping = True
        for feed in self.feeds():
            feed.rouse()


class Feed:
    """What one subscriber gets. For one thread, but for `stop`."""

    def __init__(self, hub: Hub, owner: Served, request: Subscribe) -> None:
        core = owner.core
        self._hub = hub
        self._log = core.own.log
        self._database = self._log.uuid.hex()
        self._clock = SystemClock()
        self._table_id = None if request.table is None else _table_id(core, request.table)
        place, self._end = _start(core, request.since)
        self._told = self._end
        """The end of what was pushed; `_end` may be further, when all the rest was others'."""
        self._follower = Follower(owner.files, start=place)
        self._has_more = True
        """The last look at the log has not come to its end."""
        self._stopped = False
        self._lost_at: float | None = None
        """Since when the published position has been missing."""

    def __iter__(self) -> Iterator[Pushed]:
        """Until `stop`, or an error: of those, the end of the database is one."""
        try:
            yield from self._pushed()
        finally:
            self.close()

    def stop(self) -> None:
        """End the feed: its subscriber has gone."""
        self._stopped = True
        self.rouse()

    def rouse(self) -> None:
        """Make it look again whether it should go on."""
        self._log.watchers.wake_up_to(_EVERYBODY)

    def close(self) -> None:
        self._hub.leave(self)
        self._follower.close()

    def _pushed(self) -> Iterator[Pushed]:
        pushed: Pushed | None = self._beat()
        heard, seen = 0.0, self._end
        while not self._stopped:
            if pushed is None and self._clock.monotonic() - heard >= BEAT_S:
                pushed = self._beat()
            if pushed is not None:
                self._told, heard = pushed.end, self._clock.monotonic()
                yield pushed
            if self._hub.stopping:
                raise UnavailableError("the owner is closing the database")
            if self._end > seen:
                self._clock.sleep(GATHER_S)
            seen = self._end
            pushed = self._take()
            if pushed is None:
                self._wait(heard)

    def _beat(self) -> Pushed:
        """All that is known by now; nothing of it concerns the subscriber."""
        return Pushed(min(self._told + 1, self._end), self._end, ())

    def _wait(self, heard: float) -> None:
        """Until there may be something new, or it is time for a sign of life."""
        if self._has_more:
            return
        if self._log.visible_ts > self._end:
            # Committed without a sync, which comes soon; or it cannot be read, see `_find_page`.
            self._clock.sleep(PAUSE_S)
            return
        left = heard + BEAT_S - self._clock.monotonic()
        if left > 0:
            self._log.wait_visible(self._end + 1, left)

    def _take(self) -> Pushed | None:
        """Messages of commits that have become durable, as many as travel together."""
        owner = self._hub.owner()
        if owner is None:
            raise UnavailableError("the owner has let go of the database")
        self._find_page(owner)
        found: list[bytes] = []
        try:
            with self._hub.reading:
                self._read(owner.core, found)
        except LogGone:
            raise self._gone(owner) from None
        if not found:
            self._check_table(owner.core)
            return None
        return Pushed(self._told + 1, self._end, tuple(found))

    def _read(self, core: Core, found: list[bytes]) -> None:
        size = 0
        self._has_more = True
        until = self._clock.monotonic() + BEAT_S
        for number, entry in enumerate(self._follower.poll(), 1):
            record = decode_record(entry)
            for ts, messages in self._messages(core, record):
                if ts > self._end:
                    size += _bytes(messages)
                    if size > FRAME_BYTES_MAX // 2:
                        hint = f"commit {ts} is too large to be pushed: {BEGIN_AGAIN}"
                        raise SnapshotExpiredError(self._end, ts, hint=hint)
                    found += messages
                    self._end = ts
            late = not number % LOOK_RECORDS and self._clock.monotonic() > until
            if size >= PUSH_BYTES_MAX or late:
                return  # the next look goes on behind this record
        self._has_more = False
        self._end = max(self._end, self._follower.visible_ts)

    def _messages(self, core: Core, record: Record) -> CommitMessages:
        """Those of each commit of a record that is not known yet."""
        info = record.info
        if info is None or info.first_ts + info.commits <= self._end + 1:
            return []
        return self._hub.encoded.of(record, self._table_id, core, self._database)

    def _check_table(self, core: Core) -> None:
        if self._table_id is not None:
            _table_id(core, self._table_id)

    def _find_page(self, owner: Served) -> None:
        """UnavailableError when there is no published position, and nobody brings it back."""
        if self._follower.is_published():
            self._lost_at = None
            return
        owner.files.check_root()
        now = self._clock.monotonic()
        self._lost_at = now if self._lost_at is None else self._lost_at
        if now - self._lost_at > PAGE_S:
            raise UnavailableError("`published` was removed or replaced, and nobody mends it")

    def _gone(self, owner: Served) -> HaloclineError:
        """Why a file of the log is missing: the owner has deleted it, or somebody else has."""
        for _ in range(GONE_TRIES):  # the owner deletes first, and then says from where on it reads
            oldest = self._oldest()
            if oldest > self._end:
                return SnapshotExpiredError(self._end, oldest, hint=BEGIN_AGAIN)
            owner.files.check_root()
            self._clock.sleep(PAUSE_S)
        reason = f"files with what came after timestamp {self._end} were removed"
        return CorruptionError(LOG_DIRECTORY, f"{reason}, and not by this database")

    def _oldest(self) -> int:
        """The oldest timestamp that can still be subscribed from."""
        return self._log.places.before(0)[0]


class Encoded:
    """Messages of the newest records: many subscribers want the same. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._found: OrderedDict[tuple[int, int | None], CommitMessages] = OrderedDict()
        self._bytes = 0

    def of(self, record: Record, table_id: int | None, core: Core, database: str) -> CommitMessages:
        """The messages of a record's commits about one table, or all."""
        key = record.order, table_id
        with self._lock:
            known = self._found.get(key)
        if known is not None:
            return known

        def state_of(id: int) -> TableState | None:
            return core.engine.tables.get(id) if table_id in (None, id) else None

        made = messages_of(record, state_of, database)
        with self._lock:
            if key not in self._found:
                self._found[key] = made
                self._bytes += _held_bytes(made)
            while self._bytes > ENCODED_BYTES_MAX:
                self._bytes -= _held_bytes(self._found.popitem(last=False)[1])
        return made


def _held_bytes(made: CommitMessages) -> int:
    return sum(_ENTRY_BYTES + _bytes(messages) for _, messages in made)


def _bytes(messages: list[bytes]) -> int:
    return sum(map(len, messages))


def _table_id(core: Core, table: str | int) -> int:
    """The id of a table that is there; it may have another name by now than it was asked for."""
    if isinstance(table, str):
        entry = core.catalog.table(table, core.engine.last_ts)
    else:
        entry = core.catalog.table_by_id(table)
    if entry is None or entry.dropped_at != NEVER:
        raise NotFoundError("table", entry.name if entry else str(table))
    return entry.id


def _start(core: Core, since: int | None) -> tuple[Place, int]:
    """A place that has every commit after the timestamp behind it; None: after all until now."""
    committer = core.own
    log = committer.log
    if since is None:
        with committer.lock:
            place, newest = log.places.here(), core.engine.last_ts
        while not log.wait_visible(newest, BEAT_S):
            core.check_open()
        return place, newest
    if since > log.visible_ts:
        raise UsageError(f"timestamp {since} lies in the future: the newest is {log.visible_ts}")
    before, place = log.places.before(since + 1)
    if before > since:
        raise SnapshotExpiredError(since, before, hint=BEGIN_AGAIN)
    return place, since

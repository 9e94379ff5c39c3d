"""Core: what transactions need of their database, shared by all of them.

An owner has a Committer, a compute node one that asks the owner, a read-only opener none. Whoever
is not the owner follows the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from threading import Lock
from weakref import WeakSet

from halocline.catalog import Catalog, TableDdl, TableEntry
from halocline.catalog.names import name_key
from halocline.clock import Clock
from halocline.errors import (
    ConflictError,
    SnapshotExpiredError,
    UnavailableError,
    UsageError,
)
from halocline.options import Options
from halocline.read.duck import Duck
from halocline.rows.engine import EngineState
from halocline.rows.state import TableState
from halocline.rows.trim import newest_moved
from halocline.txn.commit import Committer
from halocline.txn.commits import Commits

EPOCH_START = datetime(1970, 1, 1, tzinfo=UTC)


class Pin:
    """A snapshot that is held for as long as somebody reads at it, like a stream.

    It is given back by `close`, or when the last reference to it goes. Its key among the pins is
    negative: nothing is committed from it.
    """

    __slots__ = ("_pins", "key")

    def __init__(self, pins: dict[int, int], snapshot: int) -> None:
        self.key = -id(self)
        self._pins = pins
        pins[self.key] = snapshot

    def close(self) -> None:
        """Let the snapshot go. Closing again does nothing."""
        self._pins.pop(self.key, None)

    def __del__(self) -> None:
        if hasattr(self, "_pins"):  # Ctrl-C may end the constructor before it holds anything
            self.close()


class Core:
    """Engine state, committer, SQL engine and the pins of open transactions."""

    __slots__ = (
        "__weakref__",
        "_kin",
        "_states",
        "_trimming",
        "catalog",
        "clock",
        "closed",
        "committer",
        "duck",
        "engine",
        "options",
        "others",
        "owned",
        "pins",
        "recovered",
        "trimmed",
        "write_floor",
    )

    def __init__(
        self,
        engine: EngineState,
        committer: Commits | None,
        duck: Duck,
        clock: Clock,
        pins: dict[int, int] | None = None,
    ) -> None:
        self.engine = engine
        self.catalog: Catalog = engine.catalog
        self.committer = committer
        self.owned = committer if isinstance(committer, Committer) else None
        """The committer, where this process is the owner."""
        self.duck = duck
        self.clock = clock
        self.options: Options = engine.options
        self.pins: dict[int, int] = {} if pins is None else pins
        """Snapshot of every open transaction: GC may not pass the oldest. A reader brings a dict
        that tells the owner about it.

        Those that only read have a key below zero: nothing will ever be committed from them."""
        self.write_floor = 0
        """No transaction that may write begins below this timestamp."""
        self.others: Callable[[], Iterable[int]] = tuple
        """The oldest snapshot of each of the other processes that may write."""
        self.recovered = engine.last_ts
        """What changed up to here need not be in memory: a commit cannot be checked from a snapshot
        below it."""
        self.trimmed: dict[int, int] = {}
        """By table: what changed up to here need not be in memory, because its rows have moved."""
        self._trimming = Lock()
        self._states: dict[str, TableState] = {}
        self.closed = ""
        """Why nothing works any more, once it does not."""
        self._kin: WeakSet[Core] = WeakSet([self])

    def renewed(self, engine: EngineState) -> Core:
        """The core of a reader that had to load its state anew; this one ends with its readers."""
        return self.succeeded(Core(engine, self.committer, self.duck, self.clock, self.pins))

    def succeeded(self, core: Core) -> Core:
        """The core that comes after this one; closing it closes both."""
        core.closed = self.closed
        core._kin = self._kin
        self._kin.add(core)
        return core

    def close(self, why: str) -> None:
        """Nothing works any more, here and in transactions that began before a renewal."""
        for core in list(self._kin):
            core.closed = why

    def check_open(self) -> None:
        if self.closed:
            raise UsageError(self.closed)

    def oldest_writer(self, tables: Iterable[TableState] = ()) -> int:
        """Before these tables are trimmed: the bound.

        No transaction that may write, open or still to come, has an older snapshot.

        The bound is published before the pins are read, and a transaction publishes its pin before
        it looks at the bound: either we see its pin, or it takes a newer snapshot. Those of other
        processes do not see the bound; they are refused when they come to commit.
        """
        owned = self.owned
        if owned is None:
            return self.engine.last_ts
        with self._trimming:
            with owned.lock:
                self.write_floor = max(self.write_floor, owned.log.visible_ts)
                bound = self.write_floor
            mine = (ts for key, ts in self.pins.copy().items() if key > 0)
            bound = min([bound, *mine, *self.others()])
            for state in tables:
                until = min(bound, newest_moved(state))
                self.trimmed[state.table_id] = max(until, self.trimmed.get(state.table_id, 0))
            return bound

    def check_writable(self, snapshot: int, table_ids: Iterable[int]) -> None:
        """Can a commit from this snapshot, which is pinned, be checked? ConflictError if not."""
        with self._trimming:
            trimmed = self.recovered
            for table_id in table_ids:
                trimmed = max(trimmed, self.trimmed.get(table_id, 0))
        if snapshot < self.engine.floor:
            raise SnapshotExpiredError(snapshot, self.engine.floor)
        if snapshot < trimmed:
            raise ConflictError("what happened since the snapshot is not in memory any more")
        if snapshot > self.engine.last_ts:  # folded; visible here perhaps a moment later
            raise UsageError(f"snapshot {snapshot} lies in the future")

    def begin_ddl(self, snapshot: int) -> TableDdl:
        """The catalog's part of a transaction."""
        if self.committer is None:
            return self.catalog.begin(snapshot)
        return self.committer.begin_ddl(snapshot)

    def newest_ts(self) -> int:
        """The newest snapshot that can be taken here."""
        if self.owned is None:
            return self.engine.last_ts
        return self.owned.log.visible_ts

    def pin_newest(self, pin: int) -> int:
        """Pin the newest snapshot from which a commit can be checked; returns it."""
        while True:
            ts = self.pins[pin] = self.newest_ts()
            if ts >= self.write_floor and ts >= self.engine.floor:
                return ts

    def hint(self, name: str, snapshot: int) -> str:
        """What to tell a caller who has named a table that is not there."""
        names = [entry.name for entry in self.catalog.tables(snapshot)]
        later = self.catalog.table(name, self.engine.last_ts)
        if later is not None and later.created_at > snapshot:
            missing = "it was not there yet" if names else "the database had no tables"
            return (
                f"at {self._moment(snapshot)} {missing}: "
                f"it was created at {self._moment(later.created_at)}"
            )
        if renamed := self._renamed(name, later, snapshot):
            return renamed
        near = get_close_matches(name, names, n=1)
        if near:
            return f"did you mean {near[0]!r}?"
        return f"tables: {', '.join(names[:20])}" if names else "the database has no tables"

    def _renamed(self, name: str, later: TableEntry | None, snapshot: int) -> str:
        """A table had this name before the snapshot, or gets it later: what it is called there."""
        entries = self.catalog.tables(snapshot)
        if later is not None:
            there = [entry.name for entry in entries if entry.id == later.id]
            return f"at {self._moment(snapshot)} it was called {there[0]!r}" if there else ""
        key = name_key(name)
        for entry in entries:
            names = [name_key(one.name) for one in entry.versions()]
            if key in names:
                return f"it was renamed to {entry.name!r}"
        return ""

    def _moment(self, ts: int) -> str:
        """A timestamp, with the wall clock where there was a commit at or before it."""
        stamps = self.engine.times.stamps
        if not stamps or stamps[0] > ts:
            return f"timestamp {ts}, before the first commit,"
        return f"timestamp {ts} ({self.wall_of(ts):%Y-%m-%d %H:%M:%S} UTC)"

    def wall_of(self, ts: int) -> datetime:
        """The wall clock of a commit, or of the last one before a timestamp."""
        return EPOCH_START + timedelta(microseconds=self.engine.times.wall_of(ts))

    def oldest_needed(self) -> int:
        """What ended at or before this timestamp is seen by nobody any more, here or elsewhere."""
        return min([self.engine.bound, *list(self.pins.values())])

    @contextmanager
    def pinned(self) -> Iterator[int]:
        """Keep whatever stands for the newest snapshot until the block ends; gives the snapshot.

        For all who read objects without a transaction: compaction, checks, statistics.
        """
        ts = self.newest_ts()
        pin = Pin(self.pins, ts)
        try:
            while ts < self.engine.floor:
                ts = self.pins[pin.key] = self.newest_ts()
            yield ts
        finally:
            pin.close()

    @property
    def writing(self) -> Commits:
        """Who commits; UnavailableError when nobody does."""
        if self.committer is None:
            raise UnavailableError("the database is open read-only")
        return self.committer

    @property
    def own(self) -> Committer:
        """The committer of an owner; UnavailableError in every other process."""
        if self.owned is None:
            raise UnavailableError("another process owns the database, or nobody does")
        return self.owned

    def state_of(self, name: str, snapshot: int) -> TableState | None:
        """A table's state by the name a caller used; None sends the caller the long way.

        0.15 us against 0.5 us through the catalog. An entry of this cache says itself whether it
        is still right: a table that was dropped, altered, or dropped and made again, ended before.
        """
        if not isinstance(name, str):
            return None
        state = self._states.get(name)
        if (
            state is not None
            and state.valid_from <= snapshot < state.valid_until
            and not self.closed
        ):
            return state
        if self.closed:
            return None
        entry = self.catalog.table(name, snapshot)
        state = None if entry is None else self.engine.tables.get(entry.id)
        if entry is None or state is None:
            return None
        state = self._states[name] = state.at_version(entry.schema.version)
        return state

    def forget(self, table_ids: Iterable[int]) -> None:
        """Let go of tables that no snapshot can see any more."""
        gone = set(table_ids)
        for table_id in gone:
            self.engine.tables.pop(table_id, None)
            self.engine.sequences.pop(table_id, None)
        names = [name for name, state in self._states.copy().items() if state.table_id in gone]
        for name in names:
            self._states.pop(name, None)

"""Pins: snapshots that a Spark session still reads.

    Pin(session, db, at) --release, stop of the session, end of the lease--> gone

A DataFrame is a recipe: its files are read when somebody asks for rows, perhaps much later, and its
Python object may be gone long before. So a pin belongs to the session (or to an attach handle), not
to the DataFrame. While it lives, GC keeps every file that its snapshot needs, and the files that
were written for its plan alone (lease.py); these go with it.

One thread looks after all pins of a process: it ends those whose lease is over, whose session has
been stopped or whose database has been closed. It lives while there are any.
"""

from __future__ import annotations

from itertools import count
from threading import Condition, Lock, Thread
from typing import Any, Final

from pyspark.sql import SparkSession

from halocline.errors import UsageError
from halocline.options import parse_duration
from halocline.rows.system import JobNode
from halocline.spark.owner import SparkOwner, check_owner
from halocline.txn.jobs import give_up

LEASE: Final = "1h"
LOOK_S: Final = 0.5
"""How often the thread looks: a session that was stopped holds its pins this much longer."""
_numbers = count(1)


class SessionPin:
    """One snapshot of one database that must stay readable."""

    def __init__(
        self,
        session: SparkSession,
        owner: SparkOwner,
        at: Any = None,
        *,
        handle: bool = False,
        lease: str | float = LEASE,
    ) -> None:
        self.core = owner.core
        self.session = session
        self.handle = handle
        """Does it belong to an attach handle rather than to the session?"""
        self.jobs: list[JobNode] = []
        """Jobs that have written files for plans at this snapshot."""
        # Below zero: nothing is ever committed from it.
        self._key = -(1 << 62) - next(_numbers)
        self._until = self.core.clock.monotonic() + parse_duration(lease)
        with owner.begin(at=at) as txn:
            self.ts = txn.snapshot
            self.core.pins[self._key] = self.ts
        _keeper.add(self)

    @property
    def held(self) -> bool:
        return self._key in self.core.pins

    @property
    def over(self) -> bool:
        """Has its lease, its session or its database ended?"""
        if self.session.sparkContext._jsc is None or self.core.closed:
            return True
        return self.core.clock.monotonic() >= self._until

    def release(self) -> None:
        """Let GC have what only this pin kept. Releasing again does nothing."""
        self.core.pins.pop(self._key, None)
        jobs, self.jobs = self.jobs, []
        if jobs and self.core.committer is not None and not self.core.closed:
            give_up(self.core.committer, jobs)


class _Keeper:
    """Ends the pins whose lease, session or database has ended."""

    def __init__(self) -> None:
        self._pins: list[SessionPin] = []
        # A lock of its own: a Condition takes its lock in Python, and Ctrl-C could leave it taken.
        self._lock = Lock()
        self._changed = Condition(self._lock)
        self._thread: Thread | None = None

    def add(self, pin: SessionPin) -> None:
        with self._lock:
            self._pins.append(pin)
            if self._thread is None:
                self._thread = Thread(target=self._watch, name="halocline-pins", daemon=True)
                self._thread.start()

    def of(self, session: SparkSession) -> list[SessionPin]:
        """The pins that belong to a session."""
        with self._lock:
            pins = list(self._pins)
        # PySpark makes several objects for one session, for example when asked for the active one.
        same = [pin for pin in pins if pin.held and not pin.handle]
        return [pin for pin in same if pin.session is session or _equal(pin.session, session)]

    def _watch(self) -> None:
        while True:
            with self._lock:
                self._changed.wait(LOOK_S)
                over = [pin for pin in self._pins if not pin.held or pin.over]
                self._pins = [pin for pin in self._pins if pin not in over]
                last = not self._pins
                if last:
                    self._thread = None  # the next pin starts another
            for pin in over:  # outside the lock: it may wait for the disk
                pin.release()
            if last:
                return


def _equal(one: SparkSession, other: SparkSession) -> bool:
    return bool(one._jsparkSession.equals(other._jsparkSession))


_keeper = _Keeper()


def release(session: SparkSession, db: Any = None) -> int:
    """Let go of the snapshots that a session holds, of one database or of all; returns how many.

    DataFrames made before may then fail with a missing file, once GC has run. What `attach` holds
    belongs to its handle and stays.
    """
    if not isinstance(session, SparkSession):
        raise UsageError(f"expected a SparkSession, not {type(session).__name__}")
    wanted = None if db is None else check_owner(db).core.pins
    gone = [pin for pin in _keeper.of(session) if wanted is None or pin.core.pins is wanted]
    for pin in gone:
        pin.release()
    return len(gone)

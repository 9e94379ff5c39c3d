"""Pins: snapshots that a Spark session still reads.

    hold(session, db, at) --> Pin(ts) --release, stop of the session, end of the lease--> gone

A DataFrame is a recipe: its files are read when somebody asks for rows, perhaps much later, and its
Python object may be gone long before. So a pin belongs to the session (or to an attach handle), not
to the DataFrame, and ends by itself after the lease.

While a pin lives, GC keeps every file that its snapshot needs.
"""

from __future__ import annotations

from itertools import count
from threading import Lock, Timer
from typing import Any
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession

from halocline.config import parse_duration
from halocline.spark.owner import Owner

LEASE = "1h"
_numbers = count(1)
_lock = Lock()


class Pin:
    """One snapshot of one database that must stay readable."""

    def __init__(self, owner: Owner, at: Any, lease: str | float = LEASE) -> None:
        self.core = owner.core
        # Below zero: nothing is ever committed from it.
        self._key = -(1 << 62) - next(_numbers)
        with owner.begin(at=at) as txn:
            self.ts = txn.snapshot
            self.core.pins[self._key] = self.ts
        self._timer = Timer(parse_duration(lease), self.release)
        self._timer.daemon = True
        self._timer.start()

    @property
    def held(self) -> bool:
        return self._key in self.core.pins

    def release(self) -> None:
        """Let GC have what only this pin kept. Releasing again does nothing."""
        self._timer.cancel()
        self.core.pins.pop(self._key, None)


_of_sessions: WeakKeyDictionary[SparkSession, list[Pin]] = WeakKeyDictionary()


def hold(session: SparkSession, owner: Owner, at: Any) -> Pin:
    """Pin a snapshot for as long as the session may read it."""
    pin = Pin(owner, at)
    with _lock:
        kept = [old for old in _of_sessions.get(session, []) if old.held]
        _of_sessions[session] = [*kept, pin]
    return pin


def release(session: SparkSession, db: Any = None) -> int:
    """Let go of the snapshots that a session holds, of one database or of all; returns how many.

    DataFrames made before may then fail with a missing file, once GC has run.
    """
    core = None if db is None else db.core
    with _lock:
        pins = _of_sessions.get(session, [])
        gone = [pin for pin in pins if core is None or pin.core is core]
        _of_sessions[session] = [pin for pin in pins if pin not in gone]
    released = sum(pin.held for pin in gone)
    for pin in gone:
        pin.release()
    return released

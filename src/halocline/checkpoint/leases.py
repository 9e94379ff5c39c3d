"""Leases: a note with an end, left for the owner by something without a process to hold a lock.

    planner   begins at ts (a pin with a lock)  -->  writes the lease  -->  ends
    readers   open files of that snapshot, in other processes, for as long as the lease runs
    owner     read_leases: still running -> a pin like any other; over -> the file is removed

A Spark job is planned in a process that ends before the first row is read, and it is not told when
the last row has been. So its pin is an empty file whose name says the snapshot and the wall clock
at which it may be forgotten. Jobs that read the same snapshot at about the same time share one.

A clock that jumps ahead ends leases early; then a reader meets a missing file, never fewer rows.

Invariants
- The lease is in its directory before the planner's own pin goes, so the snapshot is held
  without a gap.
- A file whose name makes no sense is no pin, and is removed.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Final

from halocline.checkpoint.pins import PINS_DIRECTORY, ProcessPin
from halocline.clock import Clock
from halocline.store import Files

ENDING: Final = ".lease"
_NAME: Final = re.compile(r"(\d{1,19})-(\d{1,19})\.lease", re.ASCII)
SHARES: Final = 10
"""Leases that end within a tenth of their length of each other are one file."""


def lease_end_us(clock: Clock, seconds: float) -> int:
    """When a lease of at least so long ends, on the wall clock."""
    step = max(1, int(seconds * 1e6 / SHARES))
    return (clock.wall_us() + int(seconds * 1e6)) // step * step + step


def write_lease(files: Files, clock: Clock, ts: int, seconds: float) -> str:
    """Pin a snapshot, which the caller holds open, for at least so long; returns the file."""
    path = f"{PINS_DIRECTORY}/{ts}-{lease_end_us(clock, seconds)}{ENDING}"
    if not files.exists(path):
        files.makedirs(PINS_DIRECTORY)
        files.write(path, b"")
    return path


def read_leases(files: Files, clock: Clock) -> list[ProcessPin]:
    """The snapshots of leases that run; the files of others are removed."""
    found = []
    now_us = clock.wall_us()
    for name in files.list(PINS_DIRECTORY):
        if name.endswith(ENDING):
            parts = _NAME.fullmatch(name)
            if parts is not None and int(parts[2]) > now_us:
                found.append(ProcessPin(0, int(parts[1])))
            else:
                with suppress(OSError):
                    files.remove(f"{PINS_DIRECTORY}/{name}")
    return found

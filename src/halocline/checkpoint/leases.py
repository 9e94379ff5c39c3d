"""Leased pins: snapshots that are read by something without a process to hold a lock.

    planner   begins at ts (a pin with a lock)  -->  writes the lease  -->  ends
    readers   open files of that snapshot, in other processes, for as long as the lease runs
    owner     read_leases: still running -> a pin like any other; over -> the file is removed

A Spark job is planned in a process that ends before the first row is read, and it is not told when
the last row has been. So its pin is a small file with an end: the snapshot and the wall clock at
which it may be forgotten. Jobs that read the same snapshot at about the same time share one.

A clock that jumps ahead ends leases early; then a reader meets a missing file, never fewer rows.

Invariants
- The lease is in its directory before the planner's own pin goes, so the snapshot is held
  without a gap.
- A file that cannot be read is what a crash left: its job is gone, and so is the pin.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import msgspec

from halocline.checkpoint.pins import PINS_DIRECTORY, ProcessPin
from halocline.clock import Clock
from halocline.errors import CorruptionError
from halocline.store import Files

ENDING: Final = ".lease"
SIZE_MAX: Final = 1024
SHARES: Final = 10
"""Leases of one snapshot that end within a tenth of their length of each other are one file."""


class _Lease(msgspec.Struct, forbid_unknown_fields=True):
    ts: int
    until_us: int


_decode = msgspec.json.Decoder(_Lease).decode


def write_lease(files: Files, clock: Clock, ts: int, seconds: float) -> str:
    """Pin a snapshot, which the caller holds open, for at least so long; returns the file."""
    step = max(1, int(seconds * 1e6 / SHARES))
    until_us = (clock.wall_us() + int(seconds * 1e6)) // step * step + step
    path = f"{PINS_DIRECTORY}/{ts}-{until_us}{ENDING}"
    if not files.exists(path):
        files.makedirs(PINS_DIRECTORY)
        files.write(path, msgspec.json.encode(_Lease(ts, until_us)))
    return path


def read_leases(files: Files, clock: Clock) -> list[ProcessPin]:
    """The snapshots of leases that run; the files of others are removed."""
    found = []
    now_us = clock.wall_us()
    for name in files.list(PINS_DIRECTORY):
        if name.endswith(ENDING):
            path = f"{PINS_DIRECTORY}/{name}"
            lease = _read(files, path)
            if lease is not None and lease.until_us > now_us:
                found.append(ProcessPin(0, lease.ts))
            else:
                with suppress(OSError):
                    files.remove(path)
    return found


def _read(files: Files, path: str) -> _Lease | None:
    with suppress(OSError, CorruptionError, msgspec.DecodeError):
        return _decode(files.read(path, SIZE_MAX))
    return None

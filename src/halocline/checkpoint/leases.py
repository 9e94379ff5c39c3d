"""Leases: a note with an end, left for the owner by something without a process to hold a lock.

    planner   begins at ts (a pin with a lock)  -->  writes the lease  -->  ends
    readers   open files of that snapshot, in other processes, for as long as the lease runs
    owner     read_leases: still running -> a pin like any other; over -> the file is removed

A Spark job is planned in a process that ends before the first row is read, and it is not told when
the last row has been. So its pin is an empty file whose name says the snapshot and the wall clock
at which it may be forgotten. Jobs that read the same snapshot at about the same time share one. A
named lease is a file whose content is the name of another: tasks that must read the same snapshot,
and cannot be told which, agree on one by it.

A clock that jumps ahead ends leases early; then a reader meets a missing file, never fewer rows.

Invariants
- The lease is in its directory before the planner's own pin goes, so the snapshot is held
  without a gap.
- A file whose name makes no sense is no pin, and is removed.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from halocline.checkpoint.pins import PINS_DIRECTORY, ProcessPin
from halocline.clock import Clock
from halocline.errors import CorruptionError
from halocline.store import Files, LocalFiles

ENDING: Final = ".lease"
NAMED: Final = ".named"
NAME_BYTES_MAX: Final = 64
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


def share_lease(root: str, clock: Clock, name: str, ts: int, seconds: float) -> int:
    """Pin a snapshot, which the caller holds open, under a name; returns which one the name pins.

    Of several who call at once the first decides, so all of them read the same snapshot: a link
    never replaces a file.
    """
    files, path = LocalFiles(root), f"{PINS_DIRECTORY}/{name}{NAMED}"
    if not files.exists(path):
        lease = Path(write_lease(files, clock, ts, seconds)).name
        draft = f"{PINS_DIRECTORY}/{name}.{clock.random_bytes(8).hex()}{NAMED}"
        files.write(draft, lease.encode())
        with suppress(FileExistsError):
            os.link(Path(root, draft), Path(root, path), follow_symlinks=False)
        files.remove(draft)
    found = _lease_in(files, path)
    if found is None:
        raise CorruptionError(path, "it names no lease")
    return found[0]


def read_leases(files: Files, clock: Clock) -> list[ProcessPin]:
    """The snapshots of leases that run; the files of others are removed."""
    found = []
    now_us = clock.wall_us()
    for name in files.list(PINS_DIRECTORY):
        if name.endswith((ENDING, NAMED)):
            path = f"{PINS_DIRECTORY}/{name}"
            lease = _lease_in(files, path)
            if lease is not None and lease[1] > now_us:
                found.append(ProcessPin(0, lease[0]))
            else:
                with suppress(OSError):
                    files.remove(path)
    return found


def _lease_in(files: Files, path: str) -> tuple[int, int] | None:
    """The snapshot of a lease and its end; None for a file that is none."""
    text = Path(path).name
    if path.endswith(NAMED):
        with suppress(OSError, UnicodeDecodeError, CorruptionError):
            text = files.read(path, NAME_BYTES_MAX).decode("ascii")
    parts = _NAME.fullmatch(text)
    return None if parts is None else (int(parts[1]), int(parts[2]))

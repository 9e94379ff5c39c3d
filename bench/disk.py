"""The disk's own limit: what a durable commit costs when nothing but the disk is in the way.

A short record is written into a file whose blocks exist already, then synced. No engine that keeps
its promise on this disk, one commit at a time, can be faster.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

from bench.harness import Run

FILE_BYTES = 16 << 20
RECORD = b"\xa5" * 120
SECTOR_BYTES = 4096

# macOS has no fdatasync; fsync is the nearest call that Python offers there.
_sync = getattr(os, "fdatasync", os.fsync)


@contextmanager
def appends(directory: Path, *, ops: int) -> Iterator[Run]:
    """Side: `ops` short appends into a preallocated file, each followed by fdatasync."""
    handle = _preallocated(directory, os.O_RDWR)

    def run(number: int) -> float:
        offset = number * ops * len(RECORD) % (FILE_BYTES - ops * len(RECORD))
        started = perf_counter()
        for _ in range(ops):
            os.pwrite(handle, RECORD, offset)
            _sync(handle)
            offset += len(RECORD)
        return perf_counter() - started

    yield run
    os.close(handle)


@contextmanager
def direct_sectors(directory: Path, *, ops: int) -> Iterator[Run]:
    """Side: `ops` sectors written past the page cache with O_DIRECT and O_DSYNC, where it exists.

    One system call instead of two, and nothing for the kernel to look up: the least that a
    durable write can cost here.
    """
    handle = _preallocated(directory, os.O_RDWR | os.O_DSYNC | getattr(os, "O_DIRECT", 0))
    # Direct I/O wants aligned memory; an anonymous map is aligned to a page.
    sector = memoryview(mmap.mmap(-1, SECTOR_BYTES))

    def run(number: int) -> float:
        offset = number * ops * SECTOR_BYTES % (FILE_BYTES - ops * SECTOR_BYTES)
        started = perf_counter()
        for _ in range(ops):
            os.pwrite(handle, sector, offset)
            offset += SECTOR_BYTES
        return perf_counter() - started

    yield run
    os.close(handle)


def _preallocated(directory: Path, flags: int) -> int:
    path = directory / "limit.log"
    with path.open("xb") as file:
        file.write(b"\0" * FILE_BYTES)
        file.flush()
        os.fsync(file.fileno())
    return os.open(path, flags)

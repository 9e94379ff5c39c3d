"""What the tests of the log share: a log in memory, payloads that name themselves, damage."""

from __future__ import annotations

from halocline.log import Log, Recovery, recover
from halocline.log.format import AC, FRAME_BYTES, HEADER, SECTOR, Entry, align
from halocline.log.names import path_of
from halocline.options import Durability, Options
from halocline.store import Files
from tests.clock import ManualClock
from tests.store.faulty import FaultyFiles

TINY = Options(log_file_bytes_first=2048, log_file_bytes=4096, async_sync_ms=10**9)
"""Files of a few sectors, and a flusher that never comes on its own."""
ROOMY = Options(log_file_bytes_first=65536, log_file_bytes=65536, async_sync_ms=10**9)


def recovered(files: Files, options: Options = TINY) -> Recovery:
    return recover(files, options=options, clock=ManualClock(7))


def start(
    files: Files, options: Options = TINY, durability: Durability = "sync"
) -> tuple[Log, Recovery]:
    """Recover and begin an epoch."""
    recovery = recovered(files, options)
    log = Log.start(files, recovery, options=options, clock=ManualClock(7), durability=durability)
    return log, recovery


def commit(log: Log, payload: bytes, ts: int = 0, *, group: int = 1, type: int = AC) -> int:
    log.reserve(len(payload))
    order = log.append(group, type, payload, ts)
    log.wait(order)
    return order


def payload(number: int, size: int = 100) -> bytes:
    """Bytes that name themselves, without long runs of zeros."""
    seed = (number * 2654435761 % (1 << 32)).to_bytes(4, "little")
    return (b"p%06d:" % number + (seed + b"\x01") * (size // 5 + 1))[:size]


def payloads(recovery: Recovery) -> list[bytes]:
    return [entry.payload for entry in recovery.entries()]


def entries_of(files: Files) -> list[Entry]:
    return list(recovered(files).entries())


def put(files: FaultyFiles, number: int, offset: int, data: bytes) -> None:
    """Change bytes of a log file behind the log's back, durably."""
    file = files.open(path_of(number))
    file.pwrite(data, offset)
    file.sync()
    file.close()


def image(files: FaultyFiles, number: int) -> bytes:
    return files.read(path_of(number))


def places(data: bytes, count: int) -> list[tuple[int, int]]:
    """Start (padding excluded) and end of the first `count` entries of a file's image."""
    found = []
    end = SECTOR
    for _ in range(count):
        begin = align(end)
        end = begin + FRAME_BYTES + HEADER.unpack_from(data, begin)[2]
        found.append((begin, end))
    return found

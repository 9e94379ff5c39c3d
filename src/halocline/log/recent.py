"""Recent keys: when each key was last written, roughly, in memory that processes share.

    owner  --commit_ts of key-->  | ... epoch since general |  ts  |  ts  |  ts  |  ts  | ... |
    others <--"not since then"----'                           one place for a CRC of table and key

A process that inserts a row asks whether its key is taken. What it has folded it can look up; of
what was committed since, it need only know that nobody has written this key. Keys share places, so
a place can be newer than its key; it is never older. `general` is the newest commit that is not
that of one row: that may have written any key.

There is one file for each owner, made of zeros, not of a hole, when the first other process
connects: a full disk must not strike when memory is written to. Integers are those of this machine.

Invariants
- A commit is noted before it is in the log, and so before it is published.
- A place changes from one number to the next in one step (an item of a memoryview; `pack_into`
  writes zeros first, which others have seen).
- Nobody but its owner writes to a file, not even one that has lost its lock without knowing it.
"""

from __future__ import annotations

from contextlib import suppress
from struct import Struct
from typing import Any, Final
from zlib import crc32

from halocline.errors import CorruptionError
from halocline.schema.codec import encode
from halocline.store import Files

DIRECTORY: Final = "recent"
MAGIC: Final = b"HALO-KEY"
VERSION: Final = 1
PLACES: Final = 1 << 16
GENERAL: Final = -1
_NAME: Final = Struct("8sQ16s")
_EPOCH, _SINCE, _GENERAL, _FIRST = 4, 5, 6, 8
"""Positions in units of 8 bytes."""
SIZE: Final = (_FIRST + PLACES) * 8
_RETRY: Final = 256
_PLAIN: Final = frozenset((int, str, bytes))


def path_of_epoch(epoch: int) -> str:
    return f"{DIRECTORY}/{epoch}.keys"


class RecentKeys:
    """The owner's side."""

    def __init__(self, files: Files, uuid: bytes, epoch: int) -> None:
        """Make the file of this epoch, and remove those of others. OSError: there is no room."""
        files.makedirs(DIRECTORY)
        path = path_of_epoch(epoch)
        page = files.map(path, SIZE, writable=True)
        _NAME.pack_into(page, 0, MAGIC, VERSION, uuid)
        self._epoch = epoch
        self._numbers = memoryview(page).cast("Q")
        for name in files.list(DIRECTORY):
            if f"{DIRECTORY}/{name}" != path:
                files.remove(f"{DIRECTORY}/{name}")

    def begin(self, ts: int) -> None:
        """Every commit after `ts` will be noted. Under the commit lock, as `put`."""
        numbers = self._numbers
        numbers[_SINCE] = numbers[_GENERAL] = ts
        numbers[_EPOCH] = self._epoch  # last: until it is there, nobody believes the rest

    def put(self, commit_ts: int, place: int) -> None:
        """0.1 us."""
        self._numbers[_GENERAL if place < 0 else _FIRST + place] = commit_ts


class RecentPage:
    """What others see of it. In any thread."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._numbers: memoryview | None = None
        self._epoch = self._missed = 0

    def may_be_newer(self, uuid: bytes, epoch: int, ts: int, place: int) -> bool:
        """Can something have been written there after `ts`, up to a position of that epoch which
        was read before? False only if that is known. 0.3 us."""
        numbers = self._numbers if epoch == self._epoch else None
        if numbers is None:
            numbers = self._find(uuid, epoch)
        if numbers is None or place < 0 or numbers[_EPOCH] != epoch:
            return True
        return numbers[_SINCE] > ts or numbers[_GENERAL] > ts or numbers[_FIRST + place] > ts

    def _find(self, uuid: bytes, epoch: int) -> memoryview | None:
        """The file of another owner; now and then that of one who has not made it yet."""
        if epoch == self._epoch:
            self._missed += 1
            if self._missed % _RETRY:
                return None
        numbers = None
        with suppress(OSError, CorruptionError):
            page = self._files.map(path_of_epoch(epoch), SIZE, writable=False)
            if _NAME.unpack_from(page) == (MAGIC, VERSION, uuid):
                numbers = memoryview(page).cast("Q")
        self._numbers, self._epoch = numbers, epoch
        return numbers


def place_of(table_id: int, key: Any) -> int:
    """Equal keys have equal places. GENERAL for what is not plainly an integer, text or bytes."""
    cells = key if type(key) is tuple else (key,)
    if not _PLAIN.issuperset(map(type, cells)):
        return GENERAL
    return crc32(encode(cells), table_id & 0xFFFFFFFF) % PLACES

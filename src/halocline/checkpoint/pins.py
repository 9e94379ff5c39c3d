"""Pins of other processes: how a read-only opener tells the owner which snapshots it still reads.

    reader   pins/<random>.pin  locked for as long as the reader lives
             | seq | pid | oldest open snapshot | crc | seq |   a small page that both map
                |                                        |
    owner    read_pins: locked -> its snapshot holds GC back; not locked -> its process is gone

The protocol has two halves. A reader writes its pin, then folds what the owner has published
meanwhile and looks at the floor again; the owner publishes the floor, then reads the pins. So
either the reader learns that its snapshot has expired, or the owner sees the pin.

The lock is the operating system's: it goes when the process does, however that ends. The page is
copied in one piece with a sequence number at both ends and a CRC, like the published position. A
page that cannot be read although its lock is held belongs to a live process whose snapshots are
unknown: it counts as a pin of everything, and so does the page of a reader that is just opening.

A reader that may not write into the directory has no pin. It reads all the same; when a file it
needs has been collected, it gets SnapshotExpiredError (see `node/replica.py`).

Invariants
- The page never says more than the truth: it is lowered before a snapshot is used and raised after.
- A pin that is not locked is removed only under its lock, so a reader that is about to
  take the lock never loses its file: it finds out and begins again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from threading import RLock
from typing import Any, Final
from zlib import crc32

from halocline.clock import Clock
from halocline.errors import CorruptionError
from halocline.ids import NEVER
from halocline.store import Files, Lock, LockedError
from halocline.store.files import SharedPage

PINS_DIRECTORY: Final = "pins"
EVERYTHING: Final = 0
"""The snapshot of a pin that nothing may pass."""
_BODY: Final = Struct("<QQQ")
_PAGE: Final = Struct("<QQQIQ")
_TRIES: Final = 100


@dataclass(frozen=True, slots=True)
class ProcessPin:
    """The oldest snapshot that a process reads; NEVER when it reads none."""

    pid: int
    ts: int


class PinFile:
    """A reader's side: the file, its lock and its page."""

    def __init__(self, files: Files, clock: Clock, pid: int) -> None:
        """OSError when the directory may not be written to."""
        self._files = files
        self._pid = pid
        self._sequence = 0
        files.makedirs(PINS_DIRECTORY)
        while True:
            self._path = f"{PINS_DIRECTORY}/{clock.random_bytes(8).hex()}.pin"
            try:
                self._lock: Lock = files.lock(self._path, self._encode(EVERYTHING))
                break
            except LockedError:  # an owner has just taken our empty file for a dead one
                continue
        try:
            self._page: SharedPage = files.page(self._path, _PAGE.size, writable=True)
        except BaseException:
            self._lock.release()
            raise

    def write(self, ts: int) -> None:
        """Pin that snapshot and all newer ones; NEVER: none. 1 us."""
        self._page[0 : _PAGE.size] = self._encode(ts)

    def close(self) -> None:
        """Unpin. The name goes first: an unlocked file that is left would only wait for GC."""
        with contextlib.suppress(OSError):
            self._files.remove(self._path)
        self._lock.release()
        self._page.close()

    def abandon(self) -> None:
        """In a forked child: the pin stays the parent's."""
        self._lock.abandon()
        self._page.close()

    def _encode(self, ts: int) -> bytes:
        self._sequence = sequence = self._sequence + 1
        crc = crc32(_BODY.pack(sequence, self._pid, ts))
        return _PAGE.pack(sequence, self._pid, ts, crc, sequence)


class Pins(dict[int, int]):
    """Snapshots of a reader's open transactions; other processes see the oldest of them.

    A dict like the owner's own, so that a transaction need not know where it runs.
    """

    def __init__(self, file: PinFile | None) -> None:
        """Without a file, other processes do not learn of these pins."""
        super().__init__()
        self._file = file
        # Not a plain Lock: a transaction that the collector finds gives up its pin in the middle
        # of anything, our own publishing included.
        self._turn = RLock()
        self._opening = 0
        self._said = -1
        """What the page says; below zero when that is not known."""

    def __setitem__(self, holder: int, ts: int) -> None:
        with self._turn:
            before = self.get(holder)
            dict.__setitem__(self, holder, ts)
            if ts < self._said or self._said < 0 or before == self._said:
                self._publish()  # otherwise an older one covers it

    def __delitem__(self, holder: int) -> None:
        with self._turn:
            super().__delitem__(holder)
            self._publish()

    def pop(self, holder: int, *default: Any) -> Any:
        """Forget a pin, as `dict.pop` does."""
        with self._turn:
            found = dict.pop(self, holder, *default)
            # The page says nothing of others; of one whose end Ctrl-C broke off, until all have
            # ended.
            idle = not self and self._said != NEVER
            if idle or self._said < 0 or (found is not None and found <= self._said):
                self._publish()
            return found

    @contextlib.contextmanager
    def everything(self) -> Iterator[None]:
        """While a reader loads a state of unknown age, nothing at all may go."""
        with self._turn:
            self._opening += 1
            self._publish()
        try:
            yield
        finally:
            with self._turn:
                self._opening -= 1
                self._publish()

    def close(self) -> None:
        with self._turn:
            file, self._file = self._file, None
        if file is not None:
            file.close()

    def abandon(self) -> None:
        """In a forked child, where another thread may have held the lock for ever."""
        file, self._file = self._file, None
        self._turn = RLock()
        if file is not None:
            file.abandon()

    def _publish(self) -> None:
        # Again until it holds: a transaction that the collector finds may end between two lines.
        while self._file is not None:
            pinned = list(self.values())
            oldest = EVERYTHING if self._opening else min(pinned) if pinned else NEVER
            if self._said != oldest:
                self._said = -1
                self._file.write(oldest)
                self._said = oldest
            if len(self) == len(pinned):
                return


def read_pins(files: Files) -> list[ProcessPin]:
    """The pins of all live processes; those of dead ones are removed."""
    try:
        names = files.list(PINS_DIRECTORY)
    except OSError:
        return [ProcessPin(0, EVERYTHING)]
    found = []
    for name in names:
        if name.endswith(".pin"):
            try:
                found.append(_look(files, f"{PINS_DIRECTORY}/{name}"))
            except FileNotFoundError:
                continue  # closed meanwhile
            except (OSError, CorruptionError):
                found.append(ProcessPin(0, EVERYTHING))
    return found


def _look(files: Files, path: str) -> ProcessPin:
    """The pin of a live process; FileNotFoundError when it is, or was, that of a dead one."""
    if not files.is_locked(path):
        # Whoever removes it holds its lock: a reader may be taking it at this moment.
        with contextlib.suppress(LockedError):
            lock = files.lock(path, b"")
            try:
                files.remove(path)
            finally:
                lock.release()
            raise FileNotFoundError(path)
    page = files.page(path, _PAGE.size, writable=False)
    try:
        for _ in range(_TRIES):
            pin = _decode(bytes(page[0 : _PAGE.size]))
            if pin is not None:
                return pin
        return ProcessPin(0, EVERYTHING)
    finally:
        page.close()


def _decode(data: bytes) -> ProcessPin | None:
    first, pid, ts, crc, last = _PAGE.unpack(data)
    if first != last or not first or crc != crc32(data[: _BODY.size]):
        return None
    return ProcessPin(pid, ts)

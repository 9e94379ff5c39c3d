"""Space for the log: files full of zeros, made before they are needed.

    active file  1 MiB   ->  2 MiB  ->  4 MiB  ->  ...  ->  64 MiB  ->  64 MiB
                              ^ spare: made when the active file is half full, outside the commit
                                lock, so that a commit seldom waits for a file to be written

Every epoch starts small again, so that opening a database stays cheap. An entry that does not fit
into the spare gets a file of its own size behind it; the spare is then passed over with nothing
but a header in it.

A full disk is met here and nowhere else. Making the spare may fail in silence: nothing is lost
until it is needed, and then `next_files` tries again and says so. Entries go into zeros that are
on the disk already, so writing them needs no new space.

Invariants
- Numbers follow from the active file's, which the caller names each time: whatever was interrupted
  here, no number is ever skipped.
- Files behind the active one hold no bytes, so they may be removed at any time, highest first.
- A sealed file gives its unused end back only after its successor's header is durable: until then
  its size proves that nothing of the last file was cut off.
"""

from __future__ import annotations

from _thread import RLock
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from halocline.log.format import SECTOR
from halocline.log.names import log_numbers, path_of
from halocline.options import Options
from halocline.store import File, Files

TRIM_BYTES_MIN: Final = 64 * 1024


class Fresh(NamedTuple):
    """An allocated file that nothing has been written to."""

    number: int
    file: File
    size: int
    check: Callable[[], None]
    """MovedError when its name does not lead to it any more."""


class Allocator:
    """Makes log files, one ahead."""

    def __init__(self, files: Files, options: Options) -> None:
        self._files = files
        self._bytes_next = options.log_file_bytes_first
        self._bytes_max = options.log_file_bytes
        self.mutex = RLock()
        self._ready: list[Fresh] = []
        self._sealed: list[tuple[File, int]] = []

    def first_file(self, number: int) -> Fresh:
        """The file of a new epoch. FileExistsError if somebody has begun one meanwhile."""
        return self._create(number, 0)

    def next_files(self, active: int, need: int) -> list[Fresh]:
        """Files to go on with after the active one; the last has room for `need` bytes. OSError.

        They stay in store until a call names a later active file, so an interrupt loses nothing.
        """
        with self.mutex:
            self._forget(active)
            while not self._ready or self._ready[-1].size < SECTOR + need:
                number = active + len(self._ready) + 1
                self._ready.append(self._create_anew(number, need))
            return list(self._ready)

    def make_spare(self, active: int) -> None:
        """Have one file in store. A full disk is no error yet."""
        with self.mutex:
            self._forget(active)
            if self._ready:
                return
            try:
                self._ready.append(self._create_anew(active + 1, 0))
            except OSError:
                pass

    def retire(self, file: File, end: int) -> None:
        """This file was sealed; nobody writes to it any more."""
        self._sealed.append((file, end))

    def trim_sealed(self) -> None:
        """Shorten and close the sealed files. The active file's header is durable."""
        with self.mutex:
            while self._sealed:
                file, end = self._sealed.pop()
                trim(file, end)
                file.close()

    def close(self, active: int) -> None:
        """Give back what was allocated and never used. What fails here is left to recovery."""
        try:
            self.trim_sealed()
            self._forget(active)
            while self._ready:
                fresh = self._ready.pop()
                fresh.file.close()
                self._files.remove(path_of(fresh.number))
        except OSError:
            pass

    def let_go(self) -> None:
        """Close every file and leave it as it is: the log has failed, recovery looks at them."""
        files = [fresh.file for fresh in self._ready] + [file for file, _ in self._sealed]
        self._ready, self._sealed = [], []
        for file in files:
            with suppress(OSError):
                file.close()

    def remove_before(self, keep: int) -> None:
        """Delete files, oldest first, so that what is left never has a hole."""
        for number in log_numbers(self._files):
            if number < keep:
                self._files.remove(path_of(number))

    def trim_file(self, number: int, end: int) -> None:
        """Trim a file of an earlier epoch."""
        file = self._files.open(path_of(number))
        trim(file, end)
        file.close()

    def _forget(self, active: int) -> None:
        self._ready = [fresh for fresh in self._ready if fresh.number > active]

    def _create_anew(self, number: int, need: int) -> Fresh:
        try:
            return self._create(number, need)
        except FileExistsError:
            # An interrupt came between making the file and noting it. It holds nothing.
            self._files.remove(path_of(number))
            return self._create(number, need)

    def _create(self, number: int, need: int) -> Fresh:
        wanted = -(-(SECTOR + need) // SECTOR) * SECTOR
        size = max(self._bytes_next, wanted)
        file = self._files.create(path_of(number), size)
        self._bytes_next = min(self._bytes_next * 2, self._bytes_max)
        return Fresh(number, file, size, self._files.watch(path_of(number), file))


def trim(file: File, end: int) -> None:
    """Give back the unused end of a file that will never be written again."""
    end = -(-end // SECTOR) * SECTOR
    if file.size() - end >= TRIM_BYTES_MIN:
        file.truncate(end)

"""Durable operations from elementary steps, written once for the real disk and for the tests.

                    create   mkdir   rename   remove   sync_dir   File.pwrite   File.sync
    create             1                                   4          2 (zeros)     3
    write (replace)    1               4                   5          2             3
    write_new          1               4                   5          2             3
    rename                             1                   2
    remove                                      1          2
    makedirs                   1                           2   (per missing directory, top down)

A crash may fall between any two steps, so their order is the promise: content is synced before a
name points to it, and the directory is synced before the call returns. Without the last step most
power losses lose the file itself.

Invariants
- A call that fails with OSError leaves no file of its own behind and the old file untouched, and
  so does Ctrl-C; only a crash can leave a temporary file, which the next write of it replaces.
- Of the directories on the way to an existing one, only the last can be undurable (a process was
  killed between its mkdir and the sync). So `makedirs` syncs that one again even if it exists.
- Zeros are written, not reserved: a later write inside them changes no metadata, which makes its
  sync cheaper by 80-110 us, and it cannot run out of space.

Not here: what a step does (local.py; for tests, a disk in memory).
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from threading import Lock as Mutex
from typing import Final, Protocol

from halocline.errors import CorruptionError
from halocline.store import files

_ZEROS: Final = bytes(1 << 20)


class Disk(Protocol):
    """The elementary steps. Nothing is durable until the file or the directory is synced."""

    def make_root(self) -> None:
        """Make the root directory and its ancestors, durably."""
        ...

    def create(self, path: str) -> files.File:
        """Make a new, empty file, mode 0600. FileExistsError."""
        ...

    def open(self, path: str, *, writable: bool) -> files.File: ...

    def mkdir(self, path: str) -> None:
        """Make a new directory, mode 0700. FileExistsError."""
        ...

    def rename(self, old: str, new: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def sync_dir(self, path: str) -> None:
        """Make the names in one directory durable."""
        ...

    def exists(self, path: str) -> bool: ...

    def list(self, path: str) -> files.PathList: ...

    def lock(self, path: str, holder: bytes) -> files.Lock: ...

    def is_locked(self, path: str) -> bool: ...

    def page(self, path: str, *, writable: bool) -> files.SharedPage:
        """Share the bytes of an existing file."""
        ...

    def check_root(self) -> None: ...

    def watch(self, path: str, held: files.File | files.SharedPage) -> Callable[[], None]: ...


class DurableFiles:
    """`Files` on top of a disk."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        # Writers of one path would share its temporary file, so they take turns. Sixteen locks
        # chosen by path let writers of different paths go on side by side.
        self._turns = tuple(Mutex() for _ in range(16))

    def open(self, path: str) -> files.File:
        return self._disk.open(files.check_path(path), writable=True)

    def open_read(self, path: str) -> files.File:
        return self._disk.open(files.check_path(path), writable=False)

    def create(self, path: str, size: int = 0) -> files.File:
        disk = self._disk
        file = disk.create(files.check_path(path))
        with self._leave_nothing(path, file):
            for offset in range(0, size, len(_ZEROS)):
                rest = size - offset
                file.pwrite(_ZEROS if rest >= len(_ZEROS) else _ZEROS[:rest], offset)
            file.sync()
            disk.sync_dir(files.parent(path))
        return file

    def write(self, path: str, data: files.Buffer) -> None:
        disk = self._disk
        temporary = files.check_path(path) + files.TEMPORARY
        with self._turns[hash(path) % len(self._turns)]:
            if disk.exists(temporary):
                disk.remove(temporary)
            self._write(path, data, disk.create(temporary))

    def write_new(self, path: str, data: files.Buffer) -> None:
        """Writes a file whose name must be free; FileExistsError if any process has or takes it.

        The temporary file is the claim: only the process that made it can take the name now, so
        whether the name was taken before is known from then on.
        """
        disk = self._disk
        file = disk.create(files.check_path(path) + files.TEMPORARY)
        self._write(path, data, file, new=True)

    def _write(self, path: str, data: files.Buffer, file: files.File, *, new: bool = False) -> None:
        disk, temporary = self._disk, path + files.TEMPORARY
        with self._leave_nothing(temporary, file):
            if new and disk.exists(path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            file.pwrite(data, 0)
            file.sync()
            file.close()
            disk.rename(temporary, path)
        disk.sync_dir(files.parent(path))

    def read(self, path: str, size_max: int = files.READ_BYTES_MAX) -> bytes:
        file = self._disk.open(files.check_path(path), writable=False)
        try:
            size = file.size()
            if size > size_max:
                raise CorruptionError(path, f"is longer than the {size_max} bytes it may have")
            return file.pread(size, 0)
        finally:
            file.close()

    def exists(self, path: str) -> bool:
        return self._disk.exists(files.check_path(path))

    def list(self, directory: str) -> files.PathList:
        names = self._disk.list(files.check_directory(directory))
        return sorted(name for name in names if not name.endswith(files.TEMPORARY))

    def remove(self, path: str) -> None:
        # What a crash left half-written may be removed too.
        files.check_path(path.removesuffix(files.TEMPORARY))
        self._disk.remove(path)
        self._disk.sync_dir(files.parent(path))

    def rename(self, old: str, new: str) -> None:
        self._disk.rename(files.check_path(old), files.check_path(new))
        # The new name first: between the two syncs the file may have two names, never none.
        self._disk.sync_dir(files.parent(new))
        if files.parent(old) != files.parent(new):
            self._disk.sync_dir(files.parent(old))

    def makedirs(self, path: str) -> None:
        disk = self._disk
        wanted = [files.check_directory(path)]
        while wanted[-1] and not disk.exists(wanted[-1]):
            wanted.append(files.parent(wanted[-1]))
        for directory in reversed(wanted):
            if not directory:
                disk.make_root()
                continue
            # Another process may make it at the same moment; that is as good.
            if not disk.exists(directory):
                with contextlib.suppress(FileExistsError):
                    disk.mkdir(directory)
            disk.sync_dir(files.parent(directory))

    def sync_dir(self, directory: str) -> None:
        self._disk.sync_dir(files.check_directory(directory))

    def lock(self, path: str, holder: bytes) -> files.Lock:
        return self._disk.lock(files.check_path(path), holder)

    def is_locked(self, path: str) -> bool:
        return self._disk.is_locked(files.check_path(path))

    def page(self, path: str, size: int, *, writable: bool) -> files.SharedPage:
        """Shares a file, made through `write` so that it never is too short."""
        files.check_path(path)
        if writable and not self._disk.exists(path):
            self.write(path, bytes(size))
        file = self._disk.open(path, writable=writable)
        try:
            if file.size() < size:
                if not writable:
                    raise CorruptionError(path, f"is shorter than the {size} bytes to be read")
                file.truncate(size)
        finally:
            file.close()
        return self._disk.page(path, writable=writable)

    def check_root(self) -> None:
        self._disk.check_root()

    def watch(self, path: str, held: files.File | files.SharedPage) -> Callable[[], None]:
        return self._disk.watch(files.check_path(path), held)

    @contextlib.contextmanager
    def _leave_nothing(self, path: str, file: files.File) -> Iterator[None]:
        """Closes and removes the file on any error, then raises that error."""
        try:
            yield
        except BaseException:
            file.close()
            # On a sick disk the removal may fail too; the first error is the one to tell.
            with contextlib.suppress(OSError):
                self._disk.remove(path)
                self._disk.sync_dir(files.parent(path))
            raise

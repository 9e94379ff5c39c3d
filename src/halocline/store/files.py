"""Files as the engine sees them: explicit offsets, explicit syncs, names inside one root.

    log/, txn/, node/ ---> Files ---> File
                             |          pread, pwrite, sync
                             '--> Lock  one process at a time

Whatever changes a name (create, write, remove, rename, makedirs) is durable when it returns: the
file is synced first, then the directory that names it. Writes to an open file are durable after
`sync`, not before.

Paths are relative to the database root, "/" between components. Names are made by the engine from
its own ids; `check_path` is the last fence: nothing absolute, no "..", nothing outside the root.

Not here: the steps behind each promise (durable.py), the real disk (local.py).
"""

from __future__ import annotations

import errno
import mmap
from typing import Final, Protocol, TypeAlias

from halocline.errors import UnavailableError, UsageError

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes to write. A memoryview must be contiguous and count single bytes."""

Mapped: TypeAlias = mmap.mmap | bytearray
"""Memory shared by all who map one file; use it through `struct.pack_into` and `unpack_from`."""

PathList: TypeAlias = list[str]

TEMPORARY: Final = ".tmp"
"""Ending of a file that is being written; a crash may leave one behind. Never listed."""

HOLDER_BYTES_MAX: Final = 4096
READ_BYTES_MAX: Final = 1 << 20
"""No file that is read whole is longer, unless its reader says so: a sparse one may claim to be."""

Identity: TypeAlias = tuple[int, int]
"""Device and inode: two names that have the same one lead to the same file or folder."""


class LockedError(UnavailableError):
    """Another process has the lock; `holder` is what it wrote there (empty: not yet known)."""

    def __init__(self, holder: bytes) -> None:
        self.holder = holder
        text = holder.decode("utf-8", "replace").strip() or "another process"
        super().__init__(f"locked by {text}")


class MovedError(UnavailableError, OSError):
    """A path leads elsewhere now: the folder was moved or deleted, or a file was taken away."""


class NotAFileError(OSError):
    """A link, a pipe or a socket stands where a regular file should: it is not opened."""

    def __init__(self, path: str) -> None:
        reason = "is no regular file; symbolic links are not followed, and nothing else is opened"
        super().__init__(errno.ELOOP, reason, path)


class File(Protocol):
    """One open file. It has no position: every read and write names its offset."""

    def pread(self, size: int, offset: int) -> bytes:
        """Bytes at the offset; fewer than `size` only at the end of the file."""
        ...

    def pwrite(self, data: Buffer, offset: int) -> None:
        """Write all of it, or raise OSError (then some of it may be written)."""
        ...

    def mapped(self, size: int) -> File:
        """This file, written through memory: no system call for a pwrite below `size`.

        This handle must not be used any more. For writers that sync now and then, not after every
        write (see docs/decisions/0002-async-log-through-memory.md).
        """
        ...

    def sync(self) -> None:
        """Make content and size durable. After an error, what was unsynced is lost for good."""
        ...

    def size(self) -> int: ...

    def truncate(self, size: int) -> None:
        """Cut, or extend with zeros. Durable after `sync`."""
        ...

    def close(self) -> None:
        """Close the file without a sync. Closing twice is harmless."""
        ...


class Lock(Protocol):
    """A lock that the operating system drops when its process dies."""

    def release(self) -> None:
        """Unlock. In a forked child this only abandons."""
        ...

    def abandon(self) -> None:
        """In a forked child: close the descriptor; the parent keeps the lock."""
        ...


class Files(Protocol):
    """A tree of files below one root."""

    def open(self, path: str) -> File:
        """An existing file, to read and write. FileNotFoundError."""
        ...

    def open_read(self, path: str) -> File:
        """An existing file, to read. FileNotFoundError."""
        ...

    def create(self, path: str, size: int = 0) -> File:
        """A new file of zeros that are really on the disk, durable. FileExistsError."""
        ...

    def write(self, path: str, data: Buffer) -> None:
        """Replace the whole file: readers, and a crash, see the old content or the new."""
        ...

    def read(self, path: str, size_max: int = READ_BYTES_MAX) -> bytes:
        """The whole file; CorruptionError when it is longer than it may be."""
        ...

    def exists(self, path: str) -> bool: ...

    def list(self, directory: str) -> PathList:
        """Names in a directory, sorted; none when it is missing."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file, durably. FileNotFoundError."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename a file, replacing `new`, durably."""
        ...

    def makedirs(self, path: str) -> None:
        """Make a directory and its parents ("" is the root), durably. It may exist already."""
        ...

    def sync_dir(self, directory: str) -> None:
        """Make names durable that a killed process may have left unsynced."""
        ...

    def lock(self, path: str, holder: bytes) -> Lock:
        """Take the lock now or raise LockedError. `holder` tells others who has it."""
        ...

    def is_locked(self, path: str) -> bool:
        """Is that lock held right now? Only a hint: it may change at once."""
        ...

    def map(self, path: str, size: int, *, writable: bool) -> Mapped:
        """Share memory through a file. Missing: made of zeros if writable, else an error."""
        ...

    def check_root(self) -> None:
        """MovedError unless the path of the root still leads to the folder that was opened."""
        ...

    def check_identity(self, path: str, identity: Identity) -> None:
        """MovedError unless the path, from the very top, still leads to that file."""
        ...


def check_path(path: str) -> str:
    """The path itself, if it names a file or directory strictly inside the root."""
    parts = path.split("/")
    if "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise UsageError(f"{path!r} is not a path inside the database")
    if path.endswith(TEMPORARY):
        raise UsageError(f"{path!r}: names ending in {TEMPORARY} are reserved")
    return path


def check_directory(path: str) -> str:
    """The path itself, if it names a directory inside the root; "" is the root."""
    return path and check_path(path)


def parent(path: str) -> str:
    """The directory that names the path; "" is the root."""
    return path.rpartition("/")[0]

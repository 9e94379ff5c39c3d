"""A database on another machine, seen through its owner: files, objects and pins by request.

    Reader, Follower --Files--> RemoteFiles --ReadFile, ListLog--> owner's log
    tables, DuckDB --Objects--> RemoteObjects --ReadObject--> a folder of this machine, a copy each
    transactions --Pins--> RemotePin --PinSnapshot--> the owner's pins

So a compute node far away is the same as one nearby: it follows the same bytes with the same code.
Objects never change, so each is fetched once, whole; its digest is compared as that of every file.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable
from threading import Lock as ThreadLock
from threading import RLock
from typing import Any, Final, NamedTuple

from halocline.checkpoint.pins import EVERYTHING
from halocline.errors import UsageError
from halocline.ids import NEVER
from halocline.log.format import SECTOR
from halocline.log.published import decode_page, page_of
from halocline.node import wire
from halocline.store import PyarrowObjects
from halocline.store.files import Buffer, PathList

Ask = Callable[[wire.Request, Any], Any]
PREFIX: Final = "halocline-cache-"


class RemoteFiles:
    """`Files`, for reading only.

    A follower looks once (`look`) and gets the published position together with the bytes of the
    log that are new; what it reads then, up to the next look, costs no request.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._lock = ThreadLock()
        self.looked = NOTHING
        self.place = ("", 0)
        """The log file that was read last, and how far."""

    def look(self) -> None:
        """Ask what is new. 1 request, where page, page again and bytes were 4.

        Threads look at the same time, and their answers overtake each other: a glance never takes
        the place of a newer one, or its thread would begin before what it has been shown.
        """
        path, end = self.place
        offset = end - end % SECTOR  # a follower reads whole sectors
        found: wire.Looked = self._ask(wire.Look(path, offset), wire.Looked)
        glance = Glance(found.page, path, offset, found.data)
        with self._lock:
            if not _is_older(glance.page, self.looked.page):
                self.looked = glance

    def open_read(self, path: str) -> RemoteFile:
        """FileNotFoundError now, not at the first read."""
        if self._ask(wire.ReadFile(path), bytes | None) is None:
            raise _missing(path)
        return RemoteFile(self, self._ask, path)

    def read(self, path: str) -> bytes:
        return self.open_read(path).pread(wire.READ_BYTES_MAX, 0)

    def list(self, directory: str) -> PathList:
        found: list[str] = self._ask(wire.ListLog(), list[str])
        return sorted(found) if directory == "log" else []

    def is_locked(self, path: str) -> bool:
        """There is an owner: it has answered."""
        return True

    def page(self, path: str, size: int, *, writable: bool) -> Any:
        """A page that is read anew at every look."""
        return Watched(self, self.open_read(path), size)

    def watch(self, path: str, held: object) -> Callable[[], None]:
        """Whatever becomes of the file, it is the owner who says what is in it."""
        return lambda: None

    def __getattr__(self, name: str) -> Any:
        raise UsageError(f"{name}: the directory is on another machine")


class RemoteFile:
    """One file of the owner's."""

    def __init__(self, files: RemoteFiles, ask: Ask, path: str) -> None:
        self._files = files
        self._ask = ask
        self._path = path

    def pread(self, size: int, offset: int) -> bytes:
        """Bytes at the offset; fewer than `size` only at the end of the file."""
        if self._path.endswith(".log"):
            glance = self._files.looked
            self._files.place = (self._path, offset + size)
            begin = offset - glance.offset
            if glance.path == self._path and begin >= 0 and begin + size <= len(glance.data):
                return glance.data[begin : begin + size]
        pieces = []
        while size > 0:
            wanted = min(size, wire.READ_BYTES_MAX)
            piece = self._ask(wire.ReadFile(self._path, offset, wanted), bytes | None)
            if piece is None:
                raise _missing(self._path)
            pieces.append(piece)
            if len(piece) < wanted:
                break
            size -= wanted
            offset += wanted
        return b"".join(pieces)

    def size(self) -> int:
        """Found out by reading it: only `check` asks."""
        return len(self.pread(1 << 40, 0))

    def close(self) -> None:
        """Nothing is held."""


class Watched:
    """A shared page, as it was at the last look; before the first one it is asked for."""

    inode = 0

    def __init__(self, files: RemoteFiles, file: RemoteFile, size: int) -> None:
        self._files = files
        self._file = file
        self._size = size

    def __getitem__(self, part: slice) -> bytes:
        copy = self._files.looked.page
        return (page_of(copy) if copy else self._file.pread(self._size, 0))[part]

    def close(self) -> None:
        """Nothing is held."""


class RemoteObjects:
    """`Objects` of the owner, kept in a folder of this machine while the database is open."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self.folder = tempfile.mkdtemp(prefix=PREFIX)
        # Also for a program that forgets to close.
        self._remove = weakref.finalize(self, _remove, self.folder, os.getpid())
        self._near = PyarrowObjects.open(self.folder)
        self._turn = ThreadLock()

    def read(self, key: str, offset: int = 0, size: int | None = None) -> bytes:
        self._fetch(key)
        return self._near.read(key, offset, size)

    def size(self, key: str) -> int:
        self._fetch(key)
        return self._near.size(key)

    def put(self, key: str, data: Buffer) -> None:
        self._ask(wire.PutObject(key, bytes(data)), None)
        self._near.put(key, data)

    def put_new(self, key: str, data: Buffer) -> None:
        """Names are given out by jobs, and nobody else has those of ours."""
        self.put(key, data)

    def list(self, folder: str = "", *, temporary: bool = False) -> PathList:
        """Only the owner knows."""
        return []

    def delete(self, key: str) -> None:
        """Only the owner does."""

    def close(self) -> None:
        self._remove()

    def _fetch(self, key: str) -> None:
        with self._turn:
            try:
                self._near.size(key)
                return
            except FileNotFoundError:
                pass
            pieces: list[bytes] = []
            while not pieces or len(pieces[-1]) == wire.READ_BYTES_MAX:
                offset = len(pieces) * wire.READ_BYTES_MAX
                piece = self._ask(wire.ReadObject(key, offset, wire.READ_BYTES_MAX), bytes | None)
                if piece is None:
                    raise _missing(key)
                pieces.append(piece)
            self._near.put(key, b"".join(pieces))


class Glance(NamedTuple):
    """What a look has brought: the page, and bytes of a log file from an offset on."""

    page: bytes
    path: str
    offset: int
    data: bytes


NOTHING: Final = Glance(b"", "", 0, b"")


def _is_older(page: bytes, than: bytes) -> bool:
    """Is the position from before the other one, of the same database? 2 us."""
    one, other = decode_page(page), decode_page(than)
    if one is None or other is None or one.uuid != other.uuid:
        return False
    return one.sequence < other.sequence


class RemotePin:
    """The oldest snapshot of this process, told to the owner; what `PinFile` is on one machine.

    A pin is lowered at once and raised with the next beat: one that is too low holds GC back a
    little longer, and nearly every transaction begins above it, without a request.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._turn = RLock()
        self._ts: int = NEVER
        self._told: int = NEVER
        self.times = 0
        """How often it was told: a pin that was not told again is older than any look since."""

    def write(self, ts: int) -> None:
        """Pin that snapshot and all newer ones."""
        with self._turn:
            self._ts = ts
            if ts < self._told or self._told == EVERYTHING:
                self.tell()

    def tell(self) -> None:
        """Say how it is: now and then, and to an owner that has forgotten us."""
        with self._turn:
            told, self._told = self._ts, NEVER  # unless it gets there
            self.times += 1
            self._ask(wire.PinSnapshot(told), None)
            self._told = told

    def renew(self) -> int:
        """What an owner that has forgotten us is to be told, by whoever has noticed."""
        with self._turn:
            self.times += 1
            self._told = self._ts
            return self._ts

    def close(self) -> None:
        """The session ends with the link."""

    def abandon(self) -> None:
        """In a forked child: the pin stays the parent's."""


def _remove(folder: str, pid: int) -> None:
    if os.getpid() == pid:  # a forked child leaves it to its parent
        shutil.rmtree(folder, ignore_errors=True)


def _missing(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

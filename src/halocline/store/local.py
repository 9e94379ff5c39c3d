"""The real disk: files of the operating system below one directory.

    LocalFiles(root) = DurableFiles (order of steps) on LocalDisk (the steps) -> LocalFile

The root is held by a descriptor from the first use on, and every path is walked from there, folder
by folder. So what is written always goes into the folder that was opened, wherever it has been
moved meanwhile, and never into another that has taken its name. DuckDB and Spark open files by
their path; before they are given one, and wherever a name is made or listed, `check_root` compares
device and inode of the path with the folder that is held.

Linux and macOS. A sync on Linux is fdatasync; macOS has none, and its fsync stops at the drive's
cache, so there it is F_FULLFSYNC. Windows has neither flock nor a way to sync a directory and is
refused.

Invariants
- The root and every directory made here have mode 0700, every file 0600; in a database that is
  shared with a group, 2770 and 0660 (sharing.py). A root that somebody else made keeps the mode
  they gave it.
- Descriptors are not inherited by programs that we start, and no component of a path below the
  root is followed if it is a symbolic link.
- Nothing but a regular file is ever read, written or locked, and opening one never waits: a pipe
  that somebody has put in its place is refused.
- A lock belongs to the open descriptor, so it dies with the process, however that dies. A forked
  child shares the descriptor: it may close it, and must never unlock it.

Not here: which steps make an operation durable (durable.py).
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock as Mutex
from typing import Final, cast

from halocline.errors import UsageError
from halocline.store.durable import DurableFiles
from halocline.store.files import (
    HOLDER_BYTES_MAX,
    Buffer,
    File,
    Identity,
    Lock,
    LockedError,
    MovedError,
    NotAFileError,
    PathList,
    SharedPage,
    parent,
)
from halocline.store.sharing import FOLDER_MODE, give_to_group, is_shared

if sys.platform != "win32":
    import fcntl

_FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK if sys.platform != "win32" else 0
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW if sys.platform != "win32" else 0
_F_FULLFSYNC: Final = 51
_F_GETPATH: Final = 50
_LOCK_TRIES: Final = 200
_READ_BYTES_TRUSTED: Final = 1 << 20


class LocalFiles(DurableFiles):
    """`Files` in a directory of this machine. Nothing is touched until the first call."""

    def __init__(self, root: str | os.PathLike[str], *, shared: bool | None = None) -> None:
        """`shared`: with a group of users; None: as the folder says."""
        if sys.platform == "win32":
            raise UsageError("Halocline runs on Linux and macOS; on Windows, run it inside WSL")
        self.root = str(Path(root).resolve())
        self._local = LocalDisk(self.root, shared)
        super().__init__(self._local)
        # Before every scan: no detour.
        self.check_root = self._local.check_root  # type: ignore[method-assign]

    def identity(self) -> Identity:
        """Device and inode of the folder that is held."""
        return self._local.hold()[1]

    def walk(self, folder: str) -> Iterator[str]:
        """Regular files below a folder, at any depth, half-written ones too; none if missing."""
        return self._local.walk(folder)

    def remove_tree(self, folder: str, name: str) -> None:
        """Remove a folder with all that is in it. What cannot be removed stays."""
        self._local.remove_tree(folder, name)

    def remove_empty(self, folder: str) -> None:
        """Remove a folder if nothing is in it."""
        self._local.remove_empty(folder)

    def close(self) -> None:
        """Let go of the root; the next call looks for it by its path, and takes no other."""
        self._local.close()


class LocalFile:
    """One descriptor."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def pread(self, size: int, offset: int) -> bytes:
        if size > _READ_BYTES_TRUSTED:
            # The size may come from a damaged file: never allocate more than the file can fill.
            size = max(0, min(size, self.size() - offset))
        data = os.pread(self._fd, size, offset)
        if len(data) == size:
            return data
        return self._pread_rest(data, size, offset)

    def pwrite(self, data: Buffer, offset: int) -> None:
        # On the path of every durable commit: one comparison on top of os.pwrite, measured at
        # 0.06 us, where the call itself takes 1.3 us and the sync after it 110 us.
        written = os.pwrite(self._fd, data, offset)
        if written != len(data):
            self._pwrite_rest(memoryview(data).cast("B"), offset, written)

    def sync(self) -> None:
        _sync(self._fd)

    def mapped(self, size: int) -> LocalFile:
        fd, self._fd = self._fd, -1
        return MappedFile(fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def fileno(self) -> int:
        return self._fd

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def close(self) -> None:
        # A closed file must fail with EBADF, not write into whoever got the same number next.
        # An interrupt may have struck before there was a descriptor.
        fd, self._fd = getattr(self, "_fd", -1), -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()

    def _pread_rest(self, data: bytes, size: int, offset: int) -> bytes:
        pieces = [data]
        have = len(data)
        while have < size and pieces[-1]:
            pieces.append(os.pread(self._fd, size - have, offset + have))
            have += len(pieces[-1])
        return b"".join(pieces)

    def _pwrite_rest(self, data: memoryview, offset: int, written: int) -> None:
        while written < data.nbytes:
            count = os.pwrite(self._fd, data[written:], offset + written)
            if count == 0:
                raise OSError(errno.EIO, "the disk accepts no more bytes")
            written += count


class MappedFile(LocalFile):
    """A file whose pwrites go into mapped memory: 0.15 us, where the call took 7 us after a sync.

    What is in the mapping belongs to the operating system as surely as what was given to pwrite: a
    killed process loses nothing. A sync covers it too, at a higher price (500 us against 130), so
    this is for async mode only.
    """

    __slots__ = ("_map",)

    def __init__(self, fd: int, size: int) -> None:
        super().__init__(fd)
        self._map = mmap.mmap(fd, size)

    def pwrite(self, data: Buffer, offset: int) -> None:
        self._map[offset : offset + len(data)] = data

    def truncate(self, size: int) -> None:
        # Memory behind the new end would be a trap: no write through it may follow.
        self._map.close()
        super().truncate(size)

    def close(self) -> None:
        if hasattr(self, "_map"):
            self._map.close()
        super().close()


class LocalPage:
    """The first bytes of a file. A look is a pread: 0.5 to 1 us, where mapped memory took 0.2."""

    __slots__ = ("_file", "inode")

    def __init__(self, fd: int) -> None:
        self._file = LocalFile(fd)
        self.inode = os.fstat(fd).st_ino

    def __getitem__(self, part: slice) -> bytes:
        size = part.stop - part.start
        return os.pread(self._file.fileno(), size, part.start).ljust(size, b"\0")

    def __setitem__(self, part: slice, data: bytes) -> None:
        self._file.pwrite(data, part.start)

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()


class LocalLock:
    """A held flock."""

    __slots__ = ("_fd", "_pid")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._pid = os.getpid()

    def release(self) -> None:
        # Closing would not unlock while a forked child has the descriptor, so unlock first. In
        # that child, unlocking would take the lock away from the parent.
        if self._fd >= 0 and os.getpid() == self._pid:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        self.abandon()

    def abandon(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class LocalDisk:
    """The steps, each a few system calls below the descriptor of the root."""

    def __init__(self, root: str, shared: bool | None = None) -> None:
        self._root = root
        self._shared = shared
        self._mutex = Mutex()
        self._held: tuple[int, Identity] | None = None
        self._first: Identity | None = None
        """What was held first: nothing else is taken after `close`."""

    def hold(self) -> tuple[int, Identity]:
        """The descriptor of the root, opened by the first who asks, and what it is."""
        held = self._held
        if held is None:
            with self._mutex:
                if self._held is None:
                    fd = os.open(self._root, _FOLDER)
                    identity = _identity(os.fstat(fd))
                    if self._first not in (None, identity):
                        os.close(fd)
                        raise MovedError(f"{self._root} leads to another folder now")
                    self._first = identity
                    if self._shared is None:
                        self._shared = is_shared(fd)
                    self._held = (fd, identity)
                held = self._held
        return held

    def close(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            os.close(held[0])

    def __del__(self) -> None:
        if getattr(self, "_held", None) is not None:
            self.close()

    def check_root(self) -> None:
        # A root that nobody has opened yet cannot have moved.
        if self._first is not None:
            self._check("", self._first)

    def watch(self, path: str, held: File | SharedPage) -> Callable[[], None]:
        """Asks the system which name a descriptor has now, and only if it is another, by stat.

        A stat of a file that is being written and synced costs far more than itself: on a file
        system with fine-grained times every write after it has to note the time in the journal,
        which made a durable commit slower by a third (docs/decisions/0028-a-folder-that-moves.md).
        """
        fd = cast(LocalFile | LocalPage, held).fileno()
        identity, link = _identity(os.fstat(fd)), f"/proc/self/fd/{fd}"
        known = _link(link)

        def check() -> None:
            nonlocal known
            now = _link(link)
            if now != known or not now:
                self._check(path, identity)
                known = now

        return check

    def _check(self, path: str, identity: Identity) -> None:
        try:
            found = os.stat(f"{self._root}/{path}", follow_symlinks=not path)
            if (found.st_dev, found.st_ino) == identity:
                return
        except OSError:
            pass
        raise self._moved(path)

    def make_root(self) -> None:
        self.check_root()
        missing = [Path(self._root)]
        while not missing[-1].exists():
            missing.append(missing[-1].parent)
        for directory in reversed(missing):
            if not directory.exists():
                with contextlib.suppress(FileExistsError):
                    directory.mkdir(0o700)
            # Somebody else's directory above ours may be closed to readers: it cannot be synced.
            with contextlib.suppress(PermissionError):
                _sync_directory(str(directory.parent))

    def create(self, path: str) -> LocalFile:
        self.check_root()
        return LocalFile(self._open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))

    def open(self, path: str, *, writable: bool) -> LocalFile:
        return LocalFile(self._open(path, os.O_RDWR if writable else os.O_RDONLY))

    def mkdir(self, path: str) -> None:
        self.check_root()
        with self._folder(parent(path)) as fd:
            os.mkdir(_name(path), 0o700, dir_fd=fd)
            if self._shared:
                os.chmod(_name(path), FOLDER_MODE, dir_fd=fd)

    def rename(self, old: str, new: str) -> None:
        with self._folder(parent(old)) as before, self._folder(parent(new)) as after:
            os.replace(_name(old), _name(new), src_dir_fd=before, dst_dir_fd=after)

    def remove(self, path: str) -> None:
        with self._folder(parent(path)) as fd:
            os.unlink(_name(path), dir_fd=fd)

    def sync_dir(self, path: str) -> None:
        with self._folder(path) as fd:
            _sync_folder(fd)

    def exists(self, path: str) -> bool:
        try:
            if not path:
                self.hold()
                return True
            with self._folder(parent(path)) as fd:
                os.stat(_name(path), dir_fd=fd, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def list(self, path: str) -> PathList:
        self.check_root()
        try:
            with self._folder(path) as fd:
                return os.listdir(fd)
        except FileNotFoundError:
            return []

    def walk(self, path: str) -> Iterator[str]:
        """Regular files below a folder; links are neither followed nor named."""
        self.check_root()
        folders = [path]
        while folders:
            folder = folders.pop()
            start = f"{folder}/" if folder else ""
            try:
                # Names, not os.scandir: Ctrl-C would leave its iterator open, and that is told.
                with self._folder(folder) as fd:
                    kinds = {name: _kind_of(name, fd) for name in os.listdir(fd)}
            except FileNotFoundError:
                continue
            for name, kind in kinds.items():
                if stat.S_ISREG(kind):
                    yield start + name
                elif stat.S_ISDIR(kind):
                    folders.append(start + name)

    def remove_tree(self, folder: str, name: str) -> None:
        with contextlib.suppress(OSError), self._folder(folder) as fd:
            shutil.rmtree(name, ignore_errors=True, dir_fd=fd)

    def remove_empty(self, folder: str) -> None:
        with contextlib.suppress(OSError), self._folder(parent(folder)) as fd:
            os.rmdir(_name(folder), dir_fd=fd)

    def lock(self, path: str, holder: bytes) -> Lock:
        assert len(holder) <= HOLDER_BYTES_MAX
        self.check_root()
        while True:
            fd = self._open(path, os.O_RDWR | os.O_CREAT)
            try:
                _take(fd)
                if not self._is_still(fd, path):
                    # Removed between open and flock: this is a lock on nothing. Try again.
                    os.close(fd)
                    continue
                # Cut first: whoever looks meanwhile reads nothing rather than an old holder.
                os.ftruncate(fd, 0)
                os.pwrite(fd, holder, 0)
            except BaseException:
                os.close(fd)
                raise
            return LocalLock(fd)

    def is_locked(self, path: str) -> bool:
        try:
            fd = self._open(path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            # Shared, so that two who ask do not meet; gone again when the descriptor is.
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def page(self, path: str, *, writable: bool) -> LocalPage:
        return LocalPage(self._open(path, os.O_RDWR if writable else os.O_RDONLY))

    def _open(self, path: str, flags: int) -> int:
        """A descriptor of a regular file. Whatever else stands there is refused at once."""
        with self._folder(parent(path)) as folder:
            try:
                fd = os.open(_name(path), flags | _FLAGS, 0o600, dir_fd=folder)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a socket or an empty pipe
                    raise NotAFileError(path) from error
                raise
        kind = os.fstat(fd).st_mode
        if stat.S_ISREG(kind):
            if self._shared and flags & os.O_CREAT:
                give_to_group(fd)
            return fd
        os.close(fd)
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        raise NotAFileError(path)

    @contextlib.contextmanager
    def _folder(self, path: str) -> Iterator[int]:
        """The descriptor of a folder below the root ("" is the root), for a moment."""
        fd = self.hold()[0]
        opened: list[int] = []
        try:
            for name in path.split("/") if path else ():
                try:
                    fd = os.open(name, _FOLDER, dir_fd=fd)
                except OSError as error:
                    error.filename = path
                    raise
                opened.append(fd)
            yield fd
        finally:
            for one in opened:
                os.close(one)

    def _is_still(self, fd: int, path: str) -> bool:
        """Whether the path still names the file of this descriptor."""
        with self._folder(parent(path)) as folder:
            try:
                there = os.stat(_name(path), dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                return False
        return os.path.samestat(os.fstat(fd), there)

    def _moved(self, path: str) -> MovedError:
        """Says what has become of the folder, as far as the system tells."""
        if self._held is None:
            return MovedError(f"the folder {self._root} was moved or deleted")
        fd, identity = self._held
        try:
            found = os.stat(self._root)
            is_root = (found.st_dev, found.st_ino) == identity
        except OSError:
            found, is_root = None, False
        if is_root:
            return MovedError(f"{self._root}/{path} was removed or replaced while it was in use")
        other = " and another stands in its place" if found is not None else ""
        now = _path_of(fd)
        if not os.fstat(fd).st_nlink or now.endswith(" (deleted)"):
            return MovedError(f"the folder {self._root} was deleted{other}")
        where = f" to {now}" if now and now != self._root else ""
        return MovedError(
            f"the folder {self._root} was moved{where}{other}: "
            "what has been committed is in the folder that was moved"
        )


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _identity(facts: os.stat_result) -> Identity:
    return facts.st_dev, facts.st_ino


def _kind_of(name: str, folder: int) -> int:
    """The mode of a file, links not followed; 0 when it has just gone."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return 0


def _link(path: str) -> str:
    """What a link says; empty where there is none (macOS has no /proc)."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _path_of(fd: int) -> str:
    """Where the folder of a descriptor is now; empty when the system does not say."""
    with contextlib.suppress(OSError, UnicodeError):
        if sys.platform == "darwin":
            return fcntl.fcntl(fd, _F_GETPATH, bytes(1024)).partition(b"\0")[0].decode()
        return os.readlink(f"/proc/self/fd/{fd}")
    return ""


def _sync(fd: int) -> None:
    """The content and size of a file are on the disk when this returns."""
    if sys.platform == "darwin":
        _full_sync(fd)
    else:
        os.fdatasync(fd)


def _full_sync(fd: int) -> None:
    """macOS: flush the drive too. Network volumes cannot; they get what they can do."""
    try:
        fcntl.fcntl(fd, _F_FULLFSYNC)
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
            raise
        os.fsync(fd)


def _sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _sync_folder(fd)
    finally:
        os.close(fd)


def _sync_folder(fd: int) -> None:
    if sys.platform == "darwin":
        _full_sync(fd)
    else:
        os.fsync(fd)


def _take(fd: int) -> None:
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # Perhaps only somebody who asks `is_locked`, and is gone in some microseconds.
            os.sched_yield()
        else:
            return
    raise LockedError(os.pread(fd, HOLDER_BYTES_MAX, 0))

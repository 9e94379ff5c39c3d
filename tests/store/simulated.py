"""The elementary steps of a disk, in memory, each one an operation of a Sequence.

    DurableFiles ---> SimulatedDisk ---> Sequence.run ---> Names, Node
                      (this file)        faults strike     what survives

Every step behaves as on the real disk, down to the error it raises. One mutex, the sequence's,
guards all state, so threads see whole steps.

Steps that change a name or a size are unsynced until their sync, so "inside" one of them is the
same as after it: the crash image decides. Locks and mapped memory die with the process.
"""

from __future__ import annotations

import contextlib
import errno
import os

from halocline.store.files import (
    Buffer,
    Identity,
    Lock,
    LockedError,
    Mapped,
    MovedError,
    PathList,
    parent,
)
from tests.store.memory import FileNode, NameChange, NameTable
from tests.store.sequence import Sequence


class SimulatedFile:
    """An open file. It stays usable when its name is removed, as on the real disk."""

    def __init__(self, sequence: Sequence, path: str, node: FileNode, *, writable: bool) -> None:
        self._sequence = sequence
        self._path = path
        self._node: FileNode | None = node
        self._writable = writable

    def pread(self, size: int, offset: int) -> bytes:
        node = self._open()
        return self._sequence.run(
            "read",
            self._path,
            lambda: bytes(node.data[offset : offset + size]),
            offset=offset,
            size=size,
        )

    def pwrite(self, data: Buffer, offset: int) -> None:
        node = self._open(writable=True)
        content = bytes(data)
        self._sequence.run(
            "write",
            self._path,
            lambda: node.write(content, offset),
            offset=offset,
            size=len(content),
            partly=lambda keep: node.write(content[:keep], offset),
        )

    def mapped(self, size: int) -> SimulatedFile:
        return self  # a write is a step that can fail or tear, by whatever way it goes

    def sync(self) -> None:
        node = self._open()
        self._sequence.run("sync", self._path, node.sync, failed=node.fail_sync)

    def size(self) -> int:
        node = self._open()
        self._sequence.alive()
        return len(node.data)

    def truncate(self, size: int) -> None:
        node = self._open(writable=True)
        self._sequence.run(
            "truncate",
            self._path,
            lambda: node.truncate(size),
            offset=size,
            partly=lambda _: node.truncate(size),
        )

    def close(self) -> None:
        self._node = None

    def _open(self, *, writable: bool = False) -> FileNode:
        if self._node is None or (writable and not self._writable):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._path)
        return self._node


class SimulatedLock:
    """A held lock; nothing of it is on the disk but the holder's text."""

    def __init__(self, sequence: Sequence, node: FileNode) -> None:
        self._sequence = sequence
        self._node: FileNode | None = node

    def release(self) -> None:
        with self._sequence.mutex:
            if self._node is not None:
                self._node.holder = None
            self._node = None

    def abandon(self) -> None:
        self._node = None


class SimulatedDisk:
    """The steps of `durable.Disk` over names and nodes."""

    def __init__(self, sequence: Sequence, names: NameTable) -> None:
        self._sequence = sequence
        self._names = names

    def make_root(self) -> None:
        self._sequence.alive()

    def create(self, path: str) -> SimulatedFile:
        node = FileNode()

        def act() -> None:
            self._must_be_free(path)
            self._change(adds=path, node=node)

        self._sequence.run("create", path, act, partly=lambda _: act())
        return SimulatedFile(self._sequence, path, node, writable=True)

    def open(self, path: str, *, writable: bool) -> SimulatedFile:
        with self._sequence.mutex:
            self._sequence.alive()
            return SimulatedFile(self._sequence, path, self._node(path), writable=writable)

    def mkdir(self, path: str) -> None:
        def act() -> None:
            self._must_be_free(path)
            self._change(adds=path, node=None)

        self._sequence.run("mkdir", path, act, partly=lambda _: act())

    def rename(self, old: str, new: str) -> None:
        def act() -> None:
            node = self._node(old)
            self._must_be_directory(parent(new))
            if new in self._names.seen:
                self._node(new)
            if old != new:
                self._change(removes=old, adds=new, node=node)

        self._sequence.run("rename", f"{old} -> {new}", act, partly=lambda _: act())

    def remove(self, path: str) -> None:
        def act() -> None:
            self._node(path)
            self._change(removes=path)

        self._sequence.run("remove", path, act, partly=lambda _: act())

    def sync_dir(self, path: str) -> None:
        def act() -> None:
            self._must_be_directory(path)
            self._names.sync(path)

        self._sequence.run("sync_dir", path, act)

    def exists(self, path: str) -> bool:
        with self._sequence.mutex:
            self._sequence.alive()
            return path in self._names.seen

    def list(self, path: str) -> PathList:
        def act() -> PathList:
            start = f"{path}/" if path else ""
            below = [name[len(start) :] for name in self._names.seen if name.startswith(start)]
            return [name for name in below if "/" not in name]

        return self._sequence.run("list", path, act)

    def lock(self, path: str, holder: bytes) -> Lock:
        def act() -> Lock:
            node = self._node(path)
            if node.holder is not None:
                raise LockedError(node.holder)
            node.holder = bytes(holder)
            node.truncate(0)
            node.write(node.holder, 0)
            return SimulatedLock(self._sequence, node)

        if not self.exists(path):
            with contextlib.suppress(FileExistsError):
                self.create(path)
        return self._sequence.run("lock", path, act, size=len(holder))

    def is_locked(self, path: str) -> bool:
        return self.exists(path) and self._node(path).holder is not None

    def map(self, path: str, size: int, *, writable: bool) -> Mapped:
        with self._sequence.mutex:
            self._sequence.alive()
            node = self._node(path)
            if node.shared is None:
                node.shared = bytearray(node.data)
            if len(node.shared) < size:
                node.shared.extend(bytes(size - len(node.shared)))
            return node.shared

    def check_root(self) -> None:
        """Nobody moves a disk that is in memory."""

    def check_identity(self, path: str, identity: Identity) -> None:
        node = self._names.seen.get(path)
        if node is None or (0, id(node)) != identity:
            raise MovedError(f"{path} was removed or replaced while it was in use")

    def _change(
        self, *, removes: str | None = None, adds: str | None = None, node: FileNode | None = None
    ) -> None:
        parents = frozenset(parent(path) for path in (removes, adds) if path is not None)
        self._names.change(NameChange(parents, removes, adds, node))

    def _node(self, path: str) -> FileNode:
        self._must_be_directory(parent(path))
        if path not in self._names.seen:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        node = self._names.seen[path]
        if node is None:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return node

    def _must_be_free(self, path: str) -> None:
        self._must_be_directory(parent(path))
        if path in self._names.seen:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)

    def _must_be_directory(self, path: str) -> None:
        if path and path not in self._names.seen:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if path and self._names.seen[path] is not None:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)

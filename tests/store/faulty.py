"""The store that fails on demand: every operation numbered, every crash reproducible by its seed.

    files = FaultyFiles()                  an empty disk in memory
    files.crash(17)                        the machine will stop at its 17th operation
    ... run the workload until SimulatedCrash ...
    image = files.crash_image(seed=3)      what the disk may hold when the power comes back
    ... open the database on `image`, which can crash again ...

    crash_image(seed)       power loss: what was synced, and a random part of the rest
    crash_image(none=True)  power loss: what was synced, nothing else
    crash_image(all=True)   the process was killed: everything is there, but what was not synced
                            still is not, so a power loss later may take it away

`files.objects` is an object store in the same sequence. A put or delete is one operation, durable
when it returns; one that was cut in the middle happened or did not, as the seed decides.

The same seed on the same state gives the same image. Images share nothing with their source.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from halocline.store.durable import DurableFiles
from halocline.store.files import Buffer, PathList, check_directory, check_path
from tests.store.memory import Draw, FileNode, NameTable, reachable
from tests.store.sequence import Operation, Sequence, SimulatedCrash
from tests.store.simulated import SimulatedDisk

__all__ = ["FaultyFiles", "FaultyObjects", "Operation", "SimulatedCrash"]

_OBJECTS = "objects"


class FaultyObjects:
    """`Objects` in memory, numbered in the sequence of its FaultyFiles."""

    def __init__(self, sequence: Sequence, content: dict[str, bytes]) -> None:
        self._sequence = sequence
        self._content = content
        self._unsure: dict[str, bytes | None] = {}

    def put(self, key: str, data: Buffer) -> None:
        self._put(key, data, new=False)

    def put_new(self, key: str, data: Buffer) -> None:
        self._put(key, data, new=True)

    def _put(self, key: str, data: Buffer, *, new: bool) -> None:
        check_path(key)
        content = bytes(data)

        def partly(_: int) -> None:
            self._unsure[key] = content

        def act() -> None:
            if new and key in self._content:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), key)
            self._content[key] = content
            self._unsure.pop(key, None)

        self._sequence.run("put", key, act, size=len(content), partly=partly)

    def read(self, key: str, offset: int = 0, size: int | None = None) -> bytes:
        check_path(key)

        def act() -> bytes:
            end = None if size is None else offset + size
            return self._get(key)[offset:end]

        return self._sequence.run("read", key, act, offset=offset, size=size or 0)

    def size(self, key: str) -> int:
        with self._sequence.mutex:
            self._sequence.alive()
            return len(self._get(check_path(key)))

    def list(self, folder: str = "", *, temporary: bool = False) -> PathList:
        start = f"{check_directory(folder)}/" if folder else ""

        def act() -> PathList:
            keys = () if temporary else self._content
            return sorted(key for key in keys if key.startswith(start))

        return self._sequence.run("list", folder, act)

    def delete(self, key: str) -> None:
        check_path(key)

        def partly(_: int) -> None:
            self._unsure[key] = None

        def act() -> None:
            self._get(key)
            del self._content[key]
            self._unsure.pop(key, None)

        self._sequence.run("delete", key, act, partly=partly)

    def survive(self, happened: Callable[[], bool]) -> dict[str, bytes]:
        """The objects after a crash; of those cut in the middle, the ones that `happened`."""
        content = dict(self._content)
        for key, data in self._unsure.items():
            if happened():
                content.pop(key, None)
                if data is not None:
                    content[key] = data
        return content

    def _get(self, key: str) -> bytes:
        if key not in self._content:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), key)
        return self._content[key]


class FaultyFiles(DurableFiles):
    """`Files` in memory, with faults and crash images."""

    def __init__(
        self, _names: NameTable | None = None, _objects: dict[str, bytes] | None = None
    ) -> None:
        self.sequence = Sequence()
        self._names = _names or NameTable()
        self.objects = FaultyObjects(self.sequence, _objects or {})
        super().__init__(SimulatedDisk(self.sequence, self._names))
        self.fail = self.sequence.fail
        self.tear = self.sequence.tear
        self.delay = self.sequence.delay
        self.crash = self.sequence.crash
        self.clear = self.sequence.clear
        self.crash_points = self.sequence.crash_points

    @property
    def operations(self) -> list[Operation]:
        """What has happened so far, numbered from 1."""
        with self.sequence.mutex:
            return self.sequence.operations.copy()

    @property
    def crashed(self) -> bool:
        return self.sequence.crashed

    def crash_image(self, seed: int = 0, *, all: bool = False, none: bool = False) -> FaultyFiles:
        """A new store with what a crash at this moment may leave. No locks, no mapped memory."""
        assert not (all and none)
        with self.sequence.mutex:
            if all:
                return FaultyFiles(self._killed(), self.objects.survive(lambda: True))
            if none:
                kept = reachable(self._names.disk)
                return self._settled(kept, lambda node: node.disk, lambda: False)
            draw = Draw(seed)
            kept = self._names.survive(draw)
            return self._settled(kept, lambda node: node.survive(draw), lambda: draw.below(2) == 1)

    def materialise(self, directory: str | os.PathLike[str]) -> None:
        """Write what processes see now into a real directory."""
        root = Path(directory)
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self.sequence.mutex:
            for path, node in sorted(self._names.seen.items()):
                if node is None:
                    (root / path).mkdir(mode=0o700, exist_ok=True)
                else:
                    _write_private(root / path, bytes(node.data))
            for key, data in self.objects.survive(lambda: False).items():
                _write_private(root / _OBJECTS / key, data)

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> FaultyFiles:
        """A store with the content of a real directory, all of it synced."""
        root = Path(directory)
        found: dict[str, FileNode | None] = {}
        objects: dict[str, bytes] = {}
        for entry in sorted(root.rglob("*")):
            path = entry.relative_to(root).as_posix()
            if f"{path}/".startswith(f"{_OBJECTS}/"):
                if entry.is_file():
                    objects[path.removeprefix(f"{_OBJECTS}/")] = entry.read_bytes()
            elif entry.is_dir():
                found[path] = None
            elif entry.is_file():
                found[path] = FileNode(entry.read_bytes())
        return cls(_synced(found), objects)

    def _killed(self) -> NameTable:
        copies: dict[int, FileNode] = {}

        def copied(node: FileNode) -> FileNode:
            if id(node) not in copies:
                copies[id(node)] = node.copy()
            return copies[id(node)]

        return self._names.copy(copied)

    def _settled(
        self,
        kept: dict[str, FileNode | None],
        content: Callable[[FileNode], bytes | bytearray],
        happened: Callable[[], bool],
    ) -> FaultyFiles:
        found = {path: node and FileNode(content(node)) for path, node in kept.items()}
        return FaultyFiles(_synced(found), self.objects.survive(happened))


def _synced(found: dict[str, FileNode | None]) -> NameTable:
    """Names that are all durable."""
    names = NameTable()
    names.seen = found
    names.disk = dict(found)
    return names


def _write_private(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(0o600)

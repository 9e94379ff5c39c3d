"""Files and names in memory that know, byte by byte, what would survive a power loss.

    Node    data:  what processes read         unsynced: writes and truncations, in order
            disk:  what has been synced          '--sync--> disk
    Names   seen:  what processes see          unsynced: creates, renames, removes, in order
            disk:  what has been synced          '--sync_dir--> disk

What a power loss may leave is decided here, as hostile as ext4 and xfs allow:

- A file keeps, for every 512-byte sector on its own, the synced content or its content after any
  one of the writes since. Its size is independent of that: data can be lost below a size that
  was kept (zeros), and a size below data that was kept. Truncations happen in order.
- Of the changes of one directory's names a prefix happened. Directories are independent of each
  other; a rename between two of them happened in both or in neither.
- Syncing a file says nothing about its name, and a synced name nothing about the content.
- A sync that failed makes its data clean without writing it, as Linux does: a second sync does
  not help, only writing the same sectors again does.

A name is removed at once for processes, but its file may come back, so nodes live on as long as
a synced name holds them.

Not here: which operation crashes (sequence.py), the disk's steps (simulated.py), images of whole
stores (faulty.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from tests.clock import ManualClock

SECTOR: Final = 512


class Draw:
    """Decisions that follow from a seed."""

    def __init__(self, seed: int) -> None:
        self._random_bytes = ManualClock(seed).random_bytes

    def below(self, count: int) -> int:
        """A number from 0 to count - 1."""
        return int.from_bytes(self._random_bytes(4), "little") % count

    def quarters(self, chance: int) -> bool:
        """True in `chance` of four cases."""
        return self._random_bytes(1)[0] % 4 < chance


class Change(NamedTuple):
    """An unsynced change of a file: a write, or a truncation to `offset` (no data).

    `clean` marks a write whose sync failed: the disk believes it has it.
    """

    offset: int
    data: bytes | None
    clean: bool = False


class SharedBytes(bytearray):
    """A page that several processes share."""

    inode = 1

    def close(self) -> None:
        """Nothing is held."""


class FileNode:
    """The content of one file."""

    __slots__ = ("data", "disk", "holder", "shared", "unsynced")

    def __init__(self, content: bytes | bytearray = b"") -> None:
        self.data = bytearray(content)
        self.disk = bytearray(content)
        self.unsynced: list[Change] = []
        self.holder: bytes | None = None
        self.shared: SharedBytes | None = None

    def write(self, data: bytes, offset: int) -> None:
        if data:
            _put(self.data, data, offset)
            self.unsynced.append(Change(offset, data))

    def truncate(self, size: int) -> None:
        _resize(self.data, size)
        self.unsynced.append(Change(size, None))

    def sync(self) -> None:
        if any(change.clean for change in self.unsynced):
            self._sync_what_is_dirty()
            return
        for change in self.unsynced:
            _apply(self.disk, change)
        self.unsynced.clear()

    def fail_sync(self) -> None:
        """Marks everything unsynced as clean in memory, though it may be missing on the disk."""
        if not self.unsynced:
            return
        resized = [change for change in self.unsynced if change.data is None]
        sectors = {at for change in self.unsynced for at in _sectors(change)}
        self.unsynced = [*resized, *self._clean(sectors), Change(len(self.data), None)]

    def copy(self) -> FileNode:
        """The node as a killed process leaves it: nothing lost, nothing more durable."""
        node = FileNode()
        node.data = self.data.copy()
        node.disk = self.disk.copy()
        node.unsynced = self.unsynced.copy()
        return node

    def survive(self, draw: Draw) -> bytearray:
        """One content that a power loss may leave."""
        content = self.disk.copy()
        if not self.unsynced:
            return content
        keeps = self._versions_kept(draw)
        resizes = sum(change.data is None for change in self.unsynced)
        resizes_kept = draw.below(resizes + 1)
        low = high = len(content)
        limit: int | None = None
        for change in self.unsynced:
            if change.data is None:
                if not resizes_kept:
                    # Lost, and so is every sector written beyond it since: those blocks belong
                    # to the size that never came to be.
                    lost = change.offset // SECTOR * SECTOR
                    limit = lost if limit is None else min(limit, lost)
                    continue
                resizes_kept -= 1
                _resize(content, change.offset)
                low = high = change.offset
                continue
            end = change.offset + len(change.data)
            high = max(high, end if limit is None else min(end, limit))
            for at in _sectors(change):
                keeps[at] -= 1
                if keeps[at] >= 0 and (limit is None or at < limit):
                    _put_sector(content, change, at)
        _resize(content, _size_kept(draw, low, high, len(content)))
        return content

    def _versions_kept(self, draw: Draw) -> dict[int, int]:
        """Per sector: how many of its unsynced writes reached the disk, the first ones first."""
        written: dict[int, int] = {}
        for change in self.unsynced:
            for at in _sectors(change):
                written[at] = written.get(at, 0) + 1
        # All and nothing are likely too: fair coins alone would hardly ever lose a whole file.
        chance = draw.below(5)
        return {
            at: count if draw.quarters(chance) else draw.below(count)
            for at, count in written.items()
        }

    def _sync_what_is_dirty(self) -> None:
        dirty = {at for change in self.unsynced if not change.clean for at in _sectors(change)}
        for change in self.unsynced:
            if change.data is None:
                _resize(self.disk, change.offset)
        _resize(self.disk, len(self.data))
        for at in dirty:
            self.disk[at : at + SECTOR] = self.data[at : at + SECTOR]
        clean = {change.offset for change in self.unsynced if change.clean}
        self.unsynced = self._clean(clean - dirty)

    def _clean(self, sectors: set[int]) -> list[Change]:
        """Sectors of the file as writes that no later sync will bring to the disk."""
        return [
            Change(at, bytes(self.data[at : at + SECTOR]), True)
            for at in sorted(sectors)
            if at < len(self.data)
        ]


class NameChange(NamedTuple):
    """An unsynced change of names: `removes` goes, then `adds` comes and names `node`.

    A directory is a name without a node.
    """

    parents: frozenset[str]
    removes: str | None
    adds: str | None
    node: FileNode | None


class NameTable:
    """The names of a disk: as processes see them, and as synced."""

    def __init__(self) -> None:
        self.seen: dict[str, FileNode | None] = {}
        self.disk: dict[str, FileNode | None] = {}
        self.unsynced: list[NameChange] = []

    def change(self, change: NameChange) -> None:
        _rename(self.seen, change)
        self.unsynced.append(change)

    def sync(self, directory: str) -> None:
        """Makes the names of a directory durable, and what a rename there depends on elsewhere."""
        wanted = {directory}
        synced: list[NameChange] = []
        rest: list[NameChange] = []
        for change in reversed(self.unsynced):
            if wanted.isdisjoint(change.parents):
                rest.append(change)
            else:
                wanted |= change.parents
                synced.append(change)
        for change in reversed(synced):
            _rename(self.disk, change)
        self.unsynced = rest[::-1]

    def survive(self, draw: Draw) -> dict[str, FileNode | None]:
        """Names that a power loss may leave: a prefix of each directory's changes."""
        counts: dict[str, int] = {}
        for change in self.unsynced:
            for directory in change.parents:
                counts[directory] = counts.get(directory, 0) + 1
        left = {directory: draw.below(counts[directory] + 1) for directory in sorted(counts)}
        names = dict(self.disk)
        for change in self.unsynced:
            happened = all(left[directory] > 0 for directory in change.parents)
            for directory in change.parents:
                left[directory] = left[directory] - 1 if happened else 0
            if happened:
                _rename(names, change)
        return reachable(names)

    def copy(self, copied: Callable[[FileNode], FileNode]) -> NameTable:
        """A copy of the names, over copies of the nodes."""

        def over(names: dict[str, FileNode | None]) -> dict[str, FileNode | None]:
            return {path: node and copied(node) for path, node in names.items()}

        names = NameTable()
        names.seen = over(self.seen)
        names.disk = over(self.disk)
        names.unsynced = [
            change._replace(node=change.node and copied(change.node)) for change in self.unsynced
        ]
        return names


def reachable(names: dict[str, FileNode | None]) -> dict[str, FileNode | None]:
    """The names whose directory exists, in order of path."""
    kept: dict[str, FileNode | None] = {}
    for path in sorted(names):
        directory = path.rpartition("/")[0]
        if not directory or directory in kept:
            kept[path] = names[path]
    return kept


def _rename(names: dict[str, FileNode | None], change: NameChange) -> None:
    if change.removes is not None:
        names.pop(change.removes, None)
    if change.adds is not None:
        names[change.adds] = change.node


def _sectors(change: Change) -> range:
    """Offsets of the sectors that a write touches; a truncation touches none."""
    if change.data is None:
        return range(0)
    return range(change.offset // SECTOR * SECTOR, change.offset + len(change.data), SECTOR)


def _put_sector(content: bytearray, change: Change, at: int) -> None:
    """Write the part of a change that lies in one sector."""
    assert change.data is not None
    start = max(at, change.offset)
    _put(content, change.data[start - change.offset : at + SECTOR - change.offset], start)


def _size_kept(draw: Draw, low: int, high: int, length: int) -> int:
    """The synced size, the newest, that of the data that was kept, or one in between."""
    sectors = (high - low) // SECTOR
    between = min(high, low // SECTOR * SECTOR + SECTOR * (draw.below(sectors + 1) + 1))
    return (low, high, length, max(low, between))[draw.below(4)]


def _apply(content: bytearray, change: Change) -> None:
    if change.data is None:
        _resize(content, change.offset)
    else:
        _put(content, change.data, change.offset)


def _put(content: bytearray, data: bytes, offset: int) -> None:
    if offset > len(content):
        _resize(content, offset)
    content[offset : offset + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))

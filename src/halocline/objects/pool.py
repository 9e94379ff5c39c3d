"""Buffer pools: decoded bytes in memory, with a hard budget.

    pin(id, load), pin_all(id, count, load, join) --> Handle --close--> evictable again
         |   loaded: count + 1
         '-- unloaded: load what is missing, make room (least recently used first), count + 1

What is pinned has a unique, hashable id: the tail of an object, the keys of a block, the columns of
a block. It consists of one node, or of several that are wanted together: each column is a node of
its own, with a size of its own. A node is loaded or unloaded, nothing else. What is made of all
nodes together (`join`) is kept as long as all of them are there, so that a row of many columns is
as near as one of a few. A shelf makes two pools: for columns of blocks (data) and for tails and key
blocks (index); each has a budget of its own, so that rows never push out what finds keys.

What finds no room, because it is larger than the pool or everything in it is in use, is handed out
all the same and not kept: it is read past the pool, every time anew, which is slow but right.

Invariants
- A node that is pinned is never evicted.
- Bytes of loaded nodes never exceed the budget. What is being loaded counts with what its caller
  expects, and with its true size before others see it.
- One thread loads; others that want the same wait, and see its error only by failing themselves.
- `load` and `join` run without the lock, so they may pin other ids.
- Ctrl-C may strike anywhere: what is being loaded is in the hands of a thread that will make it
  ready or give it up, and who waits looks again now and then, told or not.

A pin and its close take 1 us together, however many nodes there are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from threading import Condition, Lock
from typing import Any, Final, TypeAlias

LOOK_AGAIN_S: Final = 0.5
"""A thread that was interrupted may not have told those who wait."""
_MISSING: Final = object()

Content: TypeAlias = tuple[Any, int]
"""What a node holds, and how many bytes that takes."""
LoadMany: TypeAlias = Callable[[Sequence[int]], Sequence[Content]]
"""Makes the contents of these nodes of an id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStats:
    """What a pool has done, and what it holds."""

    name: str
    budget_bytes: int
    used_bytes: int
    pinned_bytes: int
    nodes: int
    hits: int
    misses: int
    evictions: int


class _Entry:
    """The nodes of one id. All of it is guarded by the lock of the pool."""

    __slots__ = ("id", "joined", "loader", "nodes", "pins", "reserved", "used")

    def __init__(self, id: Hashable) -> None:
        self.id = id
        self.nodes: dict[int, Content] = {}
        self.joined: Any = _MISSING
        self.loader: object | None = None
        self.reserved = 0
        self.pins = 0
        self.used = 0

    @property
    def size(self) -> int:
        return self.reserved + sum(size for _, size in self.nodes.values())


class Handle:
    """A pin. Closing it, once, gives it back; as a context manager it hands out the content."""

    __slots__ = ("_entry", "_pool", "value")

    def __init__(self, pool: Pool, entry: _Entry, value: Any) -> None:
        self._pool = pool
        self._entry: _Entry | None = entry
        self.value = value

    def close(self) -> None:
        """Unpin. Closing again does nothing."""
        entry, self._entry = self._entry, None
        if entry is not None:
            with self._pool._lock:
                self._pool._release(entry)

    def __enter__(self) -> Any:
        return self.value

    def __exit__(self, *error: object) -> None:
        self.close()


class Pool:
    """Memory for nodes of one kind. Safe to share between threads."""

    def __init__(self, name: str, budget_bytes: int) -> None:
        self.name = name
        self.budget_bytes = budget_bytes
        self._lock = Lock()
        self._changed = Condition(self._lock)
        self._entries: dict[Hashable, _Entry] = {}
        # Least recently used last, as it was when the list was made. What was used since then has
        # a later `used`, is passed over, and comes with the next list.
        self._victims: list[tuple[int, _Entry]] = []
        self._clock = 0
        self._used = 0
        self._hits = self._misses = self._evictions = 0

    def pin(self, id: Hashable, load: Callable[[], Content], *, expect: int = 0) -> Handle:
        """Hold a node, loading it first if need be; `expect` is the size to make room for."""
        return self.pin_all(id, 1, lambda _: (load(),), _only, expect=expect)

    def pin_all(
        self,
        id: Hashable,
        count: int,
        load: LoadMany,
        join: Callable[[list[Any]], Any],
        *,
        expect: int = 0,
    ) -> Handle:
        """Hold nodes 0 to `count` - 1 of an id as what `join` makes of their contents.

        Those that are not there are loaded first, together.
        """
        with self._lock:
            known = self._entries.get(id)
            if known is not None and known.joined is not _MISSING:
                known.pins += 1
                self._hits += 1
                return Handle(self, known, known.joined)
        token = object()
        try:
            entry, missing = self._enter(id, count, token)
            if expect and missing:
                with self._lock:
                    entry.reserved = expect if self._grow(expect) else 0
            loose = self._fill(entry, missing, load(missing) if missing else ())
            contents = {at: value for at, (value, _) in (*entry.nodes.items(), *loose.items())}
            value = join([contents[at] for at in range(count)])
            with self._lock:
                entry.joined = _MISSING if loose else value
                entry.loader = None
                self._changed.notify_all()
        except BaseException:
            self._give_up(id, token)
            raise
        return Handle(self, entry, value)

    def _enter(self, id: Hashable, count: int, token: object) -> tuple[_Entry, list[int]]:
        """Pins an entry that no other thread loads, and says which of its nodes are missing."""
        with self._lock:
            while (entry := self._entries.setdefault(id, _Entry(id))).loader is not None:
                self._changed.wait(LOOK_AGAIN_S)
            missing = [at for at in range(count) if at not in entry.nodes]
            self._misses += len(missing)
            self._hits += not missing
            entry.pins, entry.loader = entry.pins + 1, token
            return entry, missing

    def _fill(
        self, entry: _Entry, missing: Sequence[int], contents: Sequence[Content]
    ) -> dict[int, Content]:
        """Puts what was loaded into the pool, and gives back what finds no room."""
        loose: dict[int, Content] = {}
        with self._lock:
            self._used -= entry.reserved
            entry.reserved = 0
            for at, content in zip(missing, contents, strict=True):
                (entry.nodes if self._grow(content[1]) else loose)[at] = content
        return loose

    def loaded(self, id: Hashable) -> bool:
        """Is it in memory?"""
        known = self._entries.get(id)
        return known is not None and known.joined is not _MISSING

    def has_room(self, size: int) -> bool:
        """Would so many bytes fit without driving anything out?"""
        return self._used + size <= self.budget_bytes

    def drop(self, id: Hashable) -> bool:
        """Forget what will not be wanted again; False if it is held."""
        with self._lock:
            known = self._entries.get(id)
            if known is not None and not known.pins:
                while known.nodes:
                    self._remove_node(known)
            return id not in self._entries

    def stats(self) -> PoolStats:
        with self._lock:
            entries = self._entries.values()
            return PoolStats(
                name=self.name,
                budget_bytes=self.budget_bytes,
                used_bytes=self._used,
                pinned_bytes=sum(entry.size for entry in entries if entry.pins),
                nodes=sum(len(entry.nodes) for entry in entries),
                hits=self._hits,
                misses=self._misses,
                evictions=self._evictions,
            )

    def _release(self, entry: _Entry) -> None:
        """Takes a pin from an entry. The caller holds the lock."""
        entry.pins -= 1
        if not entry.pins:
            self._clock += 1
            entry.used = self._clock
            if not entry.nodes:
                del self._entries[entry.id]

    def _grow(self, size: int) -> bool:
        """Makes room for `size` bytes, and takes it; False when there is none.

        The caller holds the lock.
        """
        if size > self.budget_bytes:
            return False
        while self._used + size > self.budget_bytes:
            victim = self._victim()
            if victim is None:
                return False
            self._remove_node(victim)
            self._evictions += 1
        self._used += size
        return True

    def _victim(self) -> _Entry | None:
        """The entry that was used least recently of those that are not pinned."""
        for again in (False, True):
            if again:
                idle = [(one.used, one) for one in self._entries.values() if not one.pins]
                self._victims = sorted(idle, key=lambda pair: pair[0], reverse=True)
            while self._victims:
                used, entry = self._victims[-1]
                if entry.nodes and not entry.pins and entry.used == used:
                    return entry
                self._victims.pop()
        return None

    def _remove_node(self, entry: _Entry) -> None:
        """Takes a node out of an entry that is not pinned."""
        _, (_, size) = entry.nodes.popitem()
        self._used -= size
        entry.joined = _MISSING
        if not entry.nodes:
            del self._entries[entry.id]

    def _give_up(self, id: Hashable, token: object) -> None:
        """Lets others load what this thread has begun to load, after an error or an interrupt."""
        with self._lock:
            entry = self._entries.get(id)
            if entry is not None and entry.loader is token:
                self._used -= entry.reserved
                entry.reserved, entry.loader = 0, None
                self._release(entry)
            elif entry is not None and not entry.pins and not entry.nodes:
                del self._entries[id]
            self._changed.notify_all()


def _only(contents: list[Any]) -> Any:
    return contents[0]

"""Buffer pools: decoded bytes in memory, with a hard budget.

    pin(node, load) --> Handle --close--> evictable again
         |   loaded: count + 1
         '-- unloaded: make room (least recently used first), load, count + 1

A node is anything with a unique, hashable id: a block of an object, the tail of one. It is loaded
or unloaded, nothing else. A shelf makes two pools: for blocks of rows (data) and for tails and key
blocks (index); each has a budget of its own, so that scans never push out what finds keys.

Invariants
- A node that somebody holds is never evicted. When all are held and the budget is used up, `pin`
  raises UnavailableError.
- Bytes of loaded nodes never exceed the budget. A node being loaded counts with what its caller
  expects, and with its true size before anybody sees it.
- One thread loads a node; others that want it wait, and see its error only by failing themselves.
- `load` runs without the lock, so it may pin nodes itself.
- Ctrl-C may strike anywhere: a node that is not ready is in the hands of a thread that will make it
  so or forget it, and who waits looks again now and then, told or not.

A pin and its close take 1.3 us together.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from threading import Condition, Lock
from typing import Any, Final, TypeAlias

from halocline.errors import UnavailableError

LOOK_AGAIN_S: Final = 0.5
"""A thread that was interrupted may not have told those who wait."""

Load: TypeAlias = Callable[[], tuple[Any, int]]
"""Makes the content of a node and says how many bytes it takes."""


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


class _Node:
    __slots__ = ("id", "pins", "ready", "size", "value")

    def __init__(self, id: Hashable, size: int) -> None:
        self.id = id
        self.size = size
        self.pins = 1
        self.ready = False
        self.value: Any = None


class Handle:
    """A pin. Closing it, once, gives it back; as a context manager it hands out the content."""

    __slots__ = ("_node", "_pool", "value")

    def __init__(self, pool: Pool, node: _Node) -> None:
        self._pool = pool
        self._node: _Node | None = node
        self.value = node.value

    def close(self) -> None:
        """Unpin. Closing again does nothing."""
        node, self._node = self._node, None
        if node is not None:
            self._pool._unpin(node)

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
        self._nodes: dict[Hashable, _Node] = {}
        # Nodes that nobody holds, least recently used first: dicts keep the order of insertion.
        self._idle: dict[Hashable, _Node] = {}
        self._used = 0
        self._hits = self._misses = self._evictions = 0

    def pin(self, node: Hashable, load: Load, *, expect: int = 0) -> Handle:
        """Hold a node, loading it first if need be; `expect` is the size to make room for."""
        with self._lock:
            known = self._nodes.get(node)
            if known is not None and known.ready:
                return self._hold(known)
        fresh = _Node(node, 0)
        try:
            handle = self._enter(fresh)
            if handle is not None:
                return handle
            self._grow(fresh, expect)
            fresh.value, size = load()
            self._grow(fresh, size)
            with self._lock:
                fresh.ready = True
                self._changed.notify_all()
        except BaseException:
            self._give_up(fresh)
            raise
        return Handle(self, fresh)

    def _hold(self, known: _Node) -> Handle:
        """Adds a pin to a loaded node. The caller holds the lock."""
        if not known.pins:
            del self._idle[known.id]
        known.pins += 1
        self._hits += 1
        return Handle(self, known)

    def _enter(self, fresh: _Node) -> Handle | None:
        """A pin of the node, if another thread has loaded it; None: the caller must load it."""
        with self._lock:
            while (known := self._nodes.get(fresh.id)) is not None:
                if known.ready:
                    return self._hold(known)
                self._changed.wait(LOOK_AGAIN_S)
            self._misses += 1
            self._nodes[fresh.id] = fresh
            return None

    def loaded(self, node: Hashable) -> bool:
        """Is it in memory?"""
        known = self._nodes.get(node)
        return known is not None and known.ready

    def has_room(self, size: int) -> bool:
        """Would so many bytes fit without driving anything out?"""
        return self._used + size <= self.budget_bytes

    def drop(self, node: Hashable) -> bool:
        """Forget a node that will not be wanted again; False if it is held."""
        with self._lock:
            known = self._idle.pop(node, None)
            if known is not None:
                self._remove(known)
            return node not in self._nodes

    def clear(self) -> None:
        """Forget every node that is not pinned."""
        with self._lock:
            for node in self._idle.values():
                self._remove(node)
            self._idle.clear()

    def stats(self) -> PoolStats:
        with self._lock:
            return PoolStats(
                name=self.name,
                budget_bytes=self.budget_bytes,
                used_bytes=self._used,
                pinned_bytes=sum(node.size for node in self._nodes.values() if node.pins),
                nodes=sum(node.ready for node in self._nodes.values()),
                hits=self._hits,
                misses=self._misses,
                evictions=self._evictions,
            )

    def _unpin(self, node: _Node) -> None:
        with self._lock:
            self._release(node)

    def _release(self, node: _Node) -> None:
        """Takes a pin from a node. The caller holds the lock."""
        node.pins -= 1
        if not node.pins:
            self._idle[node.id] = node

    def _grow(self, node: _Node, size: int) -> None:
        """Let a node that is being loaded take `size` bytes, evicting others as needed."""
        with self._lock:
            more = size - node.size
            while self._used + more > self.budget_bytes:
                if not self._idle:
                    raise UnavailableError(
                        f"the {self.name} pool is full: {more} bytes are wanted, and all of the "
                        f"{self._used} of {self.budget_bytes} bytes are in use"
                    )
                self._remove(self._idle.pop(next(iter(self._idle))))
                self._evictions += 1
            self._used += more
            node.size = size

    def _give_up(self, node: _Node) -> None:
        """Forgets the node, or its pin, after an error or an interrupt in `pin`."""
        with self._lock:
            if self._nodes.get(node.id) is node:
                if node.ready:  # others may hold it already
                    self._release(node)
                else:
                    self._remove(node)
            self._changed.notify_all()

    def _remove(self, node: _Node) -> None:
        self._used -= node.size
        node.value = None
        del self._nodes[node.id]

"""One row of a built-in table through time: an index node and its version chain.

    index["m"] --> ( Row T1,               Row T3,               Row T7 )    oldest generation first
                     created 1, deleted 2  created 3, deleted 4  created 11
                                             |
                                             chain: (delete 4)      made by the first change

A key that is created, dropped and created again has one row per generation. A row begins without a
chain; each later change adds a node to it: an update with the new value, or a delete. Whatever has
not committed yet carries its transaction as owner and NEVER as timestamp, so for everybody else it
lies in the future and needs no further test.

Readers take no lock. A chain is a tuple that is replaced as a whole, and a commit stamps nodes
with a timestamp that no reader may ask for yet, so a reader that meets a half-stamped commit gets
the same answer as before it.

Invariants
- Generations of a key do not overlap: one ends before, or at the commit in which, the next begins.
- Committed nodes of a chain are in commit order, uncommitted ones come last.
- A delete ends its row: nothing is added after a committed delete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, Self, TypeVar

from halocline.ids import NEVER


class Entry(Protocol):
    """A value that can carry the commit info of its row."""

    def stamped(self, created_at: int, ended_at: int) -> Self: ...


V = TypeVar("V", bound=Entry)

NOBODY: Final = object()
"""The owner of nothing: reading as NOBODY shows committed rows only."""


@dataclass(slots=True, eq=False)
class Version(Generic[V]):
    """A node of a chain: an update to `value`, or a delete when that is None."""

    value: V | None
    owner: object | None
    commit_ts: int = NEVER

    def seen(self, ts: int, reader: object) -> bool:
        return self.commit_ts <= ts or self.owner is reader


@dataclass(slots=True, eq=False)
class Row(Generic[V]):
    """An index node: one generation of one key."""

    value: V
    owner: object | None
    created_at: int = NEVER
    deleted_at: int = NEVER
    chain: tuple[Version[V], ...] | None = None

    def add(self, version: Version[V]) -> None:
        self.chain = (*(self.chain or ()), version)

    def remove(self, version: Version[V]) -> None:
        """Undo `add`. The last node takes the chain with it."""
        self.chain = tuple(node for node in self.chain or () if node is not version) or None

    def begun(self, ts: int, reader: object) -> bool:
        return self.created_at <= ts or self.owner is reader

    def ended(self, ts: int, reader: object) -> bool:
        """Deleted by a commit at or before `ts`, or by the reader itself."""
        if self.deleted_at <= ts:
            return True
        return any(node.value is None and node.owner is reader for node in self.chain or ())

    def read(self, ts: int, reader: object) -> V:
        """The newest value that `reader` may see. The chain is read first: see `prune`."""
        for node in reversed(self.chain or ()):
            if node.value is not None and node.seen(ts, reader):
                return node.value
        return self.value

    def rivals(self, reader: object) -> list[Version[V]]:
        """Uncommitted nodes of other transactions."""
        return [node for node in self.chain or () if node.owner not in (None, reader)]

    def changed_at(self) -> int:
        """When a commit last touched this row; 0 if none has."""
        stamps = [self.created_at, self.deleted_at]
        stamps += [node.commit_ts for node in self.chain or ()]
        return max((stamp for stamp in stamps if stamp < NEVER), default=0)

    def stamp(self) -> None:
        """Write the row's commit info into every value, so that readers get finished entries."""
        for node in self.chain or ():
            if node.value is not None:
                node.value = node.value.stamped(self.created_at, self.deleted_at)
        self.value = self.value.stamped(self.created_at, self.deleted_at)

    def prune(self, floor: int) -> None:
        """Forget the nodes that no snapshot at or above the floor can tell apart."""
        if self.chain is None:
            return
        # The value goes first: whoever still holds the old chain never looks at it, and whoever
        # gets the new chain finds the value that the pruned nodes would have given.
        self.value = self.read(floor, NOBODY)
        self.chain = tuple(node for node in self.chain if node.commit_ts > floor) or None


def visible(rows: Sequence[Row[V]], ts: int, reader: object) -> Row[V] | None:
    """The generation that is there at `ts` for `reader`. All before the newest begun have ended."""
    for row in reversed(rows):
        if row.begun(ts, reader):
            return None if row.ended(ts, reader) else row
    return None

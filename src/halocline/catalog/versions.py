"""One table name through time: its generations, and the version chain of each.

    "m" --> ( generation T1,        generation T3,        generation T7 )    oldest first
              created 1, deleted 2  created 3, deleted 4  created 11
                                      |
                                      chain: (delete 4)      made by the first change

A name that is created, dropped and created again has one generation each time; a table that is
renamed ends one here and begins one under its new name. A generation begins
without a chain; each later change adds a version to it: an update with the new entry (a table whose
schema changes), or a delete. Whatever has not committed yet carries its transaction as owner and
NEVER as timestamp, so for everybody else it lies in the future and needs no further test.

Readers take no lock. A chain is a tuple that is replaced as a whole, and a commit stamps versions
with a timestamp that no reader may ask for yet, so a reader that meets a half-stamped commit gets
the same answer as before it.

Invariants
- Generations of a name do not overlap: one ends before, or at the commit in which, the next begins.
- Committed versions of a chain are in commit order, uncommitted ones come last.
- A delete ends its generation: nothing is added after a committed delete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from halocline.catalog.entries import TableEntry
from halocline.ids import NEVER

NOBODY: Final = object()
"""The owner of nothing: reading as NOBODY shows committed tables only."""


@dataclass(slots=True, eq=False)
class Version:
    """One change of a generation: an update to `entry`, or a delete when that is None."""

    entry: TableEntry | None
    owner: object | None
    commit_ts: int = NEVER

    def seen(self, ts: int, reader: object) -> bool:
        return self.commit_ts <= ts or self.owner is reader


@dataclass(slots=True, eq=False)
class Generation:
    """One table that has, or had, the name."""

    entry: TableEntry
    owner: object | None
    created_at: int = NEVER
    deleted_at: int = NEVER
    chain: tuple[Version, ...] | None = None

    def add(self, version: Version) -> None:
        self.chain = (*(self.chain or ()), version)

    def remove(self, version: Version) -> None:
        """Undo `add`. The last version takes the chain with it."""
        self.chain = tuple(other for other in self.chain or () if other is not version) or None

    def begun(self, ts: int, reader: object) -> bool:
        return self.created_at <= ts or self.owner is reader

    def ended(self, ts: int, reader: object) -> bool:
        """Deleted by a commit at or before `ts`, or by the reader itself."""
        if self.deleted_at <= ts:
            return True
        return any(one.entry is None and one.owner is reader for one in self.chain or ())

    def read(self, ts: int, reader: object) -> TableEntry:
        """The newest entry that `reader` may see. The chain is read first: see `prune`."""
        for version in reversed(self.chain or ()):
            if version.entry is not None and version.seen(ts, reader):
                return version.entry
        return self.entry

    def rivals(self, reader: object) -> list[Version]:
        """Uncommitted versions of other transactions."""
        return [version for version in self.chain or () if version.owner not in (None, reader)]

    def changed_at(self) -> int:
        """When a commit last touched this generation; 0 if none has."""
        stamps = [self.created_at, self.deleted_at]
        stamps += [version.commit_ts for version in self.chain or ()]
        return max((stamp for stamp in stamps if stamp < NEVER), default=0)

    def stamp(self) -> None:
        """Write the commit info into every entry, so that readers get finished ones."""
        for version in self.chain or ():
            if version.entry is not None:
                stamps = (self.created_at, self.deleted_at, version.commit_ts)
                version.entry = version.entry.stamped(*stamps)
        # A table that was renamed begins a generation with a version that has just committed.
        self.entry = self.entry.stamped(self.created_at, self.deleted_at, self.created_at)

    def prune(self, floor: int) -> None:
        """Forget the versions that no snapshot at or above the floor can tell apart."""
        if self.chain is None:
            return
        # The entry goes first: whoever still holds the old chain never looks at it, and whoever
        # gets the new chain finds the entry that the pruned versions would have given.
        self.entry = self.read(floor, NOBODY)
        self.chain = tuple(version for version in self.chain if version.commit_ts > floor) or None


def visible(generations: Sequence[Generation], ts: int, reader: object) -> Generation | None:
    """The generation that is there at `ts` for `reader`. All before the newest begun have ended."""
    for generation in reversed(generations):
        if generation.begun(ts, reader):
            return None if generation.ended(ts, reader) else generation
    return None

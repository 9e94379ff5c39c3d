"""The versioned map of tables: one entry per name, versions, repeatable read.

    CatalogTxn --insert/delete/update/find--> Changes --> TableMap: name key -> generations
                                                 |                             (versions.py)
                                                 '-- remembers what was written and what was read

The catalog is a small database of its own. Writers put uncommitted versions straight into the map,
where they act as the lock on that name; a transaction sees what had committed when it began, plus
its own changes. What each operation meets, in the order in which it asks:

                              insert            delete            update            find
    not there in my view      (see below)       NotFound          NotFound          None
    there in my view          AlreadyExists     go on             go on             the entry
    delete pending elsewhere  --                Conflict          Conflict          the entry
    update pending elsewhere  --                add the version   Conflict          the old entry
    changed since I began     Conflict*         Conflict*         Conflict*         the old entry

A rename is a delete of the old name, which conflicts like an update, and an insert of the new one.
An insert of a name that is not in its view still conflicts if another transaction is creating it,
or has created or dropped it since (*: with the winner's timestamp). A delete beside a pending
update adds its version; both have read the table, so `prepare` lets only the first of them commit.

Invariants
- At most one transaction has an uncommitted insert or delete of a name.
- Whatever was read is recorded, also when it was not there: `prepare` fails if a commit after the
  transaction's start has changed any of it (read-write anti-dependency).
- A table that is born and deleted in one transaction leaves nothing.

Callers of everything in `Changes` hold the catalog's lock; `get` and `all` of the map need none.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from halocline.catalog.entries import TableEntry
from halocline.catalog.names import name_key
from halocline.catalog.versions import NOBODY, Generation, Version, visible
from halocline.errors import AlreadyExistsError, ConflictError, NotFoundError
from halocline.ids import NEVER


class TableMap:
    """Name key -> generations, the newest last."""

    def __init__(self) -> None:
        self._index: dict[str, tuple[Generation, ...]] = {}

    # The committed view; no lock needed.

    def get(self, name: str, ts: int) -> TableEntry | None:
        """The committed entry of that name at `ts`."""
        found = visible(self.generations(name_key(name)), ts, NOBODY)
        return None if found is None else found.read(ts, NOBODY)

    def all(self, ts: int) -> list[TableEntry]:
        """Every committed entry at `ts`, in no order."""
        # list() of a dict view runs without giving up the interpreter: a commit cannot interfere.
        found = (visible(one, ts, NOBODY) for one in list(self._index.values()))
        return [generation.read(ts, NOBODY) for generation in found if generation is not None]

    def name_keys(self) -> list[str]:
        """Every name key that has a generation."""
        return list(self._index)

    # For writers.

    def generations(self, key: str) -> tuple[Generation, ...]:
        """All generations of a name, uncommitted ones included."""
        return self._index.get(key, ())

    def add(self, key: str, generation: Generation) -> None:
        """Put a generation behind the others of its name."""
        self._index[key] = (*self.generations(key), generation)

    def forget(self, key: str, generation: Generation) -> None:
        """Take one generation out of the map."""
        kept = tuple(other for other in self.generations(key) if other is not generation)
        if kept:
            self._index[key] = kept
        else:
            self._index.pop(key, None)

    def compact(self, floor: int, pinned: Collection[int] = ()) -> list[TableEntry]:
        """Prune chains and forget the generations that ended at or before the floor.

        Those of tables whose ids are pinned stay. Returns the last entry of each that is gone.
        """
        gone: list[TableEntry] = []
        for key, generations in list(self._index.items()):
            for generation in generations:
                generation.prune(floor)
                if generation.deleted_at <= floor and generation.entry.id not in pinned:
                    self.forget(key, generation)
                    gone.append(generation.entry)
        return gone


@dataclass(frozen=True, slots=True)
class _Write:
    """One uncommitted change: a whole generation (version is None) or a version of its chain."""

    key: str
    generation: Generation
    version: Version | None

    def stamp(self, commit_ts: int) -> None:
        if self.version is None:
            self.generation.created_at = commit_ts
            self.generation.owner = None
            return
        if self.version.entry is None:
            self.generation.deleted_at = commit_ts
        self.version.commit_ts = commit_ts
        self.version.owner = None


class Changes:
    """The changes and reads of one catalog transaction."""

    __slots__ = ("_tables", "done", "reads", "scanned", "start_ts", "writes")

    def __init__(self, tables: TableMap, start_ts: int) -> None:
        self._tables = tables
        self.start_ts = start_ts
        self.done = False
        self.writes: list[_Write] = []
        self.reads: dict[str, str] = {}
        """Name key -> the name as it was asked for."""
        self.scanned = False

    def insert(self, entry: TableEntry) -> TableEntry:
        """Add a table under its name."""
        key = self._read(entry.name)
        generations = self._tables.generations(key)
        if visible(generations, self.start_ts, self) is not None:
            raise AlreadyExistsError("table", entry.name)
        if generations:
            self._refuse_hidden(generations[-1], entry.name)
        generation = Generation(entry, owner=self)
        # Noted first, done second: an interrupt in between leaves something that can be undone.
        self.writes.append(_Write(key, generation, None))
        self._tables.add(key, generation)
        return entry

    def delete(self, name: str) -> TableEntry:
        """End the table of that name. Returns its last entry."""
        generation = self._writable(name)
        entry = generation.read(self.start_ts, self)
        self._change(name, generation, None)
        return entry

    def update(self, entry: TableEntry) -> TableEntry:
        """Give the table of that name another entry."""
        generation = self._writable(entry.name)
        if generation.rivals(self):
            raise _conflict(entry.name, "is being changed by another transaction")
        self._change(entry.name, generation, entry)
        return entry

    def rename(self, entry: TableEntry, renamed: TableEntry) -> TableEntry:
        """Give a table another name: its generation ends here, another begins there."""
        generation = self._writable(entry.name)
        if generation.rivals(self):
            raise _conflict(entry.name, "is being changed by another transaction")
        self._change(entry.name, generation, None)
        return self.insert(renamed)

    def find(self, name: str) -> TableEntry | None:
        """The entry that the transaction sees under that name."""
        found = visible(self._tables.generations(self._read(name)), self.start_ts, self)
        return None if found is None else found.read(self.start_ts, self)

    def scan(self) -> list[TableEntry]:
        """All tables. Recorded as such: a table that appears later counts as a change too."""
        self.scanned = True
        return self.present()

    def present(self) -> list[TableEntry]:
        """All tables, for who makes sure by himself that what he concludes still holds."""
        found = [
            visible(self._tables.generations(key), self.start_ts, self)
            for key in self._tables.name_keys()
        ]
        return [one.read(self.start_ts, self) for one in found if one is not None]

    def prepare(self) -> None:
        """ConflictError if anything read here was changed by a commit after the start."""
        names = dict.fromkeys(self._tables.name_keys()) if self.scanned else {}
        for key, name in (names | self.reads).items():
            for generation in reversed(self._tables.generations(key)):
                if generation.changed_at() > self.start_ts:
                    reason = "was read and has changed since the transaction began"
                    raise _conflict(name or generation.entry.name, reason, generation.changed_at())

    def commit(self, commit_ts: int) -> list[TableEntry]:
        """Stamp every change. Returns what changed, without what was born and deleted here."""
        for write in self.writes:
            write.stamp(commit_ts)
        changed: list[TableEntry] = []
        for generation, key in {write.generation: write.key for write in self.writes}.items():
            generation.stamp()
            if generation.created_at == generation.deleted_at:
                self._tables.forget(key, generation)
            else:
                changed.append(generation.read(commit_ts, NOBODY))
        self._finish()
        return changed

    def rollback(self) -> None:
        """Take every uncommitted change out again. Doing it twice is harmless."""
        self.undo_to(0)
        self._finish()

    def undo_to(self, mark: int) -> None:
        """Take out the changes that were written after the first `mark` ones."""
        while len(self.writes) > mark:
            write = self.writes[-1]
            if write.version is None:
                self._tables.forget(write.key, write.generation)
            else:
                write.generation.remove(write.version)
            self.writes.pop()

    def _finish(self) -> None:
        self.done = True
        self.writes, self.reads, self.scanned = [], {}, False

    def _read(self, name: str) -> str:
        key = name_key(name)
        self.reads[key] = name
        return key

    def _writable(self, name: str) -> Generation:
        """The table to change, if it is there and nobody else is ending it or has changed it."""
        generation = visible(self._tables.generations(self._read(name)), self.start_ts, self)
        if generation is None:
            raise NotFoundError("table", name)
        if any(version.entry is None for version in generation.rivals(self)):
            raise _conflict(name, "is being dropped or renamed by another transaction")
        if generation.changed_at() > self.start_ts:
            reason = "was changed since the transaction began"
            if generation.deleted_at != NEVER:
                reason = "was dropped since the transaction began, or renamed"
            raise _conflict(name, reason, generation.changed_at())
        return generation

    def _change(self, name: str, generation: Generation, entry: TableEntry | None) -> None:
        version = Version(entry, owner=self)
        self.writes.append(_Write(name_key(name), generation, version))
        generation.add(version)

    def _refuse_hidden(self, newest: Generation, name: str) -> None:
        """A name that is free in the transaction's view may have been taken outside of it."""
        if newest.owner not in (None, self):
            raise _conflict(name, "is being created by another transaction")
        if newest.changed_at() > self.start_ts:
            what = "created" if newest.deleted_at == NEVER else "created and dropped"
            reason = f"was {what} since the transaction began"
            raise _conflict(name, reason, newest.changed_at())


def _conflict(name: str, reason: str, winner_ts: int = 0) -> ConflictError:
    return ConflictError(f"the table {reason}", table=name, winner_ts=winner_ts)

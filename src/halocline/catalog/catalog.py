"""The catalog: which tables a timestamp can see.

    sub.commit(ts) --stamps--> versions --publish--> (last_ddl_ts, names)  one tuple, swapped
                                  |                           |
         table(name, older ts) ---'     table(name, ts) ------'  one dict lookup

Almost every question is about now, so the newest committed names stand ready in a dict that is
never changed: a commit copies it and swaps the tuple that holds it. Readers take that tuple once
and need no lock. A snapshot older than the last DDL asks the versions instead, which no lock
guards either (versions.py says why). Writers, that is DDL, replay and compaction, take `lock`.

The order inside a commit matters: all versions are stamped first, then the names are swapped. Who
holds the old tuple reads at a timestamp below the commit or does not see it; who gets the new one
finds all of it.

Invariants
- `last_ddl_ts` is the newest commit that changed the catalog; it never decreases.
- Table ids come from a sequence, are taken when a table is created, and are never issued twice;
  transactions that roll back leave gaps.
- Names are unique without regard to case at every timestamp.

The catalog is rebuilt by replaying its nodes (`apply`); a checkpoint keeps them (history.py).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Sequence

from halocline.catalog.ddl import CatalogTxn
from halocline.catalog.entries import TableEntry
from halocline.catalog.names import name_key
from halocline.catalog.replay import replay
from halocline.catalog.tables import Changes, TableMap
from halocline.ids import NEVER
from halocline.store.files import Buffer


class Catalog:
    """Versioned metadata of one database. Safe for many threads."""

    def __init__(self) -> None:
        self.versions = TableMap()
        self.lock = threading.RLock()
        self.floor = 0
        self.abandoned: deque[Changes] = deque()
        self.next_table_id = 1
        self._places = 0
        self._by_id: dict[int, TableEntry] = {}
        self._view: tuple[int, dict[str, TableEntry]] = (0, {})
        # A plain attribute beside the tuple, because every commit asks for it.
        self.last_ddl_ts = 0

    def table(self, name: str, ts: int) -> TableEntry | None:
        """The table of that name at `ts`, whatever its case."""
        # One tuple holds both, so that a commit between the two reads cannot mix old and new. The
        # dict has each table under its name and under its key: the usual spelling costs one lookup
        # and no casefold (75 ns in all; another spelling 180 ns, an older snapshot 750 ns).
        last_ddl_ts, names = self._view
        if ts >= last_ddl_ts:
            return names.get(name) or names.get(name_key(name))
        return self.versions.get(name, ts)

    def tables(self, ts: int) -> list[TableEntry]:
        """All tables at `ts`, by name."""
        last_ddl_ts, names = self._view
        if ts >= last_ddl_ts:
            found = list({entry.id: entry for entry in names.values()}.values())
        else:
            found = self.versions.all(ts)
        return sorted(found, key=lambda entry: entry.name)

    def table_by_id(self, table_id: int) -> TableEntry | None:
        """The newest state of a table, dropped ones included until they are hard-deleted."""
        return self._by_id.get(table_id)

    def begin(self, start_ts: int) -> CatalogTxn:
        """The sub-transaction of an engine transaction whose snapshot is `start_ts`."""
        return CatalogTxn(self, start_ts)

    def apply(self, node_type: int, payload: Buffer, commit_ts: int) -> TableEntry:
        """Replay a node about a table. Returns the table as it now stands."""
        return replay(self, node_type, payload, commit_ts)

    def compact(self, floor: int, *, pinned: Collection[int] = ()) -> list[TableEntry]:
        """Prune versions and hard-delete tables that were dropped at or before the floor.

        Pinned tables are still referenced and stay until a later call. Returns the
        tables that are gone, by id.
        """
        with self.lock:
            self.floor = max(self.floor, floor)
            ended = {entry.id for entry in self.versions.compact(self.floor, pinned)}
            # Of a table that was renamed only a name has ended.
            gone = [id for id in sorted(ended) if self._by_id[id].dropped_at <= self.floor]
            return [self._by_id.pop(id) for id in gone]

    # For the other files of this room; callers hold the lock.

    def all_tables(self) -> list[TableEntry]:
        """The newest state of every table, dropped ones included, in no order."""
        return list(self._by_id.values())

    def publish(self, changed: Sequence[TableEntry], commit_ts: int) -> None:
        """Make what a commit changed the newest state."""
        if not changed:
            return
        assert commit_ts >= self.last_ddl_ts, "commits arrive in the order of their timestamps"
        names = self._view[1].copy()  # 9 us for 1,000 tables; DDL is rare, lookups are not.
        # What ends goes first: in a replace the same name begins again.
        for entry in sorted(changed, key=lambda entry: entry.dropped_at):
            before = self._by_id.get(entry.id, entry)
            self._by_id[entry.id] = entry
            for name in (before.name, name_key(before.name)):
                if name in names and names[name].id == entry.id:
                    del names[name]
            if entry.dropped_at == NEVER:
                names[entry.name] = names[name_key(entry.name)] = entry
        self._view = (commit_ts, names)
        self.last_ddl_ts = commit_ts

    def take_id(self) -> int:
        """The id of a new table; it is never issued again, even if the transaction fails."""
        taken = self.next_table_id
        self.next_table_id = taken + 1
        return taken

    def take_place(self) -> int:
        """Behind what was altered before, here or in another transaction."""
        self._places += 1
        return self._places

    def note_id(self, used: int) -> None:
        """Replay has met this table id: never issue it again."""
        self.next_table_id = max(self.next_table_id, used + 1)

    def resume(self, next_table_id: int, last_ddl_ts: int, floor: int) -> None:
        """Go on where a catalog that was written down had come to."""
        self.note_id(next_table_id - 1)
        self.last_ddl_ts = max(self.last_ddl_ts, last_ddl_ts)
        self._view = (self.last_ddl_ts, self._view[1])
        self.floor = max(self.floor, floor)

    def reap(self) -> None:
        """Roll back the transactions that were not ended and are not held any more."""
        while self.abandoned:
            changes = self.abandoned.popleft()
            if not changes.done:
                changes.rollback()

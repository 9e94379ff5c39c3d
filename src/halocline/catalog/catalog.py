"""The catalog: which tables a timestamp can see.

    sub.commit(ts) --stamps--> built-in tables --publish--> (last_ddl_ts, names)  one tuple, swapped
                                     |                              |
            table(name, older ts) ---'        table(name, ts) ------'  one dict lookup

Almost every question is about now, so the newest committed names stand ready in a dict that is
never changed: a commit copies it and swaps the tuple that holds it. Readers take that tuple once
and need no lock. A snapshot older than the last DDL asks the versions instead, which no lock
guards either (versions.py says why). Writers, that is DDL, replay and compaction, take `lock`.

The order inside a commit matters: all nodes are stamped first, then the names are swapped. Who
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
from collections.abc import Collection, Mapping, Sequence

from halocline.catalog.builtin import Builtin
from halocline.catalog.ddl import CatalogTxn
from halocline.catalog.entries import DatabaseEntry, IndexEntry, ObjectEntry, TableEntry
from halocline.catalog.meta import MetaTxn
from halocline.catalog.names import name_key
from halocline.catalog.nodes import Buffer
from halocline.catalog.replay import replay_database, replay_table
from halocline.catalog.versions import Entry
from halocline.ids import NEVER


class Catalog:
    """Versioned metadata of one database. Safe for many threads."""

    def __init__(self) -> None:
        self.builtin = Builtin()
        self.lock = threading.RLock()
        self.floor = 0
        self.abandoned: deque[MetaTxn] = deque()
        self._by_id: dict[int, TableEntry] = {}
        self._next_id = {"table": 1, "index": 1, "database": 1}
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
        return self.builtin.tables.get(name_key(name), ts)

    def tables(self, ts: int) -> list[TableEntry]:
        """All tables at `ts`, by name."""
        last_ddl_ts, names = self._view
        if ts >= last_ddl_ts:
            found = list({entry.id: entry for entry in names.values()}.values())
        else:
            found = self.builtin.tables.all(ts)
        return sorted(found, key=lambda entry: entry.name)

    def table_by_id(self, table_id: int) -> TableEntry | None:
        """The newest state of a table, dropped ones included until they are hard-deleted."""
        return self._by_id.get(table_id)

    def indexes(self, table_id: int, ts: int) -> list[IndexEntry]:
        """The indexes of a table at `ts`, by id."""
        found = [entry for entry in self.builtin.indexes.all(ts) if entry.table_id == table_id]
        return sorted(found, key=lambda entry: entry.id)

    def begin(self, txn_id: int, start_ts: int) -> CatalogTxn:
        """The sub-transaction of an engine transaction whose snapshot is `start_ts`."""
        return CatalogTxn(self, txn_id, start_ts)

    def apply(self, node_type: int, payload: Buffer, commit_ts: int) -> TableEntry:
        """Replay a node about a table or an index. Returns the table as it now stands."""
        return replay_table(self, node_type, payload, commit_ts)

    def apply_database(self, node_type: int, payload: Buffer, commit_ts: int) -> DatabaseEntry:
        """Replay a node about the database itself."""
        return replay_database(self, node_type, payload, commit_ts)

    def compact(self, floor: int, *, pinned: Collection[int] = ()) -> list[TableEntry]:
        """Prune versions and hard-delete tables that were dropped at or before the floor.

        Pinned tables are still referenced by somebody and stay until a later call. Objects are
        left alone: whoever deletes their files compacts them. Returns the tables that are gone.
        """
        with self.lock:
            self.floor = max(self.floor, floor)
            self.builtin.databases.compact(self.floor)
            self.builtin.indexes.compact(self.floor, lambda entry: entry.table_id in pinned)
            gone = self.builtin.tables.compact(self.floor, lambda entry: entry.id in pinned)
            for entry in gone:
                del self._by_id[entry.id]
        return sorted(gone, key=lambda entry: entry.id)

    # For the other files of this room; callers hold the lock.

    def publish(self, changed: Sequence[Entry], commit_ts: int) -> None:
        """Make the DDL of a commit the newest state. Objects come and go without DDL."""
        ddl = [entry for entry in changed if not isinstance(entry, ObjectEntry)]
        if not ddl:
            return
        assert commit_ts >= self.last_ddl_ts, "commits arrive in the order of their timestamps"
        names = self._view[1].copy()  # 9 us for 1,000 tables; DDL is rare, lookups are not.
        tables = [entry for entry in ddl if isinstance(entry, TableEntry)]
        # What ends goes first: in a replace the same name begins again.
        for entry in sorted(tables, key=lambda entry: entry.dropped_at):
            self._by_id[entry.id] = entry
            for name in (entry.name, name_key(entry.name)):
                if entry.dropped_at == NEVER:
                    names[name] = entry
                else:
                    names.pop(name, None)
        self._view = (commit_ts, names)
        self.last_ddl_ts = commit_ts

    def take_id(self, kind: str) -> int:
        """The next id of that kind; it is never issued again, even if the transaction fails."""
        taken = self._next_id[kind]
        self._next_id[kind] = taken + 1
        return taken

    def note_id(self, kind: str, used: int) -> None:
        """Replay has met this id: never issue it again."""
        self._next_id[kind] = max(self._next_id[kind], used + 1)

    def sequences(self) -> dict[str, int]:
        """The next id of every kind."""
        return dict(self._next_id)

    def resume(self, next_ids: Mapping[str, int], last_ddl_ts: int, floor: int) -> None:
        """Go on where a catalog that was written down had come to."""
        for kind, next_id in next_ids.items():
            self.note_id(kind, next_id - 1)
        self.last_ddl_ts = max(self.last_ddl_ts, last_ddl_ts)
        self._view = (self.last_ddl_ts, self._view[1])
        self.floor = max(self.floor, floor)

    def reap(self) -> None:
        """Roll back the transactions that were dropped without a word."""
        while self.abandoned:
            store = self.abandoned.popleft()
            if not store.done:
                store.rollback()

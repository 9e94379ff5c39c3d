"""A built-in table of the catalog: rows in memory, one index, versions, repeatable read.

    CatalogTxn --insert/delete/update/query--> MetaTable --> index: key -> generations (versions.py)
                                                  |
                          MetaTxn  <--------------'  remembers what was written and what was read

The catalog is a small database of its own. Writers put uncommitted nodes straight into the index,
where they act as the lock on that key; a transaction sees what had committed when it began, plus
its own nodes. What each operation meets, in the order in which it asks:

                              insert            delete            update            query
    not there in my view      (see below)       NotFound          NotFound          NotFound
    there in my view          AlreadyExists     go on             go on             the value
    delete pending elsewhere  --                Conflict          Conflict          the value
    update pending elsewhere  --                add the node      Conflict          the old value
    changed since I began     Conflict*         Conflict*         Conflict*         the old value

An insert of a key that is not in its view still conflicts if another transaction is creating it, or
has created or dropped it since (*: with the winner's timestamp). A delete beside a pending update
adds its node, as the source document has it; both have read the row, so `prepare` lets only the
first of them commit.

Invariants
- At most one transaction has an uncommitted insert or delete of a key.
- Whatever was read is recorded, also when it was not there: `prepare` fails if a commit after the
  transaction's start has changed any of it (read-write anti-dependency).
- A row that is born and deleted in one transaction leaves nothing.

Callers of everything that takes a MetaTxn hold the catalog's lock; `get` and `all` need none.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from halocline.catalog.versions import NOBODY, Entry, Row, V, Version, visible
from halocline.errors import AlreadyExistsError, ConflictError, NotFoundError
from halocline.ids import NEVER

K = TypeVar("K", bound=Hashable)


def _any_key(key: object) -> bool:
    return True


class MetaTxn:
    """The changes and reads of one catalog transaction."""

    __slots__ = ("done", "reads", "scans", "start_ts", "txn_id", "writes")

    def __init__(self, txn_id: int, start_ts: int) -> None:
        self.txn_id = txn_id
        self.start_ts = start_ts
        self.done = False
        self.writes: list[_Write] = []
        self.reads: dict[tuple[MetaTable[Any, Any], Any], Any] = {}
        self.scans: list[tuple[MetaTable[Any, Any], Callable[[Any], bool]]] = []

    def prepare(self) -> None:
        """ConflictError if anything read here was changed by a commit after the start."""
        for (table, key), shown in self.reads.items():
            table.check_unchanged(self, key, shown)
        for table, where in self.scans:
            for key in table.keys(where):
                table.check_unchanged(self, key, key)

    def commit(self, commit_ts: int) -> list[Entry]:
        """Stamp every node. Returns what changed, without what was born and deleted here."""
        for write in self.writes:
            write.stamp(commit_ts)
        changed: list[Entry] = []
        for row, write in {write.row: write for write in self.writes}.items():
            row.stamp()
            if row.created_at == row.deleted_at:
                write.table.forget(write.key, row)
            else:
                changed.append(row.read(commit_ts, NOBODY))
        self._finish()
        return changed

    def rollback(self) -> None:
        """Take every uncommitted node out again. Doing it twice is harmless."""
        self.undo_to(0)
        self._finish()

    def undo_to(self, mark: int) -> None:
        """Take out the nodes that were written after the first `mark` ones."""
        while len(self.writes) > mark:
            self.writes[-1].undo()
            self.writes.pop()

    def _finish(self) -> None:
        self.done = True
        self.writes, self.reads, self.scans = [], {}, []


@dataclass(frozen=True, slots=True)
class _Write:
    """One uncommitted node: a whole row (version is None) or a node of its chain."""

    table: MetaTable[Any, Any]
    key: Any
    row: Row[Any]
    version: Version[Any] | None

    def stamp(self, commit_ts: int) -> None:
        if self.version is None:
            self.row.created_at = commit_ts
            self.row.owner = None
            return
        if self.version.value is None:
            self.row.deleted_at = commit_ts
        self.version.commit_ts = commit_ts
        self.version.owner = None

    def undo(self) -> None:
        if self.version is None:
            self.table.forget(self.key, self.row)
        else:
            self.row.remove(self.version)


class MetaTable(Generic[K, V]):
    """A built-in table. `kind` is what its rows are called in errors."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._index: dict[K, tuple[Row[V], ...]] = {}

    # Transactional operations. `shown` is the key as the user wrote it.

    def insert(self, txn: MetaTxn, key: K, value: V, shown: object = None) -> V:
        """Add a row (C-05)."""
        txn.reads[self, key] = shown = key if shown is None else shown
        rows = self._index.get(key, ())
        if visible(rows, txn.start_ts, txn) is not None:
            raise AlreadyExistsError(self.kind, str(shown))
        if rows:
            self._refuse_hidden(txn, rows[-1], key, shown)
        row: Row[V] = Row(value, owner=txn)
        # Noted first, done second: an interrupt in between leaves something that can be undone.
        txn.writes.append(_Write(self, key, row, None))
        self._index[key] = (*rows, row)
        return value

    def delete(self, txn: MetaTxn, key: K, shown: object = None) -> V:
        """End a row (C-06). Returns its last value."""
        row = self._writable(txn, key, key if shown is None else shown)
        value = row.read(txn.start_ts, txn)
        self._change(txn, key, row, None)
        return value

    def update(self, txn: MetaTxn, key: K, value: V, shown: object = None) -> V:
        """Give a row another value (C-07)."""
        shown = key if shown is None else shown
        row = self._writable(txn, key, shown)
        if row.rivals(txn):
            raise self._conflict(key, shown, "is being changed by another transaction")
        self._change(txn, key, row, value)
        return value

    def query(self, txn: MetaTxn, key: K, shown: object = None) -> V:
        """The value that the transaction sees (C-08)."""
        value = self.find(txn, key, shown)
        if value is None:
            raise NotFoundError(self.kind, key if shown is None else shown)
        return value

    def find(self, txn: MetaTxn, key: K, shown: object = None) -> V | None:
        """`query` for those who expect that the row may be missing."""
        txn.reads[self, key] = key if shown is None else shown
        row = visible(self._index.get(key, ()), txn.start_ts, txn)
        return None if row is None else row.read(txn.start_ts, txn)

    def scan(self, txn: MetaTxn, where: Callable[[K], bool] = _any_key) -> list[V]:
        """All rows with such keys. Recorded as a predicate: a row that appears later counts too."""
        txn.scans.append((self, where))
        rows = (visible(self._index[key], txn.start_ts, txn) for key in self.keys(where))
        return [row.read(txn.start_ts, txn) for row in rows if row is not None]

    # The committed view; no lock needed.

    def get(self, key: K, ts: int) -> V | None:
        """The committed value at `ts`."""
        row = visible(self._index.get(key, ()), ts, NOBODY)
        return None if row is None else row.read(ts, NOBODY)

    def all(self, ts: int) -> list[V]:
        """Every committed value at `ts`, in no order."""
        # list() of a dict view runs without giving up the interpreter: a commit cannot interfere.
        rows = (visible(rows, ts, NOBODY) for rows in list(self._index.values()))
        return [row.read(ts, NOBODY) for row in rows if row is not None]

    def generations(self) -> list[V]:
        """The newest committed value of every row, ended ones included, in no order."""
        rows = [row for rows in list(self._index.values()) for row in rows]
        return [row.read(NEVER - 1, NOBODY) for row in rows if row.created_at < NEVER]

    # Housekeeping.

    def keys(self, where: Callable[[K], bool] = _any_key) -> list[K]:
        return [key for key in list(self._index) if where(key)]

    def check_unchanged(self, txn: MetaTxn, key: K, shown: object) -> None:
        """ConflictError if a commit after the transaction's start has touched `key`."""
        for row in reversed(self._index.get(key, ())):
            if row.changed_at() > txn.start_ts:
                reason = "was read and has changed since the transaction began"
                raise self._conflict(key, shown, reason, row.changed_at())

    def forget(self, key: K, row: Row[V]) -> None:
        """Take one generation out of the index."""
        kept = tuple(other for other in self._index.get(key, ()) if other is not row)
        if kept:
            self._index[key] = kept
        else:
            self._index.pop(key, None)

    def compact(self, floor: int, keep: Callable[[V], bool] | None = None) -> list[V]:
        """Prune chains and hard-delete rows that ended at or before the floor (C-11).

        Rows that `keep` names are still referenced and stay, soft-deleted. Returns the deleted.
        """
        gone: list[V] = []
        for key, rows in list(self._index.items()):
            for row in rows:
                row.prune(floor)
                if row.deleted_at <= floor and not (keep and keep(row.value)):
                    self.forget(key, row)
                    gone.append(row.value)
        return gone

    def _writable(self, txn: MetaTxn, key: K, shown: object) -> Row[V]:
        """The row to change, if it is there and nobody else is ending it or has changed it."""
        txn.reads[self, key] = shown
        row = visible(self._index.get(key, ()), txn.start_ts, txn)
        if row is None:
            raise NotFoundError(self.kind, shown)
        if any(node.value is None for node in row.rivals(txn)):
            raise self._conflict(key, shown, "is being dropped by another transaction")
        if row.changed_at() > txn.start_ts:
            what = "changed" if row.deleted_at == NEVER else "dropped"
            reason = f"was {what} since the transaction began"
            raise self._conflict(key, shown, reason, row.changed_at())
        return row

    def _change(self, txn: MetaTxn, key: K, row: Row[V], value: V | None) -> None:
        version = Version(value, owner=txn)
        txn.writes.append(_Write(self, key, row, version))
        row.add(version)

    def _refuse_hidden(self, txn: MetaTxn, newest: Row[V], key: K, shown: object) -> None:
        """A key that is free in the transaction's view may have been taken outside of it."""
        if newest.owner not in (None, txn):
            raise self._conflict(key, shown, "is being created by another transaction")
        if newest.changed_at() > txn.start_ts:
            what = "created" if newest.deleted_at == NEVER else "created and dropped"
            reason = f"was {what} since the transaction began"
            raise self._conflict(key, shown, reason, newest.changed_at())

    def _conflict(self, key: K, shown: object, reason: str, winner_ts: int = 0) -> ConflictError:
        reason = f"the {self.kind} {reason}"
        if self.kind == "table":
            return ConflictError(reason, table=str(shown), winner_ts=winner_ts)
        return ConflictError(reason, key=key, winner_ts=winner_ts)

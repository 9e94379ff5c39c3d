"""Workspace: what one transaction does, table by table, until it commits.

A Workspace is all that the commit looks at; each of its tables is a TableChanges:

    rows      rows that were inserted one by one, in order, by their ids
    updates   committed RowID -> the row that shall succeed it and the columns that changed
    deletes   committed RowID -> its key
    parts     bulk changes in memory: rows that come, versions that end (ends.py), or both
    objects   larger ones: files that are written before the commit (objectparts.py)

A key is looked up in `own` (single rows), then in the parts from the newest on, then in own
objects, and only then in the table. A version that was found in an object or in the table counts
unless the transaction ends it. Updating an inserted row is delete + insert; so is updating a key
column. The commit record follows from all this: per table what ends, what is updated, what is
inserted (record.py).

Invariants
- An inserted row in memory has an id below zero, given in the order of inserting, those of a part
  side by side. Every other row that the transaction sees has its RowID, or that of the version
  which it is to succeed.
- A committed RowID is in at most one of `updates`, `deletes` and the live offsets of one part.
- After `truncate` the transaction reads an empty table, `state`; `home` is the one it will change.
- `own` has the id of every key whose row is in `rows` or `updates`, and no other, until the commit
  looks for conflicts.

Not here: reading the table under these changes (read/view.py), how a change enters (write.py),
conflicts (conflict.py), bytes (record.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from halocline.catalog import CatalogTxn, ObjectEntry, TableDdl, TableEntry
from halocline.errors import SchemaError, UsageError
from halocline.log.record import Serial
from halocline.read.view import Seen, View
from halocline.rows.memtree import Run
from halocline.rows.reshape import Reshape
from halocline.rows.state import TableState
from halocline.rows.tier import Tier
from halocline.rows.tokens import Token
from halocline.schema.batches import Int64Array
from halocline.schema.compiled import Row
from halocline.schema.schema import Schema
from halocline.txn.blind import Blind
from halocline.txn.ends import Ends, kept_places
from halocline.txn.objectparts import ObjectParts, WrittenFiles
from halocline.txn.reads import Reads
from halocline.txn.row_update import Addition, Single
from halocline.txn.turns import RowName


class Intent:
    """A committed row that shall be updated: its successor and the positions that changed."""

    __slots__ = ("added", "changed", "key", "row")

    def __init__(
        self, key: Any, row: Row, changed: set[int], added: Mapping[int, Any] | None = None
    ) -> None:
        self.key = key
        self.row = row
        self.changed = changed
        self.added = {} if added is None else dict(added)
        """Of the positions that changed, those that are only added to, and what is added."""

    def join(self, row: Row, changed: set[int], added: Mapping[int, Any], schema: Schema) -> None:
        """Another update of the same row. What was written stays written; amounts add up."""
        together = {at: amount for at, amount in self.added.items() if at not in changed}
        for at, amount in added.items():
            if at in self.added:
                try:
                    together[at] = schema.plus(at, self.added[at], amount)
                except SchemaError:
                    pass  # no amount of this type: a plain write of the sum that it has made
            elif at not in self.changed:
                together[at] = amount
        self.added = together
        self.row = row
        self.changed |= changed


class Sweep(NamedTuple):
    """Every live row of L0, as a TRUNCATE found it."""

    ends: Ends
    mark: tuple[int, Tier]
    """What the table looked like then: see check.py."""


class Part:
    """A bulk change in memory: rows that come (Arrow, with their keys sorted), versions that end,
    or both, and then the i-th row follows the i-th version."""

    __slots__ = ("dropped", "ends", "first_id", "run", "table")

    def __init__(
        self, *, table: pa.Table | None = None, run: Run | None = None, ends: Ends | None = None
    ) -> None:
        assert table is not None or ends is not None, "an empty part"
        self.table = table
        self.run = run
        self.ends = ends
        self.dropped = BitMap() if ends is None else ends.dropped
        """Places that were taken back."""
        self.first_id = 0
        """The id of the first row that is inserted; those of the others follow, downwards."""

    @property
    def is_insert(self) -> bool:
        return self.ends is None

    def ids(self, offsets: Int64Array | list[int]) -> Int64Array:
        """The ids of these rows."""
        if self.ends is not None:
            return self.ends.rowids[offsets]
        return self.first_id - np.asarray(offsets, dtype=np.int64)

    def find(self, key: Any) -> int:
        """Offset of the key's live row in this part, -1 when it has none."""
        if self.run is None:
            return -1
        for offset in self.run.find(key):
            if offset not in self.dropped:
                return offset
        return -1

    def row(self, schema: Schema, offset: int) -> Row:
        assert self.table is not None
        (row,) = schema.from_table(self.table.slice(offset, 1))
        return row

    def kept(self) -> Int64Array:
        """Offsets that were not taken back."""
        return kept_places(self.count, self.dropped)

    def __len__(self) -> int:
        return self.count - len(self.dropped)

    @property
    def count(self) -> int:
        """How many rows it has, with those that were taken back."""
        if self.ends is not None:
            return len(self.ends.rowids)
        assert self.table is not None
        return int(self.table.num_rows)


class TableChanges:
    """What one transaction does to one table."""

    __slots__ = (
        "_next_id",
        "blind",
        "deletes",
        "entry",
        "home",
        "objects",
        "own",
        "parts",
        "rows",
        "schema",
        "state",
        "summed",
        "sweep",
        "top",
        "truncated",
        "updates",
    )

    def __init__(self, state: TableState) -> None:
        self.state = state
        self.home = state
        self.entry = state.entry
        self.schema = state.schema
        self.rows: dict[int, Row] = {}
        self.own: dict[Any, int] = {}
        self.updates: dict[int, Intent] = {}
        self.deletes: dict[int, Any] = {}
        self.parts: list[Part] = []
        self.objects: ObjectParts | None = None
        self.blind: Blind | None = None
        """Set by jobs that decide at their commit what becomes of their keys."""
        self.truncated = False
        self.sweep: Sweep | None = None
        self.summed = False
        """Were sums made under the commit lock, after the record was?"""
        self.top = 0
        """Of a table with an identity column: the highest key that was inserted in memory."""
        self._next_id = -1

    def __bool__(self) -> bool:
        if self.rows or self.updates or self.truncated or self.blind:
            return True
        if self.objects:
            return not self._cancels_out(self.objects)
        return bool(self.deletes or any(len(part) for part in self.parts))

    def _cancels_out(self, objects: ObjectParts) -> bool:
        """Has it ended all the rows that it has put into objects, and nothing else?"""
        if any(len(part) and part.table is not None for part in self.parts):
            return False
        ended = self.ended()  # each once
        rows = sum(entry.stats.rows for entry in objects.data)
        return len(ended) == rows and bool(objects.owned(ended).all())

    # Writing, one row. The caller has checked the table.

    def insert(self, key: Any, row: Row) -> None:
        """A new row; `key` is None in a table without a primary key."""
        row_id = self._next_id
        self._next_id = row_id - 1
        self.rows[row_id] = row
        if key is not None:
            self.own[key] = row_id
            if self.home.sequence is not None and key > self.top:
                self.top = key

    def take_back(self, row_id: int, key: Any) -> None:
        """Delete of an inserted row in memory."""
        if self.rows.pop(row_id, None) is not None:
            self.own.pop(key, None)
            return
        (part,) = [p for p in self.parts if p.is_insert and 0 <= p.first_id - row_id < p.count]
        part.dropped.add(part.first_id - row_id)

    def update(
        self,
        rowid: int,
        key: Any,
        row: Row,
        changed: set[int],
        added: Mapping[int, Any] | None = None,
    ) -> None:
        """A committed row gets a successor; a second update of it joins the first.

        `added`: those of the changed columns that are only added to, and what is added.
        """
        intent = self.updates.get(rowid)
        if intent is None:
            self.updates[rowid] = Intent(key, row, changed, added)
        else:
            intent.join(row, changed, added or {}, self.schema)
        if key is not None:
            self.own[key] = rowid

    def delete(self, rowid: int, key: Any) -> None:
        """A committed row ends, whether or not this transaction had updated it."""
        if self.updates.pop(rowid, None) is not None:
            self.own.pop(key, None)
        self.deletes[rowid] = key

    def add_part(self, part: Part) -> None:
        """A bulk change. The keys it covers are not in `own`."""
        part.first_id = self._next_id
        self._next_id -= part.count
        if self.home.sequence is not None and part.run is not None and part.is_insert:
            self.top = max(self.top, part.run.last)
        self.parts.append(part)

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Bulk work that fails half-way, for want of room on the disk, leaves nothing behind."""
        parts, files = list(self.parts), None if self.objects is None else self.objects.files
        top = self.top
        bitmaps = [*(part.dropped for part in parts), *(ends.dropped for ends in self.all_ends())]
        dropped = [(bits, bits.copy()) for bits in bitmaps]
        try:
            yield
        except BaseException:
            self.parts, self.top = parts, top
            for bits, before in dropped:
                bits.clear()
                bits.update(before)
            if self.objects is not None:  # its job and RowIDs stay ours
                self.objects.files = files or WrittenFiles()
            raise

    def reshape(self) -> Reshape | None:
        """What becomes of objects by this transaction; None when nothing does."""
        if self.objects:
            return self.objects.reshape(truncate=self.truncated)
        return Reshape(self.entry.id, truncate=True) if self.truncated else None

    # Reading (see read/view.py).

    def view(self, snapshot: int) -> View:
        """The table at a snapshot, under these changes."""
        written = self.own or self.rows or self.updates or self.deletes
        own = self if written or self.parts or self.objects else None
        return View(self.state, snapshot, own)

    def row(self, key: Any) -> Seen | None:
        """Row and id of a key that was written; None when it was not, or when all that was done is
        to end many versions at once, which `ends` knows by their RowIDs."""
        own = self.own.get(key)
        if own is not None:
            return (self.rows[own] if own < 0 else self.updates[own].row), own
        for part in reversed(self.parts):
            offset = part.find(key)
            if offset >= 0:
                return part.row(self.schema, offset), int(part.ids([offset])[0])
        if self.objects is not None:
            for rowid, row in self.objects.find(key):
                if not self.ends(rowid):
                    return row, rowid
        return None

    def show(self, keys: Iterable[Any] | None = None) -> None:
        """The caller is about to see these rows, or all: sums in them become plain writes."""
        if keys is None:
            shown = list(self.updates.values())
        else:
            found = (self.own.get(key, 0) for key in keys)
            shown = [self.updates[row_id] for row_id in found if row_id in self.updates]
        for intent in shown:
            intent.added.clear()

    def data(self) -> Sequence[ObjectEntry]:
        """Objects with rows that were written."""
        return () if self.objects is None else self.objects.data

    def tables(self) -> list[tuple[pa.Table, Int64Array]]:
        """Rows in memory with their ids: updated ones, inserted ones, parts."""
        found: list[tuple[pa.Table, Int64Array]] = []
        schema = self.schema
        if self.updates:
            rows = [intent.row for intent in self.updates.values()]
            found.append((schema.to_table(rows), np.array(list(self.updates), dtype=np.int64)))
        if self.rows:
            table = schema.to_table(list(self.rows.values()))
            found.append((table, np.array(list(self.rows), dtype=np.int64)))
        for part in self.parts:
            if part.table is not None and len(part):
                kept = part.kept()
                table = part.table if not part.dropped else part.table.take(kept)
                found.append((table, part.ids(kept)))
        return found

    def between(
        self, low: Any, high: Any, without: Int64Array, *, reverse: bool, limit: int | None
    ) -> list[pa.Table]:
        """Rows that were written with low <= key < high, in no order."""
        keys = {k for k in self.own if (low is None or k >= low) and (high is None or k < high)}
        for part in self.parts:
            if part.run is not None:
                keys.update(part.run.slice(low, high))
        objects = self.objects
        found = [own for own in map(self.row, keys) if own is not None]
        rows = [row for row, at in found if row is not None and not (objects and objects.owns(at))]
        tables = [self.schema.to_table(rows)] if rows else []
        if objects is not None:
            tables += objects.between(low, high, without, reverse=reverse, limit=limit)
        return tables

    @property
    def inserts_in_bulk(self) -> bool:
        """Are there keys that were inserted otherwise than one by one?"""
        if self.objects is not None and self.objects.inserts:
            return True
        return any(part.is_insert for part in self.parts)

    def all_ends(self) -> Iterator[Ends]:
        """What is ended in bulk, in memory and by tombstone objects."""
        yield from (part.ends for part in self.parts if part.ends is not None)
        if self.objects is not None:
            yield from (one.ends for one in self.objects.endings)

    def ends(self, rowid: int) -> bool:
        """Does this transaction end or replace this version?"""
        if rowid in self.deletes or rowid in self.updates:
            return True
        return any(ends.find(rowid) >= 0 for ends in self.all_ends())

    def leave(self, rowid: int) -> frozenset[int]:
        """Take a version out of the bulk change that ends it; returns what that one has changed."""
        for ends in self.all_ends():
            if (place := ends.find(rowid)) >= 0:
                ends.drop([place])
                return ends.changed
        return frozenset()

    def inserted_keys(self) -> list[Any]:
        """Keys of rows that were inserted one by one."""
        return [key for key, row_id in self.own.items() if row_id < 0]

    def ended(self) -> Int64Array:
        """RowIDs that this transaction ends or replaces, ascending: committed ones, and those of
        rows in own objects."""
        singles = np.array([*self.updates, *self.deletes], dtype=np.int64)
        bulks = [ends.live() for ends in self.all_ends()]
        return np.sort(np.concatenate([singles, *bulks]))


class Workspace:
    """All that one transaction will commit."""

    __slots__ = (
        "by_name",
        "changes",
        "created",
        "ddl",
        "dropped",
        "keeps_token",
        "reads",
        "serial",
        "serializable",
        "snapshot",
        "ticket",
        "token",
        "waits",
    )

    def __init__(self) -> None:
        self.changes: dict[int, TableChanges] = {}
        self.by_name: dict[str, TableChanges] = {}
        """Changes by the names that the caller has used."""
        self.created: dict[int, TableState] = {}
        self.dropped: frozenset[int] = frozenset()
        self.ddl: TableDdl | None = None
        self.reads: dict[int, Reads] = {}
        """What was read, by table, and must not have changed by the commit."""
        self.serializable = False
        """Is everything that is read to be checked? Otherwise only rows that were locked."""
        self.token: Token | None = None
        self.serial: Serial | None = None
        """Of a transaction that another process has sent."""
        self.keeps_token = False
        """Is the token to be remembered although nothing is written?"""
        self.snapshot = 0
        """Set by the commit, as is `waits`: may it return before the log is durable?"""
        self.waits = True
        self.ticket = 0
        """Whose turn it is at contended rows, if it has one: set by the commit, too."""

    def take(self, own: Single | Addition) -> None:
        """The one row that was kept aside until now."""
        if isinstance(own, Addition):
            changes = self.table(own.state)
            changes.update(own.target, own.key, own.row, set(own.changed), own.added)
            return
        state, key, row, rowid, changed = own
        if rowid:
            self.table(state).update(rowid, key, row, set(changed))
        else:
            self.table(state).insert(key, row)

    def __bool__(self) -> bool:
        """Is there anything to commit?"""
        if self.keeps_token or self.created or self.dropped:
            return True
        if self.ddl is not None and (self.ddl.altered or self.ddl.indexed):
            return True
        return any(self.changes.values())

    @property
    def is_untouched(self) -> bool:
        """Has nothing been read that is to be checked, and nothing written?"""
        return not (self.changes or self.reads or self.created or self.dropped or self.ddl)

    @property
    def asks_catalog(self) -> bool:
        """Must names be looked up through the catalog's part of the transaction?"""
        return self.ddl is not None or self.serializable

    @property
    def own_ddl(self) -> CatalogTxn | None:
        """The catalog's part of the transaction, of one that is committed in this process."""
        assert self.ddl is None or isinstance(self.ddl, CatalogTxn)
        return self.ddl

    def table(self, state: TableState) -> TableChanges:
        """The changes of a table."""
        changes = self.changes.get(state.table_id)
        if changes is None:
            changes = self.changes[state.table_id] = TableChanges(state)
        return changes

    def reads_of(self, state: TableState) -> Reads:
        """What was read of a table."""
        return self.reads.setdefault(state.table_id, Reads())

    def create(self, state: TableState) -> None:
        """A table is created."""
        self.created[state.table_id] = state
        self.by_name.clear()

    def check_untouched(self, entry: TableEntry) -> None:
        """UsageError if a table cannot be altered here because something was done to it."""
        if entry.id in self.created or self.changes.get(entry.id):
            reason = "was created" if entry.id in self.created else "has been written"
            raise UsageError(
                f"table {entry.name!r} {reason} in this transaction: alter it in another one"
            )

    def created_state(self, entry: TableEntry) -> TableState | None:
        """The state of a table that is created here; UsageError for one that is altered here."""
        if self.ddl is not None and entry.id in self.ddl.altered:
            raise UsageError(
                f"table {entry.name!r} is altered in this transaction: commit, then go on with it"
            )
        return self.created.get(entry.id)

    def truncate(self, changes: TableChanges, empty: TableState) -> None:
        """A table is emptied: nothing is left of what was done to it but that."""
        fresh = TableChanges(empty)
        fresh.home = changes.home
        fresh.truncated = changes.entry.id not in self.created
        self.changes[changes.entry.id] = fresh
        self.by_name.clear()

    def drop(self, table_id: int) -> None:
        """A table is dropped: nothing is left of what was done to it."""
        self.changes.pop(table_id, None)
        if self.created.pop(table_id, None) is None:
            self.dropped |= {table_id}
        self.by_name.clear()


def is_written(own: Single | Addition | Workspace | None, row: RowName) -> bool:
    """Is this row among those that a transaction writes one by one?"""
    if isinstance(own, Workspace):
        changes = own.changes.get(row[0])
        keys = () if changes is None else (*changes.own, *changes.deletes.values())
        return any(changes.schema.key_bytes(key) == row[1] for key in keys) if changes else False
    if own is None:
        return False
    state, key = (own.state, own.key) if isinstance(own, Addition) else own[:2]
    return row == (state.table_id, state.schema.key_bytes(key))

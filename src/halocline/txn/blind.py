"""Blind commits: bulk upsert, ignore and delete say what to do, and the commit finds to which rows.

    at the snapshot   keys looked up, objects written as if nobody else were there
    at the commit     each of our keys that others have touched since: which version is live now?

| the job     | the key is live now as V            | the key is gone now                  |
|-------------|-------------------------------------|--------------------------------------|
| upsert      | V ends, our row takes its place     | our row is an insert                 |
| upsert, some columns | V ends, V with our columns takes its place | our columns, null else |
| ignore      | our row is born dead                | our row is an insert                 |
| delete      | V ends                              | nothing                              |

So a job behaves as if it had run at its commit, and single rows that others write never make it
fail. What is in a file stays there: a row that is not wanted is born dead (a tombstone of the same
commit), a row that has to look different goes into the commit record, and a version that ends in
place of the one that the file names goes into the record too: that is a retarget. The tombstone in
the file is overtaken then. It does no harm: the earliest tombstone of a version counts.

A key is known by its `slot`: the RowID that one of the job's files has for it. An ignored row, and
each key of a delete, stands in a side file that never joins the table.

Invariants
- `fixes` holds every own key that others have touched, as it stands after the last round.
- What was encoded is hardly ever taken back: `late_nodes` adds to it, so the last round, under the
  lock, costs what others did since the round before and not what the job is about.

Where others wrote single rows, memory alone tells what is live: whatever touched a key last has
left a young version in the memtree, or a tombstone and no such version. So a round reads no object
of the table; it does only when others have brought objects.

A TRUNCATE that ended objects wins over a job that found rows of the table: nothing is left of what
it was told to update, to ignore or to delete. One that found none goes on.

Not here: which keys others have touched (since.py), when they are looked at (check.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from halocline.catalog.entries import ObjectEntry
from halocline.errors import ConflictError
from halocline.read.guard import check_rows
from halocline.read.locate import Keys, key_columns, locate_many
from halocline.rows.nodes import Append, Delete, RowNode, Update, key_run
from halocline.rows.state import TableState
from halocline.schema.batches import Int64Array
from halocline.schema.compiled import Row
from halocline.schema.schema import Schema
from halocline.txn.objectparts import ObjectParts, file_of
from halocline.txn.since import Delta, keys_of, live_since, plain, read_row, touched

Mode = Literal["upsert", "ignore", "delete"]
INSERTED, REPLACED, ABSENT, HELD = range(4)
"""What the job made of a key at its snapshot: two kinds of rows in data objects, and two kinds of
keys in side files, of which the table had none or had one."""
KEYS_MAX: Final = 32_000_000
"""Integer keys that are held in memory for the last round; of larger jobs blocks are read."""


class Counts(NamedTuple):
    """What a job came to."""

    inserted: int
    updated: int
    deleted: int


class Fix:
    """One key of ours that others have touched, and what is to become of it."""

    __slots__ = ("dead", "key", "kind", "row", "target")

    def __init__(self, key: Any, kind: int) -> None:
        self.key = key
        self.kind = kind
        self.target = 0
        """The version that is live now, if it has to end."""
        self.row: Row | None = None
        """A row that goes into the record, in place of the one in the file."""
        self.dead = False
        """The row in the file is born dead."""


class Blind:
    """One blind job in one table, from the end of its tasks to its commit."""

    def __init__(
        self,
        mode: Mode,
        parts: ObjectParts,
        changed: frozenset[int],
        *,
        absent: Sequence[ObjectEntry] = (),
        held: Sequence[ObjectEntry] = (),
    ) -> None:
        self.mode = mode
        self.parts = parts
        self.changed = changed
        """Positions of the columns that an upsert writes."""
        kinds = ((parts.inserts, INSERTED), (parts.successors, REPLACED), (absent, ABSENT))
        pairs = [(entry, kind) for entries, kind in (*kinds, (held, HELD)) for entry in entries]
        self.files: list[tuple[ObjectEntry, int]] = pairs
        self.fixes: dict[int, Fix] = {}
        self._ints: list[Int64Array] | None = None
        self._origins: tuple[Int64Array, Int64Array] | None = None
        # What is in the record already: where each row stands, which slots are dead there; and
        # what has changed since.
        self._sent: dict[int, tuple[RowNode, int]] = {}
        self._buried: set[int] = set()
        self._fresh: set[int] = set()
        self.decided: Counts | None = None
        """What it came to, if it was committed in another process."""

    def __bool__(self) -> bool:
        return bool(self.files)

    def carry_over(self, changed: frozenset[int]) -> None:
        """The table has another shape now: every key is decided again, in that."""
        self.changed, self.fixes, self._origins = changed, {}, None

    @property
    def whole(self) -> bool:
        """Do its rows have all columns?"""
        schema = self._schema
        return len(self.changed) + len(schema.key_set) == len(schema.columns)

    @property
    def met_rows(self) -> bool:
        """Did it find rows of the table at its snapshot?"""
        return any(kind in (REPLACED, HELD) for _, kind in self.files)

    @property
    def needs_rows(self) -> bool:
        """Can a fix need the row of a file?"""
        return self.mode == "ignore" or (self.mode == "upsert" and not self.whole)

    # Which keys are ours.

    def load_keys(self) -> None:
        """Hold integer keys in memory, so that the last round reads no file."""
        schema, reader = self.parts.state.schema, self.parts.state.shelf.reader
        rows = sum(entry.stats.rows for entry, _ in self.files)
        if self._ints is None and schema.int_key and rows <= KEYS_MAX:
            names = list(schema.primary_key)
            tables = [
                reader.read(file_of(entry), schema, columns=names, hidden=())
                for entry, _ in self.files
            ]
            self._ints = [np.ascontiguousarray(schema.int_keys(table)) for table in tables]

    @property
    def brings_objects(self) -> bool:
        """Only with objects may tombstones come that are overtaken: readers look out for them."""
        return bool(self.parts.data or self.parts.endings)

    @property
    def takes_back(self) -> bool:
        """Must a row leave the record that nothing takes the place of? Added to it, a tombstone
        would do that for scans; but the memtree would name the dead row, not the live one."""
        return self.mode == "ignore" and not self._sent.keys().isdisjoint(self._fresh)

    @property
    def may_add(self) -> bool:
        """May the last round add to the record, without reading a file?"""
        return self.brings_objects and not self.needs_rows and self._ints is not None

    def find(self, keys: Sequence[Any] | Int64Array) -> list[tuple[int, int, int]]:
        """(place in `keys`, slot, kind) for each of these keys that is ours."""
        found = []
        for (entry, kind), hits in zip(self.files, self._hits(keys), strict=True):
            places, numbers = hits
            first = entry.stats.rowid_min
            slots = (numbers + first).tolist()
            found += [(at, slot, kind) for at, slot in zip(places.tolist(), slots, strict=True)]
        return found

    def _hits(self, keys: Sequence[Any] | Int64Array) -> Iterable[tuple[Int64Array, Int64Array]]:
        """For each file: places in `keys`, and the numbers of their rows."""
        schema, finder = self.parts.state.schema, self.parts.state.finder
        if self._ints is not None:
            wanted = np.asarray(keys, dtype=np.int64)
            for ints in self._ints:
                at = np.minimum(np.searchsorted(ints, wanted), len(ints) - 1)
                places = np.flatnonzero(ints[at] == wanted)
                yield places, at[places]
            return
        assert finder is not None
        plain = keys.tolist() if isinstance(keys, np.ndarray) else keys
        batch = finder.batch(schema.key_table(plain))
        for entry, _ in self.files:
            hits = finder.find_many(file_of(entry), batch)
            yield hits.positions, hits.numbers

    def may_hold(self, key: Any) -> bool:
        """Can the key be ours? Reads no file."""
        finder = self.parts.state.finder
        assert finder is not None
        return any(finder.may_hold(file_of(entry), key) for entry, _ in self.files)

    # What becomes of them.

    def settle(
        self,
        hits: Sequence[tuple[int, int, int]],
        keys: Sequence[Any] | Int64Array,
        newest: Sequence[int],
        row_of: Callable[[Any, int], Row],
    ) -> None:
        """Decide again for own keys that were touched; `newest` are their live versions, or 0."""
        own = self._own_rows([slot for _, slot, _ in hits]) if self.needs_rows else {}
        for (at, slot, kind), target in zip(hits, newest, strict=True):
            fix = self.fixes.get(slot)
            if fix is None:
                if kind == REPLACED and not self.whole and target == self._origin(slot):
                    continue  # nobody has ended it
                key = keys[at]
                fix = self.fixes[slot] = Fix(
                    key.item() if isinstance(key, np.integer) else key, kind
                )
            self._fresh.add(slot)
            if self.mode == "ignore":
                # A row that is dead once stays so: if it is wanted after all, a copy comes.
                fix.dead |= kind == INSERTED and target > 0
                copied = not target and (fix.dead or kind == HELD)
                fix.row = own[slot] if copied else None
                self._check(fix.row)
                continue
            fix.target = target
            if self.needs_rows:
                fix.dead = True
                base = row_of(fix.key, target) if target else None
                fix.row = self._rebased(own[slot], base)
                self._check(fix.row)

    def _check(self, row: Row | None) -> None:
        """CheckError when a row that is put together at the commit breaks a check."""
        if row is not None:
            check_rows(self._schema, (row,), self.parts.state.entry.name)

    def _rebased(self, own: Row, base: Row | None) -> Row:
        schema, defaults = self._schema, self._schema.defaults
        kept = self.changed | schema.key_set
        if base is None:
            given = [defaults.get(column.name) for column in schema.columns]
            base = tuple(None if default is None else default.one() for default in given)
        return tuple(value if at in kept else base[at] for at, value in enumerate(own))

    def _own_rows(self, slots: Sequence[int]) -> dict[int, Row]:
        """Rows of our files, those of one file at once."""
        state, wanted = self.parts.state, np.sort(np.array(slots, dtype=np.int64))
        rows: dict[int, Row] = {}
        for entry, _ in self.files:
            stats = entry.stats
            low, high = np.searchsorted(wanted, [stats.rowid_min, stats.rowid_max + 1]).tolist()
            if low < high:
                assert state.finder is not None
                table = state.finder.take(file_of(entry), wanted[low:high] - stats.rowid_min)
                found = state.schema.from_table(table)
                rows.update(zip(wanted[low:high].tolist(), found, strict=True))
        return rows

    def _origin(self, slot: int) -> int:
        """The version that the row at a slot was built from."""
        if self._origins is None:
            every = [one.ends for one in self.parts.endings]
            ends = [one for one in every if one.successors is not None]
            after = np.concatenate([one.successors for one in ends])
            order = np.argsort(after)
            targets = np.concatenate([one.rowids for one in ends])
            self._origins = after[order], targets[order]
        after, targets = self._origins
        return int(targets[np.searchsorted(after, slot)])

    # What the record says of it.

    def nodes(self) -> list[RowNode]:
        """All fixes as nodes of the commit record, in the bulk form: some of these tombstones may
        be overtaken before the commit, and a run of them replaces none that is there already."""
        self._sent, self._buried, self._fresh = {}, set(), set()
        return self._nodes_of(self.fixes)

    def late_nodes(self, nodes: Sequence[RowNode]) -> list[RowNode]:
        """What has changed since `nodes()`. Caller holds the commit lock; no file is read.

        `nodes` are all that the record holds so far. RowIDs of their rows are known under the lock.
        """
        if not self._fresh:
            return []
        late = {slot: self.fixes[slot] for slot in self._fresh}
        gone = [slot for slot in late if slot in self._sent]
        self._fresh = set()
        rowids = self._rowids_of(nodes, gone)
        self._sent = {slot: place for slot, place in self._sent.items() if slot not in rowids}
        return self._nodes_of(late, {rowids[slot]: late[slot].key for slot in gone})

    def _rowids_of(self, nodes: Sequence[RowNode], slots: Sequence[int]) -> dict[int, int]:
        """RowIDs that rows of the record will get."""
        state = self.parts.state
        first, starts = state.next_rowid, {}
        for node in nodes:
            if node.table_id == state.table_id:
                starts[id(node)] = first
                first += node.count
        places = ((slot, *self._sent[slot]) for slot in slots)
        return {slot: starts[id(node)] + offset for slot, node, offset in places}

    def _nodes_of(
        self, fixes: Mapping[int, Fix], dead: Mapping[int, Any] | None = None
    ) -> list[RowNode]:
        ends: list[tuple[int, int, Any]] = [(rowid, 0, key) for rowid, key in (dead or {}).items()]
        updates: list[tuple[int, int, Fix]] = []
        inserts: list[tuple[int, Fix]] = []
        for slot, fix in fixes.items():
            if fix.dead and slot not in self._buried:
                self._buried.add(slot)
                ends.append((slot, 0, fix.key))
            if fix.row is not None:
                if fix.target:
                    updates.append((fix.target, slot, fix))
                else:
                    inserts.append((slot, fix))
            elif fix.target:
                ends.append((fix.target, slot if self.mode == "upsert" else 0, fix.key))
        return [*self._ends(ends), *self._updates(updates), *self._inserts(inserts)]

    def _ends(self, ends: list[tuple[int, int, Any]]) -> list[RowNode]:
        if not ends:
            return []
        ends.sort(key=lambda one: one[0])
        targets = np.array([one[0] for one in ends], dtype=np.int64)
        node = Delete(self.parts.state.table_id, targets, [key for _, _, key in ends])
        if self.mode == "upsert":
            node.successors = np.array([one[1] for one in ends], dtype=np.int64)
            node.changed = self._schema.ids_of(self.changed)
        return [node]

    def _updates(self, updates: list[tuple[int, int, Fix]]) -> list[RowNode]:
        if not updates:
            return []
        updates.sort(key=lambda one: one[0])
        table = self._schema.to_table([fix.row or () for _, _, fix in updates])
        node = Update(
            self.parts.state.table_id,
            np.array([target for target, _, _ in updates], dtype=np.int64),
            self._schema.ids_of(self.changed),
            table=table,
            keys=[fix.key for _, _, fix in updates],
            run=key_run(table, self._schema),
        )
        self._sent |= {slot: (node, at) for at, (_, slot, _) in enumerate(updates)}
        return [node]

    def _inserts(self, inserts: list[tuple[int, Fix]]) -> list[RowNode]:
        if not inserts:
            return []
        table = self._schema.to_table([fix.row or () for _, fix in inserts])
        run = key_run(table, self._schema)
        node = Append(self.parts.state.table_id, table=table, run=run)
        self._sent |= {slot: (node, at) for at, (slot, _) in enumerate(inserts)}
        return [node]

    @property
    def _schema(self) -> Schema:
        return self.parts.state.schema

    def counts(self) -> Counts:
        """How many rows the job has inserted, updated and deleted, others considered."""
        if self.decided is not None:
            return self.decided
        rows = [0, 0, 0, 0]
        for entry, kind in self.files:
            rows[kind] += entry.stats.rows
        came = sum(not fix.target for fix in self.fixes.values() if fix.kind in (REPLACED, HELD))
        went = sum(fix.target > 0 for fix in self.fixes.values() if fix.kind in (INSERTED, ABSENT))
        if self.mode == "delete":
            return Counts(0, 0, rows[HELD] - came + went)
        if self.mode == "ignore":
            dead = sum(fix.dead for fix in self.fixes.values())
            copies = sum(fix.row is not None for fix in self.fixes.values())
            return Counts(rows[INSERTED] - dead + copies, 0, 0)
        return Counts(rows[INSERTED] + came - went, rows[REPLACED] - came + went, 0)


class NeverFails:
    """The policy of a blind job: keys that others have touched are decided again."""

    __slots__ = ("_blind", "_snapshot")

    locked_max: Final = 1024
    """So many keys are looked at under the lock, at 3 us each."""
    walks: Final = True

    def __init__(self, blind: Blind, snapshot: int) -> None:
        self._blind = blind
        self._snapshot = snapshot

    def prepare(self, since: int) -> None:
        """Load the keys, once somebody has touched the table."""
        if self._blind.parts.state.last_ts > since:
            self._blind.load_keys()

    def decide(self, delta: Delta, since: int) -> None:
        """Decide again for keys that rows in memory touch, and objects that others have brought."""
        state = self._blind.parts.state
        tier = state.shape.tier
        if tier.last_truncate_ts > self._snapshot and self._blind.met_rows:
            reason, name = "the table was truncated by another transaction", state.entry.name
            raise ConflictError(reason, table=name, winner_ts=tier.last_truncate_ts)
        exact = tier.last_bulk_ts > since
        self._meet(touched(state, delta), since, delta.until, exact=exact)
        if not exact:
            return
        names, reader = list(state.schema.primary_key), state.shelf.reader
        for entry in tier.bulk_since(since):
            if entry.created_at <= delta.until:
                for table in reader.scan(file_of(entry), state.schema, columns=names, hidden=()):
                    self._meet(keys_of(state, table), since, delta.until, exact=True)

    def decide_inside(self, delta: Delta, since: int) -> bool:
        """Decide again for a few keys; False when a file would have to be read."""
        blind = self._blind
        keys = touched(blind.parts.state, delta)
        if not blind.may_add and any(blind.may_hold(plain(key)) for key in keys):
            return False
        self._meet(keys, since, delta.until, exact=False)
        return True

    def ready(self) -> bool:
        """Nothing is ever left to be done outside."""
        return True

    def finish(self) -> bool:
        """Tell whether what was prepared stays as it is, and what is new is added to it."""
        return not self._blind.brings_objects or self._blind.takes_back

    def _meet(self, keys: Keys, since: int, until: int, *, exact: bool) -> None:
        """Decide again for those of the keys that are the job's."""
        hits = self._blind.find(keys) if len(keys) else []
        if not hits:
            return
        state = self._blind.parts.state
        places = np.array([at for at, _, _ in hits], dtype=np.int64)
        if exact:
            table = key_columns(state.schema, keys, places)
            newest = locate_many(state, keys_of(state, table), until, table=table).rowids.tolist()
        else:
            newest = [_live(state, plain(keys[at]), since) for at in places.tolist()]

        def row_of(key: Any, rowid: int) -> Row:
            return read_row(state, key, rowid)

        self._blind.settle(hits, keys, newest, row_of)


def _live(state: TableState, key: Any, since: int) -> int:
    """The live version of a key that single rows touched after `since`, 0 when there is none.

    Such a version is as young as the touch. An older one that memory knows has ended: perhaps in an
    object, which memory need not know.
    """
    rowid = state.tree.newest(key)
    return rowid if rowid and live_since(state, rowid, state.deletes.find) > since else 0

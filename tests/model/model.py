"""The model: what a database must do, written as plainly as it can be.

    Model    the tables that ever were, the newest timestamp, the floor, tokens, commit times
    Table    one table from its creation to its drop, with every version of every row
    Version  one row from the commit that made it to the commit that ended it
    Txn      a snapshot, private changes, and what it has read

Nothing here is fast, shared with the engine, or ever thrown away. A version counts at a timestamp S
iff begin <= S < end; a table likewise. That is the whole of visibility. The rest is rules:

Writing. A call is checked as a whole against what its transaction sees, and does all or nothing. A
key that is seen cannot be inserted; a row that is not seen cannot be updated. An upsert updates a
row that is seen and inserts one that is not. An update that changes the key deletes one row and
inserts another. An update of a row of one's own is no more than a different insert.

Commit. What others have committed since the snapshot wins:
- a row that I delete must not have changed, in any column;
- a row that I update must not have been deleted, and no column that I write must have been written,
  equal value or not; then my columns are laid over the newest version;
- a column that I only add to may have been added to by others, but not written; amounts are added
  to the newest version. Once I have read a sum, it is a column that I write;
- a key that I insert must not be live;
- a table that I change must not have been dropped;
- a table that I truncate ends as it is then: nothing that others did to its rows is in the way;
- if I am serializable, nothing that I have read may have changed: keys, key ranges, whole tables,
  and the names of tables. An error that tells whether a row or table is there is a read too.

DDL. Names are fought over at once: creating a name that another open transaction has created, or
that was created or dropped since my snapshot, is a conflict, and so is dropping a table that
another is dropping or has dropped. From my first DDL on, every name I look up must still mean the
same when I commit.

A transaction that has written nothing commits as nothing: no timestamp, no conflict.

`Refused` names the errors the engine may answer with. There is more than one when a call is wrong
in more than one way, because nobody promises which is noticed first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from halocline import (
    AlreadyExistsError,
    ConflictError,
    DuplicateKeyError,
    NotFoundError,
    SchemaError,
    SnapshotExpiredError,
    UsageError,
)
from tests.model.shapes import Key, Row, Shape, Where

FOREVER = 1 << 62
Token = str | tuple[str, int]
Verdict = Literal["commits", "conflicts", "either"]


class Refused(Exception):
    """The call must fail, with one of these errors."""

    def __init__(self, *errors: type[Exception]) -> None:
        super().__init__(*errors)
        self.errors = errors


@dataclass(eq=False)
class Version:
    """One row for one span of time. Until it is committed it belongs to its transaction alone."""

    row: Row
    begin: int = FOREVER
    end: int = FOREVER
    successor: Version | None = None
    """The version that an update put in its place."""
    changed: frozenset[str] = frozenset()
    """The columns that update wrote; those that it only added to have a plus in front."""
    succeeds: bool = False

    def newest(self) -> Version:
        version = self
        while version.successor is not None:
            version = version.successor
        return version


@dataclass(eq=False)
class Table:
    """One table; a name that is dropped and created again is another table."""

    name: str
    shape: Shape
    begin: int = FOREVER
    end: int = FOREVER
    truncated_at: int = 0
    versions: list[Version] = field(default_factory=list)

    def at(self, ts: int) -> list[Version]:
        return [version for version in self.versions if version.begin <= ts < version.end]

    def changed_since(self, ts: int, covers: Callable[[Row], bool]) -> bool:
        """Whether any row that `covers` names began or ended after `ts`."""
        return any(
            covers(version.row)
            for version in self.versions
            if version.begin > ts or ts < version.end < FOREVER
        )


@dataclass(eq=False)
class Work:
    """What one transaction does to one table."""

    inserted: list[Version] = field(default_factory=list)
    updated: dict[Version, tuple[Row, frozenset[str]]] = field(default_factory=dict)
    added: dict[Version, dict[str, int]] = field(default_factory=dict)
    """Amounts of the columns of updated rows that were only added to."""
    deleted: dict[Version, None] = field(default_factory=dict)
    truncated: bool = False
    """Whatever is there at commit ends, but for what is inserted here."""

    def __bool__(self) -> bool:
        return bool(self.inserted or self.updated or self.deleted or self.truncated)


@dataclass(eq=False)
class Txn:
    """One transaction. It is open until it is committed, rolled back, or its database is closed."""

    snapshot: int
    serializable: bool = False
    read_only: bool = False
    token: Token | None = None
    known_ts: int = 0
    """The commit that had brought the same token before this transaction began."""
    open: bool = True
    work: dict[Table, Work] = field(default_factory=dict)
    created: list[Table] = field(default_factory=list)
    dropped: list[Table] = field(default_factory=list)
    claimed: set[str] = field(default_factory=set)
    """Names it has created; they stay its own until it ends, also if it drops the table again."""
    rows_read: list[tuple[Table, Callable[[Row], bool]]] = field(default_factory=list)
    rows_maybe: list[tuple[Table, Callable[[Row], bool]]] = field(default_factory=list)
    """Rows that may have been looked at by a call that was wrong in two ways."""
    names_read: set[str] = field(default_factory=set)
    """Names that must mean the same at commit."""
    names_maybe: set[str] = field(default_factory=set)
    """Names that may have been remembered: looked up after DDL that failed, before any other."""
    tried_ddl: bool = False
    did_ddl: bool = False

    def wrote(self) -> bool:
        return bool(self.created or self.dropped or any(self.work.values()))


EVERYTHING = "*"
"""As a name that was read: the list of all tables."""


class Model:
    """The database as it ought to be."""

    def __init__(self, retention_us: int = 0) -> None:
        self.tables: list[Table] = []
        self.now = 0
        self.floor = 0
        self.commits: list[int] = []
        self.walls: list[int] = []
        self.tokens: dict[str, int] = {}
        self.versions: dict[str, tuple[int, int]] = {}
        self.open: list[Txn] = []
        self.names: dict[str, int] = {}
        """Named snapshots."""
        self.retention_us = retention_us

    # Beginning and ending.

    def begin(self, *, serializable: bool = False, token: Token | None = None) -> Txn:
        known = 0 if token is None else self.token_ts(token)
        txn = Txn(self.now, serializable=serializable, token=token, known_ts=known)
        self.open.append(txn)
        return txn

    def begin_at(self, ts: int) -> Txn:
        self.check_ts(ts)
        txn = Txn(ts, read_only=True)
        self.open.append(txn)
        return txn

    def rollback(self, txn: Txn) -> None:
        self._end(txn)

    def verdict(self, txn: Txn) -> Verdict:
        """What a commit now would come to. `either`: the engine may have remembered more."""
        if self.settled(txn) is not None or not txn.wrote():
            return "commits"
        if self._rows_conflict(txn) or self._names_changed(txn, self._names_that_count(txn)):
            return "conflicts"
        perhaps = self._names_changed(txn, txn.names_read | txn.names_maybe)
        # A TRUNCATE may count as a change of the table also when it had no row left.
        perhaps |= any(table.truncated_at > txn.snapshot for table, _ in txn.rows_read)
        return "either" if perhaps or self._changed(txn, txn.rows_maybe) else "commits"

    def settled(self, txn: Txn) -> int | None:
        """The timestamp that its token got before; None when there is none or nothing to write."""
        if txn.known_ts:
            return txn.known_ts
        known = self.token_ts(txn.token) if txn.token is not None and txn.wrote() else 0
        return known or None

    def commit(self, txn: Txn, ts: int | None, wall_us: int) -> None:
        """The engine has committed at `ts`, or had nothing to do."""
        if ts is not None and self.settled(txn) is None:
            assert ts > self.now
            self._apply(txn, ts)
            self.now = ts
            self.commits.append(ts)
            self.walls.append(max(wall_us, self.walls[-1] if self.walls else 0))
            if isinstance(txn.token, str):
                self.tokens[txn.token] = ts
            elif txn.token is not None:
                self.versions[txn.token[0]] = (txn.token[1], ts)
        self._end(txn)

    def pass_time(self, ts: int, wall_us: int) -> None:
        """Upkeep has committed up to `ts`: timestamps pass, no row changes."""
        assert ts >= self.now, f"timestamp {ts} is shown after {self.now} was"
        if ts > self.now:
            self.now = ts
            self.commits.append(ts)
            self.walls.append(max(wall_us, self.walls[-1] if self.walls else 0))

    def close(self) -> None:
        """Open transactions end with their database."""
        for txn in list(self.open):
            self._end(txn)

    # Writing rows.

    def insert(self, txn: Txn, name: str, rows: Sequence[Row]) -> int | None:
        table = self._to_write(txn, name)
        if txn.known_ts:
            return None
        shape = table.shape
        whole = [shape.whole(row) for row in rows]
        self._check_values(shape, whole)
        if shape.key:
            keys = [shape.key_of(row) for row in whole]
            if len(set(keys)) < len(keys):
                raise Refused(DuplicateKeyError)
            taken = [key for key in keys if self._find(txn, table, key) is not None]
            if taken:
                self._note_keys(txn, table, taken)
                raise Refused(DuplicateKeyError)
        self._work(txn, table).inserted.extend(Version(row) for row in whole)
        return len(rows)

    def upsert(self, txn: Txn, name: str, rows: Sequence[Row]) -> int | None:
        table = self._to_write(txn, name)
        if txn.known_ts:
            return None
        shape = table.shape
        if not shape.key:
            raise Refused(UsageError)
        keys = [shape.key_of(row) for row in rows]
        found = [self._find(txn, table, key) for key in keys]
        fresh = [shape.whole(row) for row, seen in zip(rows, found, strict=True) if seen is None]
        lacking = [shape.key_of(row) for row in fresh if self._has_null(shape, row)]
        wrong: list[type[Exception]] = []
        if len(set(keys)) < len(keys):
            wrong.append(DuplicateKeyError)
        if any(self._has_null(shape, row) for row in rows):
            wrong.append(SchemaError)
        if lacking:  # As updates they would have been right, so the error tells something.
            self._note_keys(txn, table, lacking, perhaps=bool(wrong))
        if wrong or lacking:
            raise Refused(*wrong, *([SchemaError] if lacking else []))
        for row, version in zip(rows, found, strict=True):
            if version is None:
                self._work(txn, table).inserted.append(Version(shape.whole(row)))
            else:
                self._replace(txn, table, version, row)
        return len(rows)

    def update(self, txn: Txn, name: str, key: Key, values: Row) -> int | None:
        table = self._to_write(txn, name)
        if txn.known_ts:
            return None
        if not table.shape.key:
            raise Refused(UsageError)
        self._check_values(table.shape, [values])
        version = self._find(txn, table, key)
        if version is None:
            self._note_keys(txn, table, [key])
            raise Refused(NotFoundError)
        self._change_all(txn, table, [version], values)
        return 1

    def add(
        self, txn: Txn, name: str, key: Key, amounts: dict[str, int], values: Row
    ) -> int | None:
        """Update one row: add to some of its columns, and set others."""
        table = self._to_write(txn, name)
        if txn.known_ts:
            return None
        if not table.shape.key:
            raise Refused(UsageError)
        version = self._find(txn, table, key)
        if version is None:
            self._note_keys(txn, table, [key])
            raise Refused(NotFoundError)
        work = self._work(txn, table)
        row, written = work.updated.get(version, (version.row, frozenset()))
        sums = {one: _plus(row[one], amount) for one, amount in amounts.items()}
        if version in work.inserted:
            version.row = row | values | sums
            return 1
        before = dict(work.added.get(version, {}))
        self._replace(txn, table, version, values | sums)
        added = work.added.setdefault(version, {})
        for one, amount in amounts.items():
            if one in before or one not in written:
                added[one] = before.get(one, 0) + amount
        return 1

    def update_where(self, txn: Txn, name: str, where: Where, values: Row) -> int | None:
        table = self._to_write(txn, name)
        if txn.known_ts:
            return None
        self._check_values(table.shape, [values])
        self._note_rows(txn, table, lambda row: True)
        self._show(txn, table)
        found = [version for version, row in self._view(txn, table) if where.holds(row)]
        self._change_all(txn, table, found, values)
        return len(found)

    def delete(self, txn: Txn, name: str, key: Key) -> bool | None:
        table = self._to_write(txn, name)
        if txn.known_ts:
            return None
        if not table.shape.key:
            raise Refused(UsageError)
        self._note_keys(txn, table, [key])
        version = self._find(txn, table, key)
        if version is not None:
            self._remove(txn, table, version)
        return version is not None

    def delete_where(self, txn: Txn, name: str, where: Where) -> int | None:
        table = self._to_write(txn, name)
        if txn.known_ts:
            return None
        self._note_rows(txn, table, lambda row: True)
        self._show(txn, table)
        found = [version for version, row in self._view(txn, table) if where.holds(row)]
        for version in found:
            self._remove(txn, table, version)
        return len(found)

    def truncate(self, txn: Txn, name: str) -> None:
        table = self._to_write(txn, name)
        if not txn.known_ts:
            txn.work[table] = Work(truncated=table not in txn.created)

    # Reading rows. Order is the caller's business.

    def get(self, txn: Txn, name: str, key: Key) -> Row | None:
        rows = self.get_many(txn, name, [key])
        return rows[0] if rows else None

    def get_many(self, txn: Txn, name: str, keys: Sequence[Key]) -> list[Row]:
        table = self._keyed(txn, name)
        self._note_keys(txn, table, keys)
        self._show(txn, table, keys)
        rows = {table.shape.key_of(row): row for _, row in self._view(txn, table)}
        return [rows[key] for key in keys if key in rows]

    def range(self, txn: Txn, name: str, low: Key | None, high: Key | None) -> list[Row]:
        """Rows with low <= key < high in key order."""
        table = self._keyed(txn, name)
        key_of = table.shape.key_of

        def inside(row: Row) -> bool:
            key = key_of(row)
            return (low is None or key >= low) and (high is None or key < high)

        self._note_rows(txn, table, inside)
        self._show(txn, table)
        return sorted((row for _, row in self._view(txn, table) if inside(row)), key=key_of)

    def scan(self, txn: Txn, name: str) -> tuple[Shape, list[Row]]:
        table = self._look(txn, name)
        self._note_rows(txn, table, lambda row: True)
        self._show(txn, table)
        return table.shape, [row for _, row in self._view(txn, table)]

    def peek(self, txn: Txn) -> dict[str, tuple[Shape, list[Row]]]:
        """All that the transaction could see, for whoever thinks up its next step. Not a read."""
        return {
            table.name: (table.shape, [row for _, row in self._view(txn, table)])
            for table in self._tables(txn)
        }

    # DDL.

    def create(self, txn: Txn, name: str, shape: Shape, *, if_not_exists: bool = False) -> None:
        self._check_writable(txn)
        if txn.known_ts:
            return
        txn.tried_ddl = True
        txn.names_read.add(name.casefold())
        if self._named(txn, name) is not None:
            if if_not_exists:
                return
            raise Refused(AlreadyExistsError)
        claimed = any(name.casefold() in other.claimed for other in self._others(txn))
        if claimed or self._name_changed(txn, name):
            raise Refused(ConflictError)
        txn.created.append(Table(name, shape))
        txn.claimed.add(name.casefold())
        txn.did_ddl = True

    def drop(self, txn: Txn, name: str, *, if_exists: bool = False) -> None:
        self._check_writable(txn)
        if txn.known_ts:
            return
        txn.tried_ddl = True
        txn.names_read.add(name.casefold())
        table = self._named(txn, name)
        if table is None:
            if if_exists:
                return
            raise Refused(NotFoundError)
        if table.end < FOREVER or any(table in other.dropped for other in self._others(txn)):
            raise Refused(ConflictError)
        txn.work.pop(table, None)
        if table in txn.created:
            txn.created.remove(table)
        else:
            txn.dropped.append(table)
        txn.did_ddl = True

    def table_names(self, txn: Txn) -> list[str]:
        self._note_name(txn, EVERYTHING)
        return sorted(table.name for table in self._tables(txn))

    # The database.

    def tables_at(self, ts: int) -> list[Table]:
        return [table for table in self.tables if table.begin <= ts < table.end]

    def _table_at(self, name: str, ts: int) -> Table | None:
        return next((table for table in self.tables_at(ts) if same(table.name, name)), None)

    def changes(self, name: str, since: int, until: int | None) -> list[tuple[int, str, Row]]:
        """(commit, kind, row) of every change in (since, until], in no order within a commit."""
        errors: list[type[Exception]] = []
        end = self.now if until is None else until
        for ts in (since, end):
            errors += [UsageError] if ts > self.now else []
            errors += [SnapshotExpiredError] if ts < self.floor else []
        errors += [UsageError] if since > end else []
        table, before = self._table_at(name, end), self._table_at(name, since)
        errors += [NotFoundError] if table is None else []
        # Another table of that name: its end is no change of this one, so the feed would mislead.
        errors += [UsageError] if before is not None and before is not table else []
        if table is None or errors:
            raise Refused(*errors)
        events = []
        for version in table.versions:
            if since < version.begin <= end:
                kind = "update_after" if version.succeeds else "insert"
                events.append((version.begin, kind, version.row))
            if since < version.end <= end:
                kind = "delete" if version.successor is None else "update_before"
                events.append((version.end, kind, version.row))
        return sorted(events, key=lambda event: event[0])

    def gc(self, wall_us: int) -> int:
        """The floor rises to the oldest moment that retention and open transactions still want."""
        kept = self.ts_at(wall_us - self.retention_us)
        wanted = [*(txn.snapshot for txn in self.open), *self.names.values()]
        self.floor = max(self.floor, min([kept, *wanted]))
        return self.floor

    def keep(self, name: str) -> int:
        """Give the present a name."""
        if name in self.names:
            raise Refused(AlreadyExistsError)
        self.names[name] = self.now
        return self.now

    def forget(self, name: str) -> None:
        if self.names.pop(name, None) is None:
            raise Refused(NotFoundError)

    def named(self, name: str) -> int:
        if name not in self.names:
            raise Refused(NotFoundError)
        return self.names[name]

    def ts_at(self, wall_us: int) -> int:
        """The newest commit at or before that moment, 0 when there was none."""
        place = bisect_right(self.walls, wall_us)
        return self.commits[place - 1] if place else 0

    def check_ts(self, ts: int) -> None:
        if ts > self.now:
            raise Refused(UsageError)
        if ts < self.floor:
            raise Refused(SnapshotExpiredError)

    def token_ts(self, token: Token) -> int:
        """The commit that has brought this token (of a pair: this version or a later one), or 0."""
        if isinstance(token, str):
            return self.tokens.get(token, 0)
        version, ts = self.versions.get(token[0], (-1, 0))
        return ts if token[1] <= version else 0

    # What a transaction sees.

    def _view(self, txn: Txn, table: Table) -> Iterator[tuple[Version, Row]]:
        work = txn.work.get(table, Work())
        for version in [] if work.truncated else table.at(txn.snapshot):
            if version in work.updated:
                yield version, work.updated[version][0]
            elif version not in work.deleted:
                yield version, version.row
        for version in work.inserted:
            yield version, version.row

    def _find(self, txn: Txn, table: Table, key: Key) -> Version | None:
        found = [v for v, row in self._view(txn, table) if table.shape.key_of(row) == key]
        assert len(found) <= 1
        return found[0] if found else None

    def _tables(self, txn: Txn) -> list[Table]:
        committed = [t for t in self.tables_at(txn.snapshot) if t not in txn.dropped]
        return [*committed, *txn.created]

    def _named(self, txn: Txn, name: str) -> Table | None:
        return next((table for table in self._tables(txn) if same(table.name, name)), None)

    def _look(self, txn: Txn, name: str) -> Table:
        self._note_name(txn, name.casefold())
        table = self._named(txn, name)
        if table is None:
            raise Refused(NotFoundError, *([UsageError] if txn.read_only else []))
        return table

    def _keyed(self, txn: Txn, name: str) -> Table:
        table = self._look(txn, name)
        if not table.shape.key:
            raise Refused(UsageError)
        return table

    def _to_write(self, txn: Txn, name: str) -> Table:
        table = self._look(txn, name)
        self._check_writable(txn)
        return table

    def _check_writable(self, txn: Txn) -> None:
        if txn.read_only:
            raise Refused(UsageError)

    def _check_values(self, shape: Shape, rows: Sequence[Mapping[str, Any]]) -> None:
        """Values are looked at before the table is: a call with wrong ones has read nothing."""
        if any(self._has_null(shape, row) for row in rows):
            raise Refused(SchemaError)

    def _has_null(self, shape: Shape, row: Mapping[str, Any]) -> bool:
        return any(value is None for name, value in row.items() if name in shape.required)

    # What a transaction does.

    def _work(self, txn: Txn, table: Table) -> Work:
        return txn.work.setdefault(table, Work())

    def _change_all(self, txn: Txn, table: Table, found: Sequence[Version], values: Row) -> None:
        """Set columns in these rows, unless two rows would then have one key."""
        if table.shape.key:
            key_of, view = table.shape.key_of, list(self._view(txn, table))
            moved = [key_of(row | values) for version, row in view if version in found]
            others = [key_of(row) for version, row in view if version not in found]
            if len({*moved, *others}) < len(view):
                self._note_keys(txn, table, moved)
                raise Refused(DuplicateKeyError)
        for version in found:
            self._replace(txn, table, version, values)

    def _replace(self, txn: Txn, table: Table, version: Version, values: Row) -> None:
        """Lay values over a row that is seen."""
        work, key = self._work(txn, table), table.shape.key
        row, written = work.updated.get(version, (version.row, frozenset()))
        new = row | values
        if any(new[name] != row[name] for name in key):
            self._remove(txn, table, version)
            work.inserted.append(Version(new))
        elif version in work.inserted:
            version.row = new
        else:
            work.updated[version] = (new, written | (frozenset(values) - frozenset(key)))
            for name in values:
                work.added.get(version, {}).pop(name, None)

    def _remove(self, txn: Txn, table: Table, version: Version) -> None:
        work = self._work(txn, table)
        if version in work.inserted:
            work.inserted.remove(version)
        else:
            work.updated.pop(version, None)
            work.added.pop(version, None)
            work.deleted[version] = None

    def _others(self, txn: Txn) -> list[Txn]:
        return [other for other in self.open if other is not txn]

    def _show(self, txn: Txn, table: Table, keys: Sequence[Key] | None = None) -> None:
        """Sums that are read, those of some keys or all, are columns that are written."""
        added = txn.work.get(table, Work()).added
        for version in list(added):
            if keys is None or table.shape.key_of(version.row) in keys:
                del added[version]

    # What a transaction remembers of its reads.

    def _note_keys(
        self, txn: Txn, table: Table, keys: Sequence[Key], *, perhaps: bool = False
    ) -> None:
        wanted = set(keys)
        self._note_rows(txn, table, lambda row: table.shape.key_of(row) in wanted, perhaps=perhaps)

    def _note_rows(
        self, txn: Txn, table: Table, covers: Callable[[Row], bool], *, perhaps: bool = False
    ) -> None:
        if txn.serializable:
            (txn.rows_maybe if perhaps else txn.rows_read).append((table, covers))

    def _note_name(self, txn: Txn, name: str) -> None:
        if txn.serializable or txn.did_ddl:
            txn.names_read.add(name)
        elif txn.tried_ddl:
            txn.names_maybe.add(name)

    # Commit.

    def _rows_conflict(self, txn: Txn) -> bool:
        if self._changed(txn, txn.rows_read):
            return True
        for table, work in txn.work.items():
            if not work:
                continue
            if table.end < FOREVER:
                return True
            if work.truncated:
                continue
            if any(version.end < FOREVER for version in work.deleted):
                return True
            if any(self._update_conflicts(v, work) for v in work.updated):
                return True
            if table.shape.key:
                live = {table.shape.key_of(v.row): v for v in table.at(self.now)}
                wanted = [live.get(table.shape.key_of(version.row)) for version in work.inserted]
                if any(v is not None and v not in work.deleted for v in wanted):
                    return True
        return False

    def _changed(self, txn: Txn, reads: list[tuple[Table, Callable[[Row], bool]]]) -> bool:
        return any(table.changed_since(txn.snapshot, covers) for table, covers in reads)

    def _update_conflicts(self, version: Version, work: Work) -> bool:
        added, (_, wrote) = work.added.get(version, {}), work.updated[version]
        meets = wrote | {f"+{name}" for name in wrote if name not in added}
        while version.end < FOREVER:
            if version.successor is None or version.changed & meets:
                return True
            version = version.successor
        return False

    def _names_that_count(self, txn: Txn) -> set[str]:
        """DDL that came to nothing leaves a plain transaction, which need not look at names."""
        return txn.names_read if txn.serializable or txn.created or txn.dropped else set()

    def _names_changed(self, txn: Txn, names: set[str]) -> bool:
        return any(self._name_changed(txn, name) for name in names)

    def _name_changed(self, txn: Txn, name: str) -> bool:
        return any(
            txn.snapshot < ts < FOREVER
            for table in self.tables
            if name == EVERYTHING or same(table.name, name)
            for ts in (table.begin, table.end)
        )

    def _apply(self, txn: Txn, ts: int) -> None:
        for table in txn.dropped:
            table.end = ts
        for table in txn.created:
            table.begin = ts
            self.tables.append(table)
        for table, work in txn.work.items():
            if work.truncated:
                table.truncated_at = ts
                for version in table.at(self.now):
                    version.end = ts
            for version, (row, wrote) in work.updated.items():
                old, added = version.newest(), work.added.get(version, {})
                values = {name: row[name] for name in wrote}
                sums = {name: _plus(old.row[name], amount) for name, amount in added.items()}
                new = Version(old.row | values | sums, begin=ts, succeeds=True)
                marks = {f"+{name}" if name in added else name for name in wrote}
                old.end, old.successor, old.changed = ts, new, frozenset(marks)
                table.versions.append(new)
            for version in work.deleted:
                version.end = ts
            for version in work.inserted:
                version.begin = ts
                table.versions.append(version)

    def _end(self, txn: Txn) -> None:
        txn.open = False
        self.open.remove(txn)


def same(name: str, other: str) -> bool:
    """Names do not differ by case."""
    return name.casefold() == other.casefold()


def _plus(value: int | None, amount: int) -> int | None:
    return None if value is None else value + amount

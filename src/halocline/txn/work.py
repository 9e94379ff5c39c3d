"""Work: the state of one transaction, from begin to its end.

    begin --> open --commit--> committed            snapshot, pin, workspaces by table, DDL, reads,
                  |-rollback--> rolled back         token: all that the commit pipeline looks at
                  '-commit fails--> failed

A transaction that writes one row and nothing else builds no workspace: the row is kept aside
(`_single`) and committed by `commit_single`, three times as fast. The first thing that does not fit
moves it into an ordinary workspace, and nobody can tell the difference.

Not here: the calls a user makes (transaction.py), how a change enters a workspace (write.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from halocline.catalog import CatalogTxn, TableEntry
from halocline.errors import DuplicateKeyError, NotFoundError, SchemaError, UsageError
from halocline.read.point import find, find_row
from halocline.rows.page import Row
from halocline.rows.state import TableState
from halocline.rows.tokens import Token
from halocline.txn.bulk import spill
from halocline.txn.jobs import give_up, jobs_of
from halocline.txn.reads import Reads
from halocline.txn.workspace import Single, TableChanges

if TYPE_CHECKING:
    from halocline.txn.core import Core


class Work:
    """Snapshot, private changes and fate of one transaction."""

    # Nearly every transaction is short, so what it rarely needs is a class attribute until it does:
    # setting fourteen attributes at begin would cost 0.6 us of the 9 a small commit may take.
    commit_ts: int | None = None
    """The timestamp of the commit; None while open and when nothing was written."""
    already_committed = False
    """True when the token was known at begin: writes then do nothing."""
    read_only = False
    waits = True
    """Does a commit wait for the disk, and tidy up? Otherwise its caller does (node/desk.py)."""
    changes: dict[int, TableChanges] = {}  # noqa: RUF012 (replaced, never changed, see _open_table)
    created: dict[int, TableState] = {}  # noqa: RUF012
    dropped: frozenset[int] = frozenset()
    ddl: CatalogTxn | None = None
    reads: dict[int, Reads] | None = None
    token: Token | None = None
    keeps_token = False
    """Is the token to be remembered although nothing is written?"""
    _by_name: dict[str, TableChanges] = {}  # noqa: RUF012
    _state = "open"
    _single: Single | None = None
    _seen: tuple[TableState, Any, int, Row] | None = None
    """The row that was read last."""
    _fresh = True
    """Nothing written and nothing to record: reads may go straight to the table."""
    _writable = True

    def __init__(self, core: Core, snapshot: int, *, read_only: bool = False) -> None:
        self._core = core
        self.snapshot = snapshot
        if read_only:
            self.read_only = True
            self._writable = False
            core.pins[-id(self)] = snapshot
        else:
            core.pins[id(self)] = snapshot

    @property
    def core(self) -> Core:
        """The state that this transaction sees."""
        return self._core

    # Ending.

    def commit(self) -> int | None:
        """Make the changes durable and visible; returns commit_ts, None when there were none."""
        if self._state != "open":
            raise UsageError(f"this transaction is already {self._state}")
        self._core.check_open()
        if self.already_committed or not self._has_changes():
            self._end("committed")
            return self.commit_ts
        if self._single is not None and self._commit_single():
            return self.commit_ts
        self.settle()
        try:
            self._spill()
            self.commit_ts = self._core.commit(self)
        except BaseException:
            self._end("failed at commit")
            raise
        states = [changes.home for changes in self.changes.values()]
        self._end("committed")
        if self.waits:
            for state in states:
                if state.owes and self._core.committer is not None:
                    self._core.committer.tidy(state)
        return self.commit_ts

    def rollback(self) -> None:
        """Forget the changes. Calling it again, or after a failed commit, does nothing."""
        if self._state == "committed":
            raise UsageError("this transaction is already committed")
        if self._state == "open":
            self._end("rolled back")

    def _spill(self) -> None:
        """Rows that were inserted one by one and have become many go into objects."""
        committer = self._core.committer
        if committer is not None:
            for changes in self.changes.values():
                if len(changes.rows) > self._core.options.bulk_rows:
                    spill(committer, changes)

    def _end(self, state: str) -> None:
        """Jobs end with their transaction: those that the commit record has not ended end here."""
        committer = self._core.committer
        if self.changes or (committer is not None and committer.forgotten):
            self._give_up(self.changes.values())
        self._finish(state)

    def _give_up(self, workspaces: Iterable[TableChanges]) -> None:
        """Files that were written for nothing: their jobs are over, and GC may have them."""
        committer = self._core.committer
        jobs = jobs_of(workspaces)
        if committer is not None and (jobs or committer.forgotten):
            give_up(committer, jobs)

    def _commit_single(self) -> bool:
        """Commit one row without detours; False when the general way must decide."""
        core, single = self._core, self._single
        if core.closed or core.committer is None or self.token is not None or single is None:
            return False
        try:
            commit_ts = core.committer.commit_single(self.snapshot, single, self.waits)
        except BaseException:
            self._finish("failed at commit")
            raise
        if not commit_ts:
            return False
        self.commit_ts = commit_ts
        self._state = "committed"
        self._writable = self._fresh = False
        self._single = self._seen = None  # an ended transaction holds no table in memory
        core.pins.pop(id(self), None)
        if single[0].owes and self.waits:
            core.committer.tidy(single[0])
        return True

    def __del__(self) -> None:
        # Whatever an interrupt left undone: the snapshot is held no longer than this object lives.
        core: Core | None = getattr(self, "_core", None)  # 0.05 us; through __dict__ 0.2
        if core is not None:
            if self._state == "open":
                # Not ended here: this may run at any moment, even while the lock is held.
                if core.committer is not None and self.changes:
                    core.committer.forgotten += jobs_of(self.changes.values())
                if self.ddl is not None:
                    self.ddl.abandon()
                self._finish("rolled back")
            pin = -id(self) if self.read_only else id(self)
            if pin in core.pins:
                core.pins.pop(pin, None)

    def _has_changes(self) -> bool:
        if self._single is not None or self.keeps_token:
            return True
        return any(self.changes.values()) or bool(self.created or self.dropped)

    def _finish(self, state: str) -> None:
        self._state = state
        self._writable = self._fresh = False
        self._single = self._seen = None
        self._core.pins.pop(-id(self) if self.read_only else id(self), None)
        if self.ddl is not None:  # harmless after its commit
            self.ddl.rollback()
        if self.changes:
            self.changes, self._by_name = {}, {}

    # Set by begin.

    def record_reads(self) -> None:
        """Called by `begin(isolation="serializable")`."""
        self.reads = {}
        self._fresh = False

    def use_token(self, token: Token, known_ts: int) -> None:
        """Called by `begin(token=)`; a known token makes this transaction a no-op."""
        self.token = token
        if known_ts:
            self.already_committed = True
            self._writable = False
            self.commit_ts = known_ts

    def keep_token(self) -> None:
        """Called by a job whose input may be empty: run again, it is as done as any other."""
        self.keeps_token = self.token is not None

    # Set by the owner, for a transaction that another process has prepared (node/parcel.py).

    def adopt_single(self, single: Single) -> None:
        """One row and nothing else."""
        self._single = single
        self._fresh = False

    def adopt(
        self,
        *,
        changes: dict[int, TableChanges],
        created: dict[int, TableState],
        dropped: frozenset[int],
        ddl: CatalogTxn | None,
        reads: dict[int, Reads] | None,
    ) -> None:
        """A whole workspace."""
        self.changes, self.created, self.dropped = changes, created, dropped
        self.ddl, self.reads = ddl, reads
        self._fresh = False

    # Tables by name.

    def changes_of(self, name: str) -> TableChanges:
        """The workspace of a table by any spelling of its name."""
        return self._open_table(name)

    def _open_table(self, name: str) -> TableChanges:
        self._check_usable()
        if self._single is not None:
            self._absorb(self._single)
        self._fresh = False
        if not isinstance(name, str):
            raise UsageError(f"a table is named by a string, not {type(name).__name__}")
        found = self._by_name.get(name)
        if found is not None:
            return found
        entry = self._entry(name)
        if entry is None:
            raise NotFoundError("table", name, hint=self._hint(name))
        changes = self.changes.get(entry.id)
        if changes is None:
            state = self.created.get(entry.id) or self._core.state(entry.id)
            changes = TableChanges(state)
            self.changes = {**self.changes, entry.id: changes}
        self._by_name = {**self._by_name, name: changes}
        return changes

    def has_table(self, name: str) -> bool:
        return self._entry(name) is not None

    def _open_keyed(self, name: str) -> TableChanges:
        changes = self._open_table(name)
        if changes.state.key_of is None:
            raise UsageError(f"table {changes.entry.name!r} has no primary key; use scan or where=")
        return changes

    def _entry(self, name: str) -> TableEntry | None:
        if self.ddl is not None or self.reads is not None:
            return self._sub().table(name)  # records the read
        return self._core.catalog.table(name, self.snapshot)

    def _entries(self) -> list[TableEntry]:
        if self.ddl is not None or self.reads is not None:
            return self._sub().tables()
        return self._core.catalog.tables(self.snapshot)

    def _hint(self, name: str) -> str:
        # Asked of the catalog, not of the transaction: a hint is no read that could conflict.
        names = [entry.name for entry in self._core.catalog.tables(self.snapshot)]
        near = get_close_matches(name, names, n=1)
        if near:
            return f"did you mean {near[0]!r}?"
        return f"tables: {', '.join(names[:20])}" if names else "the database has no tables"

    def _sub(self) -> CatalogTxn:
        self._fresh = False
        if self._single is not None:
            self._absorb(self._single)
        if self.ddl is None:
            self.ddl = self._core.begin_ddl(self)
        return self.ddl

    def _forget_names(self) -> None:
        self._by_name = {}

    def _check_usable(self) -> None:
        if self._state != "open":
            raise UsageError(f"this transaction is {self._state}: begin another")
        self._core.check_open()

    def _may_write(self) -> bool:
        self._check_usable()
        if self.read_only:
            raise UsageError("this transaction is read-only")
        return self._writable

    # What a serializable transaction remembers.

    def note_scan(self, changes: TableChanges) -> None:
        """The whole table was read."""
        if self.reads is not None:
            self._reads_of(changes).whole = True

    def _reads_of(self, changes: TableChanges) -> Reads:
        assert self.reads is not None
        return self.reads.setdefault(changes.entry.id, Reads())

    @contextmanager
    def _reading(self, changes: TableChanges, keys: Sequence[Any] = ()) -> Iterator[None]:
        """A write that fails has told its caller something: serializable remembers what."""
        try:
            yield
        except SchemaError as error:
            if self.reads is not None:
                self._reads_of(changes).keys.update(error.read_keys)
            raise
        except DuplicateKeyError as error:
            if self.reads is not None and not error.inside_input:
                self._reads_of(changes).keys.update(error.all_keys)
            raise
        except NotFoundError:
            if self.reads is not None:
                self._reads_of(changes).keys.update(keys)
            raise

    # The one row that is kept aside.

    def settle(self) -> None:
        """Put a write that was kept aside into the workspace."""
        if self._single is not None:
            self._absorb(self._single)

    def _insert_first(self, state: TableState, values: dict[str, Any]) -> int:
        """The first write of this transaction is one row: keep it aside (see commit_single)."""
        row = state.schema.row(values)
        assert state.key_of is not None
        key = state.key_of(row)
        if find(state, key, self.snapshot):
            raise DuplicateKeyError(state.entry.name, [key])
        self._single = (state, key, row, 0, ())
        self._fresh = False
        return 1

    def _update_first(self, state: TableState, key: Any, values: dict[str, Any]) -> bool:
        """The same for an update that leaves the key alone."""
        schema = state.schema
        seen = self._seen
        old: Row | None
        if seen is not None and seen[1] == key and seen[0] is state:
            _, _, rowid, old = seen  # read, modify, write: the row is still at hand
        else:
            rowid, old = find_row(state, key, self.snapshot) or (0, None)
        checked = schema.partial(values)
        if old is None or not schema.key_set.isdisjoint(checked):
            return False
        row = list(old)
        for position, value in checked.items():
            row[position] = value
        self._single = (state, key, tuple(row), rowid, tuple(checked))
        self._fresh = False
        return True

    def _absorb(self, single: Single) -> None:
        """More than one write after all: move the first into an ordinary workspace."""
        self._single = None
        state, key, row, rowid, changed = single
        try:
            changes = self._open_table(state.entry.name)
        except BaseException:
            self._single = single  # it was written, and is to be committed or refused
            raise
        if rowid:
            changes.update(rowid, key, row, set(changed))
        else:
            changes.insert(key, row)

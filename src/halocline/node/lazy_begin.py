"""Lazy begin: a transaction that begins ahead of what its process has folded.

    log   ...####folded####|--committed since--|
                           state               snapshot
    insert: its key is not in the state --> kept aside; the owner looks among what came since
    anything else: catch up first, then go on like every other transaction

Eight processes that insert rows have seven rows of others to fold for each of their own, though
none of them reads any. An insert need only know that its key is not taken. Here it is looked for
among what is folded; at the commit the owner looks among what was committed since, as it does for
every transaction. Rows are folded when something is read, or when they have become many: together
each of them costs half.

Why it is right
- The snapshot is the published one, as if all had been folded.
- A key that is taken at the snapshot was inserted before or after the newest commit that is folded.
  Before: it is in the state. After: the owner finds it, for the commit it is asked for begins at
  the newest commit that was folded when the key was looked for. That number is read first, the
  state last, so what another thread folds meanwhile is in one of the two.
- When the owner refuses, or when more is asked of this transaction, it catches up and inserts the
  row again, at its own snapshot. So an error is the one that every other transaction would have
  met, a little later: DuplicateKeyError for a key that was taken at the snapshot, ConflictError for
  one that was taken since.
- Nothing is read, so nothing need be kept for it: there is no pin. Whoever reads after all pins
  first, and then folds, the floor included. The owner publishes a floor before it reads the pins:
  so it has seen the pin, or we see the floor. If that has passed the snapshot by, or if the owner
  says at the commit that it cannot look back so far, the transaction goes on at a newer snapshot:
  it has seen nothing of the old one. Only one that waited before it read, and then writes, may be
  told to run again.
"""

from __future__ import annotations

from typing import Any

from halocline.errors import (
    ConflictError,
    DuplicateKeyError,
    HaloclineError,
    NotFoundError,
    SnapshotExpiredError,
)
from halocline.log.published import Published
from halocline.node.replica import Replica
from halocline.read.guard import check_rows
from halocline.read.point import find
from halocline.txn import Core, Transaction
from halocline.txn.commits import Commits
from halocline.txn.identity import with_key
from halocline.txn.row_update import Single


class LazyTransaction(Transaction):
    """At the newest position that is published. Whatever it does but insert one row, it catches up
    before, and is a transaction like any other from then on."""

    _ahead: Published | None
    _folded = 0
    """The newest commit that was folded when the key was looked for."""

    def __init__(self, core: Core, position: Published, replica: Replica) -> None:
        super().__init__(core, max(core.newest_ts(), position.visible_ts), pinned=False)
        self._ahead, self._replica = position, replica

    def insert(self, table: str, rows: Any, **named: Any) -> Any:
        if self._ahead is not None:
            if type(rows) is dict and self._own is None and not named:
                if self._insert_unseen(table, rows):
                    return 1
            self._catch_up()
        return super().insert(table, rows, **named)

    def get(
        self, table: str, key: Any, for_update: bool = False, timeout: float | None = None
    ) -> dict[str, Any] | None:
        if self._ahead is not None:
            self._catch_up()
        return super().get(table, key, for_update=for_update, timeout=timeout)

    def update(self, *args: Any, **named: Any) -> int:
        if self._ahead is not None:
            self._catch_up()
        return super().update(*args, **named)

    def record_reads(self) -> None:
        if self._ahead is not None:
            self._catch_up()
        super().record_reads()

    @property
    def core(self) -> Core:
        if self._ahead is not None:
            self._catch_up()
        return self._core

    def _check_usable(self) -> None:
        """What every other call begins with."""
        super()._check_usable()
        if self._ahead is not None:
            self._catch_up()

    def _insert_unseen(self, table: str, values: dict[str, Any]) -> bool:
        """Keep the row aside (see `first_row`) if its key is free in what is folded."""
        core = self._core
        folded = core.engine.last_ts
        state = core.state_of(table, self.snapshot)
        if state is None or state.key_of is None or self._state != "open":
            return False
        try:
            row = state.schema.row(values)
            if state.sequence is not None:
                row = with_key(core, state, row, self.snapshot)
            if state.schema.checks:
                check_rows(state.schema, (row,), state.entry.name)
            key = state.key_of(row)
            if find(state, key, self.snapshot):
                return False
        except (HaloclineError, OSError):
            # The table may have another schema by now, and nobody keeps its files for us.
            return False
        self._own = (state, key, row, 0, ())
        self._folded = min(folded, self.snapshot)
        return True

    def commit(self) -> int | None:
        try:
            return super().commit()
        except SnapshotExpiredError as error:
            raise _too_late() from error

    def _catch_up(self) -> None:
        """From here on this is a transaction like any other."""
        super()._check_usable()
        pins, pin = self._core.pins, id(self)
        # Others of this process may have folded more than was published when this one began.
        pins[pin] = min(self.snapshot, self._core.newest_ts())
        try:
            self._replica.refresh()
            self._core = self._replica.core
            if self.snapshot < max(self._core.engine.floor, self._core.write_floor):
                self._to_newest()
            else:
                self._insert_again(self.snapshot)
        except BaseException:
            pins.pop(pin, None)
            raise
        self._ahead = None

    def _insert_again(self, ts: int) -> None:
        """Insert the row that was kept aside as if for the first time, at a snapshot that is
        folded."""
        if not isinstance(self._own, tuple):
            return
        old, key, row, *_ = self._own
        table, state = old.entry.name, self._core.state_of(old.entry.name, ts)
        if state is None:
            raise NotFoundError("table", table)
        if state.table_id != old.table_id:
            raise ConflictError("the table was dropped by another transaction", table=table)
        if find(state, key, ts):
            raise DuplicateKeyError(table, [key])
        self._own = (state, key, row, 0, ())

    def _to_newest(self) -> None:
        """Go on at the newest snapshot; ConflictError if the row cannot be inserted there."""
        newest = self._core.newest_ts()
        try:
            self._insert_again(newest)
        except DuplicateKeyError as error:
            reason = "another transaction has inserted the key"
            raise ConflictError(reason, table=error.table) from error
        except NotFoundError as error:
            reason = "the table was dropped by another transaction"
            raise ConflictError(reason, table=error.name) from error
        self.snapshot = self._core.pins[id(self)] = newest

    def _commit_single(self, single: Single) -> bool:
        try:
            if self._ahead is None or self._core.committer is None:
                return super()._commit_single(single)
            return self._commit_ahead(self._core.committer, single)
        except SnapshotExpiredError as error:
            raise _too_late() from error

    def _commit_ahead(self, committer: Commits, single: Single) -> bool:
        """Commit one row, and once more from a newer snapshot if the owner wants that."""
        try:
            if self._core.closed:
                self._core.check_open()
            commit_ts = committer.commit_single(self._folded, single, ticket=self.ticket)
        except (ConflictError, SnapshotExpiredError):
            try:
                self._catch_up()
                self._to_newest()
            except BaseException:
                self._finish("failed at commit")
                raise
            assert isinstance(self._own, tuple), "the same row, at a newer snapshot"
            return super()._commit_single(self._own)
        except BaseException:
            self._finish("failed at commit")
            raise
        if commit_ts:
            self.commit_ts = commit_ts
            self._finish("committed")
        return bool(commit_ts)


def _too_late() -> ConflictError:
    """It was pinned when it began to read: the owner may have gone on just before."""
    return ConflictError("what happened since the snapshot is not known any more")


def move_on(txn: Transaction, core: Core) -> bool:
    """A transaction that has just begun goes to the newest snapshot that is folded; False if even
    that is too old by now."""
    newest = core.newest_ts()
    if newest != txn.snapshot:
        txn.snapshot = core.pins[id(txn)] = newest
    return newest >= max(core.engine.floor, core.write_floor)

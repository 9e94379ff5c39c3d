"""Commit: from a workspace to a durable, visible record.

    prepare (no lock: encode)
      '-> commit lock: final check, reserve log space, take commit_ts and RowIDs, patch them in,
          fold into memory (not yet visible), append to the log buffer
            '-> wait until the log is durable: visible_ts advances in order, acknowledge

Why it is right
- Every check runs against folded state, visible or not, under the lock that all folds take: between
  the check and the fold nobody else commits.
- A commit becomes visible only when it is durable, and durability follows log order, so a reader
  never sees a commit that a crash could take back (in sync mode).
- Before a commit_ts is taken anything may fail and nothing has happened. After it, record and fold
  must both happen: any exception there, Ctrl-C included, poisons the database (it refuses all
  writes until reopened) rather than leave a half-folded state. That window is a few microseconds;
  the long wait for the disk is outside it.
- Nothing is encoded and no row of ours is visited under the lock unless others changed the table
  since our snapshot. A row that others updated in other columns, or an object that they brought,
  sends us out of the lock for another round (check.py); after ROUNDS_MAX rounds the rest is done
  without leaving it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING

from halocline.catalog import CatalogTxn
from halocline.clock import Clock
from halocline.errors import ConflictError, UnavailableError, UsageError
from halocline.ids import NEVER
from halocline.log import AC, DML_A, DML_U, EPOCH, Log, encode_payload
from halocline.log.format import ENTRY_EXTRA_MAX
from halocline.rows.engine import EngineState
from halocline.rows.onerow import ONE_ROW_BYTES, one_row_record
from halocline.rows.state import TableState
from halocline.rows.system import EpochNode, Info, JobNode, encode_system
from halocline.rows.tidy import tidy
from halocline.schema.codec import encode as encode_rows
from halocline.txn.bulk_ends import rewrite
from halocline.txn.check import ROUNDS_MAX, Check, checks_of
from halocline.txn.conflict import untouched
from halocline.txn.record import (
    COMMIT_TS_AT,
    WALL_US_AT,
    Prepared,
    add_late,
    patch_u64,
    patch_u64_be,
    prepare,
)
from halocline.txn.workspace import Single, TableChanges, Workspace

if TYPE_CHECKING:
    from halocline.txn.jobs import Distant

GROUP_COMMIT, GROUP_SYSTEM = 1, 3


class Committer:
    """The one place where commit timestamps are given out."""

    distant: Distant | None = None
    """Set where that place is in another process (node/remote.py)."""

    def __init__(self, engine: EngineState, log: Log, clock: Clock) -> None:
        self.engine = engine
        self.log = log
        self.clock = clock
        self.lock = Lock()
        self.next_ts = max(engine.ts_ceiling, engine.last_ts) + 1
        self._wall_us = clock.wall_us
        self.stopped = False
        """Nothing commits behind the last record of an epoch."""
        self._ids = count(1)
        self.forgotten: list[JobNode] = []
        """Jobs of transactions that nobody ended: see jobs.give_up."""
        self._bulk_rows = engine.options.bulk_rows
        self.after_tidy: Callable[[TableState], None] | None = None
        """Called when L0 has grown by a page or so, outside every lock: the mover slows us down."""

    def commit(self, txn: Workspace) -> int:
        """Commit the transaction's changes; returns commit_ts once it is durable and visible."""
        try:
            return self._commit(txn)
        except ConflictError:
            # Two transactions with one token: the second has lost to its own twin.
            known = self._known(txn)
            if not known:
                raise
            return self._wait_known(known)

    def _commit(self, txn: Workspace) -> int:
        tables = {table_id: changes for table_id, changes in txn.changes.items() if changes}
        checks = checks_of(self.engine, tables, txn.reads, txn.snapshot)
        txn_id = next(self._ids)
        rounds = 0
        while True:
            for check in checks:
                check.outside(self.lock)
            prepared = self._prepare(txn_id, txn, tables)
            with self.lock:
                known = self._known(txn)
                ready = bool(known) or self._check(txn, tables, checks)
                if not ready and rounds >= ROUNDS_MAX:
                    again = [check.all_inside() for check in checks]
                    if any(again):
                        prepared = self._prepare(txn_id, txn, tables)
                    ready = True
                if ready and not known:
                    prepared = add_late(prepared, tables)
                    order, commit_ts = self.apply_record(prepared, txn)
            if known:
                return self._wait_known(known)
            if ready:
                break
            rounds += 1
        if txn.waits:
            self.log.wait(order)
        return commit_ts

    def _prepare(self, txn_id: int, txn: Workspace, tables: dict[int, TableChanges]) -> Prepared:
        ddl = txn.ddl.nodes() if txn.ddl is not None else ()
        reshapes = []
        for changes in tables.values():
            if changes.objects:
                rewrite(self, changes)
            reshape = changes.reshape()
            if reshape is not None:
                reshapes.append(reshape)
        return prepare(
            txn_id,
            self.log.epoch,
            txn.token,
            ddl,
            tables,
            self._bulk_rows,
            reshapes,
        )

    def tidy(self, state: TableState) -> None:
        """Freeze and merge what a commit left behind. Called when its outcome is settled."""
        tidy(state, self.lock)
        if self.after_tidy is not None:
            self.after_tidy(state)

    def commit_single(self, snapshot: int, single: Single, wait: bool = True) -> int:
        """Commit one inserted or updated row; 0 when the long way must decide. Without `wait` it is
        durable and visible only after the next `sync`.

        The same steps as `commit` and `apply_record`, written out for one row: 9 us in all, where
        the general way takes 25. Whatever is not plain (the row, its table or the catalog changed
        since the snapshot, sequences to extend) is left to the general way, before anything was
        done.
        """
        state, key, row, target, changed = single
        engine, log = self.engine, self.log
        schema = state.schema
        if target:
            ids = schema.ids_of(changed) if changed[1:] else (schema.columns[changed[0]].id,)
            kind, body = DML_U, encode_rows((ids, (target,), (row,)))
        else:
            kind, ids, body = DML_A, (), encode_rows((row,))
        with self.lock:
            rowid = state.next_rowid
            if (
                (state.last_ts > snapshot and not untouched(state, key, target, snapshot))
                or engine.catalog.last_ddl_ts > snapshot
                or self.next_ts >= engine.ts_ceiling
                or rowid >= engine.rowid_ceiling
                or self.stopped
            ):
                return 0
            log.reserve(len(body) + ONE_ROW_BYTES)
            commit_ts = self.next_ts
            try:
                self.next_ts = commit_ts + 1
                wall_us = self._wall_us()
                if wall_us < engine.wall_us:
                    wall_us = engine.wall_us
                record = one_row_record(
                    next(self._ids),
                    commit_ts,
                    wall_us,
                    log.epoch,
                    kind,
                    state.table_id,
                    rowid,
                    body,
                )
                state.last_ts = commit_ts
                if target:
                    state.update_row(target, ids, rowid, key, row, commit_ts)
                else:
                    state.append_row(rowid, key, row, commit_ts)
                engine.last_ts = commit_ts
                engine.wall_us = wall_us
                engine.times.add(commit_ts, wall_us)
                # Fold first: once it is in the log it may become visible at any moment.
                order = log.append(GROUP_COMMIT, AC, record, commit_ts)
            except BaseException as error:
                log.poison(error)
                raise
        if wait:
            log.wait(order)
        return commit_ts

    def sync(self) -> None:
        """All that was committed is durable when this returns, in async mode too."""
        with self.lock:
            order = self.log.places.last_order()
        self.log.sync(order)

    def wait(self) -> None:
        """All that was committed has been acknowledged, or could be, when this returns."""
        with self.lock:
            order = self.log.places.last_order()
        self.log.wait(order)

    def append_system(self, kind: int, payload: bytes, *, last: bool = False) -> int:
        """Log one system node. Caller holds the commit lock and waits for the order afterwards.

        `last`: on a full disk it may use what every commit leaves of the file, so that GC can free
        something. Nobody else may: a commit needs it for the timestamps it promises.
        """
        record = encode_payload(next(self._ids), b"", [(kind, payload)])
        try:
            self.log.reserve(len(record))
        except UnavailableError:
            if not last:
                raise
            self.log.reserve(len(record), ENTRY_EXTRA_MAX)
        return self.log.append(GROUP_SYSTEM, AC, record)

    def open_epoch(self) -> None:
        """First record of an epoch: what it may use, durable before anything is served."""
        with self.lock:
            self._extend()

    def close_epoch(self) -> None:
        """Last record of an epoch: exactly what it used, so that the next leaves no gap."""
        engine = self.engine
        with self.lock:
            self.stopped = True
            tables = engine.tables.values()
            used = max([engine.first_rowid - 1, *(state.next_rowid - 1 for state in tables)])
            node = EpochNode(
                epoch=self.log.epoch, ts_ceiling=self.next_ts - 1, rowid_ceiling=used, closed=True
            )
            order = self.append_system(EPOCH, encode_system(node))
        self.log.wait(order)

    def _check(self, txn: Workspace, tables: dict[int, TableChanges], checks: list[Check]) -> bool:
        """The last round; False when more has to be done outside. Caller holds the commit lock."""
        if txn.ddl is not None:
            txn.ddl.prepare()
        self._check_jobs(tables)
        if self.engine.last_ts <= txn.snapshot:
            return True
        if self.engine.catalog.last_ddl_ts > txn.snapshot:
            self._check_schema(txn, tables)
        return all(check.inside() for check in checks)

    def _check_jobs(self, tables: dict[int, TableChanges]) -> None:
        """A job that has been ended may not commit: GC may have removed its files."""
        for changes in tables.values():
            jobs = () if changes.objects is None else changes.objects.jobs
            if not self.engine.jobs.keys() >= set(jobs):
                raise UnavailableError("the job has been ended and its files removed: run it again")

    def _check_schema(self, txn: Workspace, tables: dict[int, TableChanges]) -> None:
        """DML read its table's schema version: a DDL since then wins."""
        for changes in tables.values():
            entry = self.engine.catalog.table_by_id(changes.entry.id)
            if changes.entry.id in txn.created:
                continue
            if entry is None or entry.dropped_at != NEVER:
                dropped_at = self.engine.catalog.last_ddl_ts if entry is None else entry.dropped_at
                if txn.snapshot < dropped_at:
                    raise ConflictError(
                        "the table was dropped by another transaction",
                        table=changes.entry.name,
                        winner_ts=dropped_at,
                    )

    def apply_record(self, prepared: Prepared, txn: Workspace | None = None) -> tuple[int, int]:
        """Take a timestamp, fold, log: (order, commit_ts). Caller holds the commit lock.

        Background work has no transaction: it changes objects, never rows or definitions.
        """
        engine, log = self.engine, self.log
        payload = prepared.payload
        log.reserve(len(payload))
        if self.next_ts >= engine.ts_ceiling or self._short_of_rowids(prepared):
            self._extend(prepared.rows)
            log.reserve(len(payload))
        commit_ts = self.next_ts
        try:
            self.next_ts = commit_ts + 1
            wall_us = self.clock.wall_us()
            if wall_us < engine.wall_us:
                wall_us = engine.wall_us
            patch_u64_be(payload, COMMIT_TS_AT, commit_ts)
            patch_u64_be(payload, WALL_US_AT, wall_us)
            if txn is not None:
                engine.tables |= txn.created
            for node, at in zip(prepared.nodes, prepared.rowid_at, strict=True):
                state = engine.tables[node.table_id]
                node.first_rowid = state.next_rowid
                patch_u64(payload, at, state.next_rowid)
                state.next_rowid += node.count
            if txn is not None and txn.ddl is not None:
                self._define(txn, txn.ddl, commit_ts)
            token = None if txn is None else txn.token
            info = Info(commit_ts=commit_ts, wall_us=wall_us, epoch=log.epoch, token=token)
            engine.fold(info, prepared.nodes, prepared.reshapes)
            order = log.append(GROUP_COMMIT, AC, payload, commit_ts)
        except BaseException as error:
            log.poison(error)
            raise
        return order, commit_ts

    def _define(self, txn: Workspace, ddl: CatalogTxn, commit_ts: int) -> None:
        ddl.commit(commit_ts)
        for table_id in (*txn.created, *txn.dropped):
            entry = self.engine.catalog.table_by_id(table_id)
            if entry is not None:
                self.engine.add_table(entry)

    def _short_of_rowids(self, prepared: Prepared) -> bool:
        ceiling = self.engine.rowid_ceiling
        tables = self.engine.tables
        return any(
            tables[node.table_id].next_rowid + prepared.rows > ceiling
            for node in prepared.nodes
            if node.table_id in tables
        )

    def _extend(self, rows: int = 0) -> None:
        """Promise this epoch another block of timestamps and RowIDs. Caller holds the lock.

        Durable before the first of them is used, in async mode too: whoever has seen a timestamp
        must never meet it again. That is one sync in a million commits.
        """
        engine = self.engine
        block = engine.options.sequence_block
        highest = max([engine.first_rowid, *(s.next_rowid for s in engine.tables.values())])
        node = EpochNode(
            epoch=self.log.epoch,
            ts_ceiling=max(engine.ts_ceiling, self.next_ts) + block,
            rowid_ceiling=max(engine.rowid_ceiling, highest + rows) + block,
        )
        order = self.append_system(EPOCH, encode_system(node))
        self.log.sync(order)
        engine.open_epoch(node)

    def promise_rowids(self, highest: int) -> None:
        """RowIDs up to this one are ours. Caller holds the lock."""
        if highest > self.engine.rowid_ceiling:
            self._extend(highest - self.engine.rowid_ceiling)

    def next_id(self) -> int:
        """The id of another transaction; it only tells records of one epoch apart."""
        return next(self._ids)

    def check_running(self) -> None:
        """UsageError or UnavailableError when nothing commits any more."""
        if self.stopped:
            raise UsageError("the database is closed")
        if self.log.failed is not None:
            text = "the database stopped after an error: close it and open it again"
            raise UnavailableError(text)

    def _known(self, txn: Workspace) -> int:
        """commit_ts of a token that another commit has brought meanwhile, else 0."""
        self.check_running()
        return self.engine.tokens.find(txn.token) if txn.token is not None else 0

    def _wait_known(self, commit_ts: int) -> int:
        while not self.log.wait_visible(commit_ts, 1.0):
            if self.log.failed is not None:
                raise UnavailableError("the database stopped after an error", outcome="unknown")
        return commit_ts

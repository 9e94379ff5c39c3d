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

from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import count as count_from
from struct import Struct
from threading import Lock

from halocline.catalog import CatalogTxn
from halocline.clock import Clock
from halocline.errors import ConflictError, UnavailableError, UsageError
from halocline.ids import NEVER
from halocline.log import Log
from halocline.log.format import AC, COMMITS, ENTRY_EXTRA_MAX, SYSTEM
from halocline.log.record import (
    EPOCH,
    JOB,
    SEQUENCE,
    STAMP_AT,
    Serial,
    add_serials,
    encode_body,
    encode_system_payload,
    stamp,
)
from halocline.rows.engine import EngineState
from halocline.rows.sequence import KEY_MAX
from halocline.rows.state import TableState
from halocline.rows.system import EpochNode, JobNode, SequenceNode
from halocline.rows.tidy import tidy
from halocline.rows.tokens import Token
from halocline.txn.altered import carry_over, conflict, is_behind, may_carry
from halocline.txn.bulk_ends import rewrite
from halocline.txn.check import ROUNDS_MAX, Check, checks_of
from halocline.txn.identity import KeyBlocks
from halocline.txn.indexing import index_objects
from halocline.txn.record import Prepared, add_late, prepare
from halocline.txn.row_commit import commit_addition, commit_row
from halocline.txn.turns import RowName, Turns
from halocline.txn.workspace import TableChanges, Workspace

patch_u64 = Struct("<Q").pack_into


class Committer:
    """The one place where commit timestamps are given out."""

    def __init__(self, engine: EngineState, log: Log, clock: Clock) -> None:
        self.engine = engine
        self.log = log
        self.clock = clock
        self.lock = Lock()
        self.next_ts = max(engine.ts_ceiling, engine.last_ts) + 1
        self._wall_us = clock.wall_us
        self.stopped = False
        """Nothing commits behind the last record of an epoch."""
        self.ids = count_from(1)
        """Ids of transactions: they only tell records of one epoch apart."""
        self.forgotten: list[JobNode] = []
        """Jobs of transactions that nobody ended: see jobs.give_up."""
        self.turns = Turns(clock, log.epoch << 32)
        self.keys = KeyBlocks(self.reserve_keys, engine.options.identity_block)
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
        if self.turns.rows:
            self._check_turns(txn.ticket, tables)
        checks = checks_of(self.engine, tables, txn.reads, txn.snapshot)
        txn_id = next(self.ids)
        rounds = 0
        while True:
            if carry_over(tables.values()):
                checks = checks_of(self.engine, tables, txn.reads, txn.snapshot)
            for check in checks:
                check.outside(self.lock)
            prepared = self._prepare(txn_id, txn, tables)
            with self.lock:
                known = self._known(txn)
                ready = bool(known) or self._check(txn, tables, checks)
                if not ready and rounds >= ROUNDS_MAX and not any(map(is_behind, tables.values())):
                    again = [check.all_inside() for check in checks]
                    if any(again):
                        prepared = self._prepare(txn_id, txn, tables)
                    ready = True
                if ready and not known:
                    if any(changes.summed for changes in tables.values()):
                        prepared = self._prepare(txn_id, txn, tables)
                    add_late(prepared, tables)
                    order, commit_ts = self.log_prepared(prepared, txn)
                    if txn.ticket and txn.waits:
                        self.turns.end(txn.ticket)
            if known:
                return self._wait_known(known)
            if ready:
                break
            rounds += 1
        if txn.waits:
            self.log.wait(order)
        return commit_ts

    def _prepare(self, txn_id: int, txn: Workspace, tables: dict[int, TableChanges]) -> Prepared:
        ddl = txn.own_ddl.nodes() if txn.own_ddl is not None else ()
        for changes in tables.values():
            rewrite(self, changes)
            index_objects(changes)
        return prepare(txn_id, self.log.epoch, tables, self._bulk_rows, ddl=ddl, token=txn.token)

    def _check_turns(self, ticket: int, tables: dict[int, TableChanges]) -> None:
        """ConflictError when it is the turn of another transaction at a row that is written.

        Rows that were written one by one are asked about. Bulk changes are many rows at once, and
        do not wait for any of them.
        """
        for table_id, changes in tables.items():
            if changes.home.key_of is None:
                continue
            for key in (*changes.own, *changes.deletes.values()):
                if self.turns.blocks(ticket, (table_id, changes.schema.key_bytes(key))):
                    reason = "it is the turn of another transaction at this row"
                    raise ConflictError(reason, table=changes.entry.name, key=key)

    def tidy(self, state: TableState) -> None:
        """Freeze and merge what a commit left behind. Called when its outcome is settled."""
        tidy(state, self.lock)
        if self.after_tidy is not None:
            self.after_tidy(state)

    commit_single = commit_row
    commit_addition = commit_addition

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

    def append_system(
        self,
        kind: int,
        payload: bytes,
        *,
        type: int = AC,
        last: bool = False,
        fold: Callable[[], None] | None = None,
    ) -> int:
        """Log one system node. Caller holds the commit lock and waits for the order afterwards.

        `last`: on a full disk it may use what every commit leaves of the file, so that GC can free
        something. Nobody else may: a commit needs it for the timestamps it promises. `fold`: what
        must not happen without the entry, nor the entry without it.
        """
        record = encode_system_payload(next(self.ids), [(kind, payload)])
        try:
            self.log.reserve(len(record))
        except UnavailableError:
            if not last:
                raise
            self.log.reserve(len(record), ENTRY_EXTRA_MAX)
        try:
            if fold is not None:
                fold()
            return self.log.append(SYSTEM, type, record)
        except BaseException as error:
            if fold is not None:
                self.log.poison(error)
            raise

    def open_epoch(self) -> None:
        """First record of an epoch: what it may use, durable before anything is served."""
        with self.lock:
            self._extend()

    def close_epoch(self) -> None:
        """Last record of an epoch: exactly what it used, so that the next leaves no gap."""
        engine = self.engine
        self.turns.close("the database is closed")
        unused = self.keys.close()
        with self.lock:
            self.stopped = True
            for table_id, (start, stop) in unused.items():
                sequence = engine.sequences.get(table_id)
                if sequence is not None and sequence.ceiling == stop - 1:
                    self._promise_keys(table_id, start - 1)
            tables = engine.tables.values()
            used = max([engine.first_rowid - 1, *(state.next_rowid - 1 for state in tables)])
            node = EpochNode(
                epoch=self.log.epoch, ts_ceiling=self.next_ts - 1, rowid_ceiling=used, closed=True
            )
            order = self.append_system(EPOCH, encode_body(node))
        self.log.wait(order)

    def _check(self, txn: Workspace, tables: dict[int, TableChanges], checks: list[Check]) -> bool:
        """The last round; False when more has to be done outside. Caller holds the commit lock."""
        if txn.own_ddl is not None:
            txn.own_ddl.prepare()
        self._check_jobs(tables)
        if self.engine.last_ts <= txn.snapshot:
            return True
        if self.engine.catalog.last_ddl_ts > txn.snapshot:
            self._check_schema(txn, tables)
            if any(map(is_behind, tables.values())):
                return False
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
            if is_behind(changes) and not may_carry(changes):
                raise conflict(changes.home)
            if entry is None or entry.dropped_at != NEVER:
                dropped_at = self.engine.catalog.last_ddl_ts if entry is None else entry.dropped_at
                if txn.snapshot < dropped_at:
                    raise ConflictError(
                        "the table was dropped by another transaction",
                        table=changes.entry.name,
                        winner_ts=dropped_at,
                    )

    def log_record(
        self,
        payload: bytearray,
        fold: Callable[[int], None],
        count: int = 1,
        token: Token | None = None,
        serials: Sequence[Serial] = (),
    ) -> tuple[int, int]:
        """Take timestamps, fold, append to the log: (order, first commit_ts).

        Every commit ends here, `count` of them at once, and nowhere else. Caller holds the commit
        lock, has checked all there is to check, and owns the RowIDs that it needs. `fold` is given
        the first timestamp, and puts RowIDs into the payload.
        """
        engine, log = self.engine, self.log
        if serials:
            add_serials(payload, serials)
        log.reserve(len(payload))
        if self.next_ts + count > engine.ts_ceiling:
            self._extend()
            log.reserve(len(payload))
        first_ts = self.next_ts
        try:
            self.next_ts = first_ts + count
            wall_us = self._wall_us()
            if wall_us < engine.wall_us:
                wall_us = engine.wall_us
            stamp(payload, STAMP_AT, first_ts, wall_us)
            # Fold first: once it is in the log it may become visible at any moment.
            fold(first_ts)
            if count == 1 and token is None and not serials:
                # `stamp` in place: 0.15 us of the 7 a commit takes.
                times = engine.times
                times.walls.append(wall_us)
                times.stamps.append(first_ts)
                engine.wall_us, engine.last_ts = wall_us, first_ts
            else:
                engine.stamp(first_ts, count, wall_us, token, serials=serials)
            order = log.append(COMMITS, AC, payload, first_ts + count - 1)
        except BaseException as error:
            log.poison(error)
            raise
        return order, first_ts

    def log_prepared(self, prepared: Prepared, txn: Workspace | None = None) -> tuple[int, int]:
        """Commit a prepared record: (order, commit_ts). Caller holds the commit lock.

        Background work has no transaction: it changes objects, never rows or definitions.
        """
        for node in prepared.nodes:
            state = self.engine.tables.get(node.table_id)
            if state is not None:
                self.promise_rowids(state.next_rowid + prepared.rows)
        fold = partial(self._fold, prepared, txn)
        if txn is None:
            return self.log_record(prepared.payload, fold)
        serials = () if txn.serial is None else (txn.serial,)
        return self.log_record(prepared.payload, fold, token=txn.token, serials=serials)

    def _fold(self, prepared: Prepared, txn: Workspace | None, commit_ts: int) -> None:
        engine = self.engine
        if txn is not None:
            engine.tables |= txn.created
        for node, at in zip(prepared.nodes, prepared.rowid_at, strict=True):
            state = engine.tables[node.table_id]
            node.first_rowid = state.next_rowid
            patch_u64(prepared.payload, at, state.next_rowid)
            state.next_rowid += node.count
        if txn is not None and txn.own_ddl is not None:
            self._define(txn, txn.own_ddl, commit_ts)
        engine.fold_nodes(commit_ts, 1, prepared.nodes, prepared.reshapes)

    def _define(self, txn: Workspace, ddl: CatalogTxn, commit_ts: int) -> None:
        changed = {*txn.created, *txn.dropped, *ddl.altered, *ddl.indexed}
        ddl.commit(commit_ts)
        for table_id in sorted(changed):
            entry = self.engine.catalog.table_by_id(table_id)
            if entry is not None:
                self.engine.define(entry, commit_ts)

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
        order = self.append_system(EPOCH, encode_body(node))
        self.log.sync(order)
        engine.open_epoch(node)

    def promise_rowids(self, highest: int) -> None:
        """RowIDs up to this one are ours. Caller holds the lock."""
        if highest > self.engine.rowid_ceiling:
            self._extend(highest - self.engine.rowid_ceiling)

    def check_running(self) -> None:
        """UsageError or UnavailableError when nothing commits any more."""
        if self.stopped:
            raise UsageError("the database is closed")
        if self.log.failed is not None:
            raise self.log.refusal("not_committed")

    def check_reachable(self) -> None:
        """As `check_running`, and MovedError when the log is not where an opening looks for it."""
        self.check_running()
        self.log.check_place()

    def _known(self, txn: Workspace) -> int:
        """commit_ts of a token or serial that another commit has brought meanwhile, else 0."""
        self.check_running()
        if txn.serial is not None:
            return self.engine.serials.find(txn.serial)
        return self.engine.tokens.find(txn.token) if txn.token is not None else 0

    def _wait_known(self, commit_ts: int) -> int:
        while not self.log.wait_visible(commit_ts, 1.0):
            if self.log.failed is not None:
                raise UnavailableError("the database stopped after an error", outcome="unknown")
        return commit_ts

    # Turns.

    def new_ticket(self) -> int:
        """A ticket for turns, younger than all others."""
        return self.turns.new_ticket()

    def take_turns(
        self, ticket: int, rows: Collection[RowName], timeout_s: float, *, lasts: bool = False
    ) -> None:
        """Wait until it is the ticket's turn at all these rows.

        What was committed before, perhaps by one who had no turn, is visible when this returns.
        """
        self.turns.take(ticket, rows, timeout_s, lasts=lasts)
        tables = {table_id for table_id, _ in rows} & self.engine.tables.keys()
        newest = max((self.engine.tables[table_id].last_ts for table_id in tables), default=0)
        if newest > self.log.visible_ts:
            self._wait_known(newest)

    def begin_turn(self, ticket: int, rows: Collection[RowName], timeout_s: float) -> int:
        """Wait for the turn at these rows; returns the newest snapshot, durable or not.

        Who had the turn before gave it up when its commit was in the log buffer. Ours comes behind
        it in the log, so both share a sync and ours cannot be durable without it.
        """
        self.turns.take(ticket, rows, timeout_s)
        return self.engine.last_ts

    def settle(self, snapshot: int) -> None:
        """Wait until a snapshot is durable and visible; UnavailableError when it never will be."""
        try:
            if snapshot > self.log.visible_ts:
                self._wait_known(snapshot)
        except UnavailableError:
            # Of a run that has committed behind that snapshot: nobody knows.
            raise self.log.refusal("unknown") from None

    def end_turns(self, ticket: int) -> None:
        """Give up all turns of a ticket."""
        self.turns.end(ticket)

    def lapse_turns(self, ticket: int) -> None:
        """Give up all turns of a ticket some time soon. May be called at any moment."""
        self.turns.lapsed.append(ticket)

    # Jobs and definitions.

    def start_job(
        self, state: TableState | None, *, rows: int = 0, lease_us: int = 0, job_id: int = 0
    ) -> JobNode:
        """Log a job and the RowIDs it may use; durable when this returns.

        The table may be one that an open transaction is only about to create. None: the job is
        about the whole database, as a checkpoint's is; its table id is 0. `job_id` is that of a
        live job which goes on and needs further RowIDs.
        """
        engine = self.engine
        with self.lock:
            self.check_running()
            first = state.next_rowid if state is not None and rows else 0
            self.promise_rowids(first + rows)
            job = JobNode(
                job_id=job_id or engine.last_job_id + 1,
                table_id=0 if state is None else state.table_id,
                first_rowid=first,
                rows=rows,
                lease_us=lease_us,
            )
            order = self.append_system(JOB, encode_body(job))
            engine.start_job(job)
            if state is not None:
                state.skip_to(first + rows)
        self.log.sync(order)
        return job

    def end_job(self, job: JobNode) -> None:
        """Give a job up: whatever it wrote may be removed."""
        with self.lock:
            if job.job_id not in self.engine.jobs or self.stopped:
                return
            ended = JobNode(job_id=job.job_id, table_id=job.table_id, ended=True)
            order = self.append_system(JOB, encode_body(ended), last=True)
            self.engine.start_job(ended)
        self.log.wait(order)

    def reserve_keys(self, state: TableState, count: int, above: int) -> tuple[int, int]:
        """The first and the last of so many keys that nobody has, or of those that are left.

        Durable when this returns, in async mode too: see `_extend`.
        """
        with self.lock:
            self.check_running()
            sequence = self.engine.sequence_of(state.table_id)
            first = max(sequence.ceiling, sequence.top, above) + 1
            last = min(first + count - 1, KEY_MAX)
            if last < first:
                return first, last
            order = self._promise_keys(state.table_id, last)
        self.log.sync(order)
        return first, last

    def _promise_keys(self, table_id: int, ceiling: int) -> int:
        node = SequenceNode(table_id=table_id, ceiling=ceiling)
        order = self.append_system(SEQUENCE, encode_body(node))
        self.engine.promise_keys(node)
        return order

    def begin_ddl(self, snapshot: int) -> CatalogTxn:
        """Open the catalog's part of a transaction."""
        return self.engine.catalog.begin(snapshot)

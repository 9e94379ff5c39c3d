"""Twin: an engine and the model side by side, taking every step together.

    step --> model: a value, or the errors it must fail with
         '-> engine: a value, or an error              the two must agree

Transactions live in numbered slots, all open at once on one thread. A step on a slot without one
begins one first, so a history that was cut short still means something.

Upkeep (moves, compaction, checkpoints, GC) is a step that the model knows nothing of, but for the
timestamps it takes and the floor that GC raises: whatever it does, all must look as before. The
power may go at any operation of it.

The whole database is compared, not only what steps happen to read: by `compare`, which a history
asks for when it likes, and at its end three times: the live database, one opened read-only that has
folded the log by itself, and the same directory opened again, the first and the last also in the
past.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest

import halocline as hc
from halocline import (
    ConflictError,
    Database,
    HaloclineError,
    Options,
    SnapshotExpiredError,
    Transaction,
    UnavailableError,
    UsageError,
)
from halocline.store import Files, LocalFiles
from tests.clock import ManualClock
from tests.model.model import Model, Refused, Txn
from tests.model.shapes import (
    PLACES,
    Aggregate,
    Input,
    Key,
    Order,
    Row,
    Shape,
    Where,
    bag,
)
from tests.roles import maintenance_of
from tests.store.faulty import FaultyFiles, SimulatedCrash

E = TypeVar("E", bound=Exception)

SLOTS = 4
PAST_MAX = 100 if os.environ.get("HALOCLINE_SIM") else 4
"""Timestamps of the past that are looked at, when a history ends."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Memory:
    """A disk in memory that can lose its power. Every sync is free, so commits are synced."""

    durability = "sync"

    def __init__(self) -> None:
        self._files = FaultyFiles()

    def files(self) -> Files:
        return self._files

    def lose_power(self, seed: int) -> None:
        """Keep what was synced and a random part of the rest."""
        self._files = self._files.crash_image(seed)

    def fail_at(self, operation: int) -> None:
        """The power goes at the n-th operation from now on; 0: at none."""
        self._files.clear()
        if operation:
            self._files.crash(operation, ("before", "inside", "after")[operation % 3])

    def objects(self) -> list[str]:
        """The files in the object store."""
        return self._files.objects.list()

    def remove(self) -> None:
        pass


class Disk:
    """A directory. Commits are not synced, which changes nothing but the time it takes."""

    durability = "async"
    folder: str | None = None

    def __init__(self) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="halocline-model-", dir=self.folder))

    def files(self) -> Files:
        return LocalFiles(self._root / "db")

    def remove(self) -> None:
        shutil.rmtree(self._root)


class Nodes(Disk):
    """A directory that two handles have open: the owner's, and one that commits through it.

    Slots take turns between them; all that is no transaction goes through the second. Commits are
    synced, as only that is seen by both at once; in memory, where there is a place for it.
    """

    durability = "sync"
    folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class Twin:
    """One database, twice."""

    def __init__(
        self,
        store: Memory | Disk,
        *,
        bulk_rows: int,
        retention_s: int = 0,
        object_rows_min: int = 2,
        object_rows: int = 4,
        checkpoint_log_bytes: int = 1 << 20,
    ) -> None:
        self.store = store
        self.clock = ManualClock()
        self.options = Options(
            page_rows=4,
            bulk_rows=bulk_rows,
            object_rows=object_rows,
            row_group_rows=4,
            object_rows_min=object_rows_min,
            move_rows=4,
            move_tombstones=3,
            move_age_s=10,
            compact_depth=2,
            checkpoint_log_bytes=checkpoint_log_bytes,
            log_file_bytes=8192,
            log_file_bytes_first=4096,
            sequence_block=16,
            sql_threads=1,
            background=False,
        )
        self.retention_s = retention_s
        self.model = Model(retention_us=retention_s * 1_000_000)
        self.slots: list[tuple[Transaction, Txn] | None] = [None] * SLOTS
        self.ended: list[Transaction] = []
        self.follower: Database | None = None
        self.owner: Database | None = None
        """The handle that owns the database, where that is not `db`."""
        self.contiguous = False
        """Whether the next commit must get the very next timestamp: not after an opening."""
        self.done: Counter[str] = Counter()
        """How often rows moved, checkpoints were written, GC ran, the database was reopened."""
        self.db = self._open()

    # Transactions.

    def begin(self, slot: int, *, serializable: bool = False, token: Any = None) -> None:
        self.end(slot)
        isolation = "serializable" if serializable else "snapshot"
        txn = self._handle(slot).begin(isolation=isolation, token=token)
        model = self.model.begin(serializable=serializable, token=token)
        self.slots[slot] = (txn, model)
        assert txn.snapshot == model.snapshot
        assert txn.already_committed == bool(model.known_ts)

    def begin_at(self, slot: int, at: int | datetime | str) -> None:
        self.end(slot)

        def begin() -> Txn:
            if isinstance(at, str):
                return self.model.begin_at(self.model.named(at))
            return self.model.begin_at(at if isinstance(at, int) else self.model.ts_at(_us(at)))

        found = self.agree(begin, lambda: self._handle(slot).begin(at=at), None)
        if found is not None:
            model, txn = found
            assert txn.snapshot == model.snapshot
            self.slots[slot] = (txn, model)

    def commit(self, slot: int) -> None:
        txn, model = self.at(slot)
        verdict, settled = self.model.verdict(model), self.model.settled(model)
        wrote = model.wrote()
        self._put_away(slot)
        conflict: ConflictError | None = None
        try:
            ts = txn.commit()
        except ConflictError as error:
            conflict = error
        if conflict is not None:
            assert verdict != "commits", f"the engine sees a conflict: {conflict}"
            assert conflict.winner_ts == 0 or model.snapshot < conflict.winner_ts <= self.model.now
            assert txn.commit_ts is None
            self.model.rollback(model)
            return
        assert verdict != "conflicts", f"the engine sees no conflict and commits at {ts}"
        assert txn.commit_ts == ts
        if settled is not None:
            assert ts == settled
        elif wrote:
            assert ts is not None
            low, high = self.model.now + 1, self.model.now + (1 if self.contiguous else 1000)
            assert low <= ts <= high, f"commit at {ts}, expected {low}..{high}"
            self.contiguous = True
        else:
            assert ts is None, f"nothing was written, yet the commit took timestamp {ts}"
        self.model.commit(model, ts, self.clock.now_us)
        assert self.db.visible_ts == self.model.now

    def rollback(self, slot: int) -> None:
        txn, model = self.at(slot)
        self._put_away(slot)
        txn.rollback()
        self.model.rollback(model)

    def end(self, slot: int) -> None:
        """Make room in a slot."""
        if self.slots[slot] is not None:
            self.rollback(slot)

    def use_ended(self, choice: int) -> None:
        """A transaction that is over refuses everything, whatever ended it."""
        if self.ended:
            txn = self.ended[choice % len(self.ended)]
            for call in (
                lambda: txn.get("num", 1),
                lambda: txn.insert("num", {"n": 1, "c": 1}),
                lambda: txn.scan("bare"),
                txn.tables,
                lambda: txn.drop_table("num"),
                txn.commit,
            ):
                self.agree(_refuse_use, call)

    # Writing.

    def insert(self, slot: int, name: str, rows: Input) -> None:
        txn, model = self.at(slot)
        self.agree(
            lambda: self.model.insert(model, name, rows.written()),
            lambda: txn.insert(name, rows.given()),
        )

    def upsert(self, slot: int, name: str, rows: Input) -> None:
        txn, model = self.at(slot)
        self.agree(
            lambda: self.model.upsert(model, name, rows.written()),
            lambda: txn.upsert(name, rows.given()),
        )

    def update(self, slot: int, name: str, key: Key, values: Row) -> None:
        txn, model = self.at(slot)
        self.agree(
            lambda: self.model.update(model, name, key, values),
            lambda: txn.update(name, key, values),
        )

    def add(self, slot: int, name: str, key: Key, amounts: dict[str, int], values: Row) -> None:
        txn, model = self.at(slot)
        terms = {column: hc.add(amount) for column, amount in amounts.items()}
        self.agree(
            lambda: self.model.add(model, name, key, amounts, values),
            lambda: txn.update(name, key, values | terms),
        )

    def update_where(self, slot: int, name: str, where: Where, values: Row) -> None:
        txn, model = self.at(slot)
        self.agree(
            lambda: self.model.update_where(model, name, where, values),
            lambda: txn.update(name, where=where.text, params=where.given, set=values),
        )

    def delete(self, slot: int, name: str, key: Key) -> None:
        txn, model = self.at(slot)
        self.agree(lambda: self.model.delete(model, name, key), lambda: txn.delete(name, key))

    def delete_where(self, slot: int, name: str, where: Where) -> None:
        txn, model = self.at(slot)
        self.agree(
            lambda: self.model.delete_where(model, name, where),
            lambda: txn.delete(name, where=where.text, params=where.given),
        )

    def truncate(self, slot: int, name: str) -> None:
        txn, model = self.at(slot)
        self.agree(lambda: self.model.truncate(model, name), lambda: txn.truncate(name))

    # Reading.

    def get(self, slot: int, name: str, key: Key) -> None:
        txn, model = self.at(slot)
        self.agree(lambda: self.model.get(model, name, key), lambda: txn.get(name, key))

    def get_many(self, slot: int, name: str, keys: Sequence[Key]) -> None:
        txn, model = self.at(slot)
        self.agree(
            lambda: self.model.get_many(model, name, keys),
            lambda: txn.get_many(name, list(keys)).to_pylist(),
        )

    def range(
        self,
        slot: int,
        name: str,
        low: Key | None = None,
        high: Key | None = None,
        reverse: bool = False,
        limit: int | None = None,
    ) -> None:
        txn, model = self.at(slot)

        def expected() -> list[Row]:
            rows = self.model.range(model, name, low, high)
            return (rows[::-1] if reverse else rows)[:limit]

        self.agree(
            expected,
            lambda: txn.range(name, low, high, reverse=reverse, limit=limit).to_pylist(),
        )

    def scan(
        self,
        slot: int,
        name: str,
        where: Where | None = None,
        order: Order | None = None,
        limit: int | None = None,
        stream: bool = False,
    ) -> None:
        txn, model = self.at(slot)
        found = self.agree(
            lambda: self.model.scan(model, name),
            lambda: txn.scan(
                name,
                where=None if where is None else where.text,
                params=None if where is None else where.given,
                order=None if order is None else order.given,
                limit=limit,
                stream=stream,
            ),
            None,
        )
        if found is None:
            return
        (shape, seen), table = found
        rows = _rows(table.read_all() if stream else table, shape)
        wanted = [row for row in seen if where is None or where.holds(row)]
        assert len(rows) == len(wanted[:limit])
        assert bag(rows, shape.columns) <= bag(wanted, shape.columns)
        if order is not None:
            assert [order.key(row) for row in rows] == sorted(map(order.key, wanted))[:limit]

    def aggregate(self, slot: int, name: str, other: str, query: Aggregate) -> None:
        txn, model = self.at(slot)

        def expected() -> Row:
            _, rows = self.model.scan(model, name)
            if "{1}" not in query.text:
                return query.answer(rows, [])
            return query.answer(rows, self.model.scan(model, other)[1])

        def actual() -> Row:
            (row,) = txn.sql(query.text.format(name, other)).to_pylist()
            return {column: None if value is None else int(value) for column, value in row.items()}

        self.agree(expected, actual)

    def count(self, name: str, at: int | None) -> None:
        """Number of rows outside of any transaction, now or in the past."""

        def expected() -> int:
            txn = self.model.begin() if at is None else self.model.begin_at(at)
            try:
                return len(self.model.scan(txn, name)[1])
            finally:
                self.model.rollback(txn)

        def there() -> None:
            txn = self.model.begin()
            try:
                self.model.scan(txn, name)
            finally:
                self.model.rollback(txn)

        found = self.agree(there, lambda: self.db.table(name), None)
        if found is not None:
            self.agree(expected, lambda: found[1].count(at=at))

    def tables(self, slot: int) -> None:
        txn, model = self.at(slot)
        self.agree(lambda: self.model.table_names(model), txn.tables)

    def changes(self, name: str, since: int, until: int | None) -> None:
        self._compare_changes(self.db, self.model, name, since, until)

    # DDL.

    def create(self, slot: int, name: str, shape: Shape, lenient: bool = False) -> None:
        txn, model = self.at(slot)
        key = list(shape.key) or None
        self.agree(
            lambda: self.model.create(model, name, shape, if_not_exists=lenient),
            lambda: txn.create_table(name, shape.schema, key, if_not_exists=lenient),
        )

    def drop(self, slot: int, name: str, lenient: bool = False) -> None:
        txn, model = self.at(slot)
        self.agree(
            lambda: self.model.drop(model, name, if_exists=lenient),
            lambda: txn.drop_table(name, if_exists=lenient),
        )

    # The database.

    def pause(self) -> None:
        """Nothing happens."""

    def turn_clock(self, seconds: int) -> None:
        self.clock.advance(seconds)

    def gc(self) -> None:
        self.done["gc"] += 1
        report = self.db.gc()
        before, highest = self.model.floor, self.model.gc(self.clock.now_us)
        assert report["floor"] == self.db.floor
        if isinstance(self.store, Nodes) and self.model.open:
            # The pin of another process may be a little older than its transactions.
            assert before <= self.db.floor <= highest
            self.model.floor = self.db.floor
        assert self.db.floor == self.model.floor
        self._check_expiry(self.db)

    def keep(self, name: str) -> None:
        self.agree(lambda: self.model.keep(name), lambda: self.db.snapshot(name))

    def forget(self, name: str) -> None:
        self.agree(lambda: self.model.forget(name), lambda: self.db.drop_snapshot(name.upper()))

    def flush(self, name: str | None = None) -> None:
        """Rows and tombstones of one table, or of all, become objects."""
        self._upkeep(name, lambda: self.db.flush(name))

    def compact(self, name: str | None = None) -> None:
        self._upkeep(name, lambda: self.db.compact(name))

    def checkpoint(self) -> None:
        self.done["checkpoint"] += 1
        self._upkeep(None, self.db.checkpoint)

    def background(self) -> None:
        """What the background does when it looks once: what is due moves, the rest stays."""

        def look() -> None:
            owner = self.owner or self.db
            assert maintenance_of(owner).mover is not None
            assert maintenance_of(owner).checkpoints is not None
            maintenance_of(owner).mover.step()
            maintenance_of(owner).checkpoints.step()

        self._upkeep(None, look)

    def _upkeep(self, name: str | None, work: Callable[[], object]) -> None:
        """Do it, unless there is no table of that name; only timestamps may pass."""

        def there() -> None:
            txn = self.model.begin()
            try:
                if name is not None:
                    self.model.scan(txn, name)
            finally:
                self.model.rollback(txn)

        before = self._rows_in_memory()
        self.agree(there, work, None)
        self.done["move"] += self._rows_in_memory() < before
        self._pass_time()

    def _rows_in_memory(self) -> int:
        states = (self.owner or self.db).core.engine.tables.values()
        return sum(count for state in states for _, count in state.shape.counted())

    def reopen(self, power_loss: int | None, retention_s: int | None = None) -> None:
        """Close and open again; or lose the power, and open what the disk still has."""
        self.done["reopen"] += 1
        self._forget_transactions()
        if power_loss is None or isinstance(self.store, Disk):
            self._close_all()
        else:
            self.store.lose_power(power_loss)
            self._close_all()
        self._reopen(retention_s)

    def crash_in(self, work: str, operation: int, seed: int) -> None:
        """The power goes at the n-th operation of some upkeep; open what the disk still has."""
        if isinstance(self.store, Disk):
            return
        floor = self.model.floor
        highest = self.model.gc(self.clock.now_us) if work == "gc" else floor
        self.store.fail_at(operation)
        with suppress(SimulatedCrash, UnavailableError):
            getattr(self.db, work)()
        self._forget_transactions()
        self.store.lose_power(seed)
        with suppress(SimulatedCrash, UnavailableError):
            self._close_all()
        self.model.floor = floor
        self.db = self._open()
        assert floor <= self.db.floor <= highest
        self.model.floor = self.db.floor
        self._pass_time()
        self.compare(self.db)
        assert not self.db.check()

    def _forget_transactions(self) -> None:
        for slot, pair in enumerate(self.slots):
            if pair is not None:
                self._put_away(slot)
        self.model.close()

    def _reopen(self, retention_s: int | None = None) -> None:
        if retention_s is not None:
            self.retention_s = retention_s
            self.model.retention_us = retention_s * 1_000_000
        self.db = self._open()
        self._pass_time()
        self.compare(self.db)

    def _pass_time(self) -> None:
        self.model.pass_time(self.db.visible_ts, self.clock.now_us)

    def follow(self) -> None:
        """A reader beside the writer, opened once, has what the log had when it looked."""
        if self.follower is None:
            self.follower = self._open(read_only=True)
        follower = self.follower
        with follower.begin() as txn:
            seen = txn.snapshot
        if self.store.durability == "sync":
            assert seen == self.model.now
            self.compare(follower)
        else:
            assert seen <= self.model.now
            self._compare_tables(follower, seen, keys=True)

    def compare(self, db: Database) -> None:
        """What can be seen from outside: now, at the floor, and all that happened in between."""
        model = self.model
        assert db.visible_ts == model.now
        assert db.floor == model.floor
        self._compare_tables(db, model.now, keys=True)
        if model.floor < model.now:
            self._compare_tables(db, model.floor, keys=False)
        for table in model.tables_at(model.now):
            self._compare_changes(db, model, table.name, model.floor, None)
        self._check_expiry(db)

    def compare_past(self, db: Database, most: int) -> None:
        """The past, commit by commit; of many commits every so many."""
        model = self.model
        past = [ts for ts in model.commits if model.floor < ts < model.now]
        for place, ts in enumerate(past[:: 1 + len(past) // most]):
            self._compare_tables(db, ts, keys=place % 4 == 0)
        for table in model.tables_at(model.now) if past else ():
            self._compare_changes(db, model, table.name, past[len(past) // 2], None)

    def finish(self) -> None:
        """The end of a history: live, replayed by a reader, and opened again."""
        for slot in range(SLOTS):
            self.end(slot)
        self.compare(self.db)
        self.compare_past(self.db, PAST_MAX // 2)
        assert not self.db.check()
        if self.follower is not None:
            self.follow()
        self._close_all()
        for read_only in (True, False):
            db = self._open(read_only=read_only)
            self.model.pass_time(db.visible_ts, self.clock.now_us)
            self.compare(db)
            if not read_only:
                self.compare_past(db, PAST_MAX)
                self._check_nothing_is_left(db)
            db.close()
            if self.owner is not None and not read_only:
                self.owner.close()

    def abandon(self) -> None:
        """Let go of everything, also after a failure."""
        try:
            self._close_all()
        finally:
            self.store.remove()

    def _check_nothing_is_left(self, db: Database) -> None:
        """GC leaves no file that nobody refers to, and takes none that somebody does."""
        self.model.gc(self.clock.now_us)
        db.gc()
        self._compare_tables(db, self.model.now, keys=False)
        assert not db.check()
        if isinstance(self.store, Memory):
            engine = db.core.engine
            tiers = [state.shape.tier for state in engine.tables.values()]
            known = {entry.key for tier in tiers for entry in tier.by_id.values()}
            assert set(self.store.objects()) == known | set(engine.kept_files)

    # The two sides.

    def agree(
        self, expected: Callable[[], Any], actual: Callable[[], Any], compare: object = ...
    ) -> tuple[Any, Any] | None:
        """Run both. Returns both values, or None when both refuse.

        Where the model has no opinion on the value, it expects None.
        """
        refused, wanted = _outcome(expected, Refused)
        error, got = _outcome(actual, HaloclineError)
        if error is not None:
            assert refused is not None, f"refused, expected {wanted!r}: {error!r}"
            assert isinstance(error, refused.errors), f"expected {refused.errors}, got {error!r}"
            return None
        assert refused is None, f"expected {refused.errors}, got {got!r}"
        if compare is not None and wanted is not None:
            assert got == wanted
        return wanted, got

    def at(self, slot: int) -> tuple[Transaction, Txn]:
        if self.slots[slot] is None:
            self.begin(slot)
        pair = self.slots[slot]
        assert pair is not None
        return pair

    # Private.

    def _open(self, *, read_only: bool = False) -> Database:
        self.contiguous = self.contiguous and read_only

        def handle() -> Database:
            return Database(
                self.store.files(),
                "model",
                read_only=read_only,
                durability=self.store.durability,
                retention=self.retention_s,
                options=self.options,
                clock=self.clock,
            )

        if isinstance(self.store, Nodes) and not read_only:
            self.owner = handle()
        return handle()

    def _handle(self, slot: int) -> Database:
        return self.db if self.owner is None or slot % 2 == 0 else self.owner

    def _close_all(self) -> None:
        follower, self.follower = self.follower, None
        try:
            if follower is not None:
                follower.close()
        finally:
            self.db.close()
            owner, self.owner = self.owner, None
            if owner is not None:
                owner.close()

    def _put_away(self, slot: int) -> None:
        """The slot is free; the transaction is kept, to be misused later."""
        pair = self.slots[slot]
        assert pair is not None
        self.ended = [*self.ended[-3:], pair[0]]
        self.slots[slot] = None

    def _compare_tables(self, db: Database, ts: int, *, keys: bool) -> None:
        model = self.model
        with db.begin(at=ts) as txn:
            tables = model.tables_at(ts)
            assert txn.tables() == sorted(table.name for table in tables)
            for table in tables:
                shape = table.shape
                rows = [version.row for version in table.at(ts)]
                found = _rows(txn.scan(table.name), shape)
                assert bag(found, shape.columns) == bag(rows, shape.columns)
                if keys and shape.key:
                    self._compare_keys(txn, table.name, shape, rows)
        for table in tables:
            if table.end > model.now:
                assert db.table(table.name).count(at=ts) == len(table.at(ts))

    def _compare_keys(self, txn: Transaction, name: str, shape: Shape, rows: list[Row]) -> None:
        by_key = {shape.key_of(row): row for row in rows}
        for place in range(PLACES):
            key = shape.key_of(shape.key_values(place))
            assert txn.get(name, key) == by_key.get(key)
        ordered = [by_key[key] for key in sorted(by_key)]
        assert _rows(txn.range(name), shape) == ordered
        assert _rows(txn.get_many(name, sorted(by_key)), shape) == ordered

    def _compare_changes(
        self, db: Database, model: Model, name: str, since: int, until: int | None
    ) -> None:
        found = self.agree(
            lambda: model.changes(name, since, until),
            lambda: db.changes(name, since=since, until=until),
            None,
        )
        if found is None:
            return
        wanted, table = found
        events = table.to_pylist()
        stamps = [event["_commit_ts"] for event in events]
        assert stamps == sorted(stamps)
        columns = table.column_names[:-2]
        assert bag(events, [*columns, "_change", "_commit_ts"]) == bag(
            ({**row, "_change": kind, "_commit_ts": ts} for ts, kind, row in wanted),
            [*columns, "_change", "_commit_ts"],
        )
        self._check_feed_applies(model, name, columns, since, until, events)

    def _check_feed_applies(
        self,
        model: Model,
        name: str,
        columns: list[str],
        since: int,
        until: int | None,
        events: list[Row],
    ) -> None:
        """Applied one by one, in their order, the events lead from one state to the other."""
        end = model.now if until is None else until
        table = next(t for t in model.tables_at(end) if t.name.casefold() == name.casefold())
        state = bag((version.row for version in table.at(since)), columns)
        key_at = [columns.index(part) for part in table.shape.key]
        for event in events:
            row = tuple(event[column] for column in columns)
            if event["_change"] in {"delete", "update_before"}:
                assert state[row] > 0
                state[row] -= 1
            else:
                state[row] += 1
                keys = [tuple(r[i] for i in key_at) for r, times in state.items() if times > 0]
                assert not key_at or len(set(keys)) == len(keys)
        if since <= end:
            assert +state == bag((version.row for version in table.at(end)), columns)

    def _check_expiry(self, db: Database) -> None:
        """The floor can be read, what lies below it cannot."""
        floor = self.model.floor
        db.begin(at=floor).rollback()
        if floor:
            with pytest.raises(SnapshotExpiredError) as caught:
                db.begin(at=floor - 1)
            assert (caught.value.ts, caught.value.floor) == (floor - 1, floor)


def _outcome(call: Callable[[], Any], error: type[E]) -> tuple[E | None, Any]:
    """(None, value) or (error, None)."""
    try:
        return None, call()
    except error as raised:
        return raised, None


def _rows(table: pa.Table, shape: Shape) -> list[Row]:
    assert table.schema.equals(shape.schema)
    return table.to_pylist()


def _refuse_use() -> None:
    raise Refused(UsageError)


def _us(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)

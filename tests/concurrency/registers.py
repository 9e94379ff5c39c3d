"""Registers: what concurrent transactions read and wrote, and whether any order explains it.

    threads --record--> [Record] --check_history--> AssertionError with the seed, or nothing

Each thread runs transactions on a few registers, rows with a key and a value. Every write writes a
value that was never written before, and every addition (`hc.add`) adds an amount that is large and
random, so a value that was read names the commits it came from. The engine says which snapshot a
transaction has and at which timestamp it committed; the rest is arithmetic:

- a read returns the value of the newest commit at or below the snapshot, or one's own write;
- of two transactions that wrote one register, the later one began after the earlier one committed,
  unless the register was empty both when it began and when it committed: filling it is then fair;
- an addition stands beside other additions, and beside nothing else that was done to its register
  between its snapshot and its commit; none is lost and none counts twice;
- a snapshot is not older than any commit that was acknowledged before it was taken;
- if the transaction is serializable and wrote, its reads also hold at its own place in the order of
  commits: that order is then a serial order that explains everything;
- a row that was read `for_update` is such a read of any transaction that wrote.

Of clients that work one transaction after the other, `check_sessions` asks two things more.

Nothing is said of transactions that failed but that their reads were right and that nobody has seen
their values.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random

import pyarrow as pa

import halocline as hc
from tests.concurrency.threads import together

KEYS = 8
KINDS = ("get", "get", "get_many", "range", "scan", "write", "write", "bulk", "add", "add")
Value = int | None


@dataclass
class Record:
    """One transaction, as its thread saw it."""

    snapshot: int
    serializable: bool
    acknowledged: int
    """The newest commit that some thread knew of before this transaction began."""
    reads: list[tuple[int, Value]] = field(default_factory=list)
    """(key, value) of reads that own writes could not answer."""
    locked: list[tuple[int, Value]] = field(default_factory=list)
    """(key, value) of those reads that were `for_update`."""
    writes: dict[int, Value] = field(default_factory=dict)
    adds: dict[int, int] = field(default_factory=dict)
    """Registers that were only added to, and neither written nor read after that."""
    commit_ts: int | None = None
    told: bool = True
    """Whether the client knew, when it went on, that it had committed."""

    def write(self, key: int, value: Value) -> None:
        """A plain write takes the place of what was added before."""
        self.writes[key] = value
        self.adds.pop(key, None)

    def saw(self, key: int, value: Value) -> Value:
        """What the value of a register was without what this transaction has added to it."""
        amount = self.adds.pop(key, None)
        if amount is None:
            return value
        assert value is not None, "a register that was added to is gone"
        self.writes[key] = value  # a sum that was read is a plain write
        return value - amount


class Recorder:
    """Runs transactions of random reads and writes and keeps their records."""

    _kinds: tuple[str, ...] = KINDS

    def __init__(
        self, db: hc.Database, *, serializable_percent: int, locks: bool = False, runs: bool = False
    ) -> None:
        """With `locks` some reads are `for_update`; with `runs` losers run again, with turns."""
        self.db = db
        self.records: list[Record] = []
        self._values = count(1)
        self._percent = serializable_percent
        if locks:
            self._kinds = (*KINDS, "lock", "lock")
        self._runs = runs
        self._acknowledged = 0
        db.create_table("register", {"key": int, "value": int}, primary_key="key")

    def run(self, *, threads: int, transactions: int, seed: int) -> None:
        """So many threads with so many transactions each."""
        together(*(self._worker(Random(f"{seed}-{me}"), transactions) for me in range(threads)))

    def _worker(self, random: Random, transactions: int) -> Callable[[], None]:
        def work() -> None:
            for _ in range(transactions):
                self._transaction(random)

        return work

    def _transaction(self, random: Random) -> None:
        serializable = random.randrange(100) < self._percent
        acknowledged = self._acknowledged
        if self._runs:
            self._run(random, serializable, acknowledged)
            return
        txn = self.db.begin(isolation="serializable" if serializable else "snapshot")
        record = Record(txn.snapshot, serializable, acknowledged)
        self.records.append(record)
        try:
            for _ in range(random.randint(1, 6)):
                self._step(txn, record, random)
            record.commit_ts = txn.commit()
        except hc.ConflictError:
            txn.rollback()
            return
        self._acknowledge(record)

    def _run(self, random: Random, serializable: bool, acknowledged: int) -> None:
        """Every attempt is a transaction of its own, and all but the last have failed."""
        attempts: list[tuple[hc.Transaction, Record]] = []

        def body(txn: hc.Transaction) -> None:
            record = Record(txn.snapshot, serializable, acknowledged)
            self.records.append(record)
            attempts.append((txn, record))
            for _ in range(random.randint(1, 6)):
                self._step(txn, record, random)

        try:
            self.db.run(body, isolation="serializable" if serializable else "snapshot")
        except hc.ConflictError:
            return
        txn, record = attempts[-1]
        record.commit_ts = txn.commit_ts
        self._acknowledge(record)

    def _acknowledge(self, record: Record) -> None:
        if record.commit_ts is not None:
            # Two threads may race here; the older value is still one that was acknowledged.
            self._acknowledged = max(self._acknowledged, record.commit_ts)

    def _step(self, txn: hc.Transaction, record: Record, random: Random) -> None:
        keys = [random.randrange(KEYS) for _ in range(random.randint(1, 3))]
        kind = random.choice(self._kinds)
        if kind == "get":
            row = txn.get("register", keys[0])
            _note(record, keys[:1], [] if row is None else [row])
        elif kind == "lock":
            row = txn.get("register", keys[0], for_update=True)
            record.snapshot = txn.snapshot  # the first lock may take a newer one
            if keys[0] not in record.writes:
                value = None if row is None else row["value"]
                amount = record.adds.get(keys[0], 0)
                record.locked.append((keys[0], None if value is None else value - amount))
            _note(record, keys[:1], [] if row is None else [row])
        elif kind == "get_many":
            unique = sorted(set(keys))
            _note(record, unique, txn.get_many("register", unique).to_pylist())
        elif kind == "range":
            low, high = min(keys), max(keys) + 1
            _note(record, range(low, high), txn.range("register", low, high).to_pylist())
        elif kind == "scan":
            _note(record, range(KEYS), txn.scan("register").to_pylist())
        elif kind == "write":
            self._write(txn, record, keys[0], random)
        elif kind == "add":
            self._add(txn, record, keys[0], random.randrange(1 << 40))
        else:
            unique = sorted(set(keys))
            values = [next(self._values) for _ in unique]
            txn.upsert("register", pa.table({"key": unique, "value": values}))
            for key, value in zip(unique, values, strict=True):
                record.write(key, value)

    def _add(self, txn: hc.Transaction, record: Record, key: int, amount: int) -> None:
        try:
            txn.update("register", key, {"value": hc.add(amount)})
        except hc.NotFoundError:
            _note(record, [key], [])
            return
        if key in record.writes:
            record.writes[key] = (record.writes[key] or 0) + amount
        else:
            record.adds[key] = record.adds.get(key, 0) + amount

    def _write(self, txn: hc.Transaction, record: Record, key: int, random: Random) -> None:
        value = next(self._values)
        if random.randrange(5) == 0:
            there = txn.delete("register", key)
            # What delete tells is a read: remembered as one only if it was not an own write.
            if key not in record.writes and not there:
                assert key not in record.adds, "a register that was added to is gone"
                record.reads.append((key, None))
            if there:
                record.write(key, None)
            return
        if random.randrange(2):
            try:
                txn.update("register", key, {"value": value})
            except hc.NotFoundError:
                _note(record, [key], [])
                return
        else:
            txn.upsert("register", {"key": key, "value": value})
        record.write(key, value)


def _note(record: Record, keys: range | list[int], rows: list[dict[str, int]]) -> None:
    """Own writes must be read back; what else was read is kept for the check."""
    found = {row["key"]: row["value"] for row in rows}
    for key in keys:
        if key in record.writes:
            assert found.get(key) == record.writes[key], "an own write was not read back"
        else:
            record.reads.append((key, record.saw(key, found.get(key))))


class Timeline:
    """The registers at every timestamp, from the records of those who committed."""

    def __init__(self, records: list[Record]) -> None:
        self._history: dict[int, tuple[list[int], list[Value]]] = {
            key: ([0], [None]) for key in range(KEYS)
        }
        self._plain: dict[int, list[int]] = {key: [0] for key in range(KEYS)}
        self.commits = sorted(
            (record for record in records if record.commit_ts is not None),
            key=lambda record: record.commit_ts or 0,
        )
        for record in self.commits:
            for key, value in record.writes.items():
                if value is None and self.at(key, record.snapshot) is None:
                    continue  # Written and deleted again in one transaction: nothing came of it.
                stamps, values = self._history[key]
                assert record.commit_ts is not None
                stamps.append(record.commit_ts)
                values.append(value)
                self._plain[key].append(record.commit_ts)
            for key, amount in record.adds.items():
                stamps, values = self._history[key]
                assert record.commit_ts is not None
                assert values[-1] is not None, "something was added to a register that was gone"
                stamps.append(record.commit_ts)
                values.append(values[-1] + amount)

    def at(self, key: int, ts: int) -> Value:
        """The value of the newest commit at or below `ts`."""
        stamps, values = self._history[key]
        return values[bisect_right(stamps, ts) - 1]

    def state(self, ts: int) -> dict[int, int]:
        found = {key: self.at(key, ts) for key in range(KEYS)}
        return {key: value for key, value in found.items() if value is not None}

    def written_between(self, key: int, after: int, before: int) -> bool:
        """Whether a commit in (after, before) has written the register."""
        stamps, _ = self._history[key]
        return bisect_right(stamps, after) < bisect_left(stamps, before)

    def replaced_between(self, key: int, after: int, before: int) -> bool:
        """Whether a commit in (after, before) has written the register, rather than added to it."""
        stamps = self._plain[key]
        return bisect_right(stamps, after) < bisect_left(stamps, before)


def check_history(records: list[Record]) -> Timeline:
    """Everything the story above says."""
    line = Timeline(records)
    stamps = [record.commit_ts for record in line.commits]
    assert len(set(stamps)) == len(stamps), "a timestamp was issued twice"
    for record in records:
        assert record.snapshot >= record.acknowledged, "an acknowledged commit was not seen"
        for key, value in record.reads:
            assert value == line.at(key, record.snapshot), "not the newest commit of the snapshot"
    for record in line.commits:
        ts = record.commit_ts
        assert ts is not None
        assert ts > record.snapshot
        for key, value in record.writes.items():
            before, after = line.at(key, record.snapshot), line.at(key, ts - 1)
            if value is not None or before is not None:
                empty = before is None and after is None
                assert empty or not line.written_between(key, record.snapshot, ts), "a lost update"
        for key in record.adds:
            assert line.at(key, record.snapshot) is not None, "added to what was not there"
            assert not line.replaced_between(key, record.snapshot, ts), "an addition to another row"
        for key, value in record.reads if record.serializable else record.locked:
            assert value == line.at(key, ts - 1), "commit order is no serial order"
    return line


def check_sessions(clients: Sequence[list[Record]]) -> Timeline:
    """Histories of clients that do one transaction after the other, each in its own order.

    All that `check_history` says, and of each client: its snapshots never fall (monotonic reads),
    and none is older than what it was told to have committed (read your writes).
    """
    for records in clients:
        newest = 0
        for record in records:
            assert record.snapshot >= newest, "a client has read backwards in time"
            newest = max(newest, record.snapshot)
            if record.told and record.commit_ts is not None:
                newest = max(newest, record.commit_ts)
    return check_history([record for records in clients for record in records])

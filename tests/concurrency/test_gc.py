"""Undo GC in a loop, beside those who read old versions and those who make new ones.

Retention is zero, so every call throws away whatever no open transaction needs. Each row carries a
value and twice that value, so a reader can tell a row that was put together wrongly; and as long as
its snapshot is open it must find the same rows, whichever way it looks.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

import halocline as hc
from tests.concurrency.threads import PATIENCE_S, Crew, beside, together

TINY = hc.Options(
    page_rows=16,
    bulk_rows=8,
    object_rows=16,
    row_group_rows=8,
    object_rows_min=18,
    background=False,
)
ROWS = 60


def _shape(db: hc.Database) -> Callable[[Crew], None]:
    """Moves rows into objects and rewrites those, without a break."""

    def work(crew: Crew) -> None:
        while crew.working():
            db.flush("t")
            db.compact("t")

    return work


class Collector:
    """Calls gc without a break; others can wait for it to have come round again."""

    def __init__(self, db: hc.Database) -> None:
        self.db = db
        self.rounds = 0
        self._turned = threading.Condition()

    def work(self, crew: Crew) -> None:
        while crew.working():
            self.db.gc()
            with self._turned:
                self.rounds += 1
                self._turned.notify_all()

    def wait(self, crew: Crew) -> None:
        """Until two calls have begun and ended since now, or the work is over."""
        with self._turned:
            goal = self.rounds + 3
            self._turned.wait_for(lambda: self.rounds >= goal or not crew.working(), PATIENCE_S)


@pytest.fixture
def db(tmp_path: Path) -> hc.Database:
    with hc.open(tmp_path / "db", durability="async", retention=0, options=TINY) as db:
        db.create_table("t", {"id": int, "n": int, "twice": int}, primary_key="id")
        with db.begin() as txn:
            ids = list(range(ROWS))
            txn.insert("t", pa.table({"id": ids, "n": [0] * ROWS, "twice": [0] * ROWS}))
        yield db
        assert not db.check()


def _look(txn: hc.Transaction, random: Random) -> list[dict[str, int]]:
    """All rows in key order, by one of several ways."""
    way = random.randrange(5)
    if way == 0:
        return txn.scan("t").sort_by("id").to_pylist()
    if way == 1:
        return txn.range("t").to_pylist()
    if way == 2:
        return txn.get_many("t", list(range(ROWS))).to_pylist()
    if way == 3:
        rows = [txn.get("t", key) for key in range(ROWS)]
        return [row for row in rows if row is not None]
    return txn.sql("select * from t order by id").to_pylist()


def _reader(db: hc.Database, collector: Collector, seed: int) -> Callable[[Crew], None]:
    """Open a snapshot, look again and again while versions die under it: always the same rows."""

    def work(crew: Crew) -> None:
        random = Random(seed)
        while crew.working():
            with db.begin() as txn:
                first = _look(txn, random)
                assert all(row["twice"] == 2 * row["n"] for row in first)
                for _ in range(3):
                    collector.wait(crew)
                    assert _look(txn, random) == first
                assert db.floor <= txn.snapshot

    return work


def _updater(db: hc.Database, seed: int, rounds: int) -> Callable[[], None]:
    """One row at a time; now and then all of them, as one bulk change."""

    def one(txn: hc.Transaction, key: int) -> None:
        row = txn.get("t", key)
        if row is not None:
            txn.update("t", key, {"n": row["n"] + 1, "twice": 2 * row["n"] + 2})

    def many(txn: hc.Transaction, keys: list[int]) -> None:
        rows = txn.get_many("t", keys).to_pylist()
        if rows:
            txn.upsert(
                "t",
                pa.table(
                    {
                        "id": [row["id"] for row in rows],
                        "n": [row["n"] + 1 for row in rows],
                        "twice": [2 * row["n"] + 2 for row in rows],
                    }
                ),
            )

    def work() -> None:
        random = Random(seed)
        for turn in range(rounds):
            if turn % 10:
                key = random.randrange(ROWS)
                db.run(lambda txn, key=key: one(txn, key), retries=10_000)
            else:
                keys = random.sample(range(ROWS), 20)
                db.run(lambda txn, keys=keys: many(txn, keys), retries=10_000)

    return work


def _replacer(db: hc.Database, seed: int, rounds: int) -> Callable[[], None]:
    """Delete a few rows, one way or the other, and put them back."""

    def swap(txn: hc.Transaction, low: int, high: int) -> None:
        rows = txn.range("t", low, high)
        txn.delete("t", where="id >= ? and id < ?", params=[low, high])
        txn.insert("t", rows)

    def work() -> None:
        random = Random(seed)
        for _ in range(rounds):
            low = random.randrange(ROWS)
            high = low + random.choice((2, 12))
            db.run(lambda txn, low=low, high=high: swap(txn, low, high), retries=10_000)

    return work


@pytest.mark.parametrize("objects", [False, True])
def test_open_snapshots_keep_their_rows_while_gc_runs(db: hc.Database, objects: bool) -> None:
    collector = Collector(db)
    others = [_shape(db)] if objects else []
    with beside(collector.work, _reader(db, collector, 1), _reader(db, collector, 2), *others):
        together(_updater(db, 3, 300), _updater(db, 4, 300), _replacer(db, 5, 60))
    assert collector.rounds > 0
    db.gc()
    assert db.floor == db.visible_ts
    _check_store(db)
    rows = db.table("t").to_arrow().sort_by("id").to_pylist()
    assert [row["id"] for row in rows] == list(range(ROWS))
    assert all(row["twice"] == 2 * row["n"] for row in rows)


def _check_store(db: hc.Database) -> None:
    """Exactly the files that the table refers to are there."""
    db.gc()
    tiers = [state.shape.tier for state in db.core.engine.tables.values()]
    known = sorted(entry.key for tier in tiers for entry in tier.by_id.values())
    assert db.core.engine.shelf.objects.list() == known


@pytest.mark.parametrize("objects", [False, True])
def test_what_gc_has_passed_is_refused_and_never_wrong(db: hc.Database, objects: bool) -> None:
    """Whoever asks for a moment near the floor gets the right rows or SnapshotExpiredError."""
    collector = Collector(db)
    begin = db.visible_ts
    sums: dict[int, int] = {begin: 0}
    """What `n` adds up to at each timestamp: every commit adds one."""
    found: list[tuple[int, int]] = []
    refused: list[hc.SnapshotExpiredError] = []

    def updater() -> None:
        for turn in range(600):
            key = turn % ROWS
            with db.begin() as txn:
                row = txn.get("t", key)
                assert row is not None
                txn.update("t", key, {"n": row["n"] + 1, "twice": 2 * row["n"] + 2})
            assert txn.commit_ts is not None
            sums[txn.commit_ts] = turn + 1

    def traveller(crew: Crew) -> None:
        random = Random(6)
        while crew.working():
            at = max(begin, db.visible_ts - random.randrange(4))
            try:
                with db.begin(at=at) as txn:
                    found.append((at, sum(row["n"] for row in _look(txn, random))))
                    assert db.changes("t", since=at, until=at).num_rows == 0
            except hc.SnapshotExpiredError as error:
                refused.append(error)

    with beside(collector.work, traveller, traveller, *([_shape(db)] if objects else [])):
        together(updater)
    assert all(error.ts < error.floor <= db.floor for error in refused)
    assert found
    # Moves and merges take timestamps too: then the last update before them counts.
    moments = sorted(sums)
    last = {at: moments[bisect_right(moments, at) - 1] for at, _ in found}
    assert all(sums[last[at]] == total for at, total in found)


def test_dropped_tables_are_forgotten_only_when_nobody_can_see_them(db: hc.Database) -> None:
    collector = Collector(db)

    def owner() -> None:
        for turn in range(80):
            with db.begin() as txn:
                txn.drop_table("passing", if_exists=True)
                txn.create_table("passing", {"id": int, "turn": int}, primary_key="id")
                txn.insert("passing", [{"id": i, "turn": turn} for i in range(20)])

    def reader(crew: Crew) -> None:
        while crew.working():
            with db.begin() as txn:
                if "passing" not in txn.tables():
                    continue
                first = txn.range("passing").to_pylist()
                collector.wait(crew)
                assert txn.range("passing").to_pylist() == first
                assert txn.scan("passing").num_rows == 20
                assert len({row["turn"] for row in first}) == 1

    with beside(collector.work, reader, reader):
        together(owner)
    assert db.tables() == ["passing", "t"]


def test_check_beside_gc_finds_nothing_wrong(db: hc.Database, tmp_path: Path) -> None:
    """Files go while they are being looked at, by the owner and by a reader: neither complains."""
    looks = []

    def look(other: hc.Database) -> Callable[[Crew], None]:
        def work(crew: Crew) -> None:
            while crew.working():
                assert other.check() == []
                looks.append(other)

        return work

    def write() -> None:
        for value in range(12):
            rows = [{"id": key, "n": value, "twice": 2 * value} for key in range(ROWS)]
            db.run(lambda txn, rows=rows: txn.upsert("t", rows))
            if value % 5 == 4:
                db.checkpoint()

    with hc.open(tmp_path / "db", read_only=True, options=TINY) as reader:
        with beside(_shape(db), Collector(db).work, look(db), look(reader)):
            together(write)
        assert {db, reader} <= set(looks)
        assert reader.check() == []
    assert db.check() == []

"""Moves without a break, beside writers, readers and garbage collection.

    writer k    inserts, updates, deletes and reads back its own keys; a dict of its own says what
                every get must find
    transfers   move money between shared accounts, so that writers conflict; the sum never changes
    reader      opens a snapshot, looks again and again by every way: always the same rows
    mover       flushes in a loop; collector: raises the floor and forgets in a loop

At the end the table equals all dicts together, and `db.check()` finds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

import halocline as hc
from tests.concurrency.threads import Crew, beside, together
from tests.roles import maintenance_of

TINY = hc.Options(
    page_rows=8,
    bulk_rows=8,
    object_rows=64,
    row_group_rows=16,
    object_rows_min=30,
    background=False,
    sql_threads=1,
)
SHARED = 10
WRITERS = 2


@pytest.fixture(params=[0, "1d"], ids=["forgetful", "remembering"])
def db(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[hc.Database]:
    arguments: Any = {"durability": "async", "retention": request.param, "options": TINY}
    with hc.open(tmp_path / "db", **arguments) as db:
        db.create_table("t", {"id": int, "n": int, "twice": int}, primary_key="id")
        db.create_table("bank", {"id": int, "balance": int}, primary_key="id")
        with db.begin() as txn:
            txn.insert("bank", [{"id": key, "balance": 100} for key in range(SHARED)])
        yield db
        assert not db.check()


class Writer:
    """One thread's keys: `id % WRITERS == number`."""

    def __init__(self, db: hc.Database, number: int, steps: int) -> None:
        self.db = db
        self.number = number
        self.steps = steps
        self.random = Random(number)
        self.rows: dict[int, int] = {}

    def work(self) -> None:
        for _ in range(self.steps):
            rows = dict(self.rows)
            with self.db.begin() as txn:
                for _ in range(self.random.choice([1, 1, 1, 3])):
                    self._step(txn, rows)
                for key in self.random.sample(range(30), 2):
                    self._read(txn, key * WRITERS + self.number, rows)
            self.rows = rows

    def _step(self, txn: hc.Transaction, rows: dict[int, int]) -> None:
        n = self.random.randrange(1000)
        free = [key for key in self._keys() if key not in rows]
        verb = self.random.choice(["insert", "update", "update", "delete", "many", "again"])
        if verb == "insert" and free:
            self._insert(txn, rows, [self.random.choice(free)], n)
        elif verb == "many" and free:
            self._insert(txn, rows, self.random.sample(free, min(len(free), 20)), n)
        elif rows:
            key = self.random.choice(sorted(rows))
            if verb == "update":
                txn.update("t", key, {"n": n, "twice": 2 * n})
                rows[key] = n
            elif verb == "delete":
                assert txn.delete("t", key)
                del rows[key]
            elif verb == "again":
                txn.delete("t", key)
                self._insert(txn, rows, [key], n)

    def _insert(self, txn: hc.Transaction, rows: dict[int, int], keys: list[int], n: int) -> None:
        txn.insert("t", [{"id": key, "n": n, "twice": 2 * n} for key in keys])
        rows.update(dict.fromkeys(keys, n))

    def _read(self, txn: hc.Transaction, key: int, rows: dict[int, int]) -> None:
        found = txn.get("t", key)
        assert (found["n"] if found else None) == rows.get(key), key

    def _keys(self) -> range:
        return range(self.number, 30 * WRITERS, WRITERS)


def _transfer(db: hc.Database, seed: int, steps: int) -> Callable[[], None]:
    def work() -> None:
        random = Random(seed)
        for _ in range(steps):
            giver, taker = random.sample(range(SHARED), 2)

            def move(txn: hc.Transaction, giver: int = giver, taker: int = taker) -> None:
                for key, amount in ((giver, -1), (taker, 1)):
                    account = txn.get("bank", key)
                    assert account is not None
                    txn.update("bank", key, {"balance": account["balance"] + amount})

            db.run(move, retries=10_000)

    return work


def _reader(db: hc.Database, seed: int) -> Callable[[Crew], None]:
    def work(crew: Crew) -> None:
        random = Random(seed)
        while crew.working():
            with db.begin() as txn:
                first: Any = None
                for _ in range(3):
                    rows = _look(txn, random)
                    first = rows if first is None else first
                    assert rows == first
                    assert all(row["twice"] == 2 * row["n"] for row in rows)
                balances = txn.scan("bank").column("balance").to_pylist()
                assert (len(balances), sum(balances)) == (SHARED, 100 * SHARED)

    return work


def _look(txn: hc.Transaction, random: Random) -> list[dict[str, int]]:
    way = random.randrange(4)
    if way == 0:
        return txn.scan("t").sort_by("id").to_pylist()
    if way == 1:
        return txn.range("t").to_pylist()
    if way == 2:
        return txn.get_many("t", list(range(30 * WRITERS))).to_pylist()
    return txn.sql("select * from t order by id").to_pylist()


def _mover(db: hc.Database) -> Callable[[Crew], None]:
    def work(crew: Crew) -> None:
        random = Random(5)
        while crew.working():
            db.flush(random.choice(["t", "bank", None]))

    return work


def _collector(db: hc.Database) -> Callable[[Crew], None]:
    def work(crew: Crew) -> None:
        while crew.working():
            db.gc()

    return work


def test_writers_readers_and_gc_beside_moves_without_a_break(db: hc.Database, sim: bool) -> None:
    steps = 3000 if sim else 300
    writers = [Writer(db, number, steps) for number in range(WRITERS)]
    others = [_mover(db), _collector(db), _reader(db, 1)]
    with beside(*others):
        together(*(writer.work for writer in writers), *(_transfer(db, n, steps) for n in (1, 2)))
    expected = {key: n for writer in writers for key, n in writer.rows.items()}
    found = {row["id"]: row["n"] for row in db.table("t").to_arrow().to_pylist()}
    assert found == expected
    balances = db.table("bank").to_arrow().column("balance").to_pylist()
    assert sum(balances) == 100 * SHARED
    db.flush()
    again = {row["id"]: row["n"] for row in db.table("t").to_arrow().to_pylist()}
    assert again == expected


def test_a_background_that_moves_all_the_time_is_not_noticed(tmp_path: Path, sim: bool) -> None:
    """The real thread, with limits so low that every commit wakes it."""
    options = hc.Options(
        page_rows=4, bulk_rows=8, object_rows=16, row_group_rows=8, move_rows=1, move_tombstones=1
    )
    steps = 3000 if sim else 300
    with hc.open(tmp_path / "db", durability="async", options=options) as db:
        db.create_table("t", {"id": int, "n": int, "twice": int}, primary_key="id")
        writers = [Writer(db, number, steps) for number in range(WRITERS)]
        together(*(writer.work for writer in writers))
        expected = {key: n for writer in writers for key, n in writer.rows.items()}
        background = maintenance_of(db).background
        assert background is not None
        assert not background.troubles
        path = db.path
    with hc.open(path, options=options) as db:
        found = {row["id"]: row["n"] for row in db.table("t").to_arrow().to_pylist()}
        assert found == expected
        assert not db.check()

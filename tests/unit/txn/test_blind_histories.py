"""Random histories beside blind jobs, against a plain dict; a failure prints its seed.

    rows in all tiers --> a job's tasks run --> others commit, rows move --> the job commits, while
                                                others go on between its rounds

After every job: all rows, every key by itself, the past, and the change feed between any two
moments are those of the model; and so they are for a follower and after opening again.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import halocline as hc
from tests.unit.txn.blindjobs import begin_job, between_rounds

OPTIONS = hc.Options(
    page_rows=6,
    object_rows=24,
    row_group_rows=12,
    bulk_rows=5,
    object_rows_min=14,
    compact_depth=1,
    background=False,
)
SPAN = 60
Rows = dict[Any, tuple[Any, Any]]


class World:
    """A database and what should be in it, at every commit."""

    def __init__(self, db: Any, chance: random.Random, composite: bool) -> None:
        self.db, self.chance, self.composite = db, chance, composite
        self.rows: Rows = {}
        self.past: dict[int, Rows] = {}
        columns: dict[str, Any] = {"id": int, "a": int, "b": str}
        if composite:
            columns = {"id": int, "part": str, "a": int, "b": str}
        db.create_table("t", columns, primary_key=["id", "part"] if composite else "id")
        self.floor = 0
        self.done(db.visible_ts)

    def key(self, number: int) -> Any:
        return (number, f"p{number % 3}") if self.composite else number

    def named(self, key: Any) -> dict[str, Any]:
        return {"id": key[0], "part": key[1]} if self.composite else {"id": key}

    def done(self, ts: int) -> None:
        self.past[ts] = dict(self.rows)

    def some_keys(self, count: int) -> list[Any]:
        return [self.key(n) for n in self.chance.sample(range(SPAN), count)]

    def table(self, keys: list[Any], rows: list[dict[str, Any]]) -> Any:
        named = [self.named(key) | row for key, row in zip(keys, rows, strict=True)]
        return pa.Table.from_pylist(named)

    # What others do.

    def step(self) -> None:
        kind = self.chance.choice(["single"] * 12 + ["bulk", "flush", "compact", "checkpoint"])
        if kind == "single":
            self.single()
        elif kind == "bulk":
            self.bulk()
        elif kind == "flush":
            self.db.flush("t")
        elif kind == "compact":
            self.db.compact("t")
        elif kind == "checkpoint":
            self.db.checkpoint()

    def single(self) -> None:
        (key,) = self.some_keys(1)
        value = self.chance.randrange(1000)
        with self.db.begin() as txn:
            old = self.rows.get(key)
            if old is None:
                txn.insert("t", self.named(key) | {"a": value, "b": f"s{value}"})
                self.rows[key] = (value, f"s{value}")
            elif self.chance.random() < 0.4:
                txn.delete("t", key)
                del self.rows[key]
            elif self.chance.random() < 0.5:
                txn.update("t", key, {"a": value})
                self.rows[key] = (value, old[1])
            else:
                txn.update("t", key, {"b": f"u{value}"})
                self.rows[key] = (old[0], f"u{value}")
        self.done(txn.commit_ts)

    def bulk(self) -> None:
        """Many rows in one transaction, as objects."""
        keys = self.some_keys(self.chance.randrange(15, 30))
        value = self.chance.randrange(1000)
        with self.db.begin() as txn:
            if self.chance.random() < 0.6:
                row = {"a": value, "b": f"b{value}"}
                txn.upsert("t", self.table(keys, [row] * len(keys)))
                self.rows |= dict.fromkeys(keys, (value, f"b{value}"))
            else:
                limit = self.chance.randrange(SPAN)
                txn.delete("t", where=f"id < {limit}")
                self.rows = {
                    key: row
                    for key, row in self.rows.items()
                    if (key[0] if self.composite else key) >= limit
                }
        if txn.commit_ts is not None:
            self.done(txn.commit_ts)

    # Jobs.

    def job(self, monkeypatch: pytest.MonkeyPatch) -> None:
        mode = self.chance.choice(["upsert", "some", "ignore", "delete"])
        keys = self.some_keys(self.chance.randrange(1, SPAN))
        given: list[dict[str, Any]] = [
            {"a": 1000 + n, "b": f"job{n}"} if mode != "some" else {"b": f"job{n}"}
            for n in range(len(keys))
        ]
        job = begin_job(self.db, "t", "upsert" if mode == "some" else mode, self.table(keys, given))
        blind = job.blind
        for _ in range(self.chance.randrange(25)):
            self.step()
        calm = self.chance.randrange(14)
        with monkeypatch.context() as patch:
            between_rounds(self.db, patch, *[self.burst] * calm)
            ts = job.commit()
        before = dict(self.rows)
        for key, row in zip(keys, given, strict=True):
            self.apply(mode, key, row)
        self.done(ts)
        counts = blind.counts()
        assert counts.inserted == len(self.rows.keys() - before.keys())
        assert counts.deleted == len(before.keys() - self.rows.keys())

    def burst(self) -> None:
        for _ in range(self.chance.randrange(6)):
            self.single()
        if self.chance.random() < 0.15:
            self.step()

    def apply(self, mode: str, key: Any, row: dict[str, Any]) -> None:
        old = self.rows.get(key)
        if mode == "delete":
            self.rows.pop(key, None)
        elif mode == "ignore":
            self.rows.setdefault(key, (row["a"], row["b"]))
        elif mode == "some":
            self.rows[key] = (None if old is None else old[0], row["b"])
        else:
            self.rows[key] = (row["a"], row["b"])

    # What must hold.

    def verify(self, db: Any) -> None:
        assert self.read(db, None) == self.rows
        with db.begin() as txn:
            for number in range(SPAN):
                row = txn.get("t", self.key(number))
                found = None if row is None else (row["a"], row["b"])
                assert found == self.rows.get(self.key(number))
        stamps = sorted(self.past)
        for ts in self.chance.sample(stamps, min(4, len(stamps))):
            assert self.read(db, ts) == self.past[ts], ts
        for _ in range(6):
            since, until = sorted(self.chance.choices(stamps, k=2))
            self.verify_changes(db, since, until)

    def read(self, db: Any, at: Any) -> Rows:
        rows = db.table("t").to_arrow(at=at).to_pylist()
        found = {self.key_of(row): (row["a"], row["b"]) for row in rows}
        assert len(found) == len(rows)
        return found

    def key_of(self, row: dict[str, Any]) -> Any:
        return (row["id"], row["part"]) if self.composite else row["id"]

    def verify_changes(self, db: Any, since: int, until: int) -> None:
        state = dict(self.past[since])
        for event in db.changes("t", since=since, until=until).to_pylist():
            key, row = self.key_of(event), (event["a"], event["b"])
            if event["_change"] in ("delete", "update_before"):
                assert state.pop(key) == row
            else:
                assert key not in state
                state[key] = row
        assert state == self.past[until]


def play(folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch, jobs: int) -> None:
    chance = random.Random(seed)
    path = folder / "shop"
    with hc.open(path, options=OPTIONS) as db:
        world = World(db, chance, composite=seed % 3 == 0)
        for _ in range(30):
            world.step()
        for number in range(jobs):
            world.job(monkeypatch)
            world.verify(db)
            if number % 2:
                for _ in range(5):
                    world.step()
            assert db.check() == []
        with hc.open(path, read_only=True, options=OPTIONS) as follower:
            world.verify(follower)
    again: list[Callable[[Any], object]] = [
        lambda db: db.checkpoint(),
        lambda db: (db.flush("t"), db.compact("t")),
        lambda db: None,
    ]
    for step in again:
        with hc.open(path, options=OPTIONS) as db:
            world.db = db
            world.verify(db)
            assert db.check() == []
            step(db)
            world.verify(db)
            assert db.check() == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_random_histories_beside_jobs(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"seed {seed}")
    play(tmp_path, seed, monkeypatch, jobs=3)


@pytest.mark.sim
def test_new_random_histories_beside_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_seed: int
) -> None:
    play(tmp_path, fresh_seed, monkeypatch, jobs=6)

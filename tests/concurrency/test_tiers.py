"""Readers beside moves: rows wander from pages into objects and back up, and no reader notices.

A writer changes rows of a table of fixed size, one at a time, counting in each; background work
moves, flushes, trims, merges and collects without a pause. Every reader, however it reads, must
find each key exactly once, and the counts that belong to its snapshot.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

import halocline as hc
from halocline import Database
from tests.concurrency.threads import Crew, beside
from tests.store.faulty import FaultyFiles

KEYS = 48
OPTIONS = hc.Options(
    page_rows=4,
    bulk_rows=8,
    object_rows=32,
    row_group_rows=16,
    background=False,
)


@pytest.fixture
def db() -> Any:
    with Database(FaultyFiles(), "tiers", options=OPTIONS, retention=0) as db:
        db.create_table("t", {"id": int, "n": int, "text": str}, primary_key="id")
        with db.begin() as txn:
            txn.insert("t", [{"id": key, "n": 0, "text": "new"} for key in range(KEYS)])
        yield db
        assert not db.check()


def write(db: Any, turns: int, seed: int) -> None:
    """Each turn adds one to `n` of some row, in one of several ways."""
    rng = random.Random(seed)
    for turn in range(turns):
        key = rng.randrange(KEYS)
        with db.begin() as txn:
            row = txn.get("t", key)
            assert row is not None, key
            row["n"] += 1
            way = turn % 3
            if way == 0:
                txn.update("t", key, {"n": row["n"]})
            elif way == 1:
                txn.upsert("t", row)
            else:  # another version, not a successor
                txn.delete("t", key)
                txn.insert("t", row)


def work(db: Any, crew: Crew) -> None:
    """Background work of all kinds, in a hurry."""
    turn = 0
    while crew.working():
        turn += 1
        db.flush("t")
        if turn % 3 == 0:
            db.compact("t")
        if turn % 4 == 0:
            db.gc()


def read(db: Any, crew: Crew) -> None:
    rng = random.Random(7)
    while crew.working():
        with db.begin() as txn:
            total = sum(txn.get("t", key)["n"] for key in range(KEYS))
            keys = rng.sample(range(KEYS), 20)
            many = txn.get_many("t", [*keys, 999])
            assert many.column("id").to_pylist() == keys
            ordered = txn.range("t")
            assert ordered.column("id").to_pylist() == list(range(KEYS))
            assert sum(ordered.column("n").to_pylist()) == total
            low = rng.randrange(KEYS - 10)
            some = txn.range("t", low, None, limit=5).column("id").to_pylist()
            assert some == list(range(low, low + 5))
            some = txn.range("t", None, low + 5, limit=5, reverse=True).column("id").to_pylist()
            assert some == list(range(low + 4, low - 1, -1))


def follow(db: Any, crew: Crew) -> None:
    """A change feed read in pieces is the table, at each end of a piece."""
    with db.begin() as txn:
        since = txn.snapshot
        model = {row["id"]: row for row in txn.range("t").to_pylist()}
    holder = db.begin(at=since)
    while crew.working():
        fresh = db.begin()
        until = fresh.snapshot
        for event in db.changes("t", since, until).to_pylist():
            change, _ = event.pop("_change"), event.pop("_commit_ts")
            if change in ("delete", "update_before"):
                assert model.pop(event["id"]) == event
            else:
                assert event["id"] not in model
                model[event["id"]] = event
        assert [model[key] for key in sorted(model)] == fresh.range("t").to_pylist()
        holder.rollback()
        holder, since = fresh, until
    holder.rollback()


@pytest.mark.parametrize("seed", range(2))
def test_readers_find_every_row_beside_background_work(db: Any, seed: int, sim: bool) -> None:
    turns = 1500 if sim else 250
    with beside(
        lambda crew: work(db, crew), lambda crew: read(db, crew), lambda crew: follow(db, crew)
    ):
        write(db, turns, seed)
    with db.begin() as txn:
        assert sum(txn.range("t").column("n").to_pylist()) == turns

"""Bulk loads race with each other, with single rows and with background work: one winner a key."""

from __future__ import annotations

from pathlib import Path
from random import Random
from threading import Barrier, Thread
from typing import Any

import pyarrow as pa
import pytest

import halocline as hc

OPTIONS = hc.Options(
    page_rows=16, object_rows=64, row_group_rows=32, bulk_rows=8, object_rows_min=20
)
KEYS = 600
LOADS = 12


def _load(db: hc.Database, worker: int, rng: Random, won: dict[int, list[int]]) -> None:
    """Insert stretches of keys at once, or one key; those that commit own their keys."""
    for _ in range(LOADS):
        count = rng.choice((1, 1, 10, 40, 100))
        first = rng.randrange(KEYS)
        ids = range(first, first + count)
        try:
            with db.begin() as txn:
                if count == 1:
                    txn.insert("t", {"id": first, "worker": worker})
                else:
                    txn.insert("t", pa.table({"id": ids, "worker": [worker] * count}))
        except (hc.ConflictError, hc.DuplicateKeyError):
            continue
        won[worker] += ids


def _clear(db: hc.Database, rng: Random, removed: list[int]) -> None:
    """Delete stretches, so that keys come and go."""
    for _ in range(LOADS):
        low = rng.randrange(KEYS)
        try:
            with db.begin() as txn:
                where = f"id >= {low} and id < {low + 60}"
                found = txn.scan("t", columns=["id"], where=where).column("id").to_pylist()
                txn.delete("t", where=where)
        except hc.ConflictError:
            continue
        removed += found


@pytest.mark.parametrize("seed", range(3))
def test_every_key_has_the_row_of_the_one_that_won_it(tmp_path: Path, seed: int) -> None:
    with hc.open(tmp_path / "db", durability="async", options=OPTIONS) as db:
        db.create_table("t", {"id": int, "worker": int}, primary_key="id")
        workers = range(4)
        won: dict[int, list[int]] = {worker: [] for worker in workers}
        removed: list[int] = []
        gate = Barrier(len(workers) + 2)
        errors: list[BaseException] = []

        def guarded(work: Any, *arguments: Any) -> None:
            gate.wait()
            try:
                work(db, *arguments)
            except BaseException as error:
                errors.append(error)

        def maintain(db: hc.Database) -> None:
            for _ in range(4):
                db.flush()
                db.compact()

        threads = [
            Thread(target=guarded, args=(_load, worker, Random(seed * 100 + worker), won))
            for worker in workers
        ]
        threads.append(Thread(target=guarded, args=(_clear, Random(seed * 100 + 99), removed)))
        threads.append(Thread(target=guarded, args=(maintain,)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        inserted = sorted(key for keys in won.values() for key in keys)
        changes = db.changes("t", 0).to_pylist()
        assert sorted(r["id"] for r in changes if r["_change"] == "insert") == inserted
        assert sorted(r["id"] for r in changes if r["_change"] == "delete") == sorted(removed)
        left = {}
        for row in changes:
            if row["_change"] == "insert":
                assert row["id"] not in left
                left[row["id"]] = row["worker"]
            else:
                assert left.pop(row["id"]) == row["worker"]
        with db.begin() as txn:
            seen = {row["id"]: row["worker"] for row in txn.scan("t").to_pylist()}
        assert seen == left
        assert not db.check()

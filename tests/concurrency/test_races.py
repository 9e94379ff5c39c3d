"""Races that must have exactly one winner, and readers that must never notice."""

from __future__ import annotations

import random
import threading
from typing import Any

import halocline as hc
from tests.concurrency.test_bank import run_threads


def test_two_threads_insert_one_key_and_exactly_one_wins(open_db: Any) -> None:
    db = open_db(durability="async")
    db.create_table("t", {"id": int, "who": int}, primary_key="id")
    barrier = threading.Barrier(2)
    winners: list[list[int]] = [[] for _ in range(1000)]

    def insert(n: int) -> None:
        for key in range(1000):
            barrier.wait(30)
            try:
                with db.begin() as txn:
                    txn.insert("t", {"id": key, "who": n})
            except (hc.ConflictError, hc.DuplicateKeyError):
                continue
            winners[key].append(n)

    run_threads(insert, 2)
    assert all(len(one) == 1 for one in winners)
    rows = db.table("t").to_arrow().to_pylist()
    assert {row["id"]: row["who"] for row in rows} == {k: one[0] for k, one in enumerate(winners)}


def test_doctors_on_call_never_all_leave(open_db: Any) -> None:
    db = open_db(durability="async")
    db.create_table("doctors", {"id": int, "on_call": bool}, primary_key="id")
    for _ in range(60):
        with db.begin() as txn:
            txn.upsert("doctors", [{"id": n, "on_call": True} for n in range(4)])

        def leave(n: int) -> None:
            def step(txn: hc.Transaction) -> None:
                rows = txn.scan("doctors", where="on_call").num_rows
                if rows > 1:
                    txn.update("doctors", n, {"on_call": False})

            db.run(step, isolation="serializable", retries=100)

        run_threads(leave, 4)
        left = db.sql("select count(*) as n from doctors where on_call").to_pylist()
        assert left == [{"n": 1}]


def test_tables_come_and_go_beside_writers(open_db: Any) -> None:
    db = open_db(durability="async")
    db.create_table("fixed", {"id": int}, primary_key="id")
    written = [0, 0, 0]

    def work(n: int) -> None:
        chance = random.Random(n)
        for step in range(150):
            if n == 3:
                with db.begin() as txn:
                    txn.drop_table("moving", if_exists=True)
                    txn.create_table("moving", {"id": int}, primary_key="id")
                    txn.insert("moving", {"id": -1})
                continue
            try:
                with db.begin() as txn:
                    txn.insert("fixed", {"id": n * 1000 + step})
                    if chance.random() < 0.5:
                        txn.insert("moving", {"id": n * 1000 + step})
            except (hc.ConflictError, hc.NotFoundError):
                continue
            written[n] += 1

    run_threads(work, 4)
    assert db.table("fixed").count() == sum(written)
    with db.begin() as txn:
        assert txn.get("moving", -1) == {"id": -1}


def test_registers_read_the_newest_commit_of_their_snapshot(open_db: Any) -> None:
    """Every read of every transaction is explained by commits at or before its snapshot."""
    db = open_db(durability="async")
    db.create_table("r", {"id": int, "v": int}, primary_key="id")
    with db.begin() as txn:
        txn.insert("r", [{"id": n, "v": 0} for n in range(8)])
    history: list[tuple[int, int | None, dict[int, int], dict[int, int], str]] = []
    fresh = iter(range(1, 1_000_000))

    def work(n: int) -> None:
        chance = random.Random(n)
        for _ in range(150):
            isolation: Any = chance.choice(["snapshot", "serializable"])
            txn = db.begin(isolation=isolation)
            seen, wrote = {}, {}
            for key in chance.sample(range(8), 3):
                row = txn.get("r", key)
                assert row is not None
                seen[key] = row["v"]
                if chance.random() < 0.5:
                    wrote[key] = next(fresh)
                    txn.update("r", key, {"v": wrote[key]})
            try:
                txn.commit()
            except hc.ConflictError:
                wrote = {}
            history.append((txn.snapshot, txn.commit_ts, seen, wrote, isolation))

    run_threads(work, 6)
    versions: dict[int, list[tuple[int, int]]] = {key: [(0, 0)] for key in range(8)}
    for _, commit_ts, _, wrote, _ in history:
        for key, value in wrote.items():
            assert commit_ts is not None
            versions[key].append((commit_ts, value))
    for chain in versions.values():
        chain.sort()
    for snapshot, commit_ts, seen, wrote, isolation in history:
        for key, value in seen.items():
            assert value == [v for ts, v in versions[key] if ts <= snapshot][-1]
            if wrote and isolation == "serializable":
                assert commit_ts is not None
                before = [v for ts, v in versions[key] if ts < commit_ts][-1]
                assert value == before, "what a serializable transaction read had changed"

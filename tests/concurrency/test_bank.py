"""A bank under eight threads: money is neither made nor lost, and no transfer is forgotten."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import halocline as hc

ACCOUNTS = 1000
TRANSFERS = 20_000
THREADS = 8
OPENING = 100


def run_threads(work: Callable[[int], None], count: int, timeout: float = 120) -> None:
    """Run `work(n)` in threads; the first exception, and a thread that hangs, fail the test."""
    errors: list[BaseException] = []

    def guarded(n: int) -> None:
        try:
            work(n)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


def make_bank(db: hc.Database) -> None:
    db.create_table("accounts", {"id": int, "balance": int, "moves": int}, primary_key="id")
    db.create_table("journal", {"id": int, "amount": int}, primary_key="id")
    with db.begin() as txn:
        rows = [{"id": n, "balance": OPENING, "moves": 0} for n in range(ACCOUNTS)]
        txn.insert("accounts", rows)


def transfer(txn: hc.Transaction, number: int, source: int, target: int, amount: int) -> None:
    for account, change in ((source, -amount), (target, amount)):
        row = txn.get("accounts", account)
        assert row is not None
        values = {"balance": row["balance"] + change, "moves": row["moves"] + 1}
        txn.update("accounts", account, values)
    txn.insert("journal", {"id": number, "amount": amount})


def look(db: hc.Database, chance: random.Random) -> None:
    """One snapshot, read in three ways; the journal of the same snapshot agrees."""
    with db.begin() as txn:
        (row,) = txn.sql(
            "select sum(balance) as total, sum(moves) as moves from accounts"
        ).to_pylist()
        assert row["total"] == ACCOUNTS * OPENING
        (counted,) = txn.sql("select count(*) as n from journal").to_pylist()
        assert row["moves"] == 2 * counted["n"], "half a transaction is visible"
        scanned = txn.scan("accounts", columns=["balance"])
        assert sum(scanned.column("balance").to_pylist()) == ACCOUNTS * OPENING
        if chance.random() < 0.2:
            ranged = txn.range("accounts", 0, ACCOUNTS)
            assert sum(ranged.column("balance").to_pylist()) == ACCOUNTS * OPENING


def run_bank(db: hc.Database, transfers: int, *, gc: bool = False) -> None:
    make_bank(db)
    done = threading.Event()
    looks = []

    def teller(n: int) -> None:
        chance = random.Random(n)
        for step in range(transfers // THREADS):
            source, target = chance.sample(range(ACCOUNTS), 2)
            number = n * transfers + step
            amount = chance.randrange(1, 20)
            db.run(lambda txn, a=(number, source, target, amount): transfer(txn, *a))

    def auditor(_: int) -> None:
        chance = random.Random(99)
        while not done.is_set():
            look(db, chance)
            if gc:
                db.gc()
            looks.append(1)

    watching = threading.Thread(target=lambda: run_threads(auditor, 1), daemon=True)
    failures: list[Any] = []
    hook, threading.excepthook = threading.excepthook, failures.append
    try:
        watching.start()
        run_threads(teller, THREADS)
    finally:
        done.set()
        watching.join(60)
        threading.excepthook = hook
    assert not failures, failures[0].exc_value
    assert not watching.is_alive() and looks
    look(db, random.Random(0))
    assert db.table("journal").count() == transfers // THREADS * THREADS
    moves = sum(db.table("accounts").to_arrow().column("moves").to_pylist())
    assert moves == 2 * (transfers // THREADS * THREADS), "an update was lost"


def test_twenty_thousand_transfers(open_db: Any) -> None:
    run_bank(open_db(durability="async"), TRANSFERS)


def test_durable_transfers(open_db: Any) -> None:
    run_bank(open_db(), 2_000)


def test_transfers_beside_garbage_collection(open_db: Any) -> None:
    db = open_db(durability="async", retention=0, options=hc.Options(page_rows=64))
    run_bank(db, 4_000, gc=True)


def test_columns_of_one_row_are_written_by_all(open_db: Any) -> None:
    db = open_db(durability="async")
    db.create_table("t", {"id": int, **{f"c{n}": int for n in range(THREADS)}}, primary_key="id")
    with db.begin() as txn:
        txn.insert("t", {"id": 1, **{f"c{n}": 0 for n in range(THREADS)}})

    def write(n: int) -> None:
        for value in range(1, 201):
            with db.begin() as txn:  # no retry: different columns never conflict
                txn.update("t", 1, {f"c{n}": value})

    run_threads(write, THREADS)
    with db.begin() as txn:
        assert txn.get("t", 1) == {"id": 1, **{f"c{n}": 200 for n in range(THREADS)}}

"""Our side of every case, written as a user of the library would write it.

Nothing here reaches past the front door: what a case measures is what a caller gets.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Literal

import halocline as hc
from bench import data
from bench.harness import Run
from bench.threads import seconds_together

Durability = Literal["sync", "async"]

DEFINITION = {"id": int, "owner": str, "balance": float, "note": str}


def create(directory: Path, durability: Durability) -> hc.Database:
    """A new database with the empty table in it."""
    db = hc.open(directory / "ours", durability=durability)
    db.create_table(data.TABLE, DEFINITION, primary_key="id")
    return db


def load(db: hc.Database, start: int, count: int, *, batch_rows: int = 50_000) -> None:
    """Fill the table with Arrow batches, a commit each."""
    for batch in data.batches(start, count, batch_rows):
        with db.begin() as txn:
            txn.insert(data.TABLE, batch)


def load_rows(db: hc.Database, start: int, count: int) -> None:
    """Fill the table row by row, a commit each."""
    for row in data.dicts(start, count):
        with db.begin() as txn:
            txn.insert(data.TABLE, row)


@contextmanager
def insert_commits(directory: Path, *, durability: Durability, ops: int) -> Iterator[Run]:
    """Side: single-row inserts, one commit each."""
    with create(directory, durability) as db:

        def run(number: int) -> float:
            rows = data.dicts(number * ops, ops)
            started = perf_counter()
            for row in rows:
                with db.begin() as txn:
                    txn.insert("accounts", row)
            return perf_counter() - started

        yield run


@contextmanager
def threaded_commits(
    directory: Path, *, durability: Durability, ops: int, threads: int
) -> Iterator[Run]:
    """Side: the same from several threads that share the database."""
    share = ops // threads
    with create(directory, durability) as db:

        def work(rows: list[dict[str, object]]) -> None:
            for row in rows:
                with db.begin() as txn:
                    txn.insert("accounts", row)

        def run(number: int) -> float:
            jobs = []
            for index in range(threads):
                rows = data.dicts(number * ops + index * share, share)
                jobs.append(lambda rows=rows: work(rows))
            return seconds_together(jobs)

        yield run


@contextmanager
def gets(
    directory: Path, *, rows: int, keys: tuple[int, int], active: int, ops: int
) -> Iterator[Run]:
    """Side: reads of random keys from the range `keys` in one open transaction.

    The last `active` rows arrive one by one and stay in the active page; the others arrive as
    Arrow and lie in frozen pages.
    """
    with create(directory, "async") as db:
        load(db, 0, rows - active)
        load_rows(db, rows - active, active)
        with db.begin() as txn:
            get = txn.get

            def run(number: int) -> float:
                drawn = data.random_keys(*keys, ops, seed=number)
                started = perf_counter()
                for key in drawn:
                    get("accounts", key)
                return perf_counter() - started

            yield run


@contextmanager
def bulk_insert(
    directory: Path, *, rows: int, batch_rows: int, durability: Durability
) -> Iterator[Run]:
    """Side: the empty table filled from ready-made Arrow batches, a commit per batch."""
    batches = list(data.batches(0, rows, batch_rows))
    with create(directory, durability) as db:

        def run(_: int) -> float:
            started = perf_counter()
            for batch in batches:
                with db.begin() as txn:
                    txn.insert("accounts", batch)
            return perf_counter() - started

        yield run


@contextmanager
def read_modify_write(
    directory: Path, *, durability: Durability, rows: int, ops: int
) -> Iterator[Run]:
    """Side: read a random row, add to its balance, commit."""
    with create(directory, durability) as db:
        load(db, 0, rows)

        def run(number: int) -> float:
            keys = data.random_keys(0, rows, ops, seed=number)
            started = perf_counter()
            for key in keys:
                with db.begin() as txn:
                    row = txn.get("accounts", key)
                    assert row is not None
                    txn.update("accounts", key, {"balance": row["balance"] + 1.0})
            return perf_counter() - started

        yield run


@contextmanager
def transfers(
    directory: Path, *, durability: Durability, accounts: int, ops: int, threads: int
) -> Iterator[Run]:
    """Side: money moves between two random accounts of the thread's own, through `db.run`."""
    share = accounts // threads
    with create(directory, durability) as db:
        load(db, 0, accounts)

        def move(source: int, target: int) -> None:
            def work(txn: hc.Transaction) -> None:
                for key, amount in ((source, -1.0), (target, 1.0)):
                    row = txn.get("accounts", key)
                    assert row is not None
                    txn.update("accounts", key, {"balance": row["balance"] + amount})

            db.run(work)

        def many(pairs: list[tuple[int, int]]) -> None:
            for source, target in pairs:
                move(source, target)

        def run(number: int) -> float:
            jobs = []
            for index in range(threads):
                pairs = data.random_pairs(index * share, share, ops // threads, seed=number)
                jobs.append(lambda pairs=pairs: many(pairs))
            return seconds_together(jobs)

        yield run

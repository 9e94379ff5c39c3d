"""The peer of the transactional cases: sqlite3 in WAL mode, used as fast as Python honestly can.

`isolation_level=None` and an explicit begin and commit, one cursor kept for all statements, and
statement texts that never change, so that the module's statement cache always hits. The key is
`integer primary key`, SQLite's fastest table shape. Everything else is at SQLite's defaults.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from time import perf_counter

from bench import data
from bench.harness import Run
from bench.threads import seconds_together

CREATE = "create table accounts (id integer primary key, owner text, balance real, note text)"
INSERT = "insert into accounts values (?, ?, ?, ?)"
SELECT = "select id, owner, balance, note from accounts where id = ?"
UPDATE = "update accounts set balance = ? where id = ?"


def connect(directory: Path, synchronous: str) -> sqlite3.Connection:
    """A connection in WAL mode; threads may hand it on, never share it."""
    connection = sqlite3.connect(
        directory / "peer.db", isolation_level=None, check_same_thread=False, timeout=60
    )
    connection.execute("pragma journal_mode = wal")
    connection.execute(f"pragma synchronous = {synchronous}")
    return connection


def _load(connection: sqlite3.Connection, count: int) -> None:
    connection.execute("begin")
    connection.executemany(INSERT, data.rows(0, count))
    connection.execute("commit")


@contextmanager
def insert_commits(
    directory: Path, *, synchronous: str, ops: int, explicit: bool = True
) -> Iterator[Run]:
    """Side: single-row inserts, one commit each. Not `explicit`: each statement commits itself."""
    connection = connect(directory, synchronous)
    connection.execute(CREATE)
    execute = connection.cursor().execute

    def run(number: int) -> float:
        rows = data.rows(number * ops, ops)
        started = perf_counter()
        if explicit:
            for row in rows:
                execute("begin")
                execute(INSERT, row)
                execute("commit")
        else:
            for row in rows:
                execute(INSERT, row)
        return perf_counter() - started

    yield run
    connection.close()


@contextmanager
def threaded_commits(
    directory: Path, *, synchronous: str, ops: int, threads: int, queue: bool = False
) -> Iterator[Run]:
    """Side: the same from several threads, a connection each.

    They meet in SQLite's busy handler; with `queue` they line up at a lock in Python instead.
    """
    connections = [connect(directory, synchronous) for _ in range(threads)]
    connections[0].execute(CREATE)
    lock = threading.Lock() if queue else nullcontext()
    share = ops // threads

    def work(connection: sqlite3.Connection, rows: list[data.Row]) -> None:
        execute = connection.cursor().execute
        for row in rows:
            with lock:
                execute("begin immediate")
                execute(INSERT, row)
                execute("commit")

    def run(number: int) -> float:
        jobs = []
        for index, connection in enumerate(connections):
            rows = data.rows(number * ops + index * share, share)
            jobs.append(lambda connection=connection, rows=rows: work(connection, rows))
        return seconds_together(jobs)

    yield run
    for connection in connections:
        connection.close()


@contextmanager
def gets(
    directory: Path, *, rows: int, keys: tuple[int, int], ops: int, as_dict: bool = False
) -> Iterator[Run]:
    """Side: reads of random keys from the range `keys` in one open transaction."""
    connection = connect(directory, "normal")
    connection.execute(CREATE)
    _load(connection, rows)
    cursor = connection.cursor()
    if as_dict:
        cursor.row_factory = lambda _, row: dict(zip(data.COLUMNS, row, strict=True))
    cursor.execute("begin")
    execute, fetchone = cursor.execute, cursor.fetchone

    def run(number: int) -> float:
        drawn = data.random_keys(*keys, ops, seed=number)
        started = perf_counter()
        for key in drawn:
            execute(SELECT, (key,))
            fetchone()
        return perf_counter() - started

    yield run
    cursor.execute("commit")
    connection.close()


@contextmanager
def bulk_insert(directory: Path, *, rows: int, batch_rows: int, synchronous: str) -> Iterator[Run]:
    """Side: the empty table filled by executemany from ready-made tuples, a commit per batch."""
    batches = [data.rows(first, batch_rows) for first in range(0, rows, batch_rows)]
    connection = connect(directory, synchronous)
    connection.execute(CREATE)

    def run(_: int) -> float:
        started = perf_counter()
        for batch in batches:
            connection.execute("begin")
            connection.executemany(INSERT, batch)
            connection.execute("commit")
        return perf_counter() - started

    yield run
    connection.close()


@contextmanager
def read_modify_write(directory: Path, *, synchronous: str, rows: int, ops: int) -> Iterator[Run]:
    """Side: read a random row, add to its balance, commit."""
    connection = connect(directory, synchronous)
    connection.execute(CREATE)
    _load(connection, rows)
    cursor = connection.cursor()
    execute, fetchone = cursor.execute, cursor.fetchone

    def run(number: int) -> float:
        keys = data.random_keys(0, rows, ops, seed=number)
        started = perf_counter()
        for key in keys:
            execute("begin immediate")
            execute(SELECT, (key,))
            row = fetchone()
            execute(UPDATE, (row[2] + 1.0, key))
            execute("commit")
        return perf_counter() - started

    yield run
    connection.close()


@contextmanager
def transfers(
    directory: Path, *, synchronous: str, accounts: int, ops: int, threads: int
) -> Iterator[Run]:
    """Side: money moves between two random accounts of the thread's own, a connection each."""
    share = accounts // threads
    connections = [connect(directory, synchronous) for _ in range(threads)]
    connections[0].execute(CREATE)
    _load(connections[0], accounts)

    def many(connection: sqlite3.Connection, pairs: list[tuple[int, int]]) -> None:
        cursor = connection.cursor()
        execute, fetchone = cursor.execute, cursor.fetchone
        for pair in pairs:
            execute("begin immediate")
            for key, amount in zip(pair, (-1.0, 1.0), strict=True):
                execute(SELECT, (key,))
                execute(UPDATE, (fetchone()[2] + amount, key))
            execute("commit")

    def run(number: int) -> float:
        jobs = []
        for index, connection in enumerate(connections):
            pairs = data.random_pairs(index * share, share, ops // threads, seed=number)
            jobs.append(lambda connection=connection, pairs=pairs: many(connection, pairs))
        return seconds_together(jobs)

    yield run
    for connection in connections:
        connection.close()

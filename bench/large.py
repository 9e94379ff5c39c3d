"""Large changes: bulk loads, upserts of many rows, and single commits beside millions of rows.

    ours      one transaction: primary keys enforced, durable, visible at once
    Delta     deltalake: files and a log entry; nothing is enforced
    DuckDB    a table with a primary key in a database file

Every side does the same work on the same rows (orders.py) as its users would write it. Making the
rows, and loading a table that a case starts from, is not counted.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

import halocline as hc
from bench import orders
from bench.harness import Run

COLUMNS = """id bigint primary key, status text, amount decimal(12,2), "at" timestamptz,
    price double, quantity int"""


@cache
def all_rows(count: int) -> pa.Table:
    """The rows of a load: made once in a process, whatever number of rounds there are."""
    return orders.rows(0, count)


def some_rows(count: int, total: int, number: int) -> pa.Table:
    """Rows that exist already, in random order, with other figures: those of round n."""
    ids = np.random.default_rng(number).choice(total, count, replace=False)
    fresh = orders.rows(0, 1).slice(0, 0).schema
    base = orders.rows(total + number * count, count)
    return base.set_column(0, "id", pa.array(ids)).cast(fresh)


# Bulk load.


@contextmanager
def our_load(directory: Path, *, rows: int) -> Iterator[Run]:
    """Side: one insert of all rows."""
    table = all_rows(rows)
    with hc.open(directory / "ours") as db:
        db.create_table(orders.TABLE, orders.DEFINITION, primary_key="id")

        def run(_: int) -> float:
            started = perf_counter()
            with db.begin() as txn:
                txn.insert(orders.TABLE, table)
            return perf_counter() - started

        yield run
    shutil.rmtree(directory)


@contextmanager
def delta_load(directory: Path, *, rows: int) -> Iterator[Run]:
    """Side: write_deltalake into a new table."""
    from deltalake import write_deltalake

    table = all_rows(rows)

    def run(_: int) -> float:
        started = perf_counter()
        write_deltalake(str(directory / "delta"), table)
        return perf_counter() - started

    yield run
    shutil.rmtree(directory)


@contextmanager
def duckdb_load(directory: Path, *, rows: int) -> Iterator[Run]:
    """Side: INSERT ... SELECT from the same Arrow table."""
    table = all_rows(rows)
    with _duckdb(directory) as connection:

        def run(_: int) -> float:
            started = perf_counter()
            _insert(connection, "insert into orders select * from source", table)
            return perf_counter() - started

        yield run
    shutil.rmtree(directory)


# Upserts.


@contextmanager
def our_upserts(directory: Path, *, rows: int, count: int) -> Iterator[Run]:
    """Side: an upsert of whole rows in one transaction."""
    with _loaded(directory, rows) as db:

        def run(number: int) -> float:
            table = some_rows(count, rows, number)
            started = perf_counter()
            with db.begin() as txn:
                txn.upsert(orders.TABLE, table)
            return perf_counter() - started

        yield run


@contextmanager
def delta_merges(directory: Path, *, rows: int, count: int) -> Iterator[Run]:
    """Side: DeltaTable.merge, updating and inserting."""
    from deltalake import DeltaTable, write_deltalake

    path = str(directory / "delta")
    write_deltalake(path, all_rows(rows))

    def run(number: int) -> float:
        table = some_rows(count, rows, number)
        started = perf_counter()
        (
            DeltaTable(path)
            .merge(table, "t.id = s.id", source_alias="s", target_alias="t")
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute()
        )
        return perf_counter() - started

    yield run


@contextmanager
def duckdb_replaces(directory: Path, *, rows: int, count: int) -> Iterator[Run]:
    """Side: INSERT OR REPLACE."""
    with _duckdb(directory) as connection:
        _insert(connection, "insert into orders select * from source", all_rows(rows))

        def run(number: int) -> float:
            table = some_rows(count, rows, number)
            started = perf_counter()
            _insert(connection, "insert or replace into orders select * from source", table)
            return perf_counter() - started

        yield run


# One row beside many.


@contextmanager
def our_commits(directory: Path, *, rows: int, ops: int) -> Iterator[Run]:
    """Side: durable single-row commits; `rows` are in objects already."""
    with _loaded(directory, rows) as db:

        def run(number: int) -> float:
            first = rows + number * ops
            fresh = [dict(row) for row in orders.rows(first, ops).to_pylist()]
            started = perf_counter()
            for row in fresh:
                with db.begin() as txn:
                    txn.insert(orders.TABLE, row)
            return perf_counter() - started

        yield run


@contextmanager
def delta_appends(directory: Path, *, rows: int, ops: int, done: int) -> Iterator[Run]:
    """Side: appends of one row each; `done` of them stand for `ops`, as each takes long."""
    from deltalake import write_deltalake

    path = str(directory / "delta")
    write_deltalake(path, all_rows(rows))

    def run(number: int) -> float:
        parts = [orders.rows(rows + number * done + at, 1) for at in range(done)]
        started = perf_counter()
        for part in parts:
            write_deltalake(path, part, mode="append")
        return (perf_counter() - started) * ops / done

    yield run


@contextmanager
def _loaded(directory: Path, rows: int) -> Iterator[hc.Database]:
    with hc.open(directory / "ours") as db:
        db.create_table(orders.TABLE, orders.DEFINITION, primary_key="id")
        if rows:
            with db.begin() as txn:
                txn.insert(orders.TABLE, all_rows(rows))
        yield db


@contextmanager
def _duckdb(directory: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    connection = duckdb.connect(str(directory / "peer.duckdb"))
    connection.execute("set TimeZone = 'UTC'")
    connection.execute("set enable_progress_bar = false")
    connection.execute(f"create table orders ({COLUMNS})")
    yield connection
    connection.close()


def _insert(connection: Any, text: str, table: pa.Table) -> None:
    connection.register("source", table)
    connection.execute(text)
    connection.unregister("source")

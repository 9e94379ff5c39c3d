"""Scans: a table in objects through SQL, next to DuckDB on the very same Parquet files.

    ours     db.sql(text)                              plan, view, verified files, anti-join, L0
    direct   duckdb: ... from read_parquet(files)      what the files cost without a database

DuckDB is the floor here, not a rival: it is inside. The question is what snapshots, deletes and
rows that are still in memory add to it. Each side builds the same database in its own directory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import duckdb

import halocline as hc
from bench import orders
from bench.harness import Run

AGGREGATES = (
    "select status, count(*), sum(amount), avg(price) from {orders} group by status",
    "select quantity % 10, max(at), min(price) from {orders} group by 1",
    "select count(*), sum(price * quantity) from {orders} where price < 1000 and quantity > 100",
)
EVERYTHING = ("select * from {orders}",)


def selective(rows: int) -> tuple[str]:
    """A thousandth of the table, which is one object at most."""
    low = rows // 2
    high = low + rows // 1000
    return (f"select count(*), sum(amount) from {{orders}} where id >= {low} and id < {high}",)


def build(
    directory: Path, *, rows: int, batch_rows: int, fresh_rows: int = 0, scattered: bool = False
) -> hc.Database:
    """The table in objects; with `fresh_rows`, 1 % of it deleted and so many more in memory.

    Every hundredth row is deleted or, `scattered`, each with a chance of one in a hundred.
    """
    options = hc.Options(object_rows_min=batch_rows // 2, background=False)
    db = hc.open(directory / "ours", durability="async", options=options)
    db.create_table(orders.TABLE, orders.DEFINITION, primary_key="id")
    for part in orders.parts(rows, batch_rows):
        with db.begin() as txn:
            txn.insert(orders.TABLE, part)
    if fresh_rows:
        with db.begin() as txn:
            chance = "hash(id) % 100 = 7" if scattered else "id % 100 = 7"
            txn.delete(orders.TABLE, where=chance)
        with db.begin() as txn:
            txn.insert(orders.TABLE, orders.rows(rows, fresh_rows))
    return db


@contextmanager
def ours(directory: Path, *, queries: Sequence[str], **table: Any) -> Iterator[Run]:
    """Side: the queries as a user would ask them; `table` is for `build`."""
    texts = [query.format(orders=orders.TABLE) for query in queries]
    with build(directory, **table) as db:

        def run(_: int) -> float:
            started = perf_counter()
            for text in texts:
                db.sql(text)
            return perf_counter() - started

        yield run


@contextmanager
def direct(directory: Path, *, queries: Sequence[str], rows: int, batch_rows: int) -> Iterator[Run]:
    """Side: the same over the files alone, all of whose rows are live."""
    with build(directory, rows=rows, batch_rows=batch_rows) as db:
        files = db.table(orders.TABLE).files()
    source = f"read_parquet({files!r})"
    # `at` is a keyword to DuckDB's own parser; our side quotes it by itself.
    texts = [query.replace("max(at)", 'max("at")').format(orders=source) for query in queries]
    connection = duckdb.connect(":memory:")
    connection.execute("set TimeZone = 'UTC'")

    def run(_: int) -> float:
        started = perf_counter()
        for text in texts:
            connection.sql(text).to_arrow_table()
        return perf_counter() - started

    yield run
    connection.close()

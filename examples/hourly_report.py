"""Hourly report: Spark adds up a table that is being written to, and nobody waits for anybody.

    python examples/hourly_report.py [DIRECTORY]

    threads  --orders, one transaction each-->  orders, customers
    report   --hs.attach: all tables at one snapshot--> Spark SQL --> the next line of `reports`

The report joins two tables at one snapshot, so an order never comes without its customer. It moves
on with `refresh`, and writes its result back in a transaction, under the hour as a token: a report
that is run twice is stored once.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from itertools import count
from pathlib import Path
from typing import Any

import halocline as hc
from halocline import spark as hs

TOWNS = ("Bergen", "Lima", "Osaka", "Perth")
REPORT = """
select town, count(*) as orders, cast(sum(cents) as bigint) as cents
from orders join customers on orders.customer = customers.id
group by town
order by town
"""


def create(db: hc.Database) -> None:
    """The tables, unless they are there from last time."""
    orders = {"id": int, "customer": int, "cents": int}
    reports = {"hour": int, "town": str, "orders": int, "cents": int}
    db.create_table("customers", {"id": int, "town": str}, "id", if_not_exists=True)
    db.create_table("orders", orders, "id", if_not_exists=True)
    db.create_table("reports", reports, ["hour", "town"], if_not_exists=True)


class Shop:
    """Takes orders in threads until it is closed; each brings its customer in the same commit."""

    def __init__(self, db: hc.Database, threads: int) -> None:
        self._db = db
        self._numbers = count(1 + db.table("orders").count())
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._sell) for _ in range(threads)]

    def __enter__(self) -> Shop:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _sell(self) -> None:
        while not self._stop.wait(0.005):
            number = next(self._numbers)
            with self._db.begin() as txn:
                txn.insert("customers", {"id": number, "town": TOWNS[number % len(TOWNS)]})
                txn.insert("orders", {"id": number, "customer": number, "cents": 100 + number % 7})


def report(session: Any, db: hc.Database, views: hs.Views, hour: int) -> list[dict[str, Any]]:
    """What the tables say at the snapshot of the views, stored under the hour."""
    rows = [{"hour": hour, **row.asDict()} for row in session.sql(REPORT).collect()]
    with db.begin(token=f"report of hour {hour}") as txn:
        if not txn.already_committed:
            txn.upsert("reports", rows)
    return rows


def _next_hour(db: hc.Database) -> int:
    (row,) = db.sql("select coalesce(max(hour) + 1, 0) as hour from reports").to_pylist()
    return int(row["hour"])


def run(home: Path, hours: int = 3) -> list[list[dict[str, Any]]]:
    """A few hours, which are short ones here."""
    session = hs.session()
    seen = []
    with hc.open(home / "shop") as db:
        create(db)
        with Shop(db, threads=2), hs.attach(session, db) as views:
            first = _next_hour(db)
            for hour in range(first, first + hours):
                views.refresh()
                rows = report(session, db, views, hour)
                seen.append(rows)
                orders = sum(row["orders"] for row in rows)
                print(f"hour {hour}, snapshot {views.ts}: {orders} orders in {len(rows)} towns")
        stored = db.sql("select hour, sum(orders) as orders from reports group by 1 order by 1")
        print(stored.to_pylist())
    return seen


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as directory:
            run(Path(directory))

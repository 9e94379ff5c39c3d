"""A driver of its own on `local-cluster`: executors are other processes, in other directories.

    python cluster.py DIRECTORY     prints what it saw as one line of JSON

Run by test_cluster.py. Reads, joins, loads, deletes and compacts, with tasks that fail and are run
again, as only separate executors do it; then stops and looks whether the session has let go of its
snapshots.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pyarrow as pa

import halocline as hc
from halocline import spark as hs
from halocline.compaction import CompactPolicy
from halocline.spark import job
from halocline.spark.task import shares

# On a slow machine rows become old enough for the mover while a job runs, and its files would be
# counted as those of tasks.
OPTIONS = hc.Options(
    page_rows=64,
    object_rows=256,
    row_group_rows=128,
    bulk_rows=50,
    compact_local_bytes=1,
    background=False,
)


job.FEW[job.LEAST] = "1"  # few rows, and more than one task


def main() -> None:
    os.chdir(sys.argv[1])  # a path that executors do not share
    session = hs.session(
        "local-cluster[2,1,1024]",
        **{"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": 2},
    )
    seen: dict[str, Any] = {}
    with hc.open(Path("shop"), options=OPTIONS) as db:
        seen |= work(session, db)
        frame = hs.table(session, db, "orders")
        seen["held"] = len(db.core.pins)
        where = session.sparkContext.parallelize([0], 1).map(lambda _: os.getcwd()).collect()
        seen["elsewhere"] = where[0] != str(Path.cwd())
        seen["rows"] = frame.count()
        session.stop()
        deadline = monotonic() + 30
        while db.core.pins and monotonic() < deadline:
            sleep(0.05)
        seen["held_after_stop"] = len(db.core.pins)
        seen["problems"] = len(db.check())
    print(json.dumps(seen))


@contextmanager
def failing_once() -> Iterator[None]:
    """Every task of a job fails when it has written all its files; the next attempt does not."""
    run = job.run  # type: ignore[attr-defined]

    def failing(*told: Any) -> Any:
        inner = run(*told)

        def partition(batches: Any) -> Any:
            from pyspark import TaskContext

            lines = list(inner(batches))
            if TaskContext.get().attemptNumber() == 0 and lines:
                raise RuntimeError("injected after the files were written")
            yield from lines

        return partition

    job.run = failing  # type: ignore[attr-defined,assignment]
    try:
        yield
    finally:
        job.run = run  # type: ignore[attr-defined]


def places(names: set[str]) -> list[int]:
    """Which objects of which tasks these files are, whatever attempt has written them."""
    _, attempts = shares(2)
    numbers = [int(name.partition("-")[2].partition(".")[0]) for name in names]
    return sorted({number // attempts for number in numbers})


def work(session: Any, db: hc.Database) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    db.create_table("orders", {"id": int, "customer": int, "amount": int}, primary_key="id")
    db.create_table("customers", {"id": int, "town": str}, primary_key="id")
    with db.begin() as txn:
        txn.insert("orders", [{"id": n, "customer": n % 10, "amount": n} for n in range(1000)])
        txn.insert("customers", [{"id": n, "town": f"town {n % 3}"} for n in range(10)])
    db.flush("orders")
    with db.begin() as txn:
        txn.delete("orders", where="id % 10 = 7")
        txn.insert("orders", {"id": 5000, "customer": 1, "amount": 1})
    seen["scan"] = hs.table(session, db, "orders").selectExpr("sum(amount)").first()[0]
    with hs.attach(session, db):
        joined = session.sql(
            "select town, count(*) as n from orders join customers on customer = customers.id "
            "group by town order by town"
        )
        seen["join"] = [tuple(row) for row in joined.collect()]
    more = pa.table({"id": range(2000, 2500), "customer": [3] * 500, "amount": [2] * 500})
    before = set(Path(db.path, "objects").rglob("*.parquet"))
    with failing_once():
        seen["loaded"] = hs.load(session.createDataFrame(more), db, "orders").inserted
    known = {Path(file).name for file in db.table("orders").files()}
    written = {file.name for file in {*Path(db.path, "objects").rglob("*.parquet")} - before}
    seen["places"] = [places(written & known), places(written - known)]
    gone = session.createDataFrame(pa.table({"id": range(2000, 2100)}))
    seen["deleted"] = hs.delete(gone, db, "orders").deleted
    seen["sql"] = db.sql("select count(*) as n from orders", engine="spark").to_pylist()
    report = hs.compact(session, db, "orders", plan=CompactPolicy(dead_percent=5))
    seen["tasks"] = sum(done.tasks for done in report["orders"].done)
    seen["dropped"] = report.rows_dropped
    return seen


if __name__ == "__main__":
    main()

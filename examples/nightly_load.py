"""Nightly load: files that another system left over night become new and changed rows of a table.

    python examples/nightly_load.py [DIRECTORY]

    prices-<day>.csv, prices-<day>.parquet --Spark--> hs.load(on_conflict="upsert") --one commit-->
    what the shop sold that day            --join---> hs.load(create=True)          --one commit-->
    hs.settle --> files in which every row counts, for programs that only know Parquet

A file is loaded under a token that is its name: run again after a crash, or by mistake, it changes
nothing. Rows that are wrong stop the load before anything is visible. The first load makes the
table, with the columns of its DataFrame.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

import halocline as hc
from halocline import spark as hs

ARROW = pa.schema(
    [
        ("sku", pa.string()),
        ("price", pa.decimal128(12, 2)),
        ("stock", pa.int64()),
        ("day", pa.date32()),
    ]
)
TYPES = "sku string, price decimal(12,2), stock bigint, day date"


def deliver(inbox: Path) -> None:
    """What the other system does: two nights, the second with changed and new articles."""
    inbox.mkdir(parents=True, exist_ok=True)
    pc.write_csv(_night("2024-03-01", range(1000), "9.99"), inbox / "prices-2024-03-01.csv")
    second = _night("2024-03-02", range(900, 1200), "12.50")
    pq.write_table(second, inbox / "prices-2024-03-02.parquet")


def _night(day: str, articles: range, price: str) -> pa.Table:
    count = len(articles)
    texts = [
        [f"A{number:04}" for number in articles],
        [price] * count,
        ["7"] * count,
        [day] * count,
    ]
    return pa.table(texts, names=ARROW.names).cast(ARROW)


def load_file(session: Any, db: hc.Database, path: Path) -> hs.LoadReport:
    """One file, all of it or nothing, once."""
    reader = session.read.schema(TYPES)
    if path.suffix == ".csv":
        # A line that does not fit is an error, not a NULL.
        frame = reader.options(header="true", mode="FAILFAST").csv(str(path))
    else:
        frame = reader.parquet(str(path))
    return hs.load(frame, db, "prices", "upsert", token=path.name, create=True, primary_key="sku")


def load_turnover(session: Any, db: hc.Database, day: str) -> hs.LoadReport:
    """What was sold, times what it cost: a join, in as few objects as its rows need."""
    prices = hs.table(session, db, "prices").select("sku", "price")
    sold = session.range(1200).selectExpr("format_string('A%04d', id) as sku", "id % 7 as pieces")
    turnover = sold.join(prices, "sku").selectExpr(
        "sku", f"date '{day}' as day", "pieces", "cast(pieces * price as decimal(14,2)) as turnover"
    )
    return hs.load(
        turnover, db, "turnover", "upsert", f"sold {day}", create=True, primary_key=["day", "sku"]
    )


def hand_over(session: Any, db: hc.Database) -> list[str]:
    """The files that another program may read: in these every row counts, and none is missing."""
    ts = hs.settle(session, db, "prices")
    return db.table("prices").files(at=ts, exact=True)


def run(home: Path) -> list[hs.LoadReport]:
    """Load everything that lies in the inbox."""
    deliver(home / "inbox")
    session = hs.session()
    reports = []
    with hc.open(home / "shop") as db:
        for path in sorted((home / "inbox").glob("prices-*")):
            report = load_file(session, db, path)
            reports.append(report)
            done = "was loaded before" if report.already_committed else "loaded"
            print(f"{path.name}: {done}, {report.inserted} new, {report.updated} changed")
        report = load_turnover(session, db, "2024-03-02")
        print(f"turnover: {report.inserted} rows in {report.objects} object(s)")
        total = db.sql("select count(*) as articles, max(price) as dearest from prices")
        print(total.to_pylist()[0])
        files = hand_over(session, db)
        rows = session.read.parquet(*files).count()
        print(f"{len(files)} file(s) for others, {rows} rows, all of which count")
    return reports


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as directory:
            run(Path(directory))

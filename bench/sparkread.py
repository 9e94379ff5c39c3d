"""Reading through Spark, next to Spark's own reader on the very same files.

    ours     hs.table(session, db, ...)      snapshot, plan, anti-join, rows in memory
    plain    session.read.parquet(files)     what the files cost without a database

One session for all of it, warmed up by every query once before the clock starts; each round runs
one after the other, and the median of the rounds' ratios counts. Making the DataFrame belongs to a
round on both sides: files are listed, and rows in memory become a file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import pyarrow.compute as pc

import halocline as hc
from bench import orders, tpch
from bench.harness import Figure

AGGREGATES = (
    (
        "select l_returnflag, l_linestatus, count(*), sum(l_quantity), sum(l_extendedprice * "
        "(1 - l_discount)) from {t} group by 1, 2"
    ),
    "select l_shipmode, max(l_receiptdate), min(l_extendedprice) from {t} group by 1",
    "select sum(l_extendedprice * l_discount) from {t} where l_quantity < 24 and l_discount > 0.05",
)
MEMORY = "4g"


@contextmanager
def spark_session(directory: Path) -> Iterator[tuple[Any, Any]]:
    """A Spark session on this machine, and `halocline.spark`."""
    from halocline import spark as hs

    started = hs.session(
        "local[*]",
        **{
            "spark.driver.memory": MEMORY,
            "spark.sql.shuffle.partitions": 4,
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
        },
    )
    try:
        yield started, hs
    finally:
        started.stop()


def scan(directory: Path, *, scale: float, rounds: int) -> list[Figure]:
    """Aggregates and a key range over lineitem: clean, then with dead rows and rows in memory."""
    tpch.generate(directory, scale, "lineitem")
    with (
        hc.open(directory / "db", durability="async", options=_options(scale)) as db,
        spark_session(directory) as (session, hs),
    ):
        tpch.load(db, directory, "lineitem")
        files = db.table("lineitem").files()
        count = db.table("lineitem").count()

        def plain(where: str = "true") -> Any:
            return session.read.parquet(*files).where(where)

        def ours(where: str | None = None) -> Any:
            return hs.table(session, db, "lineitem", where=where)

        low = int(scale * 3_000_000)
        part = f"l_orderkey between {low} and {low + int(scale * 6_000)}"
        figures = [
            _ratio("clean", session, AGGREGATES, ours, plain, rounds, 1.15, f"{count:,} rows"),
            _ratio(
                "key range",
                session,
                AGGREGATES[:1],
                lambda: ours(part),
                lambda: plain(part),
                rounds,
                1.0,
            ),
        ]
        fresh = _soil(db, count)
        note = f"1 % deleted, {fresh:,} rows in memory"
        figures.append(_ratio("dirty", session, AGGREGATES, ours, plain, rounds, 1.4, note))
        hs.release(session, db)
    return figures


def planning(directory: Path, *, objects: int, tombstones: int) -> list[Figure]:
    """The time from a call of hs.table to a plan that is ready to run."""
    rows = objects * 1000
    options = hc.Options(object_rows=1000, object_rows_min=1, background=False)
    with (
        hc.open(directory / "db", durability="async", options=options) as db,
        spark_session(directory) as (session, hs),
    ):
        db.create_table(orders.TABLE, orders.DEFINITION, primary_key="id")
        for part in orders.parts(rows, rows // 10):
            with db.begin() as txn:
                txn.insert(orders.TABLE, part)
        with db.begin() as txn:
            txn.delete(orders.TABLE, where=f"id % {rows // tombstones} = 3")
        db.flush()
        there = len(db.table(orders.TABLE).files())
        took, called = [], []
        for _ in range(6):
            started = perf_counter()
            frame = hs.table(session, db, orders.TABLE)
            called.append(perf_counter() - started)
            frame._jdf.queryExecution().executedPlan()
            took.append(perf_counter() - started)
            hs.release(session, db)
    note = f"{there:,} objects, {tombstones:,} tombstones; first {took[0]:.2f} s"
    return [
        Figure(name="hs.table and plan", value=median(took[1:]), unit="s", limit=1.0, note=note),
        Figure(name="of which hs.table", value=median(called[1:]), unit="s"),
    ]


def queries(directory: Path, *, scale: float, rounds: int) -> list[Figure]:
    """All 22 queries of TPC-H through hs.attach and through views over the same files."""
    tpch.generate(directory, scale)
    with (
        hc.open(directory / "db", durability="async", options=_options(scale)) as db,
        spark_session(directory) as (session, hs),
    ):
        tpch.load(db, directory)
        total: dict[str, list[float]] = {"ours": [], "plain": []}
        differing: list[int] = []
        for number, text in tpch.queries().items():
            answers: dict[str, Any] = {}
            took: dict[str, list[float]] = {"ours": [], "plain": []}
            for round_number in range(rounds + 1):
                sides = ("ours", "plain") if round_number % 2 else ("plain", "ours")
                for side in sides:
                    seconds, answers[side] = _side(session, hs, db, side, text)
                    if round_number:  # the first one warms up
                        took[side].append(seconds)
            if not same_rows(answers["ours"], answers["plain"]):
                differing.append(number)
            for side, seconds_of in took.items():
                total[side].append(median(seconds_of))
    worst = max(range(len(total["ours"])), key=lambda n: total["ours"][n] / total["plain"][n])
    return [
        Figure(name="hs.attach, 22 queries", value=sum(total["ours"]), unit="s"),
        Figure(name="views over the files", value=sum(total["plain"]), unit="s"),
        Figure(
            name="ratio of the totals",
            value=sum(total["ours"]) / sum(total["plain"]),
            unit="x",
            limit=1.2,
            note=f"worst: query {worst + 1}, {total['ours'][worst] / total['plain'][worst]:.2f}x",
        ),
        Figure(
            name="queries that differ",
            value=len(differing),
            unit="",
            limit=0,
            note=", ".join(map(str, differing)) or "every result is equal",
        ),
    ]


def _side(session: Any, hs: Any, db: hc.Database, side: str, text: str) -> tuple[float, Any]:
    started = perf_counter()
    if side == "ours":
        with hs.attach(session, db):
            answer = session.sql(text).toArrow()
        return perf_counter() - started, answer
    for name in tpch.KEYS:
        session.read.parquet(*db.table(name).files()).createOrReplaceTempView(name)
    answer = session.sql(text).toArrow()
    return perf_counter() - started, answer


def same_rows(one: Any, other: Any) -> bool:
    """The same rows in the same order; what was divided may differ in its last digits."""
    if one.schema != other.schema or one.num_rows != other.num_rows:
        return False
    for left, right in zip(one.columns, other.columns, strict=True):
        for a, b in zip(left.to_pylist(), right.to_pylist(), strict=True):
            close = isinstance(a, float) and isinstance(b, float) and math.isclose(a, b)
            if a != b and not close:
                return False
    return True


def _options(scale: float) -> hc.Options:
    """Every table in objects, whatever the scale."""
    return hc.Options(object_rows_min=1 if scale < 1 else 262_144, background=False)


def _soil(db: hc.Database, count: int) -> int:
    """Delete 1 % and put some rows into memory."""
    with db.begin() as txn:
        txn.delete("lineitem", where="l_partkey % 100 = 7")
    fresh = min(100_000, count // 10)
    with db.begin() as txn:
        some = txn.scan("lineitem", limit=fresh)
    # Keys that nobody has: the rows are new.
    moved = some.set_column(0, some.field(0), pc.add(some.column(0), 1_000_000_000))
    with db.begin() as txn:
        for start in range(0, moved.num_rows, 10_000):
            txn.insert("lineitem", moved.slice(start, 10_000))
    return fresh


def _ratio(
    name: str,
    session: Any,
    texts: Sequence[str],
    ours: Callable[[], Any],
    plain: Callable[[], Any],
    rounds: int,
    limit: float,
    note: str = "",
) -> Figure:
    """How many times as long ours takes."""
    found = []
    for number in range(rounds + 2):  # two rounds to warm up
        sides = {"ours": ours, "plain": plain}
        took = {}
        for side in sides if number % 2 else reversed(sides):
            started = perf_counter()
            sides[side]().createOrReplaceTempView("t")
            for text in texts:
                session.sql(text.format(t="t")).toArrow()
            took[side] = perf_counter() - started
        if number > 1:
            found.append(took)
    ratio = median(one["ours"] / one["plain"] for one in found)
    both = f"{median(one['ours'] for one in found):.2f} s against "
    both += f"{median(one['plain'] for one in found):.2f} s"
    return Figure(
        name=name, value=ratio, unit="x", limit=limit, note=f"{both}; {note}" if note else both
    )

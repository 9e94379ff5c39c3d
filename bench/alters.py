"""Altered tables: what an alter takes, and what reading files of several schema versions takes.

alter         alters of a large table in turns with single-row commits, both durable
alter-scan    a table whose files have four versions, next to one written in the newest (db.sql)
alter-spark   the same two tables through hs.table

The two tables hold the same rows. The old one was renamed, widened, rid of a column and given one
while it was loaded, a quarter after each change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np
import pyarrow as pa

import halocline as hc
from bench import orders, sparkread
from bench.harness import Figure

QUERIES = {
    "group": "select status, count(*), sum(amount), max(quantity) from {t} group by status",
    "where added": "select count(*), sum(price) from {t} where channel = 3",
    "where widened": "select status, count(*) from {t} where quantity = 7 group by status",
}
CHANNEL = 5
"""What rows from before the column was added show."""
QUARTERS = 4


def alter(directory: Path, *, rows: int, rounds: int) -> list[Figure]:
    """Alters of every kind that reads nothing, each followed by a commit of one row."""
    commits, alters = [], []
    with _opened(directory) as db:
        db.create_table(orders.TABLE, orders.DEFINITION, primary_key="id")
        for part in orders.parts(rows, 1_000_000):
            with db.begin() as txn:
                txn.insert(orders.TABLE, part)
        for number, change in enumerate(_changes(rounds + 1)):
            row = orders.rows(rows + number, 1).to_pylist()[0]
            given = {name: row[name] for name in ("id", "status", "at", "price")}
            started = perf_counter()
            db.alter_table(orders.TABLE, **change)
            between = perf_counter()
            with db.begin() as txn:
                txn.insert(orders.TABLE, given)
            alters.append(between - started)
            commits.append(perf_counter() - between)
    # The first of each fills caches.
    altered, committed = median(alters[1:]), median(commits[1:])
    note = f"{altered * 1e3:.2f} ms against {committed * 1e3:.2f} ms; {rows:,} rows in objects"
    return [Figure(name="a commit", value=altered / committed, unit="x", limit=2.0, note=note)]


def scan(directory: Path, *, rows: int, rounds: int) -> list[Figure]:
    """SQL over four versions and over one, in turns."""
    with _opened(directory) as db:
        _build(db, rows)

        def run(table: str, text: str) -> Any:
            return db.sql(text.format(t=table))

        return [_ratio(name, text, run, rounds) for name, text in QUERIES.items()]


def spark(directory: Path, *, rows: int, rounds: int) -> list[Figure]:
    """Spark over four versions and over one, in turns."""
    with _opened(directory) as db, sparkread.spark_session(directory) as (session, hs):
        _build(db, rows)

        def run(table: str, text: str) -> Any:
            hs.table(session, db, table).createOrReplaceTempView("t")
            return session.sql(text.format(t="t")).toArrow()

        figures = [_ratio(name, text, run, rounds) for name, text in QUERIES.items()]
        hs.release(session, db)
    return figures


def _changes(count: int) -> Iterator[dict[str, Any]]:
    """A table of some eight columns that is altered again and again."""
    for number in range(count):
        name = f"added_{number // 4}"
        yield (
            {"add": {name: hc.Column(str, default="web")}},
            {"rename": {name: f"{name}_too"}},
            {"set_default": {f"{name}_too": "app"}},
            {"drop": [f"{name}_too"]},
        )[number % 4]


def _build(db: hc.Database, rows: int) -> None:
    """`old` in four versions, and `new` in the newest; the same rows."""
    types = orders.DEFINITION
    newest = {**types, "channel": hc.Column(int, default=CHANNEL)}
    first: dict[str, Any] = {"state" if name == "status" else name: types[name] for name in types}
    first |= {"quantity": "int16", "note": str}
    db.create_table("old", first, primary_key="id")
    db.create_table("new", newest, primary_key="id")
    steps: tuple[dict[str, Any], ...] = (
        {"rename": {"state": "status"}},
        {"change": {"quantity": "int"}, "drop": ["note"]},
        {"add": {"channel": newest["channel"]}},
    )
    size = rows // QUARTERS
    for number in range(QUARTERS):
        part = orders.rows(number * size, size)
        if number:
            db.alter_table("old", **steps[number - 1])
        names = ["state" if name == "status" and not number else name for name in types]
        channel = np.full(size, CHANNEL)
        if number == QUARTERS - 1:
            channel = np.arange(size) % 10
            part = part.append_column("channel", pa.array(channel))
            names.append("channel")
        with db.begin() as txn:
            txn.insert("old", part.rename_columns(names))
        whole = part if "channel" in names else part.append_column("channel", pa.array(channel))
        with db.begin() as txn:
            txn.insert("new", whole)


def _ratio(name: str, text: str, run: Callable[[str, str], Any], rounds: int) -> Figure:
    """How many times as long the old table takes; both must give the same rows."""
    found: list[dict[str, tuple[float, float]]] = []
    for number in range(rounds + 2):  # two rounds to warm up
        took, answers = {}, {}
        for table in ("old", "new") if number % 2 else ("new", "old"):
            started, worked = perf_counter(), process_time()
            answers[table] = run(table, text)
            took[table] = (perf_counter() - started, process_time() - worked)
        if number > 1:
            found.append(took)
        rows = [sorted(map(str, answers[table].to_pylist())) for table in ("old", "new")]
        if number == 0 and "price" not in text and rows[0] != rows[1]:
            raise AssertionError(f"{text} differs: {rows[0][:3]} is not {rows[1][:3]}")
    ratio, worked_ratio = (
        median(one["old"][at] / one["new"][at] for one in found) for at in (0, 1)
    )
    old, new = (median(one[table][0] for one in found) * 1e3 for table in ("old", "new"))
    note = f"{old:.1f} ms against {new:.1f} ms; processor time of this process {worked_ratio:.2f}x"
    return Figure(name=name, value=ratio, unit="x", limit=1.15, note=note)


def _opened(directory: Path) -> hc.Database:
    """Every batch becomes objects, and nothing moves them meanwhile."""
    options = hc.Options(object_rows_min=10_000, background=False)
    return hc.open(directory / "ours", options=options)

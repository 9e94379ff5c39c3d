"""Compaction on Spark against plain Spark: read, sort, write of the same files.

    ours      hs.compact: overlapping objects and tombstones -> sorted objects without dead rows,
              verified on the way in, indexed on the way out, one commit
    plain     session.read.parquet(files).orderBy(key).write.parquet: dead rows stay, no keys

One warmed session for both, taking turns; each of our rounds starts from a copy of the same table.
What is copied, opened and checked is outside the clock.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa

import halocline as hc
from bench import orders
from bench.harness import Figure

DEAD = 20
"""Every twentieth row has ended."""
LIMIT_PERCENT = 130.0
# Each part becomes one object; nothing is left for this process.
OPTIONS = hc.Options(object_rows_min=1, compact_local_bytes=1, background=False)


def spark_compact(directory: Path, *, rows: int, objects: int, rounds: int) -> list[Figure]:
    """How long `objects` overlapping objects take to become sorted ones."""
    from halocline import spark as hs

    made = directory / "made"
    _make(made, rows, objects)
    session = hs.session(**{"spark.driver.memory": "2g"})
    try:
        _warm(session)
        pairs = [_round(session, directory, made, number) for number in range(rounds)]
    finally:
        session.stop()
    ratios = [ours / plain for plain, ours, _ in pairs]
    report = pairs[-1][2]
    table = report[orders.TABLE]
    shape = f"depth {table.before.depth_max} -> {table.after.depth_max}"
    plain_ms, ours_ms = (1e3 * median(pair[side] for pair in pairs) for side in (0, 1))
    return [
        Figure(name="plain read, sort, write", value=plain_ms, unit="ms"),
        Figure(name="hs.compact", value=ours_ms, unit="ms", note=shape),
        Figure(name="of plain's time", value=100 * median(ratios), unit="%", limit=LIMIT_PERCENT),
    ]


def _make(path: Path, rows: int, objects: int) -> None:
    with hc.open(path, options=OPTIONS) as db:
        db.create_table(orders.TABLE, orders.DEFINITION, primary_key="id")
        table = orders.rows(0, rows)
        for number in range(objects):
            part = table.take(pa.array(np.arange(number, rows, objects)))
            with db.begin() as txn:
                txn.insert(orders.TABLE, part)
        with db.begin() as txn:
            txn.delete(orders.TABLE, where=f"id % {DEAD} = 7")
        db.flush()


def _warm(session: Any) -> None:
    """Workers of Python and the code of a shuffle are there before the clock starts."""
    session.range(0, 1000, 1, 4).orderBy("id").mapInArrow(
        lambda batches: batches, "id long"
    ).count()


def _round(session: Any, directory: Path, made: Path, number: int) -> tuple[float, float, Any]:
    from halocline import spark as hs

    place, out = directory / f"round-{number}", directory / f"plain-{number}"
    shutil.copytree(made, place)
    with hc.open(place, options=OPTIONS) as db:
        files = db.table(orders.TABLE).files()
        started = perf_counter()
        plain = session.read.parquet(*files).orderBy("id")
        plain.write.option("compression", "zstd").parquet(str(out))
        between = perf_counter()
        report = hs.compact(session, db, orders.TABLE)
        ended = perf_counter()
        if report[orders.TABLE].after.depth_max > 1 or report[orders.TABLE].after.dead_rows:
            raise AssertionError(f"not in shape: {report}")
    shutil.rmtree(place)
    shutil.rmtree(out)
    return between - started, ended - between, report

"""Write jobs on Spark, in one warmed session: load against Spark's own Parquet writer, merge
against load, and how long single-row writers wait beside a bulk upsert of their rows.

    source files (keys in no order) --load--> a new table               key check included
                                    --sort by key, write.parquet-->     the same partitions
    a table of all rows             --merge of a few random keys-->

Both sides of a ratio run in turns, there and back, in the same session; the first round of each
only warms it.
"""

from __future__ import annotations

import gc
import random
import shutil
import statistics
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench import orders
from bench.harness import Figure, Measurement

FILES = 8
MERGE_SHARE = 100
LOAD_MAX, MERGE_MAX, WAIT_MS_MAX = 1.2, 0.15, 100.0


def measurements(*, quick: bool) -> list[Measurement]:
    """Everything of this page."""
    return [
        Measurement(
            name="spark-write",
            title="Load and merge on Spark",
            measure=load_and_merge,
            settings={"rows": 1_000_000 if quick else 10_000_000, "rounds": 1 if quick else 3},
        ),
        Measurement(
            name="spark-beside",
            title="Single-row writers beside a bulk upsert of their rows",
            measure=writers_beside,
            settings={"rows": 100_000 if quick else 1_000_000},
        ),
    ]


def load_and_merge(directory: Path, *, rows: int, rounds: int) -> list[Figure]:
    """Seconds and ratios of load and merge."""
    import halocline as hc
    from halocline import spark as hs

    session = hs.session(spark_driver_memory="2g")
    source = directory / "source"
    _write_source(source, rows)
    df = session.read.parquet(str(source))
    few = _some(session, directory / "few", rows)
    ours: list[float] = []
    theirs: list[float] = []
    merges: list[float] = []
    with hc.open(directory / "shop") as db:
        for number in range(rounds + 1):
            name = f"orders{number}"
            db.create_table(name, orders.DEFINITION, primary_key="id")
            place = directory / f"parquet-{number}"
            sides: list[tuple[list[float], Callable[[], object]]] = [
                (ours, partial(hs.load, df, db, name)),
                (theirs, partial(_write_sorted, df, place)),
            ]
            for taken, side in reversed(sides) if number % 2 else sides:
                taken.append(_seconds(side))
            merges.append(_seconds(partial(hs.merge, few, db, name)))
            assert db.table(name).count() == rows + rows // MERGE_SHARE // 10
            db.drop_table(name)
            shutil.rmtree(place)
    session.stop()
    ratios = [a / b for a, b in zip(ours[1:], theirs[1:], strict=True)]
    shares = [a / b for a, b in zip(merges[1:], ours[1:], strict=True)]
    note = f"{rows:,} rows x 6 columns, median of {rounds}"
    return [
        Figure(name="hs.load", value=statistics.median(ours[1:]), unit="s", note=note),
        Figure(name="Spark, sorted Parquet", value=statistics.median(theirs[1:]), unit="s"),
        Figure(name="hs.load / Spark", value=statistics.median(ratios), unit="x", limit=LOAD_MAX),
        Figure(name="hs.merge of 1 %", value=statistics.median(merges[1:]), unit="s"),
        Figure(
            name="hs.merge / hs.load", value=statistics.median(shares), unit="x", limit=MERGE_MAX
        ),
    ]


def _write_source(folder: Path, rows: int) -> None:
    """All rows as Parquet files that overlap: key k is in file k mod FILES."""
    folder.mkdir()
    for number in range(FILES):
        ids = np.arange(number, rows, FILES)
        np.random.default_rng(number).shuffle(ids)
        pq.write_table(_rows_of(ids), folder / f"{number}.parquet", row_group_size=1 << 20)


def _rows_of(ids: Any) -> pa.Table:
    table = orders.rows(0, int(ids.max()) + 1)
    return table.take(pa.array(ids))


def _some(session: Any, folder: Path, rows: int) -> Any:
    """One row in a hundred, at random; a tenth of them are new."""
    count = rows // MERGE_SHARE
    known = random.Random(7).sample(range(rows), count - count // 10)
    ids = np.array([*known, *range(rows, rows + count // 10)], dtype=np.int64)
    folder.mkdir()
    pq.write_table(_rows_of(ids), folder / "few.parquet")
    return session.read.parquet(str(folder))


def _write_sorted(df: Any, place: Path) -> None:
    """What Spark does with the same rows, in as many partitions as `load` takes."""
    from halocline.spark.job import _partitions

    parts = df.repartitionByRange(_partitions(df), "id").sortWithinPartitions("id")
    parts.write.option("compression", "zstd").parquet(str(place))


def _seconds(work: Callable[[], object]) -> float:
    gc.collect()
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def writers_beside(directory: Path, *, rows: int, threads: int = 4) -> list[Figure]:
    """The longest wait for the commit lock while a job upserts every row that threads update."""
    import halocline as hc
    from halocline import spark as hs

    session = hs.session(spark_driver_memory="2g")
    given = session.range(rows).selectExpr("id", "bigint(-1) as a", "'job' as b")
    stop, watch = threading.Event(), _Stopwatch()
    with hc.open(directory / "shop") as db:
        db.create_table("t", {"id": int, "a": int, "b": str}, primary_key="id")
        hs.load(session.range(rows).selectExpr("id", "id as a", "'old' as b"), db, "t")
        db.core.own.lock = watch  # type: ignore[assignment]
        commits = [0] * threads

        def update(number: int) -> None:
            chance = random.Random(number)
            while not stop.is_set():
                try:
                    with db.begin() as txn:
                        txn.update("t", chance.randrange(rows), {"a": number})
                    commits[number] += 1
                except hc.ConflictError:
                    pass  # the job was faster

        writers = [threading.Thread(target=update, args=(n,)) for n in range(threads)]
        for one in writers:
            one.start()
        begin = time.perf_counter()
        try:
            hs.load(given, db, "t", on_conflict="upsert")
        finally:
            took = time.perf_counter() - begin
            stop.set()
            for one in writers:
                one.join()
        waits = [watch.waits.get(one.ident or 0, 0.0) for one in writers]
    session.stop()
    note = f"{rows:,} rows, {threads} writers, {sum(commits) / took:,.0f} commits/s, {took:.1f} s"
    wait_ms = max(waits) * 1e3
    return [Figure(name="longest wait", value=wait_ms, unit="ms", limit=WAIT_MS_MAX, note=note)]


class _Stopwatch:
    """A lock that remembers the longest wait of each thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.waits: dict[int, float] = {}

    def __enter__(self) -> bool:
        begin = time.perf_counter()
        self._lock.acquire()
        me = threading.get_ident()
        self.waits[me] = max(self.waits.get(me, 0.0), time.perf_counter() - begin)
        return True

    def __exit__(self, *_: object) -> None:
        self._lock.release()

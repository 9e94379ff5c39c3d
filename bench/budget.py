"""Does a table that is much larger than memory stay within its budget?

    load in batches (through L0, and as objects) --> upserts --> single rows --> a query
                 RSS is looked at a hundred times a second all the way

The budget is what `hc.open(memory=)` was given; DuckDB's share lies inside it. What counts is by
how much the process has grown since the empty database was opened. A batch of input that the
benchmark itself holds counts as well.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import numpy as np
import pyarrow as pa

import halocline as hc
from bench.engine import resident_bytes
from bench.harness import Figure

MIB = 1024 * 1024
SMALL_ROWS, LARGE_ROWS = 100_000, 400_000
"""Batches below and above what becomes objects before the commit."""
UPSERT_ROWS = 20_000
WIDTH = 80


def memory_budget(
    directory: Path, *, budget_mib: int, times: int, upserts: int, singles: int
) -> list[Figure]:
    """Load `times` the budget and change a part of it; the worst growth of the process."""
    rng = np.random.default_rng(7)
    with hc.open(directory / "db", durability="async", memory=budget_mib * MIB) as db:
        columns = {"id": int, "a": int, "b": float, "note": str}
        db.create_table("t", columns, primary_key="id")
        started = perf_counter()
        with _watched() as peak:
            rows = _load(db, rng, times * budget_mib * MIB)
            loaded = perf_counter()
            for _ in range(upserts):
                with db.begin() as txn:
                    txn.upsert("t", _batch(rng, rng.choice(rows, UPSERT_ROWS, replace=False)))
            for key in rng.integers(0, rows, singles).tolist():
                with db.begin() as txn:
                    txn.update("t", key, {"a": key})
            changed = perf_counter()
            found = db.sql("select count(*) as n, sum(b) as total from t").to_pylist()[0]["n"]
        if found != rows:
            raise AssertionError(f"the table has {found:,} rows, not {rows:,}")
    grown = peak[0] / MIB
    note = (
        f"{grown / budget_mib:.2f}x the budget; {rows:,} rows, {times} x {budget_mib} MB, loaded "
        f"in {loaded - started:.0f} s, {upserts * UPSERT_ROWS + singles:,} rows changed in "
        f"{changed - loaded:.0f} s"
    )
    return [Figure(name="peak growth", value=grown, unit="MB", limit=2.0 * budget_mib, note=note)]


def _load(db: hc.Database, rng: np.random.Generator, size_bytes: int) -> int:
    """Insert until the table has that size as plain Arrow; returns the number of rows."""
    rows = done = 0
    small = True
    while done < size_bytes:
        count = SMALL_ROWS if small else LARGE_ROWS
        table = _batch(rng, np.arange(rows, rows + count))
        with db.begin() as txn:
            txn.insert("t", table)
        rows, done, small = rows + count, done + table.nbytes, not small
    return rows


def _batch(rng: np.random.Generator, ids: np.ndarray) -> pa.Table:
    """Rows of some 100 bytes; the text is one of a thousand, so that files stay small."""
    count = len(ids)
    texts = pa.array([f"{number:03d}" * (WIDTH // 3) for number in range(1000)])
    return pa.table(
        {
            "id": ids,
            "a": rng.integers(0, 1 << 30, count),
            "b": rng.random(count),
            "note": texts.take(pa.array(rng.integers(0, 1000, count))),
        }
    )


@contextmanager
def _watched() -> Iterator[list[int]]:
    """The most bytes by which the process has grown, kept up to date while the block runs."""
    before = resident_bytes() or 0
    peak = [0]
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            peak[0] = max(peak[0], (resident_bytes() or 0) - before)
            time.sleep(0.01)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()

"""Figures of the engine alone: replay at open, opening from a checkpoint, memory per row of L0.

None has a peer. Replay should cost the same per commit however long the tail is; a frozen page
should weigh little more than the Arrow data in it.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter

import pyarrow as pa

import halocline as hc
from bench import data, ours
from bench.harness import Figure


def replay(directory: Path, *, tails: Sequence[int]) -> list[Figure]:
    """Open databases whose logs hold so many single-row commits."""
    figures = []
    for commits in tails:
        place = directory / str(commits)
        place.mkdir()
        # The writer is cut off, not closed, so that nothing but the log is there to read.
        writer = multiprocessing.get_context("spawn").Process(
            target=_write_and_vanish, args=(place, commits)
        )
        writer.start()
        writer.join()
        if writer.exitcode:
            raise RuntimeError(f"the writer of {commits:,} commits failed")
        started = perf_counter()
        with hc.open(place / "ours") as db:
            took = perf_counter() - started
            found = db.table(data.TABLE).count()
        if found != commits:
            raise AssertionError(f"replay found {found} rows of {commits}")
        figures.append(
            Figure(
                name=f"{commits:,} commits",
                value=commits / took,
                unit="commits/s",
                note=f"{took:.2f} s, {took / commits * 1e6:.1f} us each",
            )
        )
    return figures


def opening(directory: Path, *, commits: int, tables: int, rounds: int) -> list[Figure]:
    """Open databases whose commits a checkpoint holds: what they cost besides an empty one."""
    empty = _median_opening(directory / "empty", 0, 1, rounds)
    figures = [Figure(name="empty database", value=empty, unit="ms")]
    for name, count, many in (
        (f"{commits:,} commits", commits, 1),
        (f"{10 * commits:,} commits", 10 * commits, 1),
        (f"{commits:,} commits, {tables} tables", commits, tables),
    ):
        took = _median_opening(directory / name, count, many, rounds)
        figures.append(
            Figure(
                name=f"{name} and a checkpoint",
                value=took,
                unit="ms",
                limit=2 * empty if many == 1 and count == commits else None,
                note=f"{took / empty:.2f}x an empty one",
            )
        )
    return figures


def _median_opening(place: Path, commits: int, tables: int, rounds: int) -> float:
    """Milliseconds that an opening takes."""
    place.mkdir()
    with ours.create(place, "async") as db:
        names = [data.TABLE, *(f"table{number}" for number in range(1, tables))]
        for name in names[1:]:
            db.create_table(name, ours.DEFINITION, primary_key="id")
        for number, row in enumerate(data.dicts(0, commits)):
            with db.begin() as txn:
                txn.insert(names[number % tables], row)
        if commits:
            db.checkpoint()
    times = []
    for _ in range(rounds):
        started = perf_counter()
        db = hc.open(place / "ours")
        times.append(perf_counter() - started)
        db.close()
    return median(times) * 1000


def _write_and_vanish(place: Path, commits: int) -> None:
    ours.load_rows(ours.create(place, "async"), 0, commits)
    os._exit(0)


def memory(directory: Path, *, bulk_rows: int, single_rows: int) -> list[Figure]:
    """Bytes per row after loading, by who holds them."""
    arrow = data.batch(0, bulk_rows).nbytes / bulk_rows
    gc.collect()
    figures = [Figure(name="plain Arrow", value=arrow, unit="bytes/row")]

    resident = _resident_growth(directory / "resident", bulk_rows)
    if resident is not None:
        note = "whole process, as the system sees it"
        figures.append(Figure(name="bulk: resident", value=resident, unit="bytes/row", note=note))

    for name, rows, load in (
        ("bulk", bulk_rows, ours.load),
        ("row by row", single_rows, ours.load_rows),
    ):
        pages, heap = _growth(directory / name, rows, load)
        figures += [
            Figure(
                name=f"{name}: pages",
                value=pages,
                unit="bytes/row",
                limit=1.5 * arrow,
                note=f"{pages / arrow:.2f}x plain Arrow",
            ),
            Figure(
                name=f"{name}: memtree and the rest",
                value=heap,
                unit="bytes/row",
                note="Python heap and NumPy arrays",
            ),
        ]
    return figures


def _growth(
    place: Path, rows: int, load: Callable[[hc.Database, int, int], None]
) -> tuple[float, float]:
    """Bytes per row that Arrow's pool and Python's heap keep after loading."""
    place.mkdir()
    with ours.create(place, "async") as db:
        gc.collect()
        tracemalloc.start()
        pool = pa.total_allocated_bytes()
        load(db, 0, rows)
        gc.collect()
        heap, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return (pa.total_allocated_bytes() - pool) / rows, heap / rows


def _resident_growth(place: Path, rows: int) -> float | None:
    """Bytes per row by which the process grows; None where the system does not tell."""
    place.mkdir()
    with ours.create(place, "async") as db:
        # The first batch warms the allocators, so that only what stays is counted.
        ours.load(db, 0, 50_000)
        gc.collect()
        before = resident_bytes()
        ours.load(db, 50_000, rows)
        gc.collect()
        after = resident_bytes()
    return None if before is None or after is None else (after - before) / rows


def resident_bytes() -> int | None:
    """Memory of this process; None where the system does not tell."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        return None
    return int(pages) * os.sysconf("SC_PAGE_SIZE")

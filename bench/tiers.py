"""Figures over all tiers: point reads out of objects, and writers beside everything else.

point-object     one key of a table that is in objects: again and again (warm), and each time in
                 a block that nobody has read (cold), in the time of the median read
writers-beside   single-row commits per second, alone and beside the mover and a query that
                 never ends
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from statistics import median
from threading import Event, Thread
from time import perf_counter

import halocline as hc
from bench import orders
from bench.harness import Figure

_WARM_KEYS = 200
_BLOCK_ROWS = 8192


def point_object(directory: Path, *, rows: int, reads: int) -> list[Figure]:
    """Read single keys of a table that is wholly in objects."""
    with hc.open(directory / "ours", options=hc.Options(background=False)) as db:
        db.create_table(orders.TABLE, orders.DEFINITION, primary_key="id")
        for part in orders.parts(rows, 1_000_000):
            with db.begin() as txn:
                txn.insert(orders.TABLE, part)
        db.flush()
    blocks = list(range(rows // _BLOCK_ROWS))
    Random(1).shuffle(blocks)
    with hc.open(directory / "ours", options=hc.Options(background=False)) as db:
        cold = _reads(db, [block * _BLOCK_ROWS + 17 for block in blocks[: min(reads, 500)]])
        keys = [Random(2).randrange(rows) for _ in range(_WARM_KEYS)]
        _reads(db, keys)
        warm = _reads(db, [keys[place % _WARM_KEYS] for place in range(reads)])
    return [
        Figure(name="warm, median", value=median(warm) * 1e6, unit="us", limit=60.0),
        Figure(name="cold, median", value=median(cold) * 1e6, unit="us", limit=5000.0),
    ]


def _reads(db: hc.Database, keys: list[int]) -> list[float]:
    took = []
    for key in keys:
        started = perf_counter()
        with db.begin() as txn:
            found = txn.get(orders.TABLE, key)
        took.append(perf_counter() - started)
        if found is None:
            raise AssertionError(f"key {key} is missing")
    return took


def writers_beside(directory: Path, *, rows: int, seconds: float) -> list[Figure]:
    """How much of their speed two writers keep beside the mover and a query without end."""
    options = hc.Options(move_rows=20_000, move_age_s=1)
    with hc.open(directory / "ours", options=options) as db:
        db.create_table(orders.TABLE, orders.DEFINITION, primary_key="id")
        db.create_table("events", {"id": int, "note": str}, primary_key="id")
        with db.begin() as txn:
            txn.insert(orders.TABLE, orders.rows(0, rows))
        alone = _write(db, 0, seconds)
        stop = Event()
        analyst = Thread(target=_ask, args=(db, stop))
        analyst.start()
        try:
            beside = _write(db, 100_000_000, seconds)
        finally:
            stop.set()
            analyst.join()
    share = beside / alone
    return [
        Figure(name="alone", value=alone, unit="commits/s"),
        Figure(name="beside mover and query", value=beside, unit="commits/s"),
        # A limit is a greatest value, so this is what the writers lose.
        Figure(name="lost", value=1.0 - share, unit="share", limit=0.5, note=f"{share:.2f} kept"),
    ]


def _write(db: hc.Database, first: int, seconds: float) -> float:
    """Durable commits per second of two threads that write a row each time."""
    counts = [0, 0]

    def writer(number: int) -> None:
        until = perf_counter() + seconds
        while perf_counter() < until:
            key = first + number * 50_000_000 + counts[number]
            with db.begin() as txn:
                txn.insert("events", {"id": key, "note": "a line of the ledger"})
            counts[number] += 1

    threads = [Thread(target=writer, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / seconds


def _ask(db: hc.Database, stop: Event) -> None:
    while not stop.is_set():
        db.sql(
            "select status, count(*), sum(amount), avg(price) from orders group by status "
            "union all select note, count(*), null, null from events group by note"
        )

"""Chapter 6: Spark joins in: a bulk load, compaction and a large query, while orders go on.

    writers --orders, orders, orders--> table <--one commit-- Spark: a million rows
                                          |
                           DuckDB and Spark answer the same query, at one snapshot

Spark runs in this process's own session and reads the table's own files: nothing is exported, and
nobody stops. How fresh that is is measured too: from a commit to its row in an answer of Spark.

Without Java, or without pyspark, the chapter says so and the rest of the demo is as it was.
"""

from __future__ import annotations

import itertools
import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from time import perf_counter, sleep
from typing import Any

import halocline as hc
from bank import orders
from bank.orders import Ledger
from bank.report import Report
from bank.screen import Cells, Picture, Screen, bar
from bank.writers import Writers

ROWS, ROWS_SHORT = 1_000_000, 20_000
FRESH, FRESH_SHORT = 5, 2
FIRST_ID = 1_000_000_000
DRAW_SECONDS = 0.25
PAUSE_SECONDS = 0.02
# Nothing is small enough to be merged in this process: compaction is left to Spark.
OPTIONS = hc.Options(
    page_rows=1024, object_rows=131_072, move_rows=8_192, compact_depth=2, compact_local_bytes=1
)
SETTINGS = {"spark.driver.memory": "2g", "spark.sql.shuffle.partitions": "4"}
QUERY = (
    "select state, count(*) as orders, cast(sum(cents) as bigint) as cents, max(customer) as last "
    "from orders group by state order by state"
)


class Meter:
    """What the writers did during each step."""

    def __init__(self, writers: Writers) -> None:
        self._writers = writers
        self.steps: dict[str, tuple[float, float]] = {}
        """By name: seconds, and commits per second meanwhile."""

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        before, started = self._writers.commits, perf_counter()
        yield
        seconds = perf_counter() - started
        self.steps[name] = (seconds, (self._writers.commits - before) / seconds)


def run(screen: Screen, report: Report, place: Path, *, threads: int, short: bool) -> None:
    """Let Spark work on a table that is in use."""
    screen.chapter(
        "6  Spark joins in",
        f"{threads} threads take orders. Meanwhile Spark starts in this process, loads "
        f"{ROWS_SHORT if short else ROWS:,} rows in one commit, compacts the table, and answers "
        "the same query as DuckDB, over the same files.",
    )
    missing = _missing()
    if missing:
        screen.aside(f"Not shown: {missing}")
        report.found(None, "Spark was not shown", missing)
        return
    with hc.open(place, options=OPTIONS) as db:
        orders.create(db)
        ledgers, batches = [Ledger() for _ in range(threads)], itertools.count()
        with Writers(
            threads, lambda n: _paced(orders.steps(db, batches, ledgers[n], n))
        ) as writers:
            _work(screen, report, db, writers, short=short)
        problems = db.check()
    report.found(
        not problems and not writers.errors,
        "Nobody waited for Spark",
        f"{writers.commits:,} commits of {threads} threads meanwhile, {len(problems)} problems in "
        "db.check()",
    )


def _paced(step: Callable[[], int]) -> Callable[[], int]:
    """Orders as they come in, not as fast as they can: Python has one lock for all its threads."""

    def paced() -> int:
        sleep(PAUSE_SECONDS)
        return step()

    return paced


def _missing() -> str:
    """Why there is no Spark here; empty when there is."""
    try:
        from halocline.spark.java import check_java
    except ImportError as error:
        return f"pyspark is not installed ({error}): pip install 'halocline[spark]'"
    try:
        check_java()
    except hc.UnavailableError as error:
        return str(error)
    return ""


def _work(
    screen: Screen, report: Report, db: hc.Database, writers: Writers, *, short: bool
) -> None:
    from halocline import spark as hs

    meter = Meter(writers)
    with screen.live("lrl") as picture:
        with meter.step("start"):
            session = _watch(screen, picture, writers, "starting Spark", _start, None)
        if session is None:
            return
        try:
            rows = ROWS_SHORT if short else ROWS
            with meter.step("load"):
                loaded = _watch(
                    screen,
                    picture,
                    writers,
                    f"loading {rows:,} rows",
                    lambda: hs.load(_import(session, rows), db, "orders"),
                    session,
                )
            with meter.step("compact"):
                tidied = _watch(
                    screen,
                    picture,
                    writers,
                    "compacting",
                    lambda: hs.compact(session, db, "orders"),
                    session,
                )
            if not screen.signal:
                _conclude(report, meter, loaded, rows, tidied)
                _ask(report, db)
                _freshness(report, session, db, FRESH_SHORT if short else FRESH)
        finally:
            hs.release(session)
            session.stop()


def _start() -> Any:
    """Start Spark without the lines that Java prints while it does."""
    from halocline import spark as hs

    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        return hs.session("local[*]", **SETTINGS)
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _import(session: Any, rows: int) -> Any:
    """Orders of another shop, as a DataFrame."""
    return session.range(FIRST_ID, FIRST_ID + rows).selectExpr(
        "id",
        "concat('customer ', cast(id % 10000 as string)) as customer",
        "'imported' as state",
        "1 + id * 7919 % 50000 as cents",
    )


def _watch(
    screen: Screen,
    picture: Picture,
    writers: Writers,
    title: str,
    work: Callable[[], Any],
    session: Any,
) -> Any:
    """Do something in a thread and draw how far Spark's stages are; its result."""
    done: list[Any] = []
    failed: list[BaseException] = []

    def target() -> None:
        try:
            done.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again below
            failed.append(error)

    thread, started = Thread(target=target, daemon=True), perf_counter()
    thread.start()
    while thread.is_alive():
        thread.join(DRAW_SECONDS)
        stages = _stages(session)
        seconds = perf_counter() - started
        picture.show(
            _cells(screen, writers, title, seconds, stages), _line(writers, title, seconds, stages)
        )
        if screen.signal and session is not None:
            session.sparkContext.cancelAllJobs()
    if failed and not screen.signal:
        raise failed[0]
    return done[0] if done else None


def _stages(session: Any) -> list[tuple[int, str, int, int]]:
    """Number, name, finished tasks and all tasks of every stage that runs."""
    if session is None:
        return []
    tracker = session.sparkContext.statusTracker()
    found = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    return [
        (one.stageId, one.name.partition(" at ")[0], one.numCompletedTasks, one.numTasks)
        for one in found
        if one is not None
    ]


def _cells(
    screen: Screen,
    writers: Writers,
    title: str,
    seconds: float,
    stages: list[tuple[int, str, int, int]],
) -> Cells:
    width = max(screen.console.width - 50, 8)
    rows = [
        ["orders", f"[bold green]{writers.commits:,}[/]", "durable commits so far"],
        ["Spark", f"{seconds:.0f} s", title],
    ]
    for number, name, finished, tasks in stages:
        drawn = f"[cyan]{bar(finished, tasks, width)}[/]"
        rows.append([f"stage {number}", f"{finished}/{tasks}", f"{drawn} {name}"])
    return rows


def _line(
    writers: Writers, title: str, seconds: float, stages: list[tuple[int, str, int, int]]
) -> str:
    shown = "".join(
        f"  stage {number} [{'#' * (10 * finished // max(tasks, 1)):<10}] {finished}/{tasks}"
        for number, _, finished, tasks in stages[:2]
    ).replace("[", "\\[")
    return f"{seconds:4.0f} s  {writers.commits:>6,} commits  {title}{shown}"


def _conclude(report: Report, meter: Meter, loaded: Any, rows: int, done: Any) -> None:
    seconds, beside = meter.steps["load"]
    report.found(
        loaded.inserted == rows,
        "A bulk load beside writers",
        f"{loaded.inserted:,} rows in {seconds:.1f} s and one commit, in {loaded.objects} objects; "
        f"{beside:,.0f} commits per second beside it",
    )
    started, tidied = meter.steps["start"], meter.steps["compact"]
    table = done["orders"]
    report.found(
        None,
        "Compaction on Spark",
        f"{len(table.done)} groups, {table.before.data_objects} objects before and "
        f"{table.after.data_objects} after, {done.rows_dropped:,} dead rows gone, in "
        f"{tidied[0]:.1f} s; {tidied[1]:,.0f} commits per second beside it",
    )
    report.found(
        None,
        "Starting Spark",
        f"{started[0]:.1f} s, {started[1]:,.0f} commits per second beside it",
    )


def _ask(report: Report, db: hc.Database) -> None:
    """One question to both engines, at one snapshot."""
    at = db.visible_ts
    answers, took = {}, {}
    for engine in ("local", "spark", "local", "spark"):  # the first time warms up
        started = perf_counter()
        answers[engine] = db.sql(QUERY, at=at, engine=engine)
        took[engine] = perf_counter() - started
    shown = ", ".join(
        f"{row['state']} {row['orders']:,}" for row in answers["local"].select([0, 1]).to_pylist()
    )
    report.found(
        answers["spark"].equals(answers["local"]),
        "DuckDB and Spark agree",
        f"both say {shown}; DuckDB in {took['local'] * 1e3:,.0f} ms, Spark in "
        f"{took['spark'] * 1e3:,.0f} ms, over the same files",
    )


def _freshness(report: Report, session: Any, db: hc.Database, times: int) -> None:
    """From a commit to its row in a result of Spark."""
    from halocline import spark as hs

    found, took_ms = 0, []
    for number in range(times):
        key = 2 * FIRST_ID + number
        with db.begin() as txn:
            txn.insert("orders", {"id": key, "customer": "fresh", "state": "new", "cents": 1})
        started = perf_counter()
        rows = hs.table(session, db, "orders", columns=["id"], where=f"id = {key}").collect()
        took_ms.append((perf_counter() - started) * 1e3)
        found += len(rows)
    report.found(
        found == times,
        "Fresh for Spark",
        f"a row is in a result of Spark {statistics.median(took_ms):,.0f} ms after its commit "
        f"(median of {times}, slowest {max(took_ms):,.0f} ms)",
    )

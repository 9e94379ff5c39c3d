"""Chapter 1: writer threads move money while an auditor queries, and every audit adds up.

    writers  --transfer, transfer, transfer--> accounts + transfers
    auditor  --one snapshot: two SQL queries--> the same sum, every time --> audits

The auditor waits for nobody and nobody waits for it: a query reads the snapshot that its
transaction began with, while the rows it reads are being changed.
"""

from __future__ import annotations

import itertools
import statistics
import threading
from collections import deque
from pathlib import Path
from time import perf_counter

import halocline as hc
from bank import tables
from bank.report import Report, Speed
from bank.screen import Cells, Screen, sparkline
from bank.tables import Audit, money
from bank.writers import Writers

AUDIT_PAUSE_SECONDS = 0.05
DRAW_SECONDS = 0.2


class Auditor:
    """Audits over and over in a thread of its own, and writes down what it saw."""

    def __init__(self, db: hc.Database) -> None:
        self._db = db
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self.audits: list[Audit] = []
        self.query_ms: list[float] = []
        self.favourite = ""
        self.error: Exception | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

    def _work(self) -> None:
        try:
            while not self._done.wait(AUDIT_PAUSE_SECONDS):
                self._audit()
        except Exception as error:  # noqa: BLE001 - raised again in stop
            self.error = error

    def _audit(self) -> None:
        with self._db.begin() as txn:
            started = perf_counter()
            seen = tables.audit(txn)
            between = perf_counter()
            favourites = txn.sql(tables.FAVOURITES).to_pylist()
            self.query_ms += [(between - started) * 1e3, (perf_counter() - between) * 1e3]
        for branch in favourites:
            count, received = branch["transfers"], money(branch["cents"])
            self.favourite = f"{branch['branch']}: {received} in {count:,} transfers"
        row = {"id": len(self.audits) + 1, "snapshot": seen.snapshot, "total": seen.total}
        row |= {"transfers": seen.transfers, "strays": seen.strays}
        with self._db.begin() as txn:
            txn.insert("audits", row)
        self.audits.append(seen)


class Meter:
    """Turns a growing count into a rate: now, and as a row of bars."""

    def __init__(self) -> None:
        self._count = 0
        self._at = perf_counter()
        self.rates: deque[float] = deque(maxlen=200)

    def read(self, count: int) -> float:
        """The rate over the last few readings: a single one jumps about."""
        now = perf_counter()
        self.rates.append((count - self._count) / max(now - self._at, 1e-9))
        self._count, self._at = count, now
        recent = list(self.rates)[-5:]
        return sum(recent) / len(recent)


def run(screen: Screen, report: Report, place: Path, *, threads: int, seconds: float) -> None:
    """Found the bank and let it work for a while."""
    screen.chapter(
        "1  Transfers while queries run",
        f"{threads} threads move money between {tables.ACCOUNTS:,} accounts. Each transfer changes "
        "two accounts and adds a row to a journal, in one durable transaction. Meanwhile an "
        "auditor runs SQL over both tables, each time at one snapshot.",
    )
    with hc.open(place) as db:
        tables.found(db)
        auditor = Auditor(db)
        numbers = itertools.count(1)
        with Writers(threads, lambda seed: tables.transfers(db, numbers, seed)) as writers:
            auditor.start()
            try:
                _watch(screen, writers, auditor, seconds)
            finally:
                auditor.stop()
        with db.begin() as txn:
            at_end = tables.audit(txn)
    _conclude(report, writers, auditor, at_end, threads)


def _watch(screen: Screen, writers: Writers, auditor: Auditor, seconds: float) -> None:
    meter = Meter()
    with screen.live("lrl") as picture:
        # However short the chapter, it lasts until an audit has been seen.
        while (writers.seconds < seconds or not auditor.audits) and screen.pause(DRAW_SECONDS):
            if writers.errors or auditor.error is not None:
                break
            rate = meter.read(writers.commits)
            width = screen.console.width - 44
            picture.show(_cells(writers, auditor, rate, meter, width), _line(writers, auditor))


def _cells(writers: Writers, auditor: Auditor, rate: float, meter: Meter, width: int) -> Cells:
    commits, audits = writers.commits, auditor.audits
    same = sum(seen.total == tables.TOTAL_CENTS for seen in audits)
    strays = sum(seen.strays for seen in audits)
    total = money(audits[-1].total) if audits else ""
    # One query alone jumps about.
    now_ms = statistics.median(auditor.query_ms[-10:] or [0.0])
    line = sparkline(list(meter.rates), max(width, 8))
    percent = 100 * writers.retries / max(commits, 1)
    return [
        ["commits", f"[bold green]{rate:,.0f}[/] /s", f"[green]{line}[/]"],
        ["", f"{commits:,}", "durable transfers so far"],
        ["conflicts", f"{writers.retries:,}", f"retried by db.run ({percent:.1f} %), none lost"],
        ["queries", f"[bold]{now_ms:,.0f}[/] ms", _latency(auditor)],
        ["received most", "", auditor.favourite],
        ["sum of balances", f"[bold]{total}[/]", f"in {same:,} of {len(audits):,} snapshots"],
        ["journal", f"{strays:,}", "accounts that disagreed with it, ever"],
        ["rows", f"{tables.ACCOUNTS + commits + len(audits):,}", _rows(writers, auditor)],
    ]


def _rows(writers: Writers, auditor: Auditor) -> str:
    return (
        f"accounts {tables.ACCOUNTS:,}, transfers {writers.commits:,}, "
        f"audits {len(auditor.audits):,}"
    )


def _latency(auditor: Auditor) -> str:
    if not auditor.query_ms:
        return ""
    median, worst = statistics.median(auditor.query_ms), max(auditor.query_ms)
    return f"{len(auditor.query_ms):,} so far: median {median:,.0f} ms, slowest {worst:,.0f} ms"


def _line(writers: Writers, auditor: Auditor) -> str:
    total = money(auditor.audits[-1].total) if auditor.audits else "-"
    return (
        f"{writers.seconds:4.0f} s  {writers.commits:>8,} commits  {writers.retries:>5,} conflicts "
        f"retried  {len(auditor.query_ms):>5,} queries  sum {total}"
    )


def _conclude(
    report: Report, writers: Writers, auditor: Auditor, at_end: Audit, threads: int
) -> None:
    audits = [*auditor.audits, at_end]
    same = sum(seen.total == tables.TOTAL_CENTS for seen in audits)
    strays = sum(seen.strays for seen in audits)
    report.found(
        same == len(audits),
        "Money is never made or lost",
        f"sum of all balances {money(tables.TOTAL_CENTS)} in {same:,} of {len(audits):,} "
        "snapshots while money moved",
    )
    report.found(
        not strays and at_end.transfers == writers.commits,
        "All of a transfer, or nothing",
        f"{strays} accounts disagreed with the journal in any of them; {writers.commits:,} "
        f"transfers acknowledged, {at_end.transfers:,} there",
    )
    if auditor.query_ms:
        report.found(
            None,
            "Queries beside writers",
            f"{len(auditor.query_ms):,} SQL queries, median "
            f"{statistics.median(auditor.query_ms):,.0f} ms, slowest "
            f"{max(auditor.query_ms):,.0f} ms; {writers.retries:,} conflicts retried",
        )
    report.speeds.append(
        Speed(
            title=f"Transfers, {threads} threads, while queries run",
            ours=writers.commits / writers.seconds,
        )
    )

"""Chapter 2: the same work on Halocline and on SQLite, taking turns on the same disk.

    transfers   several threads: read, two updates, a row in the journal, durable commit
    inserts     one thread: a row in the journal, durable commit

Turns are short and alternate, because disks drift; each side starts with one that does not count.
A rate is all commits of a side's turns over all their seconds. No queries run meanwhile, on either
side, and how SQLite is used is written at the top of peer.py.
"""

from __future__ import annotations

import gc
import itertools
import os
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import perf_counter

import halocline as hc
from bank import tables
from bank.peer import Peer
from bank.report import Report, Speed
from bank.screen import Cells, Screen, bar
from bank.writers import Step, Writers

ROUNDS = 6
WARM_UP = 0.15
"""The uncounted first turn, as a part of a full one."""
BAR_WIDTH = 20
DRAW_SECONDS = 0.5


@dataclass(slots=True, kw_only=True)
class Lane:
    """One side of a contest, and what it has done in its turns."""

    name: str
    make: Callable[[int], Step]
    commits: int = 0
    seconds: float = 0.0
    running: Writers | None = None

    @property
    def rate(self) -> float:
        """Commits per second in all turns until now, the running one included."""
        commits, seconds = self.commits, self.seconds
        if self.running is not None:
            commits, seconds = commits + self.running.commits, seconds + self.running.seconds
        return commits / seconds if seconds else 0.0


@dataclass(slots=True, kw_only=True)
class Contest:
    """The same work for both sides: ours first, then the peer."""

    title: str
    threads: int
    turn_seconds: float
    lanes: list[Lane] = field(default_factory=list)


def run(screen: Screen, report: Report, place: Path, *, threads: int, seconds: float) -> None:
    """Let both sides work, for about so many seconds in all."""
    screen.chapter(
        "2  Beside SQLite",
        "The same transfers, then plain inserts, on both. A commit counts when it is on disk. "
        f"The two take turns, {ROUNDS} each, in the same directory; no queries run meanwhile.",
    )
    sync_us = sync_microseconds(place)
    with hc.open(place / "ours") as db, Peer(place / "peer.db") as peer:
        tables.found(db)
        contests = _contests(db, peer, threads, seconds)
        with screen.live("llrll") as picture:
            for contest in contests:
                _race(screen, contest, lambda: picture.show(*_picture(contests)))
            picture.show(*_picture(contests))
        with db.begin() as txn:
            assert tables.audit(txn).total == peer.total() == tables.TOTAL_CENTS
    for contest in contests:
        ours, theirs = contest.lanes
        if ours.rate and theirs.rate:
            report.speeds.append(Speed(title=contest.title, ours=ours.rate, peer=theirs.rate))
            report.measured = _measured(contests, sync_us)


def sync_microseconds(place: Path, writes: int = 100) -> float:
    """What the disk itself takes to make a small write durable: the measure of every commit."""
    sync = getattr(os, "fdatasync", os.fsync)
    path = place / "sync"
    took = []
    with path.open("w+b", buffering=0) as file:
        # Real zeros first: a sync that must also find room for the file costs more.
        file.write(b"\0" * 4096 * writes)
        os.fsync(file.fileno())
        for number in range(writes):
            started = perf_counter()
            os.pwrite(file.fileno(), b"\xa5" * 120, number * 4096)
            sync(file.fileno())
            took.append(perf_counter() - started)
    path.unlink()
    return sorted(took)[writes // 2] * 1e6


def _race(screen: Screen, contest: Contest, draw: Callable[[], None]) -> None:
    for lane in contest.lanes:
        _turn(screen, contest, lane, contest.turn_seconds * WARM_UP, lambda: None)
        lane.commits, lane.seconds = 0, 0.0
    for _ in range(ROUNDS):
        for lane in contest.lanes:
            _turn(screen, contest, lane, contest.turn_seconds, draw)


def _turn(
    screen: Screen, contest: Contest, lane: Lane, seconds: float, draw: Callable[[], None]
) -> None:
    """Let one side work for so long, or until the viewer has had enough."""
    if screen.signal:
        return
    # What the other side left behind must not be swept on this side's clock.
    gc.collect()
    with Writers(contest.threads, lane.make) as lane.running:
        while (left := seconds - lane.running.seconds) > 0:
            if not screen.pause(min(left, DRAW_SECONDS)):
                break
            draw()
    lane.commits += lane.running.commits
    lane.seconds += lane.running.seconds
    lane.running = None


def _picture(contests: list[Contest]) -> tuple[Cells, str]:
    cells, words = [], []
    for contest in contests:
        ours, theirs = contest.lanes
        if not ours.rate:
            continue
        top = max(ours.rate, theirs.rate)
        for lane, color in ((ours, "green"), (theirs, "blue")):
            title, ratio = ("", "") if lane is theirs else (contest.title, _ratio(ours, theirs))
            length = f"[{color}]{bar(lane.rate, top, BAR_WIDTH):<{BAR_WIDTH}}[/]"
            cells.append([title, lane.name, f"{lane.rate:,.0f} /s", length, ratio])
        peer = f", SQLite {theirs.rate:,.0f} /s" if theirs.rate else ""
        words.append(f"{contest.title}: {ours.rate:,.0f} /s{peer}")
    return cells, "; ".join(words)


def _ratio(ours: Lane, theirs: Lane) -> str:
    return f"[bold]{ours.rate / theirs.rate:.2f}x[/]" if theirs.rate else ""


def _contests(db: hc.Database, peer: Peer, threads: int, seconds: float) -> list[Contest]:
    numbers, peer_numbers = itertools.count(1), itertools.count(1)
    turn_seconds = seconds / (2 * (ROUNDS + WARM_UP))
    many = Contest(
        title=f"Transfers, {threads} threads" if threads > 1 else "Transfers, 1 thread",
        threads=threads,
        turn_seconds=turn_seconds * 0.7,
    )
    one = Contest(title="Inserts, 1 thread", threads=1, turn_seconds=turn_seconds * 0.3)
    many.lanes = [
        Lane(name="Halocline", make=lambda seed: tables.transfers(db, numbers, seed)),
        Lane(name="SQLite", make=lambda seed: peer.transfers(peer_numbers, seed)),
    ]
    one.lanes = [
        Lane(name="Halocline", make=lambda seed: _inserts(db, numbers, seed)),
        Lane(name="SQLite", make=lambda seed: peer.inserts(peer_numbers, seed)),
    ]
    return [many, one]


def _inserts(db: hc.Database, numbers: Iterator[int], seed: int) -> Step:
    """A function that inserts one row, durably."""
    random = Random(seed)

    def step() -> int:
        source, target, cents = tables.draw(random)
        row = {"id": next(numbers), "source": source, "target": target, "cents": cents}
        with db.begin() as txn:
            txn.insert("transfers", row)
        return 0

    return step


def _measured(contests: list[Contest], sync_us: float) -> str:
    turns = " and ".join(f"{contest.turn_seconds:.1f} s" for contest in contests)
    return (
        f"How: both sides took turns, {ROUNDS} each of {turns}, with the same rows, threads and "
        f"directory. SQLite {sqlite3.sqlite_version}: WAL, synchronous=FULL, begin immediate, a "
        "connection per thread, threads queue at a lock (faster for it than its busy handler). "
        f"A small write and sync alone takes {sync_us:,.0f} us on this disk."
    )

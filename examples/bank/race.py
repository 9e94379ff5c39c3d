"""Chapter 2: the same work on Halocline and on SQLite, taking turns on the same disk.

    transfers   several threads: read, two updates, a row in the journal, durable commit
    inserts     one thread: a row in the journal, durable commit

Fair to the peer: WAL mode with synchronous=FULL, which promises what our commit promises; begin
immediate, so that no transaction starts in vain; a connection for each thread; statement texts that
never change, so that they are prepared once; relative updates, which spare it a read that we need;
and its threads queue at a lock in Python, because SQLite's own busy handler sleeps between tries
and some threads starve: the lock served it better by some percent where this was tried.

Turns are short and alternate, because disks drift. No queries run beside them, on either side.
"""

from __future__ import annotations

import gc
import itertools
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import perf_counter

import halocline as hc

from bank import tables
from bank.report import Report, Speed
from bank.screen import Cells, Screen, bar
from bank.writers import Step, Writers

ROUNDS = 3
WARM_UP = 0.15
"""Part of a turn that each side runs before its first one, uncounted."""


@dataclass(slots=True, kw_only=True)
class Lane:
    """One side of one contest, and what it has done in its turns."""

    name: str
    make: Callable[[int], Step]
    commits: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        return self.commits / self.seconds if self.seconds else 0.0


@dataclass(slots=True, kw_only=True)
class Contest:
    """The same work for both sides."""

    title: str
    threads: int
    turn_seconds: float
    lanes: list[Lane] = field(default_factory=list)


def run(screen: Screen, report: Report, place: Path, *, threads: int, seconds: float) -> None:
    """Let both sides work for about so many seconds in all."""
    screen.chapter(
        "2  Beside SQLite",
        "The same transfers, then plain inserts, on both; every commit is on disk before it "
        f"counts. They take turns, {ROUNDS} each, on the same disk. No queries run meanwhile.",
    )
    sync_us = sync_microseconds(place)
    with _ours(place / "ours") as db, _peer(place / "peer.db") as peer:
        contests = _contests(db, peer, threads, seconds)
        with screen.live("llrll") as picture:
            for contest in contests:
                _race(screen, contest, lambda: picture.show(*_picture(contests)))
            picture.show(*_picture(contests), last=True)
        peer.close()
    for contest in contests:
        ours, theirs = contest.lanes
        if ours.seconds and theirs.seconds:
            report.speeds.append(Speed(title=contest.title, ours=ours.rate, peer=theirs.rate))
    report.measured = _measured(contests, sync_us)


def _race(screen: Screen, contest: Contest, draw: Callable[[], None]) -> None:
    for lane in contest.lanes:
        _turn(screen, contest, lane, contest.turn_seconds * WARM_UP, lambda: None, counted=False)
    for _ in range(ROUNDS):
        for lane in contest.lanes:
            _turn(screen, contest, lane, contest.turn_seconds, draw)


def _turn(
    screen: Screen,
    contest: Contest,
    lane: Lane,
    seconds: float,
    draw: Callable[[], None],
    *,
    counted: bool = True,
) -> None:
    if not screen.pause(0):
        return
    # What the other side left behind must not be swept on this side's clock.
    gc.collect()
    with Writers(contest.threads, lane.make) as writers:
        while (left := seconds - writers.seconds) > 0 and screen.pause(min(left, 0.5)):
            pass
    if counted and not screen.signal:
        lane.commits += writers.commits
        lane.seconds += writers.seconds
        draw()


def _picture(contests: list[Contest]) -> tuple[Cells, str]:
    cells, words = [], []
    for contest in contests:
        top = max(lane.rate for lane in contest.lanes)
        ours, theirs = contest.lanes
        if not top:
            continue
        for lane, color in zip(contest.lanes, ("green", "blue"), strict=True):
            title = contest.title if lane is ours else ""
            ratio = f"[bold]{ours.rate / theirs.rate:.2f}x[/]" if theirs.rate and lane is ours else ""
            length = f"[{color}]{bar(lane.rate, top, 16):<16}[/]"
            cells.append([title, lane.name, f"{lane.rate:,.0f} /s", length, ratio])
        words.append(f"{contest.title}: {ours.rate:,.0f} /s, SQLite {theirs.rate:,.0f} /s")
    return cells, ";  ".join(words)


def _contests(db: hc.Database, peer: Peer, threads: int, seconds: float) -> list[Contest]:
    numbers, peer_numbers = itertools.count(1), itertools.count(1)
    turn_seconds = seconds / (2 * (ROUNDS + WARM_UP))
    names = f"{threads} threads" if threads > 1 else "1 thread"
    transfers = Contest(
        title=f"Transfers, {names}", threads=threads, turn_seconds=turn_seconds * 0.7
    )
    inserts = Contest(title="Inserts, 1 thread", threads=1, turn_seconds=turn_seconds * 0.3)
    transfers.lanes = [
        Lane(name="Halocline", make=lambda seed: tables.transfers(db, numbers, seed)),
        Lane(name="SQLite", make=lambda seed: peer.transfers(peer_numbers, seed)),
    ]
    inserts.lanes = [
        Lane(name="Halocline", make=lambda seed: _inserts(db, numbers, seed)),
        Lane(name="SQLite", make=lambda seed: peer.inserts(peer_numbers, seed)),
    ]
    return [transfers, inserts]


@contextmanager
def _ours(path: Path) -> Iterator[hc.Database]:
    with hc.open(path) as db:
        tables.found(db)
        yield db


def _inserts(db: hc.Database, numbers: Iterator[int], seed: int) -> Step:
    random = Random(seed)

    def step() -> int:
        source, target, cents = tables.draw(random)
        row = {"id": next(numbers), "source": source, "target": target, "cents": cents}
        with db.begin() as txn:
            txn.insert("transfers", row)
        return 0

    return step

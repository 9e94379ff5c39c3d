"""Chapter 3: kill -9 while commits are in flight, open again, and count.

    child    commit, say so, commit, say so, com              each "say so" is a line in a pipe
    parent   read, read, read, read, SIGKILL, read the rest, open (timed), compare, audit

What the pipe says was acknowledged, so it must be there, value for value. A commit may have reached
the disk without its line reaching the pipe: at most one for each thread, and whole. Everything else
must be absent, which the audit shows: each balance is what the journal says.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import perf_counter

import halocline as hc
from bank import tables
from bank.report import Report
from bank.screen import Picture, Screen
from bank.tables import Audit, money

CHAPTER_SECONDS_MAX = 15.0
"""No further kill once the chapter has taken so long: on a slow machine one must do."""
Transfer = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """What one kill left behind."""

    acknowledged: int
    missing: int
    """Acknowledged, but absent or different: must be 0."""
    in_flight: int
    """On disk, but killed before the line could be written: at most one for each thread."""
    recovery_seconds: float
    audit: Audit
    problems: int


class Child:
    """A process that commits, and a thread that hears its acknowledgements."""

    def __init__(self, place: Path, threads: int, seed: int) -> None:
        # The child finds its modules where we have found ours.
        paths = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path)
        # A session of its own: Ctrl-C is for us, the child gets nothing but the kill.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bank.child", str(place), str(threads), str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": paths},
            start_new_session=True,
        )
        self.pid = self._process.pid
        self.heard: dict[int, Transfer] = {}
        self.first: int | None = None
        """The number of its first transfer, once it is ready."""
        self._ear = threading.Thread(target=self._listen, daemon=True)
        self._ear.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(b"ready"):
                self.first = int(line.split()[1])
            else:
                number, source, target, cents = map(int, line.split())
                self.heard[number] = (source, target, cents)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """kill -9, and read what it had said until then."""
        self._process.kill()
        self._process.wait()
        self._ear.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def run(
    screen: Screen, report: Report, place: Path, *, threads: int, seconds: float, kills: int
) -> None:
    """Kill the bank a few times in the middle of its work."""
    screen.chapter(
        "3  kill -9",
        f"A child process opens the bank and makes transfers in {threads} threads, telling us each "
        "one that was acknowledged. We kill it without warning, open the bank, and compare.",
    )
    random = Random()
    crashes: list[Crash] = []
    until = perf_counter() + CHAPTER_SECONDS_MAX
    with screen.live("lrlll") as picture:
        while len(crashes) < kills and not screen.signal and perf_counter() < until:
            child = Child(place, threads, random.randrange(1 << 30))
            try:
                _watch(screen, picture, child, crashes, seconds / kills * random.uniform(0.7, 1.3))
            finally:
                child.kill()
            crashes.append(_recover(place, child))
            picture.show(_cells(screen, crashes), _line(crashes), last=True)
    _conclude(report, crashes, threads)


def _watch(
    screen: Screen, picture: Picture, child: Child, crashes: list[Crash], seconds: float
) -> None:
    """Let the child work for a while."""
    cells = _cells(screen, crashes)
    began = 0.0
    while screen.pause(0.1) and not (began and perf_counter() - began >= seconds):
        if not child.alive:
            raise hc.UnavailableError("the child process ended before it was killed")
        if child.first is not None:
            began = began or perf_counter()
        doing = f"process {child.pid} commits" if began else f"process {child.pid} opens the bank"
        heard = f"{len(child.heard):,}"
        picture.show(
            [*cells, [f"kill {len(crashes) + 1}", heard, "acknowledged", doing, ""]],
            f"{doing}: {heard} acknowledged" if began else "",
        )


def _recover(place: Path, child: Child) -> Crash:
    """Open what the kill has left, and compare it with what was heard."""
    started = perf_counter()
    with hc.open(place) as db:
        recovery_seconds = perf_counter() - started
        with db.begin() as txn:
            # A child that never got ready has committed nothing: no number is above all of them.
            first = tables.next_number(db) if child.first is None else child.first
            rows = txn.sql("select * from transfers where id >= ?", [first]).to_pylist()
            audit = tables.audit(txn)
        there = {row["id"]: (row["source"], row["target"], row["cents"]) for row in rows}
        return Crash(
            acknowledged=len(child.heard),
            missing=sum(there.get(number) != moved for number, moved in child.heard.items()),
            in_flight=len(there.keys() - child.heard.keys()),
            recovery_seconds=recovery_seconds,
            audit=audit,
            problems=len(db.check()),
        )


def _cells(screen: Screen, crashes: list[Crash]) -> list[list[str]]:
    return [
        [
            f"kill {number}",
            f"{crash.acknowledged:,}",
            "acknowledged",
            f"back in [bold]{crash.recovery_seconds:.2f} s[/]",
            f"{screen.mark(not crash.missing)} {_outcome(crash)}",
        ]
        for number, crash in enumerate(crashes, 1)
    ]


def _outcome(crash: Crash) -> str:
    there = "all there" if not crash.missing else f"{crash.missing:,} missing"
    return f"{there}, sum {money(crash.audit.total)}"


def _line(crashes: list[Crash]) -> str:
    crash = crashes[-1]
    return (
        f"kill {len(crashes)}: {crash.acknowledged:,} acknowledged, "
        f"back in {crash.recovery_seconds:.2f} s, {_outcome(crash)}"
    )


def _conclude(report: Report, crashes: list[Crash], threads: int) -> None:
    acknowledged = sum(crash.acknowledged for crash in crashes)
    if not acknowledged:
        return
    missing = sum(crash.missing for crash in crashes)
    in_flight = sum(crash.in_flight for crash in crashes)
    strays = sum(crash.audit.strays for crash in crashes)
    problems = sum(crash.problems for crash in crashes)
    slowest = max(crashes, key=lambda crash: crash.recovery_seconds)
    kills = f"{len(crashes)} kills" if len(crashes) > 1 else "1 kill"
    report.found(
        not missing and all(crash.in_flight <= threads for crash in crashes),
        "kill -9 loses nothing",
        f"{kills}: {acknowledged - missing:,} of {acknowledged:,} acknowledged commits there, "
        f"and {in_flight} that were in flight",
    )
    report.found(
        not problems and all(crash.audit.sound for crash in crashes),
        "and leaves nothing half-done",
        f"each time sum {money(crashes[-1].audit.total)}, {strays} accounts disagree with the "
        f"journal, {problems} problems in db.check()",
    )
    report.found(
        None,
        "Recovery is opening",
        f"{slowest.recovery_seconds:.2f} s at most, for a history of "
        f"{slowest.audit.transfers:,} transfers",
    )

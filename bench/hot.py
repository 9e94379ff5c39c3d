"""Rows that everybody wants: one counter, ten rows. Accounts that nobody contends for are a case.

    round 0: ours, SQLite     round 1: SQLite, ours     ...      a second or two each

A side is a team of processes with eight threads each. All of them do the same until the time of the
round is over: read a row, add one, commit, durable on both sides (`sync` against synchronous=FULL,
WAL, begin immediate). What counts is how many succeed in a second, and how long the unluckiest of
them had to wait for one. The first process of our team is the owner of the database.

    counter     one row for all                                  8 threads; 4 processes x 8 threads
    add         the same with `hc.add`, which reads nothing      8 threads; 4 processes x 8 threads
    ten         two of ten rows, in random order                 8 threads

At the end the rows hold as much as was acknowledged, or the figures are refused. A transaction that
`db.run` gave up is counted as an error; none is allowed.
"""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import halocline as hc
from bench.harness import Figure
from bench.sqlite import connect
from bench.threads import seconds_together

THREADS = 8
ROWS = 10
SELECT = "select n from counters where id = ?"
WRITE = "update counters set n = ? where id = ?"
ADD = "update counters set n = n + 1 where id = ?"

Once = Callable[[list[int]], None]
"""One transaction over the rows of these ids."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What one transaction does."""

    rows: int
    """How many rows there are to choose from."""
    taken: int
    """How many of them one transaction wants."""
    add: bool = False


SHAPES = {
    "counter": Shape(1, 1),
    "add": Shape(1, 1, add=True),
    "ten": Shape(ROWS, 2),
}


# -- one transaction, on either side ---------------------------------------------------------------


def our_once(db: hc.Database, *, add: bool) -> Once:
    """A transaction of ours, as a user writes it."""

    def read_and_write(ids: list[int]) -> None:
        def work(txn: hc.Transaction) -> None:
            for key in ids:
                row = txn.get("counters", key)
                assert row is not None
                txn.update("counters", key, {"n": row["n"] + 1})

        db.run(work)

    def only_add(ids: list[int]) -> None:
        def work(txn: hc.Transaction) -> None:
            for key in ids:
                txn.update("counters", key, {"n": hc.add(1)})

        db.run(work)

    return only_add if add else read_and_write


def their_once(connection: sqlite3.Connection, *, add: bool) -> Once:
    """A transaction of SQLite."""
    cursor = connection.cursor()
    execute, fetchone = cursor.execute, cursor.fetchone

    def once(ids: list[int]) -> None:
        execute("begin immediate")
        for key in ids:
            if add:
                execute(ADD, (key,))
            else:
                execute(SELECT, (key,))
                execute(WRITE, (fetchone()[0] + 1, key))
        execute("commit")

    return once


# -- a process of a team ---------------------------------------------------------------------------


def work(turns: list[Once], shape: Shape, seconds: float, seed: int) -> dict[str, Any]:
    """Transactions of some threads for so many seconds: how many, the longest wait, errors."""
    done = [0] * len(turns)
    longest = [0.0] * len(turns)
    errors = [0] * len(turns)
    until = perf_counter() + seconds

    def loop(which: int) -> None:
        chance, once = random.Random(seed * 1000 + which), turns[which]
        while (began := perf_counter()) < until:
            ids = chance.sample(range(shape.rows), shape.taken)
            try:
                once(ids)
                done[which] += 1
            except hc.ConflictError:
                errors[which] += 1
            longest[which] = max(longest[which], perf_counter() - began)

    took = seconds_together([partial(loop, which) for which in range(len(turns))])
    return {"done": sum(done), "longest": max(longest), "errors": sum(errors), "seconds": took}


def member(side: str, folder: str, shape: Shape) -> None:
    """The program of a process: one line of JSON in, one line out, until its input ends."""
    if side == "ours":
        db = hc.open(Path(folder) / "ours")
        turns = [our_once(db, add=shape.add) for _ in range(THREADS)]
    else:
        connections = [connect(Path(folder), "full") for _ in range(THREADS)]
        turns = [their_once(connection, add=shape.add) for connection in connections]
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        print(json.dumps(work(turns, shape, **json.loads(line))), flush=True)
    if side == "ours":
        db.close()
    else:
        for connection in connections:
            connection.close()


class Team:
    """The processes of one side."""

    def __init__(self, side: str, folder: Path, name: str, processes: int) -> None:
        self._folder, self._side = folder, side
        self.acked = 0
        _create(side, folder, SHAPES[name].rows)
        command = [sys.executable, "-m", "bench.hot", side, str(folder), name]
        pipe = subprocess.PIPE
        self._members: list[subprocess.Popen[str]] = []
        for _ in range(processes):
            self._members.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
            self._heard(self._members[-1])

    def round(self, seconds: float, seed: int) -> tuple[float, float, int]:
        """Transactions in a second, the longest wait in seconds, errors."""
        for number, one in enumerate(self._members):
            assert one.stdin is not None
            one.stdin.write(json.dumps({"seconds": seconds, "seed": seed * 10 + number}) + "\n")
            one.stdin.flush()
        said = [self._heard(one) for one in self._members]
        self.acked += (done := sum(each["done"] for each in said))
        took = max(each["seconds"] for each in said)
        errors = sum(each["errors"] for each in said)
        return done / took, max(each["longest"] for each in said), errors

    def close(self, taken: int) -> None:
        """End all; every acknowledged transaction must be in the rows."""
        for one in reversed(self._members):
            assert one.stdin is not None
            one.stdin.close()
            one.wait(60)
            assert one.stdout is not None
            one.stdout.close()
        found = _total(self._side, self._folder)
        if found != self.acked * taken:
            raise AssertionError(f"{self._side}: {found} in the rows, {self.acked * taken} acked")

    def kill(self) -> None:
        for one in self._members:
            with suppress(OSError):
                one.kill()

    @staticmethod
    def _heard(one: subprocess.Popen[str]) -> Any:
        assert one.stdout is not None
        line = one.stdout.readline()
        if not line:
            raise RuntimeError("a process of the team has died")
        return json.loads(line)


def _create(side: str, folder: Path, rows: int) -> None:
    folder.mkdir(parents=True)
    if side == "ours":
        with hc.open(folder / "ours") as db:
            db.create_table("counters", {"id": int, "n": int}, primary_key="id")
            with db.begin() as txn:
                txn.insert("counters", [{"id": key, "n": 0} for key in range(rows)])
        return
    connection = connect(folder, "full")
    connection.execute("create table counters (id integer primary key, n integer)")
    connection.executemany("insert into counters values (?, 0)", [(key,) for key in range(rows)])
    connection.close()


def _total(side: str, folder: Path) -> int:
    if side == "ours":
        with hc.open(folder / "ours") as db:
            return int(db.sql("select sum(n) as n from counters").column("n")[0].as_py())
    connection = connect(folder, "full")
    found = connection.execute("select sum(n) from counters").fetchone()[0]
    connection.close()
    return int(found)


# -- figures ---------------------------------------------------------------------------------------


def hot(
    directory: Path, *, name: str, processes: int, target: float, rounds: int, seconds: float
) -> Iterator[Figure]:
    """Figures of one shape: throughput and longest wait, SQLite's beside ours."""
    shape = SHAPES[name]
    if shape.add and not hasattr(hc, "add"):
        raise LookupError("this revision has no hc.add")
    teams = [Team(side, directory / side, name, processes) for side in ("ours", "theirs")]
    found: list[list[tuple[float, float, int]]] = [[], []]
    try:
        for number in range(rounds + 1):
            for which in (0, 1) if number % 2 else (1, 0):
                result = teams[which].round(seconds, seed=number)
                if number:  # the first round warms up
                    found[which].append(result)
        for team in teams:
            team.close(shape.taken)
    finally:
        for team in teams:
            team.kill()
    rates = [[one[0] for one in side] for side in found]
    waits = [max(one[1] for one in side) * 1e3 for side in found]
    ratios = [theirs / ours for ours, theirs in zip(*rates, strict=True)]
    yield Figure(name="Halocline", value=median(rates[0]), unit="commits/s")
    yield Figure(name="SQLite, synchronous=FULL", value=median(rates[1]), unit="commits/s")
    yield Figure(
        name="SQLite / Halocline",
        value=median(ratios),
        unit="x",
        limit=1 / target if target else None,
        note=f"{1 / max(ratios):.2f} to {1 / min(ratios):.2f} times SQLite",
    )
    yield Figure(
        name="longest wait",
        value=waits[0],
        unit="ms",
        limit=waits[1],
        note=f"SQLite's {waits[1]:,.0f} ms",
    )
    yield Figure(
        name="given up", value=float(sum(one[2] for one in found[0])), unit="errors", limit=0.0
    )


def _main() -> None:
    parser = argparse.ArgumentParser(description="A process of a team of `hot`.")
    parser.add_argument("side")
    parser.add_argument("folder")
    parser.add_argument("name")
    arguments = parser.parse_args()
    member(arguments.side, arguments.folder, SHAPES[arguments.name])


if __name__ == "__main__":
    _main()

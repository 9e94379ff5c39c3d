"""`python -m bench.nodes`: what it costs to be a second process, as ratios within one run.

    latency     a durable commit of one row, from a second process against the owner's own
    afar        the same through Arrow Flight, on loopback
    throughput  eight client processes together against one thread of the owner
    freshness   from an acknowledged commit of the owner to the first read of it elsewhere
    query       an aggregation over objects, in a second process against the owner
    start       a second process that opens a database with a large table, until its first
                transaction has begun; `--start-rows` says how large

The owner is this process; clients are processes that answer on a pipe. Rounds alternate, so both
sides meet the same disk and the same neighbours.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter
from typing import Any

import pyarrow as pa

import halocline as hc

OUTPUT = Path(__file__).resolve().parent.parent / "build" / "bench"
QUERY = "select v % 10 as g, count(*) as n, sum(v) as s from big group by 1 order by 1"
CLIENTS = 8


class Client:
    """A client process and its pipe."""

    def __init__(self, place: Path | str, token: str = "") -> None:
        command = [sys.executable, "-m", "bench.nodes", "--client", str(place), "--token", token]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self.opened: dict[str, Any] = self.answer()

    def tell(self, do: str, **arguments: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def ask(self, do: str, **arguments: Any) -> Any:
        self.tell(do, **arguments)
        return self.answer()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


# -- work that both sides do ---------------------------------------------------------------------


def commits(db: hc.Database, first: int, count: int) -> float:
    """Median seconds of a transaction that inserts one row."""
    times = []
    for key in range(first, first + count):
        started = perf_counter()
        with db.begin() as txn:
            txn.insert("small", {"id": key, "v": key})
        times.append(perf_counter() - started)
    return median(times)


def flood(db: hc.Database, first: int, seconds: float) -> int:
    """Commits of one thread in so many seconds."""
    until = monotonic() + seconds
    key = first
    while monotonic() < until:
        with db.begin() as txn:
            txn.insert("small", {"id": key, "v": key})
        key += 1
    return key - first


def query(db: hc.Database, times: int) -> float:
    """Median seconds of the aggregation."""
    found = []
    for _ in range(times):
        started = perf_counter()
        db.sql(QUERY)
        found.append(perf_counter() - started)
    return median(found)


def watch(db: hc.Database, first: int, count: int) -> list[float]:
    """When each of these keys was first seen."""
    seen = []
    for key in range(first, first + count):
        while True:
            with db.begin() as txn:
                if txn.get("small", key) is not None:
                    break
        seen.append(monotonic())
    return seen


def client(place: str, token: str) -> None:
    """The program of a client: one line of JSON in, one line out."""
    started = perf_counter()
    db = hc.connect(place, token) if token else hc.open(place)
    with db.begin() as txn:
        txn.tables()
    opened = perf_counter() - started
    work: dict[str, Callable[..., Any]] = {
        "commits": commits,
        "flood": flood,
        "query": query,
        "watch": watch,
    }
    print(json.dumps({"role": db.role, "seconds": opened}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(work[request.pop("do")](db, **request)), flush=True)
    db.close()


# -- cases ---------------------------------------------------------------------------------------


def latency(db: hc.Database, one: Client, rounds: int, first: int = 0) -> tuple[float, float]:
    mine, theirs = [], []
    for number in range(rounds):
        mine.append(commits(db, first + number * 1000, 200))
        theirs.append(one.ask("commits", first=first + 10**9 + number * 1000, count=200))
    return median(mine), median(theirs)


def throughput(db: hc.Database, clients: list[Client], seconds: float) -> tuple[float, float]:
    alone = flood(db, 2 * 10**9, seconds) / seconds
    for place, one in enumerate(clients):
        one.tell("flood", first=(3 + place) * 10**9, seconds=seconds)
    together = sum(one.answer() for one in clients) / seconds
    return alone, together


def freshness(db: hc.Database, one: Client, count: int) -> float:
    first = 30 * 10**9
    one.tell("watch", first=first, count=count)
    acked = []
    for key in range(first, first + count):
        with db.begin() as txn:
            txn.insert("small", {"id": key, "v": key})
        acked.append(monotonic())
    late = [seen - ack for seen, ack in zip(one.answer(), acked, strict=True)]
    return float(max(0.0, median(late)))


def start(path: Path, rows: int, times: int) -> float:
    """Median seconds until a second process has opened a database with so many rows."""
    with hc.open(path) as db:
        db.create_table("big", {"id": int, "v": int, "text": str}, "id")
        _fill(db, rows, text=True)
        found: list[float] = []
        for _ in range(times):
            one = Client(path)
            assert one.opened["role"] == "node"
            found.append(one.opened["seconds"])
            one.close()
        return median(found)


def _fill(db: hc.Database, rows: int, *, text: bool = False) -> None:
    """Rows of the table `big`, in objects."""
    for first in range(0, rows, 1_000_000):
        ids = pa.array(range(first, min(first + 1_000_000, rows)))
        columns = {"id": ids, "v": ids}
        if text:
            columns["text"] = ids.cast(pa.string())
        with db.begin() as txn:
            txn.insert("big", pa.table(columns))
    db.flush()
    db.checkpoint()


def main() -> None:
    """Run all cases and print one line for each."""
    arguments = _arguments()
    if arguments.client:
        client(arguments.client, arguments.token)
        return
    OUTPUT.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix="nodes-", dir=OUTPUT))
    try:
        _run(place / "db", arguments)
        rows = arguments.start_rows
        seconds = start(place / "large", rows, arguments.rounds)
        _show("start", seconds * 1e3, "ms", rows, "rows", target="<= 1,000 ms")
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _run(path: Path, arguments: argparse.Namespace) -> None:
    with hc.open(path) as db:
        db.create_table("small", {"id": int, "v": int}, "id")
        db.create_table("big", {"id": int, "v": int}, "id")
        _fill(db, arguments.rows)
        clients = [Client(path) for _ in range(CLIENTS)]
        one = clients[0]
        mine, theirs = latency(db, one, arguments.rounds)
        _show("latency", mine * 1e6, "us", theirs * 1e6, "us", theirs / mine, "<= 1.8")
        server = db.serve()
        afar = Client(server.uri, server.token)
        mine, theirs = latency(db, afar, arguments.rounds, first=2 * 10**10)
        _show("afar", mine * 1e6, "us", theirs * 1e6, "us", theirs / mine, "<= 5")
        afar.close()
        alone, together = throughput(db, clients, arguments.seconds)
        _show("throughput", alone, "/s", together, "/s", together / alone, ">= 1.5")
        _show("freshness", freshness(db, one, 200) * 1e3, "ms", target="<= 5 ms")
        query(db, 2)
        one.ask("query", times=2)
        pairs = [(query(db, 5), one.ask("query", times=5)) for _ in range(arguments.rounds)]
        ours, others = median(pair[0] for pair in pairs), median(pair[1] for pair in pairs)
        _show("query", ours * 1e3, "ms", others * 1e3, "ms", others / ours, "<= 1.1")
        for each in clients:
            each.close()


def _show(
    name: str,
    owner: float,
    unit: str,
    other: float | None = None,
    other_unit: str = "",
    ratio: float | None = None,
    target: str = "",
) -> None:
    second = "" if other is None else f"{other:10,.1f} {other_unit:4}"
    third = "" if ratio is None else f"ratio {ratio:5.2f}"
    print(f"{name:11}{owner:10,.1f} {unit:3}{second:16}{third:12} {target}", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--start-rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--client", default="", help=argparse.SUPPRESS)
    parser.add_argument("--token", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()

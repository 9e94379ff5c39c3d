"""Other processes: what it costs to be a second one, as ratios within one run.

    nodes   commit      a durable commit of one row, from a second process against the owner's own
            together    eight client processes against one thread of the owner
            freshness   from an acknowledged commit of the owner to the first read of it elsewhere
    tls     commit      the same commit over TLS on loopback
    large   query       an aggregation over objects, in a second process against the owner
            start       a second process that opens a database with a large table, until its first
                        transaction has begun

The owner is the process that measures; clients are processes that answer on a pipe. Rounds
alternate, so both sides meet the same disk and the same neighbours.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter, sleep
from typing import Any

import pyarrow as pa

import halocline as hc
from bench.harness import Figure

QUERY = "select v % 10 as g, count(*) as n, sum(v) as s from big group by 1 order by 1"
CLIENTS = 8
Pair = tuple[float, float]


class Client:
    """A client process and its pipe."""

    def __init__(self, place: Path | str, token: str = "", roots: str = "") -> None:
        command = [sys.executable, "-m", "bench.nodes", "--client", str(place)]
        command += ["--token", token, "--roots", roots]
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
    """Commits of one thread in so many seconds; what others have committed before is read first."""
    with db.begin() as txn:
        txn.tables()
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


def client(place: str, token: str, roots: str) -> None:
    """The program of a client: one line of JSON in, one line out."""
    started = perf_counter()
    db = hc.connect(place, token, tls_roots=roots or None) if token else hc.open(place)
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


def latency(db: hc.Database, one: Client, rounds: int, first: int = 0) -> list[Pair]:
    """(the owner's seconds, the client's), round by round; the first round warms up."""
    found = []
    for number in range(rounds + 1):
        mine = commits(db, first + number * 1000, 500)
        theirs = one.ask("commits", first=first + 10**9 + number * 1000, count=500)
        found.append((mine, theirs))
    return found[1:]


def throughput(db: hc.Database, clients: list[Client], rounds: int, seconds: float) -> list[Pair]:
    """Commits per second of one thread here, and of all clients together, round by round."""
    found = []
    for number in range(rounds):
        first = (2 + 20 * number) * 10**9
        alone = flood(db, first, seconds) / seconds
        for place, one in enumerate(clients, 1):
            one.tell("flood", first=first + place * 10**9, seconds=seconds)
        found.append((alone, sum(one.answer() for one in clients) / seconds))
    return found


def freshness(db: hc.Database, one: Client, count: int) -> float:
    first = 10**12
    one.tell("watch", first=first, count=count)
    acked = []
    for key in range(first, first + count):
        sleep(0.001)  # or one pause of the reader, for its collector, say, would meet them all
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


def nodes(directory: Path, *, rounds: int, seconds: float) -> Iterator[Figure]:
    """Figures of a small table that several processes write to."""
    with hc.open(directory / "db") as db:
        db.create_table("small", {"id": int, "v": int}, "id")
        clients = [Client(directory / "db") for _ in range(CLIENTS)]
        one = clients[0]
        yield from _latencies("second process", latency(db, one, rounds), 1.8)
        # Many short rounds: the pace of a disk changes within seconds.
        pairs = throughput(db, clients, 3 * rounds, seconds / 3)
        together = [other / alone for alone, other in pairs]
        alone, other = (median(pair[which] for pair in pairs) for which in (0, 1))
        yield Figure(name="1 thread", value=alone, unit="commits/s")
        yield Figure(name=f"{CLIENTS} processes", value=other, unit="commits/s")
        yield Figure(
            name=f"commits/s, 1 thread / {CLIENTS} processes",
            value=1 / median(together),
            unit="x",
            limit=1 / 1.2,
            note=f"{min(together):.2f} to {max(together):.2f} times one thread",
        )
        late = freshness(db, one, 200)
        yield Figure(name="until others can read it", value=late * 1e3, unit="ms", limit=5.0)
        for each in clients:
            each.close()


def tls(directory: Path, *, rounds: int) -> Iterator[Figure]:
    """Figures of a commit over TLS on loopback."""
    from halocline.node.certificate import own_certificate

    with hc.open(directory / "db") as db:
        db.create_table("small", {"id": int, "v": int}, "id")
        certificate = own_certificate(directory)
        server = db.serve(tls=certificate)
        afar = Client(server.uri, server.token, certificate[0])
        yield from _latencies("over TLS", latency(db, afar, rounds), 4.0)
        afar.close()


def large(directory: Path, *, rows: int, rounds: int) -> Iterator[Figure]:
    """Figures of tables whose rows are in objects."""
    with hc.open(directory / "db") as db:
        db.create_table("big", {"id": int, "v": int}, "id")
        _fill(db, rows // 10)
        one = Client(directory / "db")
        query(db, 2)
        one.ask("query", times=2)
        asked = [(query(db, 5), one.ask("query", times=5)) for _ in range(rounds)]
        yield _ratio("query, second process / owner", asked, 1.1)
        one.close()
    took = start(directory / "large", rows, rounds)
    yield Figure(name="opening beside the owner", value=took * 1e3, unit="ms", limit=1000.0)


def _latencies(who: str, pairs: list[Pair], limit: float) -> Iterator[Figure]:
    """The owner's commit, the other one's, and how much longer that takes."""
    mine, theirs = (median(pair[which] for pair in pairs) * 1e6 for which in (0, 1))
    yield Figure(name="commit, owner", value=mine, unit="us")
    yield Figure(name=f"commit, {who}", value=theirs, unit="us")
    yield _ratio(f"commit, {who} / owner", pairs, limit)


def _ratio(name: str, pairs: list[Pair], limit: float) -> Figure:
    ratios = [theirs / mine for mine, theirs in pairs]
    note = f"{min(ratios):.2f} to {max(ratios):.2f}"
    return Figure(name=name, value=median(ratios), unit="x", limit=limit, note=note)


def _main() -> None:
    parser = argparse.ArgumentParser(description="A client of `nodes`.")
    parser.add_argument("--client", required=True)
    parser.add_argument("--token", default="")
    parser.add_argument("--roots", default="")
    arguments = parser.parse_args()
    client(arguments.client, arguments.token, arguments.roots)


if __name__ == "__main__":
    _main()

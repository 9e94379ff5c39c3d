"""Ctrl-C in the middle of queries, loads and upkeep: a real signal at a random moment.

    call --signal--> KeyboardInterrupt, nothing else       DuckDB and Arrow have errors of their own
                 '-> the call has happened, or it has not; all is in order; everybody goes on,
                     or the database says that it has stopped, and opens again

Real signals strike where no tracer can: inside the standard library, DuckDB and Arrow. What hangs
ends the run with a picture of all threads (faulthandler_timeout).
"""

from __future__ import annotations

import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

import halocline
from halocline import Options, UnavailableError
from tests.sim.interrupts import without_interrupts

OPTIONS = Options(
    page_rows=64,
    object_rows=500,
    row_group_rows=250,
    object_rows_min=600,
    compact_depth=1,
    background=False,
)
ROWS_MAX = 4000
Rows = dict[int, str]


class Target:
    """A table, what must be in it, and calls to interrupt."""

    def __init__(self, path: Path, chance: random.Random, *, background: bool) -> None:
        self.path = path
        self.chance = chance
        self.options = OPTIONS if not background else Options(page_rows=64, move_rows=256)
        self.rows: Rows = {}
        self.next = 0
        self.db: Any = self.open()
        self.db.create_table("t", {"id": int, "v": str}, primary_key="id")

    def open(self) -> Any:
        return halocline.open(
            self.path, options=self.options, retention="0s", durability="async", memory="64MB"
        )

    def pick(self) -> tuple[str, Rows, Callable[[], object]]:
        """A call, by name, and what the table holds when it has happened."""
        name = self.chance.choice([*WRITES, *UPKEEP, *UPKEEP, *READS])
        if name in WRITES:
            return (name, *WRITES[name](self))
        if name in READS:
            return name, self.rows, lambda: READS[name](self.db)
        return name, self.rows, getattr(self.db, name)

    def insert(self, count: int) -> tuple[Rows, Callable[[], object]]:
        ids = range(self.next, self.next + count)
        self.next += count
        rows = pa.table({"id": pa.array(ids), "v": pa.array(["new"] * count)})
        after = self.rows | dict.fromkeys(ids, "new")
        return after, lambda: self.db.run(lambda txn: txn.insert("t", rows))

    def delete(self) -> tuple[Rows, Callable[[], object]]:
        rest = self.chance.randrange(7)
        after = {key: value for key, value in self.rows.items() if key % 7 != rest}
        return after, lambda: self.db.run(lambda txn: txn.delete("t", where=f"id % 7 = {rest}"))

    def update(self) -> tuple[Rows, Callable[[], object]]:
        rest, text = self.chance.randrange(5), str(self.chance.random())
        after = {key: text if key % 5 == rest else value for key, value in self.rows.items()}
        given: dict[str, Any] = {"where": f"id % 5 = {rest}", "set": {"v": text}}
        return after, lambda: self.db.run(lambda txn: txn.update("t", **given))

    def judge(self, allowed: list[Rows], label: str) -> None:
        """One more commit, or a clear word that there can be none; then the rows."""
        extra: Rows = {self.next: "one more"}
        self.next += 1
        try:
            self.db.run(lambda txn: txn.insert("t", {"id": min(extra), "v": "one more"}))
        except UnavailableError:
            extra = {}
            self.db.close()
            self.db = self.open()
        table = self.db.sql("select id, v from t")
        found = dict(zip(table["id"].to_pylist(), table["v"].to_pylist(), strict=True))
        assert found in [rows | extra for rows in allowed], label
        assert self.db.check() == [], label
        self.rows = found
        if len(found) > ROWS_MAX:
            self.db.run(lambda txn: txn.truncate("t"))
            self.rows = {}


WRITES: dict[str, Callable[[Target], tuple[Rows, Callable[[], object]]]] = {
    "insert": lambda target: target.insert(target.chance.randrange(1, 200)),
    "load": lambda target: target.insert(target.chance.randrange(600, 1500)),
    "delete": Target.delete,
    "update": Target.update,
}
UPKEEP = ("flush", "compact", "checkpoint", "gc", "check", "health")
READS: dict[str, Callable[[Any], object]] = {
    "sql": lambda db: db.sql("select v, count(*) from t group by 1 order by 2"),
    "scan": lambda db: db.run(lambda txn: txn.scan("t", where="id % 3 = 0", order="v, id")),
    "stream": lambda db: db.run(lambda txn: [*txn.scan("t", stream=True)]),
    "range": lambda db: db.run(lambda txn: txn.range("t", limit=100)),
}


@contextmanager
def _alarms() -> Iterator[None]:
    """An alarm is a Ctrl-C; one that ends up in a `__del__` is lost, as Python has it."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before, hook = signal.signal(signal.SIGALRM, interrupt), sys.unraisablehook
    sys.unraisablehook = without_interrupts(hook)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        sys.unraisablehook = hook


def _interrupted(call: Callable[[], object], after_s: float) -> bool:
    """Make the call and interrupt it; any other error is one."""
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, max(after_s, 1e-5))
            call()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        return True
    return False


def _run(path: Path, seed: int, steps: int, *, background: bool) -> Counter[str]:
    print("seed", seed)
    chance = random.Random(seed)
    target = Target(path / "db", chance, background=background)
    usual: dict[str, float] = {}
    counts: Counter[str] = Counter()
    with _alarms():
        for _ in range(steps):
            name, after, call = target.pick()
            began = time.perf_counter()
            hit = _interrupted(call, chance.random() * 1.3 * usual.get(name, 0.01))
            took = time.perf_counter() - began
            usual[name] = took if not hit else max(took, usual.get(name, 0.01))
            counts[f"{name} {'interrupted' if hit else 'done'}"] += 1
            allowed = [after, target.rows] if hit else [after]
            target.judge(allowed, f"seed {seed}, {name}, interrupted: {hit}")
    target.db.gc()
    target.db.close()
    with target.open() as db:
        assert db.table("t").count() == len(target.rows)
        assert db.check() == []
    print(dict(counts))
    return counts


@pytest.mark.parametrize("background", [False, True])
def test_ctrl_c_at_any_moment_of_queries_loads_and_upkeep(
    memory_path: Path, background: bool
) -> None:
    counts = _run(memory_path, 1, 60, background=background)
    assert sum(count for name, count in counts.items() if name.endswith("interrupted")) > 20


@pytest.mark.sim
@pytest.mark.parametrize("background", [False, True])
def test_ctrl_c_again_and_again(memory_path: Path, background: bool, fresh_seed: int) -> None:
    _run(memory_path, fresh_seed, 200, background=background)

"""Ctrl-C in GC and in the calls of named snapshots: nothing lost, nothing half done for good."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import halocline
from halocline import UnavailableError
from tests.sim.interrupts import Mode, count, strike
from tests.unit.checkpoint.rig import seen
from tests.unit.read.moving import TINY

KEYS = range(20)
Work = Callable[["Bench"], Callable[[], object]]


class Bench:
    """A database that is interrupted again and again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.value = 0
        self.names = 0
        self.db: Any = self._open()
        self.db.create_table("t", {"id": int, "v": int}, primary_key="id")

    def _open(self) -> Any:
        return halocline.open(self.path, retention=0, options=TINY)

    def churn(self) -> None:
        """Something for GC to do in every part of it."""
        for _ in range(2):
            self.value += 1
            with self.db.begin() as txn:
                txn.upsert("t", [{"id": key, "v": self.value} for key in KEYS])
            self.db.flush("t")
        self.db.compact("t")
        with self.db.begin() as txn:
            txn.update("t", 1, {"v": self.value})
            txn.create_table("passing", {"id": int})
        self.db.drop_table("passing")
        txn = self.db.begin()
        txn.insert("t", [{"id": key, "v": 0} for key in range(100, 120)])
        txn.rollback()

    def name(self) -> str:
        self.names += 1
        return f"s{self.names}"

    def verify(self, label: str) -> None:
        """Right now, or after opening again if the database has stopped."""
        try:
            self.db.drop_snapshot(self._probe())
        except UnavailableError:
            self.reopen(label)
        names = [one.name for one in self.db.snapshots()]
        self._check(label)
        self.reopen(label)
        assert [one.name for one in self.db.snapshots()] == names, label
        for name in names:
            assert len(seen(self.db, name)) == len(KEYS), label
        self._check(label)

    def _probe(self) -> str:
        name = self.name()
        self.db.snapshot(name)
        return name

    def _check(self, label: str) -> None:
        assert not self.db.core.pins, label
        assert seen(self.db) == dict.fromkeys(KEYS, self.value), label
        report = self.db.gc()
        assert not [one for one in report.kept if "job" in one.reason], label
        engine = self.db.core.engine
        tiers = [state.shape.tier for state in engine.tables.values()]
        known = {entry.key for tier in tiers for entry in tier.by_id.values()}
        assert set(engine.shelf.objects.list()) == known | engine.kept_files, label
        assert not self.db.check(), label

    def reopen(self, label: str) -> None:
        self.db.close()
        self.db = self._open()


@pytest.fixture
def bench(memory_path: Path) -> Iterator[Bench]:
    bench = Bench(memory_path / "db")
    yield bench
    bench.db.close()


def _collect(bench: Bench) -> Callable[[], object]:
    bench.churn()
    return bench.db.gc  # type: ignore[no-any-return]


def _keep(bench: Bench) -> Callable[[], object]:
    bench.churn()
    name = bench.name()
    return lambda: bench.db.snapshot(name)


def _drop(bench: Bench) -> Callable[[], object]:
    bench.churn()
    name = bench.name()
    bench.db.snapshot(name)
    return lambda: bench.db.drop_snapshot(name)


def _strike_often(bench: Bench, work: Work, mode: Mode, times: int) -> None:
    opcodes = count(mode, work(bench))
    chance = random.Random(f"{work.__name__} {mode} {times}")
    outcomes: Counter[bool] = Counter()
    for k in sorted(chance.sample(range(1, opcodes), min(times, opcodes - 1))):
        hit = strike(k, mode, work(bench))
        outcomes[hit.hit] += 1
        bench.verify(f"{work.__name__}, {mode}, opcode {k} of {opcodes}, raised at {hit.where}")
        for one in bench.db.snapshots()[:-2]:
            bench.db.drop_snapshot(one.name)
    assert outcomes[True]


@pytest.mark.parametrize("mode", ["signal", "raise"])
@pytest.mark.parametrize("work", [_collect, _keep, _drop])
def test_ctrl_c_in_gc_and_snapshots(bench: Bench, work: Work, mode: Mode) -> None:
    _strike_often(bench, work, mode, 5)


@pytest.mark.sim
@pytest.mark.parametrize("mode", ["signal", "raise"])
@pytest.mark.parametrize("work", [_collect, _keep, _drop])
def test_ctrl_c_often_in_gc_and_snapshots(bench: Bench, work: Work, mode: Mode) -> None:
    _strike_often(bench, work, mode, 60)

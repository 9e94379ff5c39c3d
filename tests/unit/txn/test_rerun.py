"""Reruns: when a run takes its turn before it has lost, and when it stops doing so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import halocline as hc
from halocline.txn.rerun import EXPECTED_S, HotRuns, Rerun
from tests.clock import ManualClock


@pytest.fixture
def db(tmp_path: Path) -> Iterator[hc.Database]:
    with hc.open(tmp_path / "db") as opened:
        opened.create_table("t", {"id": int, "n": int}, primary_key="id")
        with opened.begin() as txn:
            txn.insert("t", [{"id": key, "n": 0} for key in range(4)])
        yield opened
        assert not opened.core.own.turns.rows, "a queue was left behind"


def lose(db: hc.Database, function: Any, hot: HotRuns, key: int = 1) -> None:
    """An attempt of a run that has lost over this key."""
    with db.begin() as txn:
        txn.began = (function.__code__, 0)
        Rerun(hot).lost(db.core, txn, hc.ConflictError("lost", table="t", key=key))


def write(txn: hc.Transaction, key: int = 1) -> None:
    txn.update("t", key, {"n": 5})


def test_who_lost_over_a_row_twice_is_expected_to_want_it(db: hc.Database) -> None:
    hot: HotRuns = {}
    clock = db.core.clock
    lose(db, write, hot)
    assert Rerun.expected(hot, write, clock) is None
    lose(db, write, hot, key=2)  # another row: nothing to be learned from
    assert Rerun.expected(hot, write, clock) is None
    lose(db, write, hot, key=2)
    found = Rerun.expected(hot, write, clock)
    assert found is not None
    assert len(found.rows) == 1
    assert Rerun.expected(hot, lose, clock) is None, "another function"
    assert Rerun.expected(hot, "no function", clock) is None


@pytest.mark.parametrize("key", [1, 2])
@pytest.mark.parametrize("how", ["row", "sum", "workspace"])
def test_a_run_that_writes_something_else_is_not_expected_again(
    db: hc.Database, key: int, how: str
) -> None:
    hot: HotRuns = {}

    def work(txn: hc.Transaction) -> None:
        txn.update("t", key, {"n": hc.add(1) if how == "sum" else 7})
        if how == "workspace":
            txn.update("t", 3, {"n": 7})

    for _ in range(2):
        lose(db, work, hot)
    again = Rerun.expected(hot, work, db.core.clock)
    assert again is not None
    again.take(db.core.writing, db.core.clock)
    with db.begin() as txn:
        again.run(work, txn)
    again.end()
    assert bool(hot) == (key == 1)


def test_after_a_while_a_run_tries_without_its_turn(db: hc.Database) -> None:
    hot: HotRuns = {}
    for _ in range(2):
        lose(db, write, hot)
    later = ManualClock()
    later.advance(db.core.clock.monotonic() + EXPECTED_S + 1)
    assert Rerun.expected(hot, write, later) is None
    assert not hot


class Runs:
    """Runs of functions that want one row, each in a thread of its own, and what became of them."""

    def __init__(self, db: hc.Database) -> None:
        self.db = db
        self.seen: list[int] = []
        self.told: list[Any] = []
        self._threads: list[threading.Thread] = []

    def begin(self, function: Callable[[hc.Transaction, int], Any]) -> None:
        """Return when the function has read the row."""

        def work(txn: hc.Transaction) -> Any:
            row = txn.get("t", 1)
            assert row is not None
            self.seen.append(row["n"])
            return function(txn, row["n"])

        def run() -> None:
            try:
                self.told.append(self.db.run(work))
            except Exception as error:
                self.told.append(error)

        for _ in range(2):
            lose(self.db, work, self.db._setting.hot)
        before = len(self.seen)
        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()
        while len(self.seen) == before:
            assert self._threads[-1].is_alive(), self.told

    def join(self, seconds: float = 20.0) -> bool:
        """Have all of them ended?"""
        for thread in self._threads:
            thread.join(seconds)
        return not any(thread.is_alive() for thread in self._threads)


def add_one(txn: hc.Transaction, n: int) -> None:
    txn.update("t", 1, {"n": n + 1})


def say(txn: hc.Transaction, n: int) -> int:
    return n


def complain(txn: hc.Transaction, n: int) -> None:
    raise ValueError(n)


@pytest.mark.parametrize("fails", [False, True])
def test_a_turn_is_handed_on_before_the_sync_and_nobody_is_told_before_it(
    db: hc.Database, fails: bool
) -> None:
    runs, log = Runs(db), db.core.own.log
    with log._tape.syncing:  # a disk that takes its time
        for function in (add_one, add_one, add_one, say, complain):
            runs.begin(function)
        assert runs.seen == [0, 1, 2, 3, 3], "each has seen those before it"
        assert db.begin().get("t", 1) == {"id": 1, "n": 0}, "it may still be lost"
        assert not runs.join(0.1)
        assert runs.told == []
        if fails:
            log._tape.failure = OSError("the disk is gone")
    assert runs.join()
    if fails:
        assert [type(one) for one in runs.told] == [hc.UnavailableError] * 5, runs.told
        assert {one.outcome for one in runs.told} == {"unknown"}
    else:
        assert sorted(map(str, runs.told)) == ["3", "3", "None", "None", "None"]
        assert db.begin().get("t", 1) == {"id": 1, "n": 3}

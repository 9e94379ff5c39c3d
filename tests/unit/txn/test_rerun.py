"""Reruns: when a run takes its turn before it has lost, and when it stops doing so."""

from __future__ import annotations

from collections.abc import Iterator
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

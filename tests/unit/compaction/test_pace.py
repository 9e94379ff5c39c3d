"""Compaction in the background: it keeps a database in shape, rests, and ends when it is closed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from halocline import Database, UnavailableError
from halocline.compaction.pace import LOOK_S, Pace
from halocline.database.maintenance import _living
from tests.clock import ManualClock
from tests.roles import maintenance_of
from tests.store.faulty import FaultyFiles
from tests.unit.compaction.test_run import Before, current, drop, overlapping, rows_at, settle
from tests.unit.read.moving import TINY, state_of


class Paced:
    """A database whose background is driven by hand."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.db: Any = Database(FaultyFiles(), "memory", options=TINY, clock=self.clock)
        self.db.create_table("t", {"id": int, "n": int}, primary_key="id")
        self.plans = 0
        compactor = maintenance_of(self.db).compactor
        step = compactor.step

        def counted(state: Any) -> bool:
            self.plans += 1
            return bool(step(state))

        compactor.step = counted
        self.pace = Pace(compactor, lambda: _living(self.db.core), self.clock)

    def later(self, seconds: float = LOOK_S) -> bool:
        self.clock.advance(seconds)
        return self.pace.step()


@pytest.fixture
def paced() -> Iterator[Paced]:
    paced = Paced()
    with paced.db:
        yield paced
        assert not paced.db.check()


def test_it_does_what_is_owed_and_then_nothing(paced: Paced) -> None:
    model = overlapping(paced.db)
    assert paced.later()
    assert rows_at(paced.db) == model
    assert len(current(paced.db)) == 4
    assert not paced.later()
    drop(paced.db, *range(6))
    assert paced.later()
    assert not paced.db.compact().groups


def test_it_rests_between_looks(paced: Paced) -> None:
    assert not paced.later()
    assert paced.plans == 0, "a table without objects needs no plan"
    paced.db.create_table("u", {"id": int}, primary_key="id")
    with paced.db.begin() as txn:
        txn.insert("t", {"id": 1, "n": 1})
    settle(paced.db)
    assert not paced.later()
    assert paced.plans == 1
    assert not paced.later()
    assert paced.plans == 1, "nothing has changed since"
    drop(paced.db, 1)
    assert not paced.later(LOOK_S / 10)
    assert paced.plans == 1, "it is too early"
    paced.later()
    assert paced.plans == 2


def test_it_rests_as_long_as_a_rewrite_took(paced: Paced) -> None:
    overlapping(paced.db)
    Before(paced.db, lambda: paced.clock.advance(30))
    assert paced.later()
    drop(paced.db, *range(6))
    assert not paced.later(29)
    assert paced.later(2)


def test_a_database_that_is_left_alone_stays_in_shape() -> None:
    options = replace(TINY, background=True, move_rows=10, move_tombstones=5)
    with Database(FaultyFiles(), "memory", options=options) as db:
        db.create_table("t", {"id": int, "n": int}, primary_key="id")
        model: dict[Any, Any] = {}
        for number in range(12):
            rows = {key * 12 + number: number for key in range(10)}
            with db.begin() as txn:
                txn.insert("t", [{"id": key, "n": n} for key, n in rows.items()])
            model |= rows
            time.sleep(0.02)
        deadline = time.monotonic() + 30
        tier = state_of(db, "t").shape.tier
        while not any(entry.level == 2 for entry in tier.current()):
            assert time.monotonic() < deadline, "the background has not compacted"
            time.sleep(0.1)
            tier = state_of(db, "t").shape.tier
        assert rows_at(db) == model
        assert not db.check()


def test_closing_breaks_a_rewrite_off() -> None:
    db: Any = Database(FaultyFiles(), "memory", options=TINY)
    db.create_table("t", {"id": int, "n": int}, primary_key="id")
    overlapping(db)
    caught: list[BaseException] = []
    inside, closing = threading.Event(), threading.Event()

    def wait() -> None:
        inside.set()
        assert closing.wait(30)
        maintenance_of(db).compactor.stop()

    Before(db, wait)

    def run() -> None:
        try:
            db.compact()
        except UnavailableError as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert inside.wait(30)
    closing.set()
    thread.join()
    db.close()
    assert len(caught) == 1
    assert "closed" in str(caught[0])

"""Compaction and the machine: power that goes and a store that fails at every single operation.

operation n --crash--> images --open--> the same rows at every timestamp, nothing wrong, go on
operation n --error--> an error for the caller or none, the same rows, and the next time it works
"""

from __future__ import annotations

from contextlib import suppress
from errno import EIO
from typing import Any

import pytest

from halocline import Database, HaloclineError, UnavailableError
from tests.roles import owner_of
from tests.store.faulty import FaultyFiles, SimulatedCrash
from tests.unit.compaction.test_run import Rows, drop, overlapping, rows_at, settle
from tests.unit.read.moving import TINY


class Life:
    """A database with something to compact, and its history."""

    def __init__(self) -> None:
        self.files = FaultyFiles()
        self.db: Any = Database(self.files, "db", options=TINY)
        self.db.create_table("t", {"id": int, "n": int}, primary_key="id")
        model = overlapping(self.db)
        self.history: dict[int, Rows] = {self.db.visible_ts: model}
        drop(self.db, *range(4))
        model = {key: n for key, n in model.items() if key >= 4}
        self.history[self.db.visible_ts] = model
        settle(self.db)
        drop(self.db, *range(10, 16))
        model = {key: n for key, n in model.items() if not 10 <= key < 16}
        self.history[self.db.visible_ts] = model
        self.begun = len(self.files.operations)

    def verify(self, db: Any, what: str) -> None:
        for ts, rows in self.history.items():
            assert rows_at(db, ts) == rows, (what, ts)
        assert rows_at(db) == self.history[max(self.history)], what
        assert not db.check(), what

    def verify_image(self, files: FaultyFiles, what: str) -> None:
        with Database(files, "db", options=TINY, retention=0) as db:
            self.verify(db, what)
            db.compact()
            assert not db.compact().groups
            self.verify(db, what)
            db.gc()
            listed = files.objects.list()
            states = db.core.engine.tables.values()
            known = [e.key for state in states for e in state.shape.tier.by_id.values()]
            assert listed == sorted(known), f"{what}: nothing that nobody refers to is left"
            assert rows_at(db) == self.history[max(self.history)], what


def operations() -> tuple[int, list[int]]:
    """How many operations a compaction has, and which of them change something."""
    life = Life()
    life.db.compact()
    last = len(life.files.operations)
    points = [point - life.begun for point in life.files.crash_points() if point > life.begun]
    life.db.close()
    return last - life.begun, points


@pytest.mark.slow
def test_a_crash_at_any_operation_loses_nothing() -> None:
    _, points = operations()
    assert len(points) >= 8, "a job, its files, a commit"
    for number in points:
        for moment in ("inside", "after"):
            life = Life()
            life.files.crash(number, moment)
            with pytest.raises((SimulatedCrash, HaloclineError)):
                life.db.compact()
            image = life.files.crash_image(seed=number, none=moment == "after")
            life.verify_image(image, f"{moment} operation {number}")


@pytest.mark.slow
def test_an_error_at_any_operation_leaves_a_database_that_goes_on() -> None:
    count, points = operations()
    refused = 0
    for number in sorted({*points, *range(1, count + 1, 17)}):
        life = Life()
        life.files.fail(number, EIO)
        what = f"error at operation {number} of {count}"
        try:
            life.db.compact()
        except UnavailableError:
            refused += 1
        if owner_of(life.db).log.failed is not None:
            with suppress(UnavailableError):  # A failed sync: only opening again tells.
                life.db.close()
            life.verify_image(life.files.crash_image(all=True), what)
            continue
        life.verify(life.db, what)
        life.db.compact()
        life.verify(life.db, what)
        life.db.close()
    assert refused >= 6

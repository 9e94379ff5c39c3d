"""The power goes at every operation of a life that draws keys: none is drawn a second time.

    script --operation n--> image (seeds, all, none) --open--> the next key lies above all keys that
                                                               anybody had been told of

In async mode the rows may be lost, and the keys still must not come again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import halocline as hc
from tests.clock import ManualClock
from tests.sim.history import TINY, copy_of, digest, open_on
from tests.sim.moments import watched
from tests.sim.test_crash_points import MODES
from tests.store.faulty import FaultyFiles

SEEDS = 3
OPTIONS = replace(TINY, identity_block=4)


class Told:
    """A database, and the highest key that anybody has been told of."""

    def __init__(self, durability: str) -> None:
        self.files = FaultyFiles()
        self.durability = durability
        self.clock = ManualClock(7)
        self.highest = self.given = 0
        """Keys that were drawn; and keys that were given and whose commit was acknowledged."""

    def open(self, files: FaultyFiles) -> hc.Database:
        self.clock.advance(1)
        db: hc.Database = open_on(files, self.durability, self.clock, OPTIONS)
        return db

    def draw(self, db: hc.Database, rows: Any = None, *, commit: bool = True) -> None:
        txn = db.begin()
        stored = txn.insert("t", rows or [{}], returning=["id"])
        drawn = stored["id"].to_pylist()
        assert min(drawn) > self.highest, f"{min(drawn)} after {self.highest} was drawn"
        self.highest = max(drawn)
        (txn.commit if commit else txn.rollback)()

    def give(self, db: hc.Database, key: int) -> None:
        db.run(lambda txn: txn.insert("t", {"id": key}))
        if self.durability == "sync":
            self.given = max(self.given, key)


def script(told: Told) -> None:
    """Every way to draw, beside all that moves a table about."""
    db = told.open(told.files)
    db.create_table("t", {"id": hc.Column(int, identity=True), "n": int}, "id")
    for _ in range(3):
        told.draw(db)
    told.draw(db, commit=False)
    told.draw(db, [{}] * 6)
    told.give(db, 40)
    told.draw(db)
    told.draw(db, pa.table({"n": range(20)}))
    db.flush("t")
    db.checkpoint()
    told.draw(db, pa.table({"n": range(20)}), commit=False)
    db.run(lambda txn: txn.delete("t", where="id > 30"))
    db.close()
    db = told.open(told.files)
    told.draw(db)
    db.run(lambda txn: txn.truncate("t"))
    db.checkpoint()
    told.clock.advance(60)
    db.gc()
    told.draw(db, [{}] * 3)
    told.give(db, 500)
    db.run(lambda txn: txn.delete("t", 500))
    db.close()


def look_at(durability: str, seeds: range) -> int:
    """Open what each crash may have left; how many different images there were."""
    told, moments = Told(durability), list[tuple[FaultyFiles, int, int]]()

    def look(_: object, __: Callable[[int], object] | None) -> None:
        moments.append((copy_of(told.files), told.highest, told.given))

    with watched(told.files, look):
        script(told)
    moments.append((copy_of(told.files), told.highest, told.given))
    verified = set()
    for number, (files, highest, given) in enumerate(moments):
        images = [files.crash_image(seed) for seed in seeds]
        images += [files.crash_image(none=True), files.crash_image(all=True)]
        for image in images:
            known = (digest(image), highest, given)
            if known in verified:
                continue
            verified.add(known)
            after = Told(durability)
            after.highest = max(highest, given)
            db = after.open(image)
            if "t" in db.tables():
                after.draw(db)
            else:
                assert not highest, f"the table is gone, crash {number}"
            assert db.check() == []
            db.close()
    return len(verified)


@pytest.mark.parametrize("durability", MODES)
def test_no_key_is_drawn_again_after_a_crash(durability: str) -> None:
    assert look_at(durability, range(1)) > 20


@pytest.mark.sim
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("durability", MODES)
def test_no_key_is_drawn_again_after_any_crash(durability: str, seed: int) -> None:
    assert look_at(durability, range(seed * SEEDS, seed * SEEDS + SEEDS)) > 20

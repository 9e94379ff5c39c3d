"""Compaction on Spark beside four writers, its jobs killed at random: nobody notices.

Each writer has keys of its own, all in the same range, so nothing but the compaction could make one
of its commits fail. Every commit is written down with its timestamp: what any snapshot must show is
a fold over these.
"""

from __future__ import annotations

import random
from pathlib import Path
from threading import Event, Semaphore, Thread
from typing import Any

import pytest

import halocline as hc
from halocline import spark as hs
from halocline.errors import UnavailableError
from tests.spark.compacting import OPTIONS, Rows, current, drop, failing, put, rows_at, until
from tests.unit.rows.rig import seeds

WRITERS = 4
KEYS = 400
PERMITS = 40
"""Commits, of all writers together, for each flush and each look at a job that runs."""


class Writer(Thread):
    """Inserts, updates and deletes its own keys, a commit for each permit, until told to stop."""

    def __init__(
        self, db: hc.Database, number: int, seed: int, stop: Event, permits: Semaphore
    ) -> None:
        super().__init__(daemon=True)
        self._db, self._number, self._stopping, self._permits = db, number, stop, permits
        self._chance = random.Random(seed * WRITERS + number)
        self.commits: list[tuple[int, Rows]] = []
        """Timestamp, and what it wrote: None for a row that it deleted."""
        self.error: BaseException | None = None

    def run(self) -> None:
        there: set[int] = set()
        try:
            while self._permits.acquire() and not self._stopping.is_set():
                self.commits.append(self._act(there))
        except BaseException as error:
            self.error = error

    def _act(self, there: set[int]) -> tuple[int, Rows]:
        chance = self._chance
        keys = {
            chance.randrange(KEYS) * WRITERS + self._number for _ in range(chance.choice([1, 9]))
        }
        gone = keys & there if chance.random() < 0.4 else set()
        if gone:
            there -= gone
            return drop(self._db, *gone), dict.fromkeys(gone)
        there |= keys
        rows = {key: chance.randrange(1000) for key in keys}
        return put(self._db, rows), rows


def at(commits: list[tuple[int, Rows]], ts: int) -> Rows:
    found: Rows = {}
    for stamp, rows in commits:
        if stamp <= ts:
            found |= rows
    return {key: n for key, n in found.items() if n is not None}


@pytest.mark.parametrize("seed", [pytest.param(0, marks=pytest.mark.more), *seeds(0, 24)])
def test_no_writer_notices_and_every_snapshot_is_right(
    spark: Any, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = 2 if seed < 1000 else 4  # in the long run, too: a round on Spark takes ten seconds
    chance = random.Random(seed)
    print(f"seed {seed}, {rounds} rounds")
    with hc.open(tmp_path / "shop", options=OPTIONS) as db:
        db.create_table("t", {"id": int, "n": int}, primary_key="id")
        stop, permits = Event(), Semaphore(0)
        writers = [Writer(db, number, seed, stop, permits) for number in range(WRITERS)]
        for writer in writers:
            writer.start()
        try:
            outcomes = [
                one_round(spark, db, number, chance, monkeypatch, permits)
                for number in range(rounds)
            ]
        finally:
            stop.set()
            permits.release(WRITERS)
            for writer in writers:
                writer.join(60)
        assert [writer.error for writer in writers] == [None] * WRITERS
        db.flush()
        hs.compact(spark, db)
        assert {"done", "killed"} <= set(outcomes), outcomes
        assert not db.core.engine.jobs
        commits = sorted(
            (commit for writer in writers for commit in writer.commits), key=lambda one: one[0]
        )
        assert rows_at(db) == at(commits, db.visible_ts)
        for ts, _ in chance.sample(commits, 12):
            assert rows_at(db, ts) == at(commits, ts), (seed, ts)
        db.gc()
        assert db.check() == []
        assert any(entry.level == 2 for entry in current(db))


def one_round(
    spark: Any,
    db: hc.Database,
    number: int,
    chance: random.Random,
    monkeypatch: pytest.MonkeyPatch,
    permits: Semaphore,
) -> str:
    """Some objects more, and a compaction, which every other time is killed."""
    for _ in range(6):
        wanted = db.visible_ts + PERMITS // 2
        permits.release(PERMITS)
        until(lambda wanted=wanted: db.visible_ts > wanted)
        db.flush()
    kill = chance.choice(["cancel", "before", "after"]) if number % 2 else "not"
    with monkeypatch.context() as patch:
        if kill in ("before", "after"):
            failing(patch, chance.randrange(2), after=kill == "after")

        def progress(done: int, total: int) -> None:
            permits.release(PERMITS)
            if kill == "cancel" and total:
                spark.sparkContext.cancelAllJobs()

        try:
            report = hs.compact(spark, db, "t", progress=progress)
        except UnavailableError:
            return "killed"
    assert report["t"].lost == 0
    return "done" if report.groups else "nothing"

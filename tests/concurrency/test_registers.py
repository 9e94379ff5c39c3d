"""Random transactions on registers, from many threads, checked after the fact.

The seed decides what each thread does; how they interleave is the machine's choice, so a failure
that depends on it may need its seed to be run more than once.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import halocline as hc
from tests.concurrency.registers import Recorder, Timeline, check_history

TINY = hc.Options(page_rows=8, bulk_rows=1, log_file_bytes=1 << 16)


def _play(
    folder: Path,
    *,
    percent: int,
    seed: int,
    durability: str,
    transactions: int,
    locks: bool = False,
    runs: bool = False,
) -> None:
    """Record a history, check it, and compare what is left with what the records say."""
    with hc.open(folder, durability=durability, options=TINY) as db:
        recorder = Recorder(db, serializable_percent=percent, locks=locks, runs=runs)
        started = db.visible_ts
        recorder.run(threads=8, transactions=transactions, seed=seed)
        line = check_history(recorder.records)
        wrote = [record for record in recorder.records if record.writes or record.adds]
        assert 0 < len(line.commits) < len(wrote), "there was no conflict"
        assert any(record.adds for record in line.commits), "nothing was added"
        _compare(db, line, started)
        assert not db.check()
    with hc.open(folder, options=TINY) as db:
        _compare(db, line, started)
        assert not db.check()


def _compare(db: hc.Database, line: Timeline, started: int) -> None:
    """The state at every hundredth commit, and at the last."""
    for ts in {*range(started, db.visible_ts, 100), db.visible_ts}:
        with db.begin(at=ts) as txn:
            rows = txn.scan("register").to_pylist()
            assert {row["key"]: row["value"] for row in rows} == line.state(ts)


@pytest.mark.parametrize("percent", [0, 50, 100], ids=["snapshot", "mixed", "serializable"])
@pytest.mark.parametrize("durability", ["sync", "async"])
def test_recorded_histories_have_no_anomaly(tmp_path: Path, percent: int, durability: str) -> None:
    _play(tmp_path / "db", percent=percent, seed=7, durability=durability, transactions=80)


@pytest.mark.parametrize("percent", [0, 50], ids=["snapshot", "mixed"])
@pytest.mark.parametrize("runs", [False, True], ids=["by hand", "run"])
def test_histories_with_locks_and_turns_have_no_anomaly(
    tmp_path: Path, percent: int, runs: bool
) -> None:
    _play(
        tmp_path / "db",
        percent=percent,
        seed=11,
        durability="async",
        transactions=60,
        locks=True,
        runs=runs,
    )


@pytest.mark.sim
def test_new_recorded_histories_have_no_anomaly(tmp_path: Path, fresh_seed: int) -> None:
    _play(
        tmp_path / "db",
        percent=(0, 50, 100)[fresh_seed % 3],
        seed=fresh_seed,
        durability=("sync", "async")[fresh_seed % 2],
        transactions=200,
        locks=fresh_seed % 4 > 1,
        runs=fresh_seed % 8 > 3,
    )

"""One row that threads of several processes want, while holders, waiters and owners are killed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import halocline
from tests.process.children import SMALL
from tests.process.nursery import Nursery
from tests.process.test_bank import Bank, _kill_owner, _until_acks

STEP = 10_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with halocline.open(tmp_path / "db", options=SMALL) as db:
        db.create_table("counters", {"id": int, "n": int}, "id")
        with db.begin() as txn:
            txn.insert("counters", [{"id": key, "n": 0} for key in (0, -1)])
    return tmp_path / "db"


def test_four_processes_of_eight_threads_count_in_one_row(nursery: Nursery, path: Path) -> None:
    bank = Bank(nursery, path, 4, "count_hot", threads=8, times=12)
    while len(bank.acked) < 4 * 8 * 12 and not bank.errors:
        _until_acks(bank, 1)
    assert not bank.errors
    for pid in bank.pids:
        bank.end(pid)
    with halocline.open(path, options=SMALL) as db:
        found = {row["id"]: row["n"] for row in db.table("counters").to_arrow().to_pylist()}
        assert (found.pop(0), found.pop(-1)) == (4 * 8 * 12, 0)
        assert set(found.values()) == {12}


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.more)])
def test_whoever_is_killed_nobody_waits_for_long(nursery: Nursery, path: Path, seed: int) -> None:
    chance = random.Random(seed)
    bank = Bank(nursery, path, 4, "count_hot")
    for _ in range(6):
        _until_acks(bank, 30)
        if chance.randrange(2):
            _kill_owner(bank, path)
        else:
            bank.kill(chance.choice(bank.pids))
        bank.start()
    _until_acks(bank, 30)
    for pid in bank.pids:
        bank.kill(pid)
    assert not bank.errors, "a turn that does not come within its deadline is one"
    with halocline.open(path, options=SMALL) as db:
        found = {row["id"]: row["n"] for row in db.table("counters").to_arrow().to_pylist()}
        total, _ = found.pop(0), found.pop(-1)
        for row, n in found.items():
            acked = len([number for number in bank.acked if row < number < row + STEP])
            assert acked <= n <= acked + 1, "one may have been on its way when it was killed"
        assert total == sum(found.values())
        assert not db.check()


@pytest.mark.parametrize("seed", range(2))
def test_every_addition_counts_once_whoever_is_killed(
    nursery: Nursery, path: Path, seed: int
) -> None:
    """Owners and clients die in the middle of commits; `db.run` asks the next owner what came of
    them, and what was acknowledged is there exactly once."""
    _add_and_kill(nursery, path, seed, rounds=8)


@pytest.mark.sim
def test_additions_beside_kills_without_end(nursery: Nursery, path: Path, fresh_seed: int) -> None:
    _add_and_kill(nursery, path, fresh_seed, rounds=25)


def _add_and_kill(nursery: Nursery, path: Path, seed: int, rounds: int) -> None:
    chance = random.Random(seed)
    bank = Bank(nursery, path, 4, "add_up")
    for _ in range(rounds):
        _until_acks(bank, 60)
        if chance.randrange(2):
            _kill_owner(bank, path)
        else:
            bank.kill(chance.choice(bank.pids))
        bank.start()
    _until_acks(bank, 60)
    for pid in bank.pids:
        bank.kill(pid)
    assert not bank.errors, f"nobody is told of dead owners, seed {seed}"
    with halocline.open(path, options=SMALL) as db:
        found = {row["id"]: row["n"] for row in db.table("counters").to_arrow().to_pylist()}
        total, alone = found.pop(0), found.pop(-1)
        for row, n in found.items():
            acked = len([one for one in bank.acked if row < one < row + STEP and one % 2])
            assert acked <= n <= acked + 1, f"one may have been on its way, seed {seed}"
        assert total == sum(found.values()), f"half a transaction, seed {seed}"
        added = _amounts(db, -1)
        assert sum(added) == alone
        assert len(set(added)) == len(added), f"counted twice, seed {seed}"
        assert {one for one in bank.acked if one % 2 == 0} <= set(added), f"lost, seed {seed}"
        assert not db.check()


def _amounts(db: halocline.Database, key: int) -> list[int]:
    """What was added to a row, commit by commit."""
    values = {"update_before": -1, "update_after": 1}
    found: dict[int, int] = {}
    for event in db.changes("counters", since=0).to_pylist():
        if event["id"] == key and event["_change"] in values:
            ts = event["_commit_ts"]
            found[ts] = found.get(ts, 0) + values[event["_change"]] * event["n"]
    return list(found.values())

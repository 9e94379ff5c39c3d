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
            txn.insert("counters", {"id": 0, "n": 0})
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
        assert found.pop(0) == 4 * 8 * 12
        assert set(found.values()) == {12}


@pytest.mark.parametrize("seed", range(2))
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
        total = found.pop(0)
        for row, n in found.items():
            acked = len([number for number in bank.acked if row < number < row + STEP])
            assert acked <= n <= acked + 1, "one may have been on its way when it was killed"
        assert total == sum(found.values())
        assert not db.check()

"""kill -9, again and again, on one directory: acknowledged transfers stay, the sum is constant.

    child: 4 writer threads --commit--> acknowledged --line in a pipe--> test
    test:  reads some lines, kills, opens what is left, compares; the next child recovers by itself

A line is written after the commit returned. So whatever the test has read must be in the database;
lines that were still in the pipe when the child died count too.
"""

from __future__ import annotations

import os
import random
import select
import time
from pathlib import Path
from typing import Any

import pytest

import halocline
from tests.process.children import ACCOUNTS, BALANCE, SMALL
from tests.process.nursery import Nursery

TOTAL = ACCOUNTS * BALANCE


class Bank:
    """One directory through many deaths."""

    def __init__(self, nursery: Nursery, path: Path, durability: str, seed: int) -> None:
        self._nursery = nursery
        self.path = path
        self._durability = durability
        self._chance = random.Random(seed)
        self.seed = seed
        self.acked: dict[int, int] = {}
        self.lives = 0
        self.deaths_while_opening = 0

    def live_and_die(self) -> None:
        """One child, from its opening to its end."""
        self.lives += 1
        ours, theirs = os.pipe()
        arguments = {
            "path": str(self.path),
            "durability": self._durability,
            "first": self.lives * 1_000_000_000,
            "writers": 4,
        }
        pid = self._nursery.fork("move_money", arguments, [theirs])
        os.close(theirs)
        try:
            lines = self._listen(ours)
            self._nursery.kill(pid)
            lines += _rest(ours)
        finally:
            os.close(ours)
        self._note(lines)

    def _listen(self, pipe: int) -> bytes:
        """Until enough was acknowledged, or for a short time: then it dies while it opens."""
        by_count = self.lives % 3
        wanted = self._chance.randrange(1, 120)
        ends = time.monotonic() + (30 if by_count else self._chance.uniform(0, 0.06))
        lines = b""
        while lines.count(b"\n") <= wanted and (left := ends - time.monotonic()) > 0:
            if select.select([pipe], [], [], left)[0]:
                more = os.read(pipe, 65536)
                assert more, f"the child ended by itself, life {self.lives}, seed {self.seed}"
                lines += more
        return lines

    def _note(self, lines: bytes) -> None:
        # The last line may be cut: then it is not an acknowledgement yet.
        whole = lines[: lines.rfind(b"\n") + 1].decode().splitlines()
        if not whole:
            self.deaths_while_opening += 1
            return
        opened = int(whole[0].split()[1])
        before = max(self.acked.values(), default=0)
        assert opened >= before, f"visible_ts {opened} after {before}, {self.label}"
        for line in whole[1:]:
            number, stamp = map(int, line.split())
            assert stamp > before, f"timestamp {stamp} was issued before the crash, {self.label}"
            self.acked[number] = stamp
        assert len(set(self.acked.values())) == len(self.acked), f"equal stamps, {self.label}"

    @property
    def label(self) -> str:
        return f"life {self.lives}, seed {self.seed}, {self._durability}"

    def verify(self, *, read_only: bool) -> None:
        if read_only and not (self.path / "log").exists():
            return
        with halocline.open(self.path, read_only=read_only, options=SMALL) as db:
            assert not db.check(), self.label
            self._verify(db)

    def _verify(self, db: Any) -> None:
        if "accounts" not in db.tables():
            assert not self.acked, self.label
            return
        with db.begin() as txn:
            balances = txn.range("accounts").column("balance").to_pylist()
            transfers = txn.scan("transfers").to_pylist()
        assert sum(balances) == TOTAL, f"money appeared or vanished, {self.label}"
        expected = [BALANCE] * ACCOUNTS
        for row in transfers:
            expected[row["source"]] -= 1
            expected[row["target"]] += 1
        assert balances == expected, f"half a transfer, {self.label}"
        found = {row["id"] for row in transfers}
        if db.read_only and self._durability == "async":
            # A reader sees what was synced; the rest is with the operating system until recovery.
            return
        missing = sorted(set(self.acked) - found)
        assert not missing, f"{len(missing)} acknowledged and gone: {missing[:5]}, {self.label}"
        assert db.visible_ts >= max(self.acked.values(), default=0), self.label


def _rest(pipe: int) -> bytes:
    """What the dead child had written before it died."""
    pieces = []
    while piece := os.read(pipe, 65536):
        pieces.append(piece)
    return b"".join(pieces)


def _kill_repeatedly(bank: Bank, kills: int) -> None:
    for _ in range(kills):
        bank.live_and_die()
        # Looking without repairing leaves the recovery, and the next one, to the next child.
        if bank.lives % 2:
            bank.verify(read_only=True)
        elif bank.lives % 8 == 0:
            bank.verify(read_only=False)
    bank.verify(read_only=True)
    bank.verify(read_only=False)
    print(f"{kills} kills, {bank.deaths_while_opening} while opening, {len(bank.acked)} commits")
    assert len(bank.acked) > kills


@pytest.mark.parametrize(
    ("durability", "kills"),
    [("sync", 20), ("async", 20), pytest.param("sync", 40, marks=pytest.mark.more)],
)
def test_nothing_acknowledged_is_lost_when_the_process_is_killed(
    nursery: Nursery, tmp_path: Path, durability: str, kills: int
) -> None:
    _kill_repeatedly(Bank(nursery, tmp_path / "bank", durability, seed=kills), kills)


@pytest.mark.sim
@pytest.mark.parametrize("durability", ["sync", "async"])
def test_kills_without_end(
    nursery: Nursery, tmp_path: Path, durability: str, fresh_seed: int
) -> None:
    _kill_repeatedly(Bank(nursery, tmp_path / "db", durability, fresh_seed), 30)

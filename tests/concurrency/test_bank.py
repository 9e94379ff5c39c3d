"""The bank: eight threads move money, the total never changes, and no transfer is lost.

Every transfer reads two accounts and writes both, and counts itself in each. So at any snapshot the
balances add up to what was paid in, the counts to twice the number of transfers so far, and in the end
each account has exactly the balance and the count that its transfers give.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.compute as pc
import pytest

import halocline as hc
from tests.concurrency.threads import Crew, beside, together

THREADS = 8
PAID_IN = 100


class Bank:
    """Accounts, and a ledger of the transfers that were acknowledged."""

    def __init__(self, db: hc.Database, accounts: int) -> None:
        self.db = db
        self.accounts = accounts
        self.total = accounts * PAID_IN
        self.attempts = [0] * THREADS
        self.ledgers: list[list[tuple[int, int, int]]] = [[] for _ in range(THREADS)]
        db.create_table("account", {"id": int, "balance": int, "moves": int}, primary_key="id")
        rows = [{"id": i, "balance": PAID_IN, "moves": 0} for i in range(accounts)]
        with db.begin() as txn:
            txn.insert("account", rows)

    def teller(self, number: int, transfers: int, seed: int) -> Callable[[], None]:
        """A thread's work: so many transfers between accounts of the seed's choice."""

        def work() -> None:
            random = Random(seed * THREADS + number)
            for _ in range(transfers):
                source, target = random.sample(range(self.accounts), 2)
                amount = random.randint(1, 20)
                self.db.run(lambda txn: self._transfer(txn, number, source, target, amount), 10_000)  # noqa: B023
                self.ledgers[number].append((source, target, amount))

        return work

    def _transfer(
        self, txn: hc.Transaction, number: int, source: int, target: int, amount: int
    ) -> None:
        self.attempts[number] += 1
        for account, change in ((source, -amount), (target, amount)):
            row = txn.get("account", account)
            assert row is not None
            values = {"balance": row["balance"] + change, "moves": row["moves"] + 1}
            txn.update("account", account, values)

    def auditor(self, crew: Crew) -> None:
        """Look at one snapshot in three ways, again and again."""
        moves_before = 0
        while crew.working():
            with self.db.begin() as txn:
                moves = self.audit(txn)
            assert moves >= moves_before
            moves_before = moves

    def audit(self, txn: hc.Transaction) -> int:
        """Check one snapshot; returns the number of moves it has seen."""
        found = {
            (_sum(table, "balance"), _sum(table, "moves"), table.num_rows)
            for table in (txn.scan("account"), txn.range("account"))
        }
        text = "select sum(balance) as balance, sum(moves) as moves, count(*) as rows from account"
        (row,) = txn.sql(text).to_pylist()
        found.add((int(row["balance"]), int(row["moves"]), row["rows"]))
        assert len(found) == 1, found
        ((balance, moves, rows),) = found
        assert (balance, rows) == (self.total, self.accounts)
        assert moves % 2 == 0
        return moves

    def settle(self, db: hc.Database) -> None:
        """What is in the table is what the ledgers say, account by account."""
        change: Counter[int] = Counter()
        moves: Counter[int] = Counter()
        for source, target, amount in (entry for ledger in self.ledgers for entry in ledger):
            change[source] -= amount
            change[target] += amount
            moves.update((source, target))
        with db.begin() as txn:
            for row in txn.scan("account").to_pylist():
                account = row["id"]
                assert row["balance"] == PAID_IN + change[account]
                assert row["moves"] == moves[account]


def _sum(table: Any, column: str) -> int:
    return pc.sum(table.column(column)).as_py()


def test_eight_threads_make_20000_transfers_and_the_total_never_changes(tmp_path: Path) -> None:
    with hc.open(tmp_path / "bank") as db:
        bank = Bank(db, 1000)
        started = db.visible_ts
        with beside(bank.auditor):
            together(*(bank.teller(i, 20_000 // THREADS, seed=1) for i in range(THREADS)))
        bank.settle(db)
        assert db.visible_ts == started + 20_000
        for ts in range(started, db.visible_ts, 1999):
            with db.begin(at=ts) as txn:
                assert bank.audit(txn) == 2 * (ts - started)
        assert not db.check()
    with hc.open(tmp_path / "bank") as db:
        bank.settle(db)
        assert not db.check()


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_transfers_between_few_accounts_conflict_and_none_is_lost(
    tmp_path: Path, durability: Any
) -> None:
    """Ten accounts: most transfers meet others, and `run` does them again."""
    options = hc.Options(page_rows=64, bulk_rows=8)
    with hc.open(tmp_path / "bank", durability=durability, options=options) as db:
        bank = Bank(db, 10)
        with beside(bank.auditor):
            together(*(bank.teller(i, 250, seed=2) for i in range(THREADS)))
        bank.settle(db)
        assert sum(bank.attempts) > 250 * THREADS, "nobody met anybody"
        assert not db.check()


def test_a_follower_sees_the_same_total_at_every_look(tmp_path: Path) -> None:
    with hc.open(tmp_path / "bank") as db:
        bank = Bank(db, 50)
        with hc.open(tmp_path / "bank", read_only=True) as follower:

            def follow(crew: Crew) -> None:
                seen = 0
                while crew.working():
                    with follower.begin() as txn:
                        assert txn.snapshot >= seen
                        seen = txn.snapshot
                        bank.audit(txn)

            with beside(follow):
                together(*(bank.teller(i, 250, seed=3) for i in range(THREADS)))
            bank.settle(follower)
            assert not follower.check()
        assert not db.check()

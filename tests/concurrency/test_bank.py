"""The bank: eight threads move money, the total never changes, and no transfer is lost.

Every transfer reads two accounts, writes both, counts itself in each, and goes into a journal. So
at any snapshot the balances add up to what was paid in, the counts to twice the lines of the
journal, and in the end each account has exactly the balance and the count its transfers give.
"""

from __future__ import annotations

import threading
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
AUDIT_EVERY = 50
"""Transfers of one thread between two looks of the auditor, who would else have the machine."""


class Bank:
    """Accounts, a journal, and ledgers of the transfers that were acknowledged."""

    def __init__(self, db: hc.Database, accounts: int) -> None:
        self.db = db
        self.accounts = accounts
        self.total = accounts * PAID_IN
        self.attempts = [0] * THREADS
        self.ledgers: list[list[tuple[int, int, int]]] = [[] for _ in range(THREADS)]
        self._something_happened = threading.Event()
        db.create_table("account", {"id": int, "balance": int, "moves": int}, primary_key="id")
        db.create_table("journal", {"id": int, "amount": int}, primary_key="id")
        rows = [{"id": i, "balance": PAID_IN, "moves": 0} for i in range(accounts)]
        with db.begin() as txn:
            txn.insert("account", rows)

    def teller(self, me: int, transfers: int, seed: int) -> Callable[[], None]:
        """A thread's work: so many transfers between accounts of the seed's choice."""

        def work() -> None:
            random = Random(seed * THREADS + me)
            for turn in range(transfers):
                source, target = random.sample(range(self.accounts), 2)
                order = (me * transfers + turn, source, target, random.randint(1, 20))
                self.db.run(lambda txn, order=order: self._transfer(txn, me, *order), 10_000)
                self.ledgers[me].append(order[1:])
                if turn % AUDIT_EVERY == 0:
                    self._something_happened.set()

        return work

    def tellers(self, transfers: int, seed: int) -> None:
        """Eight tellers, that many transfers in all."""
        together(*(self.teller(me, transfers // THREADS, seed) for me in range(THREADS)))

    def _transfer(
        self, txn: hc.Transaction, me: int, number: int, source: int, target: int, amount: int
    ) -> None:
        self.attempts[me] += 1
        for account, change in ((source, -amount), (target, amount)):
            row = txn.get("account", account)
            assert row is not None
            values = {"balance": row["balance"] + change, "moves": row["moves"] + 1}
            txn.update("account", account, values)
        txn.insert("journal", {"id": number, "amount": amount})

    def auditor(self, crew: Crew, db: hc.Database | None = None) -> None:
        """Look at one snapshot in several ways, again and again."""
        moves_before = 0
        while crew.working():
            self._something_happened.wait(0.1)
            self._something_happened.clear()
            with (db or self.db).begin() as txn:
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
        assert moves == 2 * txn.scan("journal").num_rows, "half a transaction is visible"
        return moves

    def settle(self, db: hc.Database) -> None:
        """What is in the tables is what the ledgers say, account by account."""
        change: Counter[int] = Counter()
        moves: Counter[int] = Counter()
        transfers = [entry for ledger in self.ledgers for entry in ledger]
        for source, target, amount in transfers:
            change[source] -= amount
            change[target] += amount
            moves.update((source, target))
        with db.begin() as txn:
            assert self.audit(txn) == 2 * len(transfers)
            for row in txn.scan("account").to_pylist():
                account = row["id"]
                assert row["balance"] == PAID_IN + change[account]
                assert row["moves"] == moves[account]


def _sum(table: Any, column: str) -> int:
    return pc.sum(table.column(column)).as_py()


@pytest.mark.parametrize("transfers", [5_000, pytest.param(20_000, marks=pytest.mark.more)])
def test_eight_threads_make_transfers_and_the_total_never_changes(
    tmp_path: Path, transfers: int
) -> None:
    with hc.open(tmp_path / "bank") as db:
        bank = Bank(db, 1000)
        started = db.visible_ts
        with beside(bank.auditor):
            bank.tellers(transfers, seed=1)
        bank.settle(db)
        assert db.visible_ts == started + transfers
        for ts in range(started, db.visible_ts, transfers // 6):
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
            bank.tellers(1600, seed=2)
        bank.settle(db)
        assert sum(bank.attempts) > 1600, "nobody met anybody"
        assert not db.check()


def test_transfers_go_on_beside_garbage_collection(tmp_path: Path) -> None:
    options = hc.Options(page_rows=64)
    with hc.open(tmp_path / "bank", durability="async", retention=0, options=options) as db:
        bank = Bank(db, 200)

        def collect(crew: Crew) -> None:
            while crew.working():
                db.gc()

        with beside(bank.auditor, collect):
            bank.tellers(4000, seed=4)
        bank.settle(db)
        assert db.floor > 0
        assert not db.check()


def test_a_follower_sees_the_same_total_at_every_look(tmp_path: Path) -> None:
    with hc.open(tmp_path / "bank") as db:
        bank = Bank(db, 50)
        with hc.open(tmp_path / "bank", read_only=True) as follower:
            with beside(lambda crew: bank.auditor(crew, follower)):
                bank.tellers(2000, seed=3)
            bank.settle(follower)
            assert not follower.check()
        assert not db.check()

"""Scans beside everything that moves rows about: no row is missed, none is seen twice.

Writers shift amounts between rows by key and by predicate, so the sum never changes; the keeper
flushes, compacts and collects without a break; readers look at one snapshot in every way there is.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pyarrow.compute as pc
import pytest

import halocline as hc
from tests.concurrency.threads import Crew, beside, together

ROWS = 60
EACH = 100
OPTIONS = hc.Options(
    page_rows=4,
    bulk_rows=8,
    object_rows=16,
    row_group_rows=8,
    object_rows_min=12,
    background=False,
    sql_threads=1,
)


class Ledger:
    """A table whose amounts always add up to the same."""

    def __init__(self, db: hc.Database, key: str | None) -> None:
        self.db = db
        db.create_table("t", {"id": int, "amount": int, "turn": int}, primary_key=key)
        with db.begin() as txn:
            txn.insert("t", [{"id": n, "amount": EACH, "turn": 0} for n in range(ROWS)])

    def writer(self, me: int, turns: int) -> Any:
        def work() -> None:
            random = Random(me)
            for turn in range(turns):
                one, two = random.sample(range(ROWS), 2)
                self.db.run(lambda txn: self._shift(txn, one, two, turn), 10_000)  # noqa: B023

        return work

    def _shift(self, txn: hc.Transaction, one: int, two: int, turn: int) -> None:
        for key, change in ((one, -1), (two, 1)):
            found = txn.scan("t", where="id = ?", params=[key])
            (amount,) = found.column("amount").to_pylist()
            values = {"amount": amount + change, "turn": turn}
            assert txn.update("t", where="id = ?", params=[key], set=values) == 1
        if turn % 7 == 3:  # the same rows again, as new versions of themselves
            assert txn.update("t", where="id >= ?", params=[ROWS // 2], set={"turn": turn}) == 30

    def keeper(self, crew: Crew) -> None:
        while crew.working():
            self.db.flush()
            self.db.compact()
            self.db.gc()

    def reader(self, crew: Crew) -> None:
        while crew.working():
            self.audit()

    def audit(self) -> None:
        with self.db.begin() as txn:
            stream = txn.scan("t", stream=True)
            tables = [txn.scan("t"), txn.scan("t", where="id >= 0", order="id")]
            text = "select sum(amount)::bigint as s, count(*) as c, count(distinct id) as d from t"
            found = txn.sql(text).to_pylist()
            half = txn.scan("t", where="id < 30").num_rows + txn.scan("t", where="id > 29").num_rows
            ts = txn.snapshot
        tables.append(stream.read_all())
        for table in tables:
            assert table.num_rows == ROWS
            assert pc.sum(table.column("amount")).as_py() == ROWS * EACH
            assert sorted(table.column("id").to_pylist()) == list(range(ROWS))
        assert found == [{"s": ROWS * EACH, "c": ROWS, "d": ROWS}]
        assert half == ROWS
        assert self.db.table("t").count() == ROWS
        assert ts


@pytest.mark.parametrize("key", ["id", None])
def test_scans_see_every_row_once_whatever_moves(key: str | None, tmp_path: Path) -> None:
    with hc.open(tmp_path / "db", durability="async", retention=0, options=OPTIONS) as db:
        ledger = Ledger(db, key)
        with beside(ledger.keeper), beside(ledger.reader):
            together(*(ledger.writer(me, 20) for me in range(2)))
        ledger.audit()
        assert not db.check()
    with hc.open(tmp_path / "db", options=OPTIONS) as db:
        ledger.db = db
        ledger.audit()

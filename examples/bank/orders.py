"""The orders of chapter 5: a table that grows, changes and shrinks, and what it must add up to.

    orders   id, customer, state, cents

Each step of a writer is one durable transaction: new orders with the next numbers, and older ones
of its own changed or cancelled, wherever they are by now. What was acknowledged is remembered as a
number of rows and a sum of cents; the table must say the same, whichever tier its rows are in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple

import halocline as hc

NEW, CHANGED, CANCELLED = 40, 8, 3
CENTS_MAX = 500_00

OPTIONS = hc.Options(
    page_rows=1024,
    object_rows=16_384,
    row_group_rows=8_192,
    move_rows=8_192,
    move_tombstones=4_096,
    checkpoint_log_bytes=4 * 1024 * 1024,
)
"""A hundredth of the usual sizes: what takes a busy day otherwise can be watched here."""


class Sum(NamedTuple):
    """What a table adds up to."""

    rows: int
    cents: int


class Ledger:
    """What one writer was told is there."""

    def __init__(self) -> None:
        self.cents: dict[int, int] = {}

    @staticmethod
    def sum(ledgers: list[Ledger]) -> Sum:
        return Sum(
            sum(len(one.cents) for one in ledgers), sum(sum(one.cents.values()) for one in ledgers)
        )


def create(db: hc.Database) -> None:
    db.create_table(
        "orders", {"id": int, "customer": str, "state": str, "cents": int}, primary_key="id"
    )


def add_up(txn: hc.Transaction) -> Sum:
    """The table as a transaction sees it."""
    query = "select count(*) as rows, cast(coalesce(sum(cents), 0) as bigint) as cents from orders"
    return Sum(**txn.sql(query).to_pylist()[0])


def steps(db: hc.Database, batches: Iterator[int], ledger: Ledger, seed: int) -> Callable[[], int]:
    """A function that commits one step; it never has to try again, as its orders are its own."""
    random = Random(seed)
    mine: list[int] = []

    def step() -> int:
        fresh = [_order(next_id, random) for next_id in _numbers(next(batches))]
        places = random.sample(range(len(mine)), CHANGED + CANCELLED) if mine else []
        old = [mine[place] for place in places]
        changed = {number: random.randint(1, CENTS_MAX) for number in old[:CHANGED]}
        cancelled = old[CHANGED:]
        with db.begin() as txn:
            txn.insert("orders", fresh)
            for number, cents in changed.items():
                txn.update("orders", number, {"state": "changed", "cents": cents})
            for number in cancelled:
                txn.delete("orders", number)
        ledger.cents.update(changed)
        for number in cancelled:
            del ledger.cents[number]
        for place in sorted(places[CHANGED:], reverse=True):
            mine[place] = mine[-1]
            mine.pop()
        mine.extend(row["id"] for row in fresh)
        ledger.cents.update({row["id"]: row["cents"] for row in fresh})
        return 0

    return step


def _numbers(batch: int) -> range:
    return range(1 + batch * NEW, 1 + (batch + 1) * NEW)


def _order(number: int, random: Random) -> dict[str, Any]:
    customer = f"customer {random.randrange(10_000)}"
    return {
        "id": number,
        "customer": customer,
        "state": "new",
        "cents": random.randint(1, CENTS_MAX),
    }

"""The bank: three tables, the transaction that moves money, and the query that audits it.

    accounts    id, owner, branch, opening, balance     money is integer cents
    transfers   id, source, target, cents               the journal, one row per transfer
    audits      id, snapshot, total, transfers, strays  what each audit saw

A transfer changes two accounts and adds a row to the journal, all or nothing. So two things hold at
every snapshot, and an audit asks for both in one query:
- the balances add up to the money that the bank was founded with;
- every balance is its opening balance plus what the journal moved in, minus what it moved out. An
  account that is not is a stray: it would betray a transfer that was applied by half.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import halocline as hc

ACCOUNTS = 1_000
OPENING_CENTS = 1_000_00
TOTAL_CENTS = ACCOUNTS * OPENING_CENTS
TRANSFER_CENTS_MAX = 100_00

BRANCHES = ("Bergen", "Dakar", "Lima", "Lisbon", "Napier", "Osaka", "Perth", "Tallinn")
OWNERS = (
    "Ada",
    "Barbara",
    "Edgar",
    "Frances",
    "Grace",
    "Jim",
    "Katherine",
    "Leslie",
    "Pat",
    "Radia",
)

BOOKS = """
with moves as (
    select source as id, -cents as cents from transfers
    union all
    select target, cents from transfers
),
moved as (select id, sum(cents) as cents from moves group by id)
select
    cast(sum(balance) as bigint) as total,
    count(*) as accounts,
    (select count(*) from transfers) as transfers,
    count(*) filter (balance <> opening + coalesce(cents, 0)) as strays
from accounts left join moved using (id)
"""

FAVOURITES = """
select branch, count(*) as transfers, cast(sum(cents) as bigint) as cents
from transfers join accounts on accounts.id = transfers.target
group by branch order by cents desc, branch limit 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What one snapshot of the bank looks like."""

    snapshot: int
    total: int
    accounts: int
    transfers: int
    strays: int

    @property
    def sound(self) -> bool:
        """No money made or lost, no transfer applied by half."""
        return self.total == TOTAL_CENTS and self.accounts == ACCOUNTS and not self.strays


def found(db: hc.Database) -> None:
    """Create the tables and open the accounts."""
    db.create_table(
        "accounts",
        {"id": int, "owner": str, "branch": str, "opening": int, "balance": int},
        primary_key="id",
    )
    db.create_table(
        "transfers", {"id": int, "source": int, "target": int, "cents": int}, primary_key="id"
    )
    db.create_table(
        "audits",
        {"id": int, "snapshot": int, "total": int, "transfers": int, "strays": int},
        primary_key="id",
    )
    with db.begin() as txn:
        txn.insert("accounts", list(accounts()))


def accounts() -> Iterator[dict[str, Any]]:
    """The accounts on the first day."""
    for number in range(1, ACCOUNTS + 1):
        yield {
            "id": number,
            "owner": OWNERS[number % len(OWNERS)],
            "branch": BRANCHES[number % len(BRANCHES)],
            "opening": OPENING_CENTS,
            "balance": OPENING_CENTS,
        }


def draw(random: Random) -> tuple[int, int, int]:
    """Two different accounts and an amount."""
    source = random.randrange(ACCOUNTS)
    target = (source + 1 + random.randrange(ACCOUNTS - 1)) % ACCOUNTS
    return source + 1, target + 1, random.randint(1, TRANSFER_CENTS_MAX)


def transfer(txn: hc.Transaction, number: int, source: int, target: int, cents: int) -> int:
    """Move money, as far as there is some; returns the cents that moved."""
    giver, taker = txn.get("accounts", source), txn.get("accounts", target)
    assert giver is not None
    assert taker is not None
    cents = min(cents, giver["balance"])
    txn.update("accounts", source, {"balance": giver["balance"] - cents})
    txn.update("accounts", target, {"balance": taker["balance"] + cents})
    txn.insert("transfers", {"id": number, "source": source, "target": target, "cents": cents})
    return cents


def transfers(
    db: hc.Database,
    numbers: Iterator[int],
    seed: int,
    acknowledge: Callable[[int, int, int, int], None] | None = None,
) -> Callable[[], int]:
    """A function that makes one durable transfer and returns how often it had to try again."""
    random = Random(seed)

    def step() -> int:
        number, (source, target, cents) = next(numbers), draw(random)
        tries = 0

        def work(txn: hc.Transaction) -> int:
            nonlocal tries
            tries += 1
            return transfer(txn, number, source, target, cents)

        moved = db.run(work)
        if acknowledge is not None and moved is not None:
            acknowledge(number, source, target, moved)
        return tries - 1

    return step


def audit(txn: hc.Transaction) -> Audit:
    """Audit the bank as this transaction sees it."""
    return Audit(snapshot=txn.snapshot, **txn.sql(BOOKS).to_pylist()[0])


def next_number(db: hc.Database) -> int:
    """A transfer number above all that were used."""
    highest = db.sql("select max(id) as id from transfers").to_pylist()[0]["id"]
    return 1 if highest is None else int(highest) + 1


def money(cents: int) -> str:
    """123456 -> "1,234.56"."""
    return f"{cents / 100:,.2f}"

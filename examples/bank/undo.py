"""Chapter 4: a DELETE that went wrong, and the past that puts it right.

    14:03:22.118  all is well
    14:03:22.121  delete where id >= 1        (it was meant to be id = 1)
    14:03:22.150  rows at=14:03:22.118  --insert-->  accounts, in one transaction

The past is also asked about chapter 1: audits that were written down then are done again at their
snapshots, after every crash since, and must come to the same result.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

import pyarrow as pa

import halocline as hc
from bank import tables
from bank.report import Report
from bank.screen import Screen
from bank.tables import money

AUDITS_REPEATED = 10


def run(screen: Screen, report: Report, place: Path) -> None:
    """Empty the accounts by mistake, and put them back."""
    screen.chapter(
        "4  Undo",
        "Somebody wants to close account 1 and types >= for =. The rows are read as they were "
        "a moment before, with at=, and put back in one transaction.",
    )
    with hc.open(place) as db:
        _undo(screen, report, db)
        _remember(report, db)
        with db.begin() as txn:
            seen = tables.audit(txn)
        problems = db.check()
    report.found(
        seen.sound and not problems,
        "At the end",
        f"sum {money(seen.total)} after {seen.transfers:,} transfers, {seen.strays} accounts "
        f"disagree with the journal, {len(problems)} problems in db.check()",
    )


def _undo(screen: Screen, report: Report, db: hc.Database) -> None:
    accounts = db.table("accounts")
    before, moment = accounts.to_arrow(), datetime.now(UTC)
    with screen.live("ll") as picture:
        steps: list[list[str]] = []

        def say(code: str, happened: str) -> None:
            steps.append([code if screen.plain else f"[cyan]{code}[/]", happened])
            picture.show(steps, f"{code:<40} {happened}", last=True)

        with db.begin() as txn:
            deleted = txn.delete("accounts", where="id >= 1")
        say('txn.delete("accounts", where="id >= 1")', f"{deleted:,} rows gone")
        left = accounts.count()
        say('db.table("accounts").count()', f"{left:,}")

        started = perf_counter()
        with db.begin(at=moment) as past:
            lost = past.scan("accounts")
        say("past = db.begin(at=moment)", f"the moment was {moment:%H:%M:%S.%f} UTC"[:-7] + " UTC")
        say('lost = past.scan("accounts")', f"{lost.num_rows:,} rows")
        with db.begin() as txn:
            restored = txn.insert("accounts", lost)
        took_ms = (perf_counter() - started) * 1e3
        say('txn.insert("accounts", lost)', f"{restored:,} rows back, {took_ms:,.0f} ms in all")
    after = accounts.to_arrow()
    same = _in_order(before).equals(_in_order(after))
    report.found(
        same and deleted == before.num_rows and left == 0,
        "A bad DELETE is undone",
        f"{before.num_rows:,} accounts before, {left:,} after, {after.num_rows:,} once at= put "
        f"them back in {took_ms:,.0f} ms, {'identical' if same else 'not the same'}",
    )


def _remember(report: Report, db: hc.Database) -> None:
    rows = db.sql("select * from audits order by id").to_pylist()
    chosen = rows[:: max(1, len(rows) // AUDITS_REPEATED)][-AUDITS_REPEATED:]
    equal = 0
    for row in chosen:
        with db.begin(at=row["snapshot"]) as past:
            again = tables.audit(past)
        equal += (again.total, again.transfers, again.strays) == (
            row["total"],
            row["transfers"],
            row["strays"],
        )
    if chosen:
        report.found(
            equal == len(chosen),
            "The past stays as it was",
            f"{equal} of {len(chosen)} audits of chapter 1 agree when done again at= their "
            "snapshots",
        )


def _in_order(rows: pa.Table) -> pa.Table:
    return rows.sort_by("id").combine_chunks()

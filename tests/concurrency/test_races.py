"""Small races, run many times: for one key, one row, one name, and between tables."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import halocline as hc
from tests.concurrency.threads import PATIENCE_S, Crew, beside, together

TINY = hc.Options(page_rows=16, bulk_rows=8)


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_of_two_threads_inserting_one_key_exactly_one_wins(tmp_path: Path, durability: Any) -> None:
    """In half of the rounds both have begun before either inserts."""
    rounds = 1000
    with hc.open(tmp_path / "db", durability=durability) as db:
        db.create_table("t", {"id": int, "who": int}, primary_key="id")
        barrier = threading.Barrier(2)
        outcomes: list[list[str]] = [[], []]

        def racer(me: int) -> None:
            for key in range(rounds):
                outcomes[me].append(_insert(db, barrier, key, me))

        together(lambda: racer(0), lambda: racer(1))
        with db.begin() as txn:
            for key, pair in enumerate(zip(*outcomes, strict=True)):
                lost, won = sorted(pair)
                assert won == "won"
                assert lost in ({"conflict"} if key % 2 else {"conflict", "duplicate"})
                assert txn.get("t", key) == {"id": key, "who": pair.index("won")}
        assert db.table("t").count() == rounds
        assert not db.check()


def _insert(db: hc.Database, barrier: threading.Barrier, key: int, me: int) -> str:
    if key % 2 == 0:
        barrier.wait(PATIENCE_S)
    txn = db.begin()
    if key % 2:
        barrier.wait(PATIENCE_S)
    try:
        txn.insert("t", {"id": key, "who": me})
        txn.commit()
    except hc.ConflictError:
        return "conflict"
    except hc.DuplicateKeyError:
        return "duplicate"
    finally:
        barrier.wait(PATIENCE_S)
    return "won"


def test_threads_updating_different_columns_of_one_row_never_conflict(tmp_path: Path) -> None:
    """Eight columns, eight threads, one row: every commit is there in the end."""
    threads, rounds = 8, 250
    columns = [f"c{i}" for i in range(threads)]
    with hc.open(tmp_path / "db", options=TINY) as db:
        db.create_table("t", {"id": int, **dict.fromkeys(columns, int)}, primary_key="id")
        with db.begin() as txn:
            txn.insert("t", {"id": 1, **dict.fromkeys(columns, 0)})
        since = db.visible_ts

        def writer(column: str) -> Callable[[], None]:
            def work() -> None:
                for value in range(1, rounds + 1):
                    with db.begin() as txn:
                        row = txn.get("t", 1)
                        assert row is not None
                        assert row[column] == value - 1
                        txn.update("t", 1, {column: value})

            return work

        together(*(writer(column) for column in columns))
        with db.begin() as txn:
            assert txn.get("t", 1) == {"id": 1, **dict.fromkeys(columns, rounds)}
        events = db.changes("t", since=since).to_pylist()
        assert [event["_change"] for event in events] == ["update_before", "update_after"] * (
            threads * rounds
        )
        for before, after in zip(events[::2], events[1::2], strict=True):
            grown = [column for column in columns if after[column] != before[column]]
            assert len(grown) == 1
            assert after[grown[0]] == before[grown[0]] + 1
        assert not db.check()


def test_bulk_and_single_updates_of_different_columns_both_commit(tmp_path: Path) -> None:
    """One thread rewrites a column of the whole table, others one cell at a time."""
    rows, rounds = 40, 40
    with hc.open(tmp_path / "db", options=TINY) as db:
        db.create_table("t", {"id": int, "bulk": int, "single": int}, primary_key="id")
        with db.begin() as txn:
            txn.insert("t", [{"id": i, "bulk": 0, "single": 0} for i in range(rows)])

        def whole() -> None:
            for value in range(1, rounds + 1):
                with db.begin() as txn:
                    assert txn.update("t", where="true", set={"bulk": value}) == rows

        def cells(first: int) -> Callable[[], None]:
            def work() -> None:
                for value in range(1, rounds + 1):
                    for key in range(first, rows, 2):
                        with db.begin() as txn:
                            txn.update("t", key, {"single": value})

            return work

        together(whole, cells(0), cells(1))
        found = db.table("t").to_arrow().sort_by("id").to_pylist()
        assert found == [{"id": i, "bulk": rounds, "single": rounds} for i in range(rows)]
        assert not db.check()


def test_readers_never_see_half_of_a_transaction_over_three_tables(tmp_path: Path) -> None:
    """Single rows, bulk rows and an update in three tables: all of a commit or nothing of it."""
    writers, rounds = 4, 40
    with hc.open(tmp_path / "db", options=TINY) as db:
        db.create_table("single", {"id": int}, primary_key="id")
        db.create_table("bulk", {"id": int, "part": int}, primary_key=["id", "part"])
        db.create_table("total", {"id": int, "n": int}, primary_key="id")
        with db.begin() as txn:
            txn.insert("total", {"id": 1, "n": 0})

        def writer(me: int) -> Callable[[], None]:
            def write(txn: hc.Transaction, number: int) -> None:
                row = txn.get("total", 1)
                assert row is not None
                parts = pa.table({"id": [number] * 10, "part": list(range(10))})
                txn.insert("bulk", parts)
                txn.update("total", 1, {"n": row["n"] + 1})
                txn.insert("single", {"id": number})

            def work() -> None:
                for turn in range(rounds):
                    number = me * rounds + turn
                    db.run(lambda txn, number=number: write(txn, number), retries=10_000)

            return work

        def reader(look: Callable[[hc.Transaction], tuple[int, int, int]]) -> Callable[..., None]:
            def work(crew: Crew) -> None:
                before = 0
                while crew.working():
                    with db.begin() as txn:
                        total, single, bulk = look(txn)
                    assert (single, bulk) == (total, 10 * total)
                    assert total >= before
                    before = total

            return work

        with beside(reader(_look_by_scan), reader(_look_by_sql), reader(_look_by_range)):
            together(*(writer(me) for me in range(writers)))
        with db.begin() as txn:
            assert _look_by_scan(txn) == (writers * rounds, writers * rounds, 10 * writers * rounds)
        assert not db.check()


def _look_by_scan(txn: hc.Transaction) -> tuple[int, int, int]:
    single, bulk = txn.scan("single").num_rows, txn.scan("bulk").num_rows
    (row,) = txn.scan("total").to_pylist()
    return row["n"], single, bulk


def _look_by_range(txn: hc.Transaction) -> tuple[int, int, int]:
    row = txn.get("total", 1)
    assert row is not None
    return row["n"], txn.range("single").num_rows, txn.range("bulk").num_rows


def _look_by_sql(txn: hc.Transaction) -> tuple[int, int, int]:
    text = """select (select n from total) as n, (select count(*) from single) as single,
              (select count(*) from bulk) as bulk"""
    (row,) = txn.sql(text).to_pylist()
    return row["n"], row["single"], row["bulk"]

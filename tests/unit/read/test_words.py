"""Tables of words: kept while they say what a query asks for, and never taken from under one."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import duckdb
import numpy as np
import pytest

from halocline.read.mask import WORD, Mask
from halocline.read.words import Loan, WordTable, WordTables

MASK_BYTES = 8 * (2 * 10 + 1)
"""Of ten words and one dead row."""


def mask(*dead: int, low: int = 0, words: int = 10) -> Mask:
    return Mask((), low, low + words * WORD - 1, np.array(dead, dtype=np.int64))


@pytest.fixture
def instance() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(":memory:") as opened:
        yield opened


def names(instance: duckdb.DuckDBPyConnection) -> set[str]:
    """The tables that outlive a query."""
    text = "select table_name from duckdb_tables() where not temporary"
    return {f"memory.main.{name}" for (name,) in instance.execute(text).fetchall()}


def dead_in(cursor: duckdb.DuckDBPyConnection, words: WordTable) -> list[int]:
    text = f"select _dead_0 from {words.table} where _dead_0 >= 0 order by 1"
    return [dead for (dead,) in cursor.execute(text).fetchall()]


def test_masks_that_say_the_same_share_a_table(instance: duckdb.DuckDBPyConnection) -> None:
    tables = WordTables(1 << 20)
    first, second = Loan(tables, instance.cursor()), Loan(tables, instance.cursor())
    assert first.words(mask(7)) == second.words(mask(7))
    first.close()
    second.close()
    assert len(names(instance)) == 1


@pytest.mark.parametrize(
    "other", [mask(8), mask(7, 70), mask(), mask(7, words=9), mask(64, 71, low=64)]
)
def test_a_mask_that_says_something_else_gets_its_own(
    instance: duckdb.DuckDBPyConnection, other: Mask
) -> None:
    cursor = instance.cursor()
    loan = Loan(WordTables(1 << 20), cursor)
    one, two = loan.words(mask(7)), loan.words(other)
    assert one.table != two.table
    if "_bits" not in two.test:
        assert (dead_in(cursor, one), dead_in(cursor, two)) == ([7], other.dead.tolist())


def test_the_table_used_longest_ago_goes_when_there_are_too_many(
    instance: duckdb.DuckDBPyConnection,
) -> None:
    tables = WordTables(4 * MASK_BYTES)
    made = {}
    for dead in (1, 2, 3, 4, 1, 5):
        loan = Loan(tables, instance.cursor())
        made[dead] = loan.words(mask(dead)).table
        loan.close()
    assert names(instance) == {made[dead] for dead in (3, 4, 1, 5)}


def test_a_table_on_loan_stays_until_it_is_given_back(instance: duckdb.DuckDBPyConnection) -> None:
    tables = WordTables(4 * MASK_BYTES)
    cursor = instance.cursor()
    holder = Loan(tables, cursor)
    held = [holder.words(mask(dead)) for dead in range(6)]
    assert names(instance) == {words.table for words in held}
    assert [dead_in(cursor, words) for words in held] == [[dead] for dead in range(6)]
    holder.close()
    holder.close()
    Loan(tables, instance.cursor()).words(mask(5))
    assert names(instance) == {words.table for words in held[2:]}


def test_a_table_that_is_too_large_to_keep_ends_with_its_query(
    instance: duckdb.DuckDBPyConnection,
) -> None:
    tables = WordTables(4 * MASK_BYTES - 1)
    cursor = instance.cursor()
    loan = Loan(tables, cursor)
    assert dead_in(cursor, loan.words(mask(7))) == [7]
    assert names(instance) == set()
    loan.close()


def test_queries_in_many_threads_keep_what_they_hold(instance: duckdb.DuckDBPyConnection) -> None:
    tables = WordTables(4 * MASK_BYTES)
    wrong: list[object] = []

    def ask(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for dead in rng.integers(0, 12, 25).tolist():
            with instance.cursor() as cursor:
                loan = Loan(tables, cursor)
                try:
                    found = dead_in(cursor, loan.words(mask(dead)))
                    if found != [dead]:
                        wrong.append((dead, found))
                except duckdb.Error as error:
                    wrong.append(error)
                finally:
                    loan.close()

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    assert len(names(instance)) <= 4 + len(threads)


def test_a_loan_that_is_dropped_is_given_back(instance: duckdb.DuckDBPyConnection) -> None:
    tables = WordTables(MASK_BYTES * 4)
    for dead in range(10):
        Loan(tables, instance.cursor()).words(mask(dead))
    assert len(names(instance)) == 4


def test_a_loan_that_is_broken_off_holds_nothing(instance: duckdb.DuckDBPyConnection) -> None:
    tables = WordTables(MASK_BYTES * 4)
    loan = Loan(tables, instance.cursor())
    for dead in range(5):
        loan.words(mask(dead))
    loan.close()
    closed = instance.cursor()
    closed.close()
    with pytest.raises(duckdb.Error):
        Loan(tables, closed).words(mask(4))  # it is there, another one has to go
    for dead in range(10, 20):
        Loan(tables, instance.cursor()).words(mask(dead))
    assert names(instance) == {f"memory.main._words_{n}" for n in range(12, 16)}

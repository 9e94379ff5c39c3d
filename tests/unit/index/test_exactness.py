"""Always exact: the same rows with indexes as without, whatever has been indexed so far.

Random rows of all types, in memory, moved, merged, written in bulk, dead, late and uncommitted;
indexes that are built, half built and dropped; every snapshot that is left. See twins.py.
"""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

import halocline as hc
from tests.conftest import SIM
from tests.unit.index.twins import INDEXES, OPTIONS, PAIRS, Twins

SEEDS = range(100, 200) if SIM else range(8)
STEPS = 25
QUESTIONS = 5


@pytest.mark.parametrize("seed", SEEDS)
def test_i12_rows_are_the_same_with_indexes_and_without(tmp_path: Path, seed: int) -> None:
    asked = 0
    with hc.open(tmp_path / "db", retention="1d", durability="async", options=OPTIONS) as db:
        twins = Twins(db, seed)
        for step in range(STEPS):
            twins.step()
            with db.begin() as txn:
                asked += ask(twins, txn, f"seed {seed}, step {step}")
            with db.begin(at=twins.chance.choice(twins.stamps)) as past:
                asked += ask(twins, past, f"seed {seed}, step {step}, at {past.snapshot}")
            if step % 5 == 4:
                asked += ask_with_own_rows(twins, db, f"seed {seed}, step {step}, own rows")
        assert db.check() == []
        used = sum(uses for uses, _ in db.core.engine.shelf.index_use.values())
    assert asked >= 250
    assert used >= 50, "the indexes were hardly asked"
    with hc.open(tmp_path / "db", options=OPTIONS) as again:
        twins.db = again
        with again.begin() as txn:
            ask(twins, txn, f"seed {seed}, opened again")
        assert again.check() == []


def ask(twins: Twins, txn: hc.Transaction, when: str) -> int:
    for _ in range(QUESTIONS):
        question, plain, indexed = twins.ask(txn)
        assert plain == indexed, f"{when}: {question}"
    return QUESTIONS


def ask_with_own_rows(twins: Twins, db: hc.Database, when: str) -> int:
    """Questions of a transaction that has written, and is given up."""
    txn = db.begin()
    few, many = [twins.row() for _ in range(5)], [twins.row() for _ in range(70)]
    name, value = twins.value()
    low = twins.chance.randrange(twins.next_id)
    for table in PAIRS:
        txn.insert(table, few)
        txn.insert(table, many)
        txn.update(table, where="id > ?", params=[low], set={name: value})
        txn.delete(table, where="id % 7 = 3")
    asked = ask(twins, txn, when)
    txn.rollback()
    return asked


@pytest.mark.more
def test_rows_are_the_same_while_everything_goes_on_beside(tmp_path: Path) -> None:
    """Builders, moves, compaction, GC, DDL and writers of other threads, and readers among them."""
    options = hc.Options(page_rows=8, object_rows=128, row_group_rows=64, object_rows_min=40)
    with hc.open(tmp_path / "db", retention=0, durability="async", options=options) as db:
        twins = Twins(db, 1)
        for _ in range(10):
            twins.insert()
        stop, failed = threading.Event(), list[BaseException]()

        def write() -> None:
            while not stop.is_set():
                twins.chance.choice([twins.insert, twins.update, twins.delete, twins.bulk])()

        def maintain() -> None:
            chance = random.Random(2)
            while not stop.is_set():
                name = chance.choice(list(INDEXES))
                if name in db.indexes().column("name").to_pylist():
                    db.drop_index(name)
                else:
                    db.create_index(name, "indexed", INDEXES[name], wait=chance.random() < 0.5)
                chance.choice([db.flush, db.compact, db.gc, db.checkpoint])()

        def guarded(work: object) -> None:
            try:
                work()  # type: ignore[operator]
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=guarded, args=(one,)) for one in (write, maintain)]
        for thread in threads:
            thread.start()
        asker = Twins.__new__(Twins)
        asker.db, asker.chance, asker.next_id, asker.stamps = db, random.Random(3), 1, []
        for number in range(100):
            with db.begin() as txn:
                where, params = asker.condition()
                found = [txn.scan(t, ["id"], where=where, params=params, order="id") for t in PAIRS]
            assert found[0] == found[1], f"question {number}: {where} {params}"
        stop.set()
        for thread in threads:
            thread.join()
        assert not failed, failed
        assert db.check() == []

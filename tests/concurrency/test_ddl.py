"""Tables that come and go while others write to them.

Each commit of a thread is noted with its timestamp, so afterwards it is known which rows every
generation of a table must have had at the end, and the past can be asked.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import halocline as hc
from tests.concurrency.threads import Crew, beside, together

TINY = hc.Options(page_rows=16, bulk_rows=8)
NAMES = ("red", "green")


def test_rows_go_into_the_table_that_was_there_when_they_were_committed(tmp_path: Path) -> None:
    writers, rows_each, generations = 4, 300, 60
    with hc.open(tmp_path / "db", options=TINY) as db:
        ddl: dict[str, list[int]] = {name: [] for name in NAMES}
        """Per name the timestamps of create, drop, create, drop ..."""
        inserted: list[list[tuple[str, int, int]]] = [[] for _ in range(writers)]

        def owner(name: str) -> Callable[[Crew], None]:
            def work(crew: Crew) -> None:
                for turn in range(generations):
                    with db.begin() as txn:
                        if turn % 2 == 0:
                            txn.create_table(name, {"id": int}, primary_key="id")
                        else:
                            txn.drop_table(name)
                    assert txn.commit_ts is not None
                    ddl[name].append(txn.commit_ts)

            return work

        def writer(me: int) -> Callable[[], None]:
            def work() -> None:
                random = Random(me)
                key, done = me, 0
                while done < rows_each:
                    name = random.choice(NAMES)
                    key += writers
                    try:
                        with db.begin() as txn:
                            txn.insert(name, {"id": key})
                    except (hc.NotFoundError, hc.ConflictError):
                        if len(ddl[name]) == generations:
                            done += 1  # The name is gone for good.
                        continue
                    assert txn.commit_ts is not None
                    inserted[me].append((name, key, txn.commit_ts))
                    done += 1

            return work

        with beside(*(owner(name) for name in NAMES)):
            together(*(writer(me) for me in range(writers)))
        events = [event for log in inserted for event in log]
        for name in NAMES:
            _check_generations(db, name, ddl[name], events)
        assert not db.check()
    with hc.open(tmp_path / "db", options=TINY) as db:
        for name in NAMES:
            _check_generations(db, name, ddl[name], events)
        assert not db.check()


def _check_generations(
    db: hc.Database, name: str, ddl: list[int], events: list[tuple[str, int, int]]
) -> None:
    """Just before each drop the table holds what was committed to it since its creation."""
    placed = 0
    for created, dropped in zip(ddl[::2], ddl[1::2], strict=True):
        mine = sorted(key for where, key, ts in events if where == name and created < ts < dropped)
        placed += len(mine)
        with db.begin(at=dropped - 1) as txn:
            assert txn.range(name).column("id").to_pylist() == mine
        with db.begin(at=dropped) as txn:
            assert name not in txn.tables()
    assert placed == sum(where == name for where, _, _ in events)


def test_many_threads_may_ask_for_one_table_to_be_there(tmp_path: Path) -> None:
    """Everybody creates if it does not exist, in one transaction with a row: all succeed."""
    threads, tables = 8, 20
    with hc.open(tmp_path / "db") as db:

        def worker(me: int) -> Callable[[], None]:
            def put(txn: hc.Transaction, name: str) -> None:
                txn.create_table(name, {"id": int}, primary_key="id", if_not_exists=True)
                txn.insert(name, {"id": me})

            def work() -> None:
                for number in range(tables):
                    db.run(lambda txn, name=f"t{number}": put(txn, name))

            return work

        together(*(worker(me) for me in range(threads)))
        assert db.tables() == sorted(f"t{number}" for number in range(tables))
        for name in db.tables():
            with db.begin() as txn:
                assert txn.range(name).column("id").to_pylist() == list(range(threads))
        assert not db.check()


def test_a_snapshot_keeps_its_tables_whatever_happens_to_them(tmp_path: Path) -> None:
    with hc.open(tmp_path / "db", options=TINY) as db:

        def replace(txn: hc.Transaction, value: int) -> None:
            """Both tables go and come back with rows that tell the generation."""
            for name in NAMES:
                txn.drop_table(name, if_exists=True)
                txn.create_table(name, {"id": int, "generation": int}, primary_key="id")
                txn.insert(name, [{"id": i, "generation": value} for i in range(12)])

        def reader(crew: Crew) -> None:
            while crew.working():
                with db.begin() as txn:
                    assert txn.tables() == sorted(NAMES)
                    found = {
                        (row["id"], row["generation"])
                        for name in NAMES
                        for row in [*txn.scan(name).to_pylist(), *txn.range(name).to_pylist()]
                    }
                    assert len({generation for _, generation in found}) == 1
                    assert len(found) == 12

        db.run(lambda txn: replace(txn, 0))
        with beside(reader, reader):
            together(
                *(
                    lambda first=first: [
                        db.run(lambda txn, value=value: replace(txn, value), retries=10_000)
                        for value in range(first, 60, 2)
                    ]
                    for first in (1, 2)
                )
            )
        assert not db.check()

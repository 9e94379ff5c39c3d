"""TRUNCATE ends whatever is there when it commits, and never loses to anybody's rows."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event, Thread
from typing import Any

import pyarrow as pa
import pytest

import halocline as hc
from halocline import Database
from tests.store.faulty import FaultyFiles
from tests.unit.read import moving


@pytest.fixture
def db() -> Iterator[Any]:
    """40 rows in objects, 5 in L0, a tombstone in memory and some in an object."""
    db = Database(FaultyFiles(), "bulk", options=moving.TINY)
    db.create_table("t", {"id": int, "n": int}, primary_key="id")
    with db.begin() as txn:
        txn.insert("t", rows(range(40)))
    with db.begin() as txn:
        txn.delete("t", where="id >= 20 and id < 35")
    with db.begin() as txn:
        txn.insert("t", [{"id": n} for n in range(100, 105)])
        txn.delete("t", 0)
    yield db
    assert not db.check()
    db.close()


def rows(ids: Any, n: int = 0) -> Any:
    ids = list(ids)
    return pa.table({"id": ids, "n": [n] * len(ids)})


def ids_of(txn: Any) -> list[int]:
    return sorted(txn.scan("t").column("id").to_pylist())


LIVE = [*range(1, 20), *range(35, 40), *range(100, 105)]


def test_nothing_is_left_and_the_past_stays_readable(db: Any) -> None:
    with db.begin() as txn:
        assert ids_of(txn) == LIVE
        txn.truncate("t")
        assert ids_of(txn) == []
        assert txn.get("t", 3) is None
        assert txn.sql("select count(*) c from t").to_pylist() == [{"c": 0}]
        assert db.table("t").count() == len(LIVE)
    assert db.table("t").count() == 0
    assert db.table("t").files() == []
    with db.begin(at=txn.commit_ts - 1) as past:
        assert ids_of(past) == LIVE
    changes = db.changes("t", txn.commit_ts - 1)
    assert changes.column("_change").to_pylist() == ["delete"] * len(LIVE)
    assert sorted(changes.column("id").to_pylist()) == LIVE


def test_own_writes_before_it_are_gone_and_those_after_it_stay(db: Any) -> None:
    with db.begin() as txn:
        txn.insert("t", rows(range(200, 240)))
        txn.insert("t", {"id": 300})
        txn.update("t", 3, {"n": 1})
        txn.delete("t", where="id < 20")
        txn.truncate("t")
        assert ids_of(txn) == []
        txn.insert("t", {"id": 3, "n": 33})
        txn.insert("t", rows(range(210, 250), 7))
        txn.update("t", 3, {"n": 34})
        assert txn.delete("t", 211)
        assert ids_of(txn) == [3, 210, *range(212, 250)]
    with db.begin() as after:
        assert ids_of(after) == [3, 210, *range(212, 250)]
        assert after.get("t", 3) == {"id": 3, "n": 34}
    kinds = db.changes("t", txn.commit_ts - 1).column("_change").to_pylist()
    assert (kinds.count("delete"), kinds.count("insert")) == (len(LIVE), 40)


@pytest.mark.parametrize("how", ["still", "moved", "merged"])
def test_what_others_commit_meanwhile_ends_too(db: Any, how: str) -> None:
    txn = db.begin()
    txn.truncate("t")
    with db.begin() as other:
        other.insert("t", {"id": 500})
        other.update("t", 3, {"n": 3})
    with db.begin() as other:
        other.insert("t", rows(range(600, 640)))
    if how != "still":
        moving.move(db, "t")
        moving.flush(db, "t")
        moving.let_go(db, "t", txn.snapshot)
    if how == "merged":
        moving.merge(db, "t")
    txn.commit()
    assert db.table("t").count() == 0
    ended = db.changes("t", txn.commit_ts - 1)
    assert sorted(ended.column("id").to_pylist()) == sorted([*LIVE, 500, *range(600, 640)])


def test_rows_that_ended_before_it_stay_dead_when_they_move_later(db: Any) -> None:
    with db.begin() as txn:
        txn.delete("t", 101)
    moving.flush(db, "t")
    with db.begin() as txn:
        txn.truncate("t")
        txn.insert("t", {"id": 1000})
    moving.move(db, "t")
    moving.flush(db, "t")
    moving.let_go(db, "t")
    with db.begin() as txn:
        assert ids_of(txn) == [1000]
        assert txn.get("t", 101) is None
        assert txn.get("t", 102) is None
    moving.merge(db, "t")
    with db.begin() as txn:
        assert ids_of(txn) == [1000]


def test_a_table_of_the_same_transaction_and_an_empty_one(db: Any) -> None:
    with db.begin() as txn:
        txn.create_table("fresh", {"id": int}, primary_key="id")
        txn.insert("fresh", {"id": 1})
        txn.truncate("fresh")
        txn.insert("fresh", {"id": 2})
    assert db.table("fresh").to_arrow().to_pylist() == [{"id": 2}]
    for _ in range(2):
        with db.begin() as txn:
            txn.truncate("fresh")
        assert txn.commit_ts
    with db.begin() as txn, pytest.raises(hc.NotFoundError):
        txn.truncate("nothing")
    with db.begin(at=db.visible_ts) as past, pytest.raises(hc.UsageError):
        past.truncate("t")


def test_it_survives_reopening(tmp_path: Any) -> None:
    with hc.open(tmp_path / "db", options=moving.TINY) as db:
        db.create_table("t", {"id": int, "n": int}, primary_key="id")
        with db.begin() as txn:
            txn.insert("t", rows(range(40)))
        with db.begin() as txn:
            txn.insert("t", {"id": 100})
        with db.begin() as txn:
            txn.truncate("t")
            txn.insert("t", rows(range(10, 50), 1))
        follower = hc.open(tmp_path / "db", read_only=True, options=moving.TINY)
        assert follower.table("t").count() == 40
        follower.close()
    with hc.open(tmp_path / "db", options=moving.TINY) as db:
        assert db.table("t").count() == 40
        assert db.table("t").count(at=txn.commit_ts - 1) == 41
        assert not db.check()


def test_a_compaction_beside_it_loses(db: Any) -> None:
    """The rewrite was planned on objects that have ended when it wants to commit."""
    with db.begin() as txn:
        txn.insert("t", rows(range(200, 240)))
    with db.begin() as txn:
        txn.delete("t", where="id >= 200 and id < 230")
    txn = db.begin()
    txn.truncate("t")
    worker = Thread(target=db.compact, args=("t",))
    worker.start()
    txn.commit()
    worker.join()
    assert db.table("t").count() == 0


def test_beside_busy_writers_it_still_commits(db: Any) -> None:
    """The writer has an end: with pages of 4 rows and no mover, whatever looks at each page may
    wait for the interpreter at each page, and a writer without end could outgrow it for ever."""
    stop = Event()

    def write() -> None:
        for number in range(10_000, 12_000):
            with db.begin() as txn:
                txn.insert("t", {"id": number})
            if number % 8 == 0 and stop.wait(0.001):
                return

    writer = Thread(target=write)
    writer.start()
    try:
        for _ in range(20):
            with db.begin() as txn:
                txn.truncate("t")
            with db.begin(at=txn.commit_ts) as at:
                assert ids_of(at) == []
    finally:
        stop.set()
        writer.join()


@pytest.mark.parametrize("mine", [1, 9, 20], ids=["one row", "Arrow", "objects"])
@pytest.mark.parametrize("theirs", [1, 9, 20], ids=["one row", "Arrow", "objects"])
def test_a_key_that_came_with_it_cannot_be_inserted_again(db: Any, mine: int, theirs: int) -> None:
    other = db.begin()
    other.insert("t", rows(range(200, 200 + mine)))
    with db.begin() as txn:
        txn.truncate("t")
        txn.insert("t", rows(range(200, 200 + theirs)))
    with pytest.raises(hc.ConflictError) as caught:
        other.commit()
    assert caught.value.winner_ts == txn.commit_ts
    assert db.table("t").count() == theirs

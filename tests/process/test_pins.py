"""A reader in another process, and an owner that moves, merges and collects under it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import halocline
from tests.process.nursery import Child, Nursery
from tests.unit.read.moving import TINY, flush, let_go, merge, move

WAYS = ("scan", "get_many", "range", "sql")
KEYS = list(range(40))


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Any]:
    """The owner, in this process: whatever no snapshot needs goes with the next GC."""
    with halocline.open(tmp_path / "db", retention=0, options=TINY) as db:
        db.create_table("t", {"id": int, "v": int}, primary_key="id")
        _churn(db, 1)
        yield db
        if "(closed)" not in repr(db):
            assert not db.check()


def _churn(db: Any, value: int) -> None:
    """Another version of every row; the objects of the one before have ended."""
    with db.begin() as txn:
        txn.upsert("t", [{"id": key, "v": value} for key in KEYS])
    move(db, "t")
    flush(db, "t")
    merge(db, "t")
    let_go(db, "t")


def _files(db: Any) -> int:
    return len(list(Path(db.path, "objects").rglob("*.parquet")))


def _pins(db: Any) -> list[str]:
    return os.listdir(Path(db.path, "pins"))


def test_a_reader_reads_the_right_rows_to_the_end(nursery: Nursery, db: Any) -> None:
    child = Child(nursery, "reader", path=db.path)
    snapshot = child.ask("hold")["value"]
    for value in range(2, 6):
        for way in WAYS:
            assert child.ask("look", way=way) == {"value": [KEYS, [1] * 40]}, way
        _churn(db, value)
        report = db.gc()
        assert report.floor == snapshot
        assert any(f"pinned by process {child.pid}" in one.reason for one in report.kept)
    for way in WAYS:
        assert child.ask("look", way=way) == {"value": [KEYS, [1] * 40]}, way
    kept = _files(db)
    child.ask("let_go")
    report = db.gc()
    assert report.floor == db.visible_ts
    assert report.files == kept - _files(db) > 5
    assert child.ask("hold", at=snapshot)["error"] == "SnapshotExpiredError"
    child.ask("hold")
    for way in WAYS:
        assert child.ask("look", way=way) == {"value": [KEYS, [5] * 40]}, way
    assert child.ask("check") == {"value": []}
    assert child.end() == 0
    assert _pins(db) == []


def test_a_stream_holds_its_files_when_its_transaction_is_over(nursery: Nursery, db: Any) -> None:
    child = Child(nursery, "reader", path=db.path)
    snapshot = child.ask("hold")["value"]
    child.ask("stream")
    _churn(db, 2)
    assert db.gc().floor == snapshot
    assert child.ask("look", way="stream") == {"value": [KEYS, [1] * 40]}
    child.ask("let_go")
    assert db.gc().floor == db.visible_ts
    assert child.end() == 0


def test_the_pin_of_a_killed_reader_is_gone(nursery: Nursery, db: Any) -> None:
    child = Child(nursery, "reader", path=db.path)
    snapshot = child.ask("hold")["value"]
    _churn(db, 2)
    assert db.gc().floor == snapshot
    assert len(_pins(db)) == 1
    child.kill()
    report = db.gc()
    assert report.floor == db.visible_ts
    assert report.files > 0
    assert _pins(db) == []


def test_a_child_of_the_reader_cannot_lose_its_pin(nursery: Nursery, db: Any) -> None:
    child = Child(nursery, "reader", path=db.path)
    snapshot = child.ask("hold")["value"]
    for value in (2, 3):
        child.ask("fork")
        _churn(db, value)
        assert db.gc().floor == snapshot
        assert child.ask("look", way="get_many") == {"value": [KEYS, [1] * 40]}
    assert child.end() == 0


def test_the_pin_outlives_the_owner(nursery: Nursery, db: Any) -> None:
    child = Child(nursery, "reader", path=db.path)
    snapshot = child.ask("hold")["value"]
    db.close()
    for value in (2, 3):
        with halocline.open(db.path, retention=0, options=TINY) as owner:
            _churn(owner, value)
            assert owner.gc().floor == snapshot
            assert child.ask("look", way="scan") == {"value": [KEYS, [1] * 40]}
    assert child.end() == 0


def test_readers_come_and_go_while_the_owner_collects(nursery: Nursery, db: Any) -> None:
    output, theirs = os.pipe()
    pid = nursery.fork("read_again_and_again", {"path": db.path, "rounds": 12}, [theirs])
    os.close(theirs)
    os.set_blocking(output, False)
    value = 1
    while True:
        value += 1
        _churn(db, value)
        db.gc()
        try:
            assert os.read(output, 100) == b"done\n", "the reader failed"
            break
        except BlockingIOError:
            continue
    os.close(output)
    assert nursery.wait(pid) == 0
    assert db.gc().floor == db.visible_ts
    assert _pins(db) == []

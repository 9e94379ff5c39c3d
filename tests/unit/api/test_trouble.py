"""A database in trouble says so: a log that failed, transactions that nobody ends."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

import halocline as hc
from halocline.errors import UnavailableError
from halocline.store.local import LocalFile

OPTIONS = hc.Options(background=False)


def descriptors(root: Path) -> list[str]:
    """Files of a database that this process has open."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue  # the one of the listing
    return [path for path in found if path.startswith(f"{root}/")]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
@pytest.mark.parametrize("durability", ["sync", "async"])
def test_after_the_log_has_failed_health_says_so_and_close_lets_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: Any
) -> None:
    with hc.open(tmp_path / "db", options=OPTIONS) as db:
        db.create_table("t", {"id": int}, primary_key="id")
    db = hc.open(tmp_path / "db", options=OPTIONS, durability=durability)
    assert db.health().is_well

    def fail(self: LocalFile) -> None:
        raise OSError(errno.EIO, "the disk is gone")

    def insert() -> None:
        with db.begin() as txn:
            txn.insert("t", {"id": 1})
        db.flush()  # whose job must be durable

    with monkeypatch.context() as patched:
        patched.setattr(LocalFile, "sync", fail)
        with pytest.raises(UnavailableError, match="the disk is gone"):
            insert()
    health = db.health()
    assert not health.is_well
    assert "the disk is gone" in health.troubles["log"]
    assert "trouble: log: OSError" in str(health)
    if durability == "async":
        with pytest.raises(UnavailableError, match="the disk is gone"):
            db.close()  # what was acknowledged may be lost, and nobody else says so
    db.close()
    assert descriptors(tmp_path / "db") == []
    with hc.open(tmp_path / "db", options=OPTIONS) as db:
        assert db.health().is_well
        assert db.check() == []


def test_what_an_async_commit_lost_and_nobody_knows_is_told_by_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = hc.open(
        tmp_path / "db",
        options=hc.Options(background=False, async_sync_ms=60_000),
        durability="async",
    )
    db.create_table("t", {"id": int}, primary_key="id")

    def fail(self: LocalFile) -> None:
        raise OSError(errno.EIO, "the disk is gone")

    monkeypatch.setattr(LocalFile, "sync", fail)
    with pytest.raises(UnavailableError) as caught:
        db.close()
    assert caught.value.outcome == "unknown"
    db.close()
    monkeypatch.undo()
    hc.open(tmp_path / "db").close()


@pytest.fixture
def db(tmp_path: Path) -> Any:
    with hc.open(tmp_path / "db", options=OPTIONS) as db:
        db.create_table("t", {"id": int}, primary_key="id")
        yield db
        assert db.check() == []


def put(db: hc.Database, key: int) -> None:
    with db.begin() as txn:
        txn.insert("t", {"id": key})


def test_health_names_transactions_that_nobody_ended(db: hc.Database) -> None:
    forgotten = db.begin()
    line = forgotten_line()
    assert db.health().open == (), "it sees everything, and so holds nothing back"
    put(db, 1)
    past = db.begin(at=forgotten.snapshot)
    (first, second) = db.health().open
    assert first.snapshot == second.snapshot == forgotten.snapshot
    assert f"{__file__}:{line - 1} in test_health_names" in first.where
    assert f"{__file__}:{line + 3} in test_health_names" in second.where
    assert first.age_s >= 0
    assert f"snapshot {first.snapshot}: {__file__}" in str(db.health())
    assert db.health().is_well
    past.rollback()
    forgotten.rollback()
    assert db.health().open == ()


def forgotten_line() -> int:
    """The line of the caller."""
    import sys

    return sys._getframe(1).f_lineno


def test_health_names_what_run_was_given(db: hc.Database) -> None:
    found: list[Any] = []

    def job(txn: hc.Transaction) -> None:
        put(db, 2)
        found.extend(db.health().open)

    db.run(job)
    assert len(found) == 1
    assert "<locals>.job" in found[0].where


def test_streams_and_other_processes_are_named_too(db: hc.Database) -> None:
    put(db, 1)
    stream = db.sql("select * from t", stream=True)
    put(db, 2)
    assert "stream" in db.health().open[0].where
    stream.close()
    del stream
    with hc.open(db.path, options=OPTIONS) as node:
        mine = node.begin()
        assert mine.get("t", 1) is not None
        put(db, 3)
        assert node.role == "node"
        node.tables()
        (one,) = node.health().open
        assert __file__ in one.where
        mine.rollback()

"""Several processes and one directory: one writer, many readers, and what a fork inherits."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import halocline
from halocline import NotFoundError, UnavailableError, UsageError
from tests.process.children import SMALL, here
from tests.process.nursery import Child, Nursery


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "db"


@pytest.fixture
def owner(nursery: Nursery, path: Path) -> Iterator[Child]:
    """A process that has the database open for writing; its table `t` is empty."""
    child = Child(nursery, "owner", path=str(path))
    assert child.said == {"open": True}
    child.ask("create")
    yield child
    assert child.ask("check") == {"value": []}
    assert child.end() == 0


def _contents(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


def _keys(db: Any) -> list[int]:
    with db.begin() as txn:
        return txn.range("t").column("id").to_pylist()  # type: ignore[no-any-return]


# -- one writer ----------------------------------------------------------------------------------


def test_a_second_writer_is_told_who_the_first_is(nursery: Nursery, path: Path) -> None:
    owner = Child(nursery, "owner", path=str(path), serve=False)
    owner.ask("create")
    owner.ask("insert", first=1)
    for _ in range(3):
        with pytest.raises(UnavailableError) as refused:
            halocline.open(path)
        assert str(owner.pid) in str(refused.value)
        assert here() in str(refused.value)
        assert "read_only=True" in str(refused.value)
        assert refused.value.outcome == "not_committed"
    # Being refused has cost the owner nothing.
    assert "value" in owner.ask("insert", first=2)
    assert owner.ask("count") == {"value": 2}
    assert owner.end() == 0


def test_a_second_handle_in_one_process_works_too(path: Path) -> None:
    with halocline.open(path, options=SMALL) as db, halocline.open(path, options=SMALL) as other:
        db.create_table("t", {"id": int}, primary_key="id")
        with other.begin() as txn:
            txn.insert("t", {"id": 1})
        assert _keys(db) == _keys(other) == [1]
        assert not db.check()
        assert not other.check()
    with halocline.open(path) as db:
        assert db.tables() == ["t"]


def test_the_lock_is_free_after_close_and_after_kill(nursery: Nursery, path: Path) -> None:
    child = Child(nursery, "owner", path=str(path))
    child.ask("create")
    child.ask("insert", first=1)
    child.ask("close")
    with halocline.open(path, options=SMALL) as db:
        assert _keys(db) == [1]
    child.end()
    second = Child(nursery, "owner", path=str(path))
    second.ask("insert", first=2)
    second.kill()
    with halocline.open(path, options=SMALL) as db:
        assert _keys(db) == [1, 2]
        assert not db.check()


def test_a_failed_opening_leaves_the_lock_free(path: Path) -> None:
    halocline.open(path, options=SMALL).close()
    file = path / "log" / "00000001.log"
    whole = file.read_bytes()
    file.write_bytes(b"?" + whole[1:])
    for _ in range(2):
        with pytest.raises(halocline.CorruptionError):
            halocline.open(path)
    file.write_bytes(whole)
    halocline.open(path).close()


# -- readers beside the writer -------------------------------------------------------------------


def test_a_reader_follows_the_writer(owner: Child, path: Path) -> None:
    owner.ask("insert", first=1, count=3)
    with halocline.open(path, read_only=True, options=SMALL) as reader:
        assert _keys(reader) == [1, 2, 3]
        for key in range(4, 40):
            stamp = owner.ask("insert", first=key)["value"]
            # Acknowledged is durable, and durable is published: no waiting.
            assert _keys(reader) == list(range(1, key + 1))
            assert reader.visible_ts == stamp
        assert not reader.check()


def test_a_reader_follows_through_many_log_files(owner: Child, path: Path) -> None:
    with halocline.open(path, read_only=True, options=SMALL) as reader:
        done = 0
        for _ in range(6):
            owner.ask("insert", first=done + 1, count=60, size=500)
            done += 60
            assert _keys(reader) == list(range(1, done + 1))
        # One that falls behind by several files catches up in one step.
        owner.ask("insert", first=done + 1, count=400, size=500)
        assert len(list((path / "log").iterdir())) > 5
        assert len(_keys(reader)) == done + 400
        assert not reader.check()


def test_an_open_transaction_of_a_reader_keeps_its_snapshot(owner: Child, path: Path) -> None:
    owner.ask("insert", first=1)
    with halocline.open(path, read_only=True, options=SMALL) as reader:
        txn = reader.begin()
        assert txn.range("t").num_rows == 1
        owner.ask("insert", first=2, count=100, size=400)
        assert reader.begin().range("t").num_rows == 101
        assert txn.range("t").num_rows == 1
        txn.rollback()


@pytest.mark.parametrize("how", ["close", "kill"])
def test_a_reader_follows_through_restarts_of_the_writer(
    nursery: Nursery, path: Path, how: str
) -> None:
    child = Child(nursery, "owner", path=str(path))
    child.ask("create")
    child.ask("insert", first=1)
    with halocline.open(path, read_only=True, options=SMALL) as reader:
        for life in range(1, 6):
            assert _keys(reader) == list(range(1, life + 1))
            if how == "kill":
                child.kill()
            else:
                assert child.end() == 0
            # Nobody writes now, and the reader goes on.
            assert _keys(reader) == list(range(1, life + 1))
            child = Child(nursery, "owner", path=str(path))
            assert _keys(reader) == list(range(1, life + 1))
            child.ask("insert", first=life + 1)
        assert _keys(reader) == list(range(1, 7))
        assert not reader.check()
    child.end()


def test_a_reader_of_an_async_writer_sees_what_was_synced(nursery: Nursery, path: Path) -> None:
    child = Child(nursery, "owner", path=str(path), durability="async")
    child.ask("create")
    child.ask("insert", first=1, count=20)
    with halocline.open(path, read_only=True, options=SMALL) as reader:
        ends = time.monotonic() + 20
        while not (reader.tables() and len(_keys(reader)) == 20):
            assert time.monotonic() < ends, "the writer's 50 ms have long passed"
            time.sleep(0.005)
    child.end()


def test_a_reader_never_writes(owner: Child, path: Path) -> None:
    owner.ask("insert", first=1)
    before = _contents(path)
    with halocline.open(path, read_only=True, options=SMALL) as reader:
        assert _keys(reader) == [1]
        with reader.begin() as txn:
            with pytest.raises(UsageError, match="read-only"):
                txn.insert("t", {"id": 9, "text": ""})
            with pytest.raises(UsageError, match="read-only"):
                txn.update("t", 1, {"text": ""})
            with pytest.raises(UsageError, match="read-only"):
                txn.delete("t", 1)
            with pytest.raises(UsageError, match="read-only"):
                txn.create_table("u", {"id": int})
        with pytest.raises(halocline.HaloclineError, match="read-only"):
            reader.create_table("u", {"id": int})
        with pytest.raises(halocline.HaloclineError, match="read-only"):
            reader.gc()
        reader.check()
    assert _contents(path) == before


def test_many_readers_at_once(owner: Child, path: Path) -> None:
    owner.ask("insert", first=1, count=5)
    readers = [halocline.open(path, read_only=True, options=SMALL) for _ in range(5)]
    owner.ask("insert", first=6)
    for reader in readers:
        assert _keys(reader) == [1, 2, 3, 4, 5, 6]
        reader.close()


# -- readers without a writer --------------------------------------------------------------------


def test_read_only_on_a_closed_database(path: Path) -> None:
    with halocline.open(path, options=SMALL) as db:
        db.create_table("t", {"id": int, "text": str}, primary_key="id")
        for key in range(200):
            with db.begin() as txn:
                txn.insert("t", {"id": key, "text": "x" * 300})
    before = _contents(path)
    with halocline.open(path, read_only=True, options=SMALL) as reader:
        assert _keys(reader) == list(range(200))
        assert not reader.check()
    assert _contents(path) == before


def test_read_only_on_a_killed_writers_database_changes_nothing(
    nursery: Nursery, path: Path
) -> None:
    child = Child(nursery, "owner", path=str(path))
    child.ask("create")
    child.ask("insert", first=1, count=50)
    child.kill()
    before = _contents(path)
    with halocline.open(path, read_only=True, options=SMALL) as reader:
        assert _keys(reader) == list(range(1, 51))
        assert not reader.check()
    assert _contents(path) == before


@pytest.mark.parametrize("page", ["missing", "zeros", "torn", "stale"])
def test_read_only_does_not_depend_on_the_published_page(path: Path, page: str) -> None:
    """The page is never synced: a power loss may leave any of these, beside a log that is whole."""
    published = path / "published"
    with halocline.open(path, options=SMALL) as db:
        db.create_table("t", {"id": int, "text": str}, primary_key="id")
    stale = published.read_bytes()
    with halocline.open(path, options=SMALL) as db, db.begin() as txn:
        txn.insert("t", {"id": 1, "text": ""})
    whole = published.read_bytes()
    if page == "missing":
        published.unlink()
    else:
        left = {"zeros": bytes(len(whole)), "torn": whole[:30] + stale[30:], "stale": stale}
        published.write_bytes(left[page])
    with halocline.open(path, read_only=True, options=SMALL) as reader:
        assert reader.tables() == ["t"]
        assert _keys(reader) == [1]
    with halocline.open(path, options=SMALL) as db:
        assert _keys(db) == [1]
        assert not db.check()


def test_read_only_needs_a_database(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        halocline.open(tmp_path / "missing", read_only=True)
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFoundError):
        halocline.open(tmp_path / "empty", read_only=True)
    assert not (tmp_path / "missing").exists()
    assert not list((tmp_path / "empty").iterdir())


# -- forks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["exit at once", "exit", "close", "multiprocessing"])
def test_a_forked_child_gets_usage_errors_and_the_parent_goes_on(
    owner: Child, path: Path, how: str
) -> None:
    owner.ask("insert", first=1)
    found = owner.ask("fork", how=how)["value"]
    wrong = {use: result for use, result in found.items() if result != "UsageError"}
    assert not wrong
    # The child has ended. Its copy of the descriptor must not have taken the lock along.
    with halocline.open(path, options=SMALL) as other:
        assert other.role == "node"
    assert "value" in owner.ask("insert", first=2)
    assert owner.ask("count") == {"value": 2}
    assert owner.ask("check") == {"value": []}


def test_a_parent_that_dies_frees_the_lock_though_its_child_lives(
    nursery: Nursery, path: Path
) -> None:
    """A forked worker that goes on must not hold its parent's database."""
    child = Child(nursery, "owner", path=str(path))
    child.ask("create")
    child.ask("insert", first=1)
    survivor = child.ask("fork_and_stay")["value"]
    child.kill()
    try:
        with halocline.open(path, options=SMALL) as db:
            assert _keys(db) == [1]
    finally:
        os.kill(survivor, 9)


def test_after_a_fork_the_child_may_open_its_own(nursery: Nursery, path: Path) -> None:
    child = Child(nursery, "owner", path=str(path))
    child.ask("create")
    assert child.ask("fork_and_open", path=str(path.with_name("other")))["value"] == ["t"]
    assert child.ask("fork_and_read", path=str(path))["value"] == ["t"]
    assert "value" in child.ask("insert", first=1)
    assert child.end() == 0

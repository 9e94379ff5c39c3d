"""What happens when the owner of a database goes away: closed, killed, paused, or fenced off."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import halocline
from halocline import ConflictError, UnavailableError
from halocline.node import routes
from halocline.node.channel import Channel
from tests.process.children import SMALL
from tests.process.nursery import Child, Nursery


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "db"


@pytest.fixture
def owner(nursery: Nursery, path: Path) -> Child:
    child = Child(nursery, "owner", path=str(path))
    assert child.said == {"open": True}
    child.ask("create")
    return child


def _keys(db: Any) -> list[int]:
    with db.begin() as txn:
        return txn.range("t").column("id").to_pylist()  # type: ignore[no-any-return]


def _insert(db: Any, key: int, **arguments: Any) -> int:
    with db.begin(**arguments) as txn:
        txn.insert("t", {"id": key, "text": ""})
    return int(txn.commit_ts)


@contextmanager
def _paused(owner: Child, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The owner stands still, and the other process is impatient for just as long.

    Not before and not after: a busy machine lets an owner that is well wait for a second, too.
    """
    with owner.paused(), monkeypatch.context() as patch:
        patch.setattr(routes, "PATIENCE_S", 1)
        yield


def test_the_second_process_works(owner: Child, path: Path) -> None:
    with halocline.open(path, options=SMALL) as db:
        assert db.role == "node"
        for key in range(1, 20, 2):
            stamp = _insert(db, key)
            assert db.visible_ts >= stamp
            assert owner.ask("insert", first=key + 1)["value"] > stamp
            assert _keys(db) == list(range(1, key + 2))
        assert owner.ask("count") == {"value": 20}
        assert not db.check()
    assert owner.ask("check") == {"value": []}
    assert owner.end() == 0


@pytest.mark.parametrize("how", ["close", "kill"])
def test_the_next_operation_takes_over(
    nursery: Nursery, owner: Child, path: Path, how: str
) -> None:
    with halocline.open(path, options=SMALL) as db:
        _insert(db, 1)
        if how == "close":
            owner.ask("close")
        else:
            owner.kill()
        assert _keys(db) == [1]
        _insert(db, 2)
        assert db.role == "owner"
        # A process that comes later finds the new owner; so does one that was there before.
        third = Child(nursery, "owner", path=str(path))
        assert third.ask("role") == {"value": "node"}
        third.ask("insert", first=3)
        assert _keys(db) == [1, 2, 3]
        assert third.end() == 0
        assert not db.check()
    if how == "close":
        assert owner.end() == 0
    with halocline.open(path, options=SMALL) as db:
        assert _keys(db) == [1, 2, 3]
        assert not db.check()


def test_one_takes_over_and_the_rest_reconnect(nursery: Nursery, owner: Child, path: Path) -> None:
    others = [Child(nursery, "owner", path=str(path)) for _ in range(3)]
    for place, child in enumerate(others):
        assert child.ask("role") == {"value": "node"}
        assert "value" in child.ask("insert", first=1 + place)
    owner.kill()
    for place, child in enumerate(others):
        assert "value" in child.ask("insert", first=11 + place)
    roles = [child.ask("role")["value"] for child in others]
    assert sorted(roles) == ["node", "node", "owner"]
    for child in others:
        assert child.ask("count") == {"value": 6}
        assert child.ask("check") == {"value": []}
        assert child.end() == 0


def test_a_transaction_that_is_open_when_the_owner_goes(owner: Child, path: Path) -> None:
    with halocline.open(path, options=SMALL) as db:
        _insert(db, 1)
        reading, writing = db.begin(), db.begin()
        assert reading.get("t", 1) is not None
        writing.insert("t", {"id": 2, "text": ""})
        owner.kill()
        _insert(db, 3)
        assert db.role == "owner"
        # It sees what it saw, and commits or loses as a whole.
        assert reading.get("t", 3) is None
        assert reading.range("t").num_rows == 1
        try:
            writing.commit()
            expected = [1, 2, 3]
        except ConflictError:
            expected = [1, 3]
        assert _keys(db) == expected
        reading.rollback()
        assert not db.check()


def test_bulk_work_that_is_open_when_the_owner_goes(owner: Child, path: Path) -> None:
    """Its files belong to a job that died with the owner: it must be run again."""
    options = halocline.Options(object_rows_min=10, bulk_rows=5, page_rows=8)
    with halocline.open(path, options=options) as db:
        txn = db.begin()
        rows = [{"id": key, "text": "x"} for key in range(100)]
        txn.insert("t", pa.Table.from_pylist(rows))
        owner.kill()
        with pytest.raises(ConflictError):
            txn.commit()
        assert _keys(db) == []
        assert db.role == "owner"
        with db.begin() as txn:
            txn.insert("t", pa.Table.from_pylist(rows))
        assert len(_keys(db)) == 100
        assert not db.check()
        db.gc()


def test_a_paused_owner_keeps_the_database(
    owner: Child, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with halocline.open(path, options=SMALL) as db:
        _insert(db, 1)
        with _paused(owner, monkeypatch):
            with pytest.raises(UnavailableError, match=str(owner.pid)) as lost:
                _insert(db, 2)
            assert lost.value.outcome == "unknown", "it was sent, and may be read one day"
            # Reading needs nobody.
            assert _keys(db) == [1]
            with pytest.raises(UnavailableError, match=str(owner.pid)) as unsent:
                _insert(db, 3)
            assert unsent.value.outcome == "not_committed", "nobody was there to take it"
            with pytest.raises(UnavailableError, match=str(owner.pid)):
                halocline.open(path)
        # The same handle goes on, and what it was told is true.
        _insert(db, 4)
        assert db.role == "node"
        assert set(_keys(db)) in ({1, 4}, {1, 2, 4})
        assert not db.check()
    assert owner.ask("check") == {"value": []}
    assert owner.end() == 0


def test_a_token_tells_what_a_paused_owner_has_done(
    owner: Child, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with halocline.open(path, options=SMALL) as db:
        txn = db.begin(token="once")
        txn.insert("t", {"id": 1, "text": ""})
        with _paused(owner, monkeypatch):
            with pytest.raises(UnavailableError, match=str(owner.pid)) as lost:
                txn.commit()
            assert lost.value.outcome == "unknown"
        again = db.begin(token="once")
        if not again.already_committed:
            again.insert("t", {"id": 1, "text": ""})
        again.commit()
        assert again.commit_ts is not None
        assert _keys(db) == [1]
    assert owner.end() == 0


@pytest.mark.parametrize("token", [None, "once"])
def test_an_answer_that_is_lost(
    owner: Child, path: Path, monkeypatch: pytest.MonkeyPatch, token: str | None
) -> None:
    """The owner has committed and its answer never arrives: a serial or the token tells."""
    with halocline.open(path, options=SMALL) as db:
        _insert(db, 1)
        whole = Channel.receive
        lost: list[bytes | None] = []

        def lose(self: Channel, bytes_max: int, *spin: Any) -> bytes | None:
            body = whole(self, bytes_max, *spin)
            if threading.current_thread() is threading.main_thread() and not lost:
                lost.append(body)
                raise ConnectionResetError("cut")
            return body

        monkeypatch.setattr(Channel, "receive", lose)
        stamp = _insert(db, 2, token=token)
        assert stamp == db.visible_ts
        if token is not None:
            with db.begin(token=token) as again:
                assert again.already_committed
            assert again.commit_ts == stamp
        assert lost
        assert _keys(db) == [1, 2]
    assert owner.end() == 0


def test_an_owner_that_closes_answers_all_that_it_was_sent(path: Path) -> None:
    """No commit of another handle is lost, repeated, or left in doubt by a clean close."""
    first = halocline.open(path, options=SMALL)
    first.create_table("t", {"id": int, "text": str}, "id")
    other = halocline.open(path, options=SMALL)
    done: list[list[int]] = [[] for _ in range(3)]
    trouble: list[BaseException] = []
    closed = threading.Event()

    def work(place: int) -> None:
        key = place * 1_000_000
        while not closed.is_set() or len(done[place]) < 20:
            key += 1
            try:
                _insert(other, key)
                done[place].append(key)
            except ConflictError:
                continue
            except BaseException as error:
                trouble.append(error)
                return

    threads = [threading.Thread(target=work, args=(place,)) for place in range(3)]
    for thread in threads:
        thread.start()
    while not all(len(keys) > 10 for keys in done) and not trouble:
        time.sleep(0.001)
    first.close()
    closed.set()
    for thread in threads:
        thread.join(60)
    assert not trouble
    assert other.role == "owner"
    assert set(_keys(other)) == {key for keys in done for key in keys}
    assert not other.check()
    other.close()


def test_an_owner_that_lost_its_lock_acknowledges_nothing_more(path: Path) -> None:
    """Somebody has deleted the lock file, and a second process takes the log over."""
    stale = halocline.open(path, options=SMALL)
    stale.create_table("t", {"id": int, "text": str}, "id")
    _insert(stale, 1)
    (path / "LOCK").unlink()
    with halocline.open(path, options=SMALL) as db:
        assert db.role == "owner"
        assert _keys(db) == [1]
        for key in (2, 3):
            with pytest.raises(UnavailableError, match="taken the log over"):
                _insert(stale, key)
        _insert(db, 4)
        stale.close()  # whoever wrote has been told
        # The one that left has taken nothing along.
        with halocline.open(path, options=SMALL) as other:
            assert other.role == "node"
            assert _keys(other) == [1, 4]
        assert not db.check()
    with halocline.open(path, options=SMALL) as db:
        assert _keys(db) == [1, 4]
        assert not db.check()

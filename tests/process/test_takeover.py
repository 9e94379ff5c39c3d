"""What happens when the owner of a database goes away: closed, killed, paused, or fenced off."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import halocline
from halocline import ConflictError, UnavailableError
from halocline.node import link
from halocline.node.channel import Channel
from tests.process.children import ACCOUNTS, BALANCE, SMALL, create_bank
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
    monkeypatch.setattr(link, "PATIENCE_S", 1)
    with halocline.open(path, options=SMALL) as db:
        _insert(db, 1)
        os.kill(owner.pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            with pytest.raises(UnavailableError, match=str(owner.pid)) as lost:
                _insert(db, 2)
            assert lost.value.outcome == "unknown"
            assert time.monotonic() - began < 20
            # Reading needs nobody.
            assert _keys(db) == [1]
            with pytest.raises(UnavailableError, match=str(owner.pid)):
                halocline.open(path)
        finally:
            os.kill(owner.pid, signal.SIGCONT)
        _insert(db, 3)
        assert db.role == "node"
        assert set(_keys(db)) >= {1, 3}
        assert not db.check()
    assert owner.ask("check") == {"value": []}
    assert owner.end() == 0


@pytest.mark.parametrize("token", [None, "once"])
def test_an_answer_that_is_lost(
    owner: Child, path: Path, monkeypatch: pytest.MonkeyPatch, token: str | None
) -> None:
    """The owner has committed and its answer never arrives: the token tells, nothing else can."""
    with halocline.open(path, options=SMALL) as db:
        _insert(db, 1)
        whole = Channel.receive
        lost: list[bytes | None] = []

        def lose(self: Channel, bytes_max: int) -> bytes | None:
            body = whole(self, bytes_max)
            if threading.current_thread() is threading.main_thread() and not lost:
                lost.append(body)
                raise ConnectionResetError("cut")
            return body

        monkeypatch.setattr(Channel, "receive", lose)
        if token is None:
            with pytest.raises(UnavailableError) as error:
                _insert(db, 2)
            assert error.value.outcome == "unknown"
        else:
            stamp = _insert(db, 2, token=token)
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
            with pytest.raises(UnavailableError):
                _insert(stale, key)
        _insert(db, 4)
        with pytest.raises(UnavailableError, match="taken the log over"):
            stale.close()
        # The one that left has taken nothing along.
        with halocline.open(path, options=SMALL) as other:
            assert other.role == "node"
            assert _keys(other) == [1, 4]
        assert not db.check()
    with halocline.open(path, options=SMALL) as db:
        assert _keys(db) == [1, 4]
        assert not db.check()


# -- the bank ------------------------------------------------------------------------------------


class Bank:
    """Processes that transfer money, and what they have said."""

    def __init__(self, nursery: Nursery, path: Path, clients: int) -> None:
        self._nursery = nursery
        self._path = str(path)
        self._first = 0
        self.acked: set[int] = set()
        self.lost: set[int] = set()
        self.roles: set[bytes] = set()
        self._pipes: dict[int, Any] = {}
        for _ in range(clients):
            self.start()

    def start(self) -> None:
        self._first += 1_000_000
        output, theirs = os.pipe()
        arguments = {"path": self._path, "first": self._first}
        pid = self._nursery.fork("move_money_together", arguments, [theirs])
        os.close(theirs)
        os.set_blocking(output, False)
        self._pipes[pid] = (output, bytearray())

    def kill(self, pid: int) -> None:
        self._nursery.kill(pid)
        self.listen(pid)
        os.close(self._pipes.pop(pid)[0])

    @property
    def pids(self) -> list[int]:
        return list(self._pipes)

    def listen(self, pid: int) -> None:
        """Everything it has said so far; a line that was cut off was never said."""
        output, buffer = self._pipes[pid]
        while True:
            try:
                data = os.read(output, 1 << 16)
            except BlockingIOError:
                break
            if not data:
                break
            buffer += data
        *lines, rest = bytes(buffer).split(b"\n")
        buffer[:] = rest
        for line in lines:
            word, *values = line.split()
            if word == b"ack":
                self.acked.add(int(values[0]))
                self.roles.add(values[2])
            elif word == b"lost":
                self.lost.add(int(values[0]))


@pytest.mark.parametrize(
    ("clients", "kills"),
    [(4, 6), pytest.param(8, 60, marks=pytest.mark.sim)],
    ids=["short", "long"],
)
def test_the_bank_survives_its_owners(
    nursery: Nursery, path: Path, clients: int, kills: int
) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    with halocline.open(path, options=SMALL) as db:
        create_bank(db)
    bank = Bank(nursery, path, clients)
    reader = halocline.open(path, read_only=True, options=SMALL)
    slowest = 0.0
    for _ in range(kills):
        slowest = max(slowest, _until_acks(bank, 25))
        _check_total(reader)
        bank.kill(chance.choice(bank.pids))
        bank.start()
    slowest = max(slowest, _until_acks(bank, 25))
    for pid in bank.pids:
        bank.kill(pid)
    _check_total(reader)
    reader.close()
    print(f"{len(bank.acked)} acknowledged, {len(bank.lost)} lost, slowest round {slowest:.2f} s")
    assert bank.roles == {b"owner", b"node"}
    with halocline.open(path, options=SMALL) as db:
        _check_books(db, bank)
        assert not db.check()


def _until_acks(bank: Bank, wanted: int) -> float:
    """Seconds until so many more transfers were acknowledged, whoever is gone."""
    began = time.monotonic()
    goal = len(bank.acked) + wanted
    while len(bank.acked) < goal:
        assert time.monotonic() - began < 60, "nobody takes over"
        time.sleep(0.002)
        for pid in bank.pids:
            bank.listen(pid)
    return time.monotonic() - began


def _check_total(db: Any) -> None:
    with db.begin() as txn:
        assert sum(txn.scan("accounts").column("balance").to_pylist()) == ACCOUNTS * BALANCE


def _check_books(db: Any, bank: Bank) -> None:
    """Balances are what the transfers say; every acknowledged transfer is among them."""
    _check_total(db)
    transfers = db.table("transfers").to_arrow().to_pylist()
    found = {row["id"] for row in transfers}
    assert bank.acked <= found
    balances = dict.fromkeys(range(ACCOUNTS), BALANCE)
    for row in transfers:
        balances[row["source"]] -= 1
        balances[row["target"]] += 1
    accounts = db.table("accounts").to_arrow().to_pylist()
    assert {row["id"]: row["balance"] for row in accounts} == balances

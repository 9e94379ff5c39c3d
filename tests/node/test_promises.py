"""Processes far away that were promised quiet miss nothing that anybody was told is committed.

    writer, far away --commits in a streak--> promises
    others: the owner, a node nearby, another one far away --commit--> wait for the end of it
    watcher --what the owner shows, then a begin far away--> never older

Promises are given after every second commit here, and without a rest: as often as can be.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import halocline as hc
from halocline.log import promise
from halocline.node import Server, trust, wire
from halocline.node.answers import Answers
from tests.concurrency.registers import check_history
from tests.node.test_recorded_histories import TINY, Spread
from tests.process.faraway import skip_on_slow_disks

OPTIONS = hc.Options(background=False, page_rows=64)
WAIT_S = 60.0


@pytest.fixture
def owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[hc.Database]:
    skip_on_slow_disks(tmp_path)
    for name, value in (("STREAK", 2), ("REST_S", 0.0), ("WORTH_S", 0.0)):
        monkeypatch.setattr(promise, name, value)
    with hc.open(tmp_path / "db", options=OPTIONS) as db:
        db.create_table("t", {"id": int, "v": int}, "id")
        yield db
        assert not db.check()


@pytest.fixture
def server(owner: hc.Database) -> Server:
    return owner.serve()


@pytest.fixture
def far(server: Server) -> Iterator[hc.Database]:
    with hc.connect(server.uri, server.token, options=OPTIONS) as db:
        yield db


def _insert(db: hc.Database, key: int, **arguments: Any) -> int:
    with db.begin(**arguments) as txn:
        txn.insert("t", {"id": key, "v": 0})
    assert txn.commit_ts is not None
    return txn.commit_ts


def _sees(db: hc.Database, key: int) -> bool:
    with db.begin() as txn:
        return txn.get("t", key) is not None


def _spared(db: hc.Database) -> int:
    return int(db._files.spared)  # type: ignore[attr-defined]


def _given(db: hc.Database) -> int:
    assert db._log.promise is not None
    return db._log.promise.given


# -- one after the other -------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["owner", "node", "far"])
def test_whatever_others_were_told_is_seen(
    owner: hc.Database, server: Server, far: hc.Database, who: str, sim: bool
) -> None:
    rounds = 3000 if sim else 400
    with ExitStack() as stack:
        other = owner
        if who == "node":
            other = stack.enter_context(hc.open(owner.path, options=OPTIONS))
            assert other.role == "node"
        elif who == "far":
            other = stack.enter_context(hc.connect(server.uri, server.token, options=OPTIONS))
        for key in range(0, 10 * rounds, 10):
            for mine in range(key, key + 3):
                _insert(far, mine)
                assert _sees(far, mine)
            assert _sees(other, key + 2)
            theirs = _insert(other, key + 5)
            with far.begin() as txn:
                assert txn.snapshot >= theirs
                assert txn.get("t", key + 5) is not None
    assert _given(owner) > rounds // 100
    assert _spared(far) > rounds // 100


def test_a_definition_of_others_is_seen(owner: hc.Database, far: hc.Database) -> None:
    for number in range(20):
        for key in range(3):
            _insert(far, 10 * number + key)
        owner.create_table(f"u{number}", {"id": int}, "id")
        with far.begin() as txn:
            txn.insert(f"u{number}", {"id": 1})
        far.drop_table(f"u{number}")
        assert owner.tables() == ["t"]


def test_a_conflict_is_run_again_with_what_has_won(owner: hc.Database, far: hc.Database) -> None:
    _insert(far, 0)

    def count(db: hc.Database) -> None:
        db.run(lambda txn: txn.update("t", 0, {"v": txn.get("t", 0)["v"] + 1}))

    for _ in range(50):
        count(far)
        with far.begin() as txn:  # begun under a promise, and lost
            before = txn.get("t", 0)["v"]
            count(owner)
            txn.update("t", 0, {"v": before + 1})
            with pytest.raises(hc.ConflictError):
                txn.commit()
        count(far)
    assert far.begin().get("t", 0) == {"id": 0, "v": 150}


def test_a_token_of_others_is_known_at_once(owner: hc.Database, far: hc.Database) -> None:
    for key in range(0, 200, 10):
        for mine in range(key, key + 3):
            _insert(far, mine)
        stamp = _insert(owner, key + 5, token=f"t{key}")
        with far.begin(token=f"t{key}") as txn:
            assert txn.commit_ts == stamp or txn.get("t", key + 5) is not None


# -- at the same time ----------------------------------------------------------------------------


def _together(*works: Callable[[], None]) -> None:
    failed: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    if failed:
        raise failed[0]


def test_no_snapshot_is_older_than_what_the_owner_shows(
    owner: hc.Database, server: Server, far: hc.Database, sim: bool
) -> None:
    """Of several threads of one process, whichever of them was promised something."""
    until = time.monotonic() + (30 if sim else 2)
    seed = random.randrange(1 << 30)
    print("seed", seed)

    def writes(db: hc.Database, first: int, pause_s: float) -> Callable[[], None]:
        chance = random.Random(seed + first)

        def work() -> None:
            key = first
            while time.monotonic() < until:
                _insert(db, key)
                key += 1
                time.sleep(chance.random() * pause_s)

        return work

    looks = [0]

    def watch() -> None:
        chance = random.Random(seed)
        while time.monotonic() < until:
            shown = owner._log.visible_ts
            with far.begin() as txn:
                assert txn.snapshot >= shown
            looks[0] += 1
            time.sleep(chance.random() * 0.002)

    with hc.connect(server.uri, server.token, options=OPTIONS) as other:
        _together(
            writes(far, 0, 0.0005),
            writes(far, 10**6, 0.02),
            writes(owner, 2 * 10**6, 0.02),
            writes(other, 3 * 10**6, 0.02),
            watch,
            watch,
        )
    assert _given(owner)
    assert _spared(far)
    assert looks[0] > 10


def test_histories_with_promises_have_no_anomaly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No snapshot is older than a commit that anybody has been told of before."""
    skip_on_slow_disks(tmp_path)
    for name, value in (("STREAK", 1), ("REST_S", 0.0), ("WORTH_S", 0.0)):
        monkeypatch.setattr(promise, name, value)
    seed = random.randrange(1 << 30)
    print("seed", seed)
    with ExitStack() as stack:
        owner = stack.enter_context(hc.open(tmp_path / "db", options=TINY))
        server = owner.serve()
        far = [
            stack.enter_context(hc.connect(server.uri, server.token, options=TINY))
            for _ in range(2)
        ]
        near = stack.enter_context(hc.open(tmp_path / "db", options=TINY))
        handles: list[Any] = [far[0], far[1], far[0], near, owner]
        recorder = Spread(owner, handles, serializable_percent=20)
        recorder.run(threads=5, transactions=25, seed=seed)
        line = check_history(recorder.records)
        assert line.commits
        for db in (owner, near, *far):
            with db.begin() as txn:
                rows = txn.scan("register").to_pylist()
                assert {row["key"]: row["value"] for row in rows} == line.state(txn.snapshot)
            assert not db.check()
        print("promises", _given(owner))  # none, perhaps, where all cores are busy


# -- when something goes wrong -------------------------------------------------------------------


def test_a_commit_counts_whatever_becomes_of_the_look(
    owner: hc.Database, server: Server, far: hc.Database
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("a bug of ours")

    for key in range(3):
        _insert(far, key)
    txn = far.begin()  # the promise may be over by now: then this is a look, too
    txn.insert("t", {"id": 3, "v": 0})
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(server._answers._methods, wire.Look, broken)
        txn.commit()
    assert txn.commit_ts is not None
    assert _sees(far, 3)


def test_what_is_long_is_committed_without_a_look(
    owner: hc.Database, far: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[type] = []
    real = Answers.answer

    def answer(self: Answers, session: Any, request: Any) -> Any:
        seen.append(type(request))
        return real(self, session, request)

    monkeypatch.setattr(Answers, "answer", answer)
    owner.create_table("long", {"id": int, "text": str}, "id")
    for key in range(5):
        with far.begin() as txn:
            txn.insert("long", {"id": key, "text": "x" * 100_000})
    assert wire.Commit in seen
    assert far.table("long").count() == 5


def test_a_promise_may_be_asked_for_in_other_ways_but_is_not_given(
    owner: hc.Database, far: hc.Database
) -> None:
    """In a call of its own: nobody could tell who it was given to."""
    assert far._afar is not None
    for _ in range(20):
        with far.begin() as txn:
            txn.insert("t", {"id": owner.visible_ts * 100, "v": 0})
            far._afar._exchanges._without_until = time.monotonic() + WAIT_S
            far._afar._exchanges.drop_idle()
    assert not _given(owner)
    assert far.table("t").count() == 20


def test_on_a_long_line_none_is_asked_for(
    owner: hc.Database, far: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "TRUSTED", 0.0)  # over when it comes
    monkeypatch.setattr(trust, "LATE_S", WAIT_S)
    assert far._afar is not None
    mine = far._afar.trust
    assert mine is not None
    key = 0
    while mine.late < trust.LATE_MAX:
        _insert(far, key)
        key += 1
        assert key < 10_000
    given = _given(owner)
    for more in range(10):
        _insert(far, key + more)
    assert _given(owner) == given
    assert not _spared(far)
    monkeypatch.setattr(trust, "LATE_S", 0.0)
    _insert(far, key + 10)
    _insert(far, key + 11)
    assert _sees(far, key + 11)

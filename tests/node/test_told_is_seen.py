"""A snapshot is never older than what anybody was told is committed, wherever it begins.

writers: the owner, a node nearby, others far away --commit--> told
watcher --what the owner shows, then a begin far away--> never older
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import halocline as hc
from halocline.node import Server
from tests.concurrency.registers import check_history
from tests.node.handles import far as connect
from tests.node.handles import put
from tests.node.test_recorded_histories import TINY, Spread
from tests.roles import owner_of

OPTIONS = hc.Options(background=False, page_rows=64)
WAIT_S = 60.0
Certificate = tuple[str, str]


def _sees(db: hc.Database, key: int) -> bool:
    with db.begin() as txn:
        return txn.get("t", key) is not None


# -- one after the other -------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["owner", "node", "far"])
def test_whatever_others_were_told_is_seen(
    owner: hc.Database,
    server: Server,
    certificate: Certificate,
    far: hc.Database,
    who: str,
    sim: bool,
) -> None:
    rounds = 3000 if sim else 400
    with ExitStack() as stack:
        other = owner
        if who == "node":
            other = stack.enter_context(hc.open(owner.path, options=OPTIONS))
            assert other.role == "node"
        elif who == "far":
            other = stack.enter_context(connect(server, certificate, options=OPTIONS))
        for key in range(0, 10 * rounds, 10):
            for mine in range(key, key + 3):
                put(far, mine)
                assert _sees(far, mine)
            assert _sees(other, key + 2)
            theirs = put(other, key + 5)
            with far.begin() as txn:
                assert txn.snapshot >= theirs
                assert txn.get("t", key + 5) is not None


def test_a_definition_of_others_is_seen(owner: hc.Database, far: hc.Database) -> None:
    for number in range(20):
        for key in range(3):
            put(far, 10 * number + key)
        owner.create_table(f"u{number}", {"id": int}, "id")
        with far.begin() as txn:
            txn.insert(f"u{number}", {"id": 1})
        far.drop_table(f"u{number}")
        assert owner.tables() == ["t"]


def test_a_conflict_is_run_again_with_what_has_won(owner: hc.Database, far: hc.Database) -> None:
    put(far, 0)

    def count(db: hc.Database) -> None:
        db.run(lambda txn: txn.update("t", 0, {"v": txn.get("t", 0)["v"] + 1}))

    for _ in range(50):
        count(far)
        with far.begin() as txn:
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
            put(far, mine)
        stamp = put(owner, key + 5, token=f"t{key}")
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
    owner: hc.Database, server: Server, certificate: Certificate, far: hc.Database, sim: bool
) -> None:
    """Whichever of several threads of one process begins."""
    until = time.monotonic() + (30 if sim else 2)
    seed = random.randrange(1 << 30)
    print("seed", seed)

    def writes(db: hc.Database, first: int, pause_s: float) -> Callable[[], None]:
        chance = random.Random(seed + first)

        def work() -> None:
            key = first
            while time.monotonic() < until:
                put(db, key)
                key += 1
                time.sleep(chance.random() * pause_s)

        return work

    looks = [0]

    def watch() -> None:
        chance = random.Random(seed)
        while time.monotonic() < until:
            shown = owner_of(owner).log.visible_ts
            with far.begin() as txn:
                assert txn.snapshot >= shown
            looks[0] += 1
            time.sleep(chance.random() * 0.002)

    with connect(server, certificate, options=OPTIONS) as other:
        _together(
            writes(far, 0, 0.0005),
            writes(far, 10**6, 0.02),
            writes(owner, 2 * 10**6, 0.02),
            writes(other, 3 * 10**6, 0.02),
            watch,
            watch,
        )
    assert looks[0] > 10


def test_histories_of_handles_near_and_far_have_no_anomaly(
    tmp_path: Path, certificate: Certificate
) -> None:
    """No snapshot is older than a commit that anybody has been told of before."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    with ExitStack() as stack:
        owner = stack.enter_context(hc.open(tmp_path / "db", options=TINY))
        server = owner.serve(tls=certificate)
        far = [stack.enter_context(connect(server, certificate, options=TINY)) for _ in range(2)]
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

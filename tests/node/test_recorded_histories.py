"""Histories of several handles, with connections that break, checked as those of one process are.

    threads --each through a handle of its own: the owner's, or a node's--> records --> check

The check is that of tests/concurrency/registers.py: every read is that of the snapshot, of two
writers of one register one loses, and no snapshot is older than a commit that anybody has been told
of before. Connections are cut at random moments; tokens make sure that every commit is known to
have happened, or not.
"""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import halocline as hc
from tests.concurrency.registers import Recorder, check_history
from tests.roles import owner_of

TINY = hc.Options(page_rows=8, bulk_rows=1, log_file_bytes=1 << 16)


class Tokened:
    """A handle whose transactions all have tokens."""

    def __init__(self, db: hc.Database, numbers: count[int]) -> None:
        self._db = db
        self._numbers = numbers

    def begin(self, **arguments: Any) -> hc.Transaction:
        return self._db.begin(token=f"t{next(self._numbers)}", **arguments)


class Spread(Recorder):
    """Each thread works through a handle of its own, in turn."""

    def __init__(self, owner: hc.Database, handles: list[Any], *, serializable_percent: int):
        super().__init__(owner, serializable_percent=serializable_percent)
        self._handles = handles
        self._mine = threading.local()
        self._turns = count()

    def _worker(self, random: random.Random, transactions: int) -> Callable[[], None]:
        work = super()._worker(random, transactions)
        handle = self._handles[next(self._turns) % len(self._handles)]

        def run() -> None:
            self._mine.db = handle
            work()

        return run

    @property
    def db(self) -> Any:
        return getattr(getattr(self, "_mine", None), "db", self._owner)

    @db.setter
    def db(self, db: hc.Database) -> None:
        self._owner = db


# A serializable transaction has a part at the owner, which ends with the connection: its outcome is
# then unknown, and has no place in a history that is to be checked.
@pytest.mark.parametrize(
    ("percent", "cut"), [(0, False), (50, False), (0, True)], ids=["snapshot", "mixed", "cut"]
)
def test_histories_of_several_handles_have_no_anomaly(
    tmp_path: Path, percent: int, cut: bool
) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    owner = hc.open(tmp_path / "db", options=TINY)
    nodes = [hc.open(tmp_path / "db", options=TINY) for _ in range(3)]
    tokens = count()
    handles: list[Any] = [Tokened(db, tokens) for db in (owner, *nodes)]
    recorder = Spread(owner, handles, serializable_percent=percent)
    done = threading.Event()
    cutter = threading.Thread(target=_cut, args=(owner, random.Random(seed), done))
    if cut:
        cutter.start()
    try:
        recorder.run(threads=8, transactions=25, seed=seed)
    finally:
        done.set()
        if cut:
            cutter.join()
    line = check_history(recorder.records)
    assert line.commits
    for db in (owner, *nodes):
        with db.begin() as txn:
            rows = txn.scan("register").to_pylist()
            assert {row["key"]: row["value"] for row in rows} == line.state(db.visible_ts)
        assert not db.check()
    for db in (*nodes, owner):
        db.close()


def _cut(owner: hc.Database, chance: random.Random, done: threading.Event) -> None:
    """Now and then a connection breaks, whatever it is used for."""
    service = owner_of(owner).service
    assert service is not None
    while not done.wait(chance.random() * 0.02):
        channels = list(service._loop._callers.values())
        if channels:
            with suppress(OSError):
                chance.choice(channels).channel.sock.shutdown(socket.SHUT_RDWR)

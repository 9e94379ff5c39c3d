"""Readers without a lock beside a writer: every answer belongs to some single moment."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from halocline.catalog import Catalog
from halocline.errors import AlreadyExistsError, ConflictError
from tests.unit.catalog.driver import make


@pytest.fixture(autouse=True)
def eager_switching() -> Iterator[None]:
    """Switch threads far more often than usual, so that a race shows within a second."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


class Reader(threading.Thread):
    """Asks again and again until told to stop; keeps the first thing that goes wrong."""

    def __init__(self, stop: threading.Event, ask: Callable[[], None]) -> None:
        super().__init__()
        self.stop, self.ask, self.rounds = stop, ask, 0
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            while not self.stop.is_set() or not self.rounds:
                self.ask()
                self.rounds += 1
        except BaseException as error:  # Handed to the test below.
            self.error = error


def test_c12_a_reader_never_sees_a_replaced_table_missing_or_twice() -> None:
    catalog = Catalog()
    first = catalog.begin(0)
    make(first, "m")
    first.commit(1)
    visible = [1]

    def ask() -> None:
        ts = visible[0]
        for moment in (ts, max(1, ts - 1)):
            entry = catalog.table("m", moment)
            assert entry is not None
            assert entry.created_at <= moment < entry.dropped_at
            assert [table.id for table in catalog.tables(moment)] == [entry.id]
            assert catalog.table_by_id(entry.id) is not None

    stop = threading.Event()
    readers = [Reader(stop, ask) for _ in range(3)]
    for commit_ts in range(2, 300):
        sub = catalog.begin(commit_ts - 1)
        sub.drop_table("m")
        make(sub, "m")
        sub.prepare()
        sub.commit(commit_ts)
        visible[0] = commit_ts
    stop.set()
    for reader in readers:
        reader.join()
    assert [reader.error for reader in readers] == [None] * 3
    assert all(reader.rounds for reader in readers)


def test_two_threads_creating_one_name_have_one_winner() -> None:
    catalog = Catalog()
    commit_lock = threading.Lock()
    wins: list[tuple[int, str]] = []
    now = 0
    rounds = 100
    barrier = threading.Barrier(2)

    def create(round_: int) -> None:
        nonlocal now
        barrier.wait()
        sub = catalog.begin(now)
        try:
            make(sub, f"m{round_}")
            with commit_lock:
                sub.prepare()
                now += 1
                sub.commit(now)
            wins.append((round_, "won"))
        except (ConflictError, AlreadyExistsError):
            sub.rollback()

    def run() -> None:
        for round_ in range(rounds):
            create(round_)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(round_ for round_, _ in wins) == list(range(rounds))
    assert len(catalog.tables(now)) == rounds

"""Promises: to whom they are given, and that everybody else waits for their end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import halocline as hc
from halocline.clock import ManualClock
from halocline.ids import NEVER
from halocline.log.promise import PROMISE_S, REST_S, STREAK, Promise
from halocline.node.afar import AfarFiles, Glance
from halocline.node.promising import promise_of
from halocline.node.wire import Look, Looked


class Rig:
    """A promise on a clock that is turned by hand. Each name is a thread of its own."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.lock = threading.Lock()
        self.settled = True
        self.promise = Promise(self.clock, self.lock, lambda: self.settled)

    def log(self, times: int = 1) -> float:
        """Seconds that it took."""
        before = self.clock.monotonic()
        for _ in range(times):
            with self.lock:
                self.promise.keep()
        return self.clock.monotonic() - before

    def commit(self, took: float = 0.0) -> bool:
        """One entry, in answer to a request; was anything promised?"""
        since, entries = self.clock.monotonic(), self.promise.entries
        self.log()
        self.clock.advance(took)
        return self.promise.give(since, entries)

    def earn(self) -> None:
        self.log(STREAK - 1)
        assert self.commit()


@pytest.fixture
def rig() -> Rig:
    return Rig()


def elsewhere(work: Callable[[], Any]) -> Any:
    """What it returns in another thread."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def test_only_a_streak_earns_a_promise(rig: Rig) -> None:
    assert [rig.commit() for _ in range(STREAK + 2)] == [False] * (STREAK - 1) + [True] * 3
    rig.clock.advance(1)
    elsewhere(rig.log)
    assert [rig.commit() for _ in range(STREAK)] == [False] * (STREAK - 1) + [True]


def test_others_wait_until_it_ends_and_the_holder_does_not(rig: Rig) -> None:
    rig.earn()
    rig.clock.advance(PROMISE_S / 4)
    assert rig.log() == 0
    assert elsewhere(rig.log) == pytest.approx(PROMISE_S * 3 / 4, abs=1e-5)
    assert elsewhere(rig.log) == 0


def test_who_comes_later_does_not_wait(rig: Rig) -> None:
    rig.earn()
    rig.clock.advance(PROMISE_S + 1e-5)
    assert elsewhere(rig.log) == 0
    rig.log(STREAK)
    assert rig.commit()  # nobody had to wait, so there is no rest


def test_after_a_wait_there_is_a_rest(rig: Rig) -> None:
    rig.earn()
    assert elsewhere(rig.log) > 0
    rig.log(STREAK)
    assert not rig.commit()
    rig.clock.advance(REST_S + 1e-5)
    assert rig.commit()


def test_it_counts_from_when_the_request_came(rig: Rig) -> None:
    rig.log(STREAK)
    assert rig.commit(took=PROMISE_S / 2 - 1e-4)
    assert elsewhere(rig.log) == pytest.approx(PROMISE_S / 2 + 1e-4, abs=1e-5)


def test_none_is_given_when_a_slow_disk_has_eaten_it_up(rig: Rig) -> None:
    rig.log(STREAK)
    assert not rig.commit(took=PROMISE_S / 2 + 1e-4)


def test_none_is_given_while_anything_is_in_flight(rig: Rig) -> None:
    rig.log(STREAK)
    rig.settled = False
    assert not rig.commit()
    rig.settled = True
    assert rig.commit()


def test_none_is_given_for_a_request_that_logged_nothing(rig: Rig) -> None:
    """The claim was not looked at since the request came: the next owner might not wait for it."""
    rig.log(STREAK)
    assert not rig.promise.give(rig.clock.monotonic(), rig.promise.entries)


def test_a_thread_that_speaks_for_somebody_else_waits_too(rig: Rig) -> None:
    rig.earn()
    rig.promise.leave()
    assert rig.log() == pytest.approx(PROMISE_S, abs=1e-5)
    assert not rig.commit()


def test_an_interrupted_wait_breaks_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.earn()

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(rig.clock, "sleep", interrupted)
        elsewhere_raises(rig.log)
    assert elsewhere(rig.log) > 0


def elsewhere_raises(work: Callable[[], Any]) -> None:
    def quiet() -> None:
        with pytest.raises(KeyboardInterrupt):
            work()

    elsewhere(quiet)


# -- in a database -------------------------------------------------------------------------------


def test_every_kind_of_entry_waits(tmp_path: Path) -> None:
    """Commits short and long, jobs, snapshots, floors, checkpoints, the last entry of an epoch."""
    db = hc.open(tmp_path / "db", options=hc.Options(background=False), retention="0s")
    db.create_table("t", {"id": int}, "id")
    clock = ManualClock()
    promise = promise_of(db._core.writing, clock)
    assert promise_of(db._core.writing, clock) is promise

    def insert(*keys: int) -> None:
        with db.begin() as txn:
            txn.insert("t", [{"id": key} for key in keys])

    kinds: list[Callable[[], Any]] = [
        lambda: insert(1),
        lambda: insert(2, 3),
        lambda: db.create_table("u", {"id": int}, "id"),
        lambda: db.drop_table("u"),
        lambda: db.snapshot("s"),
        lambda: db.drop_snapshot("s"),
        lambda: db.flush("t"),
        lambda: insert(4) or db.flush("t"),
        lambda: db.compact("t"),
        db.checkpoint,
        db.gc,
        db.close,
    ]
    for number, work in enumerate(kinds):
        promise._holder, promise._until = NEVER, clock.monotonic() + PROMISE_S
        until, entries = promise._until, promise.entries
        work()
        assert promise.entries == entries or clock.monotonic() > until - 1e-5, number
        assert promise.entries > entries or number in (6, 8, 10), number


def test_all_that_is_logged_must_be_published(tmp_path: Path) -> None:
    with hc.open(tmp_path / "db", options=hc.Options(background=False)) as db:
        db.create_table("t", {"id": int}, "id")
        core = db._core
        promise = promise_of(core.writing, ManualClock())
        assert promise._settled()
        with core.writing.lock:
            order = core.writing.append_system(5, b"")
            assert not promise._settled()
        with suppress(hc.HaloclineError):
            core.writing.log.wait(order)
        assert promise._settled()


def test_a_new_owner_commits_nothing_before_old_promises_are_over(tmp_path: Path) -> None:
    from halocline.database import opening

    claimed: list[float] = []
    real = opening.claim

    def claim(files: Any) -> None:
        real(files)
        claimed.append(time.monotonic())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opening, "claim", claim)
        patch.setattr(opening, "PROMISE_S", 0.1)  # longer than opening takes
        files = opening.local_files(tmp_path / "db", read_only=False)
        files.makedirs("log")
        shelf = opening.shelf_for(files, None, 1 << 20)
        committer, _ = opening.start_owner(files, hc.Options(), ManualClock(), "sync", shelf)
    assert time.monotonic() >= claimed[0] + 0.1
    committer.log.close()


# -- the other side ------------------------------------------------------------------------------


def page(sequence: int) -> bytes:
    """A published position."""
    from zlib import crc32

    from halocline.log.published import _BODY, _PAGE

    fields = (b"u" * 16, sequence, 1, 1, 512, 7)
    return _PAGE.pack(*fields, crc32(_BODY.pack(*fields)), sequence)


def test_a_glance_never_takes_the_place_of_a_newer_one() -> None:
    asked: list[Look] = []

    def ask(request: Any, kind: Any) -> Looked:
        asked.append(request)
        return Looked(page(5), b"")

    files = AfarFiles(ask, ManualClock())
    files.look()
    for sequence in (9, 7, 9, 3):
        files.learn(Glance(page(sequence), "log/1", 0, bytes(sequence)))
    files.look()
    assert len(asked) == 2
    assert files.looked == Glance(page(9), "log/1", 0, bytes(9))
    files.learn(Glance(b"", "", 0, b""))  # nothing that could be compared: it is asked for
    assert files.looked.page == b""


def test_nobody_is_asked_while_the_promise_lasts() -> None:
    clock, asked = ManualClock(), []

    def ask(request: Any, kind: Any) -> Looked:
        asked.append(request)
        return Looked(page(5), b"")

    files = AfarFiles(ask, clock)
    files.learn(Glance(page(6), "", 0, b""), clock.elapsed() + 0.001)
    files.look()
    assert (len(asked), files.spared) == (0, 1)
    clock.advance(0.001)
    files.look()
    assert (len(asked), files.spared) == (1, 1)
    files.learn(Glance(page(6), "", 0, b""), clock.elapsed() + 0.001)
    files.doubt()
    files.look()
    assert (len(asked), files.spared) == (2, 1)

"""The thread behind an owner: it works, tells what fails, and is never in the way."""

from __future__ import annotations

import errno
import gc
import logging
import os
import threading
import weakref
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import halocline as hc
from halocline import Database
from halocline.mover.background import PAUSE_S_MAX, Background
from tests.clock import ManualClock
from tests.roles import maintenance_of
from tests.store.faulty import FaultyFiles

PATIENCE_S = 30.0


def _running() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name == "halocline-background"}


def _quiet(usable: Callable[[], bool] = lambda: True) -> tuple[Background, ManualClock]:
    clock = ManualClock()
    return Background(clock, usable), clock


def test_steps_run_in_their_order() -> None:
    background, _ = _quiet()
    done: list[str] = []
    background.add("one", lambda: done.append("one"))
    background.add("two", lambda: done.append("two"))
    background.run_once()
    background.run_once()
    assert done == ["one", "two", "one", "two"]


def test_a_step_that_fails_is_told_once_paused_and_does_not_stop_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    background, clock = _quiet()
    tries: list[float] = []
    done: list[bool] = []

    def failing() -> None:
        tries.append(clock.monotonic())
        if len(tries) < 6:
            raise OSError(errno.ENOSPC, "no room")

    background.add("move", failing)
    background.add("other", lambda: done.append(True))
    with caplog.at_level(logging.WARNING, logger="halocline"):
        for _ in range(200):
            background.run_once()
            clock.advance(0.5)
    assert [record.getMessage().split(" failed")[0] for record in caplog.records] == [
        "background move"
    ]
    pauses = [after - before for before, after in pairwise(tries[:6])]
    assert pauses == [1, 2, 4, 8, 16]
    assert len(done) == 200
    assert background.troubles == {}, "it works again"


def test_troubles_name_what_failed_last() -> None:
    background, clock = _quiet()

    def failing() -> None:
        raise OSError(errno.ENOSPC, "no room")

    background.add("move", failing)
    for _ in range(40):
        background.run_once()
        clock.advance(PAUSE_S_MAX)
    assert list(background.troubles) == ["move"]
    assert "no room" in background.troubles["move"]


def test_nothing_runs_in_a_database_that_cannot_be_used() -> None:
    usable = [True]
    background, _ = _quiet(lambda: usable[0])
    done: list[bool] = []
    background.add("step", lambda: done.append(True))
    usable[0] = False
    background.run_once()
    assert not done


def test_wake_is_faster_than_the_round() -> None:
    ran = threading.Event()
    background = Background(hc.clock.SystemClock(), lambda: True)
    background.add("step", ran.set)
    background.start(background)
    for _ in range(3):
        ran.clear()
        background.wake()
        assert ran.wait(PATIENCE_S)
    background.stop()
    background.stop()
    ran.clear()
    background.wake()
    assert not ran.wait(0.05)


def test_a_step_may_ask_to_be_called_sooner_but_not_without_a_break() -> None:
    background, _ = _quiet()
    wishes: list[object] = [None, 7.0, 0.1, 0.0, object()]
    background.add("move", lambda: wishes.pop(0))
    background.add("other", lambda: 0.3)
    assert [background.run_once() for _ in range(5)] == [0.3, 0.3, 0.1, 0.02, 0.3]


def test_close_ends_the_thread_and_waits_for_what_runs(tmp_path: Path) -> None:
    before = _running()
    db: Any = hc.open(tmp_path / "db")
    threads = _running() - before
    assert threads
    entered, leave = threading.Event(), threading.Event()

    def slow() -> None:
        entered.set()
        leave.wait(PATIENCE_S)

    maintenance_of(db).background.add("slow", slow)
    maintenance_of(db).background.wake()
    assert entered.wait(PATIENCE_S)
    closing = threading.Thread(target=db.close)
    closing.start()
    closing.join(0.1)
    assert closing.is_alive()
    leave.set()
    closing.join(PATIENCE_S)
    assert not closing.is_alive()
    assert not any(thread.is_alive() for thread in threads)


def test_a_forgotten_database_takes_its_thread_along(tmp_path: Path) -> None:
    before = _running()
    db = hc.open(tmp_path / "db")
    threads = _running() - before
    assert threads
    gone = weakref.ref(db)
    del db
    gc.collect()
    assert gone() is None, "the thread does not keep it alive"
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_without_background_there_is_no_thread(tmp_path: Path) -> None:
    before = _running()
    with hc.open(tmp_path / "db", options=hc.Options(background=False)):
        assert _running() == before
    with hc.open(tmp_path / "db", read_only=True):
        assert _running() == before


def test_a_forked_child_has_none(tmp_path: Path) -> None:
    db: Any = hc.open(tmp_path / "db")
    read, write = os.pipe()
    child = os.fork()
    if not child:
        alive = any(
            t.name == "halocline-background" and t.is_alive() for t in threading.enumerate()
        )
        os.write(write, b"1" if alive else b"0")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 1) == b"0"
    os.close(read)
    os.close(write)
    db.create_table("t", {"id": int}, primary_key="id")
    db.close()


def test_a_full_disk_is_reported_and_the_rows_move_when_there_is_room() -> None:
    files, clock = FaultyFiles(), ManualClock()
    options = hc.Options(page_rows=4, object_rows=16, row_group_rows=8, move_rows=4)
    db: Any = Database(files, "full", options=options, clock=clock)
    maintenance_of(db).background.stop()  # this test runs its steps by hand
    maintenance_of(db).background._stopping.hush()
    db.create_table("t", {"id": int}, primary_key="id")
    with db.begin() as txn:
        txn.insert("t", [{"id": n} for n in range(8)])
    files.fail(1, errno.ENOSPC, kind="put")
    maintenance_of(db).background.run_once()
    assert "move" in maintenance_of(db).background.troubles
    assert db.table("t").count() == 8
    with db.begin() as txn:
        txn.insert("t", {"id": 99})
    maintenance_of(db).background.run_once()
    assert "move" in maintenance_of(db).background.troubles, "it pauses"
    clock.advance(5)
    maintenance_of(db).background.run_once()
    assert not maintenance_of(db).background.troubles
    assert len(db.core.state_of("t", db.visible_ts).shape.tier) > 0
    assert db.table("t").count() == 9
    assert not db.check()
    db.close()


def test_the_background_moves_by_age_and_by_rows(tmp_path: Path) -> None:
    """Through the real thread: nobody calls anything."""
    options = hc.Options(page_rows=4, object_rows=16, row_group_rows=8, move_rows=16, move_age_s=1)
    with hc.open(tmp_path / "db", options=options) as db:
        db.create_table("t", {"id": int}, primary_key="id")
        state: Any = db.core.state_of("t", db.visible_ts)
        for number in range(40):
            with db.begin() as txn:
                txn.insert("t", {"id": number})
        ends = threading.Event()
        for _ in range(600):
            if not state.shape.counted():
                break
            ends.wait(0.05)
        assert not state.shape.counted(), "the last rows went when they were a second old"
        assert len(state.shape.tier.data) >= 3
        assert db.table("t").count() == 40
        assert not db.check()

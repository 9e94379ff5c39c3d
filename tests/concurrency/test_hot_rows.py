"""Hot rows: many threads that all want the same few rows, through `db.run` and `for_update`.

No increment is lost, none fails, and nobody waits for ever: whatever the interleaving.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random

import pytest

import halocline as hc
from tests.concurrency.threads import PATIENCE_S, together

THREADS = 8
Body = Callable[[hc.Transaction], None]


@pytest.fixture(params=["sync", "async"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[hc.Database]:
    with hc.open(tmp_path / "db", durability=request.param) as opened:
        opened.create_table("counter", {"id": int, "n": int}, primary_key="id")
        with opened.begin() as txn:
            txn.insert("counter", [{"id": place, "n": 0} for place in range(10)])
        yield opened
        assert not opened.check()
        turns = opened.core.own.turns
        assert not turns.blocks(0, (1, b"")), "which ends what was forgotten"
        assert not turns.rows, "a queue was left behind"


def add_one(txn: hc.Transaction, key: int, *, for_update: bool = False) -> None:
    row = txn.get("counter", key, for_update=for_update)
    assert row is not None
    txn.update("counter", key, {"n": row["n"] + 1})


def add_one_each(keys: list[int], txn: hc.Transaction, *, for_update: bool) -> None:
    for key in keys:
        add_one(txn, key, for_update=for_update)


def total(db: hc.Database) -> int:
    return sum(db.begin().scan("counter").column("n").to_pylist())


@pytest.mark.parametrize("for_update", [False, True], ids=["turns", "for_update"])
def test_one_counter_loses_no_increment_and_fails_nobody(db: hc.Database, for_update: bool) -> None:
    def work() -> None:
        for _ in range(40):
            db.run(lambda txn: add_one(txn, 3, for_update=for_update))

    together(*[work] * THREADS)
    assert db.begin().get("counter", 3) == {"id": 3, "n": THREADS * 40}


def test_runs_that_would_lose_again_take_their_turn_first(db: hc.Database) -> None:
    """Nearly every run is one attempt, where each would otherwise lose once."""
    attempts: list[int] = []

    def count(txn: hc.Transaction) -> None:
        attempts.append(1)
        add_one(txn, 0)

    def work() -> None:
        for _ in range(50):
            db.run(count)

    together(*[work] * THREADS)
    assert total(db) == THREADS * 50
    # A second after it has lost twice, a run tries without a turn: every thread, at most.
    assert len(attempts) <= THREADS * 50 * 1.5


@pytest.mark.parametrize("for_update", [False, True], ids=["turns", "for_update"])
def test_ten_hot_rows_two_by_two_in_any_order(db: hc.Database, for_update: bool) -> None:
    def worker(me: int) -> Callable[[], None]:
        random = Random(me)

        def work() -> None:
            for _ in range(30):
                keys = random.sample(range(10), 2)
                db.run(partial(add_one_each, keys, for_update=for_update))

        return work

    together(*map(worker, range(THREADS)))
    assert total(db) == THREADS * 30 * 2


def test_locks_by_hand_make_every_commit_succeed(db: hc.Database) -> None:
    """Who locks first and reads then never loses, without `db.run`."""

    def work() -> None:
        for _ in range(30):
            with db.begin() as txn:
                add_one(txn, 3, for_update=True)

    together(*[work] * THREADS)
    assert total(db) == THREADS * 30


def test_a_run_that_lost_begins_when_the_winner_has_ended(db: hc.Database) -> None:
    attempts: list[int] = []

    def body(txn: hc.Transaction) -> None:
        add_one(txn, 3)
        attempts.append(txn.ticket)
        if len(attempts) == 1:
            with db.begin() as other:
                add_one(other, 3)
        else:  # it is our turn: others stay out of the way
            with pytest.raises(hc.ConflictError, match="turn of another"), db.begin() as other:
                add_one(other, 3)
            with db.begin() as other:
                add_one(other, 4)

    db.run(body)
    assert attempts[0] == 0
    assert attempts[1] > 0
    assert len(attempts) == 2


def test_who_waits_for_a_turn_holds_no_snapshot(db: hc.Database) -> None:
    holder = db.begin()
    add_one(holder, 3, for_update=True)
    waiting, done = threading.Event(), threading.Event()

    def work() -> None:
        waiting.set()
        db.run(lambda txn: add_one(txn, 3))
        done.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    waiting.wait(PATIENCE_S)
    pause = threading.Event()
    while max(map(len, db.core.own.turns.rows.values())) < 2:
        pause.wait(0.001)
    assert len([key for key in db.core.pins if key > 0]) == 1, "only the holder has a snapshot"
    assert not done.is_set()
    holder.commit()
    assert done.wait(PATIENCE_S)
    thread.join(PATIENCE_S)
    assert total(db) == 2


def test_a_locked_row_is_waited_for_as_long_as_was_said(db: hc.Database) -> None:
    with db.begin() as holder:
        holder.get("counter", 3, for_update=True)
        with pytest.raises(hc.ConflictError, match="another transaction holds the row") as caught:
            db.begin().get("counter", 3, for_update=True, timeout=0.01)
        assert (caught.value.table, caught.value.key) == ("counter", 3)
        with pytest.raises(hc.ConflictError):
            db.begin().get_many("counter", [1, 2, 3], for_update=True, timeout=0)
        assert db.begin().get("counter", 3) == {"id": 3, "n": 0}  # plain readers do not wait
        db.begin().get("counter", 2, for_update=True, timeout=0)


def test_a_run_beside_a_lock_that_does_not_end_waits_once(
    db: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The patience of a run is for all its attempts: 30 seconds, not 20 times 30."""
    monkeypatch.setattr("halocline.txn.rerun.WAIT_S", 0.05)
    attempts = []

    def work(txn: hc.Transaction) -> None:
        attempts.append(1)
        add_one(txn, 3)

    with db.begin() as holder:
        holder.get("counter", 3, for_update=True)
        with pytest.raises(hc.ConflictError):
            db.run(work)
    assert len(attempts) == 1
    db.run(work)
    assert db.begin().get("counter", 3) == {"id": 3, "n": 1}


def test_a_transaction_that_is_forgotten_lets_its_rows_go(db: hc.Database) -> None:
    db.begin().get("counter", 3, for_update=True)
    gc.collect()
    with db.begin() as txn:
        add_one(txn, 3)
    with db.begin() as txn:
        add_one(txn, 3, for_update=True)


def test_transactions_that_wait_for_each_other_end_the_younger(db: hc.Database) -> None:
    old, young = db.begin(), db.begin()
    old.get("counter", 1, for_update=True)
    young.get("counter", 2, for_update=True)
    errors: list[hc.ConflictError] = []

    def work() -> None:
        try:
            young.get("counter", 1, for_update=True)
        except hc.ConflictError as error:
            errors.append(error)
            young.rollback()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    old.get("counter", 2, for_update=True)
    thread.join(PATIENCE_S)
    assert len(errors) == 1
    old.commit()


INTERRUPTED = """
    import os, signal, sys, threading, time
    import halocline as hc

    db = hc.open(sys.argv[1])
    db.create_table("counter", {"id": int, "n": int}, primary_key="id")
    with db.begin() as txn:
        txn.insert("counter", {"id": 1, "n": 0})

    def add_one(txn):
        row = txn.get("counter", 1, for_update=WAITS)
        txn.update("counter", 1, {"n": row["n"] + 1})
        if not WAITS and threading.current_thread() is threading.main_thread():
            print("ready", flush=True)
            time.sleep(60)

    def other():
        with db.begin() as txn:
            txn.get("counter", 1, for_update=True)
            print("ready", flush=True)
            leave.wait(60)

    leave = threading.Event()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if WAITS:  # the main thread waits for another's row
            thread = threading.Thread(target=other)
            thread.start()
        else:  # the main thread has the row
            first = db.begin()
            first.get("counter", 1, for_update=True)
            print("ready", flush=True)
            time.sleep(60)
        time.sleep(0.1)
        db.run(add_one)
        print("not interrupted")
    except KeyboardInterrupt:
        pass
    leave.set()
    if WAITS:
        thread.join()
    else:
        first.rollback()
    for _ in range(3):
        db.run(lambda txn: txn.update("counter", 1, {"n": txn.get("counter", 1)["n"] + 1}))
    assert db.begin().get("counter", 1)["n"] == 3
    assert not db.core.own.turns.rows
    db.close()
    print("well")
"""


@pytest.mark.parametrize("waits", [False, True], ids=["holder", "waiter"])
def test_ctrl_c_leaves_no_turn_behind(tmp_path: Path, waits: bool) -> None:
    script = f"WAITS = {waits}\n" + textwrap.dedent(INTERRUPTED)
    command = [sys.executable, "-c", script, str(tmp_path / "db")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        threading.Event().wait(0.5)  # until it waits, or nearly: any moment is fine
        os.kill(process.pid, signal.SIGINT)
        assert process.stdout.read() == "well\n"
    assert process.returncode == 0


# What a lock makes of a snapshot.


def test_a_lock_before_any_read_sees_the_row_as_it_is_then(db: hc.Database) -> None:
    txn = db.begin()
    with db.begin() as other:
        add_one(other, 3)
    assert txn.get("counter", 3, for_update=True) == {"id": 3, "n": 1}
    assert txn.get("counter", 4) == {"id": 4, "n": 0}
    txn.update("counter", 3, {"n": 9})
    txn.commit()
    assert total(db) == 9


@pytest.mark.parametrize("look", ["get", "miss", "get_many", "scan", "write", "lock"])
def test_a_lock_after_a_read_conflicts_if_the_row_has_changed(db: hc.Database, look: str) -> None:
    reads: dict[str, Body] = {
        "get": lambda txn: _ignore(txn.get("counter", 5)),
        "miss": lambda txn: _ignore(txn.get("counter", 50)),
        "get_many": lambda txn: _ignore(txn.get_many("counter", [5, 6])),
        "scan": lambda txn: _ignore(txn.scan("counter")),
        "write": lambda txn: _ignore(txn.insert("counter", {"id": 50, "n": 0})),
        "lock": lambda txn: _ignore(txn.get("counter", 5, for_update=True)),
    }
    txn = db.begin()
    reads[look](txn)
    with db.begin() as other:
        add_one(other, 3)
    assert txn.get("counter", 4, for_update=True) == {"id": 4, "n": 0}
    with pytest.raises(hc.ConflictError, match="had changed before"):
        txn.get("counter", 3, for_update=True)
    txn.rollback()


def _ignore(found: object) -> None:
    del found


def test_a_locked_row_is_a_serializable_read(db: hc.Database) -> None:
    """Bulk changes ask nobody: then the commit says what has happened."""
    txn = db.begin()
    txn.get("counter", 3, for_update=True)
    txn.insert("counter", {"id": 70, "n": 0})
    with db.begin() as other:
        other.truncate("counter")
    with pytest.raises(hc.ConflictError):
        txn.commit()


def test_bad_locks_are_refused(db: hc.Database) -> None:
    with pytest.raises(hc.UsageError, match="read-only"):
        db.begin(at=db.visible_ts).get("counter", 1, for_update=True)
    for wrong in (-1, "soon"):
        with pytest.raises(hc.UsageError, match="timeout"):
            db.begin().get("counter", 1, for_update=True, timeout=wrong)  # type: ignore[arg-type]
    with pytest.raises(hc.UsageError, match="goes with for_update"):
        db.begin().get("counter", 1, timeout=1)
    with pytest.raises(hc.UsageError, match="goes with for_update"):
        db.begin().get_many("counter", [1], timeout=1)
    with pytest.raises(hc.NotFoundError):
        db.begin().get("counters", 1, for_update=True)
    with pytest.raises(hc.UsageError, match="for_update=True"):
        db.sql("select * from counter where id = 1 for update")

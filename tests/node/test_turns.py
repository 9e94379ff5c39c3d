"""Turns and locks of other processes: at the owner, through the socket and over TLS."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

import halocline as hc
from halocline.node import wire
from halocline.txn.turns import TURN_S
from tests.node.handles import calling, greet, rows, secret_of, until
from tests.roles import committer_of, node_of

ROWS = 3
SOON_S = 5.0


@pytest.fixture(params=["near", "far"])
def db(request: pytest.FixtureRequest, owner: hc.Database) -> Iterator[hc.Database]:
    found: hc.Database = request.getfixturevalue("node" if request.param == "near" else "far")
    yield found
    until(lambda: not committer_of(owner.core).turns.rows)


def bump(txn: hc.Transaction, key: int = 0) -> None:
    txn.update("t", key, {"v": txn.get("t", key)["v"] + 1})


def together(*works: Callable[[], Any]) -> None:
    trouble: list[BaseException] = []

    def run(work: Callable[[], Any]) -> None:
        try:
            work()
        except BaseException as error:
            trouble.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not trouble


def test_nobody_starves_at_one_counter(owner: hc.Database, db: hc.Database) -> None:
    def count(handle: hc.Database) -> None:
        for _ in range(25):
            handle.run(bump)

    together(*[partial(count, one) for one in (db, db, db, db, owner, owner)])
    assert rows(owner)[0] == (0, 150)


def test_a_lock_keeps_others_out_until_its_transaction_ends(
    owner: hc.Database, db: hc.Database
) -> None:
    for mine, other in ((db, owner), (owner, db), (db, db)):
        with mine.begin() as holder:
            before = holder.get("t", 1, for_update=True)["v"]
            with other.begin() as txn:
                assert txn.get("t", 1)["v"] == before, "plain readers do not wait"
            with pytest.raises(hc.ConflictError), other.begin() as txn:
                txn.get("t", 1, for_update=True, timeout=0.05)
            with pytest.raises(hc.ConflictError), other.begin() as txn:
                txn.update("t", 1, {"v": 77})
            holder.update("t", 1, {"v": before + 1})
        with other.begin() as txn:
            assert txn.get("t", 1, for_update=True, timeout=SOON_S)["v"] == before + 1
    holder = db.begin()
    holder.get_many("t", [1, 2], for_update=True)
    holder.rollback()
    with owner.begin() as txn:
        txn.get_many("t", [1, 2], for_update=True, timeout=0)


def test_who_gets_a_lock_sees_what_was_committed_before(
    owner: hc.Database, db: hc.Database
) -> None:
    holder = owner.begin()
    holder.get("t", 0, for_update=True)
    seen: list[int] = []

    def wait() -> None:
        with db.begin() as txn:
            seen.append(txn.get("t", 0, for_update=True, timeout=SOON_S)["v"])
            txn.update("t", 0, {"v": seen[0] + 1})

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    until(lambda: len(next(iter(committer_of(owner.core).turns.rows.values()), [])) == 2)
    holder.update("t", 0, {"v": 40})
    holder.commit()
    thread.join(SOON_S)
    assert seen == [40]
    assert rows(owner)[0] == (0, 41)


def test_a_circle_across_processes_ends(owner: hc.Database, db: hc.Database) -> None:
    lost: list[str] = []

    def both(handle: hc.Database, first: int, second: int) -> None:
        try:
            with handle.begin() as txn:
                txn.get("t", first, for_update=True, timeout=SOON_S)
                met.wait(SOON_S)
                txn.get("t", second, for_update=True, timeout=SOON_S)
        except hc.ConflictError as error:
            lost.append(error.reason)

    met = threading.Barrier(2)
    began = time.monotonic()
    together(lambda: both(db, 1, 2), lambda: both(owner, 2, 1))
    assert lost == ["transactions wait for each other's rows"]
    assert time.monotonic() - began < SOON_S


def test_ten_hot_rows_two_at_a_time(owner: hc.Database, db: hc.Database) -> None:
    with owner.begin() as txn:
        txn.insert("t", [{"id": key, "v": 0} for key in range(ROWS, 10)])

    def work(handle: hc.Database, seed: int) -> None:
        for step in range(15):
            first, second = (seed * 3 + step * 7) % 10, (seed * 5 + step * 3 + 1) % 10

            def move(txn: hc.Transaction) -> None:
                bump(txn, first)  # noqa: B023 runs at once
                if second != first:  # noqa: B023
                    bump(txn, second)  # noqa: B023

            handle.run(move)

    before = sum(v for _, v in rows(owner))
    pairs = sum(
        2 - ((seed * 3 + step * 7) % 10 == (seed * 5 + step * 3 + 1) % 10)
        for seed in range(6)
        for step in range(15)
    )
    handles = (db, db, db, db, owner, owner)
    together(*[partial(work, one, n) for n, one in enumerate(handles)])
    assert sum(v for _, v in rows(owner)) == before + pairs


def test_turns_end_with_the_connection(owner: hc.Database) -> None:
    """Both of one who holds a row and of one who waits for it."""
    turns = committer_of(owner.core).turns
    take = wire.TakeTurns(7, ((1, b"key"),), 30_000, True)
    with calling(owner) as holder, calling(owner) as waiter:
        for channel in (holder, waiter):
            greet(channel, secret_of(owner))
            channel.send(take)
        answer = wire.decode_reply(holder.receive(1 << 16) or b"")
        assert isinstance(answer, wire.Done)
        until(lambda: len(turns.rows[1, b"key"]) == 2)
        waiter.sock.close()
        until(lambda: len(turns.rows[1, b"key"]) == 1)
    until(lambda: not turns.rows)


def test_who_waits_does_not_hold_up_others(owner: hc.Database, db: hc.Database) -> None:
    with owner.begin() as holder:
        holder.get("t", 0, for_update=True)
        thread = threading.Thread(target=db.run, args=(lock_first,), daemon=True)
        thread.start()
        until(lambda: len(next(iter(committer_of(owner.core).turns.rows.values()), [])) == 2)
        for _ in range(20):
            db.run(lambda txn: bump(txn, 1))
        assert thread.is_alive()
    thread.join(SOON_S)
    assert not thread.is_alive()


def lock_first(txn: hc.Transaction) -> None:
    txn.get("t", 0, for_update=True)
    bump(txn)


def test_ctrl_c_while_waiting_leaves_the_queue(owner: hc.Database, db: hc.Database) -> None:
    import _thread

    turns = committer_of(owner.core).turns
    with owner.begin() as holder:
        holder.get("t", 0, for_update=True)
        timer = threading.Timer(0.3, _thread.interrupt_main)
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            db.run(lock_first)
        timer.join()
        until(lambda: [len(queue) for queue in turns.rows.values()] == [1])
    db.run(lock_first)
    assert rows(owner)[0] == (0, 1)


def test_a_lock_that_is_forgotten_ends_with_the_next_request(
    owner: hc.Database, db: hc.Database
) -> None:
    txn = db.begin()
    txn.get("t", 0, for_update=True)
    del txn
    db.run(lambda txn: bump(txn, 1))
    with owner.begin() as txn:
        txn.get("t", 0, for_update=True, timeout=0)


def test_tickets_of_one_process_are_so_many(
    owner: hc.Database, node: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("halocline.node.session.OPEN_MAX", 3)
    link = node_of(node).link
    for ticket in range(1, 6):
        assert link.ask(wire.TakeTurns(ticket, ((1, b"%d" % ticket),), 0, True), bool)
    assert len(committer_of(owner.core).turns.rows) == 3
    for ticket in range(1, 6):
        link.ask(wire.EndTurns(ticket), None)
    assert not committer_of(owner.core).turns.rows


def test_a_turn_ends_with_the_owner_that_gave_it(owner: hc.Database, node: hc.Database) -> None:
    """A run waits for its turn when its process becomes the owner, and then locks that row."""
    turns = committer_of(owner.core).turns
    attempts: list[bool] = []
    holders: list[hc.Transaction] = []
    took_s: list[float] = []

    def work(txn: hc.Transaction) -> None:
        attempts.append(True)
        if len(attempts) == 1:
            before = txn.get("t", 0)["v"]
            owner.run(bump)
            holders.append(owner.begin())
            holders[0].get("t", 0, for_update=True)
        else:
            before = txn.get("t", 0, for_update=True)["v"]
        txn.update("t", 0, {"v": before + 1})

    def run() -> None:
        node.run(work)
        took_s.append(time.monotonic() - closed_at[0])

    def close() -> None:
        until(lambda: any(len(queue) == 2 for queue in list(turns.rows.values())))
        closed_at.append(time.monotonic())
        owner.close()

    closed_at: list[float] = []
    together(run, close)
    assert node.role == "owner"
    assert rows(node)[0] == (0, 2)
    assert took_s[0] < TURN_S / 2, "it did not wait for a turn of its own"


def test_a_caller_that_waits_for_its_turn_takes_no_thread(owner: hc.Database) -> None:
    """It is answered when its turn comes, told when its time is up, and forgotten when it goes."""
    turns, row = committer_of(owner.core).turns, (1, b"key")
    with ExitStack() as stack:
        holder, second, third, late = (stack.enter_context(calling(owner)) for _ in range(4))
        for channel in (holder, second, third, late):
            greet(channel, secret_of(owner))
        holder.send(wire.TakeTurns(7, (row,), 30_000))
        assert isinstance(wire.decode_reply(holder.receive(1 << 16) or b""), wire.Done)
        threads = threading.active_count()
        for ticket, channel in ((8, second), (9, third)):
            channel.send(wire.TakeTurns(ticket, (row,), 30_000))
            until(lambda n=ticket - 6: len(turns.rows[row]) == n)
        assert threading.active_count() <= threads
        late.send(wire.TakeTurns(10, (row,), 1))
        answer = wire.decode_reply(late.receive(1 << 16) or b"")
        assert isinstance(answer, wire.Failed)
        assert "holds the row" in str(answer)
        second.sock.close()
        until(lambda: len(turns.rows[row]) == 2)
        holder.send(wire.EndTurns(7))
        assert isinstance(wire.decode_reply(holder.receive(1 << 16) or b""), wire.Done)
        assert isinstance(wire.decode_reply(third.receive(1 << 16) or b""), wire.Done)
    until(lambda: not turns.rows)

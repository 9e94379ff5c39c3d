"""Turns: the queues of contended rows against a model, and threads that wait in them."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halocline.clock import SystemClock
from halocline.errors import ConflictError, UsageError
from halocline.txn.turns import TURN_S, Claim, Queues, RowName, Turns
from tests.clock import ManualClock

A, B, C = (1, b"a"), (1, b"b"), (2, b"a")
ROWS = [A, B, C]
PATIENCE_S = 60.0


class Model:
    """What the queues promise, told in lists: the first keeps its turn, then the oldest comes."""

    def __init__(self) -> None:
        self.queues: dict[RowName, list[int]] = {row: [] for row in ROWS}

    def join(self, ticket: int, row: RowName) -> bool:
        queue = self.queues[row]
        if ticket not in queue:
            queue[1:] = sorted([*queue[1:], ticket]) if queue else []
            if not queue:
                queue.append(ticket)
        return queue[0] == ticket

    def leave(self, ticket: int, rows: list[RowName]) -> list[int]:
        now_first = []
        for row in rows:
            queue = self.queues[row]
            if ticket in queue:
                was_first = queue[0] == ticket
                queue.remove(ticket)
                if was_first and queue:
                    now_first.append(queue[0])
        return now_first


STEPS = st.lists(
    st.tuples(st.booleans(), st.integers(1, 5), st.lists(st.sampled_from(ROWS), max_size=3)),
    max_size=40,
)


@given(STEPS)
def test_queues_do_what_the_model_does(steps: list[tuple[bool, int, list[RowName]]]) -> None:
    queues, model = Queues(), Model()
    claims = {ticket: Claim(ticket) for ticket in range(1, 6)}
    for joins, ticket, rows in steps:
        claim = claims[ticket]
        if joins:
            for row in rows:
                assert queues.join(claim, row) == model.join(ticket, row)
        else:
            now_first = queues.leave(claim, rows)
            assert [one.ticket for one in now_first] == model.leave(ticket, rows)
        for row in ROWS:
            first = queues.first(row)
            assert [one.ticket for one in queues.rows.get(row, [])] == model.queues[row]
            assert (first.ticket if first else None) == next(iter(model.queues[row]), None)
        assert all(queues.rows.values()), "an empty queue is no queue"


def wait_for(queues: Queues, claim: Claim, row: RowName) -> None:
    assert not queues.join(claim, row)
    claim.waits_for = row


def test_a_circle_of_waits_is_found_and_its_youngest_named() -> None:
    queues = Queues()
    one, two, three = Claim(1), Claim(2), Claim(3)
    for claim, row in ((one, A), (two, B), (three, C)):
        assert queues.join(claim, row)
    wait_for(queues, one, B)
    wait_for(queues, two, C)
    assert queues.youngest_of_circle(two) is None
    wait_for(queues, three, A)
    for claim in (one, two, three):
        assert queues.youngest_of_circle(claim) is three


def test_a_queue_without_a_circle_is_no_circle() -> None:
    queues = Queues()
    claims = [Claim(ticket) for ticket in range(1, 5)]
    assert queues.join(claims[0], A)
    for claim in claims[1:]:
        wait_for(queues, claim, A)
    assert [queues.youngest_of_circle(claim) for claim in claims] == [None] * 4


# With a clock that is turned by hand: nobody waits.


def test_a_row_is_its_first_comers_until_it_ends() -> None:
    turns = Turns(ManualClock())
    one, two = turns.new_ticket(), turns.new_ticket()
    assert not turns.rows
    turns.take(one, [A, B], 0.0)
    assert turns.blocks(two, A)
    assert turns.blocks(0, B)
    assert not turns.blocks(one, A)
    assert not turns.blocks(two, C)
    with pytest.raises(ConflictError, match="another transaction holds the row"):
        turns.take(two, [A], 0.0)
    turns.end(one)
    turns.end(one)
    assert not turns.rows
    turns.take(two, [A], 0.0)
    assert turns.blocks(one, A)


def test_a_call_that_fails_keeps_what_was_held_before_it_and_nothing_else() -> None:
    turns = Turns(ManualClock())
    one, two = turns.new_ticket(), turns.new_ticket()
    turns.take(one, [C], 0.0)
    turns.take(two, [B], 0.0)
    with pytest.raises(ConflictError):
        turns.take(two, [A, C], 0.0)
    assert not turns.blocks(one, A)
    assert turns.blocks(one, B)
    assert not turns.blocks(one, C)


def test_a_turn_has_a_deadline_while_others_want_the_row() -> None:
    clock = ManualClock()
    turns = Turns(clock)
    one, two = turns.new_ticket(), turns.new_ticket()
    turns.take(one, [A], 0.0)
    clock.advance(TURN_S + 1)
    assert not turns.blocks(two, A), "its time is up"
    turns.take(two, [A], 0.0)
    assert turns.blocks(one, A)


def test_a_lock_has_no_deadline_but_ends_when_it_is_forgotten() -> None:
    clock = ManualClock()
    turns = Turns(clock)
    one, two = turns.new_ticket(), turns.new_ticket()
    turns.take(one, [A], 0.0, lasts=True)
    clock.advance(TURN_S * 100)
    with pytest.raises(ConflictError):
        turns.take(two, [A], 0.0)
    turns.lapsed.append(one)
    assert not turns.blocks(two, A)
    turns.take(two, [A], 0.0)


# Threads.


class Waiter:
    """A thread that takes turns; what became of it."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.error: BaseException | None = None
        self._work = work
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self.error = error

    def join(self) -> BaseException | None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "it waits for ever"
        return self.error


def until_waiting(turns: Turns, row: RowName, count: int) -> None:
    """Until so many stand in the queue of a row."""
    pause = threading.Event()
    while len(turns.rows.get(row, ())) < count:
        pause.wait(0.001)


def test_who_waits_gets_the_row_when_it_is_given_up_the_oldest_first() -> None:
    turns = Turns(SystemClock())
    tickets = [turns.new_ticket() for _ in range(4)]
    got: list[int] = []

    def work(ticket: int) -> None:
        turns.take(ticket, [A], PATIENCE_S)
        got.append(ticket)
        turns.end(ticket)

    turns.take(tickets[0], [A], 0.0)
    waiters = []
    for place, ticket in enumerate((tickets[2], tickets[1], tickets[3])):
        waiters.append(Waiter(lambda ticket=ticket: work(ticket)))  # type: ignore[misc]
        until_waiting(turns, A, place + 2)
    turns.end(tickets[0])
    assert [waiter.join() for waiter in waiters] == [None] * 3
    assert got == tickets[1:]
    assert not turns.rows


def test_two_who_wait_for_each_other_do_not_wait_long() -> None:
    turns = Turns(SystemClock())
    old, young = turns.new_ticket(), turns.new_ticket()
    turns.take(old, [A], 0.0, lasts=True)
    turns.take(young, [B], 0.0, lasts=True)

    def work() -> None:
        try:
            turns.take(young, [A], PATIENCE_S, lasts=True)
        finally:
            turns.end(young)

    waiter = Waiter(work)
    until_waiting(turns, A, 2)
    turns.take(old, [B], PATIENCE_S, lasts=True)
    error = waiter.join()
    assert isinstance(error, ConflictError)
    assert "wait for each other" in str(error)
    turns.end(old)
    assert not turns.rows


def test_nobody_waits_at_a_database_that_closes() -> None:
    turns = Turns(SystemClock())
    one, two = turns.new_ticket(), turns.new_ticket()
    turns.take(one, [A], 0.0, lasts=True)
    waiter = Waiter(lambda: turns.take(two, [A], PATIENCE_S))
    until_waiting(turns, A, 2)
    turns.close("the database is closed")
    assert isinstance(waiter.join(), UsageError)


def test_a_forgotten_holder_does_not_keep_others_waiting() -> None:
    turns = Turns(SystemClock())
    one, two = turns.new_ticket(), turns.new_ticket()
    turns.take(one, [A], 0.0, lasts=True)
    waiter = Waiter(lambda: turns.take(two, [A], PATIENCE_S))
    until_waiting(turns, A, 2)
    turns.lapsed.append(one)
    assert waiter.join() is None

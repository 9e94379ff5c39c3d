"""Spinning: for a moment, only where nobody else wants the core, and less after every failure."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise

import pytest

from halocline.node.spin import GAP_S, REST_MAX, Spin
from tests.clock import ManualClock

LONGEST_S = 0.001
STEP_US = 10


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)


def looking(clock: ManualClock, after: int, step_us: int = STEP_US) -> Callable[[], str | None]:
    """Finds something at the n-th look; a look takes so long."""
    looks = iter(range(1, 10**6))

    def look() -> str | None:
        clock.advance(step_us / 1e6)
        return "here" if next(looks) >= after else None

    return look


def test_what_comes_soon_is_found() -> None:
    clock = ManualClock()
    spin = Spin(clock, LONGEST_S)
    for after in (1, 2, 50):
        assert spin.wait(looking(clock, after)) == "here"


def test_it_ends_when_nothing_comes() -> None:
    clock = ManualClock()
    before = clock.now_us
    assert Spin(clock, LONGEST_S).wait(looking(clock, 10**6)) is None
    assert clock.now_us - before <= LONGEST_S * 1e6 + 2 * STEP_US


def test_a_gap_in_the_clock_ends_it() -> None:
    """Somebody else had the core: give it up."""
    clock = ManualClock()
    slow = looking(clock, 3, step_us=int(GAP_S * 1e6) + 1)
    assert Spin(clock, LONGEST_S).wait(slow) is None
    assert slow() is None  # looked once only
    assert slow() == "here"


def test_after_failures_it_rests_and_one_success_ends_that() -> None:
    clock = ManualClock()
    spin = Spin(clock, LONGEST_S)

    def tries(count: int) -> list[int]:
        """Which of so many waits have looked at all."""
        looked = []
        for number in range(count):
            before = clock.now_us
            spin.wait(looking(clock, 10**6))
            if clock.now_us > before:
                looked.append(number)
        return looked

    assert tries(12) == [0, 2, 6]  # rests of 1, 3, 7
    found = tries(400)
    assert max(b - a for a, b in pairwise(found)) == REST_MAX + 1
    while spin.wait(looking(clock, 1)) is None:
        pass
    assert spin.wait(looking(clock, 1)) == "here"


def test_a_machine_with_one_core_does_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    clock = ManualClock()
    before = clock.now_us
    assert Spin(clock, LONGEST_S).wait(looking(clock, 10**6)) is None
    assert clock.now_us - before <= STEP_US

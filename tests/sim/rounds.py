"""The cases of one suite in turns, until its time is over: a plugin for pytest.

    test a: 3 1 2 ...          --> a3 b2 c1 a1 b1 c3 a2 ... until the time is over
    test b: 2 1 ...                |
    test c: 1 3 ...                '--> a line of JSON per case for runner.py

Cases of each test come in an order that the run's seed decides, one of each test in turn, so that a
short run sees something of everything. One that would outlast the time, to go by those before it,
does not begin; the first always does. A case that takes `fresh_seed` comes again when all have
been run, with another seed; one whose seed is its parameter has nothing new to say.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest

_SECONDS = float(os.environ["HALOCLINE_SIM_SECONDS"])
_CHANCE = random.Random(os.environ["HALOCLINE_SIM_SEED"])
_NOTES = Path(os.environ["HALOCLINE_SIM_NOTES"])


def pytest_runtestloop(session: pytest.Session) -> bool:
    """Take the place of pytest's own loop, which runs each case once and all of them."""
    if session.testsfailed:
        raise session.Interrupted("errors during collection")
    turns = in_turns(session.items, _CHANCE)
    item = next(turns, None)
    deadline = time.monotonic() + _SECONDS
    took: dict[str, float] = {}
    while item is not None:
        # Fixtures that the next case needs too are kept for it: a session of Spark, say.
        following = next(turns, None)
        seed = _CHANCE.getrandbits(40)
        os.environ["HALOCLINE_SEED"] = str(seed)
        _note(began=item.nodeid, seed=seed)
        began = time.monotonic()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        took[test_of(item)] = time.monotonic() - began
        item = following
        if item is not None:
            mean = sum(took.values()) / len(took)
            if time.monotonic() + took.get(test_of(item), mean) > deadline:
                break
    return True


def test_of(item: pytest.Item) -> str:
    """The test without its case."""
    return item.nodeid.partition("[")[0]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note how a case ended."""
    if report.when == "call" or not report.passed:
        _note(ended=report.nodeid, outcome=report.outcome, seconds=report.duration)


def in_turns(items: list[pytest.Item], chance: random.Random) -> Iterator[pytest.Item]:
    """All cases, one of each test in turn; those with fresh seeds for ever."""
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        tests.setdefault(test_of(item), []).append(item)
    waiting = deque(deque(chance.sample(cases, len(cases))) for cases in tests.values())
    while waiting:
        cases = waiting.popleft()
        item = cases.popleft()
        yield item
        if "fresh_seed" in getattr(item, "fixturenames", ()):
            cases.append(item)
        if cases:
            waiting.append(cases)


def _note(**words: object) -> None:
    with _NOTES.open("a", encoding="utf-8") as file:
        file.write(json.dumps(words) + "\n")

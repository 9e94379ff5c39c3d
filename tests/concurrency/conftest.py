"""Threads that take turns far more often than Python lets them, so that races are run, not won."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def restless_threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """Switch threads every 20 us instead of every 5 ms, but for the one test about throughput."""
    before = sys.getswitchinterval()
    if "20000" not in request.node.name:
        sys.setswitchinterval(2e-5)
    yield
    sys.setswitchinterval(before)

"""The only door to time and randomness.

A crash can be replayed from a seed only if nothing else in the engine asks the machine for the
time or for random bytes. `tests/test_tidy.py` enforces it.
"""

from __future__ import annotations

import random
import secrets
import time
from typing import Protocol


class Clock(Protocol):
    """Wall clock, monotonic clock, sleep and random bytes."""

    def wall_us(self) -> int:
        """Microseconds since 1970, UTC. May step back."""
        ...

    def monotonic(self) -> float:
        """Seconds that never step back."""
        ...

    def sleep(self, seconds: float) -> None: ...

    def random_bytes(self, size: int) -> bytes: ...


class SystemClock:
    """The machine's own clock."""

    def wall_us(self) -> int:
        return time.time_ns() // 1000

    monotonic = staticmethod(time.monotonic)  # no frame of its own: asked for by every request

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def random_bytes(self, size: int) -> bytes:
        return secrets.token_bytes(size)


class ManualClock:
    """A clock that tests turn by hand; its random bytes follow a seed."""

    def __init__(self, seed: int = 0, wall_us: int = 1_700_000_000_000_000) -> None:
        self.now_us = wall_us
        self._random = random.Random(seed)

    def wall_us(self) -> int:
        return self.now_us

    def monotonic(self) -> float:
        return self.now_us / 1e6

    def sleep(self, seconds: float) -> None:
        self.now_us += int(seconds * 1e6)

    def advance(self, seconds: float) -> None:
        """Turn the clock; negative steps it back."""
        self.now_us += int(seconds * 1e6)

    def random_bytes(self, size: int) -> bytes:
        return self._random.randbytes(size)

"""The only door to time and randomness.

A crash can be replayed from a seed only if nothing else in the engine asks the machine for the
time or for random bytes. `tests/test_tidy.py` enforces it.
"""

from __future__ import annotations

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

"""A clock that tests turn by hand, so that a run can be repeated from its seed."""

from __future__ import annotations

import random


class ManualClock:
    """A clock that tests turn by hand; its random bytes follow a seed."""

    def __init__(self, seed: int = 0, wall_us: int = 1_700_000_000_000_000) -> None:
        self.now_us = wall_us
        self._elapsed_us = wall_us
        self._random = random.Random(seed)

    def wall_us(self) -> int:
        return self.now_us

    def monotonic(self) -> float:
        return self._elapsed_us / 1e6

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Turn the clock; negative steps the wall clock back, and the other one stays."""
        step_us = int(seconds * 1e6)
        self.now_us += step_us
        self._elapsed_us += max(0, step_us)

    def random_bytes(self, size: int) -> bytes:
        return self._random.randbytes(size)

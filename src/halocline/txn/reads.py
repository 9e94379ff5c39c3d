"""What a serializable transaction has read: keys, key ranges, or whole tables.

Snapshot transactions record nothing. A `get` reads its key, also when it finds no row; a range
reads its range, phantoms included; `sql` and predicate scans read their tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Reads:
    """What was read of one table."""

    __slots__ = ("keys", "ranges", "whole")

    def __init__(self) -> None:
        self.keys: set[Any] = set()
        self.ranges: list[tuple[Any, Any]] = []
        self.whole = False

    def among(self, keys: Sequence[Any]) -> list[int]:
        """The places of keys that were read, by themselves or in a range. 40 ns a key and range."""
        held = self.keys
        found = [at for at, key in enumerate(keys) if key in held] if held else []
        for low, high in self.ranges:
            if low is None:
                found += [at for at, key in enumerate(keys) if high is None or key < high]
            elif high is None:
                found += [at for at, key in enumerate(keys) if key >= low]
            else:
                found += [at for at, key in enumerate(keys) if low <= key < high]
        return found

"""What a serializable transaction has read: keys, key ranges, or whole tables.

Snapshot transactions record nothing. A `get` reads its key, also when it finds no row; a range
reads its range, phantoms included; `sql` and predicate scans read their tables.
"""

from __future__ import annotations

from typing import Any


class Reads:
    """What was read of one table."""

    __slots__ = ("keys", "ranges", "whole")

    def __init__(self) -> None:
        self.keys: set[Any] = set()
        self.ranges: list[tuple[Any, Any]] = []
        self.whole = False

    def hold(self, key: Any) -> bool:
        """Was this key read, by itself or in a range?"""
        return key in self.keys or any(
            (low is None or key >= low) and (high is None or key < high)
            for low, high in self.ranges
        )

"""Conditions: what somebody asks of one column, in a form that an index understands.

    read/conditions.py --from a WHERE--> Condition --> a kind's probe (sorted.py)
    txn.lookup --from a key or bounds--'

A condition is a set of values, as spans, and perhaps NULL. It may be wider than what was meant,
never narrower: whoever asks an index looks at the rows that it names once more. So a bound that was
rounded is given as the outer of the two values it lies between.

NaN equals itself and is above every number, -0.0 equals 0.0, as everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple


class _Open:
    """No bound."""


OPEN: Final = _Open()


class ValueSpan(NamedTuple):
    """Values from `low` to `high`, or all texts that begin with `prefix`."""

    low: Any = OPEN
    high: Any = OPEN
    without_low: bool = False
    """Is `low` itself left out?"""
    without_high: bool = False
    prefix: str | None = None

    @property
    def is_point(self) -> bool:
        """Is it one value?"""
        same = self.low is self.high or bool(self.low == self.high)
        return self.low is not OPEN and same and not (self.without_low or self.without_high)


class Condition(NamedTuple):
    """What one column must be: in one of the spans, or NULL if that is wanted; else nothing is."""

    column: int
    """Its id."""
    spans: Sequence[ValueSpan] = ()
    nulls: bool = False

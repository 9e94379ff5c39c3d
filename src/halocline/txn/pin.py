"""Pin: a snapshot that is held for as long as somebody reads at it.

    stream --holds--> Pin --entry in Core.pins--> undo GC and GC of files stop below it

A pin is given back by `close`, or when the last reference to it goes.
"""

from __future__ import annotations


class Pin:
    """One entry among the pins of a database. Its key is negative: nothing is committed from it."""

    __slots__ = ("_pins",)

    def __init__(self, pins: dict[int, int], snapshot: int) -> None:
        self._pins = pins
        pins[-id(self)] = snapshot

    def close(self) -> None:
        """Let the snapshot go. Closing again does nothing."""
        self._pins.pop(-id(self), None)

    def __del__(self) -> None:
        self.close()

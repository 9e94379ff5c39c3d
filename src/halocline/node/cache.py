"""What a compute node has of a database, as ranges of timestamps. Pure.

    checkpoints   [80] -> [60] -> [30] -> [20]        newest first
    cache item    one per checkpoint: [0, end], from end = checkpoint on, extended by range reads

        Ckp=80  [0,100] + [90,110]  = [0,110]         what overlaps or adjoins extends it
                [0,100] + [85,95]   = [0,100]         what is in it changes nothing
                [0,100] + [110,120] = error           a gap would hide commits
        Ckp=60  [..]    + Ckp=80 .. = error           states of two checkpoints do not add up

A snapshot is read from the item of the newest checkpoint that is not newer than it; the answer to a
range read may come in two parts, ranges that lie in the store and commands that come with the
answer, and both together must continue the item without a gap.

Invariants
- An item begins at 0 and only grows.
- Whoever uses an item has it pinned; pruning leaves it alone.

Not here: how rows get into a state (rows/engine.py), how bytes get here (link.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from halocline.errors import CorruptionError, SnapshotExpiredError, UsageError


class Span(NamedTuple):
    """start <= commit_ts <= end."""

    start: int
    end: int


@dataclass(slots=True)
class CacheItem:
    """The state that one checkpoint leads to: everything in [0, end]."""

    checkpoint: int
    end: int = 0
    pins: int = 0

    def __post_init__(self) -> None:
        self.end = max(self.end, self.checkpoint)

    @property
    def span(self) -> Span:
        return Span(0, self.end)

    def extend(self, checkpoint: int, span: Span) -> Span | None:
        """Take a range in; returns the part of it that is new, None when all of it was there."""
        if checkpoint != self.checkpoint:
            raise UsageError(f"a range of checkpoint {checkpoint}, not {self.checkpoint}")
        if span.start > span.end:
            raise UsageError(f"[{span.start}, {span.end}] is not a range")
        if span.start > self.end + 1:
            reason = f"[{span.start}, {span.end}] leaves a gap behind [0, {self.end}]"
            raise CorruptionError("logtail", reason)
        if span.end <= self.end:
            return None
        fresh = Span(max(span.start, self.end + 1), span.end)
        self.end = span.end
        return fresh


class Answer(NamedTuple):
    """What a range read gives: parts that lie in the store, then commands."""

    checkpoint: int
    stored: Sequence[Span]
    commands: Span | None


@dataclass(slots=True)
class Cache:
    """Checkpoints of a database, newest first, and the items that were made of them."""

    checkpoints: list[int] = field(default_factory=list)
    items: dict[int, CacheItem] = field(default_factory=dict)

    def see(self, checkpoint: int) -> bool:
        """A transaction has met a checkpoint: one that is larger than all becomes the head."""
        if self.checkpoints and checkpoint <= self.checkpoints[0]:
            return False
        self.checkpoints.insert(0, checkpoint)
        return True

    def choose(self, snapshot: int) -> int:
        """The largest checkpoint that is not newer than the snapshot."""
        for checkpoint in self.checkpoints:
            if checkpoint <= snapshot:
                return checkpoint
        raise SnapshotExpiredError(snapshot, self.checkpoints[-1] if self.checkpoints else 0)

    @contextmanager
    def use(self, snapshot: int) -> Iterator[CacheItem]:
        """The item for a snapshot, pinned until the block ends."""
        checkpoint = self.choose(snapshot)
        item = self.items.setdefault(checkpoint, CacheItem(checkpoint))
        item.pins += 1
        try:
            yield item
        finally:
            item.pins -= 1

    def prune(self, keep: int) -> list[int]:
        """Forget all but the newest checkpoints; of items in use none. Returns what went."""
        gone = [
            checkpoint
            for checkpoint in self.checkpoints[keep:]
            if checkpoint not in self.items or not self.items[checkpoint].pins
        ]
        self.checkpoints = [one for one in self.checkpoints if one not in gone]
        for checkpoint in gone:
            self.items.pop(checkpoint, None)
        return gone


def missing(item: CacheItem, snapshot: int) -> Span | None:
    """What must be read before the item can answer for a snapshot."""
    return Span(item.end + 1, snapshot) if item.end < snapshot else None


def apply(item: CacheItem, answer: Answer) -> list[tuple[str, Span]]:
    """Extend an item by an answer; returns what is to be folded, in this order."""
    steps: list[tuple[str, Span]] = []
    parts = [("stored", span) for span in answer.stored]
    parts += [("commands", answer.commands)] if answer.commands is not None else []
    for source, span in parts:
        fresh = item.extend(answer.checkpoint, span)
        if fresh is not None:
            steps.append((source, fresh))
    return steps

"""Every moment at which a scripted life could end, taken while it is lived once.

    script --operation n--> a copy of the disk as it is now, with what is not yet synced
                       '--> the promises that have been made by now

A crash at operation n leaves the disk as the operations before it have made it. So a copy of the
disk, taken just before each operation, stands for that crash, and the script need not be played
again for every one of them. Writes are also cut in the middle: a copy with a part of the write.
"""

from __future__ import annotations

import copy
import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from tests.sim.history import Life, copy_of
from tests.store.faulty import FaultyFiles, Operation
from tests.store.sequence import READS


class Point(NamedTuple):
    """Where a life ends."""

    number: int
    moment: str
    keep: int | None
    operation: Operation | None

    def __str__(self) -> str:
        if self.operation is None:
            return "after the last operation"
        kept = "" if self.keep is None else f" (first {self.keep} bytes written)"
        return f"{self.moment} operation {self.operation}{kept}"


Lives = dict[Point, Life]
"""Point -> the life that ended there: its disk and what it was promised."""


def live(durability: str, script: Callable[[Life], None], seed: int = 0) -> Lives:
    """Play the script once; every life it could have been."""
    lives: Lives = {}
    life = Life(FaultyFiles(), durability)
    files, chance = life.files, random.Random(seed)

    def look(operation: Operation, partly: Callable[[int], object] | None) -> None:
        number = operation.number
        lives[Point(number, "before", None, operation)] = _ended(life, copy_of(files))
        if operation.kind == "write" and partly is not None:
            keep = chance.randrange(1, operation.size + 1)
            torn = _ended(life, _torn(files, partly, keep))
            lives[Point(number, "inside", keep, operation)] = torn

    with watched(files, look):
        assert life.play(script)
    end = Point(len(files.operations) + 1, "before", None, None)
    lives[end] = _ended(life, copy_of(files))
    life.stop()
    return lives


@contextmanager
def watched(
    files: FaultyFiles, look: Callable[[Operation, Callable[[int], object] | None], None]
) -> Iterator[None]:
    """Look at the disk just before each operation that changes it."""
    run = files.sequence.run

    def looked_at(kind: str, path: str, act: Any, **rest: Any) -> Any:
        if kind in READS:
            return run(kind, path, act, **rest)
        with files.sequence.mutex:
            number = len(files.sequence.operations) + 1
            offset, size = rest.get("offset", 0), rest.get("size", 0)
            look(Operation(number, kind, path, offset, size), rest.get("partly"))
            return run(kind, path, act, **rest)

    files.sequence.run = looked_at  # type: ignore[method-assign]
    try:
        yield
    finally:
        files.sequence.run = run  # type: ignore[method-assign]


def _ended(life: Life, files: FaultyFiles) -> Life:
    """The same promises, whatever this life goes on to do."""
    ended = copy.copy(life)
    ended.db = None
    ended.files = files
    files.sequence.operations = life.files.operations
    for name in ("states", "stamps", "acked_at", "tokens", "rowids"):
        setattr(ended, name, copy.copy(getattr(life, name)))
    return ended


def _torn(files: FaultyFiles, partly: Callable[[int], object], keep: int) -> FaultyFiles:
    """A copy of the disk in which the first bytes of a write have arrived."""
    write = inspect.getclosurevars(partly).nonlocals
    torn = copy_of(files)
    for path, node in files._names.seen.items():
        if node is write["node"]:
            there = torn._names.seen[path]
            assert there is not None
            there.write(write["content"][:keep], write["offset"])
    return torn

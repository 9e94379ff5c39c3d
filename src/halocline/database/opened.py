"""Open transactions: which of them are old, and where in the program they began.

    pins of this process  --older than the newest commit--> gc's list of objects --> file and line
    pins of other processes, leases  ----------------------------------------------> process

A transaction that nobody ends holds GC back, and keeps keys and tombstones in memory. Its age costs
nothing to know: it began before the first commit that it does not see. One that sees everything
holds nothing back, and is not listed. Where it began is noted by `Database.begin`, as the code and
the instruction of its caller (0.2 us), and made a line of a file only here.
"""

from __future__ import annotations

import gc
import os
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from types import CodeType

from halocline.checkpoint.horizon import of_process
from halocline.checkpoint.pins import ProcessPin
from halocline.ids import NEVER
from halocline.txn import Core, Transaction

SHOWN_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A transaction, stream or view that does not see the newest commit."""

    snapshot: int
    age_s: float
    """At least so long has it been open."""
    where: str
    """File, line and function that began it, or who holds it."""
    process: int

    def __str__(self) -> str:
        return f"for {self.age_s:,.0f} s at snapshot {self.snapshot}: {self.where}"


def find_open(core: Core, others: Iterable[ProcessPin] = ()) -> tuple[OpenTransaction, ...]:
    """The oldest that are open here, and those of other processes as far as they are known."""
    times = core.engine.times
    stamps, walls, now_us = times.stamps, times.walls, core.clock.wall_us()
    found: list[tuple[int, int, ProcessPin | None]]
    found = [(ts, key, None) for key, ts in core.pins.copy().items()]
    found += [(pin.ts, 0, pin) for pin in others if pin.ts < NEVER and pin.pid != os.getpid()]
    old = [one for one in found if bisect_right(stamps, one[0]) < len(stamps)]
    old = sorted(old, key=lambda one: one[0])[:SHOWN_MAX]
    places = _places({abs(key) for _, key, _ in old if key})
    return tuple(
        OpenTransaction(
            snapshot=ts,
            age_s=max(0.0, (now_us - walls[bisect_right(stamps, ts)]) / 1e6),
            where=places.get(abs(key), "a stream, a subscription or a view of Spark")
            if pin is None
            else of_process(pin.pid, pin.ts),
            process=os.getpid() if pin is None else pin.pid,
        )
        for ts, key, pin in old
    )


def begin_of(function: object) -> tuple[CodeType, int] | None:
    """Where the transactions of `run` begin: in what it was given, if that is Python."""
    code = getattr(function, "__code__", None)
    return (code, 0) if isinstance(code, CodeType) else None


def _places(ids: set[int]) -> dict[int, str]:
    """Where the transactions with these ids began. 0.2 s for a million objects."""
    if not ids:
        return {}
    objects = [one for one in gc.get_objects() if isinstance(one, Transaction) and id(one) in ids]
    return {id(one): _line(one) for one in objects}


def _line(txn: Transaction) -> str:
    if txn.began is None:
        return "a transaction"
    code, instruction = txn.began
    spans = [line for start, end, line in code.co_lines() if start <= instruction < end]
    line = spans[0] if spans and spans[0] is not None else code.co_firstlineno
    return f"{code.co_filename}:{line} in {code.co_qualname}"

"""The horizon: the oldest timestamp that must stay readable, and which holder asks for it.

    horizon = min( what was visible when retention began,
                   oldest open transaction here,  pins of other processes,  named snapshots )

GC raises the floor to the horizon. Each holder has a name, so that the report can say why something
was kept.

Not here: raising the floor (gc.py), the pins' files (pins.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from halocline.checkpoint.pins import EVERYTHING, ProcessPin
from halocline.ids import NEVER
from halocline.rows import EngineState


@dataclass(frozen=True, slots=True)
class Holder:
    """A reader, a name or a setting that needs every snapshot from `ts` on, as reports call it."""

    ts: int
    reason: str


def find_holders(
    engine: EngineState,
    open_snapshots: Iterable[int],
    pins: Sequence[ProcessPin],
    *,
    until_us: int,
    visible_ts: int,
) -> list[Holder]:
    """All holders of the horizon; retention, which goes back to `until_us`, is always one."""
    kept = min(engine.times.at(until_us), visible_ts)
    holders = [Holder(kept, "younger than the retention time")]
    oldest = min(open_snapshots, default=NEVER)
    if oldest < NEVER:
        holders.append(Holder(oldest, "held by an open transaction, stream or Spark view"))
    named = list(engine.snapshots.values())
    holders += [Holder(node.ts, f"held by snapshot {node.name!r}") for node in named]
    return holders + [Holder(pin.ts, of_process(pin.pid, pin.ts)) for pin in pins if pin.ts < NEVER]


def horizon_of(holders: Sequence[Holder]) -> int:
    return min(holder.ts for holder in holders)


def of_process(pid: int, ts: int) -> str:
    """Whose pin this is, in words."""
    if ts != EVERYTHING:
        return f"pinned by process {pid}" if pid else "pinned by the lease of a Spark job"
    if pid:
        return f"pinned by process {pid}, which is opening the database"
    return "pinned by a live process whose pin cannot be read"

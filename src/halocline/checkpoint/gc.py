"""Garbage collection: raise the floor, then free what no snapshot at or above it can see.

    horizon = min(retention, oldest open snapshot) --logged--> floor --> undo GC, catalog, tokens

The floor never falls, whatever retention is set later or the clock does: it is logged before
anything is dropped. A reader publishes its pin and then looks at the floor; we publish the floor
and then look at the pins. So either the reader has seen the new floor, or we see its pin.
"""

from __future__ import annotations

from halocline.config import parse_duration
from halocline.errors import UnavailableError
from halocline.log import FLOOR
from halocline.rows.system import FloorNode, encode_system
from halocline.rows.undo import collect
from halocline.txn import Core


def collect_garbage(core: Core, retention_us: int, visible_ts: int) -> dict[str, int]:
    """Free what has expired; returns the floor and how much went."""
    committer, engine = core.committer, core.engine
    if committer is None:
        raise UnavailableError("the database is open read-only")
    now_us = core.clock.wall_us()
    kept = min(engine.times.at(now_us - retention_us), visible_ts)
    floor = min([kept, *list(core.pins.values())])
    if floor > engine.floor:
        with committer.lock:
            order = committer.append_system(FLOOR, encode_system(FloorNode(floor=floor)))
            engine.floor = max(engine.floor, floor)
        committer.log.sync(order)
    bound = min([engine.floor, *list(core.pins.values())])
    states = list(engine.tables.values())
    versions = sum(collect(state, bound, committer.lock) for state in states)
    forgotten = engine.catalog.compact(bound)
    core.forget(entry.id for entry in forgotten)
    token_us = int(parse_duration(engine.options.token_retention) * 1e6)
    tokens = engine.tokens.expire(now_us - token_us)
    return {
        "floor": engine.floor,
        "versions": versions,
        "tables": len(forgotten),
        "tokens": tokens,
    }

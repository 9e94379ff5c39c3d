"""Named snapshots: a timestamp that gets a name and is kept until the name is dropped.

    db.snapshot("before-migration") --SNAPSHOT record, durable--> engine.snapshots
                                                                    |-- begin(at="before-migration")
                                                                    '-- holds the horizon (gc.py)

The timestamp is taken under the commit lock, where the floor rises too. So it is never below the
floor, and a floor that is computed later sees the name. Names follow the rules of tables: compared
without regard to case, printable, no leading underscore.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

import numpy as np

from halocline.catalog.names import check_name, name_key
from halocline.errors import AlreadyExistsError, NotFoundError, UsageError
from halocline.log.record import SNAPSHOT, encode_body
from halocline.rows import EngineState
from halocline.rows.system import SnapshotNode
from halocline.txn import Committer
from halocline.txn.core import EPOCH_START

_ISO = re.compile(r"\d{4}-\d{2}-\d{2}([T ].*)?", re.ASCII)
_LIKE_A_DATE = re.compile(
    r"\d+|\d{4}-?W\d{1,2}(-?\d)?|\d{4}[-/.]\d{1,3}([-/.]\d{1,2})?|\d{1,2}[/.]\d{1,2}[/.]\d{4}"
    r"|T?\d{1,2}:\d{2}(:\d{2})?([.,]\d+)?Z?",
    re.ASCII | re.IGNORECASE,
)
"""Texts that somebody may take for a date, a time of day or a timestamp."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A named snapshot: the state of the database at `ts`, kept since `created`."""

    name: str
    ts: int
    created: datetime


def keep_snapshot(committer: Committer, name: str) -> int:
    """Name the newest visible timestamp; durable when this returns."""
    check_name("snapshot", name)
    if _ISO.fullmatch(name) or _LIKE_A_DATE.fullmatch(name):
        reason = "it looks like a date, a time or a timestamp: put a word in front"
        raise UsageError(f"a snapshot cannot be called {name!r}: {reason}, as in 'before-{name}'")
    engine, log = committer.engine, committer.log
    with committer.lock:
        committer.check_running()
        if name_key(name) in engine.snapshots:
            raise AlreadyExistsError("snapshot", engine.snapshots[name_key(name)].name)
        ts = log.visible_ts
        assert ts >= engine.floor, "the floor never passes what is visible"
        node = SnapshotNode(name=name, ts=ts, created_us=committer.clock.wall_us())
        order = _record(committer, node)
    log.sync(order)
    return ts


def drop_snapshot(committer: Committer, name: str) -> None:
    """Forget a name; what only it kept goes with the next GC."""
    engine, log = committer.engine, committer.log
    with committer.lock:
        committer.check_running()
        node = find_snapshot(engine, name)
        gone = SnapshotNode(name=node.name, ts=node.ts, created_us=node.created_us, dropped=True)
        order = _record(committer, gone)
    log.sync(order)


def find_snapshot(engine: EngineState, name: str) -> SnapshotNode:
    """The snapshot of that name, whatever its case; NotFoundError when there is none."""
    node = engine.snapshots.get(name_key(name))
    if node is None:
        names = sorted(one.name for one in list(engine.snapshots.values()))
        hint = f"snapshots: {', '.join(names[:20])}" if names else "no snapshot has a name"
        raise NotFoundError("snapshot", name, hint=hint)
    return node


def resolve(engine: EngineState, at: int | datetime | str, newest: int, now_us: int) -> int:
    """A point in time, in any of the forms that `at=` takes -> a timestamp that has happened.

    A moment has happened when it is not after `now_us`, nor after the newest commit, whose clock
    may have been ahead of ours.
    """
    if isinstance(at, np.integer):  # of a frame's column _commit_ts
        at = int(at)
    if isinstance(at, bool) or not isinstance(at, (int, datetime, str)):
        raise UsageError(f"at= takes a timestamp, a datetime or a snapshot's name, not {at!r}")
    if isinstance(at, str):
        moment = moment_of(at)
        if moment is None:
            return find_snapshot(engine, at).ts
        at = moment
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise UsageError(
                "at= needs a datetime with a time zone, e.g. datetime.now(timezone.utc)"
            )
        elapsed = at - EPOCH_START
        wall_us = (elapsed.days * 86400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds
        if wall_us > max(now_us, engine.times.wall_of(newest)):
            raise UsageError(f"{at.isoformat(' ')} lies in the future: the newest is {newest}")
        return min(engine.times.at(wall_us), newest)
    if at < 0:
        raise UsageError(f"a timestamp cannot be negative: {at}")
    if at > newest:
        raise UsageError(f"timestamp {at} lies in the future: the newest is {newest}")
    return at


def moment_of(text: str) -> datetime | None:
    """The moment that a text in the form of ISO 8601 means: a date is midnight in UTC.

    None when it has another form; UsageError when there is no such day or time.
    """
    if not _ISO.fullmatch(text):
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"at={text!r} is no date or time that exists: {error}") from None
    return found.replace(tzinfo=UTC) if len(text) <= len("2026-11-18") else found


def list_snapshots(nodes: Iterable[SnapshotNode]) -> list[Snapshot]:
    """Oldest first."""
    found = [
        Snapshot(node.name, node.ts, EPOCH_START + timedelta(microseconds=node.created_us))
        for node in nodes
    ]
    return sorted(found, key=lambda one: (one.ts, one.created, one.name))


def _record(committer: Committer, node: SnapshotNode) -> int:
    """Fold and log; the caller holds the commit lock and waits for the order.

    Memory and log must agree, or GC would pass a snapshot that is there again after a restart: as
    in a commit, an interrupt between the two stops the database.
    """
    keep = partial(committer.engine.keep_snapshot, node)
    return committer.append_system(SNAPSHOT, encode_body(node), fold=keep)

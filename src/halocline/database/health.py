"""db.health(): where the rows are, in what shape, and what maintenance is owed, in words.

    L0 of each table --measure, plan_move--> rows, bytes; moves and flushes that are due
    objects          --gather, plan_compaction--> levels, overlap, dead rows; groups out of shape
    log, floor, pools, background            --> tail, ended objects, statistics, errors

The same planners decide here and in the background, so what is owed is what will be done. Nothing
is changed, and a read-only opener may ask as well.

    print(db.health())

Files are looked for, not into: whether they are what they should be says check.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from halocline.checkpoint.pins import ProcessPin
from halocline.compaction import (
    CompactPolicy,
    CompactReason,
    Gatherer,
    InputStats,
    ObjectShape,
    Plan,
    measure,
    policy_of,
)
from halocline.database.opened import OpenTransaction, find_open
from halocline.errors import HaloclineError
from halocline.ids import NEVER, ObjectId
from halocline.mover import L0Stats, MovePolicy, plan_move
from halocline.mover.measure import measure as measure_l0
from halocline.mover.plan import MoveReason
from halocline.objects.pool import PoolStats
from halocline.rows import TableState
from halocline.show import html_table, size_of, text_table
from halocline.store.files import parent
from halocline.txn import Core

OwedWork = Literal["move", "flush", "compact", "checkpoint", "gc", "alter"]
NO_BUDGET: Final = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Owed:
    """One piece of maintenance that is due, and why."""

    work: OwedWork
    table: str
    """Empty when it concerns the whole database."""
    why: str

    def __str__(self) -> str:
        return f"{self.work} {self.table}: {self.why}" if self.table else f"{self.work}: {self.why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelHealth:
    """The data objects of one level of one table."""

    level: int
    objects: int
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableHealth:
    """One table, tier by tier."""

    name: str
    l0_rows: int
    l0_bytes: int
    l0_tombstones: int
    """Tombstones in memory, those among them that objects hold too included."""
    levels: tuple[LevelHealth, ...]
    shape: ObjectShape
    """Counts, rows, dead rows and overlap of the objects that have not ended."""
    tombstone_bytes: int
    ended_objects: int
    ended_bytes: int
    """Objects that only older snapshots read, until GC."""

    @property
    def depth(self) -> int:
        """Most data objects that hold one key."""
        return self.shape.depth_max

    @property
    def dead_share(self) -> float:
        """Part of the rows in objects that have ended."""
        return self.shape.dead_share


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Health:
    """A database as it is now; shown as text."""

    tables: Mapping[str, TableHealth]
    owed: tuple[Owed, ...]
    troubles: Mapping[str, str]
    """What the background, or this look itself, failed at, and why."""
    visible_ts: int
    floor: int
    tail_bytes: int | None
    """Log that opening would replay; None when only the owner knows."""
    l0_bytes: int
    l0_budget_bytes: int | None
    pools: tuple[PoolStats, ...]
    open: tuple[OpenTransaction, ...] = ()
    """Transactions that do not see the newest commit, the oldest first: they hold GC back."""

    @property
    def is_well(self) -> bool:
        """Is nothing owed, and did nothing fail?"""
        return not (self.owed or self.troubles)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        title, *_ = str(self).splitlines()
        notes = [f"trouble: {name}: {text}" for name, text in self.troubles.items()]
        notes += [f"owed: {owed}" for owed in self.owed] or ["owed: nothing"]
        return html_table(title, [_HEAD], map(_line, self.tables.values()), "\n".join(notes))

    def __str__(self) -> str:
        budget = "" if self.l0_budget_bytes is None else f" of {size_of(self.l0_budget_bytes)}"
        tail = "unknown" if self.tail_bytes is None else size_of(self.tail_bytes)
        readable = f"timestamps {self.floor} to {self.visible_ts} are readable"
        lines = [
            f"{readable}; L0 {size_of(self.l0_bytes)}{budget}; log to replay {tail}",
            "",
            *text_table([_HEAD, *(_line(table) for table in self.tables.values())]),
            "",
        ]
        lines += [
            f"pool {pool.name}: {size_of(pool.used_bytes)} of {size_of(pool.budget_bytes)}, "
            f"{pool.hits} hits, {pool.misses} misses, {pool.evictions} evictions"
            for pool in self.pools
        ]
        lines += [f"open {one}" for one in self.open]
        lines += [f"trouble: {name}: {text}" for name, text in self.troubles.items()]
        lines += [f"owed: {owed}" for owed in self.owed] or ["owed: nothing"]
        return "\n".join(lines)


def examine(
    core: Core,
    gatherer: Gatherer,
    ts: int,
    *,
    l0_budget_bytes: int | None = None,
    horizon: int | None = None,
    tail_bytes: int | None = None,
    fresh_bytes: int = 0,
    troubles: Mapping[str, str] | None = None,
    others: Iterable[ProcessPin] = (),
) -> Health:
    """Look at everything, as the snapshot `ts`, which the caller has pinned, sees it.

    `tail_bytes`: log that an opening would read; `fresh_bytes`: log since the newest checkpoint;
    `others`: pins of other processes.
    """
    look = _Look(core, gatherer, ts, l0_budget_bytes)
    states = [state for state in list(core.engine.tables.values()) if state.dropped_at == NEVER]
    states.sort(key=lambda state: state.entry.name)
    tables = {state.entry.name: look.table(state) for state in states}
    l0_bytes = sum(table.l0_bytes for table in tables.values())
    look.pressure(l0_bytes)
    look.log(fresh_bytes)
    look.garbage(core.engine.tables.values(), core.engine.bound if horizon is None else horizon)
    return Health(
        tables=tables,
        owed=tuple(look.owed),
        troubles={**(troubles or {}), **look.troubles},
        visible_ts=ts,
        floor=core.engine.floor,
        tail_bytes=tail_bytes,
        l0_bytes=l0_bytes,
        l0_budget_bytes=l0_budget_bytes,
        pools=tuple(core.engine.shelf.pools()),
        open=find_open(core, others),
    )


class _Look:
    """One look at a database; collects what is owed on the way."""

    def __init__(self, core: Core, gatherer: Gatherer, ts: int, budget_bytes: int | None) -> None:
        self.core, self.gatherer, self.ts = core, gatherer, ts
        self.budget_bytes = NO_BUDGET if budget_bytes is None else budget_bytes
        self.moves = MovePolicy.of(core.options, self.budget_bytes)
        self.owed: list[Owed] = []
        self.troubles: dict[str, str] = {}

    def owe(self, work: OwedWork, table: str, why: str) -> None:
        self.owed.append(Owed(work=work, table=table, why=why))

    def table(self, state: TableState) -> TableHealth:
        engine, name = self.core.engine, state.entry.name
        l0 = measure_l0(state, engine.times, self.core.clock.wall_us())
        self.moving(name, l0)
        for check in state.schema.checks:
            if not check.valid:
                why = f"check {check.name} was never verified: add it again, or drop it"
                self.owe("alter", name, why)
        tier = state.shape.tier
        stats = self.objects(state)
        ended = [entry for entry in tier.by_id.values() if entry.deleted_at != NEVER]
        return TableHealth(
            name=name,
            l0_rows=l0.row_count,
            l0_bytes=l0.size_bytes,
            l0_tombstones=len(state.deletes),
            levels=_levels(stats),
            shape=measure(stats),
            tombstone_bytes=sum(one.size_bytes for one in stats if one.kind == "tombstone"),
            ended_objects=len(ended),
            ended_bytes=sum(entry.stats.size_bytes for entry in ended),
        )

    def moving(self, name: str, l0: L0Stats) -> None:
        plan, policy = plan_move(l0, self.moves), self.moves
        if plan.reason is MoveReason.AGE:
            oldest = max(page.age_s for page in l0.all_pages)
            why = f"its oldest row has been in L0 for {oldest:.0f} s, above {policy.age_s_max:.0f}"
            self.owe("move", name, why)
        elif plan.reason is MoveReason.ROWS:
            why = f"{l0.row_count:,} rows are in L0, {policy.rows_min:,} make an object"
            self.owe("move", name, why)
        elif plan.reason is MoveReason.BYTES:
            why = f"{size_of(l0.size_bytes)} are in L0, {size_of(policy.bytes_min)} make an object"
            self.owe("move", name, why)
        if plan.tombstones is not None and l0.tombstones is not None:
            age_s = l0.tombstones.age_s
            why = f"{l0.tombstones.count:,} tombstones are in memory, the oldest for {age_s:.0f} s"
            self.owe("flush", name, why)

    def objects(self, state: TableState) -> list[InputStats]:
        """Statistics of all objects; without dead rows when a file cannot be read."""
        name, tier = state.entry.name, state.shape.tier
        policy = policy_of(state, self.core.options)
        try:
            stats = self.gatherer.stats(state, tier, self.ts)
            plan = self.gatherer.plan(state, self.ts, policy, frozenset())
        except (HaloclineError, OSError) as error:
            self.troubles[f"table {name}"] = str(error)
            return self.gatherer.stats(state, tier, self.ts, count=False)
        if missing := _missing(state):
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            self.troubles[f"table {name}"] = f"{missing[0]}{more}: the file is missing"
        limit = self.core.options.compact_local_bytes
        sizes = {entry.id: entry.stats.size_bytes for entry in state.shape.tier.by_id.values()}
        for why in reasons(plan, sizes, policy, limit):
            self.owe("compact", name, why)
        return stats

    def pressure(self, l0_bytes: int) -> None:
        if l0_bytes > self.budget_bytes:
            over = size_of(l0_bytes - self.budget_bytes)
            self.owe("move", "", f"L0 of all tables is {over} above its budget: writers wait")

    def log(self, fresh_bytes: int) -> None:
        limit = self.core.options.checkpoint_log_bytes
        if fresh_bytes >= limit:
            why = (
                f"{size_of(fresh_bytes)} of log since the last one, {size_of(limit)} make the next"
            )
            self.owe("checkpoint", "", why)

    def garbage(self, states: Iterable[TableState], horizon: int) -> None:
        entries = [entry for state in list(states) for entry in state.shape.tier.by_id.values()]
        free = [entry for entry in entries if entry.deleted_at <= horizon]
        if free:
            size = size_of(sum(entry.stats.size_bytes for entry in free))
            self.owe("gc", "", f"{len(free)} ended objects, {size}, are needed by no snapshot")


def reasons(
    plan: Plan, sizes: Mapping[ObjectId, int], policy: CompactPolicy, local_bytes: int
) -> list[str]:
    """Why a table is out of shape, a line for each reason; larger groups are Spark's."""
    words = {
        CompactReason.OVERLAP: f"more than {policy.depth_max} objects hold one key",
        CompactReason.FOLD: "a tombstone object is large beside the rows it concerns",
        CompactReason.DEAD: f"more than {policy.dead_percent} % of the rows of an object ended",
        CompactReason.SMALL: "small objects of one size can be one",
        CompactReason.SPENT: "a tombstone object concerns no row any more",
        CompactReason.TOMBSTONES: f"more than {policy.tombstone_objects_max} tombstone objects",
    }
    objects: dict[tuple[CompactReason, bool], set[ObjectId]] = {}
    for group in plan.owed:
        bucket = (group.reason, group.size_bytes > local_bytes)
        objects.setdefault(bucket, set()).update(group.inputs, group.tombstones)
    return [
        f"{words[reason]} ({len(objects[reason, large])} objects, "
        f"{size_of(sum(sizes[id] for id in objects[reason, large]))})"
        + (": too large for this process, left for Spark" if large else "")
        for reason, large in sorted(objects)
    ]


def _missing(state: TableState) -> list[str]:
    """Files of the newest state that are not in their folder, where that is on this machine."""
    root = state.shelf.root
    entries = [one for one in state.shape.tier.by_id.values() if one.deleted_at == NEVER]
    keys = [entry.file.key for entry in entries if root and entry.file is not None]
    there = {folder: _listed(Path(root, folder)) for folder in {parent(key) for key in keys}}
    return [f"objects/{key}" for key in sorted(keys) if _name(key) not in there[parent(key)]]


def _listed(folder: Path) -> frozenset[str]:
    try:
        return frozenset(os.listdir(folder))
    except FileNotFoundError:
        return frozenset()


def _name(key: str) -> str:
    return key.rpartition("/")[2]


def _levels(stats: Sequence[InputStats]) -> tuple[LevelHealth, ...]:
    data = [one for one in stats if one.kind == "data"]
    return tuple(
        LevelHealth(
            level=level,
            objects=sum(one.level == level for one in data),
            rows=sum(one.rows for one in data if one.level == level),
            size_bytes=sum(one.size_bytes for one in data if one.level == level),
        )
        for level in sorted({one.level for one in data})
    )


_HEAD: Final = (
    "table",
    "L0 rows",
    "L0 tombstones",
    "objects",
    "rows",
    "dead",
    "depth",
    "tombstone objects",
    "bytes",
    "ended",
)


def _line(table: TableHealth) -> Sequence[str]:
    shape = table.shape
    levels = ", ".join(f"L{one.level}: {one.objects}" for one in table.levels)
    return (
        table.name,
        f"{table.l0_rows:,}",
        f"{table.l0_tombstones:,}",
        levels or "none",
        f"{shape.rows:,}",
        f"{table.dead_share:.1%}",
        str(table.depth),
        str(shape.tombstone_objects),
        size_of(shape.size_bytes),
        size_of(table.ended_bytes),
    )

"""Tuple mover, deciding half: which frozen pages become the next objects.

    rows/ --frozen pages, tombstones--> plan_move --MovePlan--> a runner --objects--> catalog/
                                        (this file)

Any frozen page may leave at once: its object keeps every version that a snapshot at or above the
floor can see, so readers never hold the mover back.

    reason    fires when L0 of a table                          takes
    flush     was asked to be emptied                           everything
    pressure  of all tables is above the memory budget          oldest pages, until enough is free
    age       holds a row older than `age_s_max`                everything that old, and frozen
    rows      holds `rows_min` rows                              full objects; the rest stays
    bytes     holds `bytes_min` bytes                           full objects; the rest stays

The active page counts like the others. When it is needed, the plan says `freeze` and names nothing
else: the runner closes it and plans again, which makes one object where two would have been made.
Tombstones leave by the same reasons, all that are committed at once, because a deletion buffer has
no pages.

Invariants
- Pages leave in RowID order and only from the front, so the RowID ranges of two moves never
  overlap and all that is below the last one moved has moved.
- A plan names RowID ranges, not pages: replay may have cut the pages elsewhere.
- No object gets more than `object_rows_max` rows, nor, from more than one page, `object_bytes_max`.
- What the reasons rows and bytes leave behind is below both limits, and nothing that is due is left
  undone: after a plan has been carried out, the same question has the answer "nothing".

Not here: Parquet (objects/), making objects visible (catalog/), which versions are kept (rows/).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from halocline.ids import TableId
from halocline.options import MIB, Options


class MoveReason(StrEnum):
    """Why rows or tombstones leave L0, the most urgent first."""

    PRESSURE = "pressure"
    FLUSH = "flush"
    AGE = "age"
    ROWS = "rows"
    BYTES = "bytes"


class RowIdRange(NamedTuple):
    """start <= RowID < end."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MovePolicy:
    """When to move, and how large objects become."""

    object_rows_max: int = 1_048_576
    object_bytes_max: int = 256 * MIB
    """In memory: Parquet makes a third of it or less."""
    rows_min: int = 1_048_576
    bytes_min: int = 128 * MIB
    age_s_max: float = 60.0
    tombstones_min: int = 262_144
    tombstone_bytes_min: int = 32 * MIB
    delay_s_max: float = 0.1
    """The longest that one commit waits for the mover when memory is short."""

    @classmethod
    def of(cls, options: Options, budget_bytes: int) -> MovePolicy:
        """The policy of a database's options, with `budget_bytes` for L0 of all tables.

        One table may take half of that, so that the mover starts before memory is short.
        """
        half = max(1, budget_bytes // 2)
        return cls(
            object_rows_max=options.object_rows,
            object_bytes_max=min(256 * MIB, half),
            rows_min=options.move_rows,
            bytes_min=min(options.move_bytes, half),
            age_s_max=options.move_age_s,
            tombstones_min=options.move_tombstones,
            tombstone_bytes_min=min(32 * MIB, half),
        )

    def __post_init__(self) -> None:
        for name in self.__slots__:
            assert getattr(self, name) > 0, f"{name} must be above zero"


@dataclass(frozen=True, slots=True, kw_only=True)
class PageStats:
    """What the planner knows of a page; never its rows."""

    rows: RowIdRange
    row_count: int
    """Fewer than the range is long where undo GC has been."""
    size_bytes: int
    age_s: float
    """Since its oldest row was committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TombstoneStats:
    """The deletion buffer of one table."""

    count: int
    size_bytes: int
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class L0Stats:
    """L0 of one table: frozen pages by RowID, the active page, tombstones that are not flushed.

    Pages that a running move has taken are left out.
    """

    table: TableId
    pages: tuple[PageStats, ...] = ()
    active: PageStats | None = None
    tombstones: TombstoneStats | None = None

    @property
    def all_pages(self) -> tuple[PageStats, ...]:
        """Frozen pages and the active one, by RowID."""
        return self.pages if self.active is None else (*self.pages, self.active)

    @property
    def row_count(self) -> int:
        return sum(page.row_count for page in self.all_pages)

    @property
    def size_bytes(self) -> int:
        """Memory that moving and flushing everything would free."""
        parts = [*self.pages, self.active, self.tombstones]
        return sum(part.size_bytes for part in parts if part is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectPlan:
    """One data object to write: the rows of these RowIDs, sorted by key."""

    ranges: tuple[RowIdRange, ...]
    row_count: int
    """At most this many."""
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MovePlan:
    """What one table moves now; `freeze`: close the active page first, then plan again."""

    table: TableId
    reason: MoveReason | None = None
    freeze: bool = False
    objects: tuple[ObjectPlan, ...] = ()
    tombstones: MoveReason | None = None
    """Why all tombstones that are committed leave, if they do."""

    @property
    def idle(self) -> bool:
        """Is there nothing to do?"""
        return not (self.freeze or self.objects or self.tombstones)


def plan_move(
    l0: L0Stats, policy: MovePolicy, *, flush: bool = False, free_bytes: int = 0
) -> MovePlan:
    """What leaves L0 of one table now. `free_bytes`: its part in what memory pressure asks for."""
    _check(l0)
    tombstones = _tombstone_reason(l0, policy, flush, free_bytes)
    frozen, active = l0.pages, l0.active
    if active is not None and not active.row_count:
        active = None
    everything = [*frozen, active] if active is not None else list(frozen)
    reason = _reason(everything, policy, flush, free_bytes)
    if reason is None:
        return MovePlan(table=l0.table, tombstones=tombstones)
    if active is not None and _needs_active(reason, frozen, active, policy, free_bytes):
        return MovePlan(table=l0.table, reason=reason, freeze=True, tombstones=tombstones)
    objects = _take(_pack(frozen, policy), reason, policy, free_bytes)
    return MovePlan(table=l0.table, reason=reason, objects=tuple(objects), tombstones=tombstones)


def due_tables(
    tables: Sequence[L0Stats], policy: MovePolicy, *, over_bytes: int = 0
) -> list[tuple[TableId, int]]:
    """The tables that have something to do, the most urgent first, and what each has to free.

    `over_bytes`: by how much L0 of all tables together is above its budget.
    """
    shares = share_pressure(tables, over_bytes)
    urgency = list(MoveReason)
    due = []
    for l0 in tables:
        share = shares.get(l0.table, 0)
        plan = plan_move(l0, policy, free_bytes=share)
        if not plan.idle:
            first = min(urgency.index(one) for one in (plan.reason, plan.tombstones) if one)
            due.append((first, -l0.size_bytes, l0.table, share))
    return [(table, share) for _, _, table, share in sorted(due)]


def share_pressure(tables: Sequence[L0Stats], over_bytes: int) -> dict[TableId, int]:
    """How much each table has to free: largest first, for few large objects beat many small."""
    shares: dict[TableId, int] = {}
    for l0 in sorted(tables, key=lambda l0: (-l0.size_bytes, l0.table)):
        if over_bytes <= 0:
            break
        shares[l0.table] = min(over_bytes, l0.size_bytes)
        over_bytes -= l0.size_bytes
    return shares


def write_delay_s(used_bytes: int, budget_bytes: int, policy: MovePolicy) -> float:
    """How long a commit waits so that the mover can keep up: nothing within the budget, then more
    and more, at most `delay_s_max` from one and a half budgets on."""
    over = (used_bytes - budget_bytes) / (budget_bytes / 2)
    return 0.0 if over <= 0 else policy.delay_s_max * min(1.0, over) ** 2


def _check(l0: L0Stats) -> None:
    pages = l0.all_pages
    for page, following in pairwise(pages):
        assert page.rows.end <= following.rows.start, "pages come in RowID order, without overlap"
    assert all(page.row_count <= page.rows.end - page.rows.start for page in pages)


def _reason(
    pages: Sequence[PageStats], policy: MovePolicy, flush: bool, free_bytes: int
) -> MoveReason | None:
    if not pages:
        return None
    if flush:
        return MoveReason.FLUSH
    if free_bytes > 0:
        return MoveReason.PRESSURE
    if any(page.age_s >= policy.age_s_max for page in pages):
        return MoveReason.AGE
    if sum(page.row_count for page in pages) >= policy.rows_min:
        return MoveReason.ROWS
    if sum(page.size_bytes for page in pages) >= policy.bytes_min:
        return MoveReason.BYTES
    return None


def _needs_active(
    reason: MoveReason,
    frozen: Sequence[PageStats],
    active: PageStats,
    policy: MovePolicy,
    free_bytes: int,
) -> bool:
    """Must the active page leave, too, to satisfy the reason?"""
    if reason is MoveReason.FLUSH:
        return True
    if reason is MoveReason.AGE:
        return active.age_s >= policy.age_s_max
    if reason is MoveReason.PRESSURE:
        return sum(page.size_bytes for page in frozen) < free_bytes
    return _reason(frozen, policy, False, 0) is None


def _pack(pages: Sequence[PageStats], policy: MovePolicy) -> list[ObjectPlan]:
    """Pages into objects, in RowID order, each as full as the limits allow."""
    objects: list[ObjectPlan] = []
    taken: list[RowIdRange] = []
    row_count = size_bytes = 0
    pieces = [piece for page in pages for piece in _pieces(page, policy.object_rows_max)]
    for page in pieces:
        full = (
            row_count + page.row_count > policy.object_rows_max
            or size_bytes + page.size_bytes > policy.object_bytes_max
        )
        if taken and full:
            objects.append(_object(taken, row_count, size_bytes))
            taken, row_count, size_bytes = [], 0, 0
        taken.append(page.rows)
        row_count += page.row_count
        size_bytes += page.size_bytes
    if taken:
        objects.append(_object(taken, row_count, size_bytes))
    return objects


def _pieces(page: PageStats, rows_max: int) -> list[PageStats]:
    """A page of more rows than an object may have, cut by RowID; any other page as it is."""
    if page.row_count <= rows_max:
        return [page]
    start, end = page.rows
    cuts = [*range(start, end, rows_max), end]
    return [
        PageStats(
            rows=RowIdRange(low, high),
            row_count=high - low,
            size_bytes=-(-page.size_bytes * (high - low) // (end - start)),
            age_s=page.age_s,
        )
        for low, high in pairwise(cuts)
    ]


def _object(ranges: Sequence[RowIdRange], row_count: int, size_bytes: int) -> ObjectPlan:
    """Joins ranges that touch, so that the record of a move stays short."""
    joined: list[RowIdRange] = []
    for start, end in ranges:
        if joined and joined[-1].end == start:
            joined[-1] = RowIdRange(joined[-1].start, end)
        else:
            joined.append(RowIdRange(start, end))
    return ObjectPlan(ranges=tuple(joined), row_count=row_count, size_bytes=size_bytes)


def _take(
    packed: list[ObjectPlan], reason: MoveReason, policy: MovePolicy, free_bytes: int
) -> list[ObjectPlan]:
    """How many of the objects, from the front, the reason asks for."""
    if reason in (MoveReason.FLUSH, MoveReason.AGE):
        return packed
    if reason is MoveReason.PRESSURE:
        taken: list[ObjectPlan] = []
        for one in packed:
            if free_bytes <= 0:
                break
            taken.append(one)
            free_bytes -= one.size_bytes
        return taken
    last = packed[-1]
    full = last.row_count >= policy.rows_min or last.size_bytes >= policy.bytes_min
    return packed if full else packed[:-1]


def _tombstone_reason(
    l0: L0Stats, policy: MovePolicy, flush: bool, free_bytes: int
) -> MoveReason | None:
    stats = l0.tombstones
    if stats is None or not stats.count:
        return None
    if flush:
        return MoveReason.FLUSH
    if stats.age_s >= policy.age_s_max:
        return MoveReason.AGE
    if stats.count >= policy.tombstones_min:
        return MoveReason.ROWS
    if stats.size_bytes >= policy.tombstone_bytes_min:
        return MoveReason.BYTES
    # Under pressure they go only when pages are not enough: they are asked for by reads.
    return MoveReason.PRESSURE if free_bytes > l0.size_bytes - stats.size_bytes else None

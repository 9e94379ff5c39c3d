"""Compaction, deciding half: which objects are rewritten together, and why.

    object stats --plan_compaction--> groups --a runner, here or on Spark--> better objects
                    (this file)

    reason      fires when                                           the group
    overlap     more than `depth_max` data objects hold one key      those of them that are cheapest
    fold        a tombstone object is large beside the rows of all   all that it concerns
                objects it concerns, and these fit in one group
    dead        more than `dead_percent` of an object's rows ended   that object
                (to `settle`: or it has the columns of an older schema)
    small       `small_objects_min` small objects of one size        these, by key
    spent       a tombstone object concerns nothing any more         it ends, nothing is read
    tombstones  more than `tombstone_objects_max` of them            neighbours by RowID

A group either merges its inputs (one sorted run, cut between keys into equal objects) or rewrites
each alone (`merge`). Small objects are compared by powers of four: when only equals are merged, a
row is rewritten a logarithmic number of times. In an overlap the cheapest objects are merged, and
larger ones join while they are no larger than what is there, for the same reason.

The five jobs of a three-level tree are cases of this: sorting L0 into L1 is the mover's;
`Group.job` names the other four. Levels are numbers: a rewrite goes one level up, to `levels_max`.

**Tombstones.** A rewrite drops ended rows, so it takes along every tombstone object that may name
one of its rows, and leaves of each only what it did not drop; a tombstone object of which nothing
can be left is `spent`. Were one left alone, it would name rows that no rewrite could ever drop
again, and would stay for good. Only one job at a time may take a tombstone object: a group that
needs one which is taken (by a group before it, or by a job that runs) is `deferred`: the next plan,
after that job, will have it again.

Invariants
- No object is in two groups, deferred ones included, and no tombstone object in two of `groups`.
- The same stats give the same plan.
- Carrying out plans comes to an end. Each group lessens the first of these that it changes: ended
  rows and tombstones, the number of objects, the sum of overlaps.

Not here: reading and writing rows, the commit, deciding between local and Spark.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from heapq import heappop, heappush

import numpy as np

from halocline.compaction.shape import by_key
from halocline.compaction.stats import InputStats, Reach
from halocline.ids import ObjectId
from halocline.options import GIB, MIB

BLOCK_ROWS = 8192


class CompactReason(StrEnum):
    OVERLAP = "overlap"
    FOLD = "fold"
    DEAD = "dead"
    SMALL = "small"
    SPENT = "spent"
    TOMBSTONES = "tombstones"


class Job(StrEnum):
    """The jobs of a three-level tree that rewrite objects."""

    L1_MERGE = "L1 blocks merge to L2 segment"
    L2_BLOCK_COMPACT = "L2 block compact"
    L2_SEGMENT_COMPACT = "L2 segment compact"
    L2_MERGE = "L2 segments merge"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactPolicy:
    """What counts as out of shape, and how large the work may be that mends it."""

    object_rows_max: int = 1_048_576
    object_bytes_max: int = 256 * MIB
    depth_max: int = 4
    dead_percent: int = 20
    fold_percent: int = 5
    small_objects_min: int = 4
    tombstone_objects_max: int = 8
    group_objects_max: int = 32
    group_bytes_max: int = 4 * GIB
    levels_max: int = 2
    outdated: bool = False
    """Are objects rewritten because the table was altered since? Not if readers can do without."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            low = 0 if name in ("dead_percent", "outdated") else 1
            assert getattr(self, name) >= low, f"{name} must be at least {low}"
        assert self.small_objects_min > 1, "one object has nothing to merge with"
        assert self.group_objects_max > 1, "a group of one cannot lessen overlap"
        assert self.group_bytes_max >= self.object_bytes_max, "two small objects fit in a group"

    def is_small(self, one: InputStats) -> bool:
        """Less than half an object, so that two of them are one."""
        return 2 * one.rows < self.object_rows_max and 2 * one.size_bytes < self.object_bytes_max

    def is_dead(self, one: InputStats) -> bool:
        """More than 20 % of the rows have ended; exactly 20 % is not more. Or its shape has."""
        ended = one.dead_rows * 100 > one.rows * self.dead_percent
        return ended or (self.outdated and one.outdated)

    def fits(self, objects: int, size_bytes: int) -> bool:
        """May a group be this large?"""
        return objects <= self.group_objects_max and size_bytes <= self.group_bytes_max


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Objects that one job reads and ends."""

    reason: CompactReason
    inputs: tuple[ObjectId, ...]
    """Data objects, ascending."""
    tombstones: tuple[ObjectId, ...]
    """Tombstone objects the job takes: it replaces each by what is left of it."""
    spent: tuple[ObjectId, ...]
    """Those of them of which nothing is left, whatever they hold."""
    merge: bool
    """One sorted run over all inputs, or each input by itself."""
    level: int
    """Of the objects it writes."""
    live_rows: int
    size_bytes: int
    job: Job | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Groups that may run at once, and those that wait for one of them."""

    groups: tuple[Group, ...]
    deferred: tuple[Group, ...]

    @property
    def owed(self) -> tuple[Group, ...]:
        """All that is out of shape, for `health()`."""
        return self.groups + self.deferred


def plan_compaction(
    objects: Iterable[InputStats],
    policy: CompactPolicy,
    *,
    busy: Collection[ObjectId] = (),
    l0: Sequence[tuple[int, int]] = (),
) -> Plan:
    """What to rewrite now.

    `busy`: objects that a running job has taken. `l0`: RowIDs of rows in L0, start <= RowID < end;
    a tombstone object that reaches one of them is never spent.
    """
    planner = _Planner(sorted(objects, key=lambda one: one.id), policy, frozenset(busy), l0)
    planner.overlaps()
    planner.folds()
    planner.dead()
    planner.small()
    planner.tombstones()
    return Plan(groups=tuple(planner.groups), deferred=tuple(planner.deferred))


class _Planner:
    """One run over the reasons; what an earlier one has taken, a later one leaves alone."""

    def __init__(
        self,
        objects: Sequence[InputStats],
        policy: CompactPolicy,
        busy: frozenset[ObjectId],
        l0: Sequence[tuple[int, int]],
    ) -> None:
        self.policy = policy
        self.reach = Reach(objects)
        self.l0 = sorted(l0)
        self.taken = set(busy)
        self.groups: list[Group] = []
        self.deferred: list[Group] = []

    def free(self, objects: Iterable[InputStats]) -> list[InputStats]:
        return [one for one in objects if one.id not in self.taken]

    def overlaps(self) -> None:
        for crowd in crowds(self.free(self.reach.data), self.policy):
            self.add(CompactReason.OVERLAP, crowd, merge=True)

    def folds(self) -> None:
        for tombstone, burden in zip(self.reach.tombstones, self.reach.burdens, strict=True):
            worth = tombstone.rows * 100 > burden.live_rows * self.policy.fold_percent
            fits = self.policy.fits(burden.objects, burden.size_bytes)
            if tombstone.id in self.taken or not (worth and fits and burden.objects):
                continue
            met = self.reach.met_by(tombstone)
            if len(self.free(met)) == len(met) and not self.in_l0(tombstone):
                self.add(CompactReason.FOLD, met, merge=False)

    def dead(self) -> None:
        """Objects that share a tombstone object go in one group, as far as its limits allow."""
        batches: list[list[InputStats]] = []
        owners: dict[int, list[InputStats]] = {}
        for one in [one for one in self.free(self.reach.data) if self.policy.is_dead(one)]:
            needed = np.flatnonzero(self.reach.counts([one])).tolist()
            shared = {id(owners[place]): owners[place] for place in needed if place in owners}
            batch = next(iter(shared.values())) if len(shared) == 1 else []
            if not batch or not self.has_room(batch, one):
                batch = []
                batches.append(batch)
            batch.append(one)
            if len(shared) <= 1:
                owners.update(dict.fromkeys(needed, batch))
        for batch in batches:
            self.add(CompactReason.DEAD, batch, merge=False)

    def small(self) -> None:
        tiers: dict[int, list[InputStats]] = {}
        for one in self.free(self.reach.data):
            if self.policy.is_small(one):
                tiers.setdefault(one.size_bytes.bit_length() // 2, []).append(one)
        for _, tier in sorted(tiers.items()):
            if len(tier) >= self.policy.small_objects_min:
                tier.sort(key=lambda one: (one.key_min or b"", one.rowid_min, one.id))
                for chunk in _chunks(tier, self.policy.fits):
                    self.add(CompactReason.SMALL, chunk, merge=True)

    def tombstones(self) -> None:
        burdens = zip(self.reach.tombstones, self.reach.burdens, strict=True)
        idle = [one for one, burden in burdens if not burden.objects and not self.in_l0(one)]
        spent = self.free(idle)
        if spent:
            self.append(CompactReason.SPENT, [], spent, spent, merge=False)
        rest = self.free(self.reach.tombstones)
        rest.sort(key=lambda one: (one.rowid_min, one.id))
        if len(rest) > self.policy.tombstone_objects_max:
            for chunk in _chunks(rest, self.policy.fits, self.policy.object_rows_max):
                self.append(CompactReason.TOMBSTONES, [], chunk, [], merge=True)

    def add(self, reason: CompactReason, members: Sequence[InputStats], *, merge: bool) -> None:
        """A group of data objects, with the tombstone objects that concern them."""
        counts = self.reach.counts(members)
        needed = np.flatnonzero(counts).tolist()
        tombstones = [self.reach.tombstones[place] for place in needed]
        spent = [
            one
            for place, one in zip(needed, tombstones, strict=True)
            if counts[place] == self.reach.burdens[place].objects and not self.in_l0(one)
        ]
        self.append(reason, members, tombstones, spent, merge=merge)

    def append(
        self,
        reason: CompactReason,
        members: Sequence[InputStats],
        tombstones: Sequence[InputStats],
        spent: Sequence[InputStats],
        *,
        merge: bool,
    ) -> None:
        group = Group(
            reason=reason,
            inputs=_ids(members),
            tombstones=_ids(tombstones),
            spent=_ids(spent),
            merge=merge,
            level=min(self.policy.levels_max, 1 + max((one.level for one in members), default=0)),
            live_rows=sum(one.live_rows for one in members),
            size_bytes=sum(one.size_bytes for one in [*members, *tombstones]),
            job=_job(members, merge=merge),
        )
        self.taken.update(group.inputs)
        if self.taken.isdisjoint(group.tombstones):
            self.groups.append(group)
            self.taken.update(group.tombstones)
        else:
            self.deferred.append(group)

    def has_room(self, members: Sequence[InputStats], one: InputStats) -> bool:
        size_bytes = sum(member.size_bytes for member in members) + one.size_bytes
        return self.policy.fits(len(members) + 1, size_bytes)

    def in_l0(self, tombstone: InputStats) -> bool:
        """May it name a row that is still in L0? The ranges are apart: the last start decides."""
        at = bisect_right(self.l0, tombstone.rowid_max, key=lambda span: span[0])
        return at > 0 and self.l0[at - 1][1] > tombstone.rowid_min


def crowds(data: Iterable[InputStats], policy: CompactPolicy) -> Iterator[list[InputStats]]:
    """Sets of objects that all hold one key, where more than `depth_max` do.

    A sweep over the key axis that stops wherever a range is about to end after others have begun:
    there the depth is a local maximum, and all open ranges hold the key where it was reached.
    """
    opened: dict[ObjectId, InputStats] = {}
    ends: list[tuple[bytes, ObjectId]] = []
    for one in by_key(data):
        assert one.key_min is not None
        assert one.key_max is not None
        if ends and ends[0][0] < one.key_min:
            yield from _thin(opened, policy)
        while ends and ends[0][0] < one.key_min:
            opened.pop(heappop(ends)[1], None)
        opened[one.id] = one
        heappush(ends, (one.key_max, one.id))
    yield from _thin(opened, policy)


def _thin(opened: dict[ObjectId, InputStats], policy: CompactPolicy) -> Iterator[list[InputStats]]:
    """Take crowds out of the open ranges until, with one for each crowd, they are not too many."""
    depth = len(opened)
    if depth <= policy.depth_max:
        return
    waiting = sorted(opened.values(), key=lambda one: (one.level, one.size_bytes, one.id))
    while depth > policy.depth_max and len(waiting) > 1:
        crowd = _crowd(waiting, depth - policy.depth_max + 1, policy)
        del waiting[: len(crowd)]
        for one in crowd:
            del opened[one.id]
        depth -= len(crowd) - 1
        yield crowd


def _crowd(waiting: Sequence[InputStats], needed: int, policy: CompactPolicy) -> list[InputStats]:
    """The first objects: as many as needed, and then those that are no larger than all of them."""
    size_bytes = 0
    for count, one in enumerate(waiting):
        size = size_bytes + one.size_bytes
        wanted = count < needed or one.size_bytes <= size_bytes
        if count >= 2 and not (wanted and policy.fits(count + 1, size)):
            return list(waiting[:count])
        size_bytes = size
    return list(waiting)


def _chunks(
    objects: Sequence[InputStats], fits: Callable[[int, int], bool], rows_max: int | None = None
) -> Iterator[list[InputStats]]:
    """Neighbours, as many as fit; chunks of one are left out."""
    chunk: list[InputStats] = []
    for one in [*objects, None]:
        if one is not None and (not chunk or _fits_with(chunk, one, fits, rows_max)):
            chunk.append(one)
            continue
        if len(chunk) > 1:
            yield chunk
        chunk = [] if one is None else [one]


def _fits_with(
    chunk: Sequence[InputStats],
    one: InputStats,
    fits: Callable[[int, int], bool],
    rows_max: int | None,
) -> bool:
    both = [*chunk, one]
    if rows_max is not None and sum(part.rows for part in both) > rows_max:
        return False
    return fits(len(both), sum(part.size_bytes for part in both))


def _job(members: Sequence[InputStats], *, merge: bool) -> Job | None:
    if not members:
        return None
    if merge:
        return Job.L1_MERGE if any(one.level == 1 for one in members) else Job.L2_MERGE
    blocks = all(one.rows <= BLOCK_ROWS for one in members)
    return Job.L2_BLOCK_COMPACT if blocks else Job.L2_SEGMENT_COMPACT


def _ids(objects: Iterable[InputStats]) -> tuple[ObjectId, ...]:
    return tuple(sorted(one.id for one in objects))

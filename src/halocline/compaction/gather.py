"""What the planner is told of a table: its objects, their ended rows, what runs, what is in L0.

    shape, deletion buffer --gather--> ObjectStats --> plan_compaction, measure, health()

How many rows of an object have ended is counted exactly, since a policy that asks for "more than
20 %" must not fire at 20 %. RowIDs that ended come from memory and tombstone objects (read/). An
object whose RowIDs have no gap needs nothing else; of any other its `_rowid` column is read,
which takes 5 ms for a million rows, and the count is remembered until another of them ends.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import xxhash

from halocline.catalog import ObjectEntry
from halocline.compaction.merge import dropper, rowids_of
from halocline.compaction.plan import CompactPolicy, Plan, plan_compaction
from halocline.compaction.stats import InputStats
from halocline.ids import NEVER, ObjectId
from halocline.objects.columns import ROWID
from halocline.options import MIB, Options
from halocline.read.ended import ended_rowids
from halocline.read.scan import is_outdated
from halocline.rows.state import Shape, TableState
from halocline.rows.tier import Tier
from halocline.schema.batches import Int64Array
from halocline.schema.schema import Schema

OBJECT_BYTES_MAX: Final = 256 * MIB
OBJECT_ROWS_MIN: Final = 65_536
_COUNTS_MAX: Final = 100_000
_TEXT_BYTES: Final = 48
_HIDDEN_BYTES: Final = 16


def object_rows_of(state: TableState, options: Options) -> int:
    """Most rows in an object that is made here: while it is, all of it is in memory, beside what is
    being sorted for the next one, so it may take half of what one of the pools does."""
    fit = state.shelf.data.budget_bytes // 2 // _row_bytes(state.schema)
    return min(options.object_rows, max(OBJECT_ROWS_MIN, fit))


def _row_bytes(schema: Schema) -> int:
    """What a row takes as Arrow; texts and lists are guessed."""
    return _HIDDEN_BYTES + sum(_width(column.type) for column in schema.columns)


def _width(type: Any) -> int:
    try:
        return max(1, int(type.bit_width) // 8)
    except ValueError:
        return _TEXT_BYTES


def policy_of(state: TableState, options: Options) -> CompactPolicy:
    """Limits of compaction in this process: no group is larger than what it may rewrite here,
    unless two objects already are."""
    return CompactPolicy(
        object_rows_max=object_rows_of(state, options),
        object_bytes_max=OBJECT_BYTES_MAX,
        depth_max=options.compact_depth,
        group_bytes_max=max(OBJECT_BYTES_MAX, options.compact_local_bytes),
    )


class Gatherer:
    """Collects statistics and remembers what was dear to count. Safe to share between threads."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, bytes], tuple[int, int]] = {}

    def stats(
        self, state: TableState, tier: Tier, ts: int, *, count: bool = True
    ) -> list[InputStats]:
        """Every object that has not ended; rows of data objects that had ended by `ts`.

        Without `count` no file is read and no row counts as ended.
        """
        found = []
        for entry in tier.current():
            # What is not sorted by key does not get better by merging, however keys overlap.
            stats, has_key = entry.stats, bool(state.schema.primary_key)
            has_key &= entry.kind == "tombstone" or stats.order == "key"
            counted = count and entry.kind == "data"
            dead = self._dead_rows(state, tier, entry, ts) if counted else 0
            found.append(
                InputStats(
                    id=entry.id,
                    kind="tombstone" if entry.kind == "tombstone" else "data",
                    level=entry.level,
                    rows=stats.rows,
                    dead_rows=dead,
                    size_bytes=stats.size_bytes,
                    key_min=stats.key_min if has_key else None,
                    key_max=stats.key_max if has_key else None,
                    rowid_min=stats.rowid_min,
                    rowid_max=stats.rowid_max,
                    outdated=is_outdated(state, entry),
                )
            )
        return found

    def plan(
        self, state: TableState, ts: int, policy: CompactPolicy, busy: frozenset[ObjectId]
    ) -> Plan:
        """What to rewrite, seen from the snapshot `ts`, which is visible already."""
        shape = state.shape
        # What came after the snapshot may hold rows that a tombstone object names: the planner has
        # to know of it, but no job that drops rows by this snapshot may touch it.
        young = {entry.id for entry in shape.tier.current() if entry.created_at > ts}
        return plan_compaction(
            self.stats(state, shape.tier, ts), policy, busy=busy | young, l0=_l0_ranges(shape)
        )

    def _dead_rows(self, state: TableState, tier: Tier, entry: ObjectEntry, ts: int) -> int:
        ended = ended_of(state, tier, entry, ts)
        stats = entry.stats
        if not len(ended) or stats.rowid_max - stats.rowid_min + 1 == stats.rows:
            return len(ended)
        assert entry.file is not None
        seen = xxhash.xxh3_64_intdigest(np.ascontiguousarray(ended).data)
        known = self._counts.get(entry.file.id)
        if known is not None and known[0] == seen:
            return known[1]
        table = state.shelf.reader.read(entry.file, state.schema, columns=[], hidden=[ROWID])
        count = int(np.count_nonzero(dropper(ended)(rowids_of(table))))
        if len(self._counts) >= _COUNTS_MAX:
            self._counts.clear()
        self._counts[entry.file.id] = (seen, count)
        return count


def ended_of(state: TableState, tier: Tier, entry: ObjectEntry, ts: int) -> Int64Array:
    """RowIDs within an object's range that had ended by `ts`, sorted."""
    low, high = entry.stats.rowid_min, entry.stats.rowid_max
    return ended_rowids(state, tier, ts, low, high + 1)


def _l0_ranges(shape: Shape) -> list[tuple[int, int]]:
    pages = [(page.start, page.end) for page in (*shape.pages, shape.active)]
    return [(start, end) for start, end in pages if start < end]


def is_current(tier: Tier, ids: tuple[ObjectId, ...], ts: int = NEVER) -> bool:
    """Have none of these ended, and were they all there at `ts`?"""
    entries = (tier.by_id.get(id) for id in ids)
    return all(
        entry is not None and entry.deleted_at == NEVER and entry.created_at <= ts
        for entry in entries
    )

"""Real objects to compact, without a database: random histories, plans carried out, all snapshots.

Tiers (tests/unit/read/rig.py) --commits, moves, bulk objects--> objects
Compacted.compact --plan, rewrite, reshape--> better objects
rows_seen(state, ts) --by hand, from shape and tombstones--> what a snapshot sees
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from halocline.catalog import ObjectEntry
from halocline.compaction.gather import Gatherer
from halocline.compaction.plan import CompactPolicy, Plan
from halocline.compaction.rewrite import GroupWork, RewriteOutcome, rewrite
from halocline.objects.columns import COMMIT_TS, ROWID
from halocline.read.ended import ended_rowids
from halocline.rows.reshape import Reshape
from halocline.rows.state import TableState
from tests.unit.read.rig import SMALL, Tiers

POLICY = CompactPolicy(
    object_rows_max=SMALL.object_rows,
    depth_max=2,
    small_objects_min=2,
    tombstone_objects_max=2,
    group_objects_max=4,
)


def versions_seen(
    state: TableState, ts: int, known: dict[Any, Any] | None = None
) -> dict[int, tuple[Any, ...]]:
    """RowID -> row of every version that a snapshot sees, in L0 and in objects.

    `known` keeps the tables of objects between calls.
    """
    shape = state.shape
    dead = ended_rowids(state, shape.tier, ts)
    data, _ = shape.tier.at(ts)
    found: dict[int, tuple[Any, ...]] = {}
    known = {} if known is None else known
    for entry in data:
        if entry.file not in known:
            known[entry.file] = state.shelf.reader.read(entry.file, state.schema)
    tables = [known[entry.file] for entry in data]
    for page in (*shape.pages, shape.active):
        count = len(page)
        table = pa.Table.from_batches([page.batch(count)], state.schema.arrow)
        table = table.append_column(ROWID, pa.array(page.rowid_array(count)))
        tables.append(table.append_column(COMMIT_TS, pa.array(page.stamp_array(count))))
    for table in tables:
        stamps = table.column(COMMIT_TS).to_numpy()
        rowids = table.column(ROWID).to_numpy()
        seen = (stamps <= ts) & ~np.isin(rowids, dead)
        rows = state.schema.from_table(table.select(state.schema.names).filter(pa.array(seen)))
        for rowid, row in zip(rowids[seen].tolist(), rows, strict=True):
            assert rowid not in found, f"RowID {rowid} is seen twice at {ts}"
            found[rowid] = row
    return found


class Compacted(Tiers):
    """A story that is compacted now and then by the real planner and rewriter."""

    def __init__(self, seed: int, kind: str, page_rows: int = 4) -> None:
        super().__init__(seed, kind, page_rows)
        self.gatherer = Gatherer()
        self.policy = POLICY

    def _tombstones(self, number: int) -> list[ObjectEntry]:
        """What memory holds and no object does, as the mover would flush it."""
        rowids, _, after, _ = self.live.deletes.between(self.live.flushed_ts, self.ts - 1)
        successors = dict(zip(rowids.tolist(), after.tolist(), strict=True))
        versions = [self.versions[rowid] for rowid in sorted(successors)]
        if not versions:
            return []
        return [self._dead(versions, [successors[v.rowid] for v in versions], number)]

    def rewrite(self) -> None:
        for group in self.plan().groups:
            self.carry_out(group, self.ts)

    def plan(self) -> Plan:
        return self.gatherer.plan(self.live, self.ts, self.policy, frozenset())

    def carry_out(self, group: Any, ts: int, *, meanwhile: Any = None) -> RewriteOutcome:
        """One group by the snapshot `ts`; what happens `meanwhile` commits before it."""
        self.job += 1
        tier = self.live.shape.tier
        work = GroupWork(
            state=self.live, tier=tier, ts=ts, job_id=self.job, group=group, options=SMALL
        )
        outcome = rewrite(work)
        if meanwhile is not None:
            meanwhile()
        self.ts += 1
        self._reshape(Reshape(self.live.table_id, outcome.created, outcome.ended))
        return outcome

    def check_all(self, floor: int = 0) -> None:
        """Every snapshot from the floor on sees what the list of versions says."""
        known: dict[Any, Any] = {}
        for ts in range(floor, self.ts + 1):
            wanted = {
                version.rowid: version.row
                for version in self.versions.values()
                if version.began <= ts < version.ended
            }
            assert versions_seen(self.live, ts, known) == wanted, (self.kind, ts)

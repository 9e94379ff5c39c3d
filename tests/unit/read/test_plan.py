"""A plan finds each row of a snapshot once, wherever it is, and leaves out only what cannot match.

The full scan is the list of versions that the story keeps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from halocline.ids import NEVER
from halocline.read.plan import ScanPlan, plan_scan
from halocline.read.predicate import compile_where
from halocline.read.scan import count_rows, scan_objects, scan_pages, take_plan
from halocline.schema.batches import Int64Array
from tests.unit.read.rig import Tiers
from tests.unit.rows.rig import KEYED, Version, scan_table, seeds


def rows_of(tiers: Tiers, plan: ScanPlan, without: Int64Array) -> dict[int, tuple[Any, ...]]:
    """What a runner makes of a plan, by RowID; a row that comes twice is an error."""
    state = tiers.live
    found: dict[int, tuple[Any, ...]] = {}
    objects = scan_objects(state.shelf, state.schema, plan, rowids=True)
    for part in [*objects, *scan_pages(plan, without=without, rowids=True)]:
        rowids = part.column("_rowid").to_pylist()
        rows = state.schema.from_table(_table(part).drop_columns("_rowid"))
        for rowid, row in zip(rowids, rows, strict=True):
            assert rowid not in found, "the row stands in two places"
            found[rowid] = row
    return found


def _table(part: Any) -> Any:
    return part if isinstance(part, pa.Table) else pa.Table.from_batches([part])


@pytest.mark.parametrize("kind", KEYED)
@pytest.mark.parametrize("seed", seeds(2, 40))
def test_r04_r08_a_plan_has_each_visible_row_once(kind: str, seed: int) -> None:
    tiers = Tiers(seed, kind)
    for _ in range(30):
        tiers.step()
        ts = tiers.rng.choice([tiers.ts, tiers.rng.randrange(tiers.ts + 1)])
        seen = [v for v in tiers.versions.values() if v.began <= ts < v.ended]
        gone = sorted(v.rowid for v in seen if tiers.rng.random() < 0.2)
        without = np.array(gone, dtype=np.int64)
        wanted = {v.rowid: v.row for v in seen if v.rowid not in gone}
        plan = take_plan(tiers.live, ts, without=without)
        assert rows_of(tiers, plan, without) == wanted, (kind, seed, ts)
        check_plan(tiers, plan)
        assert count_rows(tiers.live, ts) == len(seen)
        table = scan_table(tiers.live, ts, without=without)
        assert table.schema == tiers.schema.arrow
        assert sorted(tiers.schema.from_table(table)) == sorted(wanted.values())


def check_plan(tiers: Tiers, plan: ScanPlan) -> None:
    """The invariants that the file's story lists."""
    dead = set(plan.dead.tolist())
    assert plan.dead.tolist() == sorted(dead)
    for entry in plan.clean:
        rowids = tiers._rowids(entry)
        assert dead.isdisjoint(rowids)
        assert all(tiers.versions[rowid].began <= plan.ts for rowid in rowids)
    for entry in plan.late:
        assert entry.commit_ts_max > plan.ts
    ranges = [(e.stats.rowid_min, e.stats.rowid_max) for e in (*plan.dirty, *plan.late)]
    assert all(any(low <= rowid <= high for low, high in ranges) for rowid in dead)
    ids = [entry.id for entry in plan.objects]
    assert len(ids) == len(set(ids))


WHERES = [
    ("id = ?", lambda row, a, b: row[0] == a),
    ("id between ? and ?", lambda row, a, b: a <= row[0] <= b),
    ("n < ?", lambda row, a, b: row[2] < a),
    ("name = ?", lambda row, a, b: row[1] == f"k{a:02d}"),
    ("name >= ? and n = 3", lambda row, a, b: row[1] >= f"k{a:02d}" and row[2] == 3),
    ("id in (?, ?)", lambda row, a, b: row[0] in (a, b)),
]


@pytest.mark.parametrize("kind", KEYED)
@pytest.mark.parametrize("seed", seeds(2, 40))
def test_r02_objects_that_cannot_match_are_left_out(kind: str, seed: int) -> None:
    tiers = Tiers(seed, kind)
    pruned = 0
    for _ in range(30):
        tiers.step()
        ts = tiers.rng.choice([tiers.ts, tiers.rng.randrange(tiers.ts + 1)])
        where, holds = tiers.rng.choice(WHERES)
        a, b = sorted(tiers.rng.choices([*range(20), 10_500, 99_000], k=2))
        values = [f"k{a:02d}" if where.startswith("name") else a, b][: where.count("?")]
        predicate = compile_where(where, values, tiers.schema)
        plan = take_plan(tiers.live, ts, predicate)
        whole = take_plan(tiers.live, ts)
        assert set(plan.objects) <= set(whole.objects)
        pruned += len(whole.objects) - len(plan.objects)
        wanted = {
            v.rowid: v.row
            for v in tiers.versions.values()
            if v.began <= ts < v.ended and holds(v.row, a, b)
        }
        none = np.zeros(0, dtype=np.int64)
        found = rows_of(tiers, plan, none)
        assert {rowid: row for rowid, row in found.items() if holds(row, a, b)} == wanted
        assert found.items() <= rows_of(tiers, whole, none).items()
    assert pruned or seed, "a story without pruning proves little"


def test_a_predicate_that_no_zonemap_admits_reads_no_object() -> None:
    tiers = Tiers(3, "int")
    while not tiers.live.shape.tier.data:
        tiers.step()
    plan = take_plan(
        tiers.live, tiers.ts, compile_where("id < 3 and id > 100000", None, tiers.schema)
    )
    assert plan.objects == ()


def test_objects_of_the_reader_itself_belong_to_its_plan() -> None:
    tiers = Tiers(3, "int")
    while not tiers.live.shape.tier.data:
        tiers.step()
    state = tiers.live
    tiers.job += 1
    first = state.next_rowid
    fresh = [Version(first + n, 500 + n, (500 + n, "own", n), NEVER, NEVER) for n in range(3)]
    own = tiers._data(fresh, 0, committed=False)
    without = np.array([first + 1], dtype=np.int64)
    plan = take_plan(state, tiers.ts, without=without, own=[own])
    mine = {rowid: row[0] for rowid, row in rows_of(tiers, plan, without).items() if rowid >= first}
    assert mine == {first: 500, first + 2: 502}
    assert own in plan.dirty
    pruned = take_plan(state, tiers.ts, compile_where("id < 400", None, state.schema), own=[own])
    assert own not in pruned.objects


def test_planning_reads_no_file() -> None:
    tiers = Tiers(5, "text")
    for _ in range(20):
        tiers.step()
    state = tiers.live
    for key in [entry.key for entry in state.shape.tier.by_id.values()]:
        state.shelf.objects.delete(key)
    ended = np.array([v.rowid for v in tiers.versions.values() if v.ended <= tiers.ts])
    plan = plan_scan(state.shape, np.sort(ended), tiers.ts)
    assert plan.objects

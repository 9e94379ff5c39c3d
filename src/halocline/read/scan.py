"""Scans: the rows of a table that a snapshot sees, as Arrow, in every tier.

    state --take_plan--> ScanPlan --scan_pages-----> batches of L0   (zero-copy where none is dead)
                                  --scan_objects---> tables of a row group each
                                  --read/source.py-> the same through DuckDB

Of each page a snapshot sees a prefix (stamps ascend), less the rows whose tombstone has commit_ts
<= S, less the rows that the reading transaction itself has ended. Of an object it sees all rows,
less the dead ones if it is dirty, less the newer ones if it is late.

Memory is looked at before the shape: a tombstone leaves memory only after the shape has it.

Invariants
- Arrays that are cached or shared are never changed: rows are left out by making new ones.
- Rows come out in the order of pages and files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from halocline.catalog import ObjectEntry
from halocline.ids import NEVER
from halocline.objects import Shelf
from halocline.objects.columns import COMMIT_TS, HIDDEN, ROWID
from halocline.read.ended import in_objects, merged
from halocline.read.plan import NONE, ScanPlan, plan_scan
from halocline.rows.deletes import TombstoneRun
from halocline.rows.members import is_among
from halocline.rows.page import Page
from halocline.rows.state import TableState
from halocline.schema.batches import BoolArray, Int64Array
from halocline.schema.schema import Schema

if TYPE_CHECKING:
    from halocline.read.prune import Predicate


def take_plan(
    state: TableState,
    ts: int,
    predicate: Predicate | None = None,
    *,
    without: Int64Array = NONE,
    own: Sequence[ObjectEntry] = (),
) -> ScanPlan:
    """Everything that stands for the table at `ts`, as one consistent plan.

    `without`: RowIDs that the reader's own transaction has ended. `own`: objects only it has.
    """
    while True:
        asked = bool(state.shape.tier.by_id)
        runs = tuple([run for run in state.deletes.runs if run.ts_min <= ts])
        memory = state.deletes.ended_by(ts, 0, NEVER) if asked else []
        shape = state.shape
        if asked or not shape.tier.by_id:
            break  # Else the first objects came in between: look at memory again.
    tier = shape.tier
    if not tier.by_id and not own:
        return ScanPlan(ts, pages=tuple(shape.counted()), runs=runs)
    ended = without
    if tier.by_id:
        found = [*memory, without] if len(without) else memory
        if tier.tombstones:
            found = [*found, *in_objects(state, tier, ts, 0, NEVER)]
        ended = merged(found) if found else NONE
    return plan_scan(shape, ended, ts, predicate, runs=runs, own=own)


def scan_pages(
    plan: ScanPlan, *, without: Int64Array = NONE, rowids: bool = False
) -> Iterator[pa.RecordBatch]:
    """Visible rows of L0, page by page. `without`: RowIDs to leave out; `rowids`: add `_rowid`."""
    for page, count in plan.pages:
        visible = page.visible_count(count, plan.ts)
        if not visible:
            continue
        batch = page.batch(count)
        if visible < batch.num_rows:
            batch = batch.slice(0, visible)
        if rowids:
            ids = pa.array(page.rowid_array(count)[:visible])
            batch = batch.append_column(ROWID, ids)
        kept = alive_mask(page, plan.runs, visible, plan.ts, without)
        if kept is not None:
            batch = batch.filter(pa.array(kept))
        if batch.num_rows:
            yield batch


def scan_objects(
    shelf: Shelf,
    schema: Schema,
    plan: ScanPlan,
    *,
    columns: Sequence[str] | None = None,
    rowids: bool = False,
) -> Iterator[pa.Table]:
    """Visible rows of the plan's objects through the verified reader, a row group at a time."""
    shown = list(schema.names if columns is None else columns)
    if rowids:
        shown.append(ROWID)
    for entries, hidden in (
        (plan.clean, [ROWID] if rowids else []),
        (plan.dirty, [ROWID]),
        (plan.late, [ROWID, COMMIT_TS]),
    ):
        for entry in entries:
            assert entry.file is not None
            for table in shelf.reader.scan(entry.file, schema, columns=columns, hidden=hidden):
                if entries is not plan.clean:
                    kept = _kept(table, plan, late=entries is plan.late)
                    table = table if kept is None else table.filter(pa.array(kept))
                if table.num_rows:
                    yield table.select(shown)


def memory_table(
    schema: Schema, plan: ScanPlan, without: Int64Array = NONE, *, rowids: bool = False
) -> pa.Table:
    """The visible rows of L0 as one table."""
    fields = shown_schema(schema, rowids=rowids)
    return pa.Table.from_batches(
        list(scan_pages(plan, without=without, rowids=rowids)), schema=fields
    )


def shown_schema(schema: Schema, *, rowids: bool) -> pa.Schema:
    """The columns of the table, and `_rowid` if it is wanted."""
    if not rowids:
        return schema.arrow
    return schema.arrow.append(pa.field(ROWID, HIDDEN[ROWID].type))


def count_rows(state: TableState, ts: int) -> int:
    """How many rows a snapshot sees. Clean objects and pages are not read."""
    plan = take_plan(state, ts)
    parts = scan_objects(state.shelf, state.schema, unclean(plan), columns=[], rowids=True)
    return count_known(plan) + sum(int(part.num_rows) for part in parts)


def count_known(plan: ScanPlan) -> int:
    """How many rows of clean objects and of L0 a snapshot sees: nothing is read."""
    total = sum(entry.stats.rows for entry in plan.clean)
    for page, count in plan.pages:
        visible = page.visible_count(count, plan.ts)
        kept = alive_mask(page, plan.runs, visible, plan.ts, NONE)
        total += visible if kept is None else int(kept.sum())
    return total


def unclean(plan: ScanPlan) -> ScanPlan:
    """The objects of a plan whose rows must be looked at to be counted."""
    return ScanPlan(ts=plan.ts, dirty=plan.dirty, late=plan.late, dead=plan.dead)


def is_outdated(state: TableState, entry: ObjectEntry) -> bool:
    """Has a data object other columns than the table has?"""
    stats, schema = entry.stats, state.schema
    if entry.kind != "data" or (stats.schema_version == schema.version and not stats.extras):
        return False
    written = state.newest.entry.schema_at(stats.schema_version)
    return bool(stats.extras) or written is None or _likeness(written) != _likeness(schema)


def _likeness(schema: Schema) -> list[tuple[int, str, pa.DataType]]:
    """What of a schema a raw read of a file shows. A column that was dropped and one that took its
    name and type are two: their ids differ."""
    return [(column.id, column.name, column.type) for column in schema.columns]


def why_inexact(state: TableState, plan: ScanPlan) -> str:
    """Why the files of a plan are not the table; empty when every row in them counts, and no other.

    Objects whose range of RowIDs holds one that has ended are looked into: it may be a gap.
    """
    in_memory = count_known(plan._replace(clean=()))
    if in_memory:
        return f"{in_memory:,} of its rows are in memory"
    if plan.late:
        return f"{len(plan.late)} of its files hold rows that are newer than the snapshot"
    old = sum(is_outdated(state, entry) for entry in plan.objects)
    if old:
        return f"{old} of its files have the columns of another version of its schema"
    dead = 0
    for entry in plan.dirty:
        assert entry.file is not None
        table = state.shelf.reader.read(entry.file, state.schema, columns=[], hidden=[ROWID])
        dead += int(np.count_nonzero(is_among(table.column(ROWID).to_numpy(), plan.dead)))
    return f"{dead:,} rows in its files have ended" if dead else ""


def _kept(table: pa.Table, plan: ScanPlan, *, late: bool) -> BoolArray | None:
    """Which rows of a dirty or late object the snapshot sees; None when all of them."""
    rowids = table.column(ROWID).to_numpy()
    kept = ~is_among(rowids, plan.dead)
    if late:
        kept &= table.column(COMMIT_TS).to_numpy() <= plan.ts
    return None if kept.all() else kept


def alive_mask(
    page: Page, runs: Iterable[TombstoneRun], visible: int, ts: int, without: Int64Array
) -> BoolArray | None:
    """Which of the first `visible` rows live at `ts`; None when all do."""
    dead = [page.marks.until(ts)]
    dead += [page.offsets_of(run.within(page.start, page.end, ts)) for run in runs]
    if len(without):
        begin, end = np.searchsorted(without, [page.start, page.end])
        dead.append(page.offsets_of(without[begin:end]))
    offsets = np.concatenate(dead)
    offsets = offsets[offsets < visible]
    if not len(offsets):
        return None
    kept = np.ones(visible, dtype=np.bool_)
    kept[offsets] = False
    return kept

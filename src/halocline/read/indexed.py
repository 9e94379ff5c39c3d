"""Rows that indexes name: taken out of a plan, read by block, as Arrow beside what is scanned.

    ScanPlan + conditions --answer, per object--> rows by position --take--> less dead, less late
                                             '--> the objects that are left to scan

What comes out is at least every visible row of those objects that satisfies the conditions, and
never a row that the snapshot does not see: tombstones and timestamps are applied here, after the
index was asked, so an index need not know of deletes. Objects without an index object, and L0, stay
in the plan. Whoever asks applies the whole condition to all of it.

Why it stays exact. An index object speaks of positions in one file that never changes; a merge
writes new files, and until those have index objects of their own they are scanned.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa

from halocline.catalog import ObjectEntry
from halocline.index import Condition, answer, ask
from halocline.index.chooser import Answer, chosen
from halocline.objects.columns import COMMIT_TS, ROWID
from halocline.read.plan import NONE, ScanPlan
from halocline.read.scan import shown_schema
from halocline.rows.members import is_among
from halocline.rows.state import TableState
from halocline.schema.schema import Schema

if TYPE_CHECKING:
    from halocline.objects.read import Numbers


THREADS: Final = 2
T = TypeVar("T")
R = TypeVar("R")


@dataclass(slots=True)
class HowRead:
    """How one table is read, for `explain`."""

    objects: int = 0
    """That count at the snapshot, or that the transaction itself has written."""
    pruned: int = 0
    """Left out by their zonemaps."""
    by_index: dict[str, int] = field(default_factory=dict)
    """Index -> objects that it has answered for."""
    blocks: int = 0
    """Blocks that the rows named by indexes lie in."""
    blocks_of: int = 0
    """Blocks of the objects that indexes have answered for."""
    rows: int = 0
    """Rows that indexes have named."""
    rows_in_memory: int = 0
    """Rows of L0 and of the transaction itself, which are scanned."""

    @property
    def answered(self) -> int:
        """Objects that need no scan."""
        return sum(self.by_index.values())


def read_indexed(
    state: TableState,
    plan: ScanPlan,
    conditions: Mapping[int, Condition],
    *,
    rowids: bool,
    how: HowRead,
) -> tuple[ScanPlan, pa.Table]:
    """What is left to scan, and the rows of all other objects of the plan that can match."""
    schema, newest = state.schema, state.newest
    asked = ask(schema, newest.entry.indexes, conditions)
    shown = shown_schema(schema, rowids=rowids)
    named: list[tuple[ObjectEntry, Numbers]] = []
    answered = set[int]()
    answers: list[tuple[ObjectEntry, Answer]] = []
    for entry in plan.objects if asked else ():
        tier, hidden = newest.shape.tier, _hidden(plan, entry)
        found = answer(state.shelf, schema, tier, entry, asked, plan.ts, hidden)
        if found is not None:
            answers.append((entry, found))
    for entry, found in chosen(state.shelf, answers):
        answered.add(entry.id)
        _note(state, how, entry, found)
        named += [(entry, found.positions)] if len(found.positions) else []
    if not answered:
        return plan, shown.empty_table()

    def read(one: tuple[ObjectEntry, Numbers]) -> pa.Table:
        return fitted(rows_at(state, schema, plan, *one), shown)

    tables = in_turns(read, named, lambda one: in_memory(state, schema, plan, *one))
    return without(plan, answered), pa.concat_tables([shown.empty_table(), *tables])


def fitted(table: pa.Table, shown: pa.Schema) -> pa.Table:
    """A table with just these columns."""
    if table.schema.equals(shown):
        return table
    table = table.select(shown.names)
    return table if table.schema.equals(shown) else table.cast(shown)


def in_turns(read: Callable[[T], R], parts: Sequence[T], is_near: Callable[[T], bool]) -> list[R]:
    """Read parts of several objects: what must be decoded two at a time, which leaves the
    interpreter free, and what is in memory at once."""
    far = [part for part in parts if not is_near(part)]
    if len(far) < 2:
        return [read(part) for part in parts]
    with ThreadPoolExecutor(THREADS, thread_name_prefix="halocline-index") as pool:
        decoded = [pool.submit(read, part) for part in far]
        there = {id(part) for part in far}
        found = [read(part) for part in parts if id(part) not in there]
        return [*found, *(one.result() for one in decoded)]


def in_memory(
    state: TableState,
    schema: Schema,
    plan: ScanPlan,
    entry: ObjectEntry,
    positions: Numbers,
    columns: list[str] | None = None,
) -> bool:
    """Are these rows had without reading the file?"""
    assert entry.file is not None
    gather, hidden = state.shelf.gather, _hidden(plan, entry)
    return not gather.missing(entry.file, schema, positions, columns=columns, hidden=hidden)


def _hidden(plan: ScanPlan, entry: ObjectEntry) -> list[str]:
    """What must be known of rows of an object to tell which of them the snapshot sees."""
    return [ROWID, COMMIT_TS] if any(one is entry for one in plan.late) else [ROWID]


def rows_at(
    state: TableState,
    schema: Schema,
    plan: ScanPlan,
    entry: ObjectEntry,
    positions: Numbers,
    columns: list[str] | None = None,
) -> pa.Table:
    """Those of some rows of an object of a plan that its snapshot sees, and `_rowid`."""
    hidden = _hidden(plan, entry)
    assert entry.file is not None
    gather = state.shelf.gather
    table = gather.take(entry.file, schema, positions, columns=columns, hidden=hidden)
    kept = ~is_among(table.column(ROWID).to_numpy(), plan.dead) if len(plan.dead) else None
    if COMMIT_TS in hidden:
        old = table.column(COMMIT_TS).to_numpy() <= plan.ts
        kept = old if kept is None else kept & old
        table = table.drop_columns(COMMIT_TS)
    return table if kept is None or kept.all() else table.filter(pa.array(kept))


def without(plan: ScanPlan, answered: Collection[int]) -> ScanPlan:
    """The plan less some objects."""
    clean, dirty, late = (
        tuple(entry for entry in entries if entry.id not in answered)
        for entries in (plan.clean, plan.dirty, plan.late)
    )
    dead = plan.dead if dirty or late else NONE
    return plan._replace(clean=clean, dirty=dirty, late=late, dead=dead)


def _note(state: TableState, how: HowRead, entry: ObjectEntry, found: Answer) -> None:
    name = " and ".join(found.names)
    how.by_index[name] = how.by_index.get(name, 0) + 1
    how.blocks += found.blocks
    how.rows += len(found.positions)
    assert entry.file is not None
    with state.shelf.reader.tail(entry.file) as tail:
        how.blocks_of += tail.directory.blocks


def told(how: HowRead) -> str:
    """The indexes that were used, in words."""
    parts = [f"{name} ({count} objects)" for name, count in how.by_index.items()]
    return ", ".join(parts)

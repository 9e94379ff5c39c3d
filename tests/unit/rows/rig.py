"""Tables without a database: states, random commits to fold into them, and what they should show.

Story --random nodes--> fold live            what the committer does
                   '--> encode, decode, fold  what recovery does
                   '--> versions              what a plain list of versions says
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from halocline.catalog import TableEntry
from halocline.ids import NEVER, ColumnId, TableId
from halocline.log.record import Serial
from halocline.read.scan import count_rows, memory_table, scan_objects, take_plan
from halocline.rows.nodes import (
    FIRST_ROWID_AT,
    Append,
    Delete,
    RowNode,
    Update,
    decode_node,
    encode_node,
    key_run,
)
from halocline.rows.state import TableState
from halocline.schema.schema import Schema
from halocline.txn.row_commit import commit_rows

NOTHING = np.empty(0, np.int64)
COLUMNS = {"id": int, "name": str, "n": int}
KEYED: dict[str, Any] = {
    "int": (COLUMNS, "id"),
    "text": (COLUMNS, "name"),
    "pair": (COLUMNS, ["name", "id"]),
    "none": (COLUMNS, None),
}
"""Kinds of tables by their key: integers are held as arrays, others as lists of Python values."""


def scan_table(
    state: TableState,
    ts: int,
    *,
    without: Any = NOTHING,
    rowids: bool = False,
) -> pa.Table:
    """All visible rows as one table: objects, then L0."""
    plan = take_plan(state, ts, without=without)
    tables = list(scan_objects(state.shelf, state.schema, plan, rowids=rowids))
    memory = memory_table(state.schema, plan, without, rowids=rowids)
    # `_rowid` may not be null in objects, and may in memory.
    return pa.concat_tables([*tables, memory], promote_options="default")


def entry_of(columns: dict[str, Any], key: Any, table_id: int = 1) -> TableEntry:
    """What the catalog would say of such a table."""
    return TableEntry(
        id=TableId(table_id),
        name="t",
        schema=Schema.define(columns, key),
        layout="clustered",
        options={},
        next_column_id=ColumnId(len(columns) + 1),
        created_at=1,
    )


def state_of(kind: str = "int", page_rows: int = 4, first_rowid: int = 1) -> TableState:
    """An empty table."""
    return TableState(entry_of(*KEYED[kind]), page_rows=page_rows, first_rowid=first_rowid)


def seeds(short: int, long: int = 5) -> list[Any]:
    """Seeds of a random test: a few for every day, more that only `make sim` runs."""
    later = range(1000, 1000 + long)
    return [*range(short), *(pytest.param(seed, marks=pytest.mark.sim) for seed in later)]


class Version(NamedTuple):
    """One row version as a plain list would hold it."""

    rowid: int
    key: Any
    row: tuple[Any, ...]
    began: int
    ended: int


def fold(state: TableState, node: RowNode, ts: int) -> None:
    """Fold as the engine does."""
    state.fold(node, ts)


def through_bytes(node: RowNode, schema: Schema) -> RowNode:
    """The node as recovery sees it."""
    kind, payload = encode_node(node, schema)
    patched = bytearray(payload)
    patched[FIRST_ROWID_AT : FIRST_ROWID_AT + 8] = node.first_rowid.to_bytes(8, "little")
    return decode_node(kind, bytes(patched), schema)


class Story:
    """Random commits to one table, folded live, through bytes, and into a list of versions."""

    def __init__(self, seed: int, kind: str, page_rows: int = 4) -> None:
        self.rng = random.Random(seed)
        self.kind = kind
        self.live = state_of(kind, page_rows)
        self.replayed = state_of(kind, page_rows)
        self.schema = self.live.schema
        self.versions: dict[int, Version] = {}
        self.ts = 0

    def commit(self) -> None:
        """One commit of one to three nodes, in the order of a record: deletes, updates, inserts."""
        self.ts += 1
        touched: set[int] = set()
        for make in (self._delete, self._update, self._append):
            if self.rng.random() < 0.6:
                node = make(touched)
                if node is not None:
                    self.fold(node)
        if self.rng.random() < 0.1:
            gap = self.live.next_rowid + self.rng.randrange(1, 10)
            for state in (self.live, self.replayed):
                state.skip_to(gap)

    def fold(self, node: RowNode) -> None:
        """One node into both states and the list."""
        node.first_rowid = self.live.next_rowid
        decoded = through_bytes(node, self.schema)
        self._note(node)
        fold(self.live, node, self.ts)
        fold(self.replayed, decoded, self.ts)

    def rows_at(self, ts: int) -> list[tuple[Any, ...]]:
        """What a snapshot sees, in RowID order."""
        seen = [v for v in self.versions.values() if v.began <= ts < v.ended]
        return [v.row for v in sorted(seen)]

    def locate(self, key: Any, ts: int) -> int:
        """The RowID of the visible version of a key, 0 when there is none."""
        for version in self.versions.values():
            if version.key == key and version.began <= ts < version.ended:
                return version.rowid
        return 0

    def keys(self) -> list[Any]:
        """Every key that was ever used, and one that never was."""
        return sorted({v.key for v in self.versions.values()} | {self._key(self._row(99, 0))})

    def check(self, state: TableState, floor: int = 0) -> None:
        """The state shows every snapshot from the floor on as the list does."""
        for ts in range(floor, self.ts + 1):
            table = scan_table(state, ts)
            assert table.schema == self.schema.arrow
            assert self.schema.from_table(table) == self.rows_at(ts), (self.kind, ts)
            assert count_rows(state, ts) == len(self.rows_at(ts))
            if state.key_of is not None:
                for key in self.keys():
                    assert state.locate(key, ts) == self.locate(key, ts), (self.kind, key, ts)

    # What may happen.

    def _living(self, touched: set[int]) -> list[Version]:
        return sorted(
            v for v in self.versions.values() if v.ended == NEVER and v.rowid not in touched
        )

    def _row(self, number: int, n: int) -> tuple[Any, ...]:
        return (number, f"k{number:02d}", n)

    def _key(self, row: tuple[Any, ...]) -> Any:
        return None if self.live.key_of is None else self.live.key_of(row)

    def _append(self, touched: set[int]) -> RowNode | None:
        taken = {v.row[0] for v in self._living(set())} if self.kind != "none" else set()
        free = [n for n in range(20) if n not in taken]
        chosen = self.rng.sample(free, min(len(free), self.rng.choice([1, 1, 2, 6])))
        rows = [self._row(n, self.rng.randrange(100)) for n in chosen]
        if not rows:
            return None
        if self.rng.random() < 0.5:
            return Append(1, rows)
        table = self.schema.to_table(rows)
        return Append(1, table=table, run=key_run(table, self.schema))

    def _update(self, touched: set[int]) -> RowNode | None:
        chosen = self._pick(touched)
        if not chosen:
            return None
        rows = [(*v.row[:2], self.rng.randrange(100)) for v in chosen]
        targets = [v.rowid for v in chosen]
        touched.update(targets)
        touched.update(range(self.live.next_rowid, self.live.next_rowid + len(rows)))
        if self.rng.random() < 0.5:
            return Update(1, targets, (3,), rows)
        table = self.schema.to_table(rows)
        keys = [v.key for v in chosen]
        run = key_run(table, self.schema)
        return Update(1, np.array(targets, np.int64), (3,), table=table, keys=keys, run=run)

    def _delete(self, touched: set[int]) -> RowNode | None:
        chosen = self._pick(touched)
        if not chosen:
            return None
        targets, keys = [v.rowid for v in chosen], [v.key for v in chosen]
        touched.update(targets)
        if self.rng.random() < 0.5:
            return Delete(1, targets, keys)
        return Delete(1, np.array(targets, np.int64), keys)

    def _pick(self, touched: set[int]) -> list[Version]:
        living = self._living(touched)
        count = min(len(living), self.rng.choice([1, 1, 2, 5]))
        return sorted(self.rng.sample(living, count))

    def _note(self, node: RowNode) -> None:
        if not isinstance(node, Append):
            for target in np.asarray(node.targets).tolist():
                self.versions[target] = self.versions[target]._replace(ended=self.ts)
        if not isinstance(node, Delete):
            rows: Sequence[Any] = node.rows
            if node.table is not None:
                rows = self.schema.from_table(node.table)
            for offset, row in enumerate(rows):
                rowid = node.first_rowid + offset
                self.versions[rowid] = Version(rowid, self._key(row), row, self.ts, NEVER)


def tombstones(state: TableState) -> dict[int, tuple[Any, ...]]:
    """RowID -> (commit_ts, successor, changed, key), whatever form they are held in."""
    found = {rowid: tuple(state.deletes.find(rowid) or ()) for rowid in state.deletes.ended}
    for run in state.deletes.runs:
        found.update({int(rowid): tuple(run.at(at)) for at, rowid in enumerate(run.rowids)})
    return found


def contents(state: TableState) -> dict[int, tuple[Any, int]]:
    """RowID -> (row, stamp) of everything in the pages."""
    return {
        rowid: (page.row(rowid), page.stamp(rowid))
        for page, count in state.shape.counted()
        for rowid in page.rowid_array(count).tolist()
    }


def table_of(rows: list[tuple[Any, ...]], schema: Schema) -> pa.Table:
    """Rows as the Arrow table a bulk node carries."""
    return schema.to_table(rows)


def commit_together(
    db: Any,
    state: TableState,
    rows: Sequence[Any],
    snapshots: Sequence[int] = (),
    serials: Sequence[Serial] = (),
) -> list[int]:
    """Commit rows as the owner does with those that several processes insert at one moment."""
    assert state.key_of is not None
    singles = [(state, state.key_of(row), row, 0, ()) for row in rows]
    bodies = [state.schema.encode_rows([row]) for row in rows]
    given = snapshots or [db.visible_ts] * len(rows)
    return commit_rows(db.core.writing, singles, given, bodies, serials)

"""Redo: what a checkpoint left in the log is folded again, and nothing else of it.

    checkpoint at order O     log  |.... start ........................ O ............. end|
    objects, catalog, tokens,           '-- redo: rows and tombstones --' '-- fold_record --'
    sequences: all up to O                  of L0, by bounds

A checkpoint holds everything up to its order except what was in L0: rows that had not moved into an
object, and tombstones that had not been flushed. Those are still in the log, among much that the
checkpoint has. Three bounds of each table tell them apart (W-17):

    need_ts      nothing of this table in L0 came with a commit before it: skip the node unread
    moved_rowid  rows below it are in objects, or were dropped because no snapshot can see them
    flushed_ts   tombstones up to it are in objects

A tombstone up to `flushed_ts` is kept all the same if its row may be in L0, for scans of L0 ask
memory alone. "May be": its RowID is at or above `moved_rowid`. That takes in some whose rows are in
bulk objects; they stand in both places then, which is harmless.

Versions that undo GC had taken out of L0 come back here, and so do their tombstones, which stand
behind them in the log: no snapshot at or above the floor sees a difference.

Not here: finding the checkpoint and the start (checkpoint/), what follows O (engine.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from halocline.log import ACS, COMMITS, DML_A, DML_D, DML_U, Record
from halocline.rows.deletes import TombstoneRun
from halocline.rows.engine import EngineState, fold_node
from halocline.rows.memtree import Run
from halocline.rows.nodes import Append, Delete, Node, Update, decode_node, table_of
from halocline.rows.several import each
from halocline.rows.state import TableState
from halocline.rows.system import decode_info

_ROWS = frozenset({DML_A, DML_D, DML_U})


class Bounds(NamedTuple):
    """What of one table is not in the checkpoint."""

    need_ts: int
    moved_rowid: int
    flushed_ts: int


def redo(engine: EngineState, record: Record, bounds: Mapping[int, Bounds]) -> int:
    """Fold again what L0 needs of a record up to the checkpoint's order; returns its commit_ts.

    0 for a system record: all of those are in the checkpoint.
    """
    if record.group != COMMITS:
        return 0
    if record.type == ACS:
        return max(redo(engine, one, bounds) for one in each(record))
    ts = decode_info(record.info).commit_ts
    for kind, payload in record.nodes:
        if kind not in _ROWS:
            continue
        table_id = table_of(payload)
        bound = bounds.get(table_id)
        # A table that the checkpoint does not know was dropped, and no snapshot can see it.
        if bound is not None and ts >= bound.need_ts:
            state = engine.tables[table_id]
            engine.folded.add(table_id)
            _redo_node(state, decode_node(kind, payload, state.schema), ts, bound)
    return ts


def _redo_node(state: TableState, node: Node, ts: int, bound: Bounds) -> None:
    moved = max(0, bound.moved_rowid - node.first_rowid)
    if ts > bound.flushed_ts and (not moved or isinstance(node, Delete)):
        fold_node(state, node, ts)
        return
    if not isinstance(node, Delete):
        rows = _rows_after(node, moved)
        if rows is not None:
            fold_node(state, rows, ts)
    if not isinstance(node, Append):
        lowest = bound.moved_rowid if ts <= bound.flushed_ts else 0
        _end_from(state, node, ts, lowest)


def _rows_after(node: Append | Update, moved: int) -> Append | None:
    """The new rows of a node, less the first ones; None when nothing is left."""
    if moved >= node.count:
        return None
    first = node.first_rowid + moved
    if node.table is None:
        return Append(node.table_id, rows=node.rows[moved:], first_rowid=first)
    run = node.run
    if run is not None and moved:
        kept = run.rowids >= moved
        keys = run.keys
        left = (
            keys[kept]
            if isinstance(keys, np.ndarray)
            else [key for key, keep in zip(keys, kept.tolist(), strict=True) if keep]
        )
        run = Run(left, run.rowids[kept] - moved)
    return Append(node.table_id, table=node.table.slice(moved), run=run, first_rowid=first)


def _end_from(state: TableState, node: Update | Delete, ts: int, lowest: int) -> None:
    """The tombstones of a node whose targets are at or above `lowest`."""
    successor, keys, changed = 0, node.keys, node.changed
    if isinstance(node, Update):
        successor = node.first_rowid
        if node.table is None and state.key_of is not None:
            keys = [state.key_of(row) for row in node.rows]
        elif node.table is None:
            keys = [None] * len(node.rows)
    if not isinstance(node.targets, np.ndarray):
        for place, target in enumerate(node.targets):
            if target >= lowest:
                state.delete([target], [keys[place]], ts)
                if successor:  # it lives on: the tombstone says as what
                    tombstone = (ts, successor + place, changed, keys[place])
                    state.deletes.ended[target] = tombstone
        return
    places = np.flatnonzero(node.targets >= lowest)
    if len(places):
        after = successor + places if successor else None
        if isinstance(node, Delete) and node.successors is not None:
            after = node.successors[places]
        run = TombstoneRun.of_commit(
            node.targets[places],
            ts,
            keys=[keys[place] for place in places.tolist()],
            successors=after,
            changed=changed,
        )
        state.end_run(run)

"""Redo: what a checkpoint left in the log is folded again, and nothing else of it.

    checkpoint at order O     log  |.... start ........................ O ............. end|
    objects, catalog, tokens,           '-- redo: rows and tombstones --' '-- fold_record --'
    sequences: all up to O                  of L0, by bounds

A checkpoint holds everything up to its order except what was in L0: rows that had not moved into an
object, and tombstones that had not been flushed. Those are still in the log, among much that the
checkpoint has. Three bounds of each table tell them apart:

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

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from halocline.log.record import DML_A, DML_D, DML_U, Info, Record
from halocline.rows import nodes
from halocline.rows.engine import EngineState
from halocline.rows.state import TableState
from halocline.schema.batches import Int64Array

_ROWS = frozenset({DML_A, DML_D, DML_U})


class Bounds(NamedTuple):
    """What of one table is not in the checkpoint."""

    need_ts: int
    moved_rowid: int
    flushed_ts: int


def redo(engine: EngineState, record: Record, bounds: Mapping[int, Bounds]) -> int:
    """Fold again what L0 needs of a record up to the checkpoint's order.

    Returns its last commit_ts; 0 for a system record: all of those are in the checkpoint.
    """
    info = record.info
    if info is None:
        return 0
    last = info.first_ts + info.commits - 1
    for kind, payload in record.nodes:
        if kind not in _ROWS:
            continue
        table_id = nodes.table_of(payload)
        bound = bounds.get(table_id)
        # A table that the checkpoint does not know was dropped, and no snapshot can see it.
        if bound is not None and last >= bound.need_ts:
            state = engine.tables[table_id]
            engine.folded.add(table_id)
            node = nodes.decode_node(kind, payload, state.schema_at(nodes.version_of(payload)))
            state.open_page(node.version)
            if info.commits > 1:
                nodes.check_rows_of_each(info, [node], len(record.nodes))
                _redo_rows_of_each(state, node, info, bound)
            else:
                _redo_node(state, node, last, bound)
    return last


def _redo_rows_of_each(state: TableState, node: nodes.RowNode, info: Info, bound: Bounds) -> None:
    """A row of each of several transactions: a bound may lie between two of them."""
    assert isinstance(node, nodes.Append)
    skipped = max(0, bound.moved_rowid - node.first_rowid, bound.need_ts - info.first_ts)
    rows = _rows_after(node, skipped)
    if rows is not None:
        state.fold(rows, info.first_ts + skipped, rows.count)


def _redo_node(state: TableState, node: nodes.RowNode, ts: int, bound: Bounds) -> None:
    moved = max(0, bound.moved_rowid - node.first_rowid)
    if ts > bound.flushed_ts and (not moved or isinstance(node, nodes.Delete)):
        state.fold(node, ts)
        return
    if not isinstance(node, nodes.Delete):
        rows = _rows_after(node, moved)
        if rows is not None:
            state.fold(rows, ts)
    if not isinstance(node, nodes.Append):
        lowest = bound.moved_rowid if ts <= bound.flushed_ts else 0
        ended = _ends_from(state, node, lowest)
        if len(ended.targets):
            state.fold(ended, ts)


def _rows_after(node: nodes.Append | nodes.Update, moved: int) -> nodes.Append | None:
    """The new rows of a node, less the first ones; None when nothing is left."""
    if moved >= node.count:
        return None
    first = node.first_rowid + moved
    if node.table is None:
        return nodes.Append(node.table_id, rows=node.rows[moved:], first_rowid=first)
    run = node.run
    if run is not None and moved:
        run = run.kept(run.rowids >= moved).shifted(-moved)
    return nodes.Append(node.table_id, table=node.table.slice(moved), run=run, first_rowid=first)


def _ends_from(state: TableState, node: nodes.Update | nodes.Delete, lowest: int) -> nodes.Delete:
    """What a node ends, less the targets below `lowest`."""
    targets, keys = np.asarray(node.targets, dtype=np.int64), node.keys
    after = None if isinstance(node, nodes.Update) else node.successors
    if isinstance(node, nodes.Update):
        after = np.arange(node.first_rowid, node.first_rowid + node.count, dtype=np.int64)
        if node.table is None:
            key_of = state.row_key_of
            keys = [None if key_of is None else key_of(row) for row in node.rows]
    places = np.flatnonzero(targets >= lowest)
    left: Sequence[int] | Int64Array = targets[places]
    if not isinstance(node.targets, np.ndarray):
        left = targets[places].tolist()
    return nodes.Delete(
        node.table_id,
        left,
        [keys[place] for place in places.tolist()],
        successors=None if after is None else np.asarray(after)[places],
        changed=node.changed,
    )

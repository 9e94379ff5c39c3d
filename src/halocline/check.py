"""db.check(): what must hold in memory, verified from scratch.

- Stamps ascend through the pages of a table and RowID ranges never overlap.
- No primary key has two live rows, and the memtree finds the live row of every key.
- Every tombstone names a version that exists or has been removed below the floor, and a successor
  that exists and carries the same key.
"""

from __future__ import annotations

from halocline.rows import EngineState, TableState
from halocline.rows.deletes import Tombstone


def check_engine(engine: EngineState) -> list[str]:
    """Every problem found in any table."""
    problems = []
    for state in list(engine.tables.values()):
        problems += [f"table {state.entry.name!r}: {text}" for text in _check_table(state)]
    return problems


def _check_table(state: TableState) -> list[str]:
    return [*_check_pages(state), *_check_keys(state), *_check_tombstones(state)]


def _check_pages(state: TableState) -> list[str]:
    problems = []
    end, stamp = 0, 0
    for page, count in state.pages():
        stamps = page.stamp_array(count)
        if page.start < end:
            problems.append(f"page at RowID {page.start} overlaps the one before it")
        if count and (stamps[0] < stamp or (stamps[1:] < stamps[:-1]).any()):
            problems.append(f"commit timestamps fall in the page at RowID {page.start}")
        end = page.end
        stamp = int(stamps[-1]) if count else stamp
    if state.next_rowid < end:
        problems.append(f"next RowID {state.next_rowid} lies below the rows")
    return problems


def _check_keys(state: TableState) -> list[str]:
    if state.key_of is None:
        return []
    problems = []
    live: dict[object, int] = {}
    for page, count in state.pages():
        for rowid in page.rowid_array(count).tolist():
            row = page.row(rowid)
            if row is None or state.deletes.find(rowid) is not None:
                continue
            key = state.key_of(row)
            if key in live:
                problems.append(f"key {key!r} is live twice: RowIDs {live[key]} and {rowid}")
            live[key] = rowid
            if state.tree.newest(key) != rowid:
                problems.append(f"the memtree does not find the live row of key {key!r}")
    return problems


def _check_tombstones(state: TableState) -> list[str]:
    problems = []
    tombstones = [(rowid, Tombstone(*one)) for rowid, one in state.deletes.ended.items()]
    for run in state.deletes.runs:
        tombstones += list(run.items())
    for rowid, tombstone in tombstones:
        if not tombstone.successor:
            continue
        row = state.row(tombstone.successor)
        if row is not None and state.key_of is not None and state.key_of(row) != tombstone.key:
            problems.append(f"the successor of RowID {rowid} has another key")
    return problems

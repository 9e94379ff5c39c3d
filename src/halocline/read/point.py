"""Point reads: one key -> the version that is visible at a timestamp, wherever it is.

    memtree --newest RowID--> still alive and not newer than S? --> row of its page
                                    | no              | its page has left L0
                                    v                 v
              walk the key's versions, newest first;  objects by key range, bloom filter, block
              none in L0: the objects                 --> stamp <= S and no tombstone --> its row

A memory hit answers alone only when it is the newest visible version: a live row in L0. A
key that L0 does not know, or knows only dead versions of, may be live in an object, since bulk
commits bring objects whose keys never were in memory. At most one version of a key is visible at a
timestamp, so the first that is found is the answer.

Reading without a lock: memtree, deletion buffer, then the shape (rows/state.py). Whether a row of
an object has ended is asked afterwards (ended.py says why that is right, too).
"""

from __future__ import annotations

from typing import Any

from halocline.catalog.entries import ObjectEntry
from halocline.objects.finder import RowPosition
from halocline.read.ended import is_ended
from halocline.rows.state import TableState
from halocline.schema.compiled import Row


def find(state: TableState, key: Any, ts: int) -> int:
    """RowID of the version of `key` visible at `ts`, 0 when there is none."""
    rowid = _find_in_memory(state, key, ts)
    # Asking for the dict of the tier, not for its truth, saves a call of 0.1 us.
    if not state.shape.tier.by_id or (rowid and state.row(rowid) is not None):
        return rowid
    found = _find_in_objects(state, key, ts)
    return 0 if found is None else found[1].rowid


def get(state: TableState, key: Any, ts: int) -> Row | None:
    """The row of `key` visible at `ts`."""
    found = find_row(state, key, ts)
    return None if found is None else found[1]


def find_row(state: TableState, key: Any, ts: int) -> tuple[int, Row] | None:
    """RowID and row of the version of `key` visible at `ts`."""
    rowid = _find_in_memory(state, key, ts)
    row = state.row(rowid) if rowid else None
    if row is not None:
        return rowid, row
    found = _find_in_objects(state, key, ts) if state.shape.tier.by_id else None
    if found is None:
        return None
    entry, position = found
    assert state.finder is not None
    assert entry.file is not None
    return position.rowid, state.finder.row(entry.file, position)


def _find_in_memory(state: TableState, key: Any, ts: int) -> int:
    """RowID of the version that the memtree knows as visible at `ts`; its page may have left L0.

    The short way costs 0.3 us: look first, then make sure that nothing newer than the snapshot had
    been folded when we looked (rows/state.py says why that order is right).
    """
    tree, deletes = state.tree, state.deletes
    rowid = tree.newest(key) if tree.runs else tree.recent.get(key, 0)
    ended = rowid in deletes.ended or (deletes.runs and deletes.find(rowid) is not None)
    if state.last_ts > ts:
        return state.locate(key, ts)
    return 0 if ended else rowid


def _find_in_objects(
    state: TableState, key: Any, ts: int
) -> tuple[ObjectEntry, RowPosition] | None:
    """Where the version is that objects hold, if it is visible at `ts`."""
    finder = state.finder
    assert finder is not None
    key_bytes = state.schema.key_bytes(key)
    for entry in state.shape.tier.holding(key_bytes):
        if entry.counts_at(ts):
            assert entry.file is not None
            for position in finder.locate(entry.file, key):
                if position.commit_ts <= ts and not is_ended(state, position.rowid, key_bytes, ts):
                    return entry, position
    return None

"""Together: single rows that several processes insert at the same moment are one entry of the log.

    rows of one table, each from a snapshot of its own
      '-> commit lock: check each --those that are plain--> timestamps and RowIDs in a row,
                                                            fold all, append one entry (ACS)

Each row stays a transaction: it has its own timestamp, its own checks and its own outcome, and may
be seen without the others. Only the steps that they all need are done once, and whoever follows
the log takes apart one entry instead of five (rows/several.py, decision 0012).

Why it is right: it is `Committer.commit_single` for one row after the other without letting go of
the lock in between, and with all of the log behind all of the fold, as it is there for one.
"""

from __future__ import annotations

from collections.abc import Sequence

from halocline.log import ACS, COMMITS, DML_A
from halocline.rows.memtree import Key
from halocline.rows.onerow import ONE_ROW_BYTES, append_rows, one_row_record
from halocline.rows.page import Row
from halocline.rows.state import TableState
from halocline.schema.codec import encode as encode_rows
from halocline.txn.commit import Committer


def commit_inserts(
    committer: Committer, state: TableState, snapshots: Sequence[int], rows: Sequence[Row]
) -> list[int]:
    """The commit_ts of each row, 0 for those that another way must decide. Durable and visible
    after the next `sync`."""
    assert state.key_of is not None
    keys = list(map(state.key_of, rows))
    engine, log, table_id = committer.engine, committer.log, state.table_id
    with committer.lock:
        places = _plain(committer, state, snapshots, keys)
        if len(places) < 2:
            return [0] * len(rows)
        if len(places) < len(rows):
            keys, rows = [keys[at] for at in places], [rows[at] for at in places]
        body = encode_rows(rows)
        log.reserve(len(body) + ONE_ROW_BYTES)
        first, rowid = committer.next_ts, state.next_rowid
        stamps = range(first, first + len(places))
        last_ts = stamps[-1]
        try:
            committer.next_ts = last_ts + 1
            wall_us = max(committer.clock.wall_us(), engine.wall_us)
            record = one_row_record(
                committer.next_id(), first, wall_us, log.epoch, DML_A, table_id, rowid, body
            )
            state.last_ts = last_ts
            append_rows(state, rowid, keys, rows, stamps)
            engine.last_ts = last_ts
            engine.wall_us = wall_us
            engine.times.extend(stamps, [wall_us] * len(stamps))
            # Fold first: once it is in the log it may become visible at any moment.
            log.append(COMMITS, ACS, record, last_ts)
        except BaseException as error:
            log.poison(error)
            raise
    given = [0] * len(snapshots)
    for at, commit_ts in zip(places, stamps, strict=True):
        given[at] = commit_ts
    return given


def _plain(
    committer: Committer, state: TableState, snapshots: Sequence[int], keys: Sequence[Key]
) -> list[int]:
    """Places of the rows that nothing stands in the way of: of whose keys memory has no version.
    Caller holds the commit lock."""
    engine, many = committer.engine, len(keys)
    if (
        committer.stopped
        or committer.next_ts + many >= engine.ts_ceiling
        or state.next_rowid + many >= engine.rowid_ceiling
    ):
        return []
    tree = state.tree
    newest = tree.newest if tree.runs else tree.recent.get
    oldest = max(engine.catalog.last_ddl_ts, state.shape.tier.last_bulk_ts)
    seen: set[Key] = set()
    places = []
    for place, key in enumerate(keys):
        if oldest <= snapshots[place] <= engine.last_ts and not newest(key) and key not in seen:
            seen.add(key)
            places.append(place)
    return places

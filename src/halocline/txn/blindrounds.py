"""Rounds of a blind job: which of its keys have others touched, and when is that little enough?

    outside the lock   round 1: keys touched since the snapshot, as memory and new objects tell
                       round 2: ... since round 1 ...            until a round brings few
    under the lock     the last round: these few keys, memory only, added to the record as it is
                         '-- objects have come, or a file would have to be read: once more outside

Where others wrote single rows, memory alone tells what is live: whatever touched a key last has
left a young version in the memtree, or a tombstone and no such version. So a round reads no object
of the table; it does only when others have brought objects. The commit lock is taken for a moment
in each round, to learn up to which timestamp everything is folded.

A TRUNCATE that ended objects wins over a job that found rows of the table: nothing is left of what
it was told to update, to ignore or to delete. One that found none goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any, Final

import numpy as np

from halocline.read.lookup import key_columns, locate_many
from halocline.rows.members import distinct
from halocline.rows.page import ActivePage, Int64Array, Row
from halocline.rows.state import TableState
from halocline.txn.blind import Blind
from halocline.txn.bulkcheck import read_row
from halocline.txn.conflict import conflict, moved_keys
from halocline.txn.objectparts import file_of
from halocline.txn.workspace import TableChanges

ROUNDS_MAX: Final = 8
LOCKED_MAX: Final = 1024
"""So many keys are looked at under the lock, at 3 us each."""
Keys = Sequence[Any] | Int64Array


class BlindRounds:
    """The check of one table's workspace that belongs to a blind job; the same calls as Rounds."""

    __slots__ = ("_blind", "_since", "changes", "snapshot")

    def __init__(self, changes: TableChanges, snapshot: int) -> None:
        assert changes.blind is not None
        self.changes = changes
        self.snapshot = snapshot
        self._blind: Blind = changes.blind
        self._since = snapshot

    def outside(self, lock: Lock) -> None:
        """Look at what others have touched until that is little."""
        state = self.changes.home
        if state.last_ts <= self._since:
            return
        self._blind.load_keys()
        for _ in range(ROUNDS_MAX):
            with lock:
                until = state.last_ts  # everything up to it is folded
            if until <= self._since or self._round(until) <= LOCKED_MAX // 8:
                return

    def inside(self) -> bool:
        """The last round; False when there is something left to be done outside.

        Caller holds the commit lock.
        """
        state, blind = self.changes.home, self._blind
        if state.last_ts <= self._since:
            return True
        if state.shape.tier.last_bulk_ts > self._since or _has_ghosts(state, self._since):
            return False
        keys = touched(state, self._since, state.last_ts)
        if len(keys) > LOCKED_MAX:
            return False
        if not blind.may_add and any(map(blind.may_hold, _plain(keys))):
            return False
        self._meet(keys, state.last_ts, exact=False)
        self._since = state.last_ts
        return True

    def all_inside(self) -> bool:
        """Everything that is left, whatever it takes. Caller holds the commit lock.

        False: what was prepared stays as it is, and what is new is added to it.
        """
        if self.changes.home.last_ts > self._since:
            self._round(self.changes.home.last_ts)
        return not self._blind.brings_objects or self._blind.takes_back

    def _round(self, until: int) -> int:
        """Look at all that came after the last round; returns how many keys that was."""
        state = self.changes.home
        tier = state.shape.tier
        if tier.last_truncate_ts > self.snapshot and self._blind.met_rows:
            reason = "the table was truncated by another transaction"
            raise conflict(self.changes, reason, None, tier.last_truncate_ts)
        exact = tier.last_bulk_ts > self._since
        keys = touched(state, self._since, until)
        count = len(keys)
        self._meet(keys, until, exact=exact)
        if exact:
            names = list(state.schema.primary_key)
            brought = [one for one in tier.bulk_since(self._since) if one.created_at <= until]
            for entry in brought:
                for table in state.shelf.reader.scan(
                    file_of(entry), state.schema, columns=names, hidden=()
                ):
                    self._meet(_keys_of(state, table), until, exact=True)
        self._since = until
        return count

    def _meet(self, keys: Keys, until: int, *, exact: bool) -> None:
        """Decide again for those of the keys that are ours."""
        hits = self._blind.find(keys) if len(keys) else []
        if not hits:
            return
        state = self.changes.home
        places = np.array([at for at, _, _ in hits], dtype=np.int64)
        if exact:
            table = key_columns(state.schema, keys, places)
            wanted = _keys_of(state, table)
            newest = locate_many(state, wanted, until, table=table).rowids.tolist()
        else:
            newest = [_live(state, keys[at], self._since) for at in places.tolist()]

        def row_of(key: Any, rowid: int) -> Row:
            return read_row(state, key, rowid)

        self._blind.settle(hits, keys, newest, row_of)


def _live(state: TableState, key: Any, since: int) -> int:
    """The live version of a key that single rows touched after `since`, 0 when there is none.

    Such a version is as young as the touch. An older one that memory knows has ended: perhaps in an
    object, which memory need not know.
    """
    key = key.item() if isinstance(key, np.integer) else key
    rowid = state.tree.newest(key)
    if not rowid or state.deletes.find(rowid) is not None:
        return 0
    stamp = state.stamp(rowid)
    # What came with a TRUNCATE has its very timestamp, and lives.
    return rowid if stamp > since and stamp >= state.shape.tier.last_truncate_ts else 0


def touched(state: TableState, since: int, until: int) -> Keys:
    """Keys, each once, of all versions that began or ended in (since, until], as memory tells."""
    schema = state.schema
    _, _, _, ended = state.deletes.between(since, until)
    parts: list[Keys] = [ended]
    for page, count in reversed(state.pages()):
        begin, end = page.visible_count(count, since), page.visible_count(count, until)
        if begin < end:
            if isinstance(page, ActivePage):
                assert state.key_of is not None
                parts.append(list(map(state.key_of, page.rows[begin:end])))
            else:
                parts.append(_keys_of(state, page.batch(end).slice(begin, end - begin)))
        if begin:
            break
    # After the pages: a row that has left them meanwhile is here.
    ghosts = [one.rowids[(one.stamps > since) & (one.stamps <= until)] for one in state.ghosts]
    gone = np.concatenate([np.zeros(0, dtype=np.int64), *ghosts])
    if len(gone):
        parts.append([key for key, _ in moved_keys(state, np.sort(gone))])
    if schema.int_key:
        return distinct(np.concatenate([np.asarray(part, dtype=np.int64) for part in parts]))
    return list(dict.fromkeys(key for part in parts for key in _plain(part)))


def _has_ghosts(state: TableState, since: int) -> bool:
    """Have rows that are newer than `since` left L0 already?"""
    return any(len(one.stamps) and int(one.stamps[-1]) > since for one in state.ghosts)


def _keys_of(state: TableState, table: Any) -> Keys:
    schema = state.schema
    return schema.int_keys(table) if schema.int_key else schema.keys_of(table)


def _plain(keys: Keys) -> Sequence[Any]:
    return keys.tolist() if isinstance(keys, np.ndarray) else keys

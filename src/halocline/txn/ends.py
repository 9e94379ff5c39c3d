"""Ends: versions that a transaction ends, many at once, and what follows each of them.

The one shape for this in a workspace, whoever asks for it: a bulk update or delete in memory
(workspace.py), a tombstone object of the transaction itself or of a task (objectparts.py), or a
TRUNCATE (check.py). A record writes it down as a bulk node, and the deletion buffer links that.

A version can be taken back: it is *dropped*, and its place counts no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from pyroaring import BitMap

from halocline.rows.members import places_in
from halocline.schema.batches import Int64Array


class Ends:
    """Versions that end, ascending by RowID."""

    __slots__ = ("changed", "dropped", "keys", "rowids", "successors")

    def __init__(
        self,
        rowids: Int64Array,
        *,
        keys: Sequence[Any] = (),
        successors: Int64Array | None = None,
        changed: frozenset[int] = frozenset(),
    ) -> None:
        self.rowids = rowids
        self.keys = keys
        """Their keys; none where a file has them."""
        self.successors = successors
        """RowIDs of rows in objects that follow; None when none do, or get theirs at the commit."""
        self.changed = changed
        """Positions of the columns that an update wrote."""
        self.dropped = BitMap()

    def __len__(self) -> int:
        return len(self.rowids) - len(self.dropped)

    def find(self, rowid: int) -> int:
        """The place of a version, -1 when it does not end here."""
        place = int(self.rowids.searchsorted(rowid))
        hit = place < len(self.rowids) and self.rowids[place] == rowid
        return place if hit and place not in self.dropped else -1

    def met(self, rowids: Int64Array) -> list[int]:
        """The places of those of these versions that end here."""
        return [at for at in places_in(self.rowids, rowids).tolist() if at not in self.dropped]

    def succeeded_by(self, rowids: Int64Array) -> Int64Array:
        """For each of these rows of objects the place where it is the successor, -1: nowhere."""
        places = np.full(len(rowids), -1, dtype=np.int64)
        kept = self.kept()
        if self.successors is None or not len(kept):
            return places
        after = self.successors[kept]
        order = np.argsort(after)
        near = np.minimum(np.searchsorted(after, rowids, sorter=order), len(after) - 1)
        hit = after[order][near] == rowids
        places[hit] = kept[order][near[hit]]
        return places

    def drop(self, places: Iterable[int]) -> None:
        """These versions do not end here after all."""
        self.dropped.update(places)

    def kept(self) -> Int64Array:
        """Places that were not dropped."""
        return kept_places(len(self.rowids), self.dropped)

    def live(self) -> Int64Array:
        """RowIDs of the versions that do end."""
        return self.rowids[self.kept()] if self.dropped else self.rowids


def kept_places(count: int, dropped: BitMap) -> Int64Array:
    """Places below `count` that were not dropped."""
    mask = np.ones(count, dtype=np.bool_)
    if dropped:
        mask[np.fromiter(dropped, np.int64, len(dropped))] = False
    return np.nonzero(mask)[0]

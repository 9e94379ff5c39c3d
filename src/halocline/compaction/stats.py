"""What a compaction planner may know of objects, and which tombstone objects concern which others.

A tombstone concerns an object iff its key *and* its RowID lie in the object's ranges; a tombstone
object can therefore only concern an object if both ranges meet. Ranges of keys are compared as
key bytes; a table without a key has none, and RowIDs alone decide.

    Reach(objects).met_by(x)       data objects that tombstone object x may have a row in
    Reach(objects).counts(data)    for each tombstone object, how many of these it may concern
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from halocline.ids import ObjectId

Ints = npt.NDArray[np.int64]
_NO_KEY = (-1, 1 << 62)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputStats:
    """All the planner may know of an object; never its rows. Ranges include both ends."""

    id: ObjectId
    kind: Literal["data", "tombstone"] = "data"
    level: int = 1
    rows: int
    dead_rows: int = 0
    """Rows of a data object that have ended, by tombstones anywhere."""
    size_bytes: int
    key_min: bytes | None = None
    key_max: bytes | None = None
    rowid_min: int
    rowid_max: int
    outdated: bool = False
    """A data object with other columns than the table has now."""

    def __post_init__(self) -> None:
        assert 0 <= self.dead_rows <= self.rows
        assert self.rowid_min <= self.rowid_max
        assert (self.key_min is None) == (self.key_max is None)
        assert self.key_min is None or self.key_max is None or self.key_min <= self.key_max

    @property
    def live_rows(self) -> int:
        """Rows that a rewrite would keep."""
        return self.rows - self.dead_rows


class Burden(NamedTuple):
    """What rewriting all objects that a tombstone object concerns would mean."""

    objects: int
    live_rows: int
    size_bytes: int


class Reach:
    """Which data objects and tombstone objects have to do with each other.

    Comparing one object with all of the other kind is one numpy expression (30 us for 10,000),
    which needs no index and has no bad case.
    """

    def __init__(self, objects: Sequence[InputStats]) -> None:
        self.data = [one for one in objects if one.kind == "data"]
        self.tombstones = [one for one in objects if one.kind == "tombstone"]
        ends = {key for one in objects for key in (one.key_min, one.key_max) if key is not None}
        self._keys = sorted(ends) if self.tombstones else []
        self._data = self._ranges(self.data if self.tombstones else [])
        self._tombstones = self._ranges(self.tombstones)

    def met_by(self, tombstone: InputStats) -> list[InputStats]:
        """The data objects that a tombstone object may concern."""
        places = np.flatnonzero(_meeting(self._data, self._range(tombstone)))
        return [self.data[place] for place in places.tolist()]

    def counts(self, data: Iterable[InputStats]) -> Ints:
        """For each tombstone object, in order, how many of some data objects it may concern."""
        found = np.zeros(len(self.tombstones), dtype=np.int64)
        if len(found):
            for one in data:
                found += _meeting(self._tombstones, self._range(one))
        return found

    @cached_property
    def burdens(self) -> list[Burden]:
        """For each tombstone object, in order, all that it concerns."""
        live_rows = np.array([one.live_rows for one in self.data], dtype=np.int64)
        sizes = np.array([one.size_bytes for one in self.data], dtype=np.int64)
        burdens = []
        for one in self.tombstones:
            met = _meeting(self._data, self._range(one))
            burdens.append(Burden(int(met.sum()), int(live_rows[met].sum()), int(sizes[met].sum())))
        return burdens

    def _ranges(self, objects: Sequence[InputStats]) -> Ints:
        return np.array([self._range(one) for one in objects], dtype=np.int64).reshape(-1, 4).T

    def _range(self, one: InputStats) -> tuple[int, int, int, int]:
        """RowIDs, and keys by their rank among all ends of ranges."""
        if one.key_min is None or one.key_max is None:
            return one.rowid_min, one.rowid_max, *_NO_KEY
        low, high = bisect_left(self._keys, one.key_min), bisect_left(self._keys, one.key_max)
        return one.rowid_min, one.rowid_max, low, high


def _meeting(ranges: Ints, other: tuple[int, int, int, int]) -> npt.NDArray[np.bool_]:
    rowid_min, rowid_max, key_min, key_max = ranges
    met: npt.NDArray[np.bool_] = (rowid_min <= other[1]) & (rowid_max >= other[0])
    met &= (key_min <= other[3]) & (key_max >= other[2])
    return met

"""Recent keys: when each key was last written, roughly, in memory that processes share.

    owner  --commit_ts of key-->  | epoch | since | general |  ts  |  ts  |  ts  |  ts  | ... |
    others <--"not since then"----'                            one place for a CRC of table and key

A process that inserts a row asks whether its key is taken. What it has folded it can look up; of
what was committed since, it need only know that nobody has written this key. Keys share places, so
a place can be newer than its key; it is never older. `general` is the newest commit that is not
that of one row: that may have written any key.

Nothing depends on it but the moment at which a duplicate is found: the owner checks every commit.
So there is no checksum, and integers are those of this machine, which is what makes them change in
one step.

Invariant: a commit is noted before it is in the log, and so before it is published.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final
from zlib import crc32

from halocline.codec import encode
from halocline.store.files import Mapped

PLACES: Final = 1 << 16
_HEAD: Final = Struct("QQQ")
_TS: Final = Struct("Q")
_GENERAL_AT: Final = 16
RECENT_BYTES: Final = _HEAD.size + PLACES * _TS.size
_PLAIN: Final = frozenset((int, str, bytes))
GENERAL: Final = -1


class RecentKeys:
    """The owner's side. Used under the commit lock."""

    def __init__(self, page: Mapped, at: int, epoch: int) -> None:
        self._page = page
        self._at = at
        self._epoch = epoch

    def begin(self, ts: int) -> None:
        """Every commit after this one will be noted."""
        _HEAD.pack_into(self._page, self._at, self._epoch, ts, ts)

    def put(self, commit_ts: int, place: int) -> None:
        """0.2 us."""
        at = _GENERAL_AT if place < 0 else _HEAD.size + place * _TS.size
        _TS.pack_into(self._page, self._at + at, commit_ts)


def may_be_newer(page: Mapped, at: int, epoch: int, ts: int, place: int) -> bool:
    """Can something have been written there after `ts`? False only if that is known. 0.3 us."""
    if place < 0 or len(page) < at + RECENT_BYTES:
        return True
    noted, since, general = _HEAD.unpack_from(page, at)
    if noted != epoch or since > ts or general > ts:
        return True
    return bool(_TS.unpack_from(page, at + _HEAD.size + place * _TS.size)[0] > ts)


def place_of(table_id: int, key: Any) -> int:
    """Equal keys have equal places. GENERAL for what is not plainly an integer, text or bytes."""
    cells = key if type(key) is tuple else (key,)
    if not _PLAIN.issuperset(map(type, cells)):
        return GENERAL
    return crc32(encode(cells), table_id & 0xFFFFFFFF) % PLACES

"""Recent keys: when each key was last written, roughly, in memory that processes share.

    owner  --commit_ts of key-->  | ... epoch since general |  ts  |  ts  |  ts  |  ts  | ... |
    others <--"not since then"----'                           one place for a CRC of table and key

A process that inserts a row asks whether its key is taken. What it has folded it can look up; of
what was committed since, it need only know that nobody has written this key. Keys share places, so
a place can be newer than its key; it is never older. `general` is the newest commit that is not
that of one row: that may have written any key.

Nothing depends on it but the moment at which a duplicate is found: the owner checks every commit.
So there is no checksum, and integers are those of this machine, which is what makes them change in
one step. The file is made of zeros when the first other process connects, not of a hole: a full
disk must not strike when memory is written to.

Invariant: a commit is noted before it is in the log, and so before it is published.
"""

from __future__ import annotations

from contextlib import suppress
from struct import Struct
from typing import Any, Final
from zlib import crc32

from halocline.codec import encode
from halocline.errors import CorruptionError
from halocline.store import Files
from halocline.store.files import Mapped

RECENT_PATH: Final = "recent"
MAGIC: Final = b"HALO-KEY"
VERSION: Final = 1
PLACES: Final = 1 << 16
GENERAL: Final = -1
_NAME: Final = Struct("8sQ16s")
_EPOCH: Final = Struct("Q")
_TIMES: Final = Struct("QQ")
_HEAD: Final = Struct("QQQ")
_TS: Final = Struct("Q")
_HEAD_AT: Final = _NAME.size
_TIMES_AT: Final = _HEAD_AT + _EPOCH.size
_GENERAL_AT: Final = _TIMES_AT + _TS.size
_PLACES_AT: Final = 64
_SIZE: Final = _PLACES_AT + PLACES * _TS.size
_PLAIN: Final = frozenset((int, str, bytes))


class RecentKeys:
    """The owner's side. Used under the commit lock."""

    def __init__(self, files: Files, uuid: bytes, epoch: int, ts: int) -> None:
        """Every commit after `ts` will be noted. OSError: there is no room for it."""
        self._page: Mapped = files.map(RECENT_PATH, _SIZE, writable=True)
        page = self._page
        # The epoch last: until it is there, nobody believes the rest.
        _EPOCH.pack_into(page, _HEAD_AT, 0)
        _NAME.pack_into(page, 0, MAGIC, VERSION, uuid)
        _TIMES.pack_into(page, _TIMES_AT, ts, ts)
        _EPOCH.pack_into(page, _HEAD_AT, epoch)

    def put(self, commit_ts: int, place: int) -> None:
        """0.2 us."""
        at = _GENERAL_AT if place < 0 else _PLACES_AT + place * _TS.size
        _TS.pack_into(self._page, at, commit_ts)


class RecentPage:
    """What others see of it. In any thread."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._page: Mapped | None = None
        self._epoch = 0

    def may_be_newer(self, uuid: bytes, epoch: int, ts: int, place: int) -> bool:
        """Can something have been written there after `ts`, up to a position of that epoch which
        was read before? False only if that is known. 0.4 us."""
        if epoch != self._epoch:  # another owner, which may have made another file
            self._page, self._epoch = self._open(uuid), epoch
        page = self._page
        if page is None or place < 0:
            return True
        noted, since, general = _HEAD.unpack_from(page, _HEAD_AT)
        if noted != epoch or since > ts or general > ts:
            return True
        return bool(_TS.unpack_from(page, _PLACES_AT + place * _TS.size)[0] > ts)

    def _open(self, uuid: bytes) -> Mapped | None:
        with suppress(OSError, CorruptionError):  # nobody has made one: then nothing is known
            page = self._files.map(RECENT_PATH, _SIZE, writable=False)
            if _NAME.unpack_from(page) == (MAGIC, VERSION, uuid):
                return page
        return None


def place_of(table_id: int, key: Any) -> int:
    """Equal keys have equal places. GENERAL for what is not plainly an integer, text or bytes."""
    cells = key if type(key) is tuple else (key,)
    if not _PLAIN.issuperset(map(type, cells)):
        return GENERAL
    return crc32(encode(cells), table_id & 0xFFFFFFFF) % PLACES

"""The published position: how far other processes may read, in one shared page of memory.

    writer --after each sync--> publish --> | uuid | seq epoch file offset visible_ts | crc | seq |
    reader <------------------- read <------|           the same again           one page, mapped

Readers never go beyond it, so they only ever see bytes that a power loss cannot take back, and
never have to unlearn anything.

A position is written in one copy, with the sequence number at both ends and a CRC between them, and
then a second time behind it. A reader copies it out; if the numbers differ or the CRC does not fit,
it takes the second one. So a writer that is interrupted inside a copy, for a moment or for ever,
hides nothing that it had published before: whoever was told of a commit finds it.

The page itself is never synced. After a power loss it may be old or torn, but never ahead of the
log: whatever it says was durable before it was said. So recovery takes it as a lower bound, and a
log that ends before it has lost bytes.

Behind the page stands a number that every opening for writing raises, and nobody else writes: the
claim. The lock keeps two writers apart; should it be lost (somebody deletes the file, a file system
forgets), the older one meets the claim of the younger before it acknowledges another commit.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from halocline.errors import CorruptionError
from halocline.log.names import PUBLISHED_PATH
from halocline.store import Files
from halocline.store.files import Mapped

_BODY: Final = Struct("<16sQQQQQ")
_PAGE: Final = Struct("<16sQQQQQIQ")
_LAST: Final = Struct("<Q")
_CLAIM_AT: Final = 72
_AGAIN_AT: Final = _CLAIM_AT + _LAST.size
"""The second copy. Older releases have none, and leave it as it is."""
_SIZE: Final = _AGAIN_AT + _PAGE.size
_TRIES: Final = 100
_new = tuple.__new__


class FencedError(OSError):
    """Another process has claimed the log: what we have synced since may not be in it."""


class Published(NamedTuple):
    """Everything before `offset` of file number `file` is durable; so is all up to visible_ts."""

    uuid: bytes
    sequence: int
    epoch: int
    file: int
    offset: int
    visible_ts: int


class Publisher:
    """The writer's side."""

    def __init__(self, files: Files, uuid: bytes, epoch: int) -> None:
        self._page = files.map(PUBLISHED_PATH, _SIZE, writable=True)
        self._claim = _LAST.unpack_from(self._page, _CLAIM_AT)[0]
        self._uuid = uuid
        self._epoch = epoch
        before = _whole(self._page)[1]
        mine = before is not None and before.uuid == uuid
        # Above all that earlier epochs have used, even if nothing is left of what they said: a
        # follower takes an equal number for "nothing new".
        self._sequence = max(before.sequence if before is not None and mine else 0, epoch << 32)
        self.visible_ts = before.visible_ts if before is not None and mine else 0
        """Begins where the last writer stopped: a reader must never see it shrink."""
        self._place = (0, 0)

    def publish(self, file: int, offset: int, visible_ts: int) -> None:
        """Tell readers that everything before this place has been synced. 1 us.

        FencedError when the log is not ours any more; then nothing may be acknowledged.
        """
        if _LAST.unpack_from(self._page, _CLAIM_AT)[0] != self._claim:
            raise FencedError("another process has taken the log over")
        self._place = (file, offset)
        if visible_ts > self.visible_ts:
            self.visible_ts = visible_ts
        else:
            visible_ts = self.visible_ts
        self._sequence = sequence = self._sequence + 1
        uuid, epoch = self._uuid, self._epoch
        crc = crc32(_BODY.pack(uuid, sequence, epoch, file, offset, visible_ts))
        for at in (0, _AGAIN_AT):
            _PAGE.pack_into(
                self._page, at, uuid, sequence, epoch, file, offset, visible_ts, crc, sequence
            )

    def publish_ts(self, visible_ts: int) -> None:
        """Say the last place again, with a newer timestamp."""
        self.publish(*self._place, visible_ts)

    def copy(self) -> tuple[bytes, Published | None]:
        """The position as readers find it, for one that cannot map the page. In any thread."""
        return _whole(self._page)

    def close(self) -> None:
        if not isinstance(self._page, bytearray):
            self._page.close()


def claim(files: Files) -> None:
    """Before recovery reads the log: whoever else takes it for theirs finds out.

    They look between sync and acknowledgement. Either they see the claim, or their bytes were
    durable before it was made, and recovery, which comes after it, finds them.
    """
    page = files.map(PUBLISHED_PATH, _SIZE, writable=True)
    try:
        (last,) = _LAST.unpack_from(page, _CLAIM_AT)
        _LAST.pack_into(page, _CLAIM_AT, (last + 1) % (1 << 64))
    finally:
        if not isinstance(page, bytearray):
            page.close()


class PublishedPage:
    """The reader's side. The page stays mapped, so a look costs no system call."""

    def __init__(self, files: Files) -> None:
        try:
            self._page = files.map(PUBLISHED_PATH, _SIZE, writable=False)
        except CorruptionError:  # written by an older release: no second copy
            self._page = files.map(PUBLISHED_PATH, _PAGE.size, writable=False)

    def sequence(self) -> int:
        """The number of the newest position that is whole: it changes with every other."""
        # A copy, not a view: the page may be one that is read from far away. The first copy is
        # written first, so an equal number means that there is nothing newer than what was read.
        return int(_LAST.unpack(self._page[_PAGE.size - _LAST.size : _PAGE.size])[0])

    def read(self) -> Published | None:
        """The position, or None if there is none that can be believed."""
        return _whole(self._page)[1]

    def close(self) -> None:
        if not isinstance(self._page, bytearray):
            self._page.close()


def read_published(files: Files) -> Published | None:
    """One look, for those who do not follow."""
    try:
        page = PublishedPage(files)
    except (OSError, CorruptionError):
        # Never written, or a crash left it too short. It is a bound, not data: go without.
        return None
    try:
        return page.read()
    finally:
        page.close()


def _whole(page: Mapped) -> tuple[bytes, Published | None]:
    """The first copy if it is whole, else the second: the writer is never inside both.

    Again and again, because it may have gone on from one to the other while we looked.
    """
    for _ in range(_TRIES):
        for at in (0, _AGAIN_AT):
            data = bytes(page[at : at + _PAGE.size])
            position = decode_page(data)
            if position is not None:
                return data, position
    return b"", None


def decode_page(data: bytes) -> Published | None:
    """The position in a copy, if the copy is whole."""
    if len(data) != _PAGE.size:
        return None
    found = _PAGE.unpack(data)
    sequence = found[1]
    if sequence != found[7] or sequence == 0 or found[6] != crc32(data[: _BODY.size]):
        return None
    return _new(Published, found[:6])

"""The published position: how far other processes may read, in one small file they share.

    writer --after each sync--> publish --> | claim | uuid seq epoch file offset ts inode crc seq |
    reader <------------------- read <------|           the same again                 one page

Readers never go beyond it, so they only ever see bytes that a power loss cannot take back, and
never have to unlearn anything.

A position is written in one copy, with the sequence number at both ends and a CRC between them, and
then a second time behind it. A reader copies it out; if the numbers differ or the CRC does not fit,
it takes the second one. So a writer that is interrupted inside a copy, for a moment or for ever,
hides nothing that it had published before: whoever was told of a commit finds it.

The page itself is never synced. After a power loss it may be old or torn, but never ahead of the
log: whatever it says was durable before it was said. So recovery takes it as a lower bound, and a
log that ends before it has lost bytes.

In front of it stands a random number that every opening for writing draws, and nobody else writes:
the claim. The lock keeps two writers apart; should it be lost (somebody deletes the file, a file
system forgets), the older one meets the claim of the younger before it acknowledges another commit.

The file may be taken away, cut or replaced under a writer, which loses nothing: it is said again.
`mend` does that, twice a second. Until then a reader finds no position rather than an old one: a
position names the inode of the file it was written to, so a copy of that file says nothing. A page
that has been given up says file 0: whoever reads it looks for the new one by its name.
"""

from __future__ import annotations

from contextlib import suppress
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from halocline.clock import Clock
from halocline.errors import CorruptionError
from halocline.log.names import PUBLISHED_PATH
from halocline.store import Files
from halocline.store.files import MovedError, NotAFileError, SharedPage

_BODY: Final = Struct("<16sQQQQQQ")
_PAGE: Final = Struct("<16sQQQQQQIQ")
_LAST: Final = Struct("<Q")
_CLAIM: Final = slice(0, 8)
_FIRST_AT: Final = 8
_AGAIN_AT: Final = _FIRST_AT + _PAGE.size
_SIZE: Final = _AGAIN_AT + _PAGE.size
_BOTH: Final = slice(_FIRST_AT, _SIZE)
_SEQUENCE: Final = slice(_AGAIN_AT - _LAST.size, _AGAIN_AT)
_NO_CLAIM: Final = bytes(8)
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
    """0: this page has been given up, and there is another."""
    offset: int
    visible_ts: int
    inode: int
    """Of the page that it was written to."""


class Publisher:
    """The writer's side."""

    def __init__(self, files: Files, uuid: bytes, epoch: int) -> None:
        self._files = files
        self._uuid = uuid
        self._epoch = epoch
        self._take(files.page(PUBLISHED_PATH, _SIZE, writable=True))
        self._claim = bytes(self._page[_CLAIM])
        before = _whole(self._page)[1]
        mine = before is not None and before.uuid == uuid
        # Above all that earlier epochs have used, even if nothing is left of what they said: a
        # follower takes an equal number for "nothing new".
        self._sequence = max(before.sequence if before is not None and mine else 0, epoch << 32)
        self.visible_ts = before.visible_ts if before is not None and mine else 0
        """Begins where the last writer stopped: a reader must never see it shrink."""
        self._place = (0, 0)
        self._said = b""
        """Both copies, as they were written last."""

    def publish(self, file: int, offset: int, visible_ts: int) -> None:
        """Tell readers that everything before this place has been synced. 3 us.

        FencedError when the log is not ours any more; then nothing may be acknowledged.
        """
        claimed = self._page[_CLAIM]
        if claimed != self._claim:
            self._meet(claimed)
        self._place = (file, offset)
        if visible_ts > self.visible_ts:
            self.visible_ts = visible_ts
        self._said = self._say(self._page, file, offset)

    def publish_ts(self, visible_ts: int) -> None:
        """Say the last place again, with a newer timestamp."""
        self.publish(*self._place, visible_ts)

    def mend(self) -> None:
        """Say the position again if the page was cut, overwritten, removed or replaced. OSError.

        FencedError when another writer has said something there.
        """
        try:
            self._check()
        except MovedError:
            self._files.check_root()  # of a folder that has moved, nothing can be mended
            self._renew()
        else:
            if self._said and self._page[_BOTH] != self._said:
                self.publish_ts(self.visible_ts)

    def copy(self) -> tuple[bytes, Published | None]:
        """The position as readers find it, for one that cannot open the page. In any thread."""
        return _whole(self._page)

    def close(self) -> None:
        self._page.close()

    def _take(self, page: SharedPage) -> None:
        self._page = page
        self._check = self._files.watch(PUBLISHED_PATH, page)

    def _renew(self) -> None:
        """Go on in the file that stands there now, or in a new one."""
        given_up = self._page
        try:
            page = self._files.page(PUBLISHED_PATH, _SIZE, writable=True)
        except NotAFileError:
            self._files.write(PUBLISHED_PATH, bytes(_SIZE))
            page = self._files.page(PUBLISHED_PATH, _SIZE, writable=True)
        found = _whole(page)[1]
        if found is None or found.inode != page.inode:  # new, or a copy that belongs to nobody
            page[_CLAIM] = self._claim
        self._take(page)
        self.publish_ts(self.visible_ts)
        with suppress(OSError):  # last: whoever reads this finds the other
            self._say(given_up, 0, 0)

    def _meet(self, claimed: bytes | bytearray) -> None:
        """The claim is not ours: it was cut off, or another process has made one."""
        if claimed[-1]:
            raise FencedError("another process has taken the log over")
        self._page[_CLAIM] = self._claim

    def _say(self, page: SharedPage, file: int, offset: int) -> bytes:
        self._sequence = sequence = self._sequence + 1
        facts = (self._uuid, sequence, self._epoch, file, offset, self.visible_ts, page.inode)
        copy = _PAGE.pack(*facts, crc32(_BODY.pack(*facts)), sequence)
        page[_BOTH] = both = copy + copy
        return both


def claim(files: Files, clock: Clock) -> None:
    """Before recovery reads the log: whoever else takes it for theirs finds out.

    They look between sync and acknowledgement. Either they see the claim, or their bytes were
    durable before it was made, and recovery, which comes after it, finds them.
    """
    page = files.page(PUBLISHED_PATH, _SIZE, writable=True)
    try:
        # The last byte says that it is whole: behind the end of a page that was cut are zeros.
        page[_CLAIM] = clock.random_bytes(_LAST.size - 1) + b"\1"
    finally:
        page.close()


class PublishedPage:
    """The reader's side. The page stays open, so a look is one small read."""

    def __init__(self, files: Files) -> None:
        self._page = files.page(PUBLISHED_PATH, _SIZE, writable=False)
        self._check = files.watch(PUBLISHED_PATH, self._page)

    def sequence(self) -> int:
        """The number of the newest position that is whole: it changes with every other."""
        # The first copy is written first, so an equal number means that there is nothing newer
        # than what was read.
        return int(_LAST.unpack(self._page[_SEQUENCE])[0])

    def read(self) -> Published | None:
        """The position, or None if there is none that can be believed."""
        position = _whole(self._page)[1]
        inode = self._page.inode
        return None if position is None or inode not in (0, position.inode) else position

    def is_there(self) -> bool:
        """Does the name still lead to this page?"""
        try:
            self._check()
        except MovedError:
            return False
        return True

    def close(self) -> None:
        self._page.close()


def read_published(files: Files) -> Published | None:
    """One look, for those who do not follow: a lower bound of the log, in a copy of it too."""
    try:
        page = files.page(PUBLISHED_PATH, _SIZE, writable=False)
    except (OSError, CorruptionError):
        # Never written, or a crash left it too short. It is a bound, not data: go without.
        return None
    try:
        return _whole(page)[1]
    finally:
        page.close()


def _whole(page: SharedPage) -> tuple[bytes, Published | None]:
    """The first copy if it is whole, else the second: the writer is never inside both.

    Again and again, because it may have gone on from one to the other while we looked.
    """
    for _ in range(_TRIES):
        both = bytes(page[_BOTH])
        for data in (both[: _PAGE.size], both[_PAGE.size :]):
            position = decode_page(data)
            if position is not None:
                return data, position
    return b"", None


def page_of(copy: bytes) -> bytes:
    """The page as it would be with this copy in it, for one that was sent only that."""
    return _NO_CLAIM + copy + copy


def decode_page(data: bytes) -> Published | None:
    """The position in a copy, if the copy is whole."""
    if len(data) != _PAGE.size:
        return None
    found = _PAGE.unpack(data)
    sequence = found[1]
    if sequence != found[8] or sequence == 0 or found[7] != crc32(data[: _BODY.size]):
        return None
    return _new(Published, found[:7])

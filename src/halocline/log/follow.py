"""Following the log from another process: every durable entry, once, in order.

    published position (epoch, file, offset) ----.
                                                  v
    log/7.log |####################|--end--> log/8.log |#########........|
                                   '- named by the header of file 8

A follower reads up to the published position and never beyond it. What stands there has been
synced, so neither a crash nor a restart of the writer takes it back: a new epoch begins in a new
file whose header says where the old one ended, and that is never before a follower's place.

Files that a checkpoint no longer needs are deleted. A follower that still wanted one gets LogGone:
it loads the newest checkpoint and follows again from there.

Not here: a log that nobody writes (read_log in recover.py), which ends where its last valid entry
does; its reader can go on from that place with `after=`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from halocline.errors import CorruptionError, HaloclineError
from halocline.log.format import SECTOR, Entry, FileHeader, decode_file_header
from halocline.log.names import log_numbers, path_of, read_image
from halocline.log.places import Place
from halocline.log.published import Published, PublishedPage
from halocline.log.recover import Recovery
from halocline.log.scan import Cursor, check_follows, read_entries
from halocline.store import File, Files
from halocline.store.files import NotAFileError

AHEAD_BYTES: Final = 1 << 16


class LogGone(HaloclineError):
    """The next entry is in a file that has been deleted: reload the newest checkpoint."""

    def __init__(self, order: int) -> None:
        self.order = order
        super().__init__(f"log entry {order} has been deleted; reload the newest checkpoint")


class Follower:
    """A place in somebody else's log. For one thread."""

    def __init__(
        self,
        files: Files,
        *,
        start_order: int = 0,
        after: Recovery | None = None,
        start: Place | None = None,
    ) -> None:
        """Begin at that order (0: the oldest there is), or where `read_log` ended, or at a place
        that a checkpoint names."""
        self.visible_ts = 0
        self._files = files
        self._start_order = start_order
        self._page: PublishedPage | None = None
        self._sequence = 0
        """Of the position that the last poll has come to."""
        self._uuid = b""
        self._cursor: Cursor | None = None
        self._file: File | None = None
        self._start = start
        if start is not None:
            self._start_order = start.order
        if after is not None and after.spans:
            self._uuid = after.uuid
            self._cursor = replace(after.tail, lsns=list(after.tail.lsns))
            self._start_order = after.next_order

    def is_current(self) -> bool:
        """Has nothing been published since the last poll came to its end? 0.4 us."""
        return self._page is not None and self._page.sequence() == self._sequence

    def ahead(self) -> Published | None:
        """The newest position, if little is new up to it. Nothing is read. In any thread."""
        page, cursor = self._page, self._cursor
        position = None if page is None else page.read()
        if position is None or cursor is None or position.file != cursor.number:
            return None
        near = position.offset - cursor.offset <= AHEAD_BYTES and position.uuid == self._uuid
        return position if near else None

    def poll(self, settle: Callable[[], None] | None = None) -> Iterator[Entry]:
        """Entries that have become durable since. Afterwards visible_ts has moved on.

        May be left half-way: the next poll goes on behind the last entry that was yielded. `settle`
        is called behind the last one, before anybody is told that this follower is current.
        """
        position = self._position()
        if position is None:
            return
        try:
            cursor = self._cursor or self._begin(position)
            while cursor.number < position.file:
                following = self._header(cursor.number + 1, cursor.order)
                yield from self._read(cursor, following.previous_end)
                check_follows(following, cursor, self._uuid)
                cursor = self._enter(following)
            if cursor.number == position.file:
                yield from self._read(cursor, position.offset)
        except FileNotFoundError as error:
            raise LogGone(self._start_order) from error
        if settle is not None:
            settle()
        self._reach(position)

    def _reach(self, position: Published) -> None:
        if position.visible_ts > self.visible_ts:
            self.visible_ts = position.visible_ts
        self._sequence = position.sequence

    @property
    def uuid(self) -> bytes:
        """The database that is followed; empty before the first poll."""
        return self._uuid

    def is_published(self) -> bool:
        """Has a writer said how far its log is durable?"""
        return self._position() is not None

    def look_for_page(self) -> None:
        """Open the page of the published position anew if it was removed or replaced."""
        page = self._page
        if page is not None and not page.is_there():
            self._page, self._sequence = None, 0

    def close(self) -> None:
        """Let go of the log. Not needed for correctness: nothing is locked.

        The page goes with the last thread that looks at it.
        """
        self._page = None
        self._let_go()

    def _position(self) -> Published | None:
        position = None if self._page is None else self._page.read()
        if position is None or not position.file:  # else the writer goes on in another page
            try:
                self._page = PublishedPage(self._files)
            except (FileNotFoundError, NotAFileError, CorruptionError):
                return None
            position = self._page.read()
            if position is not None and not position.file:
                return None
        if position is not None and self._uuid and position.uuid != self._uuid:
            # The directory holds another database now.
            raise LogGone(self._start_order)
        return position

    def _begin(self, position: Published) -> Cursor:
        """Stand in front of the file that holds the first entry wanted."""
        self._uuid = position.uuid
        if self._start is not None:
            self._header(self._start.number, self._start_order)
            self._cursor = self._start.cursor()
            return self._cursor
        numbers = [number for number in log_numbers(self._files) if number <= position.file]
        for number in reversed(numbers):
            header = self._header(number, self._start_order)
            if header.first_order <= self._start_order or number == numbers[0]:
                break
        else:
            raise LogGone(self._start_order)
        if 0 < self._start_order < header.first_order:
            raise LogGone(self._start_order)
        return self._enter(header)

    def _enter(self, header: FileHeader) -> Cursor:
        self._let_go()
        self._cursor = Cursor.begin(header)
        return self._cursor

    def _header(self, number: int, order: int) -> FileHeader:
        header = decode_file_header(read_image(self._files, number, SECTOR), path_of(number))
        if header is None or header.number != number or header.uuid != self._uuid:
            raise CorruptionError(path_of(number), f"has no header, though {order} is durable")
        return header

    def _read(self, cursor: Cursor, limit: int) -> Iterator[Entry]:
        """Entries up to the limit, all of which are known to be durable."""
        if limit > cursor.offset:
            yield from self._entries(*self._image(cursor, limit), limit, cursor)

    def _entries(self, image: bytes, base: int, limit: int, cursor: Cursor) -> Iterator[Entry]:
        for entry in read_entries(image, base, limit, cursor):
            if entry.order >= self._start_order:
                self._start_order = entry.order + 1
                yield entry
        if cursor.offset != limit:
            raise CorruptionError(
                path_of(cursor.number), f"entry {cursor.order} is damaged", offset=cursor.offset
            )

    def _image(self, cursor: Cursor, limit: int) -> tuple[bytes, int]:
        """The bytes up to the limit, from the sector on in which the cursor stands; and where."""
        if self._file is None:
            self._file = self._files.open_read(path_of(cursor.number))
        base = cursor.offset - cursor.offset % SECTOR
        return self._file.pread(limit - base, base), base

    def _let_go(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

"""Opening a log: check every file, cut what a crash tore, make the rest durable.

    log/*.log --survey--> files in order, each continuing the one before
                 |  sealed (another file follows): valid exactly up to where that file says it ended
                 |  last: valid up to the first bad entry; torn -> cut, else CorruptionError
                 '--repair--> rewrite the unsynced tail, zero the rest, sync, remove leftovers

Why only the last file can be torn. A file is synced whole before its successor gets its first byte
(its header), in sync and async mode alike. So a valid header proves that everything before it was
durable, and a bad byte there is damage. A file whose header never arrived holds nothing that was
ever synced: it is a spare, or the beginning of a group that was lost, and is removed.

Why an old entry never comes back to life after a cut. New entries never continue a file that was
cut: a new epoch starts a new file, whose header names the place where the old one ended. Nobody
reads the old file beyond that place again, zeroed or not. Were old bytes to appear in a new file
all the same, their header's CRC would carry another file number, their order would be an old one,
and their CRC would continue another chain.

Why the tail is written again. After a failed fsync the kernel may show bytes that are not on the
disk, and call them clean. Everything that no later entry calls synced is therefore written once
more, the same bytes to the same place, and synced before anyone is told of it.

Why a checkpoint makes the beginning dispensable. It names a place (places.py) with all that the
chain needs, and was made durable in front of a CKP entry that stands behind that place. Files in
front of it are then not read, only their headers; what is read goes on from the place, checked as
strictly as ever. Without a place the whole log is surveyed, and must begin with file 1 or hold a
CKP entry.

A crash inside the repair changes nothing of this: it writes the bytes that are already there, and
zeros where nothing valid stands, so the next recovery finds the same entries. The published
position is a lower bound: a log that ends before it has lost acknowledged commits.

Not here: what a bad entry is (scan.py); starting the new epoch (writer.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from halocline.clock import Clock
from halocline.errors import CorruptionError, UnavailableError
from halocline.log.format import (
    CKP,
    PAYLOAD_BYTES_MAX,
    SECTOR,
    Entry,
    FileHeader,
    decode_file_header,
)
from halocline.log.names import LOG_DIRECTORY, log_numbers, path_of, read_image, read_pieces
from halocline.log.places import Place, beginning
from halocline.log.published import Published, read_published
from halocline.log.scan import Cursor, check_follows, check_torn, offset_of, read_entries
from halocline.options import Options
from halocline.store import Files

_READ_ONLY_TRIES = 3
_ONE_ENTRY_EXTRA = 1 << 20
"""A file that was made for one entry is at most so much longer than its payload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One checked file: its header, and where its last valid entry ends."""

    header: FileHeader
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """A log that was found valid up to `tail`."""

    files: Files
    uuid: bytes
    epoch: int
    """The last epoch that wrote; 0 in a new database."""
    spans: tuple[Span, ...]
    """All files; those in front of `begin` have not been read."""
    begin: Place | None
    """Where reading begins; None in an empty log."""
    tail: Cursor
    checkpoint: Entry | None
    """The last CKP entry."""
    cut_bytes: int
    """Bytes of a torn tail that were found behind the last valid entry."""
    repaired: bool
    """Whether the log may be written on; False if it was only looked at."""

    @property
    def first_order(self) -> int:
        """The oldest order that can be read, if there is any."""
        return self.begin.order if self.begin is not None else 1

    @property
    def next_order(self) -> int:
        return self.tail.order

    def entries(self, start_order: int = 0) -> Iterator[Entry]:
        """Entries from that order on, checked again as they are read; as often as you like.

        CorruptionError if the log no longer reaches back to `start_order`; 0 means all there is.
        """
        if 0 < start_order < self.first_order:
            raise CorruptionError(
                LOG_DIRECTORY, f"begins with entry {self.first_order}; {start_order} is missing"
            )
        for span, place in self.parts():
            if span.header.number < self.tail.number and self._ends(span) <= start_order:
                continue
            cursor = place.cursor()
            base = place.offset - place.offset % SECTOR
            image = read_image(self.files, place.number, span.end - base, base)
            found = read_entries(image, base, span.end, cursor)
            if start_order > place.order:
                found = (entry for entry in found if entry.order >= start_order)
            yield from found
            if cursor.offset != span.end:
                raise CorruptionError(
                    path_of(place.number), "changed while it was read", offset=cursor.offset
                )

    def parts(self) -> Iterator[tuple[Span, Place]]:
        """The files that are read, each with the place where reading it begins."""
        begin = self.begin
        for span in self.spans:
            if begin is not None and span.header.number >= begin.number:
                inside = span.header.number == begin.number
                yield span, begin if inside else beginning(span.header)

    def _ends(self, span: Span) -> int:
        """The order after the last one of a sealed file."""
        following = next(s for s in self.spans if s.header.number == span.header.number + 1)
        return following.header.first_order


def recover(
    files: Files, *, options: Options, clock: Clock, start: Place | None = None
) -> Recovery:
    """Check the log, from a checkpoint's place on, and repair its tail. Caller holds the lock."""
    try:
        found, image, leftovers = _survey(files, options, start)
        if found.spans:
            _rewrite_tail(files, found, image)
        # Highest first, so that what is left never has a hole.
        for number in reversed(leftovers):
            files.remove(path_of(number))
    except OSError as error:
        raise UnavailableError(f"the log cannot be recovered: {error}") from error
    uuid = found.uuid or clock.random_bytes(16)
    return replace(found, uuid=uuid, repaired=True)


def read_log(files: Files, options: Options, start: Place | None = None) -> Recovery:
    """Look at a log that nobody is writing, up to its valid end. Changes nothing."""
    for _ in range(_READ_ONLY_TRIES - 1):
        try:
            return _survey(files, options, start)[0]
        except (FileNotFoundError, CorruptionError):
            # A writer may just have started: look again before calling it damage.
            continue
    return _survey(files, options, start)[0]


def _survey(
    files: Files, options: Options, start: Place | None
) -> tuple[Recovery, bytes, list[int]]:
    """What the log holds; the image of its last file; numbers of files that hold nothing."""
    # Before the log is read, because a writer may be moving it on meanwhile.
    published = read_published(files)
    numbers = log_numbers(files)
    headers, leftovers = _headers(files, numbers)
    uuid = headers[0].uuid if headers else b""
    begin = _begin(headers, start)
    cursor = Cursor(number=0, epoch=0, offset=0, order=1, crc=0)
    spans: list[Span] = []
    checkpoint: Entry | None = None
    image = b""
    for header, following in pairwise([*headers, None]):
        assert header is not None
        if begin is not None and header.number < begin.number:
            assert following is not None
            spans.append(Span(header=header, end=following.previous_end))
            continue
        if begin is not None and header.number == begin.number:
            cursor = begin.cursor()
        else:
            check_follows(header, cursor, uuid)
            cursor = Cursor.begin(header)
        # Not all that is there: whoever has lengthened the file must not fill memory with it.
        image = read_image(files, header.number, header.size)
        limit = len(image) if following is None else following.previous_end
        for entry in read_entries(image, 0, limit, cursor):
            if entry.type == CKP:
                checkpoint = entry
        if following is not None and cursor.offset != limit:
            raise CorruptionError(
                path_of(header.number),
                f"entry {cursor.order} is damaged in a file that was complete",
                offset=cursor.offset,
            )
        spans.append(Span(header=header, end=cursor.offset))
    if headers and headers[0].number != 1 and checkpoint is None:
        # Only a checkpoint makes the beginning of a log dispensable.
        raise CorruptionError(path_of(1), "the log file is missing")
    if headers and len(image) < headers[-1].size:
        raise CorruptionError(path_of(cursor.number), f"is shorter than {headers[-1].size} bytes")
    if numbers:
        check_torn(image, cursor, _pieces(files, leftovers, options))
    _check_reaches(published, uuid, cursor)
    return (
        Recovery(
            files=files,
            uuid=uuid,
            epoch=cursor.epoch,
            spans=tuple(spans),
            begin=begin,
            tail=cursor,
            checkpoint=checkpoint,
            cut_bytes=max(0, len(image.rstrip(b"\0")) - cursor.offset),
            repaired=False,
        ),
        image,
        leftovers,
    )


def _pieces(files: Files, numbers: list[int], options: Options) -> Iterator[tuple[int, bytes]]:
    """What is in files that never got a header."""
    longest = max(options.log_file_bytes, PAYLOAD_BYTES_MAX + _ONE_ENTRY_EXTRA)
    for number in numbers:
        for piece in read_pieces(files, number, longest):
            yield number, piece


def _begin(headers: list[FileHeader], start: Place | None) -> Place | None:
    """Where to begin: at the start that a checkpoint names, else at the first file."""
    if start is None:
        if headers and headers[0].number == 1:
            check_follows(headers[0], Cursor(0, 0, 0, 1, 0), headers[0].uuid)
        return beginning(headers[0]) if headers else None
    header = next((one for one in headers if one.number == start.number), None)
    if header is None:
        raise CorruptionError(path_of(start.number), "the log file is missing")
    first = beginning(header)
    if first.epoch != start.epoch or first[2:4] > start[2:4]:
        raise CorruptionError(path_of(start.number), "is not the file that the checkpoint names")
    return start


def _headers(files: Files, numbers: list[int]) -> tuple[list[FileHeader], list[int]]:
    """Headers of the files in use, then the numbers of those that never got one."""
    headers: list[FileHeader] = []
    leftovers: list[int] = []
    for number in numbers:
        header = decode_file_header(read_image(files, number, SECTOR), path_of(number))
        if header is None:
            leftovers.append(number)
            continue
        if header.number != number:
            raise CorruptionError(path_of(number), f"is file number {header.number}, misnamed")
        if leftovers:
            raise CorruptionError(path_of(leftovers[0]), "has lost its header", offset=0)
        if headers and header.uuid != headers[0].uuid:
            raise CorruptionError(path_of(number), "the file belongs to another database")
        headers.append(header)
    if leftovers and not headers and numbers[0] != 1:
        raise CorruptionError(path_of(numbers[0]), "has lost its header", offset=0)
    return headers, leftovers


def _check_reaches(published: Published | None, uuid: bytes, tail: Cursor) -> None:
    """A log that ends before what was published after a sync has lost something."""
    if published is None or (uuid and published.uuid != uuid):
        return
    if (published.file, published.offset) > (tail.number, tail.offset):
        raise CorruptionError(
            path_of(published.file),
            f"the log ends in file {tail.number} at byte {tail.offset}, but was durable further",
            offset=published.offset,
        )


def _rewrite_tail(files: Files, found: Recovery, image: bytes) -> None:
    """Make durable what may not be, and zero what was cut."""
    tail = found.tail
    *_, (_, place) = found.parts()
    begin = place.cursor()
    # The header of a file is durable once anything in it is known to be.
    whole = place.offset == SECTOR and tail.synced < place.order
    start = 0 if whole else offset_of(image, tail.synced + 1, begin)
    file = files.open(path_of(tail.number))
    try:
        file.pwrite(image[start : tail.offset] + bytes(found.cut_bytes), start)
        file.sync()
    finally:
        file.close()

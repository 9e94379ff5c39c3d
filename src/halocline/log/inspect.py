"""Looking at a log as it is: every entry that can be read, and where it ends and why.

    log/*.log --inspect--> FileHeader, Found, Found, ... Trouble, FileHeader, Found, ... End

Nothing is opened but the files, nothing is locked, nothing is repaired: this works beside the
process that has the database open, and on a log that no process can open any more. Entries come
file by file. Where a file stops before it should, a Trouble says so, and the next file goes on:
its header has all that its entries need.

The verdict is not made here. It is what recovery finds (recover.py) when it reads the whole log,
where an opening begins behind the newest checkpoint. In one of four words:

    clean     the last entry ends where the log ends
    torn      bytes of an entry that never arrived whole; opening cuts them off and loses nothing
    corrupt   something that was written is not what it was; opening raises CorruptionError
    refused   a file of another version; opening raises UsageError

Beside a process that writes, the end is where it was a moment ago, and an entry on its way may look
torn.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from halocline.errors import CorruptionError, UsageError
from halocline.log.format import Entry, FileHeader, align, decode_file_header
from halocline.log.names import found_numbers, path_of, read_image
from halocline.log.recover import Recovery, read_log
from halocline.log.scan import Cursor, read_entries
from halocline.options import Options
from halocline.store import Files


class FoundEntry(NamedTuple):
    """A valid entry, and where its header stands."""

    number: int
    offset: int
    entry: Entry


class Trouble(NamedTuple):
    """A place from which a file cannot be read on."""

    path: str
    offset: int
    why: str


class End(NamedTuple):
    """Where the log ends, and why there. `path` is empty when there is no log."""

    kind: Literal["clean", "torn", "corrupt", "refused"]
    path: str
    offset: int
    order: int
    """The last entry that was read; 0 when there is none."""
    why: str


def inspect(
    files: Files, start_order: int = 0
) -> Iterator[FileHeader | FoundEntry | Trouble | End]:
    """Whatever can be read of a log, from that order on, and then its end."""
    numbers = found_numbers(files)
    headers = {number: _header(files, number) for number in numbers}
    last = Cursor(number=0, epoch=0, offset=0, order=1, crc=0)
    for number in numbers:
        header, following = headers[number], headers.get(number + 1)
        if number - 1 not in headers and number not in (numbers[0], 1):
            yield Trouble(path_of(number - 1), 0, "the log file is missing")
        if isinstance(header, Trouble):
            yield header
        if not isinstance(header, FileHeader):
            continue  # a spare that was never written to
        sealed = following if isinstance(following, FileHeader) else None
        if sealed is not None and sealed.first_order <= start_order:
            continue
        yield header
        last = Cursor.begin(header)
        image = read_image(files, number, header.size)
        limit = len(image) if sealed is None else sealed.previous_end
        yield from _entries(image, limit, last, start_order)
        if sealed is not None and last.offset != limit:
            yield Trouble(path_of(number), align(last.offset), f"entry {last.order} is damaged")
    yield _end(files, last)


def _header(files: Files, number: int) -> FileHeader | Trouble | None:
    path = path_of(number)
    try:
        return decode_file_header(read_image(files, number), path)
    except CorruptionError as error:
        return Trouble(path, 0, error.reason)
    except UsageError as error:
        return Trouble(path, 0, str(error))


def _entries(image: bytes, limit: int, cursor: Cursor, start_order: int) -> Iterator[FoundEntry]:
    at = cursor.offset
    for entry in read_entries(image, 0, limit, cursor):
        if entry.order >= start_order:
            yield FoundEntry(cursor.number, align(at), entry)
        at = cursor.offset


def _end(files: Files, last: Cursor) -> End:
    """What an opening would find."""
    here = path_of(last.number) if last.number else ""
    try:
        found = read_log(files, Options())
    except CorruptionError as error:
        offset = last.offset if error.offset is None else error.offset
        return End("corrupt", error.path, offset, last.order - 1, error.reason)
    except UsageError as error:
        return End("refused", here, last.offset, last.order - 1, str(error))
    return _sound_end(found)


def _sound_end(found: Recovery) -> End:
    tail = found.tail
    path = path_of(tail.number) if tail.number else ""
    if found.cut_bytes:
        why = f"{found.cut_bytes} bytes of an entry that never arrived whole"
        return End("torn", path, tail.offset, tail.order - 1, why)
    return End("clean", path, tail.offset, tail.order - 1, "nothing follows")

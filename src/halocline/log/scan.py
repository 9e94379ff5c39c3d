"""Walking over the entries of one file, and judging the place where the walk ends.

    image of a file, Cursor ---> read_entries ---> Entry, Entry, ...   stops at the first byte that
                                                                       does not continue the chain
                            ---> check_torn   ---> returns: torn, cut here | CorruptionError

Why a torn tail and a damaged entry can be told apart. The file was zeros before, and sectors are
written whole or not at all; so what a crash takes away turns into zeros: the mark of a header or
trailer, or a whole sector's share of the entry (format.py makes sure that no share was zero when
it was written). A flipped bit can turn neither into zeros. So a bad entry is

    torn      if one of its marks is 0, or its share of some sector is all zero,
    corrupt   otherwise, and also when a later, valid header says with `synced` that this order was
              durable: then a crash cannot have taken it.

Torn entries were never acknowledged, so cutting there loses nothing that anyone was promised; what
stands behind a hole (async mode writes several groups between two syncs) goes with it. Corrupt is
an error, never a shorter log: "the first bad entry ends the log" loses every acknowledged commit
behind one flipped bit.

Invariants
- The cursor always stands behind the last entry that was yielded, also while a consumer has it.
- An image starts at a multiple of 512 bytes of its file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final
from zlib import crc32

from halocline.errors import CorruptionError
from halocline.log.format import (
    FIELDS,
    FRAME_BYTES,
    GROUP_MAX,
    HEADER,
    HEADER_AT_MAX,
    HEADER_BYTES,
    MARK,
    MASKED,
    SEAL,
    SECTOR,
    U32,
    Entry,
    FileHeader,
    align,
    file_seed,
    mask,
)
from halocline.log.names import path_of

_MARK_BYTE: Final = bytes([MARK])
_ZERO_SECTOR: Final = bytes(SECTOR)
_TYPE_BITS: Final = MASKED - 1
_new = tuple.__new__


@dataclass(slots=True)
class Cursor:
    """A place in the chain: everything needed to read, or to write, the next entry."""

    number: int
    epoch: int
    offset: int
    order: int
    """The order that the next entry has."""
    crc: int
    """The CRC of the entry before."""
    lsns: list[int] = field(default_factory=lambda: [0] * (GROUP_MAX + 1))
    """The last LSN of each group, by group; index 0 is unused."""
    synced: int = 0
    """The highest order that the entries read so far say is durable."""

    @classmethod
    def begin(cls, header: FileHeader) -> Cursor:
        """In front of the first entry of a file."""
        return cls(
            number=header.number,
            epoch=header.epoch,
            offset=SECTOR,
            order=header.first_order,
            crc=header.previous_crc,
            lsns=[0, *header.lsns],
            synced=header.first_order - 1,
        )

    def next_header(self, *, uuid: bytes, number: int, epoch: int, size: int) -> FileHeader:
        """The header of a file that goes on from here."""
        return FileHeader(
            uuid=uuid,
            number=number,
            epoch=epoch,
            size=size,
            first_order=self.order,
            previous_crc=self.crc,
            previous_end=self.offset,
            lsns=(self.lsns[1], self.lsns[2], self.lsns[3]),
        )


def check_follows(header: FileHeader, before: Cursor, uuid: bytes) -> None:
    """A file must begin exactly where the one before it ended."""
    path = path_of(header.number)
    if header.uuid != uuid:
        raise CorruptionError(path, "the file belongs to another database")
    if header.epoch < before.epoch:
        raise CorruptionError(path, f"epoch {header.epoch} after epoch {before.epoch}")
    expected = before.next_header(
        uuid=uuid, number=header.number, epoch=header.epoch, size=header.size
    )
    if header != expected:
        raise CorruptionError(
            path,
            f"begins with entry {header.first_order} after byte {header.previous_end}, but the "
            f"file before it ends with entry {before.order - 1} at byte {before.offset}",
        )


def read_entries(image: bytes, base: int, limit: int, cursor: Cursor) -> Iterator[Entry]:
    """Valid entries from the cursor on that end at or before `limit`; moves the cursor.

    `image` holds the bytes of the file from `base` on. 1.6 us per single-row entry. The trailer's
    CRC covers the header whole, so the header's own CRC is left to `check_torn`.
    """
    view = memoryview(image)
    unpack, unpack_seal = HEADER.unpack_from, SEAL.unpack_from
    at, stop = cursor.offset - base, min(limit - base, len(image))
    order, lsns, epoch = cursor.order, cursor.lsns, cursor.epoch
    chain = crc32(U32.pack(cursor.crc))
    while True:
        gap = at % SECTOR
        start = at + SECTOR - gap if gap > HEADER_AT_MAX else at
        if start + FRAME_BYTES > stop:
            return
        group, lsn, length, kind, found, synced, _, mark = unpack(image, start)
        end = start + HEADER_BYTES + length
        if found != order or mark != MARK or end + 5 > stop:
            return
        crc, mark = unpack_seal(image, end)
        if mark != MARK or crc32(view[start:end], chain) != crc:
            return
        if not 0 < group <= GROUP_MAX or lsn != lsns[group] + 1:
            return
        lsns[group] = lsn
        order += 1
        at = end + 5
        chain = crc32(image[end : end + 4])
        cursor.offset = base + at
        cursor.order = order
        cursor.crc = crc
        cursor.synced = synced
        payload = image[start + HEADER_BYTES : end]
        if kind & MASKED:
            payload = mask(payload, found)
            kind &= _TYPE_BITS
        yield _new(Entry, (group, lsn, kind, found, payload, epoch))


def offset_of(image: bytes, order: int, begin: Cursor) -> int:
    """Where the entry of that order begins in an image that was found valid from `begin` on."""
    at = begin.offset
    for _ in range(order - begin.order):
        at = align(at)
        at += FRAME_BYTES + HEADER.unpack_from(image, at)[2]
    return at


def check_torn(image: bytes, cursor: Cursor, later: Iterable[tuple[int, bytes]] = ()) -> None:
    """Return if the walk ended where the log ends or was torn; CorruptionError if it must not.

    `later` are pieces of files behind this one that have no header of their own, from a sector on.
    """
    start = align(cursor.offset)
    path = path_of(cursor.number)
    if start + HEADER_BYTES <= len(image):
        reason = _damage(image, start, cursor.number)
        if reason:
            raise CorruptionError(path, f"entry {cursor.order}: {reason}", offset=start)
        _check_claims(image, start, cursor.number, cursor.order, path)
    for number, other in later:
        _check_claims(other, 0, number, cursor.order, path)


def _damage(image: bytes, start: int, number: int) -> str:
    """Why the bad entry at this place cannot be a torn one; empty if it can."""
    header = _header(image, start, number)
    if header is None:
        return "damaged header" if image[start + HEADER_BYTES - 1] else ""
    end = start + FRAME_BYTES + header[2]
    if end > len(image):
        return f"its {header[2]} bytes reach beyond the end of the file"
    if image[end - 1] == 0:
        return ""
    for at in range(start - start % SECTOR, end, SECTOR):
        left, right = max(start, at), min(end, at + SECTOR)
        if image[left:right] == _ZERO_SECTOR[: right - left]:
            return ""
    return "damaged, or not the successor of the entry before it"


def _header(image: bytes, start: int, number: int) -> tuple[int, ...] | None:
    """The fields of a header that stands here, if it is valid."""
    if start % SECTOR > HEADER_AT_MAX or image[start + HEADER_BYTES - 1] != MARK:
        return None
    fields: tuple[int, ...] = HEADER.unpack_from(image, start)
    if crc32(image[start : start + FIELDS.size], file_seed(number)) != fields[6]:
        return None
    return fields


def _check_claims(image: bytes, start: int, number: int, order: int, path: str) -> None:
    """CorruptionError if a later header knows that entry `order` was durable."""
    at = image.find(_MARK_BYTE, start + HEADER_BYTES - 1)
    while at >= 0:
        header = _header(image, at - HEADER_BYTES + 1, number)
        if header is not None and header[5] >= order:
            raise CorruptionError(
                path, f"entry {order} is missing, but entry {header[4]} knows that it was durable"
            )
        at = image.find(_MARK_BYTE, at + 1)

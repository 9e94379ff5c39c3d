"""The bytes of a log file: its header, the frame around an entry, the mask over long zero runs.

    file    | header 512 | entry | entry | 00 pad | entry | 00 00 00 ...  to the allocated size |
    entry   | group lsn length type | order synced | crc A5 | payload ...... | crc A5 |
              '--------- 17 --------'                              trailer -- 5 -----'
              '---------------- header, 38 -----------'

Everything is little-endian. The file was full of zeros before the first entry, and the disk writes
whole sectors of 512 bytes or none. So a write that did not reach the disk leaves zeros, and every
rule below makes that visible:

- A header never straddles two sectors: it is there, or its bytes are zero (zeros pad the gap).
- 0xA5 ends the header and the trailer: a zero in its place means "never arrived", any other value
  means "arrived, and changed since".
- No sector's share of an entry is all zero when it was written. The first share has the header's
  mark, the last the trailer's, and every share between them is a full sector with at least 508
  bytes of payload. A payload with 256 zeros in a row is XOR-ed with a keystream made from its
  `order`, and bit 7 of the type says so.

The header's CRC starts with the file number: bytes of another file never look like a header of
this one. The trailer's CRC starts with the CRC of the entry before it, across files too, so the
entries form one chain: nothing can be taken out, put in, or exchanged.

Not here: walking over entries, torn or corrupt (scan.py); what a payload says (record.py).
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from hashlib import shake_128
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from halocline.errors import CorruptionError, UsageError

MAGIC: Final = b"HALO-LOG"
VERSION: Final = 3
"""Versions 1 and 2 had another payload; no release has written them, and none reads them."""
SECTOR: Final = 512
MARK: Final = 0xA5

COMMITS: Final = 1
PARTS: Final = 2
SYSTEM: Final = 3
"""The three groups: commits and rollbacks; uncommitted parts; checkpoints, jobs, floors, epochs."""
GROUP_MAX: Final = 3

AC: Final = 0x10
PC: Final = 0x11
UC: Final = 0x12
RB: Final = 0x13
CKP: Final = 0x40
MASKED: Final = 0x80
"""Bit 7 of a type on disk: the payload is XOR-ed with the keystream of its order."""

FIELDS: Final = Struct("<IQIBQQ")
"""Group, LSN, length, type, order, synced: what the header's CRC covers."""
HEADER: Final = Struct("<IQIBQQIB")
SEAL: Final = Struct("<IB")
"""CRC and mark: the end of an entry's header, of an entry, and of a file's header."""
U32: Final = Struct("<I")
FILE_HEADER: Final = Struct("<8sI4x16sQQQQQI4xQQQ")

HEADER_BYTES: Final = HEADER.size
FRAME_BYTES: Final = HEADER_BYTES + SEAL.size
HEADER_AT_MAX: Final = SECTOR - HEADER_BYTES
"""The last place in a sector where a header may begin."""
ENTRY_EXTRA_MAX: Final = FRAME_BYTES + HEADER_BYTES - 1
"""Most bytes that an entry takes besides its payload: the frame, and padding before it."""
PAYLOAD_BYTES_MAX: Final = 1 << 30

ZERO_RUN: Final = bytes(256)
PADS: Final = tuple(bytes(count) for count in range(HEADER_BYTES))
_KEYSTREAM_BYTES: Final = 4096


class Entry(NamedTuple):
    """One valid entry. A tuple, because replay makes one per commit: 0.2 us, a dataclass 1.1 us."""

    group: int
    lsn: int
    type: int
    order: int
    payload: bytes
    epoch: int


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The first 512 bytes of a log file, its fields in the order of the bytes."""

    uuid: bytes
    number: int
    epoch: int
    size: int
    """Bytes allocated for the file; a sealed one may have given its unused end back."""
    first_order: int
    previous_end: int
    """Where the file before this one validly ended; 0 in the first."""
    previous_crc: int
    lsns: tuple[int, int, int]
    """The last LSN of groups 1, 2, 3 before this file: they go on when older files are deleted."""

    def encode(self) -> bytes:
        fields = FILE_HEADER.pack(MAGIC, VERSION, *astuple(self)[:-1], *self.lsns)
        body = fields.ljust(SECTOR - SEAL.size, b"\0")
        return body + SEAL.pack(crc32(body), MARK)


def decode_file_header(data: bytes, path: str) -> FileHeader | None:
    """The header in these bytes; None if it never arrived (its mark is zero)."""
    sector = data[:SECTOR].ljust(SECTOR, b"\0")
    if sector[-1] == 0:
        return None
    crc, mark = SEAL.unpack_from(sector, SECTOR - SEAL.size)
    whole = mark == MARK and crc == crc32(sector[: SECTOR - SEAL.size])
    magic, version, *fields = FILE_HEADER.unpack_from(sector)
    if whole and magic == MAGIC and version != VERSION:
        raise UsageError(f"{path} has log format version {version}; this release reads {VERSION}")
    if not whole or magic != MAGIC:
        raise CorruptionError(path, f"damaged file header (it says version {version})", offset=0)
    *fields, first, second, third = fields
    fields.append((first, second, third))
    return FileHeader(*fields)


def file_seed(number: int) -> int:
    """What the CRC of every header in that file starts from."""
    return crc32(U32.pack(number & 0xFFFFFFFF))


def align(offset: int) -> int:
    """Where the header of an entry stands if the one before it ended at `offset`."""
    gap = offset % SECTOR
    return offset + SECTOR - gap if gap > HEADER_AT_MAX else offset


def mask(payload: bytes | bytearray, order: int) -> bytes:
    """XOR with the keystream of that order; twice gives the payload back.

    4 KiB of SHAKE-128, repeated: no zero run survives, because a payload that equals 256 bytes of
    it would have to be made for that. XOR on whole integers: about 1 ms per MiB.
    """
    size = len(payload)
    key = shake_128(order.to_bytes(8, "little")).digest(min(size, _KEYSTREAM_BYTES))
    stream = (key * (size // len(key) + 1))[:size] if size else b""
    mixed = int.from_bytes(payload, "little") ^ int.from_bytes(stream, "little")
    return mixed.to_bytes(size, "little")

"""Framing: from a payload to the bytes of an entry, at its place in the chain.

    payload --(mask)--> | pad | header 38 | payload | trailer 5 |

The hot half of the format (format.py has the rules): one call per commit.
"""

from __future__ import annotations

from zlib import crc32

from halocline.errors import UsageError
from halocline.log.format import (
    FIELDS,
    GROUP_MAX,
    HEADER_AT_MAX,
    MARK,
    MASKED,
    PADS,
    PAYLOAD_BYTES_MAX,
    SEAL,
    SECTOR,
    U32,
    ZERO_RUN,
    mask,
)
from halocline.log.scan import Cursor

_pack_fields = FIELDS.pack
_pack_seal = SEAL.pack
_pack_u32 = U32.pack


def frame(
    at: Cursor,
    seed: int,
    synced: int,
    group: int,
    type: int,
    payload: bytes | bytearray | memoryview,
) -> tuple[bytes, int]:
    """The entry that comes next at this place, with the padding before it, and its CRC. 1.4 us.

    `seed` is that of the file (`file_seed`); `synced` the highest order known to be durable.
    """
    size = len(payload)
    if not 0 < group <= GROUP_MAX or not 0 <= type < MASKED or size > PAYLOAD_BYTES_MAX:
        raise UsageError(f"no entry of group {group}, type {type:#x} and {size} bytes")
    if size >= 256:
        if isinstance(payload, memoryview):
            payload = bytes(payload)
        if ZERO_RUN in payload:
            payload = mask(payload, at.order)
            type |= MASKED
    fields = _pack_fields(group, at.lsns[group] + 1, size, type, at.order, synced)
    header = fields + _pack_seal(crc32(fields, seed), MARK)
    crc = crc32(payload, crc32(header, crc32(_pack_u32(at.crc))))
    gap = at.offset % SECTOR
    pad = PADS[SECTOR - gap] if gap > HEADER_AT_MAX else b""
    return b"".join((pad, header, payload, _pack_seal(crc, MARK))), crc

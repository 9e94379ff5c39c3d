"""The payload of an entry (W-10..W-12): whose transaction, what it says of itself, its nodes.

    | txn id 8 | info length 2 | info | previous 12, only in UC PC RB | node count 4 | node ... |
    node = | type 1 | length 4 | bytes |            previous = | group 4 | LSN 8 |, zero = none

A node is one atomic command; its number inside the payload makes it a sub-entry (W-09). What the
info and the nodes' bytes mean belongs to the rooms that write them.

Payloads have passed a CRC when they come here, but a checksum does not stop somebody who can
write files. Decoding only ever cuts slices out of the payload, so no length it names can allocate
more than the payload has, and all lengths together must end exactly at its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from halocline.errors import CorruptionError, UsageError
from halocline.log.format import PC, RB, UC

DML_A: Final = 0x01
DML_D: Final = 0x02
DML_U: Final = 0x03
DDL_CT: Final = 0x04
DDL_DT: Final = 0x05
DDL_CD: Final = 0x06
DDL_DD: Final = 0x07
DDL_CI: Final = 0x08
DDL_DI: Final = 0x09
OBJ_C: Final = 0x0A
OBJ_D: Final = 0x0B
PAGE_M: Final = 0x0C
JOB: Final = 0x0D
FLOOR: Final = 0x0E
EPOCH: Final = 0x0F
SNAPSHOT: Final = 0x10
ROOT: Final = 0x11

INFO_BYTES_MAX: Final = 0xFFFF
NO_PREVIOUS: Final = (0, 0)
"""The PrevPtr of a transaction's first part."""

_META: Final = Struct("<QH")
_PREVIOUS: Final = Struct("<IQ")
_COUNT: Final = Struct("<I")
_NODE: Final = Struct("<BI")
_LINKED: Final = frozenset({UC, PC, RB})
_META_BYTES: Final = _META.size
_unpack_meta = _META.unpack_from
_unpack_count = _COUNT.unpack_from
_unpack_node = _NODE.unpack_from
_new = tuple.__new__

Node = tuple[int, bytes]


class Payload(NamedTuple):
    """A decoded payload. `previous` is (group, LSN) of the part before, or None."""

    txn_id: int
    info: bytes
    previous: tuple[int, int] | None
    nodes: list[Node]


def encode_payload(
    txn_id: int,
    info: bytes,
    nodes: Sequence[tuple[int, bytes | bytearray | memoryview]],
    prev: tuple[int, int] | None = None,
) -> bytearray:
    """The payload's bytes, to be patched in place until they are appended.

    UC, PC and RB have a PrevPtr: pass `prev`, NO_PREVIOUS for a first part. AC has none.
    """
    if len(info) > INFO_BYTES_MAX:
        raise UsageError(f"info of {len(info)} bytes is longer than {INFO_BYTES_MAX}")
    data = bytearray(_META.pack(txn_id, len(info)))
    data += info
    if prev is not None:
        data += _PREVIOUS.pack(*prev)
    data += _COUNT.pack(len(nodes))
    for kind, body in nodes:
        data += _NODE.pack(kind, len(body))
        data += body
    return data


def decode_payload(payload: bytes, *, type: int, path: str = "log") -> Payload:
    """Take a payload apart; CorruptionError if its lengths do not add up. One node: 0.9 us."""
    size = len(payload)
    previous = None
    nodes: list[Node] = []
    try:
        txn_id, info_size = _unpack_meta(payload)
        at = _META_BYTES + info_size
        info = payload[_META_BYTES:at]
        if type in _LINKED:
            previous = _PREVIOUS.unpack_from(payload, at)
            if previous == NO_PREVIOUS:
                previous = None
            at += _PREVIOUS.size
        (count,) = _unpack_count(payload, at)
        at += 4
        # A length that is too long takes `at` beyond the end, where the next unpack fails.
        for _ in range(count):
            kind, length = _unpack_node(payload, at)
            start = at + 5
            at = start + length
            nodes.append((kind, payload[start:at]))
    except StructError:
        raise CorruptionError(path, f"a payload of {size} bytes ends inside a field") from None
    if at != size:
        raise CorruptionError(path, f"the nodes of a payload take {at} bytes, not {size}")
    return _new(Payload, (txn_id, info, previous, nodes))

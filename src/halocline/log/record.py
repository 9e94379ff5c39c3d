"""The payload of an entry: whose transaction, what it says of itself, its nodes.

    | txn id 8 | info length 2 | info | previous 12, only in UC PC RB | node count 4 | node ... |
    serial = | sequence 8 | number 8 |    behind the nodes of a commit, if its flags say so
    info of a commit = | first_ts 8 | wall_us 8 | epoch 4 | count 4 | flags 1 | token |
    node = | type 1 | length 4 | bytes |

A node is one atomic command; its number inside the payload makes it a sub-entry. What its bytes
mean belongs to the rooms that write them. Nodes of rows have a head of their own (rows/nodes.py).
All others have a *body*: a version byte and msgpack (`encode_body`, `decode_body`).

A commit holds `count` transactions, nearly always one. Several are inserts of one row each into one
table: the one node has `count` rows, and row i belongs to commit `first_ts + i`. They share the
wall clock and the transaction id. An entry of the system has no info.

Payloads have passed a CRC when they come here, but a checksum does not stop somebody who can
write files. Decoding only ever cuts slices out of the payload, so no length it names can allocate
more than the payload has, and all lengths together must end exactly at its end. A flag that is not
known is an error: what it stands for must not be left out.

Not here: entries with a previous part (UC, PC, RB), which nothing writes; they are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from struct import error as StructError
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from halocline.errors import CorruptionError, UsageError
from halocline.log.format import AC, CKP, COMMITS, SYSTEM, Entry
from halocline.store.files import Buffer

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
DDL_UT: Final = 0x12
SEQUENCE: Final = 0x13

HAS_TOKEN: Final = 0x01
"""A flag of a commit: a token follows its info, as msgpack."""
HAS_SERIALS: Final = 0x02
"""A flag of a commit: behind the nodes each of its transactions has a serial."""

META: Final = Struct("<QH")
INFO: Final = Struct("<QQIIB")
COUNT: Final = Struct("<I")
NODE: Final = Struct("<BI")
SERIAL: Final = Struct("<QQ")
_PLAIN: Final = Struct("<QHQQIIBI")
"""Everything in front of the first node, when there is no token."""
NODES_AT: Final = _PLAIN.size
STAMP_AT: Final = META.size
stamp = Struct("<QQ").pack_into
"""Puts the timestamp and the wall clock into the payload of a commit, at STAMP_AT."""
_META_BYTES, _INFO_BYTES, _NODE_BYTES = META.size, INFO.size, NODE.size
_TOKEN_AT: Final = _META_BYTES + _INFO_BYTES
_FLAGS_AT: Final = _TOKEN_AT - 1
_unpack_meta, _unpack_info = META.unpack_from, INFO.unpack_from
_unpack_count, _unpack_node = COUNT.unpack_from, NODE.unpack_from
_pack_plain, _pack_node = _PLAIN.pack, NODE.pack
_U32_MAX: Final = (1 << 32) - 1
_new = tuple.__new__

RawNode = tuple[int, bytes]
_Token = str | tuple[str, int]
_T = TypeVar("_T")
Serial = tuple[int, int]
"""Which commit of which sequence it is, of those that another process has sent; (0, 0) for one that
was not sent. A commit that is sent again has the serial it had: so it happens once."""
_decode_token = msgspec.msgpack.Decoder(_Token).decode
_encode = msgspec.msgpack.Encoder().encode
BODY_VERSION: Final = b"\x01"


class Info(NamedTuple):
    """What a commit says of itself."""

    first_ts: int
    wall_us: int
    epoch: int
    commits: int = 1
    """How many transactions it holds."""
    token: _Token | None = None
    serials: tuple[Serial, ...] = ()
    """One for each transaction, or none at all."""


class Record(NamedTuple):
    """An entry taken apart: the transactions of one commit, or nodes of the system without info."""

    group: int
    type: int
    order: int
    txn_id: int
    info: Info | None
    nodes: list[RawNode]


def encode_commit(
    txn_id: int,
    epoch: int,
    nodes: Sequence[tuple[int, bytes | bytearray | memoryview]],
    *,
    count: int = 1,
    token: _Token | None = None,
) -> bytearray:
    """The payload of a commit, whose timestamp and wall clock are put in later (`stamp`)."""
    if token is None:
        data = bytearray(_pack_plain(txn_id, _INFO_BYTES, 0, 0, epoch, count, 0, len(nodes)))
    else:
        written = _encode(token)
        data = bytearray(META.pack(txn_id, _INFO_BYTES + len(written)))
        data += INFO.pack(0, 0, epoch, count, HAS_TOKEN)
        data += written
        data += COUNT.pack(len(nodes))
    for kind, body in nodes:
        data += _pack_node(kind, len(body))
        data += body
    return data


def encode_system_payload(txn_id: int, nodes: Sequence[tuple[int, bytes]]) -> bytearray:
    """The payload of an entry of the system."""
    data = bytearray(META.pack(txn_id, 0) + COUNT.pack(0))
    for kind, body in nodes:
        add_node(data, kind, body)
    return data


def add_node(payload: bytearray, kind: int, body: bytes) -> None:
    """Put a further node behind those that a payload has."""
    count_at = _META_BYTES + _unpack_meta(payload)[1]
    COUNT.pack_into(payload, count_at, _unpack_count(payload, count_at)[0] + 1)
    payload += _pack_node(kind, len(body))
    payload += body


def add_serials(payload: bytearray, serials: Sequence[Serial]) -> None:
    """Put the serials of a commit's transactions behind its nodes, of which it has all."""
    payload[_FLAGS_AT] |= HAS_SERIALS
    for serial in serials:
        payload += SERIAL.pack(*serial)


def decode_payload(
    payload: bytes, path: str = "log", nodes_max: int = _U32_MAX
) -> tuple[int, Info | None, list[RawNode]]:
    """(transaction id, info, nodes); CorruptionError if its lengths do not add up, UsageError if it
    says that it has more nodes than it may."""
    nodes: list[RawNode] = []
    try:
        txn_id, info_bytes = _unpack_meta(payload)
        at = _META_BYTES + info_bytes
        info = _decode_info(payload, at, path) if info_bytes else None
        (count,) = _unpack_count(payload, at)
        at += 4
        if count > nodes_max:
            raise UsageError(f"a commit has at most {nodes_max} parts: commit fewer rows at once")
        # A length that is too long takes `at` beyond the end, where the next unpack fails.
        for _ in range(count):
            kind, length = _unpack_node(payload, at)
            start = at + _NODE_BYTES
            at = start + length
            nodes.append((kind, payload[start:at]))
        if info is not None and payload[_FLAGS_AT] & HAS_SERIALS:
            start, at = at, at + SERIAL.size * info.commits
            info = info._replace(serials=tuple(SERIAL.iter_unpack(payload[start:at])))
    except StructError:
        reason = f"a payload of {len(payload)} bytes ends inside a field"
        raise CorruptionError(path, reason) from None
    if at != len(payload):
        raise CorruptionError(path, f"the nodes of a payload take {at} bytes, not {len(payload)}")
    return txn_id, info, nodes


def encode_body(fields: Any) -> bytes:
    """The bytes of a node that is not about rows."""
    return BODY_VERSION + _encode(fields)


def decode_body(payload: Buffer, fields: type[_T]) -> _T:
    """What `encode_body` wrote, checked against its type; CorruptionError for anything else."""
    version, name = bytes(payload[:1]), fields.__name__.lstrip("_")
    if version != BODY_VERSION:
        raise CorruptionError(
            "log", f"{name}: version {version[0] if version else None} is unknown"
        )
    try:
        return msgspec.msgpack.decode(memoryview(payload)[1:], type=fields)
    # msgspec's own errors are ValueErrors; bad UTF-8 and too deep nesting surface as Python's.
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptionError("log", f"{name} cannot be decoded: {error}") from error


def decode_record(entry: Entry) -> Record:
    """Take an entry apart; CorruptionError for what no entry of this version can be."""
    group, _, kind, order, payload, _ = entry
    txn_id, info, nodes = decode_payload(payload)
    if group == COMMITS and kind == AC and info is not None:
        return _new(Record, (group, kind, order, txn_id, info, nodes))
    if group != SYSTEM or kind not in (AC, CKP) or info is not None:
        reason = f"entry {order} has type {kind:#x} in group {group}"
        raise CorruptionError("log", reason if info is None else f"{reason}, with info")
    return _new(Record, (group, kind, order, txn_id, None, nodes))


def _decode_info(payload: bytes, end: int, path: str) -> Info:
    """What a commit says of itself, up to the byte where it ends."""
    first_ts, wall_us, epoch, count, flags = _unpack_info(payload, _META_BYTES)
    token = None
    if flags & ~(HAS_TOKEN | HAS_SERIALS):
        raise CorruptionError(path, f"flags {flags:#x} of a commit are newer than this program")
    if flags & HAS_TOKEN:
        try:
            token = _decode_token(payload[_TOKEN_AT:end])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise CorruptionError(path, f"a token cannot be decoded: {error}") from error
    if not count or (end != _TOKEN_AT and not flags & HAS_TOKEN):
        reason = f"a commit of {count} transactions, with {end - _META_BYTES} bytes of info"
        raise CorruptionError(path, reason)
    return _new(Info, (first_ts, wall_us, epoch, count, token, ()))

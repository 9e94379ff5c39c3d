"""Several transactions in one entry: one inserted row each, of one table, committed together.

    ACS   commit_ts 70, RowID 12, rows [a b c]     is the same as     AC 70: a at 12
                                                                      AC 71: b at 13
                                                                      AC 72: c at 14

What an owner logs for the single rows that several processes bring at the same moment. The record
is that of one row (onerow.py) with more rows in it; row i belongs to a transaction of its own, with
the timestamp and the RowID that are i higher. They share wall clock and transaction id.

`each` says it in the long way, for everybody to whom an entry is a transaction. The short way, for
those who fold, is in onerow.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from halocline.errors import CorruptionError
from halocline.log import AC, ACS, DML_A, Record
from halocline.rows.nodes import HEAD, ROWS, VERSION
from halocline.rows.system import decode_info, encode_info

_ONE_ITEM: Final = b"\x91"
_decode_items = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


def each(record: Record) -> Sequence[Record]:
    """The transactions of a record, nearly always itself; all have its order."""
    if record.type != ACS:
        return (record,)
    group, _, order, txn_id, said, nodes = record
    info = decode_info(said)
    if len(nodes) != 1 or nodes[0][0] != DML_A or info.token is not None:
        raise CorruptionError("log", f"entry {order} is not rows of one table")
    payload = nodes[0][1]
    try:
        version, form, table_id, first = HEAD.unpack_from(payload)
        rows = _decode_items(payload[HEAD.size :])
    except (msgspec.MsgspecError, ValueError) as error:
        raise CorruptionError("log", f"entry {order} cannot be decoded: {error}") from error
    if (version, form) != (VERSION, ROWS):
        raise CorruptionError("log", f"entry {order} has rows of form {form}, version {version}")
    if not rows:
        raise CorruptionError("log", f"entry {order} has no rows")
    found = []
    for place, row in enumerate(rows):
        told = msgspec.structs.replace(info, commit_ts=info.commit_ts + place)
        node = HEAD.pack(version, form, table_id, first + place) + _ONE_ITEM + bytes(row)
        found.append(Record(group, AC, order, txn_id, encode_info(told), [(DML_A, node)]))
    return found

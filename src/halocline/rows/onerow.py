"""The record of one row: most commits of a busy database are one, so it is written and folded fast.

    txn id, InfoLen | commit_ts, wall_us, epoch (msgpack map) | 1 node: kind, length | head | row
    ----- u64 u16 ---------------- 52 bytes ------------------ u32 -- u8 u32 ------- 18 --- ...

It is an ordinary commit record (log/record.py, rows/nodes.py); only its lengths are known before it
is read. So it is put together in one go, 0.9 us, and taken apart in one go: a follower, or a
recovery, folds an inserted row in 2 us, where the general way through five decoders takes 5; in a
process that has just been woken, 6 and 18.

Rows that several processes brought at the same moment stand in one record, each a transaction of
its own (several.py): it has the same form, with more rows behind the head. Of five rows in one a
follower folds each in a third of the time that a record of its own takes.

Whatever is not plainly such a record, and whatever about it is damaged, is left to the general way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from typing import Any, Final
from zlib import crc32

import msgspec

from halocline.ids import NEVER
from halocline.log import AC, ACS, COMMITS, DML_A, DML_U, Entry, transactions
from halocline.log.format import (
    FRAME_BYTES,
    HEADER,
    HEADER_AT_MAX,
    HEADER_BYTES,
    MARK,
    SEAL,
    SECTOR,
    U32,
)
from halocline.log.replay import Parts
from halocline.log.scan import Cursor
from halocline.rows.engine import EngineState
from halocline.rows.nodes import HEAD, ROWS, VERSION
from halocline.rows.page import Row
from halocline.rows.state import TableState

INFO: Final = Struct(">12sQ9sQ7sQ")
NAMES: Final = (b"\x83\xa9commit_ts\xcf", b"\xa7wall_us\xcf", b"\xa5epoch\xcf")
_META: Final = Struct("<QH")
_NODE: Final = Struct("<IBIBBQQ")
_META_BYTES: Final = _META.size
_NODE_AT: Final = _META.size + INFO.size
ONE_ROW_BYTES: Final = _NODE_AT + _NODE.size
_AFTER_LENGTH: Final = ONE_ROW_BYTES - HEAD.size
_PLAIN: Final = (INFO.size, 1, VERSION, ROWS)
_INSERT: Final = (1, DML_A, VERSION, ROWS)
_Update = tuple[tuple[int, ...], tuple[int], msgspec.Raw]
_FRONT_STRUCT: Final = Struct(">QH12sQ9sQ7sQ")
"""Number and info at once, so the length has its bytes the wrong way round."""
_FRONT: Final = (int.from_bytes(INFO.size.to_bytes(2, "little"), "big"), *NAMES)
_ITEMS_FEW, _ITEMS_U16, _ITEMS_U32 = 0x90, 0xDC, 0xDD  # msgpack: how an array begins
_FEW: Final = 15
_INFO_SIZE: Final = INFO.size.to_bytes(2, "little")
_pack_items = Struct(">BI").pack
_unpack_u16 = Struct(">H").unpack_from
_pack_meta, _pack_info, _pack_node = _META.pack, INFO.pack, _NODE.pack
_unpack_meta, _unpack_info, _unpack_node = _META.unpack_from, INFO.unpack_from, _NODE.unpack_from
_unpack_header, _unpack_seal = HEADER.unpack_from, SEAL.unpack_from
_unpack_front = _FRONT_STRUCT.unpack_from
_decode_update = msgspec.msgpack.Decoder(_Update).decode


def one_row_record(
    txn_id: int,
    commit_ts: int,
    wall_us: int,
    epoch: int,
    kind: int,
    table_id: int,
    rowid: int,
    body: bytes,
) -> bytes:
    """The record of one node without a token, put together in one go: 0.9 us."""
    name_a, name_b, name_c = NAMES
    return b"".join(
        (
            _pack_meta(txn_id, INFO.size),
            _pack_info(name_a, commit_ts, name_b, wall_us, name_c, epoch),
            _pack_node(1, kind, HEAD.size + len(body), VERSION, ROWS, table_id, rowid),
            body,
        )
    )


def fold_entries(engine: EngineState, entries: Iterable[Entry], parts: Parts) -> None:
    """Apply entries of the log."""
    for entry in entries:
        if not fold_row(engine, entry):
            for record in transactions((entry,), parts):
                engine.fold_record(record)


def fold_run(engine: EngineState, image: bytes, base: int, limit: int, cursor: Cursor) -> None:
    """Rows that were inserted one by one into one table are folded together, as far as they go.

    A compute node does so before every transaction, with what all the others have committed, and
    its caches are cold. So entries are not made first (`read_entries` in log/scan.py has the same
    checks): of 8 rows that others have committed each takes 5 us then, instead of 8.
    """
    view, lsn = memoryview(image), cursor.lsns[COMMITS]
    at, stop = cursor.offset - base, min(limit - base, len(image))
    order, last, chain = cursor.order, cursor.crc, crc32(U32.pack(cursor.crc))
    table_id = first = durable = 0
    bodies: list[bytes] = []
    stamps: list[int] = []
    walls: list[int] = []
    while True:
        gap = at % SECTOR
        start = at + SECTOR - gap if gap > HEADER_AT_MAX else at
        if start + FRAME_BYTES > stop:
            break
        group, number, length, kind, found, synced, _, mark = _unpack_header(image, start)
        payload, end = start + HEADER_BYTES, start + HEADER_BYTES + length
        if found != order or mark != MARK or group != COMMITS or number != lsn + 1:
            break
        if kind not in (AC, ACS) or length <= ONE_ROW_BYTES or end + SEAL.size > stop:
            break
        crc, mark = _unpack_seal(image, end)
        if mark != MARK or crc32(view[start:end], chain) != crc:
            break
        _, info, a, ts, b, wall_us, c, _ = _unpack_front(image, payload)
        count, dml, size, version, form, table, rowid = _unpack_node(image, payload + _NODE_AT)
        if (info, a, b, c) != _FRONT or size != length - _AFTER_LENGTH:
            break
        if (count, dml, version, form) != _INSERT:
            break
        if not bodies:
            table_id, first = table, rowid
        elif table != table_id or rowid != first + len(stamps):
            break
        rows, body = _items(image, payload + ONE_ROW_BYTES)
        if rows == 1:
            stamps.append(ts)
            walls.append(wall_us)
        elif rows and kind == ACS:
            stamps += range(ts, ts + rows)
            walls += [wall_us] * rows
        else:
            break
        bodies.append(image[body:end])
        lsn, order, last, at = number, order + 1, crc, end + SEAL.size
        durable = synced
        chain = crc32(image[end : end + 4])
    if bodies and _fold_rows(engine, table_id, first, bodies, stamps, walls):
        cursor.lsns[COMMITS] = lsn
        cursor.offset, cursor.order, cursor.crc, cursor.synced = base + at, order, last, durable


def _items(data: bytes, at: int) -> tuple[int, int]:
    """How many items an array of msgpack has, and where the first begins; 0: it is none."""
    lead = data[at]
    if _ITEMS_FEW < lead <= _ITEMS_FEW + _FEW:
        return lead - _ITEMS_FEW, at + 1
    if lead == _ITEMS_U16 and len(data) >= at + 3:
        return _unpack_u16(data, at + 1)[0], at + 3
    return 0, at


def _fold_rows(
    engine: EngineState,
    table_id: int,
    first: int,
    bodies: list[bytes],
    stamps: list[int],
    walls: list[int],
) -> bool:
    """Rows of one table with RowIDs from `first` on; False if it is not so simple."""
    state = engine.tables.get(table_id)
    if state is None or state.key_of is None:
        return False
    try:
        rows = state.schema.decode_rows(_pack_items(_ITEMS_U32, len(stamps)) + b"".join(bodies))
        keys = list(map(state.key_of, rows))
    except (msgspec.MsgspecError, ValueError, TypeError):
        return False  # damaged: one of them will say so
    if len(rows) != len(stamps):
        return False
    state.last_ts = stamps[-1]  # first: see rows/state.py on reading beside the fold
    append_rows(state, first, keys, rows, stamps)
    engine.times.extend(stamps, walls)
    engine.folded.add(table_id)
    engine.wall_us = walls[-1]
    engine.last_ts = stamps[-1]
    return True


def append_rows(
    state: TableState, first: int, keys: Sequence[Any], rows: Sequence[Row], stamps: Sequence[int]
) -> None:
    """`TableState.append_row` for rows that follow each other."""
    active = state.shape.active
    fits = len(active.rows) + len(rows) <= state.page_rows
    if first != active.start + len(active.rows) or not fits:
        for place, row in enumerate(rows):
            state.append_row(first + place, keys[place], row, stamps[place])
        return
    active.stamps.extend(stamps)
    active.rows.extend(rows)
    put = state.tree.put
    for rowid, key in enumerate(keys, first):
        put(key, rowid)
    state.next_rowid = first + len(rows)


def fold_row(engine: EngineState, entry: Entry) -> bool:
    """Apply the commit of one row; False when it is anything else, and nothing was done."""
    group, _, kind, _, payload, _ = entry
    if group == COMMITS and kind == ACS:
        return _fold_several(engine, payload)
    if kind != AC or group != COMMITS:
        return False
    found = read_row(engine.tables, payload)
    if found is None:
        return False
    ts, wall_us, rowid, state, key, row, target, changed = found
    state.last_ts = ts  # first: see rows/state.py on reading beside the fold
    if target:
        state.update_row(target, changed, rowid, key, row, ts)
    else:
        state.append_row(rowid, key, row, ts)
    engine.folded.add(state.table_id)
    engine.last_ts = ts
    engine.wall_us = wall_us
    engine.times.add(ts, wall_us)
    return True


def _fold_several(engine: EngineState, payload: bytes) -> bool:
    if len(payload) <= ONE_ROW_BYTES:
        return False
    _, info, a, ts, b, wall_us, c, _ = _unpack_front(payload)
    count, dml, size, version, form, table, first = _unpack_node(payload, _NODE_AT)
    if (info, a, b, c) != _FRONT or size != len(payload) - _AFTER_LENGTH:
        return False
    rows, body = _items(payload, ONE_ROW_BYTES)
    if (count, dml, version, form) != _INSERT or not rows:
        return False
    return _fold_rows(
        engine, table, first, [payload[body:]], list(range(ts, ts + rows)), [wall_us] * rows
    )


def read_inserts(
    tables: Mapping[int, TableState], records: Sequence[bytes]
) -> list[tuple[TableState, list[int], list[Row]]]:
    """Those that are plainly one inserted row, by table: which they are, and the rows.

    Each is decoded for itself: bytes that one sender left out must not be found in another's.
    """
    found: dict[int, tuple[TableState, list[int], list[Row]]] = {}
    for place, record in enumerate(records):
        if len(record) <= ONE_ROW_BYTES or record[_META_BYTES - 2 : _META_BYTES] != _INFO_SIZE:
            continue
        count, dml, size, version, form, table_id, _ = _unpack_node(record, _NODE_AT)
        state = tables.get(table_id)
        if (count, dml, version, form) != _INSERT or size != len(record) - _AFTER_LENGTH:
            continue
        if state is None or state.key_of is None or state.dropped_at != NEVER:
            continue
        try:
            (row,) = state.schema.decode_rows(memoryview(record)[ONE_ROW_BYTES:])
        except (msgspec.MsgspecError, ValueError, TypeError):
            continue  # the general way knows what is wrong
        _, places, rows = found.setdefault(table_id, (state, [], []))
        places.append(place)
        rows.append(row)
    return [one for one in found.values() if len(one[1]) > 1]


OneRow = tuple[int, int, int, TableState, Any, Row, int, tuple[int, ...]]
"""commit_ts, wall_us, RowID, table, key, row; of an update the version that ends and the ids of the
columns that change, otherwise 0 and none."""


def read_row(tables: Mapping[int, TableState], payload: bytes) -> OneRow | None:
    """The parts of a record of one row; None when it is another, or damaged."""
    if len(payload) <= ONE_ROW_BYTES:
        return None
    _, info_bytes = _unpack_meta(payload)
    name_a, ts, name_b, wall_us, name_c, _ = _unpack_info(payload, _META_BYTES)
    count, kind, length, version, form, table_id, rowid = _unpack_node(payload, _NODE_AT)
    if (info_bytes, count, version, form) != _PLAIN or (name_a, name_b, name_c) != NAMES:
        return None
    state = tables.get(table_id)
    if state is None or state.key_of is None or length != len(payload) - _AFTER_LENGTH:
        return None
    body = memoryview(payload)[ONE_ROW_BYTES:]
    try:
        if kind == DML_A:
            (row,) = state.schema.decode_rows(body)
            return ts, wall_us, rowid, state, state.key_of(row), row, 0, ()
        if kind == DML_U:
            changed, (target,), raw = _decode_update(body)
            (row,) = state.schema.decode_rows(raw)
            if target > 0:
                return ts, wall_us, rowid, state, state.key_of(row), row, target, changed
    except (msgspec.MsgspecError, ValueError, TypeError):
        pass  # more than one row, or damaged: the general way knows, and says so
    return None

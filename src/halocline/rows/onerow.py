"""The record of one row: most commits of a busy database are one, so it is written and folded fast.

    txn id, InfoLen | commit_ts, wall_us, epoch (msgpack map) | 1 node: kind, length | head | row
    ----- u64 u16 ---------------- 52 bytes ------------------ u32 -- u8 u32 ------- 18 --- ...

It is an ordinary commit record (log/record.py, rows/nodes.py); only its lengths are known before it
is read. So it is put together in one go, 0.9 us, and taken apart in one go: a follower, or a
recovery, folds an inserted row in 3 us, where the general way through five decoders takes 9.

Whatever is not plainly such a record, and whatever about it is damaged, is left to the general way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Any, Final

import msgspec

from halocline.log import AC, COMMITS, DML_A, DML_U, Entry, transactions
from halocline.log.replay import Parts
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
_Update = tuple[tuple[int, ...], tuple[int], msgspec.Raw]
RUN_MIN: Final = 3
_ONE_ITEM, _ITEMS = 0x91, 0xDD  # msgpack: an array of one item, and of as many as the u32 says
_pack_items = Struct(">BI").pack
_pack_meta, _pack_info, _pack_node = _META.pack, INFO.pack, _NODE.pack
_unpack_meta, _unpack_info, _unpack_node = _META.unpack_from, INFO.unpack_from, _NODE.unpack_from
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


def fold_entries(engine: EngineState, entries: Sequence[Entry], parts: Parts) -> None:
    """Apply entries of the log; rows that were inserted one after another, together.

    8 rows that others have committed: 30 us, one by one 55, in the general way 100.
    """
    place, count = 0, len(entries)
    while place < count:
        if count - place >= RUN_MIN and (folded := _fold_run(engine, entries, place)):
            place += folded
            continue
        entry = entries[place]
        place += 1
        if not fold_row(engine, entry):
            for record in transactions((entry,), parts):
                engine.fold_record(record)


def _fold_run(engine: EngineState, entries: Sequence[Entry], place: int) -> int:
    """Rows that were inserted into one table in a row, from that entry on; how many."""
    table = first = expected = 0
    bodies: list[bytes] = []
    stamps: list[int] = []
    walls: list[int] = []
    for at in range(place, len(entries)):
        group, _, entry_kind, _, payload, _ = entries[at]
        if entry_kind != AC or group != COMMITS or len(payload) <= ONE_ROW_BYTES:
            break
        _, info_bytes = _unpack_meta(payload)
        name_a, ts, name_b, wall_us, name_c, _ = _unpack_info(payload, _META_BYTES)
        head = _unpack_node(payload, _NODE_AT)
        if info_bytes != INFO.size or (name_a, name_b, name_c) != NAMES:
            break
        if not bodies:
            table, first = head[5], head[6]
            expected = first
        if head != (1, DML_A, len(payload) - _AFTER_LENGTH, VERSION, ROWS, table, expected):
            break
        if payload[ONE_ROW_BYTES] != _ONE_ITEM:
            break
        expected += 1
        bodies.append(payload[ONE_ROW_BYTES + 1 :])
        stamps.append(ts)
        walls.append(wall_us)
    state = engine.tables.get(table)
    if len(bodies) < RUN_MIN or state is None or state.key_of is None:
        return 0
    try:
        rows = state.schema.decode_rows(_pack_items(_ITEMS, len(bodies)) + b"".join(bodies))
        keys = list(map(state.key_of, rows))
    except (msgspec.MsgspecError, ValueError, TypeError):
        return 0  # damaged: one of them will say so
    if len(rows) != len(bodies):
        return 0
    state.last_ts = stamps[-1]  # first: see rows/state.py on reading beside the fold
    _append(state, first, keys, rows, stamps)
    engine.times.extend(stamps, walls)
    engine.wall_us = walls[-1]
    engine.last_ts = stamps[-1]
    return len(bodies)


def _append(
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
    engine.last_ts = ts
    engine.wall_us = wall_us
    engine.times.add(ts, wall_us)
    return True


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

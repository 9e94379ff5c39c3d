"""A reshape moves rows out of L0 and brings objects in one step; bytes and memory agree."""

from __future__ import annotations

from threading import Lock

import numpy as np
import pyarrow as pa
import pytest

from halocline.catalog import TableEntry
from halocline.errors import CorruptionError
from halocline.ids import ColumnId, TableId
from halocline.objects import ObjectFile, Shelf
from halocline.objects.shelf import object_key
from halocline.rows.nodes import Append, Delete
from halocline.rows.reshape import Reshape, decode_reshapes, encode_reshape, new_entry
from halocline.rows.state import TableState
from halocline.rows.trim import trim
from halocline.schema.column import TableColumn
from halocline.schema.schema import Schema
from tests.unit.objects.files import write_data

SCHEMA = Schema(
    columns=(
        TableColumn(id=ColumnId(1), name="id", type=pa.int64(), nullable=False),
        TableColumn(id=ColumnId(2), name="text", type=pa.string(), nullable=True),
    ),
    key_positions=(0,),
    last_id=2,
)


def table_state(page_rows: int = 4) -> TableState:
    entry = TableEntry(
        id=TableId(7),
        name="t",
        schema=SCHEMA,
        layout="clustered",
        options={},
        next_column_id=ColumnId(3),
    )
    return TableState(entry, page_rows=page_rows, shelf=Shelf.in_memory())


def filled(rows: int) -> TableState:
    state = table_state()
    for number in range(1, rows + 1):
        row = (number * 10, f"row {number}")
        state.fold(Append(state.table_id, [row], first_rowid=number), number)
    return state


def move(state: TableState, start: int, end: int, ts: int) -> Reshape:
    """A move of RowIDs [start, end), as the mover would write it down."""
    rowids = np.arange(start, end)
    table = pa.table(
        {
            "id": pa.array(rowids * 10),
            "text": pa.array([f"row {number}" for number in rowids]),
            "_rowid": pa.array(rowids),
            "_commit_ts": pa.array(rowids),
        }
    )
    key = object_key(7, 1, 0)
    stats = write_data(state.shelf.objects, key, table, SCHEMA)
    entry = new_entry(ObjectFile(key, stats), moved=True)
    return Reshape(7, created=[entry], ranges=[(start, end)], flushed_ts=ts - 1, job_id=1)


def test_a_move_takes_rows_out_of_pages_and_brings_their_object() -> None:
    state = filled(10)
    state.reshape(move(state, 1, 7, 11), 11)
    left = [rowid for page, n in state.shape.counted() for rowid in page.rowid_array(n).tolist()]
    assert left == [7, 8, 9, 10]
    assert state.row(6) is None
    assert state.row(7) == (70, "row 7")
    assert state.moved_rowid == 7
    (entry,) = state.shape.tier.data
    assert (entry.created_at, entry.commit_ts_min, entry.commit_ts_max) == (11, 1, 6)
    assert entry.counts_at(3), "a moved object serves snapshots older than itself"


def test_a_moved_row_keeps_its_stamp_until_it_is_trimmed() -> None:
    state = filled(10)
    state.reshape(move(state, 1, 7, 11), 11)
    assert [state.stamp(rowid) for rowid in (1, 6, 7)] == [1, 6, 7]
    trim(state, 4, Lock())
    assert [state.tree.newest(key) for key in (10, 40, 50, 60, 70)] == [0, 0, 5, 6, 7]
    assert [state.stamp(rowid) for rowid in (4, 5, 6)] == [0, 5, 6]
    trim(state, 11, Lock())
    assert [state.tree.newest(key) for key in (50, 60, 70)] == [0, 0, 7]
    assert state.ghosts == ()


def test_trim_keeps_the_tombstone_of_a_row_in_l0() -> None:
    state = filled(10)
    state.fold(Delete(state.table_id, [2, 9], [20, 90]), 11)
    state.reshape(move(state, 1, 7, 12), 12)
    trim(state, 12, Lock())
    assert state.deletes.find(2) is None, "its row has moved and its tombstone is flushed"
    assert state.deletes.find(9) is not None


def test_trim_keeps_what_an_open_writer_must_find() -> None:
    state = filled(10)
    state.fold(Delete(state.table_id, [2, 3], [20, 30]), 11)
    state.reshape(move(state, 1, 7, 12), 12)
    trim(state, 10, Lock())
    assert state.deletes.find(2) is not None


@pytest.mark.parametrize("end", range(2, 11))
def test_replay_may_have_cut_its_pages_elsewhere(end: int) -> None:
    state = table_state(page_rows=100)
    for number in range(1, 11):
        row = (number * 10, f"row {number}")
        state.fold(Append(state.table_id, [row], first_rowid=number), number)
    state.fold(Delete(state.table_id, [9], [90]), 11)
    state.reshape(move(state, 1, end, 12), 12)
    rows = {rowid: state.row(rowid) for rowid in range(1, 11)}
    assert {rowid for rowid, row in rows.items() if row} == set(range(end, 11))
    state.fold(Append(state.table_id, [(110, "new")], first_rowid=11), 13)
    assert state.row(11) == (110, "new")


def test_a_reshape_survives_its_bytes() -> None:
    state = filled(6)
    node = move(state, 1, 5, 9)
    node.ended = [44, 45]
    (back,) = decode_reshapes(encode_reshape(node))
    assert back == node
    assert back.created[0].stats == node.created[0].stats


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_damaged_bytes_are_corruption(cut: int) -> None:
    for kind, payload in encode_reshape(move(filled(6), 1, 5, 9)):
        with pytest.raises(CorruptionError):
            decode_reshapes([(kind, payload[:-cut])])

"""Rules of the checklist about a whole transaction, seen from outside and in its record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from halocline import Options
from halocline.log.format import AC, COMMITS
from halocline.log.record import DML_A, DML_D, DML_U, decode_record
from halocline.log.recover import read_log
from halocline.rows.nodes import table_of
from tests.unit.read.moving import state_of

Open = Callable[..., Any]


def _put(db: Any, key: int, value: int) -> int:
    with db.begin() as txn:
        txn.upsert("t", {"id": key, "v": value})
    return int(txn.commit_ts)


def test_t06_timestamps_start_at_1_have_no_gaps_and_are_never_issued_twice(open_db: Open) -> None:
    """As decided: one sequence per database, and beginning a transaction takes nothing from it."""
    db = open_db(options=Options(background=False))
    db.create_table("t", {"id": int, "v": int}, primary_key="id")
    assert db.visible_ts == 1
    stamps = []
    for key in range(5):
        begun = [db.begin() for _ in range(3)]
        stamps.append(_put(db, key, key))
        for txn in begun:
            txn.rollback()
    assert stamps == [2, 3, 4, 5, 6]
    db.close()
    db = open_db(options=Options(background=False))
    assert db.visible_ts == 6, "restored after a restart"
    assert _put(db, 9, 9) > 6


def _nodes_of_last_commit(db: Any) -> list[tuple[int, int]]:
    """(table id, node type) in the order of the record."""
    entries = [
        entry
        for entry in read_log(db.files, db.core.options).entries()
        if entry.group == COMMITS and entry.type == AC
    ]
    nodes = decode_record(entries[-1]).nodes
    return [(table_of(node), kind) for kind, node in nodes]


def test_t14_a_commit_groups_its_changes_by_table(open_db: Open) -> None:
    """What happened to committed rows of a table, then its new rows; table after table."""
    db = open_db(options=Options(background=False))
    for name in ("one", "two"):
        db.create_table(name, {"id": int, "v": int}, primary_key="id")
        db.run(lambda txn, name=name: txn.insert(name, [{"id": n, "v": n} for n in range(5)]))
    with db.begin() as txn:
        txn.insert("one", {"id": 100, "v": 0})
        txn.delete("two", 1)
        txn.update("one", 2, {"v": 9})
        txn.insert("two", {"id": 50, "v": 0})
        txn.delete("one", 3)
        txn.insert("one", {"id": 60, "v": 0})
    nodes = _nodes_of_last_commit(db)
    tables = [table for table, _ in nodes]
    assert len(set(tables)) == 2
    assert tables == sorted(tables, key=tables.index), "a table's nodes stand together"
    for table in set(tables):
        kinds = [kind for one, kind in nodes if one == table]
        assert kinds[-1] == DML_A
        assert set(kinds[:-1]) <= {DML_D, DML_U}
        assert DML_D in kinds


def test_t19_a_page_that_is_frozen_takes_no_more_rows(open_db: Open) -> None:
    db = open_db(options=Options(page_rows=4, background=False))
    db.create_table("t", {"id": int, "v": int}, primary_key="id")
    for key in range(4):
        _put(db, key, key)
    state = state_of(db, "t")
    (first, count), *_ = state.shape.counted()
    assert count == 4
    _put(db, 4, 4)
    pages = state.shape.counted()
    assert [count for _, count in pages] == [4, 1]
    assert len(first) == 4
    assert not hasattr(pages[0][0], "append")
    assert state.locate(4, db.visible_ts) >= pages[1][0].start


def test_m08_a_row_knows_when_it_began_and_its_tombstone_when_it_ended(open_db: Open) -> None:
    """The entry of a row: created, ended, where, values; of a tombstone: when, key, RowID."""
    db = open_db(options=Options(background=False))
    db.create_table("t", {"id": int, "v": int}, primary_key="id")
    born = _put(db, 7, 1)
    state = state_of(db, "t")
    rowid = state.locate(7, born)
    assert (state.stamp(rowid), state.row(rowid)) == (born, (7, 1))
    assert state.deletes.find(rowid) is None
    changed = _put(db, 7, 2)
    tombstone = state.deletes.find(rowid)
    assert (tombstone.commit_ts, tombstone.key) == (changed, 7)
    assert tombstone.successor == state.locate(7, changed) != rowid
    with db.begin() as txn:
        txn.delete("t", 7)
    last = state.deletes.find(tombstone.successor)
    assert (last.commit_ts, last.key, last.successor) == (txn.commit_ts, 7, 0)

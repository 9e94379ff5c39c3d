"""Workspace: inserted rows and what a transaction sees of its own changes."""

from halocline.catalog import TableEntry
from halocline.ids import ColumnId, TableId
from halocline.rows.state import TableState
from halocline.schema.schema import Schema
from halocline.txn.workspace import TableChanges
from halocline.txn.write import replace


def changes_of(table_id: int) -> TableChanges:
    entry = TableEntry(
        id=TableId(table_id),
        name=f"table{table_id}",
        schema=Schema.define({"id": int, "note": str}, "id"),
        layout="clustered",
        options={},
        next_column_id=ColumnId(3),
    )
    return TableChanges(TableState(entry, page_rows=4))


def insert(changes: TableChanges, first: int, count: int) -> None:
    for key in range(first, first + count):
        changes.insert(key, (key, "x"))


def test_t11_inserts_of_several_requests_stand_behind_one_another_by_table():
    table1, table2 = changes_of(1), changes_of(2)
    insert(table1, 0, 15)
    insert(table2, 0, 4)
    insert(table1, 15, 5)
    assert [row[0] for row in table1.rows.values()] == [*range(20)]
    assert [row[0] for row in table2.rows.values()] == [*range(4)]


def test_t12_deleting_an_own_insert_takes_it_out():
    changes = changes_of(1)
    insert(changes, 0, 15)
    changes.take_back(-13, 12)
    assert [row[0] for row in changes.rows.values()] == [*range(12), 13, 14]
    assert changes.row(12) is None


def test_t12_updating_an_own_insert_is_delete_and_insert():
    changes = changes_of(1)
    insert(changes, 0, 2)
    replace(changes, -1, 0, (0, "y"), {1})
    assert list(changes.rows.values()) == [(1, "x"), (0, "y")]
    assert changes.row(0) == ((0, "y"), -3)


def test_t13_a_second_update_of_a_committed_row_joins_the_first():
    changes = changes_of(1)
    changes.update(7, 1, (1, "a"), {1})
    changes.update(7, 1, (1, "b"), {0})
    assert changes.updates[7].row == (1, "b")
    assert changes.updates[7].changed == {0, 1}


def test_t13_deleting_an_updated_row_forgets_the_update():
    changes = changes_of(1)
    changes.update(7, 1, (1, "a"), {1})
    changes.delete(7, 1)
    assert not changes.updates
    assert changes.deletes == {7: 1}
    assert changes.row(1) is None
    assert changes.ends(7)


def test_a_workspace_whose_inserts_were_all_taken_back_is_empty():
    changes = changes_of(1)
    insert(changes, 0, 1)
    assert changes
    changes.take_back(-1, 0)
    assert not changes

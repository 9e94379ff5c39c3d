"""The commit record that a workspace makes: split by table, merged, in the order P1..P6."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from halocline import Options
from halocline.log.format import AC, COMMITS
from halocline.log.record import DDL_CT, DDL_DT, DML_A, DML_D, DML_U, decode_record
from halocline.log.recover import read_log
from halocline.rows.nodes import table_of

Open = Callable[..., Any]
DML = (DML_A, DML_D, DML_U)


@pytest.fixture
def db(open_db: Open) -> Any:
    db = open_db(options=Options(background=False))
    for name in ("one", "two"):
        db.create_table(name, {"id": int, "v": int}, primary_key="id")
        db.run(lambda txn, name=name: txn.insert(name, rows(*range(5))))
    return db


def rows(*ids: int) -> list[dict[str, int]]:
    return [{"id": n, "v": n} for n in ids]


def nodes(db: Any) -> list[tuple[int, bytes]]:
    """Type and bytes of each node of the last commit."""
    entries = [
        entry
        for entry in read_log(db.files, db.core.options).entries()
        if entry.group == COMMITS and entry.type == AC
    ]
    return [(kind, bytes(body)) for kind, body in decode_record(entries[-1]).nodes]


def kinds(db: Any, work: Callable[[Any], object]) -> list[int]:
    """What the record of a transaction holds."""
    with db.begin() as txn:
        work(txn)
    return [kind for kind, _ in nodes(db)]


def test_t08_every_command_has_a_node_type_of_its_own(db):
    def work(txn: Any) -> None:
        txn.drop_table("two")
        txn.create_table("three", {"id": int}, primary_key="id")
        txn.insert("one", rows(9))
        txn.update("one", 1, {"v": 9})
        txn.delete("one", 2)

    assert kinds(db, work) == [DDL_DT, DDL_CT, DML_D, DML_U, DML_A]
    assert [DDL_CT, DDL_DT, DML_A, DML_D, DML_U] == [4, 5, 1, 2, 3]


def test_t09_nodes_are_split_by_table_and_keep_the_order_of_rows(db):
    with db.begin() as txn:
        txn.insert("one", rows(10))
        txn.delete("two", 1)
        txn.delete("one", 1)
        txn.insert("two", rows(10))
        txn.insert("one", rows(11))
    one, two = (state.table_id for state in db.core.engine.tables.values())
    found = [(table_of(body), kind) for kind, body in nodes(db)]
    assert found == [(one, DML_D), (one, DML_A), (two, DML_D), (two, DML_A)]
    with db.begin() as txn:
        assert txn.scan("one").column("id").to_pylist()[-2:] == [10, 11]


def test_t10_insert_and_insert_merge(db):
    assert kinds(db, lambda txn: [txn.insert("one", rows(n)) for n in (10, 11)]) == [DML_A]


def test_t10_insert_and_delete_local_merge(db):
    def work(txn: Any) -> None:
        txn.insert("one", rows(10, 11))
        txn.delete("one", 10)

    assert kinds(db, work) == [DML_A]


def test_t10_deletes_of_committed_rows_move_to_the_front(db):
    def work(txn: Any) -> None:
        txn.insert("one", rows(10))
        txn.insert("one", rows(11))
        txn.delete("one", 1)
        txn.insert("one", rows(12))

    assert kinds(db, work) == [DML_D, DML_A]


def test_t10_merging_never_lengthens_and_ddl_never_merges(db):
    def work(txn: Any) -> None:
        txn.create_table("three", {"id": int, "v": int}, primary_key="id")
        txn.insert("three", rows(1))
        txn.insert("three", rows(2))
        txn.create_table("four", {"id": int, "v": int}, primary_key="id")
        txn.insert("three", rows(3))

    assert kinds(db, work) == [DDL_CT, DDL_CT, DML_A]


def test_t15_p1_only_inserts(db):
    assert kinds(db, lambda txn: txn.insert("one", rows(10, 11))) == [DML_A]


def test_t15_p2_only_changes_of_committed_rows(db):
    def work(txn: Any) -> None:
        txn.update("one", 1, {"v": 9})
        txn.delete("one", 2)
        txn.update("one", 3, {"v": 9})

    assert kinds(db, work) == [DML_D, DML_U]


def test_t15_p3_changes_of_inserted_rows_fold_into_the_insert(db):
    def work(txn: Any) -> None:
        txn.insert("one", rows(10, 11))
        txn.delete("one", 10)
        txn.update("one", 11, {"v": 1})

    assert kinds(db, work) == [DML_A]


def test_t15_p4_changes_of_committed_rows_come_before_inserts(db):
    def work(txn: Any) -> None:
        txn.insert("one", rows(10))
        txn.update("one", 1, {"v": 9})
        txn.delete("one", 2)

    assert kinds(db, work) == [DML_D, DML_U, DML_A]


def test_t15_p5_only_ddl(db):
    def work(txn: Any) -> None:
        txn.drop_table("two")
        txn.create_table("three", {"id": int}, primary_key="id")

    assert kinds(db, work) == [DDL_DT, DDL_CT]


def test_t15_p6_everything_before_a_drop_is_eliminated(db):
    def work(txn: Any) -> None:
        txn.insert("one", rows(10))
        txn.delete("one", 1)
        txn.update("one", 2, {"v": 9})
        txn.drop_table("one")

    assert kinds(db, work) == [DDL_DT]


def test_t15_p6_create_table_comes_first(db):
    def work(txn: Any) -> None:
        txn.insert("two", rows(10))
        txn.create_table("three", {"id": int, "v": int}, primary_key="id")
        txn.insert("three", rows(1))

    assert kinds(db, work) == [DDL_CT, DML_A, DML_A]


def test_t15_p6_create_and_drop_leave_nothing(db):
    before = db.visible_ts
    with db.begin() as txn:
        txn.create_table("three", {"id": int, "v": int}, primary_key="id")
        txn.insert("three", rows(1))
        txn.drop_table("three")
    assert txn.commit_ts is None
    assert db.visible_ts == before

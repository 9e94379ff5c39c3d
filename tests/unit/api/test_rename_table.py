"""rename_table: which name finds which table, at which snapshot, and who conflicts with whom."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import halocline as hc
from halocline.errors import (
    AlreadyExistsError,
    ConflictError,
    NotFoundError,
    UsageError,
)
from halocline.options import Options

OPTIONS = Options(object_rows_min=10, bulk_rows=5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "db"


@pytest.fixture
def db(path: Path) -> Iterator[hc.Database]:
    with hc.open(path, options=OPTIONS) as found:
        found.create_table("orders", {"id": int, "n": int}, primary_key="id", checks={"n": "n > 0"})
        with found.begin() as txn:
            txn.insert("orders", [{"id": id, "n": id} for id in (1, 2)])
        yield found
        assert found.check() == []


def ids(db: hc.Database, name: str, at: int | None = None) -> list[int]:
    return [row["id"] for row in db.sql(f"select id from {name} order by id", at=at).to_pylist()]


def make(db: hc.Database, name: str, *keys: int) -> None:
    with db.begin() as txn:
        txn.create_table(name, {"id": int}, primary_key="id")
        txn.insert(name, [{"id": key} for key in keys])


def test_the_old_name_finds_the_table_before_the_change_and_the_new_one_after(path: Path) -> None:
    db = hc.open(path, options=OPTIONS)
    db.create_table("orders", {"id": int, "n": int}, primary_key="id")
    with db.begin() as txn:
        txn.insert("orders", [{"id": id, "n": id} for id in (1, 2)])
    before = db.visible_ts
    past = db.begin(at=before)
    db.rename_table("orders", "sales")
    after = db.visible_ts
    make(db, "orders", 7)
    db.run(lambda txn: txn.insert("sales", {"id": 3, "n": 3}))

    def look(db: hc.Database) -> None:
        assert db.tables() == ["orders", "sales"]
        assert ids(db, "sales") == [1, 2, 3]
        assert ids(db, "orders") == [7]
        assert ids(db, "orders", before) == [1, 2]
        assert ids(db, "sales", after) == [1, 2]
        with db.begin(at=before) as old:
            assert old.tables() == ["orders"]
            assert old.get("orders", 1) == {"id": 1, "n": 1}
            with pytest.raises(NotFoundError, match=r"was called 'orders'"):
                old.get("sales", 1)
        with db.begin(at=after) as old:
            assert old.tables() == ["sales"]
            with pytest.raises(NotFoundError, match=r"not there yet"):
                old.get("orders", 1)
        assert db.changes("sales", since=before).column("id").to_pylist() == [3]
        changes = db.table("sales").history().column("change").to_pylist()
        assert [one for one in changes if one] == ["rename table orders to sales"]

    look(db)
    assert past.scan("orders").num_rows == 2
    past.commit()
    for step in (db.flush, db.compact, db.checkpoint, db.gc):
        step()
        look(db)
    db.close()
    for _ in range(2):  # from the checkpoint, then from one that was made of it
        with hc.open(path, options=OPTIONS) as again:
            look(again)
            again.checkpoint()
            assert again.check() == []
    with hc.open(path, read_only=True) as reader:
        look(reader)
        with pytest.raises(UsageError, match="read-only"):
            reader.rename_table("sales", "x")


def test_from_the_log_alone(path: Path) -> None:
    with hc.open(path, options=OPTIONS) as db:
        make(db, "a", 1)
        make(db, "b", 2)
        before = db.visible_ts
        with db.begin() as txn:  # a swap, and more
            txn.rename_table("a", "t")
            txn.rename_table("b", "a")
            txn.rename_table("t", "b")
            txn.create_table("t", {"id": int}, primary_key="id")
        assert (ids(db, "a"), ids(db, "b"), ids(db, "t")) == ([2], [1], [])
    for checkpoint in (False, True, False):
        with hc.open(path, options=OPTIONS) as db:
            assert (ids(db, "a"), ids(db, "b"), ids(db, "t")) == ([2], [1], [])
            assert (ids(db, "a", before), ids(db, "b", before)) == ([1], [2])
            assert db.tables() == ["a", "b", "t"]
            assert db.check() == []
            if checkpoint:
                db.checkpoint()


def test_rename_and_drop_in_one_transaction_leave_the_drop(path: Path) -> None:
    with hc.open(path, options=OPTIONS) as db:
        make(db, "a", 1)
        make(db, "c", 3)
        before = db.visible_ts
        with db.begin() as txn:
            txn.alter_table("a", add={"x": int})
            txn.rename_table("a", "b")
            txn.rename_table("c", "a")
            txn.drop_table("b")
            txn.create_table("b", {"id": int}, primary_key="id")
    for checkpoint in (False, True, False):
        with hc.open(path, options=OPTIONS) as db:
            assert (ids(db, "a"), ids(db, "b")) == ([3], [])
            assert (ids(db, "a", before), ids(db, "c", before)) == ([1], [3])
            assert db.check() == []
            if checkpoint:
                db.checkpoint()


def test_a_table_takes_the_place_of_another(db: hc.Database) -> None:
    make(db, "orders_new", 10, 11)
    with db.begin() as txn:
        txn.rename_table("orders", "orders_old")
        txn.rename_table("orders_new", "orders")
    assert ids(db, "orders") == [10, 11]
    assert ids(db, "orders_old") == [1, 2]


def test_only_the_case_of_a_name_changes(db: hc.Database) -> None:
    db.rename_table("ORDERS", "Orders")
    assert db.tables() == ["Orders"]
    assert db.table("orders").name == "Orders"
    assert ids(db, "oRDERS") == [1, 2]
    db.run(lambda txn: txn.insert("orders", {"id": 3, "n": 3}))


def test_gc_forgets_the_name_and_keeps_the_table(path: Path) -> None:
    with hc.open(path, options=OPTIONS, retention="0s") as db:
        make(db, "a", 1)
        db.rename_table("a", "b")
        make(db, "a", 2)
        db.checkpoint()
        db.gc()
        db.rename_table("b", "c")
        db.drop_table("a")
        db.gc()
        assert ids(db, "c") == [1]
    with hc.open(path, options=OPTIONS) as db:
        assert db.tables() == ["c"]
        assert ids(db, "c") == [1]
        db.drop_table("c")
        db.gc()
        assert db.check() == []
    with hc.open(path, options=OPTIONS) as db:
        assert db.tables() == []


def test_a_rollback_leaves_the_name(db: hc.Database) -> None:
    txn = db.begin()
    txn.rename_table("orders", "sales")
    assert txn.tables() == ["sales"]
    with pytest.raises(UsageError, match="altered in this transaction"):
        txn.get("sales", 1)
    with pytest.raises(NotFoundError):
        txn.get("orders", 1)
    txn.rollback()
    assert db.tables() == ["orders"]
    make(db, "sales")


WRITES: dict[str, Callable[[hc.Transaction], Any]] = {
    "insert": lambda txn: txn.insert("orders", {"id": 3, "n": 3}),
    "many": lambda txn: txn.insert("orders", [{"id": id, "n": 1} for id in (3, 4)]),
    "update": lambda txn: txn.update("orders", 1, {"n": 5}),
    "add": lambda txn: txn.update("orders", 1, {"n": hc.add(1)}),
    "upsert": lambda txn: txn.upsert("orders", {"id": 1, "n": 9}),
    "delete": lambda txn: txn.delete("orders", 1),
    "truncate": lambda txn: txn.truncate("orders"),
}


@pytest.mark.parametrize("kind", WRITES)
def test_an_open_transaction_that_has_written_the_table_conflicts(
    db: hc.Database, kind: str
) -> None:
    txn = db.begin()
    WRITES[kind](txn)
    db.rename_table("orders", "sales")
    with pytest.raises(ConflictError, match="altered") as caught:
        txn.commit()
    assert caught.value.table == "orders"
    assert ids(db, "sales") == [1, 2]


@pytest.mark.parametrize("kind", WRITES)
def test_a_rename_does_not_mind_rows_that_were_written_meanwhile(
    db: hc.Database, kind: str
) -> None:
    txn = db.begin()
    txn.rename_table("orders", "sales")
    db.run(WRITES[kind])
    found = ids(db, "orders")
    txn.commit()
    assert ids(db, "sales") == found


def test_a_transaction_that_reads_goes_on_under_the_old_name(db: hc.Database) -> None:
    txn = db.begin()
    assert txn.get("orders", 1) is not None
    db.rename_table("orders", "sales")
    assert txn.get("orders", 2) is not None
    assert txn.sql("select count(*) n from orders").to_pylist() == [{"n": 2}]
    with pytest.raises(NotFoundError, match="orders"):
        txn.get("sales", 1)
    txn.commit()


RIVALS: dict[str, Callable[[hc.Transaction], Any]] = {
    "rename": lambda txn: txn.rename_table("orders", "other"),
    "rename to the same": lambda txn: txn.rename_table("more", "sales"),
    "drop": lambda txn: txn.drop_table("orders"),
    "alter": lambda txn: txn.alter_table("orders", add={"x": int}),
    "create": lambda txn: txn.create_table("sales", {"id": int}, primary_key="id"),
}


@pytest.mark.parametrize("committed", [True, False], ids=["committed", "open"])
@pytest.mark.parametrize("rename_first", [True, False], ids=["rename first", "rename second"])
@pytest.mark.parametrize("kind", RIVALS)
def test_two_who_define_one_table_conflict(
    db: hc.Database, kind: str, rename_first: bool, committed: bool
) -> None:
    make(db, "more", 5)
    steps = [lambda txn: txn.rename_table("orders", "sales"), RIVALS[kind]]
    if not rename_first:
        steps.reverse()
    first, second = db.begin(), db.begin()
    steps[0](first)
    if committed:
        first.commit()

    def lose() -> None:
        steps[1](second)
        if not committed:  # a drop beside an alter: the first to commit wins
            first.commit()
        second.commit()

    with pytest.raises(ConflictError):
        lose()
    second.rollback()
    if first.commit_ts is None:
        first.commit()
    names = {
        "rename": ["more", "other"],
        "rename to the same": ["orders", "sales"],
        "drop": ["more"],
        "alter": ["more", "orders"],
        "create": ["more", "orders", "sales"],
    }
    assert db.tables() == (["more", "sales"] if rename_first else names[kind])


@pytest.mark.parametrize(
    ("old", "new", "error", "text"),
    [
        ("nothing", "x", NotFoundError, "nothing"),
        ("orders", "orders", UsageError, "has that name already"),
        ("orders", "more", AlreadyExistsError, "more"),
        ("orders", "MORE", AlreadyExistsError, "MORE"),
        ("orders", "", UsageError, "must not be empty"),
        ("orders", "_x", UsageError, "reserved"),
        ("orders", "x" * 256, UsageError, "longer than"),
        ("orders", "a\nb", UsageError, "cannot be printed"),
        ("orders", 7, UsageError, "must be a string"),
        (7, "x", UsageError, "must be a string"),
    ],
)
def test_bad_calls_change_nothing(
    db: hc.Database, old: Any, new: Any, error: type[Exception], text: str
) -> None:
    make(db, "more")
    before = db.visible_ts
    with pytest.raises(error, match=text):
        db.rename_table(old, new)
    assert db.visible_ts == before
    with db.begin() as txn:  # and a transaction goes on
        with pytest.raises(error, match=text):
            txn.rename_table(old, new)
        txn.rename_table("orders", "sales")
    assert db.tables() == ["more", "sales"]


def test_what_was_written_or_made_in_the_transaction_is_renamed_in_another_one(
    db: hc.Database,
) -> None:
    with db.begin() as txn:
        txn.insert("orders", {"id": 3, "n": 3})
        txn.create_table("more", {"id": int}, primary_key="id")
        for name in ("orders", "more"):
            with pytest.raises(UsageError, match="in this transaction"):
                txn.rename_table(name, "sales")
    assert db.tables() == ["more", "orders"]


def test_an_old_name_is_told_the_new_one(db: hc.Database) -> None:
    db.rename_table("orders", "sales")
    handle = db.table("sales")
    with pytest.raises(NotFoundError, match="it was renamed to 'sales'"):
        db.table("Orders")
    db.rename_table("sales", "deals")
    with pytest.raises(NotFoundError, match="it was renamed to 'deals'"):
        handle.count()


def test_checks_and_alters_go_on(db: hc.Database) -> None:
    db.rename_table("orders", "sales")
    with pytest.raises(hc.CheckError):
        db.run(lambda txn: txn.insert("sales", {"id": 3, "n": 0}))
    with db.begin() as txn:
        txn.rename_table("sales", "deals")
        txn.alter_table("deals", rename={"n": "quantity"})
    db.alter_table("deals", add_checks={"small": "quantity < 100"}, set_required=["quantity"])
    with pytest.raises(hc.CheckError):
        db.run(lambda txn: txn.insert("deals", {"id": 3, "quantity": 100}))
    assert db.table("deals").schema.names == ["id", "quantity"]


def test_keys_of_an_identity_column_go_on(db: hc.Database) -> None:
    db.create_table("people", {"id": hc.Column(int, identity=True), "name": str}, primary_key="id")
    with db.begin() as txn:
        first = txn.insert("people", {"name": "Ann"}, returning=["id"])
    db.rename_table("people", "staff")
    with db.begin() as txn:
        assert txn.insert("staff", {"name": "Bob"}, returning=["id"]) == {"id": first["id"] + 1}


def test_indexes_go_along(path: Path) -> None:
    with hc.open(path, options=OPTIONS) as db:
        make(db, "a", *range(20))
        db.alter_table("a", add={"n": hc.Column(int, default=3)})
        db.create_index("by_n", "a", ["n"])
        with db.begin() as txn:
            txn.rename_table("a", "b")
            txn.create_index("by_id", "b", ["id"])
        make(db, "a", 7)
        db.rename_table("b", "c")
    for checkpoint in (False, True, False):
        with hc.open(path, options=OPTIONS) as db:
            assert db.indexes("c").column("name").to_pylist() == ["by_n", "by_id"]
            assert db.indexes("a").num_rows == 0
            with db.begin() as txn:
                assert txn.lookup("c", "by_n", 3).num_rows == 20
            assert db.check() == []
            if checkpoint:
                db.checkpoint()
    with hc.open(path, options=OPTIONS) as db:
        db.drop_index("by_n")
        db.drop_table("c")


def test_files_of_before_are_exact(db: hc.Database) -> None:
    db.flush()
    db.rename_table("orders", "sales")
    assert len(db.table("sales").files(exact=True)) == 1

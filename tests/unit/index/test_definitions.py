"""Indexes as definitions: created and dropped like tables, transactional, and never half there."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest

import halocline as hc
from halocline.errors import AlreadyExistsError, ConflictError, NotFoundError, UsageError

OPTIONS = hc.Options(background=False, page_rows=16, object_rows=128)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[hc.Database]:
    with hc.open(tmp_path / "db", options=OPTIONS) as found:
        types = {"id": int, "customer": int, "name": str, "tags": "string[]"}
        found.create_table("orders", types, primary_key="id")
        rows = [{"id": n, "customer": n % 10, "name": f"n{n % 7}"} for n in range(300)]
        found.run(lambda txn: txn.insert("orders", rows))
        found.flush()
        yield found
        assert found.check() == []


def names(db: hc.Database) -> list[str]:
    found: list[str] = db.indexes().column("name").to_pylist()
    return found


def count(db: hc.Database, index: str, key: object) -> int:
    with db.begin() as txn:
        return txn.lookup("orders", index, key).num_rows


def test_i10_an_index_has_an_id_a_kind_columns_and_a_name(db: hc.Database) -> None:
    db.create_index("by_customer", "orders", ["customer", "name"], wait=True)
    (row,) = db.indexes("orders").to_pylist()
    told = {name: row[name] for name in ("name", "table", "kind", "columns", "state")}
    assert told == {
        "name": "by_customer",
        "table": "orders",
        "kind": "sorted",
        "columns": ["customer", "name"],
        "state": "ready",
    }
    assert row["covered"] == row["objects"] == 3
    assert row["bytes"] > 0


def test_i09_indexes_come_and_go_and_ids_are_never_used_again(db: hc.Database) -> None:
    seen = set()
    for _ in range(3):
        db.create_index("by_customer", "orders", ["customer"], wait=True)
        (entry,) = db.core.catalog.tables(db.visible_ts)[0].indexes
        seen.add(entry.id)
        assert count(db, "by_customer", 3) == 30
        db.drop_index("By_Customer")
        assert names(db) == []
    db.create_table("other", {"id": int}, primary_key="id")
    other = db.core.catalog.table("other", db.visible_ts)
    assert other is not None
    assert len(seen) == 3
    assert other.id not in seen


def test_what_is_not_built_yet_is_building_and_answers_all_the_same(db: hc.Database) -> None:
    db.create_index("by_customer", "orders", ["customer"])
    (row,) = db.indexes().to_pylist()
    assert (row["state"], row["covered"], row["objects"]) == ("building", 0, 3)
    assert count(db, "by_customer", 3) == 30
    with db.begin() as txn:
        assert txn.scan("orders", where="customer = 3").num_rows == 30


def test_i11_a_move_brings_index_objects_along_and_memory_has_none(db: hc.Database) -> None:
    db.create_index("by_customer", "orders", ["customer"], wait=True)
    db.run(lambda txn: txn.insert("orders", [{"id": 1000 + n, "customer": 3} for n in range(5)]))
    assert db.indexes().column("objects").to_pylist() == [3]
    assert count(db, "by_customer", 3) == 35
    db.flush()
    (row,) = db.indexes().to_pylist()
    assert (row["state"], row["objects"]) == ("ready", 4)
    assert count(db, "by_customer", 3) == 35


def test_definitions_are_transactional(db: hc.Database) -> None:
    txn = db.begin()
    txn.create_index("one", "orders", ["customer"])
    assert txn.lookup("orders", "one", 3).num_rows == 30
    txn.rollback()
    assert names(db) == []
    with db.begin() as txn:
        txn.create_index("one", "orders", ["customer"])
        txn.create_index("two", "orders", ["name"])
        txn.drop_index("one")
    assert names(db) == ["two"]
    with db.begin() as txn:
        txn.create_table("fresh", {"id": int, "v": int}, primary_key="id")
        txn.create_index("by_v", "fresh", ["v"])
        txn.insert("fresh", [{"id": 1, "v": 2}, {"id": 2, "v": 2}, {"id": 3, "v": 4}])
        assert txn.lookup("fresh", "by_v", 2).column("id").to_pylist() == [1, 2]
    assert sorted(names(db)) == ["by_v", "two"]
    db.drop_table("fresh")
    assert names(db) == ["two"]


def test_a_name_is_taken_by_whoever_commits_first(db: hc.Database) -> None:
    db.create_table("other", {"id": int, "v": int}, primary_key="id")
    one, two = db.begin(), db.begin()
    one.create_index("same", "orders", ["customer"])
    two.create_index("Same", "other", ["v"])
    one.commit()
    with pytest.raises(ConflictError, match="created by another"):
        two.commit()
    with pytest.raises(AlreadyExistsError):
        db.create_index("SAME", "other", ["v"])


def test_rows_and_indexes_do_not_conflict(db: hc.Database) -> None:
    writer = db.begin()
    writer.insert("orders", {"id": 5000, "customer": 3})
    db.create_index("by_customer", "orders", ["customer"], wait=True)
    writer.insert("orders", {"id": 5001, "customer": 3})
    writer.commit()
    assert count(db, "by_customer", 3) == 32


def test_what_cannot_be_is_refused(db: hc.Database) -> None:
    with pytest.raises(UsageError, match="has no order"):
        db.create_index("x", "orders", ["tags"])
    with pytest.raises(UsageError, match="kind must be one of"):
        db.create_index("x", "orders", ["customer"], kind="hash")
    with pytest.raises(UsageError, match="each column once"):
        db.create_index("x", "orders", ["customer", "Customer"])
    with pytest.raises(UsageError, match="list of the names"):
        db.create_index("x", "orders", "customer")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="reserved"):
        db.create_index("_x", "orders", ["customer"])
    with pytest.raises(NotFoundError, match="table"):
        db.create_index("x", "nowhere", ["customer"])
    with pytest.raises(NotFoundError, match="index"):
        db.drop_index("x")
    with db.begin() as txn, pytest.raises(NotFoundError, match="index"):
        txn.lookup("orders", "x", 1)
    db.create_index("by_customer", "orders", ["customer"])
    with pytest.raises(UsageError, match="drop the index first"):
        db.alter_table("orders", drop=["customer"])
    with db.begin() as txn:
        with pytest.raises(UsageError, match="a key, or low= and high="):
            txn.lookup("orders", "by_customer", 1, low=2)
        with pytest.raises(hc.SchemaError, match="customer"):
            txn.lookup("orders", "by_customer", "seven")
        db.create_index("two", "orders", ["customer", "name"])
    with db.begin() as txn, pytest.raises(UsageError, match="no key of"):
        txn.lookup("orders", "two", low=())
    assert names(db) == ["by_customer", "two"]


def test_a_renamed_or_widened_column_keeps_its_index(db: hc.Database) -> None:
    db.alter_table("orders", add={"small": "int16", "day": "date", "real": "float"})
    row = {"id": 900, "small": 7, "day": date(2024, 5, 5), "real": 0.5}
    db.run(lambda txn: txn.insert("orders", row))
    db.flush()
    for column in ("small", "day", "real", "customer"):
        db.create_index(f"by_{column}", "orders", [column], wait=True)
    before = db.indexes().column("bytes").to_pylist()
    db.alter_table(
        "orders",
        change={"small": "int64", "day": "timestamp", "real": "double"},
        rename={"customer": "buyer"},
    )
    assert db.indexes().column("bytes").to_pylist() == before
    assert db.indexes().column("columns").to_pylist()[-1] == ["buyer"]
    with db.begin() as txn:
        assert txn.lookup("orders", "by_small", 7).column("id").to_pylist() == [900]
        assert txn.scan("orders", where="day = timestamp '2024-05-05'").num_rows == 1
        assert txn.lookup("orders", "by_real", 0.5).num_rows == 1
        assert txn.lookup("orders", "by_small", None).num_rows == 300
    (told,) = db.explain("select * from orders where small = 7").to_pylist()
    assert (told["indexed"], told["pruned"], told["index"]) == (1, 3, "by_small (1 objects)")


def test_a_column_added_later_is_indexed_by_its_value_for_absent(db: hc.Database) -> None:
    db.alter_table("orders", add={"state": hc.Column(str, nullable=False, default="new")})
    db.create_index("by_state", "orders", ["state"], wait=True)
    db.run(lambda txn: txn.update("orders", 5, {"state": "paid"}))
    db.flush()
    with db.begin() as txn:
        assert txn.lookup("orders", "by_state", "new").num_rows == 299
        assert txn.lookup("orders", "by_state", "paid").num_rows == 1
        assert txn.scan("orders", where="state = 'new'").num_rows == 299


def test_indexes_are_there_after_opening_with_and_without_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "db"
    with hc.open(path, options=OPTIONS) as db:
        db.create_table("t", {"id": int, "v": int}, primary_key="id")
        db.run(lambda txn: txn.insert("t", [{"id": n, "v": n // 5} for n in range(200)]))
        db.flush()
        db.create_index("by_v", "t", ["v"], wait=True)
        db.create_index("gone", "t", ["v"], wait=True)
        db.drop_index("gone")
        expected = db.indexes().drop_columns(["used", "rows_saved"])
    for checkpoint in (False, True, False):
        with hc.open(path, options=OPTIONS) as db:
            assert db.indexes().drop_columns(["used", "rows_saved"]) == expected
            found = db.explain("select * from t where v = 3")
            assert found.column("index").to_pylist() != [None]
            if checkpoint:
                db.checkpoint()
            assert db.check() == []
    with hc.open(path, read_only=True) as reader, reader.begin() as txn:
        assert txn.lookup("t", "by_v", 3).num_rows == 5
        assert reader.indexes().column("state").to_pylist() == ["ready"]


def test_rows_come_in_the_order_of_the_index(db: hc.Database) -> None:
    db.create_index("by_name", "orders", ["name", "customer"], wait=True)
    db.run(lambda txn: txn.insert("orders", [{"id": 999, "name": "n0", "customer": -1}]))
    with db.begin() as txn:
        txn.insert("orders", {"id": 1001, "name": "n1", "customer": 4})
        found = txn.lookup("orders", "by_name", low="n0", high=("n2", 5))
        pairs = list(zip(*found.select(["name", "customer"]).to_pydict().values(), strict=True))
        assert pairs == sorted(pairs)
        assert (
            found.num_rows
            == txn.scan(
                "orders", where="name in ('n0', 'n1') or (name = 'n2' and customer < 5)"
            ).num_rows
        )
        assert txn.lookup("orders", "by_name", "n0", limit=1, columns=["id"]).to_pylist() == [
            {"id": 999}
        ]
        first = txn.lookup("orders", "by_name", limit=50)
        assert first == txn.lookup("orders", "by_name").slice(0, 50)
        txn.rollback()


def test_an_older_snapshot_may_use_an_index_that_came_later(db: hc.Database) -> None:
    before = db.visible_ts
    db.run(lambda txn: txn.delete("orders", where="customer = 3 and id > 100"))
    db.create_index("by_customer", "orders", ["customer"], wait=True)
    with db.begin(at=before) as past:
        assert past.lookup("orders", "by_customer", 3).num_rows == 30
    assert count(db, "by_customer", 3) == 10


def test_a_serializable_look_up_conflicts_with_rows_that_come(db: hc.Database) -> None:
    db.create_index("by_customer", "orders", ["customer"], wait=True)
    txn = db.begin(isolation="serializable")
    assert txn.lookup("orders", "by_customer", 77).num_rows == 0
    db.run(lambda other: other.insert("orders", {"id": 7777, "customer": 77}))
    txn.insert("orders", {"id": 7778, "customer": 78})
    with pytest.raises(ConflictError):
        txn.commit()

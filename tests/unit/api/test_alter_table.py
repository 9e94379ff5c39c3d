"""alter_table: what it does, what it refuses, and what happens to those who were in the middle."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import halocline as hc
from halocline.errors import ConflictError, NotFoundError, SchemaError, UsageError
from halocline.options import Options

TYPES = {
    "id": int,
    "n": "int32 not null",
    "text": str,
    "day": "date",
    "price": "decimal(6,2)",
    "tags": "list<string>",
}


@pytest.fixture
def db(tmp_path: Path) -> Iterator[hc.Database]:
    with hc.open(tmp_path / "db", options=Options(object_rows_min=10, bulk_rows=5)) as found:
        found.create_table("t", TYPES, primary_key="id")
        found.create_table("other", {"k": str, "v": int}, primary_key="k")
        with found.begin() as txn:
            txn.insert("t", [row(1), row(2)])
        yield found
        assert found.check() == []


def row(key: int, **more: Any) -> dict[str, Any]:
    return {
        "id": key,
        "n": key,
        "text": "x",
        "day": date(2024, 1, 1 + (key - 1) % 28),
        "price": Decimal(1),
        **more,
    }


def test_old_rows_and_new_ones_have_one_shape(db: hc.Database) -> None:
    before = db.visible_ts
    db.alter_table(
        "t",
        add={"note": str, "other": "list<int64>"},
        drop=["text", "tags"],
        rename={"n": "quantity"},
        change={"n": "int64 not null", "day": "timestamp", "price": "decimal(12,2)"},
    )
    assert db.table("t").schema.names == ["id", "quantity", "day", "price", "note", "other"]
    with db.begin() as txn:
        txn.insert("t", {"id": 3, "quantity": 1 << 40, "note": "new"})
        txn.update("t", 1, {"quantity": 1 << 41})
        assert txn.get("t", 1) == {
            "id": 1,
            "quantity": 1 << 41,
            "day": datetime(2024, 1, 1),
            "price": Decimal("1.00"),
            "note": None,
            "other": None,
        }
    for step in (lambda: None, db.flush, db.compact, db.checkpoint):
        step()
        assert db.table("t").count() == 3
        total = db.sql("select sum(quantity) s from t").to_pylist()
        assert total == [{"s": 2 + (1 << 40) + (1 << 41)}]
        with db.begin(at=before) as past:
            assert past.get("t", 1) == {**row(1), "tags": None}
            found = past.sql("select id, n, text, day from t order by id").to_pylist()
            assert [one["n"] for one in found] == [1, 2]
            assert [one["text"] for one in found] == ["x", "x"]


def test_a_name_that_was_dropped_is_another_column_when_it_comes_back(db: hc.Database) -> None:
    db.flush()
    db.alter_table("t", drop=["text"])
    db.alter_table("t", add={"text": int})
    assert db.table("t").to_arrow().column("text").to_pylist() == [None, None]
    db.alter_table("t", rename={"text": "day", "day": "text"})
    found = db.table("t").to_arrow()
    assert found.column("text").to_pylist() == [date(2024, 1, 1), date(2024, 1, 2)]
    assert found.column("day").to_pylist() == [None, None]


@pytest.mark.parametrize("kind", ["one", "rows", "bulk", "update", "delete", "truncate"])
def test_an_open_transaction_that_has_written_the_table_conflicts(
    db: hc.Database, kind: str
) -> None:
    txn = db.begin()
    write(txn, kind)
    db.alter_table("t", add={"note": str})
    with pytest.raises(ConflictError, match="altered"):
        txn.commit()
    assert db.table("t").count() == 2


def write(txn: hc.Transaction, kind: str) -> None:
    if kind == "one":
        txn.insert("t", row(3))
    elif kind == "rows":
        txn.insert("t", [row(3), row(4)])
    elif kind == "bulk":
        txn.insert("t", [row(3 + n, day=None) for n in range(30)])
    elif kind == "update":
        txn.update("t", 1, {"n": 7})
    elif kind == "delete":
        txn.delete("t", 1)
    else:
        txn.truncate("t")


def test_a_transaction_that_does_not_touch_the_table_is_not_disturbed(db: hc.Database) -> None:
    txn = db.begin()
    txn.insert("other", {"k": "a", "v": 1})
    assert txn.get("t", 1) is not None
    db.alter_table("t", drop=["text"], add={"note": str})
    assert txn.get("t", 1) == {**row(1), "tags": None}  # in the shape of its snapshot
    assert txn.scan("t").num_rows == 2
    txn.commit()
    assert db.table("other").count() == 1


def test_run_runs_again_in_the_new_shape(db: hc.Database) -> None:
    seen = []

    def work(txn: hc.Transaction) -> None:
        found = txn.get("t", 1)
        assert found is not None
        seen.append(sorted(found))
        if len(seen) == 1:
            db.alter_table("t", rename={"text": "word"})
        txn.update("t", 1, {"n": 9})

    db.run(work)
    assert ["word" in names for names in seen] == [False, True]
    with db.begin() as txn:
        found = txn.get("t", 1)
    assert found is not None
    assert found["n"] == 9


def test_ddl_and_dml_of_other_tables_are_one_commit(db: hc.Database) -> None:
    with db.begin() as txn:
        txn.alter_table("t", add={"note": str})
        txn.insert("other", {"k": "a", "v": 1})
        txn.alter_table("t", drop=["note"], add={"more": int})
        assert "note" not in db.table("t").schema.names
    assert db.table("t").schema.names[-1] == "more"
    txn = db.begin()
    txn.alter_table("t", add={"gone": str})
    txn.rollback()
    assert "gone" not in db.table("t").schema.names
    db.alter_table("t", add={"gone": str})


def test_two_who_alter_one_table_conflict(db: hc.Database) -> None:
    first, second = db.begin(), db.begin()
    first.alter_table("t", add={"a": str})
    with pytest.raises(ConflictError):
        second.alter_table("t", add={"b": str})
    second.rollback()
    first.commit()


def test_another_process_alters_and_reads(db: hc.Database, tmp_path: Path) -> None:
    server = db.serve(token="secret")
    with hc.connect(server.uri, "secret") as far:
        assert far.table("t").count() == 2
        stale = far.begin()
        stale.insert("t", row(3))
        far.alter_table("t", add={"note": str}, rename={"text": "word"})
        with pytest.raises(ConflictError, match="altered"):
            stale.commit()
        far.run(lambda txn: txn.insert("t", {"id": 3, "n": 3, "note": "far"}))
        found = db.table("t").to_arrow().to_pylist()
        assert far.table("t").to_arrow().to_pylist() == found
        assert [one["note"] for one in found] == [None, None, "far"]
        db.alter_table("t", drop=["note"])
        far.run(lambda txn: txn.insert("t", {"id": 4, "n": 4}))
        assert far.table("t").count() == 4
    with hc.open(tmp_path / "db", read_only=True) as reader:
        assert reader.table("t").to_arrow().equals(db.table("t").to_arrow())


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({}, UsageError, "changes nothing"),
    ({"add": {}}, UsageError, "changes nothing"),
    ({"rename": {"n": "n"}}, UsageError, "changes nothing"),
    ({"change": {"text": str}}, UsageError, "changes nothing"),
    ({"add": ["a"]}, UsageError, "dict"),
    ({"drop": "text"}, UsageError, "list"),
    ({"drop": {"text"}}, UsageError, "list"),
    ({"rename": ["a"]}, UsageError, "dict"),
    ({"change": "n"}, UsageError, "dict"),
    ({"remove": ["n"]}, UsageError, "not remove"),
    ({"add": {"n": int}}, SchemaError, "twice"),
    ({"add": {"N": int}}, SchemaError, "twice"),
    ({"add": {"a": int, "A": int}}, SchemaError, "twice"),
    ({"add": {"_a": int}}, SchemaError, "underscore"),
    ({"add": {"": int}}, SchemaError, "empty"),
    ({"add": {1: int}}, SchemaError, "string"),
    ({"add": {"a": "int65"}}, SchemaError, "int65"),
    ({"add": {"a": object}}, SchemaError, "type"),
    ({"add": {"a": "int64 not null"}}, SchemaError, "nullable"),
    ({"drop": ["id"]}, SchemaError, "primary key"),
    ({"drop": ["missing"]}, SchemaError, "no such column"),
    ({"drop": ["text", "text"]}, SchemaError, "twice"),
    ({"drop": [1]}, SchemaError, "string"),
    ({"rename": {"missing": "a"}}, SchemaError, "no such column"),
    ({"rename": {"n": "text"}}, SchemaError, "twice"),
    ({"rename": {"n": 1}}, SchemaError, "string"),
    ({"rename": {"n": "_n"}}, SchemaError, "underscore"),
    ({"change": {"missing": int}}, SchemaError, "no such column"),
    ({"change": {"id": "int64"}}, SchemaError, "primary key"),
    ({"change": {"id": str}}, SchemaError, "primary key"),
    ({"change": {"n": "int16 not null"}}, SchemaError, "cannot become"),
    ({"change": {"n": str}}, SchemaError, "cannot become"),
    ({"change": {"n": "float64"}}, SchemaError, "cannot become"),
    ({"change": {"text": "string not null"}}, SchemaError, "NULL"),
    ({"change": {"text": int}}, SchemaError, "cannot become"),
    ({"change": {"day": "timestamptz"}}, SchemaError, "cannot become"),
    ({"change": {"price": "decimal(5,2)"}}, SchemaError, "cannot become"),
    ({"change": {"price": "decimal(12,3)"}}, SchemaError, "cannot become"),
    ({"change": {"tags": "list<binary>"}}, SchemaError, "cannot become"),
]


@pytest.mark.parametrize(("given", "error", "text"), BAD)
def test_a_bad_call_changes_nothing_and_says_why(
    db: hc.Database, given: dict[str, Any], error: type[Exception], text: str
) -> None:
    before, ts = db.table("t").schema, db.visible_ts
    with pytest.raises(error, match=text):
        db.alter_table("t", **given)
    assert db.table("t").schema == before
    assert db.visible_ts == ts
    db.alter_table("t", add={"fine": int})


def test_what_a_transaction_cannot_do_with_a_table_that_it_alters(db: hc.Database) -> None:
    with pytest.raises(NotFoundError):
        db.alter_table("missing", add={"a": int})
    with db.begin(at=db.visible_ts) as past, pytest.raises(UsageError, match="read-only"):
        past.alter_table("t", add={"a": int})
    txn = db.begin()
    txn.update("t", 1, {"n": 5})
    with pytest.raises(UsageError, match="written in this transaction"):
        txn.alter_table("t", add={"a": int})
    txn.rollback()
    txn = db.begin()
    txn.create_table("fresh", {"id": int}, "id")
    with pytest.raises(UsageError, match="created in this transaction"):
        txn.alter_table("fresh", add={"a": int})
    txn.alter_table("t", add={"a": int})
    for use in (
        lambda: txn.get("t", 1),
        lambda: txn.scan("t"),
        lambda: txn.insert("t", row(3)),
        lambda: txn.sql("select * from t"),
        lambda: txn.truncate("t"),
    ):
        with pytest.raises(UsageError, match="altered in this transaction"):
            use()
    txn.drop_table("t")
    txn.commit()
    assert db.tables() == ["fresh", "other"]

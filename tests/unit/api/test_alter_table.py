"""alter_table: what it does, what it refuses, and what happens to those who were in the middle."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import halocline as hc
from halocline.errors import ConflictError, NotFoundError, SchemaError, UnavailableError, UsageError
from halocline.options import Options
from halocline.read.predicate import compile_where
from halocline.read.scan import take_plan
from tests.roles import maintenance_of

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


@pytest.mark.parametrize("kind", ["one", "rows", "update", "delete", "truncate"])
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


def test_older_rows_show_the_constant_that_an_added_column_came_with(
    db: hc.Database, tmp_path: Path
) -> None:
    db.flush()
    db.run(lambda txn: txn.insert("t", row(3)))
    before = db.visible_ts
    db.alter_table(
        "t",
        add={
            "state": hc.Column(str, nullable=False, default="it's new"),
            "level": hc.Column("int32", default=7),
            "day2": hc.Column("date", default=date(2024, 2, 29)),
            "list": hc.Column("list<int64>", default=[1, 2]),
            "made": hc.Column("timestamptz", default=hc.now),
            "uid": hc.Column("uuid", default=hc.uuid),
        },
    )
    change: dict[str, Any] = {"level": "int64", "day2": "timestamp"}
    db.alter_table("t", set_default={"state": "open", "level": None}, change=change)
    db.run(lambda txn: txn.insert("t", {"id": 4, "n": 4}))
    old = {"state": "it's new", "level": 7, "day2": datetime(2024, 2, 29), "list": [1, 2]}
    server = db.serve(token="secret")
    for step in (lambda: None, db.flush, db.compact, db.checkpoint):
        step()
        with hc.connect(server.uri, "secret") as far, db.begin() as txn, far.begin() as there:
            for one in (txn, there):
                found = one.scan("t", columns=[*old, "made", "uid"], where="id < 4").to_pylist()
                assert found == [{**old, "made": None, "uid": None}] * 3
                fresh = one.get("t", 4)
                assert fresh is not None
                assert (fresh["state"], fresh["level"]) == ("open", None)
                assert None not in (fresh["made"], fresh["uid"])
                assert one.scan("t", where="level = 7").num_rows == 3
                assert one.scan("t", where="level is null").num_rows == 1
        with hc.open(tmp_path / "db", read_only=True) as reader:
            assert reader.table("t").to_arrow().equals(db.table("t").to_arrow())
        feed = db.changes("t", since=0).to_pylist()
        assert [one["level"] for one in feed] == [7, 7, 7, None]
        assert "level" not in db.table("t").to_arrow(at=before).schema.names
    db.run(lambda txn: txn.update("t", 1, {"n": 9}))
    assert db.table("t").to_arrow().column("state").to_pylist().count("it's new") == 3
    with pytest.raises(SchemaError, match="null"):
        db.run(lambda txn: txn.update("t", 1, {"state": None}))


def test_files_without_a_column_are_pruned_by_what_their_rows_show(db: hc.Database) -> None:
    db.flush()
    db.alter_table("t", add={"level": hc.Column(int, default=7), "note": str})
    db.run(lambda txn: txn.insert("t", [row(n, level=n) for n in range(10, 20)]))
    db.flush()
    with db.begin() as txn:
        state = txn.state_of("t")
        for where, objects in (
            ("level = 7", 1),
            ("level > 8", 1),
            ("level between 5 and 12", 2),
            ("level <> 7", 1),
            ("level is null", 0),
            ("note is not null", 0),
            ("note = 'x'", 0),
            ("note is null", 2),
        ):
            plan = take_plan(state, txn.snapshot, compile_where(where, None, state.schema))
            assert len(plan.objects) == objects, where
            found = [one for one in txn.scan("t").to_pylist() if matches(one, where)]
            assert txn.scan("t", where=where).to_pylist() == found


def matches(row: dict[str, Any], where: str) -> bool:
    level = row["level"]
    return {
        "level = 7": level == 7,
        "level > 8": level > 8,
        "level between 5 and 12": 5 <= level <= 12,
        "level <> 7": level != 7,
        "note is null": True,
    }.get(where, False)


def test_defaults_and_comments_change_for_rows_that_are_still_to_come(db: hc.Database) -> None:
    db.alter_table("t", set_default={"n": 5, "text": "a"}, comment="things")
    db.run(lambda txn: txn.insert("t", {"id": 3}))
    db.alter_table("t", set_default={"n": None, "text": None})
    with pytest.raises(SchemaError, match="null"):
        db.run(lambda txn: txn.insert("t", {"id": 4}))
    db.run(lambda txn: txn.insert("t", {"id": 4, "n": 1}))
    found = db.sql("select n, text from t where id > 2 order by id").to_pylist()
    assert found == [{"n": 5, "text": "a"}, {"n": 1, "text": None}]
    assert "things" in repr(db.table("t"))
    db.alter_table("t", comment="")
    assert "things" not in repr(db.table("t"))


def test_who_holds_a_table_from_before_an_alter_moves_and_merges_it_as_it_is_now(
    db: hc.Database,
) -> None:
    with db.begin() as txn:
        stale = txn.state_of("t")
    db.flush()
    db.alter_table("t", add={"note": str})
    db.run(lambda txn: txn.insert("t", row(3, note="kept")))
    maintenance_of(db).mover.flush([stale])
    db.run(lambda txn: txn.delete("t", 1))
    maintenance_of(db).compactor.run([stale], settle=True)
    found = db.sql("select id, note from t order by id").to_pylist()
    assert found == [{"id": 2, "note": None}, {"id": 3, "note": "kept"}]


def test_files_are_exact_again_when_a_table_that_was_altered_has_settled(db: hc.Database) -> None:
    ts = db.settle("t")
    db.alter_table("t", add={"level": hc.Column(int, default=7)}, drop=["text"])
    with pytest.raises(UnavailableError, match="another version of its schema"):
        db.table("t").files(exact=True)
    assert db.table("t").files(at=ts, exact=True)
    (path,) = db.table("t").files(at=db.settle("t"), exact=True)
    assert pq.read_table(path).select(["id", "level"]).to_pylist() == [
        {"id": 1, "level": 7},
        {"id": 2, "level": 7},
    ]
    assert "text" not in pq.read_schema(path).names


def test_history_shows_versions_of_the_schema_with_time_and_change(db: hc.Database) -> None:
    db.alter_table("t", add={"level": hc.Column(int, nullable=False, default=7)}, drop=["tags"])
    db.run(lambda txn: txn.insert("t", row(3)))
    db.alter_table("t", rename={"n": "m"}, change={"price": "decimal(8,2)"}, comment="c")
    with db.begin() as txn:
        txn.alter_table("t", set_default={"m": 5})
        txn.alter_table("t", set_default={"m": None}, drop=["day"])
    found = db.table("t").history().select(["inserted", "schema_version", "change"]).to_pylist()
    assert [tuple(one.values()) for one in found] == [
        (2, None, None),
        (0, 1, "drop tags, add level int64 not null default 7"),
        (1, None, None),
        (0, 2, "rename n to m, change price to decimal(8,2), comment"),
        (0, 4, "default of m is 5, drop day, default of m is NULL"),
    ]


def test_a_subscription_tells_in_which_version_rows_were_written(db: hc.Database) -> None:
    with db.subscribe("t") as feed:
        db.run(lambda txn: txn.insert("t", row(3)))
        db.alter_table("t", add={"level": int})
        db.run(lambda txn: txn.insert("t", row(4, level=1)))
        db.run(lambda txn: txn.delete("t", 3))
        found = [next(feed).messages[0] for _ in range(3)]
    assert [one.schema_version for one in found] == [0, 1, 1]
    assert ["level" in one.rows.schema.names for one in found] == [False, True, False]


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
    ({"add": {"a": "int64 not null"}}, SchemaError, "constant default"),
    ({"add": {"a": hc.Column("uuid", nullable=False, default=hc.uuid)}}, SchemaError, "constant"),
    ({"add": {"a": hc.Column(int, default="x")}}, SchemaError, "default does not fit"),
    ({"add": {"a": hc.Column("int8", default=300)}}, SchemaError, "default does not fit"),
    ({"add": {"a": hc.Column(int, nullable=False, default=None)}}, SchemaError, "default"),
    ({"add": {"a": hc.Column(int, default=hc.now)}}, SchemaError, "date or a timestamp"),
    ({"set_default": {"missing": 1}}, SchemaError, "no such column"),
    ({"set_default": {"n": "x"}}, SchemaError, "default does not fit"),
    ({"set_default": {"n": 1 << 31}}, SchemaError, "default does not fit"),
    ({"set_default": {"n": hc.now}}, SchemaError, "date or a timestamp"),
    ({"set_default": {"n": hc.uuid}}, SchemaError, "text or uuid"),
    ({"set_default": {"n": lambda: 1}}, SchemaError, "constant, hc.now or hc.uuid"),
    ({"set_default": ["n"]}, UsageError, "dict"),
    ({"set_default": {"n": None}}, UsageError, "changes nothing"),
    ({"set_default": {"n": 1}, "drop": ["gone"]}, SchemaError, "no such column"),
    ({"add": {"a": int}, "set_default": {"a": 1}}, SchemaError, "no such column"),
    ({"comment": 7}, SchemaError, "text"),
    ({"comment": "x" * 10_001}, SchemaError, "10000"),
    ({"comment": "\ud800"}, SchemaError, "Unicode"),
    ({"comment": ""}, UsageError, "changes nothing"),
    ({"drop": ["n"], "rename": {"n": "m"}, "change": {"n": str}}, SchemaError, "cannot become"),
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

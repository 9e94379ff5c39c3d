"""Checks and required columns that come to a table with rows, and go: two commits, or none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import halocline as hc
from halocline.database import constraints

OPTIONS = hc.Options(background=False)
COLUMNS = {"id": int, "a": int, "b": int, "s": str}


@pytest.fixture(params=["memory", "objects"])
def db(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[hc.Database]:
    with hc.open(tmp_path / "db", options=OPTIONS) as db:
        db.create_table("t", COLUMNS, "id")
        rows = [{"id": n, "a": n, "b": n + 1, "s": "x"} for n in range(50)]
        db.run(lambda txn: txn.insert("t", rows))
        if request.param == "objects":
            db.flush("t")
        yield db
        assert not db.check()


def checks(db: hc.Database) -> list[tuple[str, bool]]:
    return [(check.name, check.valid) for check in db.begin().state_of("t").schema.checks]


def changes(db: hc.Database) -> list[str]:
    entry = db.begin().state_of("t").entry
    return [version.change for version in entry.versions()[1:]]


def test_a_check_that_holds_is_valid_after_two_commits(db: hc.Database) -> None:
    before = db.begin()
    before.update("t", 1, {"s": "before"})
    reader = db.begin()
    db.alter_table("t", add_checks={"order": "a < b", "s": "length(s) > 0"})
    assert checks(db) == [("order", True), ("s", True)]
    added = "add check order (a < b), add check s (length(s) > 0)"
    assert changes(db) == [added, "check order is valid, check s is valid"]
    with pytest.raises(hc.ConflictError, match="altered"):
        before.commit()
    assert reader.get("t", 1) == {"id": 1, "a": 1, "b": 2, "s": "x"}
    with db.begin() as txn, pytest.raises(hc.CheckError):
        txn.update("t", 1, {"a": 9})
    assert "check order: a < b" in repr(db.table("t"))
    db.alter_table("t", drop_checks=["ORDER"])
    assert checks(db) == [("s", True)]
    with db.begin() as txn:
        txn.update("t", 1, {"a": 9})
    assert not [owed for owed in db.health().owed if owed.work == "alter"]


def test_a_check_that_rows_break_is_withdrawn_and_names_them(db: hc.Database) -> None:
    db.run(lambda txn: txn.upsert("t", [{"id": n, "a": 99} for n in range(10, 30)]))
    with pytest.raises(hc.CheckError) as caught:
        db.alter_table("t", add_checks={"order": "a < b -- in order"})
    error = caught.value
    assert (error.table, error.check, error.total) == ("t", "order", 20)
    assert error.values == {"a": 99, "b": error.key + 1}
    assert set(error.broken) <= set(range(10, 30))
    assert len(error.broken) == 10
    assert checks(db) == []
    db.run(lambda txn: txn.update("t", 2, {"a": 99}))


def test_an_expression_that_fails_over_rows_is_withdrawn(db: hc.Database) -> None:
    with pytest.raises(hc.UsageError, match="Could not convert string 'x'"):
        db.alter_table("t", add_checks={"number": "cast(s as int) > 0"})
    assert checks(db) == []


def test_a_required_column_is_not_null_from_there_on(db: hc.Database, tmp_path: Path) -> None:
    db.run(lambda txn: txn.update("t", 7, {"s": None, "a": None}))
    then = db.visible_ts
    with pytest.raises(hc.CheckError, match=r"'required: s' .s is not null. .* key 7: s=None"):
        db.alter_table("t", set_required=["s"])
    assert checks(db) == []
    db.run(lambda txn: txn.update("t", 7, {"s": "y"}))
    with pytest.raises(hc.CheckError, match="required: a"):
        db.alter_table("t", set_required=["s", "a"])
    assert db.table("t").schema.field("s").nullable
    db.run(lambda txn: txn.update("t", 7, {"a": 7}))
    db.alter_table("t", set_required=["s", "A"], add_checks={"order": "a < b"})
    assert checks(db) == [("order", True)]
    assert [f.nullable for f in db.table("t").schema] == [False, False, True, False]
    with db.begin() as txn, pytest.raises(hc.SchemaError, match="must not be null"):
        txn.update("t", 1, {"s": None})
    # What was NULL before is still seen there, wherever its rows go.
    steps: list[Callable[[], object]] = [db.flush, db.compact, db.checkpoint]
    for step in steps:
        step()
        assert db.begin(at=then).get("t", 7) == {"id": 7, "a": None, "b": 8, "s": None}
        assert db.begin().get("t", 7) == {"id": 7, "a": 7, "b": 8, "s": "y"}
        assert db.begin().scan("t", where="s is null").num_rows == 0
    told = db.changes("t", since=0)
    assert told.num_rows >= 50
    db.alter_table("t", change={"s": str})
    db.run(lambda txn: txn.update("t", 1, {"s": None}))


def test_a_crash_between_the_commits_leaves_a_check_that_is_obeyed(tmp_path: Path) -> None:
    path = tmp_path / "db"
    with hc.open(path, options=OPTIONS) as db:
        db.create_table("t", COLUMNS, "id")
        db.run(lambda txn: txn.insert("t", {"id": 1, "a": 5, "b": 1}))
        constraints._enforce(db, "t", {"order": "a < b"}, ["s"])
    with hc.open(path, options=OPTIONS) as db:
        assert checks(db) == [("order", False), ("required: s", False)]
        owed = [str(one) for one in db.health().owed if one.work == "alter"]
        assert "check order was never verified" in owed[0]
        assert "not yet valid" in repr(db.table("t"))
        with db.begin() as txn:
            with pytest.raises(hc.CheckError):
                txn.insert("t", {"id": 2, "a": 5, "b": 1, "s": "x"})
            with pytest.raises(hc.CheckError):
                txn.insert("t", {"id": 2, "a": 1, "b": 5, "s": None})
        # The same call goes on where the crash was.
        with pytest.raises(hc.CheckError, match="key 1"):
            db.alter_table("t", add_checks={"order": "a < b"})
        assert checks(db) == [("required: s", False)]
        db.run(lambda txn: txn.update("t", 1, {"s": "x"}))
        db.alter_table("t", set_required=["s"])
        assert checks(db) == []
        assert not db.table("t").schema.field("s").nullable
        assert not db.check()


def test_a_second_process_adds_a_check(tmp_path: Path) -> None:
    with (
        hc.open(tmp_path / "db", options=OPTIONS) as owner,
        hc.open(tmp_path / "db", options=OPTIONS) as node,
    ):
        node.create_table("t", COLUMNS, "id", checks={"first": "a <> 3"})
        node.run(lambda txn: txn.insert("t", {"id": 1, "a": 1, "b": 2}))
        node.alter_table("t", add_checks={"order": "a < b"}, set_required=["b"])
        for db in (node, owner):
            with db.begin() as txn:
                with pytest.raises(hc.CheckError) as caught:
                    txn.insert("t", {"id": 2, "a": 5, "b": 5})
                assert caught.value.values == {"a": 5, "b": 5}
        with pytest.raises(hc.CheckError, match="a=1, b=2"):
            node.alter_table("t", add_checks={"more": "a + b > 5"})
        with pytest.raises(hc.AlreadyExistsError):
            node.alter_table("t", add_checks={"FIRST": "a > 0"})
        node.alter_table("t", drop_checks=["first"])
        assert checks(owner) == checks(node) == [("order", True)]
        assert not owner.check()


BAD: list[dict[str, Any]] = [
    {"add_checks": ["a > 0"]},
    {"add_checks": {"x": "nothing > 0"}},
    {"add_checks": {"x": "a"}},
    {"add_checks": {"x": "a > ?"}},
    {"add_checks": {"x": "now() > a"}},
    {"add_checks": {"there": "a > 0"}},
    {"add_checks": {"x": "a > 0"}, "drop": ["s"]},
    {"add_checks": {"x": "a > 0"}, "comment": "c"},
    {"add_checks": {"x": "c > 0"}, "add": {"c": int}},
    {"drop_checks": ["nothing"]},
    {"drop_checks": ["there", "there"]},
    {"drop_checks": "there"},
    {"drop_checks": [1]},
    {"set_required": "a"},
    {"set_required": ["nothing"]},
    {"set_required": ["id"]},
    {"set_required": ["a"], "rename": {"a": "c"}},
    {"drop": ["a"]},
    {"change": {"a": "decimal(12,2)"}},
]


@pytest.mark.parametrize("given", BAD, ids=str)
def test_a_bad_call_changes_nothing(tmp_path: Path, given: dict[str, Any]) -> None:
    with hc.open(tmp_path / "db", options=OPTIONS) as db:
        db.create_table("t", COLUMNS, "id", checks={"there": "a >= 0"})
        before = db.begin().state_of("t").entry
        with pytest.raises((hc.UsageError, hc.AlreadyExistsError)):
            db.alter_table("t", **given)
        with pytest.raises((hc.UsageError, hc.AlreadyExistsError)), db.begin() as txn:
            txn.alter_table("t", **given)
        assert db.begin().state_of("t").entry == before


def test_a_column_goes_together_with_its_check(tmp_path: Path) -> None:
    with hc.open(tmp_path / "db", options=OPTIONS) as db:
        db.create_table("t", COLUMNS, "id", checks={"order": "a < b"})
        db.alter_table("t", drop=["a"], drop_checks=["order"])
        assert changes(db) == ["drop a, drop check order"]
        db.run(lambda txn: txn.insert("t", pa.table({"id": [1], "b": [2]})))


def test_a_job_from_before_a_check_conflicts(tmp_path: Path) -> None:
    options = hc.Options(background=False)
    object.__setattr__(options, "object_rows_min", 0)
    object.__setattr__(options, "bulk_rows", 0)
    with hc.open(tmp_path / "db", options=options) as db:
        db.create_table("t", COLUMNS, "id")
        job = db.begin()
        job.insert("t", pa.table({"id": range(100), "a": [9] * 100, "b": [1] * 100}))
        db.alter_table("t", add_checks={"order": "a < b"})
        with pytest.raises(hc.ConflictError, match="altered"):
            job.commit()
        assert db.table("t").count() == 0

"""Jobs that have begun before their table is altered: lost only if a column they write is gone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import halocline as hc
from halocline.errors import ConflictError
from halocline.options import Options
from halocline.schema.checks import RowCheck
from halocline.schema.evolve import in_the_way
from halocline.schema.schema import Schema

pytest.importorskip("pyspark")

from tests.unit.txn.blindjobs import begin_job

OPTIONS = Options(object_rows=64, object_rows_min=10, bulk_rows=5)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[hc.Database]:
    with hc.open(tmp_path / "db", options=OPTIONS) as found:
        types = {"gone": str, "id": int, "a": "int32", "b": str, "day": "date"}
        found.create_table("t", types, primary_key="id")
        found.run(lambda txn: txn.insert("t", [{"id": n, "a": n, "b": "old"} for n in range(6)]))
        found.flush()
        yield found
        assert found.check() == []


@pytest.fixture(params=["here", "node"])
def writer(request: pytest.FixtureRequest, db: hc.Database, tmp_path: Path) -> Iterator[Any]:
    """Whoever runs the job: the owner, or another handle that hands it in."""
    if request.param == "here":
        yield db
        return
    with hc.open(tmp_path / "db", options=OPTIONS) as node:
        yield node


def rows(keys: Any, **more: Any) -> pa.Table:
    keys = list(keys)
    given = {"id": pa.array(keys, pa.int64()), "a": pa.array([50] * len(keys), pa.int32())}
    return pa.table(given | {name: [value] * len(keys) for name, value in more.items()})


WHOLE = {"b": "job", "gone": "x", "day": None}
HARMLESS: dict[str, Any] = {
    "add": {"new": hc.Column("int64", nullable=False, default=7), "text": str},
    "rename": {"a": "count", "id": "key"},
    "set_default": {"b": "other"},
    "comment": "altered",
}


def shown(db: hc.Database) -> dict[int, tuple[Any, ...]]:
    found = db.sql("select key, count, b, new, text from t").to_pylist()
    return {row["key"]: tuple(row.values())[1:] for row in found}


def test_a_whole_upsert_keeps_what_others_put_into_a_column_that_was_added(
    db: hc.Database, writer: Any
) -> None:
    job = begin_job(writer, "t", "upsert", rows(range(4, 9), **WHOLE))
    db.alter_table("t", **HARMLESS)
    db.run(lambda txn: txn.update("t", 4, {"new": 44, "text": "kept"}))
    db.run(lambda txn: txn.insert("t", {"key": 8, "new": 88, "text": "kept"}))
    db.run(lambda txn: txn.delete("t", 5))
    db.run(lambda txn: txn.update("t", 0, {"text": "mine"}))
    job.commit()
    expected: dict[int, tuple[Any, ...]] = {n: (n, "old", 7, None) for n in (1, 2, 3)}
    expected[0] = (0, "old", 7, "mine")
    expected |= dict.fromkeys((5, 6, 7), (50, "job", 7, None))
    expected |= {4: (50, "job", 44, "kept"), 8: (50, "job", 88, "kept")}
    for step in (lambda: None, db.flush, db.compact, db.checkpoint):
        step()
        assert shown(db) == expected
    db.alter_table("t", drop=["text"])
    assert db.table("t").count() == 9


@pytest.mark.parametrize("mode", ["upsert", "ignore", "delete", "update-only", "error"])
def test_jobs_join_a_table_in_its_newest_shape(db: hc.Database, writer: Any, mode: str) -> None:
    keys = range(20, 26) if mode == "error" else range(3, 9)
    job = begin_job(writer, "t", mode, rows(keys, b="job"))
    db.alter_table("t", **HARMLESS)
    db.alter_table("t", drop=["day"])  # which the job has no values for
    db.run(lambda txn: txn.update("t", 0, {"text": "mine"}))
    db.run(lambda txn: txn.update("t", 3, {"text": "merged"}))
    job.commit()
    old: dict[int, tuple[Any, ...]] = {n: (n, "old", 7, None) for n in (1, 2, 4, 5)}
    old |= {0: (0, "old", 7, "mine"), 3: (3, "old", 7, "merged")}
    came = dict.fromkeys(keys, (50, "job", 7, None))
    expected = {
        "upsert": old | came | {3: (50, "job", 7, "merged")},
        "ignore": came | old,
        "delete": {n: row for n, row in old.items() if n not in keys},
        "update-only": old
        | {n: row for n, row in came.items() if n in old}
        | {3: (50, "job", 7, "merged")},
        "error": old | came,
    }[mode]
    assert shown(db) == expected
    db.flush()
    assert shown(db) == expected


@pytest.mark.parametrize("mode", ["upsert", "ignore", "update-only", "error"])
@pytest.mark.parametrize("change", [{"drop": ["b"]}, {"change": {"a": "int64"}}])
def test_a_job_that_writes_a_dropped_or_changed_column_is_lost(
    db: hc.Database, writer: Any, mode: str, change: Any
) -> None:
    keys = range(20, 26) if mode == "error" else range(3, 9)
    job = begin_job(writer, "t", mode, rows(keys, b="job"))
    db.alter_table("t", **change)
    with pytest.raises(ConflictError, match=r"dropped or changed column '[ab]'"):
        job.commit()
    assert db.table("t").count() == 6


def test_rows_from_before_a_constraint_may_be_no_rows_of_the_table() -> None:
    old = Schema.define({"id": int, "a": int, "b": str}, "id")
    columns = tuple(replace(column, nullable=False) for column in old.columns)
    check = RowCheck("small", ("", " < 100"), (2,))
    assert "column 'a'" in in_the_way(old, replace(old, columns=columns), [1])
    assert "small" in in_the_way(old, replace(old, checks=(check,)), [1])
    assert in_the_way(replace(old, checks=(check,)), old, [1, 2, 3]) == ""
    assert in_the_way(replace(old, columns=columns), old, [1, 2, 3]) == ""


@pytest.mark.parametrize("change", [{"drop": ["b"]}, {"change": {"a": "int64"}}])
def test_a_delete_writes_no_column(db: hc.Database, writer: Any, change: Any) -> None:
    job = begin_job(writer, "t", "delete", rows(range(3, 9)))
    db.alter_table("t", **change)
    job.commit()
    assert db.sql("select id from t order by id").column("id").to_pylist() == [0, 1, 2]


def test_many_rows_of_one_transaction_join_too_unless_it_wrote_others_one_by_one(
    db: hc.Database,
) -> None:
    many, mixed = db.begin(), db.begin()
    many.insert("t", rows(range(100, 130), b="many"))
    mixed.insert("t", rows(range(200, 230), b="many"))
    mixed.insert("t", {"id": 300})
    db.alter_table("t", **HARMLESS)
    many.commit()
    with pytest.raises(ConflictError, match="altered"):
        mixed.commit()
    assert shown(db)[100] == (50, "many", 7, None)
    assert db.table("t").count() == 36

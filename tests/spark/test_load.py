"""Write jobs: all rows or none, keys enforced, checked against what others commit meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import halocline as hc
from halocline import spark as hs
from halocline.errors import DuplicateKeyError, NotFoundError, SchemaError, UsageError
from halocline.spark import job
from halocline.spark.job import _partitions

OPTIONS = hc.Options(
    page_rows=64, object_rows=256, row_group_rows=128, bulk_rows=50, background=False
)
COLUMNS = {"id": int, "name": str, "amount": "decimal(12,2)"}


@pytest.fixture
def db(tmp_path: Path) -> Iterator[hc.Database]:
    with hc.open(tmp_path / "shop", options=OPTIONS) as db:
        db.create_table("orders", COLUMNS, primary_key="id")
        yield db
        assert db.check() == []


def frame(spark: Any, ids: Any, name: str = "loaded") -> Any:
    rows = pa.table(
        {
            "id": pa.array(list(ids), pa.int64()),
            "name": pa.array([name] * len(list(ids))),
            "amount": pa.array([None] * len(list(ids)), pa.decimal128(12, 2)),
        }
    )
    return spark.createDataFrame(rows)


def names(db: hc.Database, at: Any = None) -> dict[int, str]:
    rows = db.table("orders").to_arrow(at=at).to_pylist()
    return {row["id"]: row["name"] for row in rows}


def fill(db: hc.Database) -> None:
    """Keys 0..99 in an object, of which 0..9 are deleted again; 100..119 in memory."""
    with db.begin() as txn:
        txn.insert("orders", [{"id": n, "name": "old"} for n in range(100)])
    db.flush("orders")
    with db.begin() as txn:
        txn.delete("orders", where="id < 10")
        txn.insert("orders", [{"id": n, "name": "old"} for n in range(100, 120)])


def test_a_load_into_an_empty_table(spark: Any, db: hc.Database) -> None:
    report = hs.load(frame(spark, range(1000)), db, "orders")
    assert (report.inserted, report.updated) == (1000, 0)
    assert names(db) == dict.fromkeys(range(1000), "loaded")
    assert db.table("orders").count(at=report.commit_ts - 1) == 0
    with db.begin() as txn:
        assert txn.get("orders", 777)["name"] == "loaded"


def test_a_key_that_exists_is_an_error_before_anything_is_visible(
    spark: Any, db: hc.Database
) -> None:
    fill(db)
    before = names(db)
    for ids in ([*range(500, 600), 50], [*range(500, 600), 110], [7, *range(90, 95)]):
        with pytest.raises(DuplicateKeyError):
            hs.load(frame(spark, ids), db, "orders")
    with pytest.raises(DuplicateKeyError) as caught:
        hs.load(frame(spark, [600, 601, 601, 602]), db, "orders")
    assert "601" in str(caught.value)
    assert caught.value.inside_input
    assert names(db) == before


def test_ten_duplicates_are_named_and_all_are_counted(spark: Any, db: hc.Database) -> None:
    fill(db)
    before = names(db)
    with pytest.raises(DuplicateKeyError) as caught:
        hs.load(frame(spark, [*range(20, 60), *range(500, 600)]), db, "orders")
    assert len(caught.value.keys) == 10
    assert set(caught.value.keys) <= set(range(20, 60))
    assert caught.value.total == 40
    assert not caught.value.inside_input
    twice = frame(spark, [*range(700, 720), *range(700, 715)])
    for mode in ("error", "upsert"):
        with pytest.raises(DuplicateKeyError) as caught:
            hs.load(twice, db, "orders", on_conflict=mode)
        assert (len(caught.value.keys), caught.value.total) == (10, 15)
        assert caught.value.inside_input
    assert names(db) == before


def test_upsert_replaces_what_is_there(spark: Any, db: hc.Database) -> None:
    fill(db)
    before = db.visible_ts
    report = hs.load(frame(spark, range(5, 205), "new"), db, "orders", on_conflict="upsert")
    assert (report.inserted, report.updated) == (90, 110)
    assert names(db) == dict.fromkeys(range(5, 205), "new")
    assert names(db, at=before) == dict.fromkeys(range(10, 120), "old")
    kinds = db.changes("orders", since=before).column("_change").to_pylist()
    assert (kinds.count("insert"), kinds.count("update_after")) == (90, 110)


def test_upsert_of_some_columns_keeps_the_others(spark: Any, db: hc.Database) -> None:
    with db.begin() as txn:
        txn.insert("orders", [{"id": n, "name": f"n{n}", "amount": n} for n in range(20)])
    db.flush("orders")
    given = spark.createDataFrame(pa.table({"ID": pa.array([3, 30]), "amount": pa.array([7, 8])}))
    hs.load(given, db, "orders", on_conflict="upsert")
    with db.begin() as txn:
        assert txn.get("orders", 3) == {"id": 3, "name": "n3", "amount": 7}
        assert txn.get("orders", 30) == {"id": 30, "name": None, "amount": 8}


def test_ignore_keeps_what_is_there(spark: Any, db: hc.Database) -> None:
    fill(db)
    report = hs.load(frame(spark, [5, 5, 50, 110, 300]), db, "orders", on_conflict="ignore")
    assert report.inserted == 2
    found = names(db)
    assert [found[n] for n in (5, 50, 110, 300)] == ["loaded", "old", "old", "loaded"]


def test_delete_and_update_by_keys(spark: Any, db: hc.Database) -> None:
    fill(db)
    keys = spark.createDataFrame(pa.table({"id": pa.array([5, 50, 51, 110, 999])}))
    assert hs.delete(keys, db, "orders").deleted == 3
    assert {50, 51, 110}.isdisjoint(names(db))
    values = spark.createDataFrame(pa.table({"id": [52, 111], "name": ["set", "set"]}))
    assert hs.update(values, db, "orders").updated == 2
    assert [names(db)[n] for n in (52, 111)] == ["set", "set"]
    with pytest.raises(NotFoundError):
        hs.update(spark.createDataFrame(pa.table({"id": [50], "name": ["x"]})), db, "orders")


def test_a_token_makes_a_load_happen_once(spark: Any, db: hc.Database) -> None:
    first = hs.load(frame(spark, range(10)), db, "orders", token="night 1")
    again = hs.load(frame(spark, range(10)), db, "orders", token="night 1")
    assert again.already_committed
    assert again.commit_ts == first.commit_ts
    assert len(names(db)) == 10


def test_a_load_without_rows_remembers_its_token(spark: Any, db: hc.Database) -> None:
    none = hs.load(frame(spark, []), db, "orders", token="night 0")
    assert none.commit_ts == db.visible_ts
    again = hs.load(frame(spark, range(10)), db, "orders", token="night 0")
    assert again.already_committed
    assert again.commit_ts == none.commit_ts
    assert hs.load(frame(spark, []), db, "orders").commit_ts is None
    assert db.table("orders").count() == 0
    assert not db.core.engine.jobs


def test_bad_input_is_refused_before_the_job(spark: Any, db: hc.Database) -> None:
    jobs = db.core.engine.last_job_id
    no_key = spark.createDataFrame(pa.table({"name": ["x"]}))
    with pytest.raises(SchemaError, match="id"):
        hs.load(no_key, db, "orders")
    with pytest.raises(SchemaError):
        hs.load(spark.createDataFrame(pa.table({"id": [1], "nope": [2]})), db, "orders")
    with pytest.raises(SchemaError):
        hs.load(spark.createDataFrame(pa.table({"id": ["one"]})), db, "orders")
    with pytest.raises(UsageError):
        hs.load(frame(spark, [1]), db, "orders", on_conflict="replace")
    with pytest.raises(UsageError):
        hs.load(pa.table({"id": [1]}), db, "orders")
    for nothing in ("nowhere", None, 5):
        with pytest.raises(UsageError, match="database"):
            hs.load(frame(spark, [1]), nothing, "orders")
        with pytest.raises(UsageError, match="database"):
            hs.delete(frame(spark, [1]), nothing, "orders")
    assert db.core.engine.last_job_id == jobs
    null = spark.createDataFrame(pa.table({"id": pa.array([1, None], pa.int64())}))
    with pytest.raises(SchemaError):
        hs.load(null, db, "orders")
    assert names(db) == {}


def test_every_type_goes_through_spark_and_back(spark: Any, db: hc.Database) -> None:
    types = {
        "id": "int",
        "flag": "bool",
        "small": "int8",
        "real": "double",
        "money": "decimal(20,4)",
        "text": "str",
        "data": "blob",
        "day": "date",
        "local": "timestamp",
        "at": "timestamptz",
        "tags": pa.list_(pa.string()),
        "pair": pa.struct([("a", pa.int64()), ("b", pa.string())]),
    }
    for name in ("one", "two"):
        db.create_table(name, types, primary_key=["id", "text"])
    moment = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
    full = {
        "flag": True,
        "small": -3,
        "real": 1.5,
        "money": Decimal("12.3400"),
        "data": b"\0\xff",
        "day": moment.date(),
        "local": moment.replace(tzinfo=None),
        "at": moment,
        "tags": ["x", None],
        "pair": {"a": 1, "b": None},
    }
    with db.begin() as txn:
        txn.insert("one", [{"id": n, "text": f"t{n}", **(full if n % 2 else {})} for n in range(9)])
    hs.load(hs.table(spark, db, "one"), db, "two")
    hs.load(hs.table(spark, db, "one"), db, "two", on_conflict="upsert")
    hs.release(spark)
    one, two = (db.sql(f"select * from {name} order by id") for name in ("one", "two"))
    assert two.equals(one)


def test_the_number_of_objects_follows_the_rows_that_arrive(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark takes a join to be as large as the product of its sides."""
    monkeypatch.setitem(job.FEW, job.LEAST, "8m")  # as users have it
    with hc.open(tmp_path / "db", options=hc.Options(background=False)) as db:
        db.create_table("orders", {"id": int, "a": int, "b": int}, primary_key="id")
        left = spark.range(40_000).selectExpr("id", "id * 2 as a").where("id % 4 = 0")
        joined = left.join(spark.range(40_000).selectExpr("id", "id * 3 as b"), "id")
        assert _partitions(joined) > 100
        first = hs.load(joined, db, "orders", on_conflict="upsert")
        again = hs.load(joined, db, "orders", on_conflict="upsert")
        assert (first.inserted, again.updated) == (10_000, 10_000)
        assert first.objects == 1
        assert again.objects == 2, "rows, and the versions that they end"
        found = db.sql("select count(*) as n, sum(a) as a, sum(b) as b from orders").to_pylist()
        total = sum(range(0, 40_000, 4))
        assert found == [{"n": 10_000, "a": 2 * total, "b": 3 * total}]
        assert spark.conf.get(job.LEAST) != "8m", "the caller's settings are as they were"
        assert db.check() == []


def test_many_rows_are_cut_into_parts_in_key_order(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(job.FEW, job.ENOUGH, "64k")
    monkeypatch.setattr(job, "PARTITION_BYTES", 1000)
    with hc.open(tmp_path / "db", options=hc.Options(background=False)) as db:
        db.create_table("orders", {"id": int, "a": str}, primary_key="id")
        rows = spark.range(0, 40_000, 1, 4).selectExpr(
            "40000 - id as id", "sha2(string(id), 224) as a"
        )
        report = hs.load(rows, db, "orders")
        assert 4 < report.objects < 100
        assert db.table("orders").count() == 40_000
        assert db.health().tables["orders"].depth == 1, "no two objects overlap"
        assert db.check() == []

"""The data source on real Spark: reads, the live view, writes that succeed and writes that fail."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import halocline as hc
from halocline import spark as hs
from tests.spark.sources import BASICS, COLUMNS, OPTIONS, grow, plain, source


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "a shop [1]"
    with hc.open(path, options=OPTIONS) as db:
        db.create_table("orders", BASICS, primary_key="id")
    return path


def numbers(spark: Any, count: int, name: str = "new", first: int = 0) -> Any:
    rows = spark.range(first, first + count, 1, 2)
    return rows.selectExpr("id", f"'{name}' as name")


def names(path: Path) -> dict[int, str]:
    with hc.open(path, read_only=True) as db:
        assert db.check() == []
        return {row["id"]: row["name"] for row in db.table("orders").to_arrow().to_pylist()}


def test_reads_while_the_database_is_open_here(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "shop"
    with hc.open(path, options=OPTIONS) as db:
        db.create_table("orders", COLUMNS, primary_key="id")
        stamps = grow(db, random.Random(7), 6)
        for ts in (stamps[3], stamps[-1]):
            with db.begin(at=ts) as txn:
                expected = plain(txn.scan("orders").to_pylist())
            frame = source(spark.read, path, at=ts).load()
            assert plain(frame.toArrow().to_pylist()) == expected
        where = "amount > 50 and name is not null"
        frame = source(spark.read, path, columns="name,id", where=where).load()
        with db.begin() as txn:
            expected = plain(txn.scan("orders", columns=["name", "id"], where=where).to_pylist())
        assert frame.columns == ["name", "id"]
        assert plain(frame.toArrow().to_pylist()) == expected


def test_a_temporary_view_is_live(spark: Any, shop: Path) -> None:
    spark.sql(f"create temporary view live using halocline options (path '{shop}', table 'orders')")
    try:
        assert spark.sql("select count(*) from live").collect()[0][0] == 0
        with hc.open(shop) as db:
            with db.begin() as txn:
                txn.insert("orders", [{"id": 1}, {"id": 2}])
            assert spark.sql("select sum(id) from live").collect()[0][0] == 3
    finally:
        spark.catalog.dropTempView("live")


def test_writes_append_overwrite_and_upsert(spark: Any, shop: Path) -> None:
    source(numbers(spark, 300).write, shop).mode("append").save()
    assert names(shop) == dict.fromkeys(range(300), "new")
    upsert = source(numbers(spark, 200, "again", 200).write, shop, onConflict="upsert")
    upsert.mode("append").save()
    assert names(shop) == {n: "new" if n < 200 else "again" for n in range(400)}
    source(numbers(spark, 5, "over").write, shop).mode("overwrite").save()
    assert names(shop) == dict.fromkeys(range(5), "over")


def test_tasks_write_objects_when_they_have_many_rows(spark: Any, shop: Path) -> None:
    rows = spark.range(0, 200_000, 1, 2).selectExpr("id", "sha2(string(id), 256) as name")
    source(rows.write, shop).mode("append").save()
    with hc.open(shop, options=OPTIONS) as db:
        assert len(db.table("orders").files()) == 2, "an object of each task"
        assert db.sql("select count(*) as n, sum(id) as s from orders").to_pylist() == [
            {"n": 200_000, "s": 199_999 * 100_000}
        ]
        assert not db.core.engine.jobs
        with pytest.raises(Exception, match=r"DuplicateKeyError: primary key 199999 is already in"):
            source(rows.selectExpr("id + 199999 as id", "name").write, shop).mode("append").save()
        assert not db.core.engine.jobs
        db.gc()
        kept = {Path(file).name for file in db.table("orders").files()}
        assert {file.name for file in shop.rglob("*.parquet")} == kept
        assert db.check() == []


def test_a_write_that_fails_leaves_nothing(spark: Any, shop: Path) -> None:
    source(numbers(spark, 10).write, shop).mode("append").save()
    before = names(shop)
    broken = numbers(spark, 100, first=50).selectExpr(
        "if(id = 149, raise_error('lost'), id) as id", "name"
    )
    with pytest.raises(Exception, match="lost"):
        source(broken.write, shop).mode("append").save()
    with pytest.raises(Exception, match=r"DuplicateKeyError: primary key 9"):
        source(numbers(spark, 100, first=9).write, shop).mode("append").save()
    with pytest.raises(Exception, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        source(numbers(spark, 1).write, shop).save()
    assert names(shop) == before


def test_registering_by_hand(spark: Any, shop: Path) -> None:
    assert hs.register(spark) is spark
    assert source(spark.read, shop).load().columns == ["id", "name"]
    assert "_change" in source(spark.readStream, shop).load().columns

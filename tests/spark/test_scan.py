"""A table through Spark is the table: every tier, every snapshot, every type."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import halocline as hc
from halocline import spark as hs
from halocline.errors import NotFoundError, UsageError

OPTIONS = hc.Options(
    page_rows=16, object_rows=64, row_group_rows=32, bulk_rows=50, background=False
)
COLUMNS = {
    "id": int,
    "name": str,
    "amount": "decimal(12,2)",
    "flag": bool,
    "small": "smallint",
    "real": "double",
    "data": "blob",
    "day": "date",
    "clock": "time",
    "naive": "timestamp",
    "moment": "timestamptz",
}


def row(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "name": None if number % 7 == 0 else f"name {number % 10}",
        "amount": Decimal(number) / 4,
        "flag": number % 2 == 0,
        "small": number % 300,
        "real": float("nan") if number % 11 == 0 else number / 3,
        "data": bytes([number % 256]),
        "day": date(2024, 1, 1 + number % 28),
        "clock": time(1, 2, 3, number),
        "naive": datetime(2024, 1, 1, 0, 0, number % 60, 123),
        "moment": datetime(2024, 1, 1, 0, 0, number % 60, tzinfo=UTC),
    }


@pytest.fixture
def db(tmp_path: Path) -> Iterator[hc.Database]:
    with hc.open(tmp_path / "shop [1] a=b", options=OPTIONS) as db:
        db.create_table("orders", COLUMNS, primary_key="id")
        yield db
        assert db.check() == []


def fill(db: hc.Database) -> list[int]:
    """Rows in objects, in dirty objects, in flushed tombstones and in memory; snapshots between."""
    stamps = []
    with db.begin() as txn:
        txn.insert("orders", [row(number) for number in range(200)])
    stamps.append(db.visible_ts)
    db.flush("orders")
    with db.begin() as txn:
        txn.delete("orders", where="id % 10 = 3")
        txn.update("orders", where="id % 10 = 4", set={"name": "changed"})
    stamps.append(db.visible_ts)
    db.flush("orders")
    stamps.append(db.visible_ts)
    with db.begin() as txn:
        txn.insert("orders", [row(number) for number in range(300, 330)])
        txn.delete("orders", 5)
        txn.update("orders", 6, {"name": "in memory"})
    stamps.append(db.visible_ts)
    return stamps


def plain(rows: Any) -> list[str]:
    return sorted(repr(sorted(one.items())) for one in rows)


def test_rows_are_those_of_the_local_engine_at_every_snapshot(spark: Any, db: hc.Database) -> None:
    for ts in [*fill(db), None]:
        with db.begin(at=ts) as txn:
            expected = plain(txn.scan("orders").to_pylist())
        frame = hs.table(spark, db, "orders", at=ts)
        assert plain(frame.toArrow().to_pylist()) == expected


def test_columns_and_predicate(spark: Any, db: hc.Database) -> None:
    fill(db)
    frame = hs.table(spark, db, "orders", columns=["NAME", "id"], where="id between 20 and 60")
    assert frame.columns == ["name", "id"]
    with db.begin() as txn:
        expected = txn.scan("orders", columns=["name", "id"], where="id between 20 and 60")
    assert plain(frame.toArrow().to_pylist()) == plain(expected.to_pylist())


def test_filters_and_columns_reach_the_files(spark: Any, db: hc.Database) -> None:
    fill(db)
    frame = hs.table(spark, db, "orders").where("small > 10").select("id")
    plan = frame._jdf.queryExecution().executedPlan().toString()
    scans = [line for line in plan.splitlines() if "FileScan parquet" in line]
    assert len(scans) >= 2, plan
    for scan in scans:
        assert "GreaterThan(small,10)" in scan
        assert "name" not in scan.partition("ReadSchema:")[2]


def test_views_show_one_snapshot_until_they_are_refreshed(spark: Any, db: hc.Database) -> None:
    fill(db)
    db.create_table("other", {"id": int}, primary_key="id")
    with hs.attach(spark, db, prefix="v_") as views:
        assert views.names == ["v_orders", "v_other"]
        before = spark.sql("select count(*) from v_orders").collect()[0][0]
        with db.begin() as txn:
            txn.insert("orders", row(999))
            txn.insert("other", {"id": 1})
        query = "select (select count(*) from v_orders), (select count(*) from v_other)"
        assert tuple(spark.sql(query).collect()[0]) == (before, 0)
        views.refresh()
        assert tuple(spark.sql(query).collect()[0]) == (before + 1, 1)
        db.drop_table("other")
        views.refresh()
        assert views.names == ["v_orders"]
    assert not spark.catalog.tableExists("v_orders")


def test_a_snapshot_stays_readable_until_it_is_released(spark: Any, db: hc.Database) -> None:
    fill(db)
    frame = hs.table(spark, db, "orders")
    pins = len(db.core.pins)
    assert pins
    assert hs.release(spark, db) >= 1
    assert len(db.core.pins) < pins
    assert hs.release(spark, db) == 0
    assert frame.count() > 0


def test_many_rows_in_memory_travel_as_a_file(
    spark: Any, db: hc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("halocline.spark.scan.ROWS_IN_PLAN_MAX", 10)
    fill(db)
    frame = hs.table(spark, db, "orders")
    with db.begin() as txn:
        expected = plain(txn.scan("orders").to_pylist())
    assert plain(frame.toArrow().to_pylist()) == expected


def test_an_empty_table_has_its_columns(spark: Any, db: hc.Database) -> None:
    frame = hs.table(spark, db, "orders")
    assert frame.columns == list(COLUMNS)
    assert frame.count() == 0


def test_what_cannot_be_is_refused(spark: Any, db: hc.Database) -> None:
    pins = len(db.core.pins)
    with pytest.raises(NotFoundError):
        hs.table(spark, db, "ordrs")
    with pytest.raises(UsageError, match="database"):
        hs.table(spark, "shop", "orders")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="SparkSession"):
        hs.table(None, db, "orders")  # type: ignore[arg-type]
    with pytest.raises(hc.HaloclineError):
        hs.table(spark, db, "orders", columns=["nope"])
    with pytest.raises(UsageError):
        hs.table(spark, db, "orders", where="1; drop table orders")
    assert len(db.core.pins) == pins, "a refused call holds no snapshot"

"""Spark reads a table that was altered: one scan for each version of its schema."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import halocline as hc
from halocline import spark as hs


def plan_of(frame: Any) -> str:
    text: str = frame._jdf.queryExecution().executedPlan().toString()
    return text


def test_frames_show_every_version_in_one_shape(spark: Any, tmp_path: Path) -> None:
    with hc.open(tmp_path / "db") as db:
        db.create_table("t", {"id": int, "a": "int32", "b": str, "d": "date"}, primary_key="id")
        rows = [{"id": n, "a": n, "b": f"b{n}", "d": date(2024, 1, n)} for n in (1, 2, 3)]
        db.run(lambda txn: txn.insert("t", rows))
        db.flush("t")
        before = db.visible_ts
        db.alter_table("t", rename={"a": "b"}, drop=["b"], change={"a": "int64", "d": "timestamp"})
        db.run(lambda txn: txn.insert("t", {"id": 4, "b": 1 << 40}))
        db.run(lambda txn: txn.update("t", 2, {"b": 20}))
        db.flush("t")
        db.alter_table("t", add={"a": str})
        db.run(lambda txn: txn.insert("t", {"id": 5, "a": "new"}))
        for at, where in ((None, "b >= 3"), (before, "a >= 2"), (None, "a is null"), (None, None)):
            with db.begin(at=at or db.visible_ts) as txn:
                expected = txn.scan("t", where=where, order="id")
            frame = hs.table(spark, db, "t", at=at, where=where)
            found = [row.asDict() for row in frame.orderBy("id").collect()]
            assert found == expected.to_pylist(), (at, where)
        plan = plan_of(hs.table(spark, db, "t", where="b = 20", columns=["id"]))
        assert "EqualTo(a,20)" in plan or "EqualTo(b,20)" in plan, plan
        hs.compact(spark, db, "t")
        again = [row.asDict() for row in hs.table(spark, db, "t").orderBy("id").collect()]
        assert again == db.table("t").to_arrow().sort_by("id").to_pylist()
        assert again[0]["d"] == datetime(2024, 1, 1)
        source = spark.read.format("halocline").option("path", db.path).option("table", "t").load()
        assert sorted(row["id"] for row in source.where("b = 20").collect()) == [2]
        hs.release(spark)
        assert db.check() == []


DEFAULTS: dict[str, tuple[Any, Any]] = {
    "s": (str, "it's \\ \x00 \u00fc"),
    "raw": (bytes, b"\x00\xff"),
    "n": ("int8", -7),
    "f": ("float32", float("inf")),
    "flag": (bool, True),
    "price": ("decimal(12,2)", Decimal("1.50")),
    "d": ("date", date(2024, 2, 29)),
    "at": ("timestamp", datetime(2024, 1, 1, 2, 3, 4, 5)),
    "utc": ("timestamptz", datetime(2024, 1, 1, tzinfo=UTC)),
    "tags": ("list<string>", ["a", None]),
    "pair": ("struct<a: int64, b: list<date>>", {"a": 1, "b": [date(2024, 1, 1)]}),
}


def test_older_rows_show_the_defaults_of_added_columns(spark: Any, tmp_path: Path) -> None:
    with hc.open(tmp_path / "db") as db:
        db.create_table("t", {"id": int}, primary_key="id")
        db.run(lambda txn: txn.insert("t", [{"id": n} for n in range(5)]))
        db.flush("t")
        added = {name: hc.Column(type, default=value) for name, (type, value) in DEFAULTS.items()}
        db.alter_table("t", add=added)
        db.alter_table("t", change={"n": "int32", "d": "timestamp"}, set_default={"n": 1})
        db.run(lambda txn: txn.insert("t", {"id": 7}))
        db.flush("t")
        db.run(lambda txn: txn.insert("t", {"id": 8}))
        expected = db.table("t").to_arrow().sort_by("id")
        source = spark.read.format("halocline").option("path", db.path).option("table", "t").load()
        for frame in (hs.table(spark, db, "t"), source):
            found = frame.orderBy("id").toArrow().cast(expected.schema)
            assert found.to_pylist() == expected.to_pylist()
        for where, count in (("n = -7", 5), ("n = 1", 2), ("s is null", 0), ("flag", 7)):
            assert hs.table(spark, db, "t", where=where).count() == count, where
        plan = plan_of(hs.table(spark, db, "t", where="n = 1 and id < 8", columns=["id", "n"]))
        assert plan.count("FileScan") == 1, "a file whose rows all show another value is not read"
        assert "PushedFilters: [" in plan
        assert "EqualTo(n,1)" in plan
        assert "LessThan(id,8)" in plan
        assert "ReadSchema: struct<id:bigint,n:int>" in plan
        hs.release(spark)

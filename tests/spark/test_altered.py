"""Spark reads a table that was altered: one scan for each version of its schema."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

import halocline as hc
from halocline import spark as hs
from halocline.errors import DuplicateKeyError, NotFoundError, SchemaError, UsageError
from pyspark_halocline import feed
from pyspark_halocline.source import DefaultSource


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


def test_a_table_that_was_renamed(spark: Any, tmp_path: Path) -> None:
    with hc.open(tmp_path / "db") as db:
        db.create_table("t", {"id": int, "a": int}, primary_key="id")
        db.run(lambda txn: txn.insert("t", {"id": 1, "a": 1}))
        db.flush("t")
        before = db.visible_ts
        frame = hs.table(spark, db, "t")
        db.rename_table("t", "s")
        db.create_table("t", {"id": int}, primary_key="id")
        assert [row["id"] for row in frame.collect()] == [1]
        hs.load(spark.createDataFrame([(1, 10), (2, 20)], "id long, a long"), db, "s", "upsert")
        found = hs.table(spark, db, "s").orderBy("id").collect()
        assert [tuple(row) for row in found] == [(1, 10), (2, 20)]
        assert [row["a"] for row in hs.table(spark, db, "t", at=before).collect()] == [1]
        assert hs.table(spark, db, "t").columns == ["id"]
        with pytest.raises(NotFoundError):
            hs.table(spark, db, "s", at=before)
        source = DefaultSource({"path": db.path, "table": "s", "changes": "true"})
        reader = source.streamReader(source.schema())
        start = reader.initialOffset()
        db.rename_table("s", "r")
        db.run(lambda txn: txn.insert("r", {"id": 3, "a": 3}))
        with pytest.raises(NotFoundError, match="renamed to 'r'"):
            reader.latestOffset(start, ReadAllAvailable())
        reader.stop()
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


def test_a_load_adds_the_columns_that_the_table_has_not(spark: Any, tmp_path: Path) -> None:
    with hc.open(tmp_path / "db") as db:
        db.create_table("t", {"id": int, "a": str}, primary_key="id")
        db.run(lambda txn: txn.insert("t", [{"id": n, "a": "old"} for n in range(4)]))
        db.flush("t")
        db.run(lambda txn: txn.insert("t", {"id": 4, "a": "l0"}))
        before = db.visible_ts
        rows = [(n, "new", n / 2, [n]) for n in range(3, 8)]
        frame = spark.createDataFrame(rows, "id long, a string, Rate double, tags array<long>")
        with pytest.raises(SchemaError, match=r"'Rate', 'tags'.*evolve=True") as refused:
            hs.load(frame, db, "t", on_conflict="upsert")
        assert refused.value.column == "Rate"
        with pytest.raises(DuplicateKeyError):
            hs.load(frame, db, "t", evolve=True)
        assert (db.visible_ts, db.table("t").schema.names) == (before, ["id", "a"])
        report = hs.load(frame, db, "t", on_conflict="upsert", token="once", evolve=True)
        assert (report.inserted, report.updated) == (3, 2)
        assert db.visible_ts == report.commit_ts == before + 1
        again = hs.load(frame, db, "t", on_conflict="upsert", token="once", evolve=True)
        assert again.already_committed
        expected: list[Any] = [{"id": n, "a": "old", "Rate": None, "tags": None} for n in range(3)]
        expected += [{"id": n, "a": "new", "Rate": n / 2, "tags": [n]} for n in range(3, 8)]
        assert db.table("t").to_arrow().sort_by("id").to_pylist() == expected
        assert db.table("t").to_arrow(at=before).schema.names == ["id", "a"]
        part = spark.createDataFrame([(1, True), (9, False)], "id long, flag boolean")
        hs.load(part, db, "t", on_conflict="upsert", evolve=True)
        assert db.table("t").count() == 9
        assert db.check() == []
    with hc.open(tmp_path / "db") as db, hc.open(tmp_path / "db") as node:
        found = db.table("t").to_arrow().sort_by("id").to_pylist()
        assert [row["flag"] for row in found] == [None, True, *[None] * 6, False]
        assert [row["a"] for row in found[:4]] == ["old", "old", "old", "new"]
        wider = spark.createDataFrame([(1, 1)], "id long, more long")
        with pytest.raises(UsageError, match="alter_table"):
            hs.load(wider, node, "t", on_conflict="upsert", evolve=True)


def test_a_load_that_adds_columns_beside_others(spark: Any, tmp_path: Path) -> None:
    with hc.open(tmp_path / "db") as db:
        db.create_table("t", {"id": int, "a": str}, primary_key="id")
        db.run(lambda txn: txn.insert("t", [{"id": n, "a": "old"} for n in range(4)]))
        for change in ({"id": 9, "a": "other"}, {"id": 2, "a": "other"}):
            gate = tmp_path / f"gate{change['id']}"
            job = Thread(target=_gated_load, args=(spark, db, gate))
            job.start()
            while not (gate / "began").exists() and job.is_alive():
                job.join(0.01)
            db.run(lambda txn, row=change: txn.upsert("t", [row]))
            (gate / "go").touch()
            job.join()
        found = db.table("t").to_arrow().sort_by("id").to_pylist()
        assert [(row["id"], row["a"], row["gate9"], row["gate2"]) for row in found] == [
            (0, "old", None, None),
            (1, "old", None, None),
            (2, "other", "new", "new"),
            (3, "old", "new", "new"),
            (9, "other", None, None),
        ]
        assert db.check() == []


def _gated_load(spark: Any, db: Any, gate: Path) -> None:
    """A load whose tasks wait until the test has done what it wants to do meanwhile."""
    gate.mkdir()

    def wait(batches: Any) -> Any:
        (gate / "began").touch()
        while not (gate / "go").exists():
            sleep(0.01)
        yield from batches

    frame = spark.createDataFrame([(2, "new"), (3, "new")], f"id long, {gate.name} string")
    hs.load(frame.mapInArrow(wait, frame.schema), db, "t", on_conflict="upsert", evolve=True)


def streamed(reader: Any, start: Any, end: Any) -> list[dict[str, Any]]:
    """The rows of a batch, as executors read them."""
    batches = [one for part in reader.partitions(start, end) for one in reader.read(part)]
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("along", [True, False], ids=["along", "by executors"])
def test_a_stream_keeps_its_columns_until_it_starts_again(
    tmp_path: Path, along: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not along:
        monkeypatch.setattr(feed, "ROWS_ALONG_MAX", 1)
    with hc.open(tmp_path / "db") as db:
        db.create_table("t", {"id": int, "a": "int32", "b": str}, primary_key="id")
        db.run(lambda txn: txn.insert("t", [{"id": n, "a": n} for n in range(3)]))
        source = DefaultSource({"path": db.path, "table": "t", "changes": "true"})
        reader = source.streamReader(source.schema())
        start = reader.initialOffset()
        first = reader.latestOffset(start, ReadAllAvailable())
        db.alter_table("t", add={"new": hc.Column(int, default=7)}, rename={"b": "word"})
        rows = streamed(reader, start, first)
        assert [(row["id"], row["a"], row["b"]) for row in rows] == [(n, n, None) for n in range(3)]
        db.run(lambda txn: txn.insert("t", {"id": 5, "a": 5, "word": "w", "new": 8}))
        db.run(lambda txn: txn.update("t", 1, {"new": 9}))
        second = reader.latestOffset(first, ReadAllAvailable())
        rows = streamed(reader, first, second)
        assert [(row["id"], row["b"], row["_change"]) for row in rows] == [
            (5, "w", "insert"),
            (1, None, "update_before"),
            (1, None, "update_after"),
        ]
        assert list(rows[0]) == ["id", "a", "b", "_change", "_commit_ts"]
        again = source.streamReader(source.schema())
        assert [row["new"] for row in streamed(again, start, first)] == [7, 7, 7]
        assert [row["new"] for row in streamed(again, first, second)] == [8, 7, 9]
        fields = source.schema().fields
        narrow = source.streamReader(StructType([fields[0], *fields[-2:]]))
        changes: list[tuple[Any, Any, str]] = [
            (reader, {"change": {"a": "int64"}}, "'a' of the table has become int64"),
            (again, {"drop": ["word"]}, "'a' of the table has become int64"),
        ]
        for one, change, text in changes:
            assert streamed(narrow, start, first)
            db.alter_table("t", **change)
            db.run(lambda txn: txn.update("t", 2, {"new": 1}))
            with pytest.raises(UsageError, match=text):
                one.latestOffset(second, ReadAllAvailable())
            narrow.latestOffset(second, ReadAllAvailable())
        fresh = source.streamReader(source.schema())
        last = fresh.latestOffset(second, ReadAllAvailable())
        assert len(streamed(narrow, second, last)) == len(streamed(fresh, second, last)) == 4
        db.alter_table("t", drop=["new"])
        db.run(lambda txn: txn.update("t", 2, {"a": 1}))
        with pytest.raises(UsageError, match="'new' of the table was dropped"):
            fresh.latestOffset(last, ReadAllAvailable())
        fresh.stop()
        narrow.stop()
        reader.stop()
        again.stop()

"""Spark reads every codec that a table may have, whoever has written the object (L-17)."""

from __future__ import annotations

import datetime as dt
import hashlib
import random
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import halocline as hc
from halocline import spark as hs

COLUMNS: dict[str, Any] = {
    "id": int,
    "few": str,
    "text": str,
    "noise": "blob",
    "price": float,
    "amount": "decimal(12,2)",
    "large": "decimal(30,4)",
    "day": "date",
    "at": "timestamptz",
    "flag": bool,
    "tags": pa.list_(pa.string()),
    "point": pa.struct([("x", pa.int32()), ("name", pa.string())]),
}
OPTIONS = hc.Options(object_rows_min=5_000, object_rows=30_000, bulk_rows=100, background=False)
NAMES = {"zstd": "ZSTD", "lz4": "LZ4", "none": "UNCOMPRESSED"}


def rows(first: int, count: int) -> pa.Table:
    """Pages that shrink much, a little, and not at all; some of one value, some of NULLs."""
    chance = random.Random(first)
    start = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    made = [
        {
            "id": key,
            "few": chance.choice(["new", "paid", None]),
            "text": hashlib.sha256(b"%d" % key).hexdigest() * (key % 4),
            "noise": chance.randbytes(key % 40),
            "price": chance.random() if key % 3 else None,
            "amount": Decimal(key % 100_000).scaleb(-2),
            "large": Decimal(key).scaleb(-4) * 1_000_000,
            "day": start.date() + dt.timedelta(days=key % 700),
            "at": start + dt.timedelta(seconds=key),
            "flag": key < first + count // 2,
            "tags": [f"t{key % 5}"] * (key % 3) if key % 7 else None,
            "point": {"x": key % 1000, "name": "p" * (key % 9)},
        }
        for key in range(first, first + count)
    ]
    return pa.Table.from_pylist(made)


MORE = [pytest.param(codec, marks=pytest.mark.more) for codec in NAMES]


@pytest.fixture(params=["mixed", *MORE])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[hc.Database]:
    codec: Any = request.param
    if codec == "mixed":
        codec = {"text": "lz4", "tags": "lz4", "noise": "none", "id": "lz4", "price": "zstd"}
    with hc.open(tmp_path / "shop", options=OPTIONS) as db:
        db.create_table("t", COLUMNS, "id", codec=codec)
        yield db
        assert db.check() == []


def codecs(db: hc.Database) -> list[dict[str, str]]:
    """Of each object of rows, the codec of each column."""
    found = []
    for path in db.table("t").files():
        group = pq.ParquetFile(path).metadata.row_group(0)
        chunks = [group.column(at) for at in range(group.num_columns)]
        found.append({one.path_in_schema.partition(".")[0]: one.compression for one in chunks})
    return found


def check_seen(spark: Any, db: hc.Database, count: int) -> None:
    """Spark sees what is there, whole, filtered, and through the data source."""
    db.flush("t")
    expected = db.sql("select * from t order by id")
    assert expected.num_rows == count
    frame = hs.table(spark, db, "t")
    assert frame.orderBy("id").toArrow().cast(expected.schema) == expected
    some = "id % 3 = 1 and price > 0.5 and few = 'paid'"
    wanted = db.sql(f"select count(*) n, sum(id) s, max(text) t from t where {some}").to_pylist()
    found = frame.where(some).selectExpr("count(*) n", "sum(id) s", "max(text) t").toArrow()
    assert found.to_pylist() == wanted
    source = spark.read.format("halocline").option("path", db.path).option("table", "t").load()
    assert (
        source.selectExpr("sum(id)", "count(text)").first()
        == frame.selectExpr("sum(id)", "count(text)").first()
    )


def test_l17_spark_reads_what_every_writer_has_written(spark: Any, db: hc.Database) -> None:
    db.run(lambda txn: txn.insert("t", rows(0, 20_000)))  # objects at once
    db.run(lambda txn: txn.insert("t", rows(20_000, 3_000)))  # rows that the mover moves
    db.flush("t")
    db.run(lambda txn: txn.update("t", where="id < 500", set={"few": "sent", "tags": ["z"]}))
    check_seen(spark, db, 23_000)
    mine = db.core.catalog.table("t", db.core.newest_ts())
    assert mine is not None
    given = rows(22_000, 12_000)
    reader = spark.createDataFrame(given.drop_columns(["point"]))
    hs.load(reader, db, "t", on_conflict="upsert")  # tasks of Spark
    check_seen(spark, db, 34_000)
    db.compact("t")
    hs.compact(spark, db, "t")
    check_seen(spark, db, 34_000)
    schema = mine.schema
    for found in codecs(db):
        for column in schema.columns:
            wanted = NAMES[column.compression or schema.compression]
            shrinks = column.name not in ("price", "noise")  # else it may be left as it is
            assert found[column.name] in {wanted, wanted if shrinks else NAMES["none"]}


@pytest.mark.parametrize("vectorised", ["true", pytest.param("false", marks=pytest.mark.more)])
def test_l17_spark_reads_lz4_pages_of_every_size(
    spark: Any, tmp_path: Path, vectorised: str
) -> None:
    """Empty ones, one value, all NULL, several megabytes, and bytes that do not shrink."""
    columns = {"id": int, "nothing": str, "one": str, "wide": str, "bytes": "blob", "s": "int8"}
    chance = random.Random(7)
    spark.conf.set("spark.sql.parquet.enableVectorizedReader", vectorised)
    with hc.open(tmp_path / "shop", options=hc.Options(object_rows_min=10)) as db:
        db.create_table("t", columns, "id", codec="lz4")
        for first, count, width in ((0, 1, 0), (10, 20, 3), (1000, 9000, 600), (20_000, 900, 9000)):
            ids = range(first, first + count)
            made = {
                "id": ids,
                "nothing": pa.nulls(count, pa.string()),
                "one": ["" if width < 9 else "same"] * count,
                "wide": [f"{key} " * (width // 4) for key in ids],
                "bytes": [chance.randbytes(width) for _ in ids],
                "s": pa.array([key % 100 for key in ids], pa.int8()),
            }
            db.run(lambda txn, made=made: txn.insert("t", pa.table(made)))
        db.flush("t")
        expected = db.sql("select * from t order by id")
        frame = hs.table(spark, db, "t")
        assert frame.orderBy("id").toArrow().cast(expected.schema) == expected
        assert frame.where("id >= 20000 and wide like '20899%'").count() == 1
        db.compact("t")
        frame = hs.table(spark, db, "t")
        assert frame.orderBy("id").toArrow().cast(expected.schema) == expected
        assert {codec for found in codecs(db) for codec in found.values()} <= {"LZ4"}
    spark.conf.unset("spark.sql.parquet.enableVectorizedReader")

"""Tables made after a DataFrame: by `db.create_table`, or by the load of their first rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import halocline as hc
from halocline import spark as hs
from halocline.errors import DuplicateKeyError, NotFoundError, SchemaError, UsageError

OPTIONS = hc.Options(object_rows=256, row_group_rows=128, background=False)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[hc.Database]:
    with hc.open(tmp_path / "shop", options=OPTIONS) as db:
        yield db
        assert db.check() == []


def orders(spark: Any, first: int = 0, count: int = 600) -> Any:
    return spark.range(first, first + count).selectExpr(
        "id",
        "'paid' as status",
        "cast(id as decimal(12,2)) as amount",
        "cast('2024-01-01 10:00:00' as timestamp) as at",
        "cast('2024-01-01 10:00:00' as timestamp_ntz) as naive",
        "date '2024-01-02' as day",
        "array(id) as many",
        "named_struct('a', id, 'b', 'x') as pair",
    )


COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("status", pa.string()),
        ("amount", pa.decimal128(12, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("naive", pa.timestamp("us")),
        ("day", pa.date32()),
        ("many", pa.list_(pa.int64())),
        ("pair", pa.struct([("a", pa.int64()), ("b", pa.string())])),
    ]
)


def test_a_table_takes_the_columns_of_a_dataframe(spark: Any, db: hc.Database) -> None:
    table = db.create_table("orders", orders(spark), primary_key="id")
    assert table.schema.equals(COLUMNS)
    assert table.count() == 0, "and no rows"
    again = db.create_table("again", orders(spark).schema, primary_key=["id", "day"])
    assert again.primary_key == ("id", "day")
    assert hs.load(orders(spark), db, "orders").inserted == 600


def test_a_load_makes_its_table_in_the_same_commit(spark: Any, db: hc.Database) -> None:
    report = hs.load(orders(spark), db, "orders", create=True, primary_key="id", token="night 1")
    assert report.inserted == 600
    assert db.table("orders").schema.equals(COLUMNS)
    assert db.table("orders").primary_key == ("id",)
    changes = db.changes("orders", since=0).column("_commit_ts").to_pylist()
    assert set(changes) == {report.commit_ts}
    assert db.sql("select count(*) as n from orders").to_pylist() == [{"n": 600}]
    again = hs.load(orders(spark), db, "orders", create=True, primary_key="ID", token="night 1")
    assert again.already_committed
    more = orders(spark, 500, 200)
    with pytest.raises(DuplicateKeyError):
        hs.load(more, db, "orders", create=True, primary_key="id")
    upsert = hs.load(more, db, "orders", "upsert", create=True, primary_key=["id"])
    assert (upsert.inserted, upsert.updated) == (100, 100)
    with hc.open(db.path, options=OPTIONS, read_only=True) as reader:
        assert reader.table("orders").count() == 700


@pytest.mark.parametrize("mode", ["error", "ignore", "upsert"])
def test_a_load_that_fails_makes_no_table(spark: Any, db: hc.Database, mode: Any) -> None:
    twice = orders(spark).union(orders(spark, 599, 1))
    given = {"on_conflict": mode, "create": True, "primary_key": "id"}
    if mode == "ignore":
        assert hs.load(twice, db, "orders", **given).inserted == 600
        return
    with pytest.raises(DuplicateKeyError):
        hs.load(twice, db, "orders", **given)
    assert db.tables() == []
    with pytest.raises(NotFoundError):
        hs.load(orders(spark), db, "orders")
    broken = orders(spark).selectExpr("id", "if(id = 7, raise_error('lost'), status) as status")
    with pytest.raises(UsageError, match="lost"):
        hs.load(broken, db, "orders", **given)
    assert db.tables() == []
    assert hs.load(orders(spark), db, "orders", **given).inserted == 600


def test_what_cannot_be_made_is_refused(spark: Any, db: hc.Database) -> None:
    rows = orders(spark)
    for wrong in ({"create": True}, {"primary_key": "id"}):
        with pytest.raises(UsageError, match="go together"):
            hs.load(rows, db, "orders", **wrong)
    with pytest.raises(SchemaError, match="nope"):
        hs.load(rows, db, "orders", create=True, primary_key="nope")
    db.create_table("other", {"id": int, "name": str}, primary_key="name")
    with pytest.raises(UsageError, match="its primary key is name, not id"):
        hs.load(spark.range(3), db, "other", create=True, primary_key="id")
    maps = spark.range(3).selectExpr("id", "map('a', id) as m")
    with pytest.raises(SchemaError, match="m"):
        db.create_table("maps", maps, primary_key="id")
    with pytest.raises(SchemaError, match="m"):
        hs.load(maps, db, "maps", create=True, primary_key="id")
    spans = spark.range(3).selectExpr("id", "make_interval(id) as span")
    with pytest.raises(SchemaError):
        db.create_table("spans", spans, primary_key="id")
    with pytest.raises(SchemaError, match="columns"):
        db.create_table("session", spark, primary_key="id")
    assert db.tables() == ["other"]


def test_another_process_loads_into_a_new_table(spark: Any, db: hc.Database) -> None:
    with hc.open(db.path, options=OPTIONS) as node:
        assert node.role == "node"
        report = hs.load(orders(spark), node, "orders", create=True, primary_key="id")
        assert report.inserted == 600
        node.create_table("empty", orders(spark), primary_key="id")
    assert db.table("orders").count() == 600
    assert db.tables() == ["empty", "orders"]

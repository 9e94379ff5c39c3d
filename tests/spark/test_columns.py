"""Defaults of columns that a DataFrame does not name: loads, upserts and the data source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import halocline as hc
from halocline import spark as hs
from halocline.errors import SchemaError

OPTIONS = hc.Options(
    page_rows=64, object_rows=256, row_group_rows=128, bulk_rows=50, background=False
)
COLUMNS: dict[str, Any] = {
    "id": int,
    "status": hc.Column(str, nullable=False, default="new"),
    "at": hc.Column("timestamptz", default=hc.now),
    "mark": hc.Column("uuid", default=hc.uuid),
    "n": hc.Column(int, default=7),
}


@pytest.fixture
def db(tmp_path: Path) -> Iterator[hc.Database]:
    with hc.open(tmp_path / "shop", options=OPTIONS) as db:
        db.create_table("orders", COLUMNS, primary_key="id")
        yield db
        assert db.check() == []


def frame(spark: Any, ids: range, **columns: Any) -> Any:
    given = {name: [value] * len(ids) for name, value in columns.items()}
    return spark.createDataFrame(pa.table({"id": list(ids), **given}))


def check_filled(db: hc.Database, ids: range) -> None:
    with db.begin() as txn:
        rows = txn.get_many("orders", list(ids)).to_pylist()
    assert [row["id"] for row in rows] == list(ids)
    assert all(row["status"] == "new" and row["n"] == 7 and row["at"] for row in rows)
    assert len({row["mark"] for row in rows}) == len(ids)


@pytest.mark.parametrize("on_conflict", ["error", "ignore", "upsert"])
def test_a_load_gives_defaults(spark: Any, db: hc.Database, on_conflict: Any) -> None:
    hs.load(frame(spark, range(600)), db, "orders", on_conflict=on_conflict)
    check_filled(db, range(600))


def test_an_upsert_keeps_what_is_there_and_gives_defaults_to_new_rows(
    spark: Any, db: hc.Database
) -> None:
    db.run(lambda txn: txn.insert("orders", [{"id": k, "status": "paid"} for k in range(10)]))
    hs.load(
        frame(spark, range(20), n=None).selectExpr("id", "cast(n as long) n"),
        db,
        "orders",
        "upsert",
    )
    rows = db.table("orders").to_arrow().sort_by("id").to_pylist()
    assert [row["status"] for row in rows] == ["paid"] * 10 + ["new"] * 10
    assert [row["n"] for row in rows] == [None] * 20


def test_null_in_a_required_column_is_refused_although_it_has_a_default(
    spark: Any, db: hc.Database
) -> None:
    wrong = frame(spark, range(3)).selectExpr("id", "cast(null as string) status")
    with pytest.raises(SchemaError, match="must not be null"):
        hs.load(wrong, db, "orders")
    assert db.table("orders").count() == 0


def test_the_data_source_gives_defaults(spark: Any, db: hc.Database) -> None:
    rows = frame(spark, range(100, 400))
    target = rows.write.format("halocline").option("path", str(db.path)).option("table", "orders")
    target.mode("append").save()
    check_filled(db, range(100, 400))

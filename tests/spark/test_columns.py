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


# Identity.


@pytest.fixture
def keyed(db: hc.Database) -> hc.Database:
    """A table with an identity column beside the others."""
    db.create_table("t", {"n": int, "id": hc.Column(int, identity=True)}, primary_key="id")
    return db


def numbers(spark: Any, count: int) -> Any:
    return spark.range(count).selectExpr("id n")


def draw(db: hc.Database) -> int:
    with db.begin() as txn:
        key: int = txn.insert("t", {}, returning=True)["id"]
    return key


@pytest.mark.parametrize("on_conflict", ["error", "ignore", "upsert"])
def test_a_load_without_keys_draws_them(spark: Any, keyed: hc.Database, on_conflict: Any) -> None:
    before = draw(keyed)
    for _ in range(2):
        report = hs.load(numbers(spark, 700), keyed, "t", on_conflict=on_conflict)
        assert report.inserted == 700
        after = draw(keyed)
        ids = keyed.sql(f"select id from t where id > {before} and id < {after}")["id"].to_pylist()
        assert len(set(ids)) == len(ids) == 700
        before = after
    found = keyed.sql("select n, count(*) c from t where n is not null group by n order by n")
    assert found.to_pylist() == [{"n": n, "c": 2} for n in range(700)]


def test_an_empty_load_draws_nothing_that_shows(spark: Any, keyed: hc.Database) -> None:
    assert hs.load(numbers(spark, 0), keyed, "t").inserted == 0
    assert keyed.table("t").count() == 0


def test_keys_that_spark_gives_move_the_sequence_up(spark: Any, keyed: hc.Database) -> None:
    hs.load(spark.range(500, 900).selectExpr("id", "id n"), keyed, "t")
    assert draw(keyed) == 900
    spark.range(2000, 2500).selectExpr("id", "id n").write.format("halocline").options(
        path=keyed.path, table="t"
    ).mode("append").save()
    assert draw(keyed) == 2500


@pytest.mark.parametrize("on_conflict", ["error", "ignore", "upsert"])
def test_the_data_source_draws_keys(spark: Any, keyed: hc.Database, on_conflict: str) -> None:
    before = draw(keyed)
    numbers(spark, 300).write.format("halocline").options(
        path=keyed.path, table="t", onConflict=on_conflict
    ).mode("append").save()
    after = draw(keyed)
    found = keyed.sql("select id, n from t where n is not null order by n")
    assert found["n"].to_pylist() == list(range(300))
    assert len({before, after, *found["id"].to_pylist()}) == 302  # a process of its own draws


def test_jobs_that_match_by_key_want_it(spark: Any, keyed: hc.Database) -> None:
    for job in (hs.update, hs.merge, hs.delete):
        with pytest.raises(SchemaError, match="'id'"):
            job(numbers(spark, 3), keyed, "t")
    assert keyed.table("t").count() == 0

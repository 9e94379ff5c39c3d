"""`hs.settle`: large tables, too, come into a state in which every row of every file counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import halocline as hc
from halocline import spark as hs
from halocline.errors import UnavailableError, UsageError

OPTIONS = hc.Options(
    page_rows=64,
    object_rows=256,
    row_group_rows=64,
    object_rows_min=100,
    background=False,
    compact_local_bytes=1,
)


def test_objects_that_are_too_large_here_are_settled_on_spark(spark: Any, tmp_path: Path) -> None:
    with hc.open(tmp_path / "db", options=OPTIONS) as db:
        db.create_table("t", {"id": int, "n": int}, primary_key="id")
        with db.begin() as txn:
            txn.insert("t", pa.table({"id": range(1000), "n": [0] * 1000}))
        with db.begin() as txn:
            txn.delete("t", where="id % 100 = 7")
            txn.update("t", where="id < 3", set={"n": 1})
            txn.insert("t", {"id": 5000, "n": 1})
        with pytest.raises(UnavailableError, match=r"hs\.settle\(session, db, 't'\)"):
            db.settle("t")
        told: list[tuple[int, int]] = []
        ts = hs.settle(spark, db, "t", progress=lambda done, total: told.append((done, total)))
        assert told, "a job of Spark has done it"
        files = db.table("t").files(at=ts, exact=True)
        rows = ds.dataset(files, format="parquet").to_table(columns=["id", "n"])
        expected = db.table("t").to_arrow(at=ts)
        assert expected.num_rows == 991
        assert rows.sort_by("id") == expected.sort_by("id")
        # Any reader of Parquet sees the table, Spark's own among them.
        found = spark.read.parquet(*files).selectExpr("count(*)", "sum(id)").first()
        assert tuple(found) == (991, sum(expected["id"].to_pylist()))
        assert hs.settle(spark, db) >= ts, "nothing is left to do"
        assert db.check() == []


def test_it_needs_the_owner(spark: Any, tmp_path: Path) -> None:
    with hc.open(tmp_path / "db", options=OPTIONS) as db:
        db.create_table("t", {"id": int}, primary_key="id")
        with hc.open(db.path, options=OPTIONS) as node, pytest.raises(UsageError, match="another"):
            hs.settle(spark, node, "t")
        with pytest.raises(hc.NotFoundError):
            hs.settle(spark, db, "nothing")

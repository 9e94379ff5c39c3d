"""Checks and Spark: whatever tasks write is asked before it is committed, and nothing stays of it
when a row breaks one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import halocline as hc
from halocline import spark as hs

COLUMNS = {"id": int, "a": int, "b": int}


def broken(call: Callable[[], Any], key: int) -> None:
    with pytest.raises(Exception, match=f"check 'order' .a < b. .* key {key}: ") as caught:
        call()
    assert "CheckError" in f"{type(caught.value).__name__} {caught.value}"


def test_no_job_brings_a_row_that_breaks_a_check(spark: Any, tmp_path: Path) -> None:
    with hc.open(tmp_path / "db") as db:
        db.create_table("t", COLUMNS, "id", checks={"order": "a < b"})
        rows = spark.range(0, 1000).selectExpr("id", "id as a", "id + 10 as b")
        hs.load(rows, db, "t")
        bad = rows.selectExpr("id", "a", "if(id = 500, 0, b) as b")
        wrong = bad.selectExpr("id + 1000 as id", "a", "b")
        broken(lambda: hs.load(wrong, db, "t"), 1500)
        broken(lambda: hs.load(bad, db, "t", on_conflict="upsert"), 500)
        broken(lambda: hs.load(wrong, db, "t", on_conflict="ignore"), 1500)
        assert hs.load(bad, db, "t", on_conflict="ignore").inserted == 0
        # Some columns: what counts is the row that comes of it.
        some = spark.range(5, 8).selectExpr("id", "if(id = 6, 99, 0) as a")
        broken(lambda: hs.load(some, db, "t", on_conflict="upsert"), 6)
        broken(lambda: hs.update(some, db, "t"), 6)
        broken(lambda: hs.merge(bad, db, "t"), 500)
        writing = wrong.write.format("halocline").option("path", db.path).option("table", "t")
        broken(lambda: writing.mode("append").save(), 1500)
        assert hs.update(some.where("id <> 6"), db, "t").updated == 2
        assert db.sql("select count(*) n, sum(a) a from t").to_pylist() == [
            {"n": 1000, "a": 499488}
        ]
        assert not db.check()
        hs.release(spark)

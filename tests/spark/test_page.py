"""The examples of docs/spark.md run, and do what is written beside them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import halocline as hc

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"
SETTING = "spark.sql.shuffle.partitions"


@pytest.mark.more
def test_the_examples_of_the_page_run(spark: Any, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 4
    partitions = spark.conf.get(SETTING)
    with hc.open(tmp_path / "shop") as db:
        db.create_table("orders", {"id": int, "customer": int, "amount": int}, primary_key="id")
        db.create_table("customers", {"customer": int}, primary_key="customer")
        with db.begin() as txn:
            txn.insert("orders", {"id": 1, "customer": 1, "amount": 500})
            txn.insert("customers", {"customer": 1})
        db.snapshot("before-migration")
        fresh = pa.table({"id": range(10, 20), "customer": [1] * 10, "amount": [7] * 10})
        db.create_table("copy", {"id": int, "customer": int, "amount": int}, primary_key="id")
        checkpoint = str(tmp_path / "checkpoint")
        names = {"db": db, "df": spark.createDataFrame(fresh), "checkpoint": checkpoint}
        try:
            for block in blocks:
                exec(block, names)
        finally:
            spark.conf.set(SETTING, partitions)
            spark.catalog.dropTempView("live")
        assert names["orders"].collect()[0].asDict() == {"id": 1, "amount": 500}
        assert names["report"].inserted == 10
        # Deleted by key and loaded once more, under a token.
        assert db.table("orders").count() == 11
        assert db.table("copy").count() == 11
        assert names["hs"].release(spark, db) == 2
        assert db.check() == []

"""Spark jobs of a process that does not own the database: they write, and the owner commits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import halocline as hc
from halocline import spark as hs
from halocline.errors import DuplicateKeyError, UsageError
from tests.spark.test_load import OPTIONS, db, fill, frame, names

__all__ = ["db"]


@pytest.fixture
def node(db: hc.Database) -> Iterator[hc.Database]:
    with hc.open(db.path, options=OPTIONS) as node:
        assert node.role == "node"
        yield node
        assert node.check() == []


def test_jobs_of_a_node_are_committed_by_the_owner(
    spark: Any, db: hc.Database, node: hc.Database
) -> None:
    fill(db)
    report = hs.load(frame(spark, range(50, 200)), node, "orders", on_conflict="ignore")
    assert (report.inserted, report.updated) == (80, 0)
    report = hs.load(frame(spark, range(90, 210), "new"), node, "orders", on_conflict="upsert")
    assert (report.inserted, report.updated) == (10, 110)
    with pytest.raises(DuplicateKeyError):
        hs.load(frame(spark, range(205, 300)), node, "orders")
    report = hs.load(frame(spark, range(210, 300), "last"), node, "orders", token="once")
    assert report.commit_ts == node.visible_ts == db.visible_ts
    assert hs.load(frame(spark, [1]), node, "orders", token="once").already_committed
    assert hs.delete(frame(spark, range(250, 400)).select("id"), node, "orders").deleted == 50
    expected = dict.fromkeys(range(10, 90), "old")
    expected |= dict.fromkeys(range(90, 210), "new") | dict.fromkeys(range(210, 250), "last")
    assert names(db) == names(node) == expected
    rows = hs.table(spark, node, "orders").select("id", "name").collect()
    assert {row.id: row.name for row in rows} == expected


def test_compaction_with_spark_needs_the_owner(
    spark: Any, db: hc.Database, node: hc.Database
) -> None:
    fill(db)
    with pytest.raises(UsageError, match="another process has the database open"):
        hs.compact(spark, node, "orders")
    assert node.compact("orders")["orders"].name == "orders"

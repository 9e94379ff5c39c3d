"""The files of a snapshot are plain Parquet to a Spark that knows nothing of us."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import halocline as hc
from tests.spark.shop import COLUMNS, row


def test_plain_spark_reads_the_right_rows(spark: Any, open_db: Callable[..., Any]) -> None:
    """Moved, merged and rewritten, the files hold the rows, their RowIDs and their timestamps."""
    options = hc.Options(object_rows=64, row_group_rows=32, background=False)
    db = open_db(options=options)
    db.create_table("orders", COLUMNS, primary_key="id")
    for first in (0, 100):
        db.run(lambda txn, first=first: txn.insert("orders", [row(first + n) for n in range(100)]))
        db.flush()
    db.run(lambda txn: txn.delete("orders", where="id % 3 = 0"))
    db.flush()
    assert db.compact().groups
    wanted = db.sql("select * from orders order by id").to_pylist()
    # A session reads moments in its own zone: their number is the same in every one.
    frame = spark.read.parquet(*db.table("orders").files())
    assert frame.columns[: len(COLUMNS)] == list(COLUMNS)
    frame = frame.selectExpr(
        "id", "name", "amount", "flag", "small", "real", "data", "day",
        "unix_micros(moment) as moment", "_rowid", "_commit_ts",
    )  # fmt: skip
    found = [one.asDict() for one in frame.orderBy("id").collect()]
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        for name in ("id", "name", "amount", "flag", "small", "data", "day"):
            mine = bytes(one[name]) if name == "data" else one[name]
            assert mine == other[name]
        assert repr(one["real"]) == repr(other["real"])
        assert one["moment"] == round(other["moment"].timestamp() * 1_000_000)
        assert 0 < one["_commit_ts"] <= db.visible_ts
    assert len({one["_rowid"] for one in found}) == len(found)

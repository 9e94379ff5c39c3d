"""The walk of `hs.load` on the driver is measured, held to a limit, and told in the document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import halocline as hc
from halocline import spark as hs
from tests.walks.page import check_page
from tests.walks.tracer import Tracer

FILES_MAX = 53


def test_the_walk_of_a_load(tmp_path: Path, spark: Any) -> None:
    options = hc.Options(background=False)
    with hc.open(tmp_path / "shop", options=options) as db, Tracer().installed() as tracer:
        db.create_table("orders", {"id": int, "status": str}, primary_key="id")
        frame = spark.range(100).selectExpr("id", "'paid' as status")
        walk = tracer.walk(lambda: hs.load(frame, db, "orders", on_conflict="upsert"), rounds=2)
        seen = "\n  ".join(walk.files)
        assert len(walk.files) <= FILES_MAX, f"{len(walk.files)} files\n  {seen}"
        check_page("Spark load", walk)
        assert db.table("orders").count() == 100

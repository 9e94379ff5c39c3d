"""Index or scan: blocks are read for an index only out of what it has saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import halocline as hc


def test_an_index_answers_from_memory_and_reads_blocks_only_on_credit(tmp_path: Path) -> None:
    rows = 100_000
    scattered = (np.arange(rows) * 7919) % 50_000
    columns = {f"c{at}": np.arange(rows) + at for at in range(8)}
    table = pa.table({"id": np.arange(rows), "v": scattered, **columns})
    with hc.open(tmp_path / "db", options=hc.Options(background=False)) as db:
        db.create_table("t", table.schema, primary_key="id")
        db.run(lambda txn: txn.insert("t", table))
        db.flush()
        db.create_index("by_v", "t", ["v"], wait=True)

        def told(value: int) -> Any:
            (row,) = db.explain(f"select * from t where v = {value}").to_pylist()
            return row["index"]

        def found(value: int) -> int:
            return db.sql(f"select * from t where v = {value}").num_rows

        assert told(40) is None  # two blocks of ten columns: a scan is cheaper
        assert found(40) == 2
        with db.begin() as txn:
            assert txn.lookup("t", "by_v", 40).num_rows == 2
        assert told(40) == "by_v (1 objects)"  # they are in memory now
        assert found(40) == 2

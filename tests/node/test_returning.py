"""`returning=` in other processes: what comes back is what the owner has stored."""

from __future__ import annotations

import pyarrow as pa
import pytest

import halocline as hc

OPTIONS = hc.Options(background=False, bulk_rows=10, object_rows_min=100)
COLUMNS = {
    "id": int,
    "v": hc.Column(int, default=7),
    "at": hc.Column("timestamptz", default=hc.now),
}


@pytest.mark.parametrize("way", ["node", "far"])
def test_rows_come_back_as_they_were_stored(
    owner: hc.Database, way: str, request: pytest.FixtureRequest
) -> None:
    db: hc.Database = request.getfixturevalue(way)
    with db.begin() as txn:
        row = txn.insert("t", {"id": 1}, returning=True)
    with db.begin() as txn:
        rows = txn.insert("t", pa.table({"id": range(2, 202)}), returning=True)
        some = txn.upsert("t", [{"id": 1, "v": 8}, {"id": 300}], returning=["v", "id"])
    assert some.to_pylist() == [{"v": 8, "id": 1}, {"v": 7, "id": 300}]
    with owner.begin() as txn:
        assert txn.get("t", 1) == {**row, "v": 8}
        assert txn.scan("t", where="id between 2 and 201", order="id") == rows

"""Indexes in other processes: defined, used and listed there as at the owner."""

from __future__ import annotations

import pytest

import halocline as hc

OPTIONS = hc.Options(background=False, page_rows=16, bulk_rows=10, object_rows_min=100)
COLUMNS = {"id": int, "v": int}


@pytest.mark.parametrize("way", ["node", "far"])
def test_an_index_of_one_process_is_there_for_all(
    owner: hc.Database, way: str, request: pytest.FixtureRequest
) -> None:
    db: hc.Database = request.getfixturevalue(way)
    db.run(lambda txn: txn.insert("t", [{"id": n, "v": n // 4} for n in range(90)]))
    db.flush()
    db.create_index("by_v", "t", ["v"], wait=True)
    for one in (db, owner):
        (row,) = one.indexes().to_pylist()
        assert (row["name"], row["state"], row["covered"]) == ("by_v", "ready", 1)
        with one.begin() as txn:
            assert txn.lookup("t", "by_v", 7).column("id").to_pylist() == [28, 29, 30, 31]
            assert txn.scan("t", where="v = 7").num_rows == 4
        assert one.explain("select * from t where v = 7").column("indexed").to_pylist() == [1]
    with db.begin() as txn:
        txn.create_index("second", "t", ["id", "v"])
        assert txn.lookup("t", "second", (5, 1)).num_rows == 1
        txn.drop_index("by_v")
        with pytest.raises(hc.NotFoundError):
            txn.drop_index("by_v")
    assert owner.indexes().column("name").to_pylist() == ["second"]
    with db.begin() as txn:  # rows that this process writes into objects itself
        txn.insert("t", [{"id": n, "v": n // 4} for n in range(100, 400)])
    with owner.begin() as txn:
        assert txn.lookup("t", "second", (200, 50)).num_rows == 1
    db.drop_index("second")
    assert owner.indexes().num_rows == db.indexes().num_rows == 0
    assert owner.check() == []

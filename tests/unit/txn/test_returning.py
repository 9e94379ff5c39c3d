"""`returning=`: what an insert or an upsert has stored comes back, whatever way the rows take."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import halocline as hc
from halocline.options import Options

SMALL = Options(bulk_rows=10, object_rows_min=100, object_rows=64, page_rows=32)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[hc.Database]:
    with hc.open(tmp_path / "shop", options=SMALL) as db:
        columns = {
            "id": int,
            "status": hc.Column(str, default="new"),
            "at": hc.Column("timestamptz", default=hc.now),
            "note": str,
        }
        db.create_table("orders", columns, primary_key="id")
        db.create_table("lines", {"order": int, "sku": str, "n": int}, primary_key=["order", "sku"])
        db.create_table("events", {"kind": str, "uuid": hc.Column("uuid", default=hc.uuid)})
        yield db
        assert db.check() == []


def frame(start: int, stop: int, **more: Any) -> pa.Table:
    """Rows whose keys fall."""
    ids = list(range(stop - 1, start - 1, -1))
    return pa.table({"id": ids} | {name: [value] * len(ids) for name, value in more.items()})


def test_a_dict_gives_the_row_as_a_dict(db: hc.Database) -> None:
    with db.begin() as txn:
        row = txn.insert("orders", {"id": 1, "note": "hi"}, returning=True)
        assert row == txn.get("orders", 1)
        assert row["status"] == "new"
        assert row["at"] is not None
        assert txn.insert("orders", {"ID": 2}, returning=["Status", "id"]) == {
            "status": "new",
            "id": 2,
        }
        event = txn.insert("events", {"kind": "a"}, returning=["uuid"])
        assert len(event["uuid"]) == 36
    assert db.begin().get("orders", 1) == row


def test_a_list_gives_a_table_in_its_order(db: hc.Database) -> None:
    with db.begin() as txn:
        stored = txn.insert("orders", [{"id": 3}, {"id": 1, "status": None}], returning=True)
        assert stored.schema.names == ["id", "status", "at", "note"]
        assert stored.select(["id", "status"]).to_pylist() == [
            {"id": 3, "status": "new"},
            {"id": 1, "status": None},
        ]
        assert txn.insert("orders", [], returning=["id"]).num_rows == 0
        events = txn.insert("events", [{"kind": "a"}] * 3, returning=True)
        assert sorted(events["uuid"].to_pylist()) == sorted(txn.scan("events")["uuid"].to_pylist())


@pytest.mark.parametrize("rows", [5, 50, 500])
def test_frames_of_every_size_come_back_in_their_order(db: hc.Database, rows: int) -> None:
    with db.begin() as txn:
        stored = txn.insert("orders", frame(0, rows), returning=True)
        assert stored["id"].to_pylist() == list(range(rows - 1, -1, -1))
        assert stored.sort_by("id") == txn.scan("orders", order="id")
        reader = frame(1000, 1000 + rows).to_reader(max_chunksize=40)
        stored = txn.insert("orders", reader, returning=["id", "status"])
        assert stored["id"].to_pylist() == list(range(1000 + rows - 1, 999, -1))
        assert set(stored["status"].to_pylist()) == {"new"}


@pytest.mark.parametrize("rows", [4, 40, 400])
def test_an_upsert_gives_the_rows_as_they_are_after_it(db: hc.Database, rows: int) -> None:
    db.run(lambda txn: txn.insert("orders", frame(0, rows // 2, note="old")))
    with db.begin() as txn:
        txn.update("orders", 1, {"note": "mine"})
        given = frame(0, rows, status="paid")
        stored = txn.upsert("orders", given, returning=True)
        assert stored["id"].to_pylist() == given["id"].to_pylist()
        assert stored.sort_by("id") == txn.scan("orders", order="id")
        assert set(stored["note"].to_pylist()) == {"old", "mine", None}
        again = txn.upsert("orders", frame(0, rows, status="sent"), returning=["note", "id"])
        assert again.column_names == ["note", "id"]
        assert again["id"].to_pylist() == given["id"].to_pylist()
        row = txn.upsert("orders", {"id": 1, "status": None}, returning=True)
        assert row == txn.get("orders", 1)
        assert row["note"] == "mine"


@pytest.mark.parametrize("rows", [6, 60, 600])
def test_composite_keys(db: hc.Database, rows: int) -> None:
    numbers = [(n * 7) % rows if rows % 7 else n for n in range(rows)]
    given = pa.table({"order": [1] * rows, "sku": [f"s{n}" for n in numbers], "n": numbers})
    with db.begin() as txn:
        txn.insert("lines", given.slice(0, rows // 2))
        stored = txn.upsert("lines", given.drop_columns("n"), returning=True)
        assert stored["sku"].to_pylist() == given["sku"].to_pylist()
        assert stored["n"].to_pylist() == [*numbers[: rows // 2], *[None] * (rows - rows // 2)]


@pytest.mark.parametrize("rows", [6, 60, 600])
def test_what_is_left_out_does_not_come_back(db: hc.Database, rows: int) -> None:
    db.run(lambda txn: txn.insert("orders", frame(0, rows // 2, note="old")))
    with db.begin() as txn:
        stored = txn.insert("orders", frame(0, rows), on_conflict="ignore", returning=["id"])
        assert stored["id"].to_pylist() == list(range(rows - 1, rows // 2 - 1, -1))
        assert txn.insert("orders", {"id": 0}, on_conflict="ignore", returning=True) is None
        rejected: list[Any] = []
        given = [{"id": rows + 1}, {"id": "x"}, {"id": 0}]
        stored = txn.insert("orders", given, reject=rejected, returning=["id"])
        assert stored["id"].to_pylist() == [rows + 1]
        assert len(rejected) == 2
        stored = txn.insert("orders", frame(0, rows), on_conflict="upsert", returning=True)
        assert stored.num_rows == rows
        assert stored["note"].to_pylist().count("old") == rows // 2


def test_a_path_is_an_input_like_others(db: hc.Database, tmp_path: Path) -> None:
    (tmp_path / "o.csv").write_text("id,note\n2,b\n1,a\n")
    with db.begin() as txn:
        stored = txn.insert("orders", str(tmp_path / "o.csv"), returning=["id", "note"])
    assert stored.to_pylist() == [{"id": 2, "note": "b"}, {"id": 1, "note": "a"}]


def test_a_sum_that_is_shown_is_a_plain_write(db: hc.Database) -> None:
    db.run(lambda txn: txn.insert("lines", {"order": 1, "sku": "a", "n": 1}))
    txn = db.begin()
    txn.update("lines", (1, "a"), {"n": hc.add(1)})
    assert txn.upsert("lines", {"order": 1, "sku": "a"}, returning=["n"]) == {"n": 2}
    db.run(lambda other: other.update("lines", (1, "a"), {"n": hc.add(5)}))
    with pytest.raises(hc.ConflictError):
        txn.commit()


def test_a_serializable_transaction_has_read_what_it_was_given(db: hc.Database) -> None:
    db.run(lambda txn: txn.insert("orders", {"id": 1, "note": "a"}))
    txn = db.begin(isolation="serializable")
    assert txn.upsert("orders", {"id": 1, "status": "paid"}, returning=["note"]) == {"note": "a"}
    db.run(lambda other: other.update("orders", 1, {"note": "b"}))
    with pytest.raises(hc.ConflictError):
        txn.commit()


def test_a_known_token_returns_nothing(db: hc.Database) -> None:
    with db.begin(token="once") as txn:
        txn.insert("orders", {"id": 1})
    with db.begin(token="once") as txn:
        assert txn.insert("orders", {"id": 2}, returning=True) is None
        assert txn.upsert("orders", [{"id": 2}], returning=["id"]).num_rows == 0


@pytest.mark.parametrize(
    ("returning", "error"),
    [
        (None, "UsageError"),
        ("id", "UsageError"),
        (1, "UsageError"),
        ([], "UsageError"),
        (["id", "ID"], "UsageError"),
        ([1], "UsageError"),
        ({"id"}, "UsageError"),
        (["id", "no"], "SchemaError"),
    ],
)
def test_what_is_not_to_be_returned_is_said_first(
    db: hc.Database, returning: Any, error: str
) -> None:
    with db.begin() as txn:
        for rows in ({"id": 1}, [{"id": 1}], frame(0, 500)):
            for write in (txn.insert, txn.upsert):
                with pytest.raises(getattr(hc, error)):
                    write("orders", rows, returning=returning)
        assert txn.scan("orders").num_rows == 0
    assert txn.commit_ts is None


def test_a_failed_insert_returns_nothing_and_keeps_nothing(db: hc.Database) -> None:
    with db.begin() as txn:
        txn.insert("orders", {"id": 1})
        with pytest.raises(hc.DuplicateKeyError):
            txn.insert("orders", frame(0, 50), returning=True)
        assert txn.scan("orders").num_rows == 1

"""Identity columns: keys that are drawn, given out once, and move up with those that are given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import halocline as hc

SMALL = {"bulk_rows": 10, "object_rows_min": 100, "object_rows": 64, "page_rows": 32}
COLUMNS = {"id": hc.Column(int, identity=True), "n": int}


def opened(path: Path, **options: Any) -> hc.Database:
    return hc.open(path / "shop", options=hc.Options(background=False, **(SMALL | options)))


@pytest.fixture
def db(tmp_path: Path) -> Iterator[hc.Database]:
    with opened(tmp_path) as db:
        db.create_table("t", COLUMNS, primary_key="id")
        yield db
        if not db.core.closed:
            assert db.check() == []


def add(db: hc.Database, rows: Any, **more: Any) -> Any:
    """What was stored: the key, or keys."""
    with db.begin() as txn:
        stored = txn.insert("t", rows, returning=["id"], **more)
    return stored["id"] if isinstance(stored, dict) else stored["id"].to_pylist()


def keys(db: hc.Database) -> list[int]:
    with db.begin() as txn:
        return txn.scan("t", order="id")["id"].to_pylist()


def test_rows_without_a_key_get_the_next_one(db: hc.Database) -> None:
    assert [add(db, {"n": n}) for n in range(3)] == [1, 2, 3]
    assert add(db, [{"n": 1}, {}]) == [4, 5]
    assert add(db, pa.table({"n": [1, 2]})) == [6, 7]
    with db.begin() as txn:
        assert [txn.insert("t", {"n": n}, returning=["id"])["id"] for n in (1, 2)] == [8, 9]
        assert txn.insert("t", {"n": 0}) == 1
    assert keys(db) == list(range(1, 11))


@pytest.mark.parametrize("rows", [5, 50, 500])
def test_frames_of_every_size_get_keys_in_their_order(db: hc.Database, rows: int) -> None:
    frame = pa.table({"n": range(rows)})
    assert add(db, frame) == list(range(1, rows + 1))
    assert add(db, frame.to_reader(max_chunksize=40)) == list(range(rows + 1, 2 * rows + 1))
    assert add(db, frame, on_conflict="ignore")[0] == 2 * rows + 1
    assert add(db, frame, on_conflict="upsert")[0] == 3 * rows + 1
    assert add(db, ({"n": n} for n in range(rows))) == list(range(4 * rows + 1, 5 * rows + 1))
    with db.begin() as txn:
        found = txn.scan("t", order="id")
    assert found["n"].to_pylist() == list(range(rows)) * 5


def test_a_key_that_is_given_moves_the_sequence_up(db: hc.Database) -> None:
    assert add(db, {"id": 5, "n": 0}) == 5
    assert add(db, {"n": 0}) == 6
    assert add(db, pa.table({"id": [100, 50], "n": [0, 0]})) == [100, 50]
    assert add(db, {"n": 0}) == 101
    bulk = pa.table({"id": range(1000, 1500), "n": range(500)})
    assert add(db, bulk)[-1] == 1499
    assert add(db, {"n": 0}) == 1500
    assert add(db, [{"id": 3000}, {}, {"id": 2000}, {"ID": 2001}]) == [3000, 3001, 2000, 2001]
    assert add(db, {"id": -7}) == -7
    db.run(lambda txn: txn.update("t", 1500, {"id": 5000}))
    assert add(db, {}) == 5001


def test_it_moves_up_inside_the_transaction_too(db: hc.Database) -> None:
    with db.begin() as txn:
        txn.insert("t", {"id": 7})
        assert txn.insert("t", {}, returning=True)["id"] == 8
        txn.insert("t", pa.table({"id": range(20, 40)}))
        assert txn.insert("t", [{}], returning=True)["id"].to_pylist() == [40]
        txn.insert("t", pa.table({"id": range(1000, 1200)}))
        assert txn.insert("t", pa.table({"n": [0]}), returning=True)["id"].to_pylist() == [1200]


def test_what_was_not_committed_moves_nothing_far(db: hc.Database) -> None:
    add(db, {})
    txn = db.begin()
    txn.insert("t", {"id": 1 << 62})
    txn.rollback()
    with db.begin() as txn:
        with pytest.raises(hc.SchemaError):
            txn.insert("t", [{"id": 1 << 61}, {"n": "x"}])
        with pytest.raises(hc.SchemaError):
            txn.upsert("t", [{"id": 1 << 61}, {"n": "x"}])
    assert add(db, {}) < 100


def test_an_upsert_without_a_key_inserts(db: hc.Database) -> None:
    with db.begin() as txn:
        assert txn.upsert("t", {"n": 1}, returning=True) == {"id": 1, "n": 1}
        rows = [{"id": 1, "n": 9}, {"n": 2}, {"n": 3}]
        assert txn.upsert("t", rows, returning=True)["id"].to_pylist() == [1, 2, 3]
        for count in (5, 50, 500):
            stored = txn.upsert("t", pa.table({"n": range(count)}), returning=True)
            assert stored["n"].to_pylist() == list(range(count))
        assert txn.insert("t", {"n": 4}, on_conflict="upsert", returning=["n"]) == {"n": 4}
        bad: list[Any] = []
        stored = txn.insert("t", [{"n": 4}, {"n": "x"}], reject=bad, returning=True)
        assert (stored.num_rows, len(bad)) == (1, 1)
    assert keys(db) == list(range(1, 3 + 555 + 3))


def test_keys_are_never_drawn_again(db: hc.Database, tmp_path: Path) -> None:
    assert add(db, [{}, {}]) == [1, 2]
    db.run(lambda txn: txn.delete("t", 2))
    assert add(db, {}) == 3
    db.run(lambda txn: txn.truncate("t"))
    with db.begin() as txn:
        txn.truncate("t")
        assert txn.insert("t", {}, returning=True)["id"] == 4
    add(db, {"id": 900})
    db.run(lambda txn: txn.delete("t", 900))
    for step in range(4):
        db.close()
        db = opened(tmp_path)
        assert add(db, {}) == 901 + 2 * step
        if step > 1:
            db.flush("t")
            db.checkpoint()
        assert add(db, {}) == 902 + 2 * step
    db.close()


def test_a_table_of_the_same_transaction(db: hc.Database) -> None:
    with db.begin() as txn:
        txn.create_table("u", COLUMNS, "id")
        assert txn.insert("u", {}, returning=True)["id"] == 1
        assert txn.insert("u", [{}] * 20, returning=True)["id"].to_pylist()[-1] == 21
    with db.begin() as txn:
        assert txn.insert("u", {}, returning=True)["id"] == 22


def test_renaming_and_adding_columns_keeps_the_sequence(db: hc.Database) -> None:
    add(db, [{}] * 3)
    db.alter_table("t", rename={"id": "key"}, add={"m": int})
    with db.begin() as txn:
        assert txn.insert("t", {"m": 1}, returning=True) == {"key": 4, "n": None, "m": 1}


def test_the_last_key(db: hc.Database) -> None:
    highest = (1 << 63) - 1
    add(db, {"id": highest - 3})
    assert [add(db, {}) for _ in range(2)] == [highest - 2, highest - 1]
    bulk: list[Any] = [[{}, {}], pa.table({"n": range(200)})]
    for rows in bulk:
        with pytest.raises(hc.SchemaError, match=r"'id'.*used up"):
            add(db, rows)
    assert add(db, {}) == highest
    with pytest.raises(hc.SchemaError, match="used up"):
        add(db, {})
    assert add(db, {"id": 4}) == 4


def test_it_is_shown(db: hc.Database) -> None:
    assert "id: identity" in repr(db.table("t"))
    assert "identity" in db.table("t")._repr_html_()
    assert "identity=True" in repr(COLUMNS["id"])


@pytest.mark.parametrize(
    ("columns", "key"),
    [
        ({"id": hc.Column("int32", identity=True)}, "id"),
        ({"id": hc.Column(str, identity=True)}, "id"),
        ({"id": hc.Column("decimal(18,0)", identity=True)}, "id"),
        ({"id": hc.Column(int, identity=True)}, None),
        ({"id": hc.Column(int, identity=True), "a": int}, "a"),
        ({"id": hc.Column(int, identity=True), "a": int}, ["id", "a"]),
        ({"id": hc.Column(int, identity=True), "a": hc.Column(int, identity=True)}, "id"),
    ],
)
def test_what_cannot_have_an_identity(db: hc.Database, columns: Any, key: Any) -> None:
    with pytest.raises(hc.SchemaError, match="identity"):
        db.create_table("bad", columns, primary_key=key)
    assert db.tables() == ["t"]


def test_bad_calls(db: hc.Database) -> None:
    with pytest.raises(hc.SchemaError, match="identity or a default"):
        hc.Column(int, identity=True, default=1)
    with pytest.raises(hc.SchemaError, match="identity"):
        hc.Column(int, identity=1)
    with pytest.raises(hc.SchemaError, match=r"'x'.*identity"):
        db.alter_table("t", add={"x": hc.Column(int, identity=True)})
    for change in ({"set_default": {"id": 1}}, {"drop": ["id"]}, {"change": {"id": "int64"}}):
        with pytest.raises(hc.SchemaError, match="'id'"):
            db.alter_table("t", **change)  # type: ignore[arg-type]
    for rows in (
        {"id": None},
        [{"id": None}, {}],
        pa.table({"id": pa.array([None], pa.int64())}),
        {"id": "x"},
        {"id": 1 << 63},
        {"no": 1},
    ):
        for call in ("insert", "upsert"):
            with db.begin() as txn, pytest.raises(hc.SchemaError):
                getattr(txn, call)("t", rows)
    with db.begin() as txn, pytest.raises(hc.SchemaError, match="must be given"):
        txn.update("t", pa.table({"n": [1]}))
    assert keys(db) == []
    assert add(db, {}) == 1

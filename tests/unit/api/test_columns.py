"""Columns with properties: defaults on every way in, comments, and what is refused."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import halocline as hc
from halocline.errors import SchemaError
from halocline.schema.schema import Schema
from tests.unit.schema.pools import few

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
COLUMNS: dict[str, Any] = {
    "id": int,
    "status": hc.Column(str, nullable=False, default="new", comment="where it stands"),
    "amount": hc.Column("decimal(12,2)", default=Decimal("1.50")),
    "at": hc.Column("timestamptz", default=hc.now),
    "day": hc.Column("date", default=hc.now),
    "mark": hc.Column("uuid", default=hc.uuid),
    "tags": hc.Column(pa.list_(pa.string()), default=["a"]),
    "note": str,
}


def shop(path: Path, **options: Any) -> hc.Database:
    db = hc.open(path / "shop", options=hc.Options(**options))
    db.create_table("orders", COLUMNS, primary_key="id", comment="what people buy")
    return db


def is_filled(row: dict[str, Any], before: dt.datetime) -> bool:
    """Does a row have every default?"""
    now = dt.datetime.now(dt.UTC)
    return (
        row["status"] == "new"
        and row["amount"] == Decimal("1.50")
        and before <= row["at"] <= now
        and before.date() <= row["day"] <= now.date()
        and UUID.fullmatch(row["mark"]) is not None
        and row["tags"] == ["a"]
        and row["note"] is None
    )


@pytest.mark.parametrize("way", ["dict", "dicts", "arrow", "part", "objects", "stream"])
@pytest.mark.parametrize("verb", ["insert", "upsert", "ignore"])
def test_absent_columns_get_their_default(tmp_path: Path, way: str, verb: str) -> None:
    before = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=1)
    ids = list(range(1 if way == "dict" else 20))
    rows: Any = [{"id": n} for n in ids]
    if way == "dict":
        rows = rows[0]
    elif way != "dicts":
        rows = pa.table({"id": ids})
    if way == "stream":
        rows = rows.to_reader()
    sizes = {"part": {"bulk_rows": 4}, "objects": {"bulk_rows": 4, "object_rows_min": 8}}
    sizes["stream"] = sizes["objects"]
    with shop(tmp_path, **sizes.get(way, {})) as db:
        with db.begin() as txn:
            if verb == "ignore":
                txn.insert("orders", rows, on_conflict="ignore")
            else:
                getattr(txn, verb)("orders", rows)
        found = db.table("orders").to_arrow().to_pylist()
        assert sorted(row["id"] for row in found) == ids
        assert all(is_filled(row, before) for row in found)
        assert len({row["mark"] for row in found}) == len(ids)
        assert not db.check()


@pytest.mark.parametrize("way", ["dict", "arrow"])
def test_an_explicit_none_writes_null(tmp_path: Path, way: str) -> None:
    row = {"id": 1, "amount": None, "at": None, "tags": None}
    rows = row if way == "dict" else pa.Table.from_pylist([row])
    with shop(tmp_path) as db:
        db.run(lambda txn: txn.insert("orders", rows))
        (found,) = db.table("orders").to_arrow().to_pylist()
        assert (found["amount"], found["at"], found["tags"]) == (None, None, None)
        with pytest.raises(SchemaError, match=r"'status'.*must not be null"):
            db.run(lambda txn: txn.insert("orders", {"id": 2, "status": None}))


def test_an_upsert_of_a_row_that_is_there_keeps_its_values(tmp_path: Path) -> None:
    with shop(tmp_path) as db:
        db.run(lambda txn: txn.insert("orders", {"id": 1, "status": "paid", "amount": 7}))
        for rows in ({"id": 1, "note": "x"}, pa.table({"id": [1], "note": ["x"]})):
            db.run(lambda txn, rows=rows: txn.upsert("orders", rows))
            with db.begin() as txn:
                found = txn.get("orders", 1)
            assert found is not None
            assert (found["status"], found["amount"], found["note"]) == ("paid", 7, "x")


def test_a_key_may_come_from_a_default(tmp_path: Path) -> None:
    with hc.open(tmp_path / "shop") as db:
        key = hc.Column("uuid", default=hc.uuid)
        db.create_table("t", {"id": key, "n": int}, primary_key="id")
        with db.begin() as txn:
            txn.insert("t", {"n": 1})
            txn.insert("t", [{"n": 2}, {"n": 3}])
            txn.insert("t", pa.table({"n": [4, 5]}))
        assert len(set(db.table("t").to_arrow()["id"].to_pylist())) == 5
        with pytest.raises(SchemaError, match="part of the primary key"):
            db.run(lambda txn: txn.upsert("t", {"n": 1}))


def test_defaults_outlive_log_checkpoint_and_another_process(tmp_path: Path) -> None:
    before = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=1)
    with shop(tmp_path) as db:
        with hc.open(tmp_path / "shop") as other:
            other.run(lambda txn: txn.insert("orders", {"id": 1}))
            other.create_table("made", {"id": int, "n": hc.Column(int, default=7)}, "id")
            other.run(lambda txn: txn.insert("made", {"id": 1}))
        schema = db.core.catalog.tables(db.core.newest_ts())[1].schema
    for checkpoint in (True, False):
        with hc.open(tmp_path / "shop") as db:
            again = db.core.catalog.tables(db.core.newest_ts())[1].schema
            assert again == schema
            assert again.comment == "what people buy"
            assert again.columns[1].comment == "where it stands"
            key = 2 + checkpoint
            db.run(lambda txn, key=key: txn.insert("orders", {"id": key}))
            assert db.sql("select n from made").to_pylist() == [{"n": 7}]
            assert all(is_filled(row, before) for row in db.table("orders").to_arrow().to_pylist())
            if checkpoint:
                db.checkpoint()


def test_a_table_shows_its_defaults_and_comments(tmp_path: Path) -> None:
    with shop(tmp_path) as db:
        shown = repr(db.table("orders"))
        assert "status: default 'new', where it stands" in shown
        assert "at: default hc.now" in shown
        assert "what people buy" in shown


def test_a_nested_default_is_not_shared(tmp_path: Path) -> None:
    with shop(tmp_path) as db, db.begin() as txn:
        txn.insert("orders", {"id": 1})
        row = txn.get("orders", 1)
        assert row is not None
        row["tags"].append("b")
        txn.insert("orders", {"id": 2})
        assert txn.get_many("orders", [1, 2])["tags"].to_pylist() == [["a"], ["a"]]


BAD: list[dict[str, Any]] = [
    {"type": int, "default": "x"},
    {"type": int, "default": 1.5},
    {"type": int, "default": True},
    {"type": "int8", "default": 300},
    {"type": bool, "default": 1},
    {"type": str, "default": 5},
    {"type": "decimal(4,2)", "default": Decimal("1.234")},
    {"type": "decimal(4,2)", "default": 1000},
    {"type": "timestamptz", "default": dt.datetime(2020, 1, 1)},
    {"type": "timestamp", "default": dt.datetime(2020, 1, 1, tzinfo=dt.UTC)},
    {"type": "date", "default": dt.datetime(2020, 1, 1, tzinfo=dt.UTC)},
    {"type": "uuid", "default": "no uuid"},
    {"type": "enum('a', 'b')", "default": "c"},
    {"type": "enum('a', 'b')", "default": hc.uuid},
    {"type": "json", "default": hc.uuid},
    {"type": int, "default": hc.now},
    {"type": int, "default": hc.uuid},
    {"type": "time", "default": hc.now},
    {"type": str, "default": hc.now},
    {"type": "timestamp", "default": hc.uuid},
    {"type": str, "default": str},
    {"type": int, "default": lambda: 1},
    {"type": int, "default": hc.add(1)},
    {"type": int, "default": hc.expr("1")},
    {"type": int, "nullable": False, "default": None},
    {"type": int, "nullable": 1},
    {"type": int, "nullable": "no"},
    {"type": int, "identity": True},
    {"type": int, "identity": "yes"},
    {"type": int, "comment": 5},
    {"type": int, "comment": None},
    {"type": int, "comment": "x" * 10_001},
    {"type": int, "comment": "\ud800"},
    {"type": "what"},
    {"type": hc.Column},
]


@pytest.mark.parametrize("bad", BAD, ids=range(len(BAD)))
def test_a_column_that_makes_no_sense_is_refused(tmp_path: Path, bad: dict[str, Any]) -> None:
    with hc.open(tmp_path / "shop") as db:
        with pytest.raises(SchemaError):
            db.create_table("t", {"id": int, "c": hc.Column(**bad)}, primary_key="id")
        assert db.tables() == []


def test_a_column_of_a_column_and_a_comment_that_is_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="takes a type"):
        hc.Column(hc.Column(int))
    with hc.open(tmp_path / "shop") as db, pytest.raises(SchemaError, match="a comment is a text"):
        db.create_table("t", {"id": int}, comment=5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "properties",
    [
        {"function": "exec"},
        {"function": "uuid"},
        {"function": "now", "constant": b"\x91\x91\x01"},
        {"constant": b""},
        {"constant": b"\x91\x91\xa1x"},
        {"constant": b"\x92\x91\x01\x91\x01"},
        {"comment": 5},
        {"more": 1},
    ],
    ids=str,
)
def test_stored_properties_that_are_spoilt_are_a_schema_error(properties: dict[str, Any]) -> None:
    wire = Schema.define({"a": int}, "a").to_wire()
    wire["columns"] = [[1, "a", "int64", False, properties]]
    with pytest.raises(SchemaError):
        Schema.from_wire(wire)


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.none() | st.integers(0, 9)), max_size=8))
@few()
def test_rows_and_tables_agree_with_a_plain_model(rows: list[dict[str, int | None]]) -> None:
    """A dict of defaults, overlaid by what a row names, is all there is to it."""
    schema = Schema.define({"a": int, "b": hc.Column(int, default=1), "c": hc.Column(int)})
    model = [{"a": None, "b": 1, "c": None} | row for row in rows]
    assert [schema.as_dict(schema.row(row)) for row in rows] == model
    assert schema.table(rows).to_pylist() == model
    for row, whole in zip(rows, model, strict=True):
        if row:
            columns = {name: pa.array([value], pa.int64()) for name, value in row.items()}
            assert schema.table(pa.table(columns)).to_pylist() == [whole]


def test_the_page_about_schemas_is_true(tmp_path: Path) -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "schema.md"
    with hc.open(tmp_path / "shop") as db:
        for code in re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
            exec(code, {"hc": hc, "db": db, "dt": dt})
        # The page goes on to turn the status, "new" by default, into a number called state.
        found = db.sql("select state, amount from orders order by amount nulls last").to_pylist()
        assert [row["amount"] for row in found] == [1, 2, 12, 13, None]
        assert {row["state"] for row in found} == {0}


def test_uuids_are_made_at_once() -> None:
    made = Schema.define(COLUMNS, "id").defaults["mark"]
    many = made.many(3000).to_pylist()
    assert all(UUID.fullmatch(one) for one in [*many, made.one()])
    assert len(set(many)) == 3000
    assert made.many(0).to_pylist() == []


@pytest.mark.parametrize(
    "codec",
    ["gzip", "LZ4", "", 1, True, ["zstd"], {"id": "gzip"}, {"id": None}, {"no": "zstd"},
     {1: "zstd"}, {"id": "zstd", "ID": "zstd"}],
)  # fmt: skip
def test_a_codec_that_is_none_is_refused(tmp_path: Path, codec: Any) -> None:
    with hc.open(tmp_path / "shop") as db:
        with pytest.raises(SchemaError):
            db.create_table("t", {"id": int}, primary_key="id", codec=codec)
        with db.begin() as txn:
            with pytest.raises(SchemaError):
                txn.create_table("t", {"id": int}, "id", codec=codec)
            with pytest.raises(hc.UsageError, match="what"):
                txn.create_table("t", {"id": int}, "id", what=codec)  # type: ignore[call-arg]
        assert db.tables() == []


def test_a_table_shows_its_codecs(tmp_path: Path) -> None:
    for step in range(2):
        with hc.open(tmp_path / "shop") as db:
            if not step:
                db.create_table("t", COLUMNS, "id", codec="lz4", comment="fast")
                db.create_table("u", COLUMNS, "id", codec={"note": "none"})
                db.checkpoint()
            assert "codec lz4; fast" in repr(db.table("t"))
            assert "note: codec none" in repr(db.table("u"))


def test_a_table_made_from_a_table_takes_its_columns_whole(tmp_path: Path) -> None:
    with hc.open(tmp_path / "db") as db:
        columns = {
            "id": hc.Column(int, identity=True),
            "mark": hc.Column("uuid", default=hc.uuid),
            "kind": hc.Column("enum('a', 'b')", comment="which"),
            "amount": hc.Column("decimal(5,2) not null", default=1),
            "facts": "json",
        }
        db.create_table("t", columns, primary_key="id", checks={"positive": "amount > 0"})
        db.alter_table("t", add={"late": hc.Column(int, default=3)}, rename={"amount": "sum"})
        with pytest.raises(SchemaError, match="identity"):
            db.create_table("keyless", db.table("t"))
        db.create_table("copy", db.table("t"), primary_key="id")
        db.create_table("free", db.table("t"), primary_key="id", checks={})
        first, second = (db.table(name).__halocline_schema__() for name in ("t", "copy"))
        assert [replace(c, id=0, since=0, absent=None) for c in first.columns] == [
            replace(c, id=0) for c in second.columns
        ]
        assert [c.since for c in second.columns] == [0] * 6
        db.run(lambda txn: txn.insert("copy", {"kind": "a"}))
        (row,) = db.table("copy").to_arrow().to_pylist()
        assert UUID.fullmatch(row["mark"])
        assert (row["id"], row["sum"], row["late"]) == (1, Decimal("1.00"), 3)
        for bad in ({"kind": "z"}, {"facts": "{"}, {"sum": -1}):
            with pytest.raises(SchemaError):
                db.run(lambda txn, bad=bad: txn.insert("copy", bad))
        db.run(lambda txn: txn.insert("free", {"sum": -1}))
        assert db.check() == []

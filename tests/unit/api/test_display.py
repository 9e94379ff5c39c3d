"""What people see: databases, tables and reports in a terminal and in a notebook, and as frames."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import halocline as hc
from halocline import show

OPTIONS = hc.Options(background=False, object_rows_min=100, bulk_rows=8)
NASTY = "<script>alert('x')</script>\n\x1b[31m & \"q\""


@pytest.fixture
def db(tmp_path: Path) -> Any:
    with hc.open(tmp_path / "shop", options=OPTIONS) as db:
        yield db
        assert not db.check()


class _Tags(HTMLParser):
    """The tags of a text, which must be balanced."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.add(tag)
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def _html(thing: Any) -> str:
    text = thing._repr_html_()
    tags = _Tags()
    tags.feed(text)
    assert not tags.open
    assert tags.seen <= {
        "div",
        "strong",
        "small",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "br",
    }
    return str(text)


def _table(db: Any, rows: int = 3, key: str | None = "id") -> Any:
    table = db.create_table("orders", {"id": int, "note": str}, primary_key=key)
    data = pa.table(
        {"id": pa.array(range(rows), pa.int64()), "note": [f"n{n}" for n in range(rows)]}
    )
    db.run(lambda txn: txn.insert("orders", data))
    return table


def test_a_database_shows_its_tables_with_rows_key_and_columns(db: Any) -> None:
    _table(db)
    lines = repr(db).splitlines()
    assert lines[0] == f"Database {db.path}: owner, 1 table"
    assert lines[1].split() == ["table", "rows", "key", "columns"]
    assert lines[2].split() == ["orders", "3", "id", "id,", "note"]
    assert "orders" in _html(db)


def test_an_empty_database_is_one_line(db: Any) -> None:
    assert repr(db) == f"Database {db.path}: owner, 0 tables"
    assert "0 tables" in _html(db)


def test_of_many_tables_the_first_are_shown(db: Any) -> None:
    with db.begin() as txn:
        for n in range(35):
            txn.create_table(f"t{n:02}", {"id": int}, "id")
    assert repr(db).splitlines()[-1] == "and 5 more: db.tables() names them all"


def test_a_table_shows_types_count_and_first_rows(db: Any) -> None:
    table = _table(db, rows=50)
    lines = repr(table).splitlines()
    assert lines[0] == f"Table 'orders' of {db.path}: 50 rows, key (id)"
    assert [line.split() for line in lines[1:5]] == [
        ["id", "note"],
        ["int64", "string"],
        ["0", "n0"],
        ["1", "n1"],
    ]
    assert len(lines) == 8
    assert "<th" in _html(table)


@pytest.mark.parametrize("key", ["id", None])
def test_rows_in_objects_are_shown_and_counted(db: Any, key: str | None) -> None:
    table = _table(db, rows=300, key=key)
    db.flush()
    assert ": 300 rows" in repr(table)
    assert repr(table).splitlines()[3].split() == ["0", "n0"]
    db.run(lambda txn: txn.delete("orders", where="id < 2"))
    assert ": about 298 rows" in repr(table)
    assert repr(table).splitlines()[3].split() == ["2", "n2"]
    db.flush()
    assert ": about 298 rows" in repr(table)
    assert repr(table).splitlines()[3].split() == ["2", "n2"]


def test_a_count_in_memory_is_exact(db: Any) -> None:
    table = _table(db)
    db.run(lambda txn: txn.delete("orders", 1))
    db.run(lambda txn: txn.update("orders", 2, {"note": "x"}))
    assert ": 2 rows" in repr(table)


def test_looking_reads_a_few_rows_of_a_large_table(db: Any, monkeypatch: Any) -> None:
    table = _table(db, rows=20_000)
    db.flush()
    read = []
    reader = type(db.core.engine.shelf.reader)
    blocks = reader.blocks
    monkeypatch.setattr(
        reader, "blocks", lambda self, *a, **k: read.append(1) or blocks(self, *a, **k)
    )
    assert ": 20,000 rows" in repr(table)
    assert ": owner, 1 table" in repr(db)
    assert len(read) <= 2


def test_a_wide_table_fits_into_a_line(db: Any) -> None:
    table = db.create_table("wide", {f"column_{n:03}": int for n in range(200)}, primary_key=None)
    text = repr(table)
    assert max(map(len, text.splitlines()[:-1])) <= 110
    assert re.search(r"and 1\d\d more columns: column_0", text)
    assert _html(table).count("<th ") == 60


def test_what_strangers_wrote_is_escaped_and_cut(db: Any) -> None:
    table = db.create_table("t", {"id": int, "text": str, "raw": bytes}, primary_key="id")
    row = {"id": 1, "text": NASTY + "x" * 10_000, "raw": b"\x00" * 10_000}
    db.run(lambda txn: txn.insert("t", row))
    assert "<script>" not in _html(table)
    assert "&lt;script&gt;" in _html(table)
    assert "\x1b" not in repr(table)
    assert len(repr(table)) < 600
    path = f"{db.path}"
    assert "<b>" not in show.html_table("<b>", [["<b>"]], [["<b>"]], "<b>" + path)


@pytest.mark.parametrize("value", [None, "", "a\nb", b"\xff" * 99, 1.5, [1, None], {"a": "<"}])
def test_a_cell_is_one_short_line(value: Any) -> None:
    text = show.cell_text(value)
    assert len(text) <= show.CELL_WIDTH
    assert "\n" not in text


def test_nested_values_and_nulls_are_shown(db: Any) -> None:
    types = {"id": int, "tags": "string[]", "at": "timestamptz", "d": "decimal(9,2)"}
    table = db.create_table("t", types, primary_key="id")
    db.run(lambda txn: txn.insert("t", {"id": 1, "tags": ["a", None]}))
    assert "['a', None]" in repr(table)


def test_a_closed_database_can_still_be_looked_at(tmp_path: Path) -> None:
    db = hc.open(tmp_path / "shop")
    table = _table(db)
    db.close()
    assert repr(db) == f"Database {db.path} (closed)"
    assert repr(table) == f"Table 'orders' of {db.path} (closed)"
    assert "(closed)" in _html(db)
    assert "(closed)" in _html(table)


def test_a_table_that_was_dropped_is_shown_as_such(db: Any) -> None:
    table = _table(db)
    db.drop_table("orders")
    assert repr(table).startswith(f"Table 'orders' of {db.path} (")
    assert "\n" not in repr(table)
    assert "orders" in _html(table)


def test_looking_never_fails(db: Any, monkeypatch: Any) -> None:
    table = _table(db)
    monkeypatch.setattr(type(db), "_begin_reading", lambda self: 1 // 0)
    assert "by zero" in repr(db)
    assert "by zero" in repr(table)


def test_another_process_and_a_reader_look_the_same(db: Any) -> None:
    _table(db)
    with hc.open(db.path, read_only=True) as reader:
        assert repr(reader).splitlines()[1:] == repr(db).splitlines()[1:]
        assert "reader, 1 table" in repr(reader)
        shown = repr(reader.table("orders"))
        assert shown == repr(db.table("orders"))


def test_reports_and_health_are_readable_in_both_forms(db: Any) -> None:
    _table(db, rows=300)
    for report in (db.flush(), db.compact(), db.checkpoint(), db.gc(), db.health()):
        assert "object at 0x" not in repr(report)
        html = _html(report)
        assert "object at 0x" not in html
        assert "<tr>" in html
    assert repr(db.gc()) == str(db.gc())
    assert "orders" in _html(db.health())
    assert "kept" in _html(db.gc())


def test_a_table_becomes_a_frame_of_any_library(db: Any) -> None:
    table = _table(db)
    expected = [{"id": n, "note": f"n{n}"} for n in range(3)]
    assert list(table) == expected
    assert pd.DataFrame(table).to_dict("records") == expected
    assert table.to_pandas().to_dict("records") == expected
    assert pl.DataFrame(table).to_dicts() == expected
    assert duckdb.from_arrow(table).fetchall() == [(n, f"n{n}") for n in range(3)]
    assert pa.table(table).to_pylist() == expected


def test_rows_come_one_by_one_from_one_snapshot(db: Any) -> None:
    table = _table(db, rows=1000)
    db.flush()
    rows = iter(table)
    assert next(rows)["id"] == 0
    db.run(lambda txn: txn.truncate("orders"))
    assert sum(1 for _ in rows) == 999
    assert list(table) == []


def test_the_past_becomes_a_frame(db: Any) -> None:
    table = _table(db)
    before = db.visible_ts
    db.run(lambda txn: txn.truncate("orders"))
    assert len(table.to_pandas(at=before)) == 3
    assert list(table.to_pandas().columns) == ["id", "note"]

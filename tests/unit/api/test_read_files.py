"""Files as input: Parquet, CSV and JSON by their paths, datasets and lazy frames."""

from __future__ import annotations

import datetime as dt
import gzip
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import halocline as hc
from halocline.errors import SchemaError, UsageError
from halocline.schema import files

CSV = """id,name,zip,price,day
1,ä,01234,1.50,2026-01-01
2,,00001,2.25,2026-01-02
3,"x, y",99999,10,2026-01-03
"""
ROWS = [
    {"id": 1, "name": "ä", "zip": "01234", "price": 1.5, "day": dt.date(2026, 1, 1)},
    {"id": 2, "name": None, "zip": "00001", "price": 2.25, "day": dt.date(2026, 1, 2)},
    {"id": 3, "name": "x, y", "zip": "99999", "price": 10.0, "day": dt.date(2026, 1, 3)},
]


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    options = hc.Options(background=False, object_rows_min=1000, bulk_rows=8, object_rows=1000)
    with hc.open("db", options=options) as db:
        yield db
        assert not db.check()


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    path = tmp_path / "orders.csv"
    path.write_text(CSV)
    return path


def _insert(db: Any, name: str, data: Any) -> Any:
    return db.run(lambda txn: txn.insert(name, data))


def _load(db: Any, data: Any, key: str | None = "id") -> list[dict[str, Any]]:
    """A table made from the data, and filled with it."""
    table = db.create_table("t", data, primary_key=key)
    assert table.count() == 0
    count = _insert(db, "t", data)
    rows = table.to_arrow().to_pylist()
    assert count == len(rows)
    return rows


@pytest.mark.parametrize("make", [str, Path, hc.read, lambda p: hc.read(str(p))], ids=range(4))
def test_a_csv_file_is_a_definition_and_rows(db: Any, orders: Path, make: Any) -> None:
    assert _load(db, make(orders)) == ROWS


def _as(kind: str, folder: Path) -> Any:
    table = pa.Table.from_pylist(ROWS)
    file = folder / f"rows.{kind}"
    if kind in ("ndjson", "json"):
        pl.from_arrow(table).write_ndjson(file)
    elif kind == "csv.gz":
        file.write_bytes(gzip.compress(CSV.encode()))
    elif kind == "tsv":
        file.write_text(CSV.replace(", ", "; ").replace(",", "\t"))
    else:
        pq.write_table(table, folder / "rows.parquet")
    lazy = {
        "dataset": ds.dataset,
        "lazy": pl.scan_parquet,
        "scanner": lambda p: ds.dataset(p).scanner(),
    }
    return lazy[kind](folder / "rows.parquet") if kind in lazy else file


@pytest.mark.parametrize("kind", ["parquet", "ndjson", "json", "csv.gz", "dataset", "lazy"])
def test_every_kind_of_file_gives_the_same_rows(db: Any, tmp_path: Path, kind: str) -> None:
    assert _load(db, _as(kind, tmp_path)) == ROWS


def test_a_scanner_is_rows(db: Any, tmp_path: Path) -> None:
    db.create_table("t", pa.Table.from_pylist(ROWS), primary_key="id")
    assert _insert(db, "t", _as("scanner", tmp_path)) == 3


def test_tabs_are_found(db: Any, tmp_path: Path) -> None:
    assert [row["zip"] for row in _load(db, _as("tsv", tmp_path))] == ["01234", "00001", "99999"]


@pytest.mark.parametrize("write", ["insert", "upsert"])
def test_a_file_of_many_rows_becomes_objects(db: Any, tmp_path: Path, write: str) -> None:
    table = pa.table({"id": pa.array(range(5000), pa.int64()), "x": ["a"] * 5000})
    pq.write_table(table, tmp_path / "many.parquet", row_group_size=700)
    db.create_table("t", "many.parquet", primary_key="id")
    assert db.run(lambda txn: getattr(txn, write)("t", "many.parquet")) == 5000
    assert db.table("t").to_arrow().sort_by("id").equals(table.cast(db.table("t").schema))
    assert db.table("t").files()


def test_a_folder_and_a_pattern_are_all_their_files(db: Any, tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    for part in range(3):
        (folder / f"part-{part}.csv").write_text(f"id,x\n{part},{part}\n")
    (folder / "_SUCCESS").touch()
    (folder / ".part.crc").touch()
    assert [row["id"] for row in _load(db, folder)] == [0, 1, 2]
    db.drop_table("t")
    assert [row["id"] for row in _load(db, "parts/part-[12].csv")] == [1, 2]


def test_parquet_files_of_other_columns_are_refused(db: Any, tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"b": [1]}), tmp_path / "2.parquet")
    db.create_table("t", "1.parquet")
    with pytest.raises(hc.SchemaError, match=r"2\.parquet has other columns than .*1\.parquet"):
        _insert(db, "t", "*.parquet")
    assert db.table("t").count() == 0


def test_the_index_of_pandas_is_no_column(db: Any, tmp_path: Path) -> None:
    frame = pd.DataFrame({"id": [1, 2]}, index=["a", "b"])
    frame.to_parquet(tmp_path / "frame.parquet")
    assert _load(db, "frame.parquet") == [{"id": 1}, {"id": 2}]


def test_a_required_field_of_parquet_stays_required(db: Any, tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("x", pa.string(), nullable=False)])
    pq.write_table(pa.table({"id": [1], "x": ["a"]}, schema=schema), tmp_path / "f.parquet")
    table = db.create_table("t", "f.parquet", primary_key="id")
    assert not table.schema.field("x").nullable


def test_the_types_of_the_table_count_where_nothing_is_lost(db: Any, orders: Path) -> None:
    types = {"id": str, "name": str, "zip": int, "price": "decimal(9,2)", "day": "timestamp"}
    db.create_table("t", types, primary_key="id")
    assert _insert(db, "t", orders) == 3
    row = db.begin().get("t", "1")
    assert row["zip"] == 1234
    assert row["price"] == Decimal("1.50")
    assert row["day"] == dt.datetime(2026, 1, 1)


def test_long_decimals_keep_every_digit(db: Any, tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("id,d\n1,12345678901234567890.01\n")
    (tmp_path / "d.json").write_text('{"id": 2, "d": "12345678901234567890.01"}\n')
    db.create_table("t", {"id": int, "d": "decimal(30,2)"}, primary_key="id")
    _insert(db, "t", "d.csv")
    _insert(db, "t", "d.json")
    found = db.table("t").to_arrow().column("d").to_pylist()
    assert found == [Decimal("12345678901234567890.01")] * 2


@pytest.mark.parametrize(
    ("type", "text"),
    [
        ("int64", "1.7"),
        ("decimal(9,2)", "1.505"),
        ("date", "2026-01-01 10:00:00"),
        ("int8", "300"),
        ("int64", "abc"),
        ("bool", "maybe"),
        ("timestamp", "soon"),
    ],
)
def test_nothing_is_rounded_on_the_way(db: Any, tmp_path: Path, type: str, text: str) -> None:
    (tmp_path / "f.csv").write_text(f"id,x\n1,\n2,\n3,{text}\n")
    db.create_table("t", {"id": int, "x": type}, primary_key="id")
    for data in ("f.csv", hc.read("f.csv", types={"x": type})):
        with pytest.raises(hc.SchemaError) as error:
            _insert(db, "t", data)
        assert error.value.column == "x"
        text = str(error.value)
        assert "row 2" in text or "line 4" in text or "values cannot be stored" in text
    assert db.table("t").count() == 0


def test_types_are_named_like_in_a_definition(db: Any, orders: Path) -> None:
    rows = hc.read(orders, types={"id": str, "price": "decimal(9,2)"})
    assert rows.schema.field("id").type == pa.string()
    assert rows.schema.field("price").type == pa.decimal128(9, 2)
    assert _load(db, rows)[0]["price"] == Decimal("1.50")


def test_options_are_those_of_duckdb(db: Any, tmp_path: Path) -> None:
    (tmp_path / "odd.data").write_text("1;-\n2;x\n")
    rows = hc.read(
        "odd.data", format="csv", delimiter=";", na_values="-", names=["id", "x"], header=False
    )
    assert _load(db, rows) == [{"id": 1, "x": None}, {"id": 2, "x": "x"}]


def test_a_file_becomes_a_frame_and_can_be_read_again(orders: Path) -> None:
    rows = hc.read(orders)
    assert pa.table(rows).to_pylist() == ROWS
    assert pl.DataFrame(rows).to_dicts() == ROWS
    assert "orders.csv" in repr(rows)


@pytest.mark.parametrize("ending", ["30000,abc", "30000,1,2,3"])
def test_a_bad_line_is_named_and_nothing_is_kept(db: Any, tmp_path: Path, ending: str) -> None:
    lines = [f"{n},{n}" for n in range(30_000)]
    (tmp_path / "bad.csv").write_text("\n".join(["id,n", *lines, ending]))
    db.create_table("t", {"id": int, "n": int}, primary_key="id")
    with db.begin() as txn:
        with pytest.raises(hc.SchemaError, match=r"bad\.csv, line 30002") as error:
            txn.insert("t", "bad.csv")
        assert "Possible" not in str(error.value)
        txn.insert("t", {"id": 1, "n": 1})
    assert db.table("t").count() == 1


def test_broken_files_are_schema_errors_that_name_the_file(db: Any, tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text('{"id": 1}\n{"id": \n')
    (tmp_path / "b.parquet").write_bytes(b"PAR1 this is none PAR1")
    (tmp_path / "half.parquet").write_bytes(b"")
    for name in ("b.json", "b.parquet", "half.parquet"):
        with pytest.raises(hc.SchemaError, match=name):
            _load(db, name)


def test_bad_paths_and_formats_are_told(db: Any, tmp_path: Path) -> None:
    with pytest.raises(hc.NotFoundError, match=r"file 'none\.csv' does not exist"):
        hc.read("none.csv")
    with pytest.raises(hc.NotFoundError):
        _load(db, "none*.csv")
    with pytest.raises(hc.NotFoundError):
        hc.read("https://127.0.0.1:1/x.csv")
    (tmp_path / "x.docx").touch()
    with pytest.raises(hc.UsageError, match="does not end in"):
        hc.read("x.docx")
    with pytest.raises(hc.UsageError, match="format="):
        hc.read("x.docx", format="docx")
    (tmp_path / "x.csv").write_text("id\n1\n")
    with pytest.raises(hc.UsageError, match="colour"):
        _load(db, hc.read("x.csv", colour="red"))
    with pytest.raises(hc.UsageError, match="types="):
        hc.read("x.csv", types={"id": "int[]"})
    pq.write_table(pa.table({"id": [1]}), tmp_path / "x.parquet")
    with pytest.raises(hc.UsageError, match="Parquet"):
        hc.read("x.parquet", types={"id": int})
    with pytest.raises(hc.SchemaError):
        hc.read("x.csv", types={"id": "integral"})


def test_a_file_whose_columns_the_table_lacks_is_refused(db: Any, orders: Path) -> None:
    db.create_table("t", {"id": int}, primary_key="id")
    with pytest.raises(hc.SchemaError, match="name"):
        _insert(db, "t", orders)


def test_a_text_that_names_no_file_is_the_mistake_it_was(db: Any) -> None:
    db.create_table("t", {"id": int}, primary_key="id")
    with pytest.raises(hc.SchemaError, match="cannot be read as a table"):
        _insert(db, "t", "id")
    with pytest.raises(hc.SchemaError, match="a definition is a dict"):
        db.create_table("u", "id int")


def test_a_known_token_reads_no_file(db: Any, orders: Path) -> None:
    db.create_table("t", orders, primary_key="id")
    for _ in range(2):
        with db.begin(token="once") as txn:
            txn.insert("t", str(orders))
    assert db.table("t").count() == 3


def test_texts_are_parsed_and_the_bad_ones_marked() -> None:
    found, bad = files.parse(pa.array(["1", None, "x", " 7 ", ""]), pa.int64())
    assert found.to_pylist() == [1, None, None, 7, None]
    assert bad.to_pylist() == [False, False, True, False, True]


@pytest.mark.parametrize(
    ("given", "used"),
    [("latin-1", "latin-1"), ("iso-8859-1", "latin-1"), ("utf-16", "utf-16"), ("UTF8", "utf-8")],
)
def test_a_csv_file_in_another_encoding(db: Any, tmp_path: Path, given: str, used: str) -> None:
    path = tmp_path / "old.csv"
    path.write_bytes("id;name;zip\n1;caf\xe9;01234\n2;-;00001\n".encode(used))
    options: Any = {"encoding": given, "delimiter": ";", "na_values": "-", "quotechar": '"'}
    rows = _load(db, hc.read(path, types={"zip": str}, **options))
    assert rows == [
        {"id": 1, "name": "caf\xe9", "zip": "01234"},
        {"id": 2, "name": None, "zip": "00001"},
    ]


def test_an_encoding_or_option_that_is_not_known(db: Any, orders: Path) -> None:
    with pytest.raises(UsageError, match="encoding= is one of 'utf-8', 'latin-1', 'utf-16'"):
        _load(db, hc.read(orders, encoding="cp1252"))
    with pytest.raises(SchemaError, match='"flavour"'):
        _load(db, hc.read(orders, encoding="latin-1", flavour=1))


def test_an_empty_file_is_called_empty(db: Any, tmp_path: Path) -> None:
    db.create_table("t", {"id": int})
    (tmp_path / "empty.csv").touch()
    with pytest.raises(SchemaError, match=r"empty\.csv: the file is empty"):
        db.create_table("u", "empty.csv")
    with pytest.raises(SchemaError, match=r"empty\.csv: the file is empty"):
        _insert(db, "t", "empty.csv")


def test_a_quote_that_is_not_closed_is_no_text(db: Any, tmp_path: Path) -> None:
    path = tmp_path / "torn.csv"
    path.write_text('id,n\n1,a\n2,5" wide\n3,"x')
    db.create_table("t", {"id": int, "n": str}, primary_key="id")
    with pytest.raises(SchemaError, match=r"torn\.csv: a quote is opened and not closed") as caught:
        _insert(db, "t", path)
    assert (caught.value.column, caught.value.row) == ("n", 2)
    rejected: list[Any] = []
    assert db.run(lambda txn: txn.insert("t", path, reject=rejected)) == 2
    assert len(rejected) == 1
    assert "not closed" in str(rejected[0])
    last = hc.read(path, quotechar="", delimiter=",")
    assert db.run(lambda txn: txn.insert("t", last, on_conflict="ignore")) == 1
    assert db.begin().get("t", 3) == {"id": 3, "n": '"x'}
    path.write_text('id;n\n4;"""q"\n5;b\n')
    assert _insert(db, "t", hc.read(path, delimiter=";", na_values="b")) == 2
    assert db.begin().get("t", 4) == {"id": 4, "n": '"q'}

"""Frames of other libraries: in by insert, upsert and definition, out through the Arrow stream."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import halocline as hc
from tests.unit.api.shop import MANY, order

UTC = dt.UTC
COLUMNS = {
    "id": int,
    "name": str,
    "price": "decimal(10,2)",
    "score": float,
    "ok": bool,
    "day": dt.date,
    "at": "timestamptz",
    "raw": bytes,
    "tags": "string[]",
}


def _rows(count: int) -> list[dict[str, Any]]:
    return [
        {
            "id": n,
            "name": None if n % 4 == 3 else f"näme {n}",
            "price": Decimal(n) / 4,
            "score": n / 3,
            "ok": [True, False, None][n % 3],
            "day": dt.date(2026, 1, 1) + dt.timedelta(n),
            "at": dt.datetime(2026, 1, 1, n % 24, tzinfo=UTC),
            "raw": bytes([n % 256]),
            "tags": [["a"], [], None, ["b", None]][n % 4],
        }
        for n in range(count)
    ]


@pytest.fixture(scope="module")
def one_db(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One database for all tests of this file; it treats nine rows as many."""
    options = hc.Options(page_rows=64, bulk_rows=8, log_file_bytes_first=1 << 16)
    path = tmp_path_factory.mktemp("frames") / "db"
    with hc.open(path, durability="async", options=options) as db:
        yield db


@pytest.fixture
def db(one_db: Any) -> Any:
    """The database, empty; what a test has left in it is checked and dropped."""
    yield one_db
    assert not one_db.check()
    for name in one_db.tables():
        one_db.drop_table(name)


def _arrow(db: Any, rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=db.table("t").schema)


def _relation(table: pa.Table) -> Any:
    connection = duckdb.connect(config={"threads": 1})
    connection.execute("set TimeZone='UTC'")
    return connection.from_arrow(table)


EXPORTERS: dict[str, Callable[[pa.Table], Any]] = {
    "pyarrow table": lambda table: table,
    "record batch": lambda table: table.combine_chunks().to_batches()[0],
    "reader": lambda table: table.to_reader(3),
    "chunks": lambda table: pa.concat_tables(
        [table.slice(0, 1), table.slice(1, 4), table.slice(5)]
    ),
    "polars": pl.from_arrow,
    "pandas": lambda table: table.to_pandas(),
    "pandas arrow": lambda table: table.to_pandas(types_mapper=pd.ArrowDtype),
    "duckdb": _relation,
    "duckdb query": lambda table: _relation(table).filter("true"),
    "dicts": lambda table: table.to_pylist(),
    "generator": lambda table: (row for row in table.to_pylist()),
    "dataset": lambda table: ds.dataset(table).scanner().to_reader(),
}
"""The same rows as the frames of other libraries."""
FORMS = list(EXPORTERS)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("verb", ["insert", "upsert"])
def test_the_frame_of_any_library_goes_in(db: Any, form: str, verb: str) -> None:
    for count in (7, 20):
        db.create_table("t", COLUMNS, primary_key="id")
        rows = _rows(count)
        frame = EXPORTERS[form](_arrow(db, rows))
        with db.begin() as txn:
            assert getattr(txn, verb)("t", frame) == count
        assert db.table("t").to_arrow().sort_by("id").to_pylist() == rows
        db.drop_table("t")


@pytest.mark.parametrize("form", [f for f in FORMS if f not in ("dicts", "generator")])
def test_a_frame_defines_a_table(db: Any, form: str) -> None:
    db.create_table("t", COLUMNS, primary_key="id")
    rows = _rows(12)
    frame = EXPORTERS[form](_arrow(db, rows))
    db.create_table("copy", frame, primary_key="id")
    assert db.table("copy").schema.names == db.table("t").schema.names
    if form != "pandas":  # Columns of objects: dates and decimals are told by their values.
        assert db.table("copy").schema.types == db.table("t").schema.types
    with db.begin() as txn:
        # A definition takes no rows, so those of a reader are still there.
        assert txn.insert("copy", frame) == 12
    assert db.table("copy").to_arrow().sort_by("id").to_pylist() == rows


def test_the_defaults_of_pandas(db: Any) -> None:
    """Strings of pandas 3, NaN for null, naive and zoned moments, categories, nullable integers."""
    frame = pd.DataFrame(
        {
            "id": np.array([1, 2, 3], dtype=np.int32),
            "s": ["a", None, "c"],
            "f": [1.5, np.nan, 3.0],
            "n": pd.array([1, None, 3], dtype="Int64"),
            "b": pd.array([True, None, False], dtype="boolean"),
            "naive": pd.to_datetime(["2026-01-01", None, "2026-01-03"]),
            "zoned": pd.to_datetime(["2026-01-01", None, "2026-01-03"]).tz_localize("Asia/Tokyo"),
            "cat": pd.Categorical(["x", "y", "x"]),
        }
    )
    db.create_table("t", frame, primary_key="id")
    names = ["int32", "string", "double", "int64", "bool", "timestamp[us]"]
    names += ["timestamp[us, tz=UTC]", "string"]
    assert [str(type) for type in db.table("t").schema.types] == names
    with db.begin() as txn:
        assert txn.insert("t", frame) == 3
    with db.begin() as txn:
        row = txn.get("t", 1)
        assert row["zoned"] == dt.datetime(2025, 12, 31, 15, tzinfo=UTC)
        assert row["naive"] == dt.datetime(2026, 1, 1)
        assert (row["s"], row["n"], row["b"], row["cat"]) == ("a", 1, True, "x")
        empty = txn.get("t", 2)
        assert [empty[name] for name in ("s", "n", "b", "naive", "zoned")] == [None] * 5


def test_the_index_of_pandas_stays_out_unless_it_is_a_column(db: Any) -> None:
    db.create_table("t", {"id": int, "v": int}, primary_key="id")
    frame = pd.DataFrame({"id": [5, 6], "v": [1, 2]}, index=[10, 20])
    named = pd.DataFrame({"v": [3]}, index=pd.Index([7], name="id"))
    filtered = pd.DataFrame({"id": range(100), "v": 0}).query("id >= 98")
    with db.begin() as txn:
        assert (txn.insert("t", frame), txn.insert("t", named), txn.insert("t", filtered)) == (
            2,
            1,
            2,
        )
        assert txn.range("t").column("id").to_pylist() == [5, 6, 7, 98, 99]


def test_a_frame_that_is_changed_afterwards_does_not_change_the_table(db: Any) -> None:
    db.create_table("t", {"id": int, "v": float}, primary_key="id")
    for count in (3, 50):
        values = np.arange(count, dtype=np.float64)
        frame = pd.DataFrame({"id": np.arange(count) + count * 100, "v": values}, copy=False)
        with db.begin() as txn:
            txn.insert("t", frame)
            values[:] = -1
            frame.loc[:, "v"] = -2.0
        values[:] = -3
        found = db.sql("select v from t where id >= ? order by id", params=[count * 100])
        assert found.column("v").to_pylist() == [float(n) for n in range(count)]


def test_columns_of_a_frame_come_in_any_order_and_case_and_some_may_be_absent(db: Any) -> None:
    db.create_table("t", COLUMNS, primary_key="id")
    with db.begin() as txn:
        for count in (2, 20):
            ids = range(count * 100, count * 101)
            frame = pa.table({"NAME": ["x"] * count, "Id": ids})
            assert txn.insert("t", frame) == count
            assert txn.get("t", count * 100) == dict.fromkeys(COLUMNS) | {
                "id": count * 100,
                "name": "x",
            }


@pytest.mark.parametrize("count", [2, MANY + 3])
def test_upsert_of_a_frame_keeps_the_columns_it_does_not_name(db: Any, count: int) -> None:
    db.create_table("t", {"id": int, "a": int, "b": str}, primary_key="id")
    with db.begin() as txn:
        txn.insert("t", [{"id": n, "a": n, "b": "old"} for n in range(count)])
    with db.begin() as txn:
        frame = pl.DataFrame({"id": range(count * 2), "a": [None] * count * 2})
        assert txn.upsert("t", frame.with_columns(pl.col("a").cast(pl.Int64))) == count * 2
    found = db.table("t").to_arrow().sort_by("id")
    assert found.column("a").to_pylist() == [None] * count * 2
    assert found.column("b").to_pylist() == ["old"] * count + [None] * count


class _Table:
    """A frame of a library that is not installed: all it has is the Arrow interface."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def test_anything_that_exports_arrow_goes_in(db: Any) -> None:
    db.create_table("t", {"id": int}, primary_key="id")
    with db.begin() as txn:
        assert txn.insert("t", _Table(pa.table({"id": [1, 2]}))) == 2
        assert txn.insert("t", db.sql("select 3 as id")) == 1
        assert txn.upsert("t", db.table("t")) == 0
        assert txn.upsert("t", txn.scan("t", stream=True)) == 3


def test_a_table_of_the_database_goes_into_another(db: Any) -> None:
    db.create_table("t", COLUMNS, primary_key="id")
    rows = _rows(20)
    with db.begin() as txn:
        txn.insert("t", rows)
    db.create_table("copy", db.table("t"), primary_key="id")
    assert db.table("copy").schema == db.table("t").schema
    with db.begin() as txn:
        assert txn.insert("copy", db.table("t")) == 20
    assert db.table("copy").to_arrow() == db.table("t").to_arrow()


def _broken() -> pa.Table:
    """An Arrow stream whose strings end far behind their data; nobody has looked at it yet."""
    sink = pa.BufferOutputStream()
    table = pa.table({"id": [1, 2], "s": ["hello", "world"]})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data = sink.getvalue().to_pybytes()
    good, bad = (np.array([0, 5, end], dtype=np.int32).tobytes() for end in (10, 1_000_000))
    assert data.count(good) == 1
    return pa.ipc.open_stream(data.replace(good, bad)).read_all()


def test_broken_arrow_data_is_refused_and_does_not_kill_the_process(db: Any) -> None:
    db.create_table("t", {"id": int, "s": str}, primary_key="id")
    bytes_that_are_no_text = pa.array([b"\xff"]).buffers()[1:]
    invalid = pa.Array.from_buffers(pa.string(), 1, [None, *bytes_that_are_no_text])
    with db.begin() as txn:
        for verb in (txn.insert, txn.upsert):
            for frame in (_broken(), pa.table({"id": [1], "s": invalid})):
                with pytest.raises(hc.SchemaError, match="'s'"):
                    verb("t", frame)
                with pytest.raises(hc.SchemaError, match="'s'"):
                    verb("t", _Table(frame))
        assert txn.scan("t").num_rows == 0


def _spark(module: str) -> Any:
    """Something that looks like Spark's DataFrame, whose package need not be installed."""
    cls = type("DataFrame", (), {"__module__": module, "toArrow": lambda self: 1 / 0})
    return cls()


@pytest.mark.parametrize(
    "module",
    ["pyspark.sql.dataframe", "pyspark.sql.classic.dataframe", "pyspark.sql.connect.dataframe"],
)
def test_a_spark_dataframe_is_sent_to_its_own_door(txn: Any, module: str) -> None:
    for verb in (txn.insert, txn.upsert):
        with pytest.raises(hc.UsageError, match=r"hs\.load"):
            verb("orders", _spark(module))
    with pytest.raises(hc.UsageError, match="Spark"):
        txn.create_table("t", _spark(module))


def test_the_data_of_a_frame_that_fails_half_way_stays_out(txn: Any) -> None:
    class Breaks(Exception):
        """What goes wrong outside of us."""

    def batches() -> Any:
        yield pa.record_batch({"id": [500], "qty": pa.array([1], pa.int32())})
        raise Breaks

    def rows() -> Any:
        yield order(500)
        raise Breaks

    schema = pa.schema([("id", pa.int64()), ("qty", pa.int32())])
    for verb in (txn.insert, txn.upsert):
        with pytest.raises((Breaks, hc.SchemaError)):
            verb("orders", pa.RecordBatchReader.from_batches(schema, batches()))
        with pytest.raises(Breaks):
            verb("orders", rows())


def _pandas(table: Any) -> pd.DataFrame:
    """pandas reads Arrow streams itself from version 3 on."""
    if hasattr(pd.DataFrame, "from_arrow"):
        return pd.DataFrame.from_arrow(table)
    return pa.table(table).to_pandas()


def test_a_table_is_a_frame_for_the_others(db: Any) -> None:
    db.create_table("t", COLUMNS, primary_key="id")
    rows = _rows(20)
    with db.begin() as txn:
        txn.insert("t", rows)
    table = db.table("t")
    arrow = pa.table(table)
    assert arrow.schema == table.schema
    assert arrow.sort_by("id").to_pylist() == rows
    assert pa.RecordBatchReader.from_stream(table).read_all() == arrow
    polars = pl.DataFrame(table).sort("id")
    assert polars["name"].to_list() == [row["name"] for row in rows]
    assert polars["at"].to_list() == [row["at"] for row in rows]
    assert polars["tags"].to_list() == [row["tags"] for row in rows]
    pandas = _pandas(table)
    assert list(pandas.columns) == list(COLUMNS)
    assert pandas.sort_values("id")["score"].tolist() == [row["score"] for row in rows]
    connection = duckdb.connect()
    handle = table  # DuckDB finds a frame by its name in Python, too.
    connection.register("items", handle)
    found = connection.sql("select count(*), sum(price), max(id) from items").fetchall()
    assert found == [(20, Decimal("47.50"), 19)]
    assert connection.sql("select count(*) from handle").fetchall() == [(20,)]


def test_an_empty_table_is_a_frame_too(db: Any) -> None:
    db.create_table("t", COLUMNS, primary_key="id")
    table = db.table("t")
    assert pa.table(table) == table.schema.empty_table()
    assert pl.DataFrame(table).shape == (0, len(COLUMNS))
    assert _pandas(table).shape == (0, len(COLUMNS))

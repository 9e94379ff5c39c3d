"""Objects are Parquet: pyarrow, DuckDB and Polars read the right rows, knowing nothing of us."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given

from halocline.objects.columns import CHANGED, COMMIT_TS, PK64, ROWID, SUCCESSOR
from halocline.objects.write import encode_data, encode_tombstones
from halocline.options import Options
from halocline.schema.schema import Schema
from tests.unit.objects.rig import ORDERS, SMALL, keyed_tables, orders, plain, rows_of
from tests.unit.schema.pools import few, same

ALL = Schema.define(
    {
        "id": "bigint",
        "b": "boolean",
        "i8": "tinyint",
        "i16": "smallint",
        "i32": "integer",
        "f32": "real",
        "f64": "double",
        "d9": "decimal(9,2)",
        "d18": "decimal(18,4)",
        "d38": "decimal(38,10)",
        "s": "varchar",
        "x": "blob",
        "day": "date",
        "t": "time",
        "ts": "timestamp",
        "tz": "timestamptz",
        "l": "integer[]",
        "st": "struct<a: int, b: varchar>",
    },
    "id",
)


def everything(rows: int = 50) -> Any:
    """Every type, a null in each column now and then."""
    chance = np.random.default_rng(3)
    small = pa.array(chance.integers(-100, 100, rows))
    text = pa.array([f"wörd {k}\0" for k in range(rows)])
    table = pa.table(
        {
            "id": np.arange(rows),
            "b": small.cast(pa.bool_()),
            "i8": small.cast(pa.int8()),
            "i16": small.cast(pa.int16()),
            "i32": small.cast(pa.int32()),
            "f32": small.cast(pa.float32()),
            "f64": pa.array(chance.random(rows)),
            "d9": small.cast(pa.decimal128(21, 2)).cast(pa.decimal128(9, 2)),
            "d18": small.cast(pa.decimal128(23, 4)).cast(pa.decimal128(18, 4)),
            "d38": small.cast(pa.decimal128(38, 10)),
            "s": text,
            "x": text.cast(pa.binary()),
            "day": small.cast(pa.int32()).cast(pa.date32()),
            "t": pa.array(chance.integers(0, 86_399_999_999, rows)).cast(pa.time64("us")),
            "ts": pa.array(chance.integers(0, 10**15, rows)).cast(pa.timestamp("us")),
            "tz": pa.array(chance.integers(0, 10**15, rows)).cast(pa.timestamp("us", "UTC")),
            "l": pa.array([[k, None] * (k % 3) for k in range(rows)], pa.list_(pa.int32())),
            "st": pa.array([{"a": k, "b": None} for k in range(rows)], ALL.arrow.field("st").type),
        }
    )
    nulls = pa.array(chance.random(rows) < 0.1)
    columns = [table.column(0)]
    for column in table.columns[1:]:
        keep = pa.chunked_array([pa.nulls(rows, column.type)])
        columns.append(pa.compute.if_else(nulls, keep, column))
    return pa.Table.from_arrays(columns, schema=ALL.arrow).append_column(
        ROWID, pa.array(np.arange(rows) + 7)
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    data, _ = encode_data(everything(), ALL, options=SMALL)
    (tmp_path / "o.parquet").write_bytes(data)
    return tmp_path / "o.parquet"


def test_pyarrow_reads_the_right_rows(path: Path) -> None:
    import pyarrow.parquet as pq

    assert same(rows_of(pq.read_table(path)), rows_of(everything()))


def test_duckdb_reads_the_right_rows(path: Path) -> None:
    found = duckdb.connect().sql("from read_parquet($1)", params=[str(path)]).to_arrow_table()
    assert found.column_names == everything().column_names
    assert same(rows_of(found.cast(everything().schema)), rows_of(everything()))


def test_polars_reads_the_right_rows(path: Path) -> None:
    found = pl.read_parquet(path).to_arrow(compat_level=pl.CompatLevel.oldest())
    assert same(rows_of(found.cast(everything().schema)), rows_of(everything()))


@pytest.mark.slow
@given(keyed_tables())
@few()
def test_pyarrow_reads_any_table_with_checksums_on(case: tuple[Schema, Any]) -> None:
    schema, table = case
    data, _ = encode_data(table, schema, options=SMALL)
    names = [n for n in plain(data).schema_arrow.names if n != PK64]
    assert same(rows_of(plain(data).read(columns=None).select(names)), rows_of(table))


def test_duckdb_and_polars_read_tombstones(tmp_path: Path) -> None:
    table = pa.table(
        {
            ROWID: [1, 2, 3],
            "id": [6, 4, 2],
            COMMIT_TS: [9, 8, 7],
            SUCCESSOR: pa.array([None, 50, None], pa.int64()),
            CHANGED: pa.array([None, [2, 3], []], pa.list_(pa.int32())),
        }
    )
    path = tmp_path / "t.parquet"
    path.write_bytes(encode_tombstones(table, ORDERS)[0])
    found = duckdb.connect().execute("from read_parquet($1)", [str(path)]).fetchall()
    assert found == [tuple(row.values()) for row in table.to_pylist()]
    assert pl.read_parquet(path).rows() == found


def test_duckdb_prunes_row_groups_by_their_statistics(tmp_path: Path) -> None:
    path = tmp_path / "o.parquet"
    path.write_bytes(encode_data(orders(20_000), ORDERS, options=Options(row_group_rows=4096))[0])
    query = "select count(*), min(_rowid) from read_parquet($1) where id between 100 and 110"
    assert duckdb.connect().execute(query, [str(path)]).fetchall() == [(6, 1050)]


def test_reading_gives_no_warning(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain(path.read_bytes()).read()
        pl.read_parquet(path)

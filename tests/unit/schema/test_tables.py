"""Incoming tables: frames of all kinds, exact casts, refusals by column and row, no copies."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from halocline.errors import SchemaError, UsageError
from halocline.schema import convert
from halocline.schema.schema import Schema

ORDERS = Schema.define(
    {"id": int, "name": str, "amount": "decimal(12,2)", "at": "timestamptz", "ok": bool}, "id"
)
NOON = dt.datetime(2024, 6, 1, 12, tzinfo=dt.UTC)
ROWS = [
    (1, "one", Decimal("1.50"), NOON, True),
    (2, None, None, None, False),
]


def canonical_table() -> pa.Table:
    return ORDERS.to_table(ROWS)


def addresses(table: pa.Table) -> list[int]:
    chunks = [chunk for column in table.columns for chunk in column.chunks]
    return [b.address for chunk in chunks for b in chunk.buffers() if b is not None]


def test_canonical_input_is_not_copied_and_stays_chunked() -> None:
    nested = Schema.define({"id": int, "l": "list<struct<a: string, t: timestamp>>", "s": str})
    row = (1, [{"a": "x", "t": dt.datetime(2024, 1, 1)}], "y")
    for schema, rows in ((ORDERS, ROWS), (nested, [row, row])):
        one = schema.to_table(rows)
        given = pa.concat_tables([one, one.slice(1), one])
        result = schema.table(given)
        assert addresses(result) == addresses(given)
        assert [len(chunk) for chunk in result.column(0).chunks] == [2, 1, 2]
        assert result.schema.equals(schema.arrow, check_metadata=True)
        assert schema.from_table(result) == [*rows, *rows[1:], *rows]


def test_frames_of_all_kinds_give_the_same_table() -> None:
    expected = canonical_table()
    arrow = expected.replace_schema_metadata({"x": "y"})
    polars = pl.DataFrame(arrow)
    with duckdb.connect() as connection:
        connection.register("given_rows", arrow)
        inputs: list[Any] = [
            arrow,
            arrow.to_batches()[0],
            arrow.to_reader(),
            pa.RecordBatchReader.from_stream(polars),
            arrow.to_struct_array(),
            pa.chunked_array(arrow.to_struct_array()),
            arrow.to_struct_array().chunk(0),
            polars,
            connection.sql("from given_rows"),
            arrow.to_pandas(types_mapper=pd.ArrowDtype),
            [dict(zip(ORDERS.names, row, strict=True)) for row in ROWS],
            (dict(zip(ORDERS.names, row, strict=True)) for row in ROWS),
            arrow.select(["ok", "at", "amount", "name", "id"]),
            arrow.rename_columns(["ID", "Name", "AMOUNT", "At", "oK"]),
        ]
        for data in inputs:
            result = ORDERS.table(data)
            assert result.schema.equals(ORDERS.arrow, check_metadata=True)
            assert ORDERS.from_table(result) == ROWS, type(data)


def test_pandas_columns_arrive_with_their_nulls() -> None:
    schema = Schema.define({"id": int, "n": int, "s": str, "at": "timestamp", "c": str}, "id")
    frame = pd.DataFrame(
        {
            "id": [1, 2],
            "n": [7.0, None],
            "s": ["a", None],
            "at": [pd.Timestamp("2024-01-02"), pd.NaT],
            "c": pd.Categorical(["x", None]),
        },
        index=pd.Index(["p", "q"]),
    )
    assert schema.from_table(schema.table(frame)) == [
        (1, 7, "a", dt.datetime(2024, 1, 2), "x"),
        (2, None, None, None, None),
    ]


def test_a_pandas_frame_may_be_changed_after_it_was_given() -> None:
    schema = Schema.define({"id": int, "f": float, "at": "timestamp", "s": str}, "id")
    moment = pd.Timestamp("2024-01-02")
    frame = pd.DataFrame({"id": [1, 2], "f": [1.5, 2.5], "at": [moment, moment], "s": ["a", "b"]})
    table = schema.table(frame)
    before = schema.from_table(table)
    for name, value in (("id", 99), ("f", 9.5), ("at", pd.Timestamp("2000-01-01")), ("s", "z")):
        frame.loc[0, name] = value
    assert schema.from_table(table) == before


def test_an_index_of_pandas_is_used_only_when_it_names_a_column_not_given() -> None:
    schema = Schema.define({"id": int, "v": int}, "id")
    frame = pd.DataFrame({"v": [5]}, index=pd.Index([1], name="id"))
    assert schema.from_table(schema.table(frame)) == [(1, 5)]
    other = pd.DataFrame({"id": [1], "v": [5]}, index=pd.Index([9], name="elsewhere"))
    assert schema.from_table(schema.table(other)) == [(1, 5)]


def test_polars_types_are_made_plain() -> None:
    frame = pl.DataFrame(
        {
            "id": pl.Series([1], dtype=pl.UInt16),
            "e": pl.Series(["a"], dtype=pl.Enum(["a", "b"])),
            "t": [dt.time(1, 2, 3, 4)],
            "l": [["x", None]],
            "s": [{"a": 1, "b": [dt.date(2024, 1, 2)]}],
            "b": [b"\0"],
            "d": [Decimal("1.25")],
        }
    )
    schema = Schema.define(frame, "id")
    assert schema.from_table(schema.table(frame)) == [
        (
            1,
            "a",
            dt.time(1, 2, 3, 4),
            ["x", None],
            {"a": 1, "b": [dt.date(2024, 1, 2)]},
            b"\0",
            schema.row({"id": 1, "d": Decimal("1.25")})[6],
        )
    ]


def test_duckdb_results_fit_tables_of_narrower_types() -> None:
    schema = Schema.define({"n": int, "total": "bigint", "f": float, "u": str, "l": "int[]"})
    with duckdb.connect() as connection:
        relation = connection.sql(
            "select count(*)::utinyint n, sum(x) total, 0.1 f, 'é' u, list(x::smallint) l"
            " from range(3) t(x)"
        )
        assert schema.from_table(schema.table(relation)) == [(3, 3, 0.1, "é", [0, 1, 2])]


def test_absent_columns_are_null_or_left_out() -> None:
    given = pa.table({"AT": [NOON], "id": [7]})
    everything = ORDERS.table(given)
    assert ORDERS.from_table(everything) == [(7, None, None, NOON, None)]
    some = ORDERS.table(given, columns="given")
    assert some.column_names == ["id", "at"]
    assert some.schema.field("id").nullable is False
    rows = ORDERS.table([{"AT": NOON, "id": 7}], columns="given")
    assert rows.equals(some)
    assert ORDERS.table([], columns="given").num_rows == 0
    assert ORDERS.table({"id": 7}, columns="given").to_pylist() == [{"id": 7}]


def test_rows_for_some_columns_must_name_the_same_ones() -> None:
    with pytest.raises(SchemaError, match="other columns") as caught:
        ORDERS.table([{"id": 1}, {"id": 2, "ok": True}], columns="given")
    assert caught.value.row == 1


def bad_tables() -> Iterator[tuple[str, Any, str | None, int | None]]:
    """(definition of column v, data, column of the error, row of the error)."""

    def column(values: Any, type: Any = None) -> pa.Table:
        return pa.table({"v": pa.array(values, type)})

    yield "int", column(["1"]), "v", None
    yield "int", column([True]), "v", None
    yield "bool", column([1]), "v", None
    yield "string", column([1]), "v", None
    yield "string", column([b"x"]), "v", None
    yield "binary", column(["x"]), "v", None
    yield "date", column([dt.datetime(2024, 1, 2)]), "v", None
    yield "timestamp", column([dt.date(2024, 1, 2)]), "v", None
    yield "timestamp", column([NOON]), "v", None
    yield "timestamptz", column([NOON.replace(tzinfo=None)]), "v", None
    yield "time", column([5]), "v", None
    yield "int", column([dt.timedelta(1)]), "v", None
    yield "int[]", column([1]), "v", None
    yield "int[]", column([["x"]]), "v", None
    yield "struct<a: int>", column([{"b": 1}]), "v", None
    yield "string", column([{"b": 1}]), "v", None
    yield (
        "string",
        pa.table({"v": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int8()))}),
        "v",
        None,
    )
    yield "int", column([1, 2, 2**31, 4], pa.int64()), "v", 2
    yield "bigint", column([1, 2**63], pa.uint64()), "v", 1
    yield "int", column([1.0, None, 1.5]), "v", 2
    yield "int", column([float("nan")]), "v", 0
    yield "bigint", column([1.0, 2.0**63]), "v", 1
    yield "double", column([1, 2**53 + 1]), "v", 1
    yield "double", column([2**64 - 1], pa.uint64()), "v", 0
    yield "double", column([2**63 - 1]), "v", 0
    yield "real", column([2**24 + 1]), "v", 0
    yield "real", column([1.0, 1e39]), "v", 1
    yield "decimal(5,2)", column([Decimal("1.1"), Decimal("1.125")]), "v", 1
    yield "decimal(5,2)", column([1, 1000]), "v", 1
    yield "decimal(5,2)", column([0.5, 0.1 + 0.2]), "v", 1
    yield "decimal(5,2)", column([float("nan")]), "v", 0
    yield "double", column([Decimal("0.10000000000000000000001")]), "v", 0
    yield "timestamp", column([0, 1], pa.timestamp("ns")), "v", 1
    yield "timestamp", column([0, 2**61], pa.timestamp("s")), "v", 1
    yield "timestamp", column([0, 253402300800_000000], pa.timestamp("us")), "v", 1
    yield "timestamptz", column([-62135596800_000001], pa.timestamp("us", "UTC")), "v", 0
    yield "date", column([0, 2932897], pa.int32()).cast(pa.schema([("v", pa.date32())])), "v", 1
    yield "time", column([0, 1], pa.time64("ns")), "v", 1
    yield "int[]", column([[1], [2, 2**40], None]), "v", 1
    yield "list<int not null>", column([[1], None, [None]]), "v", 2
    yield "list<timestamp>", column([[0], [1]], pa.list_(pa.timestamp("ns"))), "v", 1
    yield "struct<a: tinyint>", column([{"a": 1}, {"a": 300}]), "v", 1
    yield "struct<a: tinyint not null>", column([None, {"a": 3}, {"a": None}]), "v", 2
    yield "struct<a: int not null, b: int>", column([{"b": 3}]), "v", 0
    yield "int not null", column([1, None]), "v", 1
    yield "int not null", column([None, None], pa.null()), "v", 0
    yield "int not null", pa.table({"w": [1]}), "w", None
    yield "int not null", pa.table({}).append_column("V", pa.array([], pa.string())), "v", None


@pytest.mark.parametrize(
    ("text", "data", "column", "row"),
    [pytest.param(*case, id=f"{at}-{case[0]}") for at, case in enumerate(bad_tables())],
)
def test_data_that_would_change_is_refused_by_column_and_row(
    text: str, data: Any, column: str | None, row: int | None
) -> None:
    schema = Schema.define({"v": text})
    with pytest.raises(SchemaError) as caught:
        schema.table(data)
    assert (caught.value.column, caught.value.row) == (column, row)
    if row is not None:
        # Rows are counted over chunks, and a slice begins at its own first row.
        with pytest.raises(SchemaError) as caught:
            schema.table(pa.concat_tables([data.slice(0, row), data.slice(0, 0), data]))
        assert caught.value.row == row * 2
        with pytest.raises(SchemaError) as caught:
            schema.table(data.slice(row))
        assert caught.value.row == 0


@pytest.mark.parametrize(
    ("text", "array", "kept"),
    [
        ("bigint", pa.array([1.0, -0.0, None, 2.0**62]), [1, 0, None, 2**62]),
        ("tinyint", pa.array([127, None], pa.uint64()), [127, None]),
        ("double", pa.array([2**60, None, -(2**63)]), [2.0**60, None, -(2.0**63)]),
        ("real", pa.array([0.1, float("inf"), None]), [np.float32(0.1).item(), float("inf"), None]),
        ("real", pa.array([np.float16(1.5)], pa.float16()), [1.5]),
        ("decimal(5,2)", pa.array([1, None]), [Decimal("1.00"), None]),
        ("decimal(5,2)", pa.array([9.99, None]), [Decimal("9.99"), None]),
        (
            "decimal(38,18)",
            pa.array([2**63], pa.uint64()),
            [Decimal(f"{2**63}." + "0" * 18)],
        ),
        ("decimal(5,2)", pa.array([Decimal("1.100")], pa.decimal256(76, 60)), [Decimal("1.10")]),
        ("decimal(5,2)", pa.array([Decimal(100)], pa.decimal128(5, -2)), [Decimal("100.00")]),
        ("decimal(38,0)", pa.array([Decimal("9" * 38)], pa.decimal256(40, 2)), [Decimal("9" * 38)]),
        ("int", pa.array([Decimal("7.00"), None]), [7, None]),
        ("int", pa.array([Decimal("7.00")], pa.decimal32(5, 2)), [7]),
        ("bigint", pa.array([Decimal("0.00")], pa.decimal32(5, 2)), [0]),
        ("int", pa.array([Decimal("7.00")], pa.decimal256(50, 2)), [7]),
        ("double", pa.array([Decimal("0.1"), None]), [0.1, None]),
        ("binary", pa.array([b"ab", None], pa.binary(2)), [b"ab", None]),
        ("binary", pa.array([b"ab" * 20], pa.binary_view()), [b"ab" * 20]),
        ("string", pa.array(["a", None, "a"]).dictionary_encode(), ["a", None, "a"]),
        ("string", pc.run_end_encode(pa.array(["a", "a", None])), ["a", "a", None]),
        ("string", pa.array(["{}"], pa.json_()), ["{}"]),
        ("binary", pa.array([b"x" * 16], pa.uuid()), [b"x" * 16]),
        ("date", pa.array([86400000], pa.date64()), [dt.date(1970, 1, 2)]),
        ("time", pa.array([5], pa.time32("s")), [dt.time(0, 0, 5)]),
        ("timestamp", pa.array([1000], pa.timestamp("ns")), [dt.datetime(1970, 1, 1, 0, 0, 0, 1)]),
        (
            "timestamptz",
            pa.array([3600], pa.timestamp("s", "Asia/Tokyo")),
            [dt.datetime(1970, 1, 1, 1, tzinfo=dt.UTC)],
        ),
        ("int", pa.array([None, None]), [None, None]),
        ("int[]", pa.array([[], None], pa.list_(pa.null())), [[], None]),
        ("bigint[]", pa.array([[1, None], None], pa.large_list(pa.uint8())), [[1, None], None]),
        ("bigint[]", pa.array([[1, 2], None], pa.list_(pa.int8(), 2)), [[1, 2], None]),
        ("struct<b: int, a: string>", pa.array([{"a": "x"}, None]), [{"b": None, "a": "x"}, None]),
        (
            "struct<a: int not null>",
            pa.array([{"a": 1}, None], pa.struct([("a", pa.int64())])),
            [{"a": 1}, None],
        ),
    ],
    ids=lambda value: str(value)[:24] if isinstance(value, str) else "",
)
def test_data_that_fits_is_cast(text: str, array: Any, kept: list[Any]) -> None:
    schema = Schema.define({"v": text})
    data = pa.table({"v": array})
    result = schema.table(data)
    result.validate(full=True)
    assert result.schema.equals(schema.arrow)
    assert str(result.column(0).type) == str(schema.columns[0].type)
    assert [row[0] for row in schema.from_table(result)] == kept
    again = schema.table(pa.concat_tables([data.slice(1), data]))
    assert [row[0] for row in schema.from_table(again)] == [*kept[1:], *kept]


@pytest.mark.parametrize("make", [pa.list_view, pa.large_list_view])
def test_views_of_lists_are_taken_apart_rightly(make: Any) -> None:
    values = [[1, 2], None, [], [3], [4, 5, 6], [None]]
    schema = Schema.define({"v": "bigint[]"})
    array = pa.array(values, make(pa.int16()))
    for start in range(len(values)):
        result = schema.table(pa.table({"v": array.slice(start, 3)}))
        assert result.column(0).to_pylist() == values[start : start + 3]
    overlapping = pa.ListViewArray.from_arrays(
        pa.array([2, 0, 1], pa.int32()), pa.array([1, 3, 0], pa.int32()), pa.array([7, 8, 9])
    )
    assert schema.table(pa.table({"v": overlapping})).column(0).to_pylist() == [[9], [7, 8, 9], []]


def test_values_under_a_null_or_outside_a_slice_are_not_looked_at() -> None:
    hidden = pa.StructArray.from_arrays([pa.array([1, 2**40])], ["a"], mask=pa.array([False, True]))
    schema = Schema.define({"v": "struct<a: int>"})
    assert schema.table(pa.table({"v": hidden})).column(0).to_pylist() == [{"a": 1}, None]
    lists = pa.ListArray.from_arrays([0, 1, 2], pa.array([1, 2**40]), mask=pa.array([False, True]))
    narrow = Schema.define({"v": "int[]"})
    assert narrow.table(pa.table({"v": lists})).column(0).to_pylist() == [[1], None]
    assert narrow.table(pa.table({"v": pa.array([[2**40], [1]]).slice(1)})).num_rows == 1
    garbage = pa.Array.from_buffers(
        pa.timestamp("us"), 2, [pa.py_buffer(b"\1"), pa.py_buffer(b"\0" * 8 + b"\x7f" * 8)]
    )
    stamps = Schema.define({"v": "timestamp"})
    result = stamps.table(pa.table({"v": garbage}))
    assert stamps.from_table(result) == [(dt.datetime(1970, 1, 1),), (None,)]
    assert stamps.cells(result.to_batches()[0])(1) == (None,)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (pa.table({"id": [1], "nmae": ["x"]}), "did you mean 'name'"),
        (pa.table({"id": [1], "_rowid": [1]}), "no such column"),
        (pa.table({"id": [1], "ID": [2]}), "given twice"),
        (pa.table([[1], [2]], names=["id", "id"]), "given twice"),
        (pa.table({"name": ["x"]}), "primary key"),
        (pa.table({}), "primary key"),
        (pa.table({"id": [None]}), "must not be null"),
        (pa.array([1, 2]), "cannot be read as a table"),
        (pl.Series([1]), "cannot be read as a table"),
        (5, "cannot be read as a table"),
        ("id", "cannot be read as a table"),
        (None, "cannot be read as a table"),
        (object(), "cannot be read as a table"),
        ([1, 2], "a row is a mapping"),
        ([{"id": 1}, None], "a row is a mapping"),
        (pd.DataFrame({"id": [1], "name": [{"a": 1, 5: object()}]}), "cannot be read as a table"),
    ],
    ids=lambda value: str(value)[:24].replace("\n", " ").split(" at 0x")[0],
)
def test_bad_input_says_what_is_wrong(data: Any, text: str) -> None:
    with pytest.raises(SchemaError, match=text):
        ORDERS.table(data)


def test_a_spark_frame_names_the_way_to_load_it() -> None:
    base = type("DataFrame", (), {"__module__": "pyspark.sql.dataframe"})
    mine = type("Mine", (base,), {"__module__": "somewhere"})
    with pytest.raises(UsageError, match=r"hs\.load"):
        ORDERS.table(mine())


class Exporter:
    """A foreign object that hands over whatever it was given through the C interface."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        return self._batch.__arrow_c_array__(requested_schema)


def broken_text(type: Any, offsets: list[int], data: bytes) -> Any:
    buffers = [None, pa.py_buffer(np.array(offsets, "i4").tobytes()), pa.py_buffer(data)]
    return pa.Array.from_buffers(type, len(offsets) - 1, buffers)


@pytest.mark.parametrize(
    "array",
    [
        broken_text(pa.string(), [0, 3], b"\xed\xa0\x80"),
        broken_text(pa.string(), [0, 2, 1, 3], b"abc"),
        pa.DictionaryArray.from_arrays(pa.array([0, 9], pa.int8()), pa.array(["a"]), safe=False),
        pa.ListArray.from_buffers(
            pa.list_(pa.string()),
            1,
            [None, pa.py_buffer(np.array([0, 1], "i4").tobytes())],
            children=[broken_text(pa.string(), [0, 1], b"\xff")],
        ),
    ],
    ids=["utf-8", "offsets", "dictionary", "nested"],
)
def test_invalid_arrow_data_is_refused_before_it_is_used(array: Any) -> None:
    batch = pa.RecordBatch.from_arrays([array], names=["v"])
    schema = Schema.define({"v": "string[]" if pa.types.is_list(array.type) else "string"})
    for data in (batch, pa.Table.from_batches([batch]), Exporter(batch)):
        with pytest.raises(SchemaError, match="invalid Arrow data") as caught:
            schema.table(data)
        assert caught.value.column == "v"


def test_l05_a_batch_has_columns_of_one_length() -> None:
    columns = [pa.array([1, 2]), pa.array([1])]
    for build in (pa.RecordBatch.from_arrays, pa.Table.from_arrays):
        with pytest.raises((pa.ArrowInvalid, ValueError), match="length"):
            build(columns, names=["a", "b"])


def test_a_decimal_beyond_its_digits_is_invalid() -> None:
    raw = pa.py_buffer((12345).to_bytes(16, "little"))
    array = pa.Array.from_buffers(pa.decimal128(3, 0), 1, [None, raw])
    with pytest.raises(SchemaError, match="invalid Arrow data"):
        Schema.define({"v": "decimal(3,0)"}).table(pa.table({"v": array}))


def test_chunks_that_must_change_are_cut_to_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "CHUNK_BYTES_MAX", 64)
    texts = [f"text number {at}" for at in range(20)]
    schema = Schema.define({"v": str})
    result = schema.table(pa.table({"v": pa.array(texts, pa.large_string())}))
    assert result.column(0).to_pylist() == texts
    assert result.column(0).num_chunks > 2
    short = Schema.define({"v": "int"})
    with pytest.raises(SchemaError) as caught:
        short.table(pa.table({"v": [*range(15), 2**40]}))
    assert caught.value.row == 15


def test_a_table_without_rows_or_chunks_is_fine() -> None:
    data: Any
    for data in (ORDERS.arrow.empty_table(), pa.table({"id": pa.chunked_array([], pa.int8())}), []):
        result = ORDERS.table(data)
        assert result.num_rows == 0
        assert result.schema.equals(ORDERS.arrow)
    # What a type never takes is refused even when there is no value of it.
    with pytest.raises(SchemaError):
        ORDERS.table(pa.table({"id": pa.array([], pa.string())}))

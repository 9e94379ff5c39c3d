"""Rows that do not fit: the right error, the column and the row named, nothing of the call kept."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import halocline as hc
from tests.unit.api.shop import MANY, order

UNFIT: dict[str, list[Any]] = {
    "id": ["7", 7.5, True, 2**63, -(2**63) - 1, None, float("nan"), Decimal("NaN"), pd.NA],
    "status": [7, b"new", "\ud800", float("nan"), True],
    "amount": [
        "1.00",
        Decimal("1.005"),
        Decimal("12345678901.00"),
        float("inf"),
        float("nan"),
        0.1 + 0.2,
        True,
    ],
    "qty": [None, 2**31, -(2**31) - 1, "many", 1.5, False, pd.NA],
    "at": [dt.datetime(2026, 1, 1), dt.date(2026, 1, 1), "2026-01-01", 0, dt.time(1)],
    "tags": ["abc", [1], {"a": 1}, 5, [["a"]]],
    "dims": [[1, 2], {"depth": 1}, {"w": "wide"}, "wide", {"w": 2**40}],
}


@pytest.mark.parametrize("column", UNFIT)
def test_a_value_that_does_not_fit_is_refused(txn: Any, column: str) -> None:
    for value in UNFIT[column]:
        for verb in (txn.insert, txn.upsert):
            with pytest.raises(hc.SchemaError) as error:
                verb("orders", order(500) | {column: value})
            assert error.value.column == column, value
            assert repr(column) in str(error.value)


@pytest.mark.parametrize("column", UNFIT)
def test_an_update_to_a_value_that_does_not_fit_is_refused(txn: Any, column: str) -> None:
    for value in UNFIT[column]:
        with pytest.raises(hc.SchemaError) as error:
            txn.update("orders", 3, {column: value})
        assert error.value.column == column, value
        with pytest.raises(hc.SchemaError) as error:
            txn.update("orders", where="id = 3", set={"status": "x", column: value})
        assert error.value.column == column, value


@pytest.mark.parametrize("verb", ["insert", "upsert"])
@pytest.mark.parametrize("count", [3, MANY + 3])
def test_an_error_names_the_row(txn: Any, verb: str, count: int) -> None:
    rows = [order(500 + n) for n in range(count)]
    rows[2]["qty"] = "many"
    with pytest.raises(hc.SchemaError) as error:
        getattr(txn, verb)("orders", rows)
    assert (error.value.column, error.value.row) == ("qty", 2)


@pytest.mark.parametrize("verb", ["insert", "upsert"])
@pytest.mark.parametrize("count", [3, MANY + 3])
def test_an_error_names_the_row_of_a_frame(txn: Any, verb: str, count: int) -> None:
    ids = list(range(500, 500 + count))
    quantities: list[Any] = [1] * count
    quantities[2] = 2**40
    frame = pa.table({"id": ids, "qty": quantities})
    for data in (frame, frame.to_pandas(), pl.from_arrow(frame), frame.to_reader()):
        with pytest.raises(hc.SchemaError) as error:
            getattr(txn, verb)("orders", data)
        assert (error.value.column, error.value.row) == ("qty", 2)


@pytest.mark.parametrize("count", [3, MANY + 3])
def test_a_null_key_in_a_frame_is_refused(txn: Any, count: int) -> None:
    ids = pa.array([None, *range(500, 499 + count)], pa.int64())
    data = pa.table({"id": ids, "qty": [1] * count})
    for verb in (txn.insert, txn.upsert):
        with pytest.raises(hc.SchemaError) as error:
            verb("orders", data)
        assert (error.value.column, error.value.row) == ("id", 0)


def test_a_null_in_part_of_a_composite_key_is_refused(txn: Any) -> None:
    for key in ({"id": 9, "sku": None}, {"id": None, "sku": "x"}):
        with pytest.raises(hc.SchemaError, match="null"):
            txn.insert("lines", key)


def test_a_column_that_must_be_given_is_named(txn: Any) -> None:
    for rows, column in (
        ({"status": "new", "qty": 1}, "id"),
        ({}, "id"),
        ({"id": 500}, "qty"),
        ({"id": 500, "status": "new"}, "qty"),
        (pa.table({"qty": [1]}), "id"),
        (pa.table({"id": [500]}), "qty"),
        (pa.table({"id": list(range(500, 520))}), "qty"),
    ):
        for verb in (txn.insert, txn.upsert):
            with pytest.raises(hc.SchemaError) as error:
                verb("orders", rows)
            assert error.value.column == column


@pytest.mark.parametrize("verb", ["insert", "upsert"])
def test_an_unknown_column_is_refused_with_a_hint(txn: Any, verb: str) -> None:
    row = {"id": 500, "qty": 1, "statsu": "new"}
    for rows in (
        row,
        [row, row],
        pa.Table.from_pylist([row]),
        pa.Table.from_pylist([row | {"id": n} for n in range(500, 520)]),
        pd.DataFrame([row]),
        pl.DataFrame([row]),
    ):
        with pytest.raises(hc.SchemaError, match="did you mean 'status'") as error:
            getattr(txn, verb)("orders", rows)
        assert error.value.column == "statsu"


def test_an_unknown_column_without_a_near_one_lists_the_columns(txn: Any) -> None:
    with pytest.raises(hc.SchemaError, match="the columns are id, status, amount"):
        txn.insert("orders", order(500, zzz=1))


def test_an_update_of_an_unknown_column_is_refused_with_a_hint(txn: Any) -> None:
    with pytest.raises(hc.SchemaError, match="did you mean 'status'"):
        txn.update("orders", 3, {"statsu": "x"})
    with pytest.raises(hc.SchemaError, match="did you mean 'status'"):
        txn.update("orders", where="true", set={"statsu": "x"})


@pytest.mark.parametrize(
    "rows", [{"id": 500, "ID": 500, "qty": 1}, pa.table({"id": [500], "ID": [500], "qty": [1]})]
)
def test_one_column_given_under_two_spellings_is_refused(txn: Any, rows: Any) -> None:
    with pytest.raises(hc.SchemaError, match="twice") as error:
        txn.insert("orders", rows)
    assert error.value.column == "id"


def test_what_is_neither_rows_nor_a_frame_is_refused(txn: Any) -> None:
    nonsense = [None, 5, "id", b"id", object(), [1], [[500, "new"]], [order(500), 5], {5: 1}]
    for rows in [*nonsense, pa.array([1])]:
        for verb in (txn.insert, txn.upsert):
            with pytest.raises(hc.SchemaError):
                verb("orders", rows)


def _forms(ids: list[int]) -> list[Any]:
    """The same rows as dicts, as Arrow and as pandas over numpy."""
    return [
        [order(n) for n in ids],
        pa.table({"id": ids, "qty": [1] * len(ids)}),
        pd.DataFrame({"id": np.array(ids), "qty": 1}),
    ]


@pytest.mark.parametrize("count", [2, MANY + 1])
def test_a_key_twice_in_one_batch_is_refused(txn: Any, count: int) -> None:
    for rows in _forms([*range(500, 499 + count), 500]):
        for verb in (txn.insert, txn.upsert):
            with pytest.raises(hc.DuplicateKeyError, match=r"500.*more than once in") as error:
                verb("orders", rows)
            assert (error.value.table, error.value.keys) == ("orders", [500])
            assert error.value.inside_input


@pytest.mark.parametrize("count", [1, MANY])
def test_a_key_that_is_taken_is_refused_and_the_others_stay_out(txn: Any, count: int) -> None:
    for rows in _forms([*range(500, 499 + count), 3]):
        with pytest.raises(hc.DuplicateKeyError, match="primary key 3 is already in") as error:
            txn.insert("orders", rows)
        assert (error.value.keys, error.value.total) == ([3], 1)
        assert not error.value.inside_input


def test_many_taken_keys_are_counted_and_ten_are_shown(own_db: Any) -> None:
    data = pa.table({"id": range(500, 530), "qty": [1] * 30})
    with own_db.begin() as txn:
        txn.insert("orders", data)
    with own_db.begin() as txn:
        with pytest.raises(hc.DuplicateKeyError, match="and 20 more") as error:
            txn.insert("orders", data)
        assert (len(error.value.keys), error.value.total) == (10, 30)


def test_own_rows_take_their_keys_too(txn: Any) -> None:
    txn.insert("lines", {"id": 70, "sku": "own", "n": 1})
    for rows in (
        {"id": 70, "sku": "own"},
        pa.table({"id": [70] * MANY, "sku": ["own", *"bcdefghi"]}),
    ):
        with pytest.raises(hc.DuplicateKeyError) as error:
            txn.insert("lines", rows)
        assert error.value.keys == [(70, "own")]
    assert txn.delete("lines", (70, "own")) is True


def test_an_update_of_a_missing_row_is_not_found(txn: Any) -> None:
    with pytest.raises(hc.NotFoundError, match=r"row 77 does not exist.*'orders'") as error:
        txn.update("orders", 77, {"status": "x"})
    assert (error.value.kind, error.value.name) == ("row", 77)
    with pytest.raises(hc.NotFoundError, match="no such key in table 'lines'"):
        txn.update("lines", (1, "zzz"), {"n": 1})


def test_an_update_of_a_row_this_transaction_deleted_is_not_found(txn: Any) -> None:
    txn.insert("lines", {"id": 70, "sku": "own", "n": 1})
    txn.delete("lines", (70, "own"))
    with pytest.raises(hc.NotFoundError):
        txn.update("lines", (70, "own"), {"n": 2})


def test_a_delete_of_a_missing_row_is_false_and_by_where_zero(txn: Any) -> None:
    assert txn.delete("orders", 77) is False
    assert txn.delete("orders", where="id = 77") == 0
    assert txn.update("orders", where="id = 77", set={"status": "x"}) == 0


def test_moving_a_row_onto_a_key_that_is_taken_is_refused(txn: Any) -> None:
    with pytest.raises(hc.DuplicateKeyError) as error:
        txn.update("orders", 3, {"id": 4})
    assert error.value.keys == [4]
    with pytest.raises(hc.DuplicateKeyError):
        txn.update("orders", where="id in (3, 4)", set={"id": 500})


@pytest.mark.parametrize(
    "empty", [[], pa.table({"id": pa.array([], pa.int64())})], ids=["rows", "arrow"]
)
def test_nothing_to_insert_is_no_error(txn: Any, empty: Any) -> None:
    assert txn.insert("orders", empty) == 0


def test_a_table_without_a_key_refuses_what_needs_one(txn: Any) -> None:
    for verb, *arguments in (
        ("upsert", {"text": "x", "n": 1}),
        ("upsert", pa.table({"n": list(range(20))})),
        ("get", 1),
        ("get_many", [1]),
        ("get_many", []),
        ("range",),
        ("range", 1, 2),
        ("update", 1, {"n": 2}),
        ("delete", 1),
    ):
        with pytest.raises(hc.UsageError, match="no primary key"):
            getattr(txn, verb)("events", *arguments)


def test_columns_instead_of_rows_get_a_hint(db: Any) -> None:
    """A dict is one row, whatever pandas makes of it."""
    db.create_table("columns", {"id": int, "v": str}, primary_key="id")
    for rows in ({"id": [1, 2], "v": ["a", "b"]}, {"id": np.arange(2), "v": "a"}):
        with pytest.raises(hc.SchemaError, match="many rows are a list of dicts, or an Arrow"):
            db.run(lambda txn, rows=rows: txn.insert("columns", rows))
    assert db.table("columns").count() == 0


def test_a_stream_whose_source_fails_says_why_and_leaves_nothing(db: Any) -> None:
    db.create_table("streamed", {"id": int}, primary_key="id")

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"id": pa.array([1, 2])})
        raise ValueError("the source broke")

    reader = pa.RecordBatchReader.from_batches(pa.schema([("id", pa.int64())]), batches())
    with pytest.raises(hc.SchemaError, match=r"the source broke$"):
        db.run(lambda txn: txn.insert("streamed", reader))
    assert db.table("streamed").count() == 0

"""Whole rows: names, absences, keys inside them, and the safety of generated code."""

from __future__ import annotations

import threading
from collections import UserDict, defaultdict
from decimal import Decimal
from typing import Any

import pytest

from halocline.errors import SchemaError, UsageError
from halocline.schema.schema import Schema

ORDERS = Schema.define({"id": int, "Status": str, "amount": "decimal(12,2) not null"}, "id")
GOOD = {"id": 1, "Status": "new", "amount": Decimal("1.00")}


def test_a_row_is_a_tuple_in_column_order_whatever_the_order_of_the_input() -> None:
    assert ORDERS.row(GOOD) == (1, "new", Decimal("1.00"))
    assert ORDERS.row(dict(reversed(GOOD.items()))) == (1, "new", Decimal("1.00"))
    assert ORDERS.row(UserDict(GOOD)) == (1, "new", Decimal("1.00"))
    assert ORDERS.row({"ID": 1, "STATUS": "new", "amount": 1}) == (1, "new", Decimal("1.00"))


def test_absent_columns_are_null() -> None:
    assert ORDERS.row({"id": 1, "amount": 1}) == (1, None, Decimal("1.00"))


def test_a_dict_that_makes_values_up_is_not_asked_for_absent_ones() -> None:
    values: defaultdict[str, Any] = defaultdict(lambda: "made up", {"id": 1, "amount": 1})
    assert ORDERS.row(values) == (1, None, Decimal("1.00"))
    assert set(values) == {"id", "amount"}


@pytest.mark.parametrize(
    ("values", "column", "text"),
    [
        ({**GOOD, "more": 1}, "more", "there is no such column"),
        ({**GOOD, "stats": 1}, "stats", "did you mean 'Status'"),
        ({"id": 1, "Status": "x"}, "amount", "must not be null"),
        ({"id": 1, "amount": None}, "amount", "must not be null"),
        ({"amount": 1}, "id", "must not be null"),
        ({**GOOD, "id": None}, "id", "primary key column must not be null"),
        ({**GOOD, "status": "again"}, "Status", "twice"),
        ({**GOOD, 5: 1}, None, "a column name is a string"),
        ({}, "id", "must not be null"),
        ([1, "new", 1], None, "a row is a mapping"),
        ("id", None, "a row is a mapping"),
        (None, None, "a row is a mapping"),
        (7, None, "a row is a mapping"),
    ],
)
def test_a_bad_row_says_what_is_wrong(values: Any, column: str | None, text: str) -> None:
    with pytest.raises(SchemaError, match=text) as caught:
        ORDERS.row(values)
    assert caught.value.column == column


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"nope": 1}, "no such column"),
        ({"id": None}, "primary key column must not be null"),
        ({"status": 1, "STATUS": "x"}, "twice"),
        ([("id", 1)], "by column name"),
        (None, "by column name"),
    ],
)
def test_a_bad_part_of_a_row_says_what_is_wrong(values: Any, text: str) -> None:
    with pytest.raises(SchemaError, match=text):
        ORDERS.partial(values)


def test_a_part_of_a_row_is_checked_like_the_row_and_nothing_is_added() -> None:
    assert ORDERS.partial({}) == {}
    assert ORDERS.partial({"amount": 2, "STATUS": None}) == {2: Decimal("2.00"), 1: None}


def test_names_of_callers_never_become_source_code() -> None:
    names = [
        "v0",
        "n1",
        "general",
        "cells",
        "type",
        "x'); raise SystemExit('",
        'q"""',
        "{v}",
        "\\",
        "return",
        "import os; os.abort()",
        "é",
    ]
    schema = Schema.define(dict.fromkeys(names, "int"))
    values = {name: at for at, name in enumerate(names)}
    row = schema.row(values)
    assert row == tuple(range(len(names)))
    assert schema.as_dict(row) == values
    assert schema.cells(schema.to_arrow([row]))(0) == row
    assert schema.decode_rows(schema.encode_rows([row])) == [row]
    assert schema.partial(values) == dict(enumerate(row))
    nasty = Schema.define({"s": 'struct<"__class__": int, "it\'s ""odd""": int>'})
    value = {"__class__": 1, 'it\'s "odd"': 2}
    row = nasty.row({"s": value})
    assert nasty.decode_rows(nasty.encode_rows([row])) == [row] == [(value,)]


def test_wide_tables_work_too() -> None:
    names = [f"c{at}" for at in range(1000)]
    schema = Schema.define(dict.fromkeys(names, "int"), "c7")
    row = schema.row(dict(zip(names, range(1000), strict=True)))
    assert row == tuple(range(1000))
    assert schema.row({"c7": 1})[7] == 1
    assert schema.as_dict(row)["c999"] == 999
    assert schema.cells(schema.to_arrow([row]))(0) == row


def test_a_long_text_in_a_key_is_refused_in_rows_and_tables() -> None:
    schema = Schema.define({"a": str, "b": bytes, "v": str}, ["a", "b"], key_bytes_max=20)
    fits = {"a": "x" * 8, "b": b"y" * 8, "v": "z" * 10_000}
    assert schema.row(fits)
    assert schema.table([fits]).num_rows == 1
    for long in ({"a": "x" * 9}, {"b": b"y" * 9}, {"a": "é" * 5}, {"b": b"y" * 7 + b"\0"}):
        with pytest.raises(SchemaError, match="at most 20"):
            schema.row({**fits, **long})
        with pytest.raises(SchemaError, match="at most 20"):
            schema.table([{**fits, **long}])
        with pytest.raises(SchemaError, match="at most 20"):
            schema.table([{"a": fits["a"], "b": fits["b"], **long}], columns="given")
    with pytest.raises(SchemaError, match="at most 20") as caught:
        schema.table(schema.arrow.empty_table().from_pylist([fits, {**fits, "a": "x" * 9}]))
    assert caught.value.row == 1


def test_key_of_a_partial_row_needs_the_whole_key() -> None:
    schema = Schema.define({"a": int, "b": str, "v": int}, ["b", "a"])
    assert schema.key_of_partial({0: 1, 1: "x"}) == ("x", 1)
    with pytest.raises(SchemaError, match="primary key") as caught:
        schema.key_of_partial({0: 1})
    assert caught.value.column == "b"
    assert ORDERS.key_of_partial({0: 7}) == 7


def test_threads_share_a_schema_from_its_first_use() -> None:
    schema = Schema.define({"id": int, "d": "decimal(12,2)", "s": str}, "id")
    start = threading.Barrier(8)
    failures: list[Any] = []

    def work(number: int) -> None:
        start.wait()
        for at in range(200):
            row = schema.row({"id": at, "d": Decimal(number), "s": "x"})
            back = schema.decode_rows(schema.encode_rows([row]))
            if back != [row] or schema.cells(schema.to_arrow([row]))(0) != row:
                failures.append(row)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_usage_errors_are_the_root_of_schema_errors() -> None:
    with pytest.raises(UsageError):
        ORDERS.row({})

"""Checks asked of rows: Python against DuckDB, what may be a check, and what an error says.

    random conditions --row_test--> does this row break it?  ==  DuckDB: is the condition false?

Conditions and rows are those of the test of pruning (test_prune_against_duckdb.py), which is full
of edges; to them come comparisons of two columns and lengths.
"""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from halocline.errors import CheckError, UsageError
from halocline.read import guard
from halocline.read.row_test import broken_by
from halocline.read.statement import ENGINE_NAMES, UNSTEADY, bind_check
from halocline.schema.checks import RowCheck
from halocline.schema.schema import Schema
from halocline.txn.definitions import with_checks
from tests.unit.read.test_prune_against_duckdb import (
    PAIRS,
    POOLS,
    SCHEMA,
    Maker,
    Oracle,
    quoted,
    rows_of,
)

SAME = ["i8", "i32", "i64"]
OPERATORS = ["=", "<>", "<", "<=", ">", ">="]


def written(value: Any) -> str | None:
    """A parameter as a literal, for a check has none; None when it has no plain form."""
    if isinstance(value, bool) or value is None:
        return str(value).lower() if value is not None else "null"
    if isinstance(value, (int, Decimal)):
        return f"{value:f}" if isinstance(value, Decimal) else str(value)
    if isinstance(value, float):
        return f"'{value!r}'::double"
    if isinstance(value, str):
        return None if "\0" in value else quoted(value)
    if isinstance(value, dt.datetime):
        kind = "timestamp" if value.tzinfo is None else "timestamptz"
        return f"{kind} '{value.isoformat(' ')}'"
    return f"date '{value.isoformat()}'" if isinstance(value, dt.date) else None


class CheckMaker(Maker):
    """Conditions without parameters, over one column or two."""

    def text(self) -> str | None:
        pair = self.pick([*self.names, *SAME]), self.pick([*self.names, *SAME])
        more = f"{pair[0]} {self.pick(OPERATORS)} {pair[1]}"
        length = f"length(s) {self.pick(OPERATORS)} {self.pick([0, 1, 2, 70])}"
        text, params = self.predicate()
        for param in params:
            literal = written(param)
            if literal is None:
                return None
            text = text.replace("?", literal, 1)
        form = self.pick(["{}", "{}", "{} and {}", "{} or {}", "not ({})", "{} and not {}"])
        return form.format(text, self.pick([more, length]))


@settings(max_examples=max(60, settings.default.max_examples // 10))
@given(names=st.sampled_from(PAIRS), chance=st.randoms(use_true_random=True))
def test_a_row_breaks_a_check_in_python_if_it_does_in_duckdb(
    names: tuple[str, ...], chance: random.Random
) -> None:
    rows = rows_of(names)
    oracle, maker = Oracle(rows), CheckMaker(chance, names)
    for _ in range(20):
        text = maker.text()
        answer = None if text is None else oracle.ask(text, (), filtered=False)
        if text is None or answer is None:
            event("not asked")
            continue
        try:
            test = broken_by(bind_check(text, SCHEMA), SCHEMA)
        except UsageError:
            event("no check")
            continue
        event("left to DuckDB" if test is None else "Python tells")
        for row, holds in zip(rows, answer[0], strict=True):
            if test is not None:
                assert test(row) == (holds is not None and not holds), (text, row)


@pytest.mark.parametrize("name", POOLS)
def test_every_column_beside_itself_and_null(name: str) -> None:
    rows = rows_of((name,))
    oracle = Oracle(rows)
    for text in [f"{name} = {name}", f"{name} < {name}", f"{name} is null", f"{name} = null"]:
        answer = oracle.ask(text, (), filtered=False)
        test = broken_by(bind_check(text, SCHEMA), SCHEMA)
        for row, holds in zip(rows, answer[0] if answer else [], strict=False):
            assert test is None or test(row) == (holds is False), (text, row)


def checked(*texts: str, columns: dict[str, Any] | None = None) -> Schema:
    """A schema with these checks, called c0, c1 and so on."""
    schema = Schema.define(columns or {"id": int, "a": int, "b": int, "s": str}, "id")
    return with_checks(schema, "t", {f"c{at}": text for at, text in enumerate(texts)})


@pytest.mark.parametrize("texts", [["a < b"], ["a + 0 < b"], ["a < b", "length(trim(s)) > 0"]])
def test_rows_and_tables_are_told_the_same(texts: list[str]) -> None:
    schema = checked(*texts)
    rows = [(1, 1, 2, "x"), (2, 3, 2, "x"), (3, None, 2, None), (4, 5, 5, "x"), (5, 1, 2, "y")]
    with pytest.raises(CheckError) as of_rows:
        guard.check_rows(schema, rows, "t", numbered=True)
    with pytest.raises(CheckError) as of_table:
        guard.check_table(schema, schema.to_table(rows), "t", first=0)
    for error in (of_rows.value, of_table.value):
        assert (error.table, error.check, error.expression) == ("t", "c0", texts[0])
        assert (error.key, error.values, error.row, error.total) == (2, {"a": 3, "b": 2}, 1, 2)
        assert list(error.broken) == [2, 4]
    assert list(guard.broken_rows(schema, schema.to_table(rows), "t")) == [3, 1]
    guard.check_rows(schema, [rows[0], rows[2]], "t")


def test_a_check_keeps_its_text_and_follows_its_columns() -> None:
    schema = checked('"a"  < T.b -- in order', "a in (1, 2) or s = 'a < b'")
    names = {1: "id", 2: "new name", 3: "order", 4: "s"}
    assert schema.checks[0].text(names) == '"new name"  < order -- in order'
    assert schema.checks[0].text(names, quoted=True) == '"new name"  < "order" -- in order'
    assert schema.checks[1].text(names) == "\"new name\" in (1, 2) or s = 'a < b'"
    again = Schema.from_wire(schema.to_wire())
    assert again == schema
    assert again.checks[0].ids == (2, 3)
    assert schema.companions == {1: {1, 2, 3}, 2: {1, 2}, 3: {1, 3}}


def test_a_check_may_look_into_structs_and_lists() -> None:
    columns = {"id": int, "p": pa.struct([("x", pa.int64())]), "l": pa.list_(pa.int64())}
    schema = checked("p.x > 0", "len(list_filter(l, x -> x < 0)) = 0", columns=columns)
    guard.check_rows(schema, [(1, {"x": 1}, [1]), (2, None, None)], "t")
    with pytest.raises(CheckError, match="c0"):
        guard.check_rows(schema, [(1, {"x": 0}, [1])], "t")
    with pytest.raises(CheckError, match="c1"):
        guard.check_rows(schema, [(1, {"x": 1}, [1, -1])], "t")


BAD = {
    "an empty one": "",
    "blank": " ",
    "no text": 5,
    "none": None,
    "no expression": "a <",
    "two statements": "a > 0; select 1",
    "another clause": "a > 0 group by a",
    "a subquery": "a > (select 1)",
    "exists": "exists (select 1)",
    "an aggregate": "sum(a) > 0",
    "an aggregate the parser does not know": "bit_xor(a) > 0",
    "a window": "row_number() over () > a",
    "a parameter": "a > ?",
    "a numbered parameter": "a > $1",
    "a named parameter": "a > $x",
    "an unknown column": "nothing > 0",
    "a column of another table": "u.a > 0",
    "no column": "1 = 1",
    "a star": "a > * ",
    "a number": "a + 1",
    "a text": "s",
    "the clock": "a > 0 and now() > timestamp '2020-01-01'",
    "the date": "a > 0 and current_date > date '2020-01-01'",
    "chance": "a > random()",
    "a uuid": "s <> uuid()",
    "age of now": "a > 0 and age(timestamp '2020-01-01') > interval 1 day",
    "a setting": "s = current_setting('threads')",
    "an unknown function": "foo(a)",
    "types that do not compare": "a > date '2020-01-01'",
    "a constant of no type": "a > 'x'",
    "a table function": "a in (select * from range(3))",
    "too long": "a > 0" + " " * 10_000,
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD.keys())
def test_what_is_no_check_is_refused_by_name(text: Any) -> None:
    schema = Schema.define({"id": int, "a": int, "s": str}, "id")
    with pytest.raises(UsageError, match="'mine'"):
        with_checks(schema, "t", {"mine": text})


@pytest.mark.parametrize(
    "checks",
    [
        ["a > 0"],
        "a > 0",
        {"": "a > 0"},
        {1: "a > 0"},
        {"x\ny": "a > 0"},
        {"x" * 101: "a > 0"},
        {"x": "a > 0", "X": "a > 1"},
        {f"c{at}": "a > 0" for at in range(101)},
    ],
)
def test_what_is_no_name_of_a_check_is_refused(checks: Any) -> None:
    schema = Schema.define({"id": int, "a": int}, "id")
    with pytest.raises(UsageError, match="check"):
        with_checks(schema, "t", checks)


def test_functions_that_duckdb_calls_unsteady_are_refused() -> None:
    found = duckdb.connect(":memory:").execute(
        "select distinct function_name from duckdb_functions() where stability <> 'CONSISTENT'"
    )
    names = {name for (name,) in found.fetchall() if not name.startswith(ENGINE_NAMES)}
    assert names <= UNSTEADY, names - UNSTEADY


def test_an_expression_that_fails_over_a_row_is_an_error_of_that_write() -> None:
    schema = checked("cast(s as int) > a")
    guard.check_rows(schema, [(1, 1, None, "2")], "t")
    with pytest.raises(UsageError, match="of table 't' cannot be worked out"):
        guard.check_rows(schema, [(1, 1, None, "x")], "t")


def test_a_check_out_of_a_damaged_catalog_is_refused() -> None:
    wire = checked("a < b").to_wire()
    for broken in (["c", ["", ""], [2, 3], True], ["c", ["", " < ", ""], [2, 9], True]):
        with pytest.raises(UsageError):
            Schema.from_wire(wire | {"checks": [broken]})
    assert RowCheck("c", ("", " > 0"), (2,)).to_wire() == ["c", ["", " > 0"], [2], True]

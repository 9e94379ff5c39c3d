"""Statements: what parses to what, which tables are named, how names are quoted."""

from __future__ import annotations

import pytest

from halocline.errors import SchemaError, UsageError
from halocline.read.predicate import number_parameters
from halocline.read.source import quote
from halocline.read.statement import (
    check_params,
    parse_condition,
    parse_order,
    parse_query,
    parse_where,
)
from halocline.schema.schema import Schema

SCHEMA = Schema.define(
    {
        "id": int,
        "at": "timestamptz",
        "Group By": int,
        "tags": "string[]",
        "orders": "struct<x: int>",
    },
    "id",
)


@pytest.mark.parametrize(
    ("text", "tables"),
    [
        ("select 1", ()),
        ("select * from a", ("a",)),
        ("select * from A, b join c using (x)", ("A", "b", "c")),
        ("from a", ("a",)),
        ("select * from a where x in (select y from b)", ("a", "b")),
        ("select (select max(x) from a)", ("a",)),
        ("select * from a union select * from b", ("a", "b")),
        ('select * from "A b", "x""y"', ("A b", 'x"y')),
        ("select * from range(3), unnest([1])", ()),
        ("select * from a, lateral (select a.x) l", ("a",)),
        ("select * from a, a as b", ("a",)),
        ("select 'from b' from a -- from c", ("a",)),
    ],
)
def test_the_tables_of_a_query(text: str, tables: tuple[str, ...]) -> None:
    query = parse_query(text)
    assert set(query.tables) == set(tables)
    assert query.text == text


def test_names_that_a_query_defines_itself() -> None:
    query = parse_query("with X as (select 1), y as (from a) select * from x, y, b")
    assert query.defined == {"x", "y"}
    assert {"a", "b"} <= set(query.tables)


def test_a_query_is_parsed_once() -> None:
    assert parse_query("select 41 + 1") is parse_query("select 41 + 1")


def test_an_error_is_not_remembered_as_an_answer() -> None:
    for _ in range(2):
        with pytest.raises(UsageError):
            parse_query("drop table a")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("id = ?", '("id" = ?)'),
        ("ID = 1 -- comment", '("ID" = 1'),
        ("orders.id = 1", '("id" = 1)'),
        ("t.id = 1", '("id" = 1)'),
    ],
)
def test_names_in_a_predicate_are_quoted(text: str, wanted: str) -> None:
    schema = Schema.define({"id": int}, "id")
    table = "t" if text.startswith("t.") else "orders"
    assert parse_where(text, schema, table).startswith(wanted)


def test_a_column_may_have_the_name_of_its_table() -> None:
    assert '"orders"' in parse_where("orders.x = 1", SCHEMA, "orders")


def test_the_columns_of_a_lambda_are_its_own() -> None:
    text = "len(list_filter(tags, lambda t: t = 'x')) > 0"
    assert '"t"' in parse_where(text, SCHEMA, "orders")
    with pytest.raises(SchemaError, match="tagz"):
        parse_where("len(list_filter(tagz, lambda t: t = 'x')) > 0", SCHEMA, "orders")


@pytest.mark.parametrize("name", ["nope", "idd", "_rowid", "other.id", "x"])
def test_an_unknown_column_is_a_schema_error(name: str) -> None:
    for parse in (parse_where, parse_order):
        with pytest.raises(SchemaError) as error:
            parse(f"{name} > 1", SCHEMA, "orders")
        assert error.value.column == name.split(".", maxsplit=1)[0]


def test_an_order_is_a_text_or_a_list_of_names() -> None:
    assert parse_order("at desc nulls first, id", SCHEMA, "t") == '"at" DESC NULLS FIRST, "id"'
    assert parse_order(["AT", "group by"], SCHEMA, "t") == '"at", "Group By"'
    assert parse_order(("id",), SCHEMA, "t") == '"id"'
    for bad in (["id desc"], [1], 5, "", [], "id limit 1", "max(id)", None, {"id"}):
        with pytest.raises(UsageError):
            parse_order(bad, SCHEMA, "t")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "quoted"),
    [("a", '"a"'), ('a"b', '"a""b"'), ('"', '""""'), ("", '""'), ("a'b;--", '"a\'b;--"')],
)
def test_quoting(name: str, quoted: str) -> None:
    assert quote(name) == quoted


def test_parameters() -> None:
    assert check_params(None) == check_params([]) == check_params(()) == []
    assert check_params((1, None, "x")) == [1, None, "x"]
    for bad in ("x", b"x", {"a": 1}, 5, iter(()), {1}):
        with pytest.raises(UsageError):
            check_params(bad)  # type: ignore[arg-type]


SIDES = {"source": ("id", "At", "odd name"), "target": ("id", "at", "s")}


def test_a_condition_names_its_sides() -> None:
    text, used = parse_condition('SOURCE.at > target.AT and source."odd name" = 1', SIDES)
    assert text == '("source"."At" > "target"."at" AND "source"."odd name" = 1)'
    assert used == {("source", "At"), ("target", "at"), ("source", "odd name")}
    assert parse_condition("target.s.inner is null", SIDES)[1] == {("target", "s")}
    assert parse_condition("source.id", SIDES)[0] == '("source"."id")'
    assert parse_condition("true", SIDES) == ("(TRUE)", set())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "at > 1",
        "other.at > 1",
        "source.*",
        "source.at > (select 1)",
        "sum(source.at) > 1",
        "source.at > 1 order by 1",
        "source.at > 1; select 1",
        "row_number() over () = 1",
        "source.at >",
    ],
)
def test_a_condition_is_one_expression_over_its_sides(text: str) -> None:
    with pytest.raises(UsageError):
        parse_condition(text, SIDES)


def test_a_condition_knows_its_columns() -> None:
    with pytest.raises(SchemaError, match="nope"):
        parse_condition("source.nope = 1", SIDES)
    with pytest.raises(UsageError):
        parse_condition(5, SIDES)  # type: ignore[arg-type]


def test_a_parameter_may_be_cast_with_colons() -> None:
    assert parse_query("select ?::date, '?::', \"a?::\" from t").tables == ("t",)
    assert "?::" in parse_query("select '?::' from t where x = ?::int").quoted
    assert parse_where("at > ?::timestamptz", SCHEMA, "t") == '("at" > CAST(? AS TIMESTAMPTZ))'
    assert number_parameters("a = ?::int and b = '?::' and c = ?") == (
        "a = $1  ::int and b = '?::' and c = $2 "
    )

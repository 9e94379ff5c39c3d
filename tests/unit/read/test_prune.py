"""Pruning by example: what a zonemap excludes, what it must not, and what a predicate costs."""

from __future__ import annotations

import datetime as dt
import math
import timeit
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from halocline.errors import UsageError
from halocline.objects.zonemap import Zonemap, zonemap
from halocline.read.predicate import compile_where
from halocline.schema.schema import Schema
from tests.unit.read.where import FALSE, TRUE, judge_where

UTC = dt.UTC
SCHEMA = Schema.define(
    {
        "id": int,
        "name": str,
        "price": "decimal(12,2)",
        "ratio": float,
        "at": "timestamptz",
        "day": "date",
        "paid": bool,
        "tags": pa.list_(pa.string()),
    },
    "id",
)
IDS = {column.name: column.id for column in SCHEMA.columns}


def zone(low: Any, high: Any, *, nulls: int = 0, rows: int = 100, nans: int = 0) -> Zonemap:
    return Zonemap(rows=rows, nulls=nulls, nans=nans, min=low, max=high)


ZONES = {
    IDS["id"]: zone(100, 199),
    IDS["name"]: zone("gamma", "kappa", nulls=3),
    IDS["price"]: zone(Decimal("1.00"), Decimal("9.99")),
    IDS["ratio"]: zone(0.25, 0.75, nans=1),
    IDS["at"]: zone(dt.datetime(2024, 3, 1, tzinfo=UTC), dt.datetime(2024, 3, 31, tzinfo=UTC)),
    IDS["day"]: zone(dt.date(2024, 3, 1), dt.date(2024, 3, 31)),
    IDS["paid"]: zone(False, False),
    IDS["tags"]: zone(None, None, nulls=100),
}


def keeps(where: str, *params: Any) -> bool:
    return compile_where(where, params, SCHEMA).may_match(ZONES)


@pytest.mark.parametrize(
    "where",
    [
        *["id = 99", "id = 200", "200 = id", "id < 100", "id <= 99", "id > 199", "99.5 > id"],
        *["id = 150.5 and id > 300", "id in (1, 2, 99, 200)", "id between 200 and 300"],
        *["not id >= 100", "id = null", "id is null", "ID > 1e3", 'not "id" between 100 and 199'],
        *["name = 'alpha'", "name > 'kappa'", "name < 'gamma'", "name like 'alp%'"],
        *["starts_with(name, 'z')", "name ^@ 'fb'", "prefix(name, 'kb')", "name like 'zeta'"],
        *["price = 10", "price > 9.99", "price < 1.0", "price = 9.990001e0 + 0 and price > 1e3"],
        *["ratio < 0.25", "ratio = 0.2", "ratio between 0.1 and 0.2"],
        *[
            "at >= '2024-04-01'",
            "at < timestamptz '2024-03-01 00:00:00+00'",
            "at = date '2024-02-29'",
        ],
        *[
            "at < '2024-03-01 01:00:00+02'",
            "day > '2024-03-31'",
            "day > timestamp '2024-03-31 10:00:00'",
        ],
        *["paid", "paid = true", "paid is true", "not not paid", "paid and id = 150"],
        *["tags is not null", "name is null and id = 5", "(id < 0 or name = 'z') and price > 0"],
        *[
            "false",
            "null",
            "not true",
            "id = 150 and null",
            "id in (null, 5)",
            "id not in (150, null)",
        ],
        *[
            "id = 5 and abs(id) = 5",
            "not (id > 10 or abs(id) = 3)",
            "id is distinct from id and id = 5",
        ],
        *["id is not distinct from null", "name is not distinct from 'a'"],
    ],
)
def test_i06_these_predicates_cannot_match_and_the_object_is_left_unread(where: str):
    assert not keeps(where)


@pytest.mark.parametrize(
    "where",
    [
        *[
            "id = 100",
            "id = 199",
            "id <> 100",
            "id >= 199",
            "id <= 100",
            "id in (1, 150)",
            "id = 150.0",
        ],
        *["name = 'gamma'", "name is null", "name is not null", "name like 'ka%'", "name like '%'"],
        *["name like 'GAMMA%' or name ilike 'GAMMA%'", "name not like 'gam%'", "name like '_amma'"],
        *["price = 5", "price <= 1", "price = 9.99e0", "price between 0 and 1"],
        *[
            "ratio > 0.75",
            "ratio = 'nan'::double",
            "ratio > 1e300",
            "not ratio < 1",
            "ratio >= 0.75",
        ],
        *["at <= '2024-03-01'", "at = '2024-03-01 02:00:00+02'", "day >= timestamp '2024-03-31'"],
        *["not paid", "paid = false", "paid is not true", "paid is false", "paid <= false"],
        *["tags is null", "true", "id + 1 = 5", "abs(id) = 5", "id::varchar = 'x'", "id = '5'"],
        *["lower(name) = 'z'", "id = 5 or abs(id) = 5", "not (abs(id) = 5)", "name = 'z' or true"],
        *["case when id = 5 then true else false end", "id = day", "id is distinct from 5"],
        *[
            "id is distinct from null",
            "name collate nocase = 'Z'",
        ],
        *["name like 'z%' escape '!'", "not (name = 'z' and null)", "(id, name) = (5, 'a')"],
    ],
)
def test_these_predicates_may_match_or_cannot_be_decided(where: str):
    assert keeps(where)


def test_parameters_are_counted_by_their_place_in_the_text():
    assert not keeps("name = ? or id = ?", "zeta", 5)
    assert keeps("name = ? or id = ?", "zeta", 150)
    assert keeps("case ? when 1 then id = ? else false end or id = ?", 1, 2, 150)
    assert not keeps("id = $2 and name = $1", "gamma", 5)
    assert not keeps("? < id", 500)
    assert not keeps("id = -?", 150)


@pytest.mark.parametrize(
    ("where", "value", "kept"),
    [
        ("id = ?", Decimal("150.5"), True),
        ("id = ?", Decimal("99.5"), False),
        ("id > ?", 199.5, False),
        ("id < ?", math.nan, True),
        ("id > ?", math.nan, False),
        ("id < ?", math.inf, True),
        ("id > ?", math.inf, False),
        ("price > ?", math.inf, False),
        ("ratio > ?", math.inf, True),
        ("ratio = ?", math.nan, True),
        ("at > ?", dt.datetime(2024, 4, 1), False),
        ("at > ?", dt.date(2024, 4, 1), False),
        ("at > ?", "2024-04-01", False),
        ("at > ?", dt.datetime(2024, 3, 31, 2, tzinfo=dt.timezone(dt.timedelta(hours=3))), True),
        ("day > ?", dt.datetime(2024, 3, 31, 0, 0, 1), False),
        ("day > ?", dt.datetime(2024, 3, 30, 23, 59), True),
        ("name = ?", None, False),
        ("name = ?", "\ud800", True),
        ("id = ?", [1], True),
        ("id in ?", [1], True),
        ("id = ?", 10**50, True),
    ],
)
def test_parameters_are_typed_as_duckdb_types_them(where: str, value: Any, kept: bool):
    assert keeps(where, value) is kept


def test_a_bigint_beside_a_double_is_rounded_first_as_in_duckdb():
    big = {IDS["id"]: zone(2**53 + 1, 2**53 + 1)}
    predicate = compile_where("id = 9007199254740992e0", None, SCHEMA)
    assert predicate.may_match(big)
    exact = compile_where("id = 9007199254740992", None, SCHEMA)
    assert not exact.may_match(big)


def test_cut_bounds_of_long_strings_hold_what_they_stand_for():
    value = "x" * 100 + "y"
    cut = {IDS["name"]: zonemap(pa.array([value]))}
    assert len(cut[IDS["name"]].max) < 100
    assert compile_where("name = ?", [value], SCHEMA).may_match(cut)
    assert compile_where("name like ?", ["x" * 90 + "%"], SCHEMA).may_match(cut)
    assert compile_where("name >= ?", [value], SCHEMA).may_match(cut)
    assert not compile_where("name > 'xy'", None, SCHEMA).may_match(cut)


def test_bounds_that_are_unknown_exclude_nothing_but_nulls_still_do():
    unknown = {IDS["name"]: zone(None, None), IDS["id"]: zone(None, None, nulls=100)}
    for where in ("name = 'a'", "name < 'a'", "name > 'a'", "name like 'a%'", "name in ('a')"):
        assert compile_where(where, None, SCHEMA).may_match(unknown)
    for where in ("id = 1", "not id = 1", "id < 5", "id is not null"):
        assert not compile_where(where, None, SCHEMA).may_match(unknown)
    assert compile_where("id is null", None, SCHEMA).may_match(unknown)


def test_nan_is_above_all_numbers_and_equal_to_itself():
    only = {IDS["ratio"]: zonemap(pa.array([math.nan, None, math.nan]))}
    for where in (
        "ratio < 1e300",
        "ratio <= 'inf'::double",
        "ratio = 5",
        "ratio is null and false",
    ):
        assert not compile_where(where, None, SCHEMA).may_match(only)
    for where in ("ratio > 1e300", "ratio <> 5", "ratio = 'nan'::double", "ratio >= 'nan'::double"):
        assert compile_where(where, None, SCHEMA).may_match(only)
    none = {IDS["ratio"]: zonemap(pa.array([1.0, math.inf]))}
    assert not compile_where("ratio = 'nan'::double", None, SCHEMA).may_match(none)
    assert not compile_where("ratio >= 'nan'::double", None, SCHEMA).may_match(none)
    assert compile_where("ratio < 'nan'::double", None, SCHEMA).may_match(none)


def test_a_column_without_a_zonemap_is_undecided():
    predicate = compile_where("id = 5 and name = 'z'", None, SCHEMA)
    assert predicate.may_match({})
    assert not predicate.may_match({IDS["name"]: ZONES[IDS["name"]]})


def test_bounds_of_another_type_are_undecided():
    predicate = compile_where("at > '2024-01-01'", None, SCHEMA)
    assert predicate.may_match({IDS["at"]: zone(dt.date(2020, 1, 1), dt.date(2020, 1, 2))})


@pytest.mark.parametrize(
    ("where", "results"),
    [
        ("id < 150", TRUE | FALSE),
        ("id < 200", TRUE),
        ("id < 100", FALSE),
        ("name < 'a'", FALSE),
        ("not name < 'a'", TRUE),
        ("name < 'a' and id < 200", FALSE),
        ("name < 'a' or id < 200", TRUE),
        ("name < 'a' or id < 100", FALSE),
        ("(name > 'a') is true", TRUE | FALSE),
        ("abs(id) = 1 and id < 100", FALSE),
        ("abs(id) = 1 or id < 200", TRUE),
        ("ratio < 1", TRUE | FALSE),
        ("id in (5, null)", 0),
        ("id in (150, null)", TRUE),
        ("paid in (false)", TRUE),
        ("day between '2024-03-01' and '2024-03-31'", TRUE),
        ("id <> 5", TRUE),
        ("null and id = 5", FALSE),
        ("null or id = 5", 0),
    ],
)
def test_which_of_true_and_false_a_condition_can_be(where: str, results: int):
    assert judge_where(where, [], SCHEMA)(ZONES) == results


def test_a_text_that_is_no_predicate_is_refused():
    for where in ("", "id = ", "id = (select 1)", "id = 1; drop table t"):
        with pytest.raises(UsageError):
            compile_where(where, None, SCHEMA)


def test_thousands_of_parts_do_not_exhaust_the_stack():
    where = " or ".join(f"id = {at}" for at in range(1500))
    predicate = compile_where(where, None, SCHEMA)
    assert predicate.may_match(ZONES)
    assert not predicate.may_match({IDS["id"]: zone(1500, 1600)})


def test_a_typical_predicate_costs_less_than_20_us_per_object():
    where = "at >= ? and at < ? and name in ('gamma', 'iota') and not (price > 5 or id < 120)"
    span = [dt.datetime(2024, 3, 5, tzinfo=UTC), dt.datetime(2024, 3, 6, tzinfo=UTC)]
    predicate = compile_where(where, span, SCHEMA)
    assert predicate.may_match(ZONES)
    best = min(timeit.repeat(lambda: predicate.may_match(ZONES), number=500, repeat=7)) / 500
    assert best < 20e-6

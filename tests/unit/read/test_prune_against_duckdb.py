"""Pruning against DuckDB: random predicates over rows of every type, one by one and in chunks.

    rows --alone and in chunks--> zonemaps --masks--.
       '---------> DuckDB: the predicate of each row --> must be in the mask of all its chunks

That is more than "never prunes a matching row": it holds for FALSE and NULL too, so that NOT over
any part is right as well. Values come from small pools full of edges; a predicate looks at two
columns and meets every value of both.

Hypothesis chooses columns and seeds; predicates are made from the seed, because thousands of
different ones are wanted more than a small one. A failure prints the predicate and the row.
"""

from __future__ import annotations

import datetime as dt
import math
import random
import struct
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from halocline.ids import ColumnId
from halocline.objects.zonemap import Zonemap, zonemap
from halocline.read.predicate import compile_where
from halocline.read.statement import parse_where
from halocline.schema.schema import Schema
from halocline.schema.types import kind
from tests.unit.read.where import FALSE, TRUE, judge_where

UTC = dt.UTC
D = Decimal
NAN, INF = math.nan, math.inf
LONG = "x" * 70


def single(value: float) -> float:
    """The nearest float32."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


MOMENTS = [
    dt.datetime(1, 1, 1),
    dt.datetime(1969, 12, 31, 23, 59, 59, 999999),
    dt.datetime(2024, 2, 29),
    dt.datetime(2024, 2, 29, 0, 0, 0, 1),
    dt.datetime(2024, 2, 29, 22, 30),
    dt.datetime(2024, 3, 1),
    dt.datetime(9999, 12, 31, 23, 59, 59, 999999),
]
POOLS: dict[str, tuple[Any, list[Any]]] = {
    "b": (pa.bool_(), [False, True]),
    "i8": (pa.int8(), [-128, -1, 0, 1, 2, 5, 127]),
    "i32": (pa.int32(), [-(2**31), -5, 0, 1, 2, 3, 2**24 + 1, 2**31 - 1]),
    "i64": (
        pa.int64(),
        [-(2**63), -(2**53) - 1, -2, 0, 1, 2, 2**53 - 1, 2**53, 2**53 + 1, 2**53 + 2, 2**63 - 1],
    ),
    "f32": (
        pa.float32(),
        [NAN, INF, -INF, 0.0, -0.0, 0.5, 1.0, 2.0, 2.0**24, -1.5, *map(single, [0.1, -3.3, 1e38])],
    ),
    "f64": (
        pa.float64(),
        [NAN, INF, -INF, 0.0, -0.0, 5e-324, 0.1, 0.1 + 0.2, 1.0, 1.5, 2.0**53, 1e17, -1e300],
    ),
    "d52": (pa.decimal128(5, 2), [D("-999.99"), D("0.00"), D("0.10"), D("1.00"), D("2.50")]),
    "d180": (pa.decimal128(18, 0), [D(-(10**17)), D(0), D(1), D(2), D(2**53 + 1), D(10**18 - 1)]),
    "d3810": (
        pa.decimal128(38, 10),
        [D("-1E+27").quantize(D("1")), D("0.1000000000"), D("0.1000000001"), D(1), D("1.5")],
    ),
    "d3838": (pa.decimal128(38, 38), [D("-0.5"), D("0.1"), D("0." + "3" * 38), D("0." + "9" * 38)]),
    "s": (
        pa.string(),
        [
            *[
                "",
                "\0",
                "a",
                "a\0",
                "ab",
                "ab%",
                "abc",
                "b",
                "é",
                "\ud7ff",
                "\ud7ffz",
                "\uffff",
                "\U00010000",
            ],
            *[LONG, LONG + "\0", LONG + "a", LONG + "b", "x" * 7, "\U0010ffff" * 17],
        ],
    ),
    "x": (pa.binary(), [b"", b"\0", b"a", b"a\xff", b"b", b"\xff", b"\xff\xff"]),
    "da": (pa.date32(), [dt.date(1, 1, 1), *[m.date() for m in MOMENTS]]),
    "ti": (pa.time64("us"), [dt.time(0), dt.time(10, 0, 0, 1), dt.time(23, 59, 59, 999999)]),
    "ts": (pa.timestamp("us"), MOMENTS),
    "tz": (pa.timestamp("us", "UTC"), [m.replace(tzinfo=UTC) for m in MOMENTS]),
    "l": (pa.list_(pa.int64()), [[], [1], [1, 2]]),
}
SCHEMA = Schema.define(pa.schema([pa.field(name, type) for name, (type, _) in POOLS.items()]))
FAMILIES = {name: kind(type) for name, (type, _) in POOLS.items()}
NUMBERS = [0, 1, 2, 5, -128, 2**24 + 1, 2**31, 2**53, 2**53 + 1, -(2**53) - 1, 2**63, 2**64, 10**37]
DECIMALS = [D(t) for t in ("0.1", "1.00", "1.5", "-3.3", "2.50", "0.1000000001", "0." + "3" * 37)]
DOUBLES = [NAN, INF, -INF, 0.1, 1.0, 1.5, -1.5, 2.0**53, 2.0**53 + 2, 1e17, 5e-324, single(0.1)]


def zone_of(values: Sequence[Any], type: Any, cut: int) -> Zonemap:
    """The zonemap of some values: the engine's own, or one whose texts are cut after `cut`."""
    present = [v for v in values if v is not None]
    if not present:
        return Zonemap(rows=len(values), nulls=len(values))
    whole = zonemap(pa.array(values, type))
    if not cut or not isinstance(present[0], str | bytes):
        return whole
    low, high = min(present), max(present)
    high = high if len(high) <= cut else raised(high[:cut])
    return replace(whole, min=low[:cut], max=high)


def raised(text: Any) -> Any:
    """Something above all that starts with `text`, of the same length or shorter; None if none."""
    while len(text):
        last = text[-1] if isinstance(text, bytes) else ord(text[-1])
        if isinstance(text, bytes) and last < 255:
            return text[:-1] + bytes([last + 1])
        if isinstance(text, str) and last < 0x10FFFF:
            return text[:-1] + chr(last + 1 if last != 0xD7FF else 0xE000)
        text = text[:-1]
    return None


# -- predicates as (text, params) ----------------------------------------------------------------

Part = tuple[str, tuple[Any, ...]]


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@cache
def constants(name: str) -> list[Part]:
    """Constants that someone may compare a column to: of its own kind, and of others."""
    family = FAMILIES[name]
    own = [("?", (value,)) for value in POOLS[name][1] if family != "list"]
    texts: list[str] = ["null"]
    if family in ("int", "float", "decimal"):
        own += [("?", (value,)) for value in [*NUMBERS, *DECIMALS, *DOUBLES]]
        texts += [str(n) for n in NUMBERS] + [str(d) for d in DECIMALS] + ["'nan'::double"]
        texts += [f"{d!r}::double" for d in (0.1, 1.5)] + ["1e0", "9007199254740992e0", "-?"]
        texts += ["0." + "3" * 38, "1::bigint", "(2)", "- -1", "'1'"]
    if family in ("string", "binary"):
        texts += [quoted(v) for v in POOLS["s"][1] if "\0" not in v] + ["'it''s'"]
    if family in ("date", "timestamp", "timestamptz"):
        own += [("?", (m,)) for m in MOMENTS] + [("?", (m.date(),)) for m in MOMENTS]
        own += [("?", (m.replace(tzinfo=UTC),)) for m in MOMENTS]
        own += [("?", (dt.datetime(2024, 2, 29, 1, tzinfo=dt.timezone(dt.timedelta(hours=1))),))]
        own += [("?", ("2024-02-29",)), ("cast(? as timestamp)", ("2024-02-29 22:30:00",))]
        texts += ["'2024-02-29'", "date '2024-02-29'", "timestamp '2024-02-29 00:00:00.000001'"]
        texts += ["'2024-02-29 22:30:00'", "timestamptz '2024-02-29 23:30:00+01'", "'0001-01-01'"]
        texts += ["'2024-02-29T00:00:00Z'", "'2024-02-29 23:00:00+01:00'", "'9999-12-31'"]
    if family == "time":
        texts += ["'10:00:00.000001'", "time '23:59:59'"]
    if family == "bool":
        texts += ["true", "false", "1"]
    plain = [(text, (5,) if "?" in text else ()) for text in texts]
    return [*own[: len(POOLS[name][1])] * 2, *own, *plain]


OPERATORS = ["=", "==", "<>", "!=", "<", "<=", ">", ">="]
OPERATORS += ["is distinct from", "is not distinct from"]


PATTERNS = ["s like ?", "s not like ?", "starts_with(s, ?)", "prefix(s, ?)", "s ^@ ?"]
PATTERNS += ["s like ?", "s ilike ?", "s like ? escape '!'", "s similar to ?", "contains(s, ?)"]
TAILS = ["", "%", "%", "%%", "_%", "%a", "_"]
NULLS = ["{} is null", "{} is not null", "{} isnull", "{} notnull"]
UNDECIDED = ["b", "not b", "b is true", "b is not true", "b is false", "b is not false", "true"]
UNDECIDED += ["false", "null", "(i8 < 2) is true", "(i8 < 2) is false", "i8 + 1 = 3", "i32 = i64"]
UNDECIDED += ["i64::varchar = '1'", "abs(i8) = 1", "case when b then i8 = 1 else i8 = 2 end"]
UNDECIDED += ["cast(ts as date) = date '2024-02-29'", "(i8, i32) = (1, 1)", "b = (i8 = 1)"]
UNDECIDED += ["i8 = 1 is null", "i8 is null = b", "len(l) = 1", "s || 'a' = 'aba'", "l = [1]"]


class Maker:
    """Random predicates over some columns."""

    def __init__(self, chance: random.Random, names: Sequence[str]) -> None:
        self.pick = chance.choice
        self.names = names
        self.leaves = [self.comparison] * 4 + [self.range, self.list, self.other]
        self.leaves += [self.pattern] * 3 * ("s" in names)

    def predicate(self, depth: int = 2) -> Part:
        """A leaf, or two joined by AND or OR, or one negated, with parentheses or without."""
        shape = self.pick(["leaf", "leaf", "join", "join", "not"]) if depth else "leaf"
        if shape == "leaf":
            return self.pick(self.leaves)()
        (left, params), word = self.predicate(depth - 1), self.pick([" and ", " or "])
        if shape == "not":
            return self.pick(["not {}", "not ({})", "({}) is true", "({}) is false"]).format(
                left
            ), params
        right, more = self.predicate(depth - 1)
        return self.pick(["{}", "({})", "not ({})"]).format(left + word + right), params + more

    def comparison(self) -> Part:
        name = self.pick(self.names)
        text, params = self.pick(constants(name))
        sides = [self.pick([name, name, name.upper(), f'"{name}"', f"({name})"]), text]
        if self.pick([True, False]):
            sides.reverse()
        return f"{sides[0]} {self.pick(OPERATORS)} {sides[1]}", params

    def range(self) -> Part:
        name = self.pick(self.names)
        (low, one), (high, two) = self.pick(constants(name)), self.pick(constants(name))
        return f"{name} {self.pick(['', 'not '])}between {low} and {high}", one + two

    def list(self) -> Part:
        name = self.pick(self.names)
        items = [self.pick(constants(name)) for _ in range(self.pick([1, 2, 4]))]
        inside = ", ".join(text for text, _ in items)
        params = tuple(param for _, given in items for param in given)
        return f"{name} {self.pick(['', 'not '])}in ({inside})", params

    def pattern(self) -> Part:
        form, text = self.pick(PATTERNS), self.pick([*POOLS["s"][1], "xx", "xxxxxxx"])
        return form, (text + self.pick(TAILS) if "like" in form else text,)

    def other(self) -> Part:
        """Leaves that ask for nulls and truths, and some that nobody can decide from bounds."""
        return self.pick([*NULLS, *UNDECIDED]).format(self.pick(self.names)), ()


PAIRS = [(one, two) for one in POOLS for two in ("b", "i8", "s", "f64") if one != two]


@cache
def rows_of(names: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """Rows that hold every value of these columns, and null; the other columns are null."""
    chance, rows = random.Random(str(names)), []
    for name in names:
        for value in [None, *POOLS[name][1]]:
            row = {other: chance.choice([None, *POOLS[other][1]]) for other in names}
            rows.append(tuple((row | {name: value}).get(column) for column in POOLS))
    return rows


@cache
def engine() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(":memory:")
    connection.execute("set TimeZone='UTC'")
    connection.execute("set threads=1")
    return connection


class Oracle:
    """What DuckDB says about the rows of one table: computed, and as a filter over Arrow."""

    def __init__(self, rows: Sequence[Any]) -> None:
        table = SCHEMA.to_table(rows)
        view = table.append_column("_row", pa.array(range(len(rows)), pa.int64()))
        engine().register("_view", view)
        engine().execute("create or replace temp table _rows as select * from _view")

    def ask(
        self, where: str, params: Sequence[Any], *, filtered: bool
    ) -> tuple[list[Any], list[int]] | None:
        """Of each row the value of the predicate, and the rows that it is true for: those that a
        filter takes, which may run inside Arrow, or just those."""
        text, values = parse_where(where, SCHEMA, ""), list(params)
        try:
            shown = engine().execute(f"select {text} from _rows order by _row", values).fetchall()
            results = [value for (value,) in shown]
            if not filtered:
                return results, [row for row, value in enumerate(results) if value]
            kept = engine().execute(f"select _row from _view where {text}", values).fetchall()
        except duckdb.Error:
            return None
        return results, [row for (row,) in kept]


def zones_of(rows: Sequence[Any], cut: int) -> dict[ColumnId, Zonemap]:
    return {
        column.id: zone_of([row[at] for row in rows], column.type, cut)
        for at, column in enumerate(SCHEMA.columns)
    }


@pytest.mark.parametrize("name", POOLS)
def test_every_constant_beside_every_value_of_a_column(name: str) -> None:
    rows = rows_of((name,))
    oracle, zones = Oracle(rows), [zones_of([row], 0) for row in rows]
    for constant, params in dict.fromkeys(constants(name)):
        for operator in ("=", "<", "<="):
            text = f"{name} {operator} {constant}"
            answer = oracle.ask(text, params, filtered=False)
            judge = judge_where(text, params, SCHEMA)
            for at, result in enumerate(answer[0] if answer else []):
                bit = 0 if result is None else TRUE if result else FALSE
                assert judge(zones[at]) & bit == bit, (text, params, rows[at])


@pytest.mark.slow
@settings(max_examples=max(60, settings.default.max_examples // 10))
@given(
    names=st.sampled_from(PAIRS),
    chance=st.randoms(use_true_random=True),
    cut=st.sampled_from([0, 1, 6]),
)
def test_i06_every_result_of_every_row_is_foreseen(
    names: tuple[str, ...], chance: random.Random, cut: int
) -> None:
    rows = rows_of(names)
    chunks = [[at] for at in range(len(rows))]
    chunks += [chance.sample(range(len(rows)), chance.randint(2, 4)) for _ in rows]
    zones = [zones_of([rows[at] for at in chunk], cut) for chunk in chunks]
    oracle, maker = Oracle(rows), Maker(chance, names)
    for _ in range(20):
        text, params = maker.predicate()
        answer = oracle.ask(text, params, filtered=True)
        if answer is None:
            event("DuckDB refuses")
            continue
        predicate = compile_where(text, params, SCHEMA)
        judge = judge_where(text, params, SCHEMA)
        bits = [0 if r is None else TRUE if r else FALSE for r in answer[0]]
        for chunk, zone in zip(chunks, zones, strict=True):
            mask = judge(zone)
            for at in chunk:
                assert mask & bits[at] == bits[at], (text, params, rows[at], zone)
                assert predicate.may_match(zone) or at not in answer[1], (text, params, rows[at])
            assert predicate.may_match(zone) == bool(mask & TRUE)
        event("prunes" if not all(map(predicate.may_match, zones)) else "keeps all")

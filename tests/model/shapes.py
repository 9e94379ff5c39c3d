"""The tables, rows and predicates that histories are made of.

Every table has the column `n`, the values `a` and `b` that may be null, and `c` that may not. They
differ in their key alone: `n`, or (`s`, `n`), or none. A place, a number below twelve, stands for
the columns that say which row it is:

    place 7   num   key n       n = 5
              pair  key (s, n)  s = "B", n = 2
              bare  no key      n = 5

Values are few, so that keys meet, predicates match and columns clash. A predicate is SQL text and
the same thing in Python.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

Row = dict[str, Any]
Key = Any

PLACES = 12
"""Keys are drawn from this many places."""
STRINGS = ("a", "B", "é")
TYPES = {"s": pa.string(), "n": pa.int64(), "a": pa.int64(), "b": pa.string(), "c": pa.int64()}


@dataclass(frozen=True)
class Shape:
    """Columns and key of a table."""

    name: str
    key: tuple[str, ...]
    columns: tuple[str, ...]

    def __repr__(self) -> str:
        return self.name.upper()

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(
            [
                pa.field(name, TYPES[name], nullable=name not in self.required)
                for name in self.columns
            ]
        )

    @property
    def required(self) -> frozenset[str]:
        return frozenset({"c", *self.key})

    def key_values(self, place: int) -> Row:
        """The columns that say which row it is; plain data in a table without a key."""
        if "s" in self.columns:
            return {"s": STRINGS[place % 3], "n": place // 3}
        return {"n": place - 2}

    def key_of(self, row: Mapping[str, Any]) -> Key:
        """One column: its value. Several: a tuple."""
        values = tuple(row[name] for name in self.key)
        return values[0] if len(values) == 1 else values

    def whole(self, values: Mapping[str, Any]) -> Row:
        """Absent columns are null."""
        return {name: values.get(name) for name in self.columns}


NUM = Shape("num", ("n",), ("n", "a", "b", "c"))
PAIR = Shape("pair", ("s", "n"), ("s", "n", "a", "b", "c"))
BARE = Shape("bare", (), ("n", "a", "b", "c"))
SHAPES = (NUM, PAIR, BARE)


@dataclass(frozen=True)
class Input:
    """Rows for insert and upsert, and the form in which the engine gets them."""

    form: str
    rows: tuple[Row, ...]
    columns: tuple[str, ...] = ()
    """Those of the table, which an Arrow table without rows has to show."""

    def written(self) -> list[Row]:
        """What the caller has written. Arrow has the same columns in every row."""
        if self.form != "arrow":
            return list(self.rows)
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        return [{name: row.get(name) for name in names} for row in self.rows]

    def given(self) -> Any:
        """What is passed to the engine."""
        rows = self.written()
        if self.form == "dict":
            return rows[0]
        if self.form == "list":
            return rows
        names = list(rows[0]) if rows else list(self.columns)
        columns = {name: [row[name] for row in rows] for name in names}
        return pa.table({name: pa.array(columns[name], TYPES[name]) for name in names})

    def __repr__(self) -> str:
        tail = f", {self.columns!r}" if self.form == "arrow" and not self.rows else ""
        return f"Input({self.form!r}, {self.rows!r}{tail})"


@dataclass(frozen=True)
class Where:
    """A predicate, in SQL and in Python. Null is never true."""

    text: str
    params: tuple[Any, ...]
    holds: Callable[[Row], bool] = field(repr=False)

    @property
    def given(self) -> list[Any] | None:
        return list(self.params) or None


def _wheres() -> list[Where]:
    found = [
        Where("n % 2 = 0", (), lambda row: row["n"] % 2 == 0),
        Where("true", (), lambda row: True),
        Where("a is null", (), lambda row: row["a"] is None),
        Where("b is not null and c > 0", (), lambda row: row["b"] is not None and row["c"] > 0),
    ]
    for value in range(3):
        found += [
            Where("a > ?", (value,), lambda row, v=value: row["a"] is not None and row["a"] > v),
            Where("c = ?", (value,), lambda row, v=value: row["c"] == v),
            Where("n < ? or a = 1", (value,), lambda row, v=value: row["n"] < v or row["a"] == 1),
            Where(
                "n between ? and ?",
                (value, value + 3),
                lambda row, v=value: v <= row["n"] <= v + 3,
            ),
        ]
    for text in ("x", "y"):
        found.append(Where("b = ?", (text,), lambda row, t=text: row["b"] == t))
    return found


WHERES = _wheres()


@dataclass(frozen=True)
class Order:
    """An ORDER BY list and the sort key it stands for; ties may fall either way."""

    terms: str | tuple[str, ...]
    key: Callable[[Row], Any] = field(repr=False)

    @property
    def given(self) -> str | list[str]:
        return self.terms if isinstance(self.terms, str) else list(self.terms)


def _last(value: Any) -> tuple[bool, Any]:
    """Nulls after everything else, as the SQL engine has it unless told otherwise."""
    return (value is None, 0 if value is None else value)


ORDERS = (
    Order("n, c desc", lambda row: (row["n"], -row["c"])),
    Order(
        "a desc nulls first, n",
        lambda row: ((row["a"] is not None, -(row["a"] or 0)), row["n"]),
    ),
    Order(
        ("c", "a"),
        lambda row: (row["c"], _last(row["a"])),
    ),
    Order(
        "n % 3, n desc", lambda row: (abs(row["n"]) % 3 * (-1 if row["n"] < 0 else 1), -row["n"])
    ),
)


@dataclass(frozen=True)
class Aggregate:
    """A query over one or two tables with one row of numbers as its answer."""

    text: str
    answer: Callable[[Sequence[Row], Sequence[Row]], Row] = field(repr=False)


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


AGGREGATES = (
    Aggregate(
        'select count(*) as rows, sum(a) as a, sum(c) as c from "{0}"',
        lambda t, u: {"rows": len(t), "a": _sum(r["a"] for r in t), "c": _sum(r["c"] for r in t)},
    ),
    Aggregate(
        'select count(distinct b) as b, max(n) as n from "{0}" where c >= 1',
        lambda t, u: {
            "b": len({r["b"] for r in t if r["c"] >= 1 and r["b"] is not None}),
            "n": max((r["n"] for r in t if r["c"] >= 1), default=None),
        },
    ),
    Aggregate(
        'select count(*) as rows, sum(x.c + y.c) as c from "{0}" x join "{1}" y on x.n = y.n',
        lambda t, u: {
            "rows": sum(1 for x in t for y in u if x["n"] == y["n"]),
            "c": _sum(x["c"] + y["c"] for x in t for y in u if x["n"] == y["n"]),
        },
    ),
)


def bag(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> Counter[tuple[Any, ...]]:
    """Rows whose order does not matter."""
    return Counter(tuple(row[name] for name in columns) for row in rows)

"""Kinds: what type an expression of a statement has, as far as translating it must know.

    column -> the table's schema      sum(x), x + y, case ... -> from their parts      else None

Spark and DuckDB cast, round and divide differently depending on the type. This says which one it
is when that is certain, and None otherwise; whoever needs to know then refuses.

A column counts by its name alone, so a name that tables give different types, or that a subquery
gives to something (an alias), has no kind. An alias of the outermost SELECT can only be meant in
its ORDER BY and the like.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from sqlglot import exp

from halocline.schema.schema import Schema

Kind = str | None
"""int, decimal, float, string, bool, date, time, timestamp, timestamptz, null; None: not known."""

_TESTS: Final[tuple[tuple[Callable[[pa.DataType], bool], str], ...]] = (
    (pa.types.is_integer, "int"),
    (pa.types.is_decimal, "decimal"),
    (pa.types.is_floating, "float"),
    (pa.types.is_string, "string"),
    (pa.types.is_boolean, "bool"),
    (pa.types.is_date, "date"),
    (pa.types.is_time, "time"),
)
_NAMED: Final = {
    **dict.fromkeys(("TINYINT", "SMALLINT", "INT", "BIGINT"), "int"),
    **dict.fromkeys(("FLOAT", "DOUBLE"), "float"),
    **dict.fromkeys(("VARCHAR", "TEXT"), "string"),
    "DECIMAL": "decimal",
    "BOOLEAN": "bool",
    "DATE": "date",
    "TIME": "time",
    "TIMESTAMP": "timestamp",
    "TIMESTAMPNTZ": "timestamp",
    "TIMESTAMPTZ": "timestamptz",
}
_OF_VALUES: Final[tuple[tuple[type, str], ...]] = (
    (bool, "bool"),
    (int, "int"),
    (float, "float"),
    (Decimal, "decimal"),
    (str, "string"),
    (datetime, "timestamp"),
    (date, "date"),
    (time, "time"),
)
_INTS: Final = (
    exp.Count, exp.CountIf, exp.Length, exp.StrPosition, exp.Extract, exp.Year, exp.Month, exp.Day,
    exp.Hour, exp.Minute, exp.Quarter, exp.RowNumber, exp.Rank, exp.DenseRank, exp.Ntile,
    exp.IntDiv, exp.Sign,
)  # fmt: skip
_FLOATS: Final = (
    exp.Div, exp.Avg, exp.Sqrt, exp.Stddev, exp.StddevPop, exp.StddevSamp, exp.Variance,
    exp.VariancePop,
)  # fmt: skip
_STRINGS: Final = (
    exp.Concat, exp.DPipe, exp.Upper, exp.Lower, exp.Substring, exp.Trim, exp.Replace, exp.Left,
    exp.Right,
)  # fmt: skip
_SAME: Final = (
    exp.Paren, exp.Neg, exp.Abs, exp.Min, exp.Max, exp.Sum, exp.Filter, exp.Window, exp.Lag,
    exp.Lead, exp.FirstValue, exp.LastValue, exp.Alias, exp.Round, exp.Floor, exp.Ceil,
)  # fmt: skip
_CHOICES: Final = (exp.Coalesce, exp.Greatest, exp.Least)
_ARITHMETIC: Final = (exp.Add, exp.Sub, exp.Mul, exp.Mod)
_WIDTH: Final = {"int": 0, "decimal": 1, "float": 2}


class Kinds:
    """The kinds of one statement's expressions."""

    def __init__(self, tree: exp.Expr, schemas: Iterable[Schema], params: Sequence[Any]) -> None:
        self._params = params
        self._columns: dict[str, Kind] = {}
        for schema in schemas:
            for field in schema.arrow:
                self._add(field.name.lower(), kind_of_type(field.type))
        self._outer: set[str] = set()
        for alias in tree.find_all(exp.Alias):
            if isinstance(alias.this, exp.Column) and alias.this.name == alias.alias:
                continue
            if _is_outermost(alias):
                self._outer.add(alias.alias.lower())
            else:
                self._columns[alias.alias.lower()] = None
        for named in tree.find_all(exp.TableAlias):
            self._columns.update((column.name.lower(), None) for column in named.columns)
        # By identity; the node is kept beside it, so that no other one takes its place in memory.
        self._known: dict[int, tuple[Any, Kind]] = {}
        for node in reversed(list(tree.walk(bfs=True))):
            self._known[id(node)] = (node, self._find(node))

    def of(self, node: Any) -> Kind:
        """The kind of an expression; None when it is not certain."""
        known = self._known.get(id(node))
        return self._find(node) if known is None else known[1]

    def replaced(self, node: Any, new: Any) -> None:
        """Another expression stands for this one, whatever it looks like."""
        self._known[id(new)] = (new, self.of(node))

    def _find(self, node: Any) -> Kind:
        if isinstance(node, exp.Column):
            return self._of_column(node)
        if isinstance(node, exp.Placeholder):
            return self._of_value(node)
        if isinstance(node, exp.Literal):
            return _of_literal(node)
        if isinstance(node, exp.Cast):
            return kind_of_name(node.to)
        if isinstance(node, _SAME):
            return self.of(node.this)
        if isinstance(node, _CHOICES):
            return self._widest([node.this, *node.expressions])
        if isinstance(node, exp.Nullif):
            return self.of(node.this)
        if isinstance(node, (exp.Case, exp.If)):
            return self._of_choice(node)
        if isinstance(node, _ARITHMETIC):
            return self._of_arithmetic(node)
        return _of_class(node)

    def _add(self, name: str, kind: Kind) -> None:
        self._columns[name] = kind if self._columns.get(name, kind) == kind else None

    def _of_column(self, node: exp.Column) -> Kind:
        name = node.name.lower()
        clause = (exp.Order, exp.Group, exp.Having, exp.Qualify)
        if len(node.parts) > 2 or (name in self._outer and node.find_ancestor(*clause)):
            return None
        return self._columns.get(name)

    def _of_value(self, node: exp.Placeholder) -> Kind:
        place = place_of(node)
        if not 1 <= place <= len(self._params):
            return None
        value = self._params[place - 1]
        if value is None:
            return "null"
        kind = next((name for one, name in _OF_VALUES if isinstance(value, one)), None)
        return "timestamptz" if kind == "timestamp" and value.tzinfo is not None else kind

    def _of_choice(self, node: exp.Case | exp.If) -> Kind:
        if isinstance(node, exp.If):
            ends = [node.args.get("true"), node.args.get("false")]
        else:
            ends = [part.args.get("true") for part in node.args["ifs"]]
            ends.append(node.args.get("default"))
        return self._widest([end for end in ends if end is not None])

    def _of_arithmetic(self, node: exp.Binary) -> Kind:
        kind = self._widest([node.left, node.right])
        return kind if kind in _WIDTH else None

    def _widest(self, nodes: Sequence[Any]) -> Kind:
        kinds = {self.of(node) for node in nodes} - {"null"}
        if len(kinds) == 1:
            return next(iter(kinds))
        if kinds <= _WIDTH.keys():
            return max((kind for kind in kinds if kind is not None), key=_WIDTH.__getitem__)
        return None


def _is_outermost(alias: exp.Alias) -> bool:
    select = alias.parent_select
    return select is not None and not select.find_ancestor(exp.Subquery, exp.CTE, exp.Select)


def place_of(node: exp.Placeholder) -> int:
    """The number of a parameter, from 1; 0 when it has none."""
    text = str(node.this)
    return int(text) if text.isdigit() else 0


def kind_of_type(kind: pa.DataType) -> Kind:
    """The kind of a column."""
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz is None else "timestamptz"
    return next((name for test, name in _TESTS if test(kind)), None)


def kind_of_name(kind: exp.Expr) -> Kind:
    """The kind that a CAST makes."""
    name = getattr(getattr(kind, "this", None), "name", "")
    return _NAMED.get(name)


def _of_literal(node: exp.Literal) -> Kind:
    if node.is_string:
        return "string"
    text = str(node.this).lower()
    return "float" if "e" in text else "decimal" if "." in text else "int"


def _of_class(node: Any) -> Kind:
    table: Mapping[str, tuple[type, ...]] = {"int": _INTS, "float": _FLOATS, "string": _STRINGS}
    if isinstance(node, exp.Null):
        return "null"
    if isinstance(node, (exp.Boolean, exp.Predicate, exp.Connector, exp.Not)):
        return "bool"
    return next((kind for kind, classes in table.items() if isinstance(node, classes)), None)

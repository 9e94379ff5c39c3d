"""Dialect: a statement of the local engine in Spark's words, or a UsageError.

    checked SELECT --parse--> tree --every node known?--> rewritten --sqlglot--> Spark's text
                                                            | parameters: :p1, bound by Spark

The same text means different things to DuckDB and to Spark. What is known to give the same rows in
both passes; where a rewrite makes it so, it is rewritten; everything else is refused, because a
wrong answer is worse than none. Whoever wants Spark's own meaning has `attach` and `session.sql`.

    x / y               double in DuckDB, inf and nan by zero    decimal in Spark, an error by zero
    avg(x)              double                                   decimal for decimals
    order by x          NULLs last, both ways                    NULLs first, last when descending
    cast(2.5 as int)    rounds                                   cuts
    x like 'a\\b'        a backslash is a character               ... is an escape
    date - date         days                                     an interval

Sums and averages of floating-point numbers depend on the order of their rows, in either engine.

Not here: types of the result (query.py), whether the text may run at all (read/statement.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlglot
from sqlglot import exp

from halocline.errors import UsageError
from halocline.read.predicate import number_parameters
from halocline.read.statement import parse_where
from halocline.schema.schema import Schema
from halocline.spark.kinds import Kinds, kind_of_name, place_of
from halocline.spark.values import bound

ESCAPE: Final = "\x01"
_STRUCTURE: Final = (
    exp.Select, exp.From, exp.Where, exp.Group, exp.Rollup, exp.Cube, exp.Having, exp.Qualify,
    exp.Order, exp.Ordered, exp.Limit, exp.Offset, exp.Subquery, exp.Union, exp.Intersect,
    exp.Except, exp.With, exp.CTE, exp.TableAlias, exp.Alias, exp.Column, exp.Dot, exp.Identifier,
    exp.Exists, exp.In, exp.Paren, exp.Tuple, exp.Values, exp.Window, exp.Filter, exp.Placeholder,
    exp.Literal, exp.Null, exp.Boolean, exp.Var, exp.DataType, exp.DataTypeParam,
)  # fmt: skip
_OPERATORS: Final = (
    exp.And, exp.Or, exp.Not, exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Is,
    exp.NullSafeEQ, exp.NullSafeNEQ, exp.Between, exp.Like, exp.ILike, exp.Escape, exp.Add, exp.Mul,
    exp.Mod, exp.Neg, exp.Case, exp.If,
)  # fmt: skip
_FUNCTIONS: Final = (
    exp.Coalesce, exp.Nullif, exp.Greatest, exp.Least, exp.Abs, exp.Sqrt, exp.Sign, exp.Upper,
    exp.Lower, exp.Replace, exp.StrPosition, exp.StartsWith, exp.Contains, exp.Year, exp.Month,
    exp.Day, exp.Hour, exp.Minute, exp.Quarter, exp.CurrentDate, exp.Sum, exp.Min, exp.Max,
    exp.Stddev, exp.StddevPop, exp.StddevSamp, exp.Variance, exp.VariancePop, exp.LogicalAnd,
    exp.LogicalOr, exp.CountIf, exp.RowNumber, exp.Rank, exp.DenseRank, exp.Ntile, exp.Lag,
    exp.Lead, exp.FirstValue, exp.LastValue,
)  # fmt: skip
_PLAIN: Final = frozenset([*_STRUCTURE, *_OPERATORS, *_FUNCTIONS])
_UNITS: Final = frozenset(["YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND"])
_PARTS: Final = frozenset(["YEAR", "QUARTER", "MONTH", "DAY", "HOUR", "MINUTE"])
_CASTS: Final = {
    "int": {"int", "bool", "string", "decimal", "float", "null"},
    "float": {"int", "decimal", "float", "string", "null"},
    "decimal": {"int", "decimal", "string", "null"},
    "string": {"int", "decimal", "string", "bool", "date", "null"},
    "bool": {"bool", "int", "null"},
    "date": {"string", "date", "timestamp", "timestamptz", "null"},
    "time": {"string", "time", "null"},
    "timestamp": {"string", "date", "timestamp", "null"},
    "timestamptz": {"string", "date", "timestamp", "timestamptz", "null"},
}
"""What may be cast into what: the same values come out of both engines."""


@dataclass(frozen=True, slots=True)
class Translated:
    """A statement for `session.sql(text, args)`."""

    text: str
    args: dict[str, Any]


def translate(text: str, params: Sequence[Any], schemas: Iterable[Schema]) -> Translated:
    """A checked SELECT in Spark's dialect; UsageError when it has no form there."""
    numbered = number_parameters(text)
    if numbered is None:
        raise UsageError("parameters are ? or $1, $2, ... for Spark")
    tree = sqlglot.parse_one(numbered, read="duckdb")
    return _translated(tree, list(params), schemas, text)


def translate_where(where: str, schema: Schema, table: str) -> str:
    """A predicate over one table in Spark's dialect; UsageError when it has no form there."""
    checked = parse_where(where, schema, table)
    tree = sqlglot.parse_one(checked, read="duckdb")
    return _translated(tree, [], [schema], where).text


def _translated(
    tree: exp.Expr, params: list[Any], schemas: Iterable[Schema], shown: str
) -> Translated:
    kinds = Kinds(tree, schemas, params)
    rewriter = _Rewriter(kinds, params)
    _check_stars(tree)
    # Leaves first, so that a rewrite never meets what another one has made.
    for node in reversed(list(tree.walk(bfs=True))):
        new = rewriter.rewrite(node)
        if new is node:
            continue
        kinds.replaced(node, new)
        if node is tree:
            tree = new
        else:
            node.replace(new)
    try:
        text = tree.sql(dialect="spark", identify=True, unsupported_level=sqlglot.ErrorLevel.RAISE)
    except sqlglot.errors.SqlglotError as error:
        raise UsageError(f"this has no form in Spark: {shown!r} ({error})") from None
    return Translated(text, rewriter.args)


def _check_stars(tree: exp.Expr) -> None:
    """DuckDB leaves the columns of USING where they stand, Spark puts them first."""
    merged = any(
        join.args.get("using") or join.args.get("method") == "NATURAL"
        for join in tree.find_all(exp.Join)
    )
    if merged and any(not isinstance(star.parent, exp.Count) for star in tree.find_all(exp.Star)):
        raise _refused("* over a join with USING or NATURAL (name the columns)")


class _Rewriter:
    """Turns one node after another into what means the same to Spark."""

    def __init__(self, kinds: Kinds, params: list[Any]) -> None:
        self._kinds = kinds
        self._params = params
        self.args: dict[str, Any] = {}

    def rewrite(self, node: exp.Expr) -> exp.Expr:
        """The node itself, or another one in its place; UsageError when there is none."""
        special = getattr(self, "_" + type(node).__name__.lower(), None)
        if special is not None:
            found: exp.Expr = special(node)
            return found
        if type(node) not in _PLAIN:
            raise _refused(node)
        return node

    # Names and clauses.

    def _table(self, node: exp.Table) -> exp.Expr:
        return _only(node, "this", "alias", "joins", "db", "catalog")

    def _join(self, node: exp.Join) -> exp.Expr:
        known = {"", "INNER", "CROSS", "OUTER", "SEMI", "ANTI"}
        if node.kind.upper() not in known or node.method.upper() not in ("", "NATURAL"):
            raise _refused(node)
        return _only(node, "this", "on", "using", "side", "kind", "method")

    def _star(self, node: exp.Star) -> exp.Expr:
        return _only(node, "except", "except_")

    def _distinct(self, node: exp.Distinct) -> exp.Expr:
        return _only(node, "expressions")

    def _with(self, node: exp.With) -> exp.Expr:
        return _only(node, "expressions")

    def _union(self, node: exp.Union) -> exp.Expr:
        if node.args.get("by_name"):
            raise _refused("UNION BY NAME")
        return node

    def _windowspec(self, node: exp.WindowSpec) -> exp.Expr:
        if str(node.args.get("kind", "")).upper() != "ROWS" or node.args.get("exclude"):
            raise _refused(node)
        return node

    def _placeholder(self, node: exp.Placeholder) -> exp.Expr:
        place = place_of(node)
        if not 1 <= place <= len(self._params):
            raise UsageError(f"a value is missing for parameter {node.sql(dialect='duckdb')}")
        name = f"p{place}"
        value, kind = bound(self._params[place - 1])
        self.args[name] = value
        marker = exp.Placeholder(this=name)
        if kind == "time":
            return _call("to_time", marker)
        return marker if kind is None else exp.cast(marker, exp.DataType.build(kind, "spark"))

    # Operators.

    def _div(self, node: exp.Div) -> exp.Expr:
        left, right = _double(node.left), _double(node.right)
        plain = exp.Div(this=left, expression=right, typed=True, safe=False)
        if isinstance(node.right, exp.Literal) and float(node.right.this):
            return exp.paren(plain)
        # As the floating-point unit has it: inf, -inf or nan by zero, never an error.
        by_zero = exp.Mul(this=left.copy(), expression=_call("double", exp.Literal.string("inf")))
        zero = exp.EQ(this=right.copy(), expression=exp.Literal.number(0))
        return exp.Case(ifs=[exp.If(this=zero, true=by_zero)], default=plain)

    def _intdiv(self, node: exp.IntDiv) -> exp.Expr:
        self._need(node, [node.left, node.right], "int")
        return node

    def _sub(self, node: exp.Sub) -> exp.Expr:
        if self._kinds.of(node.left) == self._kinds.of(node.right) == "date":
            return _call("datediff", node.left.copy(), node.right.copy())
        return node

    def _interval(self, node: exp.Interval) -> exp.Expr:
        value = node.this
        text = str(value.this) if isinstance(value, exp.Literal) else ""
        if node.unit is None or node.unit.name.upper() not in _UNITS or not text.isdigit():
            raise _refused(node)
        return node

    def _like(self, node: exp.Expr) -> exp.Expr:
        if isinstance(node.parent, exp.Escape):
            return node
        return exp.Escape(this=node.copy(), expression=exp.Literal.string(ESCAPE))

    _ilike = _like

    def _cast(self, node: exp.Cast) -> exp.Expr:
        target, source = kind_of_name(node.to), self._kinds.of(node.this)
        if target is None or source not in _CASTS[target]:
            raise _refused(node)
        if target == "string":  # of any length: DuckDB does not cut, whatever length is given
            return exp.cast(node.this.copy(), exp.DataType.build("text"))
        if target == "time":  # sqlglot does not know that Spark has it
            return node.this if source == "time" else _call("to_time", node.this.copy())
        if target == "int" and source in ("decimal", "float"):
            rounded = _call("rint" if source == "float" else "round", node.this.copy())
            return exp.cast(rounded, node.to.copy())
        return node

    # Functions.

    def _avg(self, node: exp.Avg) -> exp.Expr:
        """sum / count, exact for whole numbers and decimals as DuckDB's is."""
        outer: exp.Expr = node
        while isinstance(outer.parent, (exp.Filter, exp.Window)) and outer.arg_key == "this":
            outer = outer.parent
        return node if outer is not node else _mean(node)

    def _filter(self, node: exp.Filter) -> exp.Expr:
        held = isinstance(node.parent, exp.Window) and node.arg_key == "this"
        return _mean(node) if isinstance(node.this, exp.Avg) and not held else node

    def _window(self, node: exp.Window) -> exp.Expr:
        inner = node.this.this if isinstance(node.this, exp.Filter) else node.this
        return _mean(node) if isinstance(inner, exp.Avg) else node

    def _count(self, node: exp.Count) -> exp.Expr:
        inner = node.this
        if node.expressions or (isinstance(inner, exp.Distinct) and len(inner.expressions) != 1):
            raise _refused(node)
        return node

    def _median(self, node: exp.Median) -> exp.Expr:
        self._need(node, [node.this], "int", "float")
        return node

    def _round(self, node: exp.Round) -> exp.Expr:
        digits = node.args.get("decimals")
        if digits is not None and not _is_count(digits):
            raise _refused(node)
        self._need(node, [node.this], "int", "decimal")
        return _only(node, "this", "decimals")

    def _floor(self, node: exp.Floor) -> exp.Expr:
        self._need(node, [node.this], "int", "decimal")
        return _only(node, "this")

    def _ceil(self, node: exp.Ceil) -> exp.Expr:
        self._need(node, [node.this], "int", "decimal")
        return _only(node, "this")

    def _length(self, node: exp.Length) -> exp.Expr:
        self._need(node, [node.this], "string")
        return node

    def _trim(self, node: exp.Trim) -> exp.Expr:
        return _only(node, "this", "position")

    def _concat(self, node: exp.Concat) -> exp.Expr:
        self._need(node, node.expressions, "string")
        return node

    def _dpipe(self, node: exp.DPipe) -> exp.Expr:
        self._need(node, [node.left, node.right], "string", "int", "decimal", "date")
        return node

    def _substring(self, node: exp.Substring) -> exp.Expr:
        start, length = node.args.get("start"), node.args.get("length")
        if not _is_count(start, least=1) or not (length is None or _is_count(length)):
            raise _refused(node)
        return node

    def _left(self, node: exp.Left | exp.Right) -> exp.Expr:
        if not _is_count(node.expression):
            raise _refused(node)
        return node

    _right = _left

    def _extract(self, node: exp.Extract) -> exp.Expr:
        if node.this.name.upper() not in _PARTS:
            raise _refused(node)
        return node

    def _timestamptrunc(self, node: exp.TimestampTrunc) -> exp.Expr:
        if node.unit is None or node.unit.name.upper() not in _UNITS:
            raise _refused(node)
        return node

    _datetrunc = _timestamptrunc

    def _need(self, node: exp.Expr, parts: Sequence[Any], *kinds: str) -> None:
        if any(self._kinds.of(part) not in (*kinds, "null") for part in parts):
            raise _refused(node)


def _mean(node: exp.Expr) -> exp.Expr:
    """An average, with its FILTER and OVER, as a sum divided by a count."""
    total, number = node.copy(), node.copy()
    whole = exp.Div(
        this=_double(_swapped(total, exp.Sum)),
        expression=_swapped(number, exp.Count),
        typed=True,
        safe=False,
    )
    return exp.paren(whole)


def _swapped(node: exp.Expr, kind: type[exp.Expr]) -> exp.Expr:
    average = node.find(exp.Avg)
    assert average is not None
    other = kind(this=average.this.copy())
    if average is node:
        return other
    average.replace(other)
    return node


def _double(node: exp.Expr) -> exp.Expr:
    return exp.cast(node.copy(), exp.DataType.build("double"))


def _call(name: str, *args: exp.Expr) -> exp.Expr:
    return exp.Anonymous(this=name, expressions=list(args))


def _only(node: exp.Expr, *known: str) -> exp.Expr:
    """The node, if it says nothing else."""
    if any(value for key, value in node.args.items() if key not in known):
        raise _refused(node)
    return node


def _is_count(node: Any, least: int = 0) -> bool:
    plain = isinstance(node, exp.Literal) and not node.is_string and str(node.this).isdigit()
    return plain and int(node.this) >= least


def _refused(what: exp.Expr | str) -> UsageError:
    shown = what if isinstance(what, str) else what.sql(dialect="duckdb")
    return UsageError(
        f"no form in Spark is known to give the same rows for: {shown}; leave it to the local "
        f"engine, or say it in Spark's own words with halocline.spark.attach or a DataFrame"
    )

"""Row tests: a condition as a Python function of one row, where it gives what DuckDB would give.

    "amount > 0 and a < b" --broken_by--> lambda r: (r[2] is not None and r[2] <= 0) or ...

A query costs DuckDB about a millisecond, and a commit of one row a fifth of that. So comparisons of
columns with constants and with each other, IN, BETWEEN, IS NULL, AND, OR, NOT, flags and the length
of texts become Python. Whatever else there is, DuckDB is asked (guard.py).

SQL knows three truths, so each node becomes two expressions: is it surely true, is it surely false.
Of NULL both are false. A comparison is understood if what DuckDB compares can be compared exactly
in Python (constant.py); NaN equals itself and is above all other numbers.

Invariants
- A row breaks the condition here if and only if `not (condition)` is true in DuckDB.
- A node is understood only if each argument that it has is one we know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
from sqlglot import exp

from halocline.read.constant import NULL, Constant, constant, place_constants
from halocline.schema.compiled import Row
from halocline.schema.schema import Schema
from halocline.schema.types import INT_BITS, kind

RowTest = Callable[[Row], bool]
"""Does a row break the condition?"""
_OPERATORS: Final[dict[type[exp.Expr], str]] = {
    exp.EQ: "==",
    exp.NEQ: "!=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_FLIPPED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_NOT: Final = {"==": "!=", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_PLAIN: Final = frozenset(
    ["bool", "int", "decimal", "string", "binary", "date", "time", "timestamp", "timestamptz"]
)
_DEPTH_MAX: Final = 50


class _Truth(NamedTuple):
    """Source of two expressions: the condition is surely true, it is surely false."""

    true: str
    false: str


class _Value(NamedTuple):
    """A column, or the length of one: its source, what must not be NULL, its type."""

    source: str
    column: str
    type: Any


class _Unknown(Exception):
    """Something in the condition is left to DuckDB."""


def broken_by(tree: exp.Expr, schema: Schema) -> RowTest | None:
    """The function of a bound condition; None when DuckDB has to be asked."""
    reader = _Reader(schema)
    try:
        source = reader.read(tree, 0).false
    except _Unknown:
        return None
    names = {"__builtins__": {}, "len": len} | reader.constants
    made: RowTest = eval(f"lambda r: {source}", names)  # of positions and names of our own
    return made


class _Reader:
    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self.constants: dict[str, Any] = {}

    def read(self, node: exp.Expr, depth: int) -> _Truth:
        if depth > _DEPTH_MAX:
            raise _Unknown
        cls = type(node)
        if cls is exp.Paren:
            return self.read(_only(node, "this"), depth + 1)
        if cls in (exp.And, exp.Or):
            left, right = (self.read(node.args[side], depth + 1) for side in ("this", "expression"))
            _known(node, "this", "expression")
            both, either = (f"({{}} {word} {{}})".format for word in ("and", "or"))
            if cls is exp.And:
                return _Truth(both(left.true, right.true), either(left.false, right.false))
            return _Truth(either(left.true, right.true), both(left.false, right.false))
        if cls is exp.Not:
            inner = self.read(_only(node, "this"), depth + 1)
            return _Truth(inner.false, inner.true)
        if cls in _OPERATORS:
            _known(node, "this", "expression")
            return self._compare(_OPERATORS[cls], node.this, node.expression)
        return self._other(node)

    def _other(self, node: exp.Expr) -> _Truth:
        cls = type(node)
        if cls is exp.Is:
            _known(node, "this", "expression")
            if type(node.expression) is not exp.Null:
                raise _Unknown
            column = self._value(node.this).column
            return _Truth(f"{column} is None", f"{column} is not None")
        if cls is exp.Between:
            _known(node, "this", "low", "high")
            value = self._value(node.this)
            low, high = self._constants(value, [node.args["low"], node.args["high"]])
            above, below = self._with(value, ">=", low), self._with(value, "<=", high)
            return _Truth(f"({above.true} and {below.true})", f"({above.false} or {below.false})")
        if cls is exp.In:
            _known(node, "this", "expressions")
            return self._among(self._value(node.this), node.expressions)
        if cls is exp.Column:
            value = self._value(node)
            if kind(value.type) == "bool":
                return _Truth(f"{value.source} is True", f"{value.source} is False")
        if cls is exp.Boolean:
            return _Truth(str(bool(node.this)), str(not node.this))
        raise _Unknown

    def _compare(self, operator: str, left: exp.Expr, right: exp.Expr) -> _Truth:
        if constant(left, ()) is not None:
            operator, left, right = _FLIPPED.get(operator, operator), right, left
        value = self._value(left)
        if constant(right, ()) is not None:
            (given,) = self._constants(value, [right])
            return self._with(value, operator, given)
        other = self._value(right)
        ints = value.type in INT_BITS and other.type in INT_BITS
        if not ints and (value.type != other.type or kind(value.type) not in _PLAIN):
            raise _Unknown
        there = f"{value.column} is not None and {other.column} is not None"
        return _Truth(
            f"({there} and {value.source} {operator} {other.source})",
            f"({there} and {value.source} {_NOT[operator]} {other.source})",
        )

    def _with(self, value: _Value, operator: str, given: Any) -> _Truth:
        """A comparison with a constant; None is NULL."""
        if given is None:
            return _Truth("False", "False")
        there, name = f"{value.column} is not None", self._named(given)
        true, false = (f"{value.source} {one} {name}" for one in (operator, _NOT[operator]))
        if kind(value.type) == "float":
            above = f"{value.source} != {value.source}"  # only NaN, which is above all others
            if operator in (">", ">="):
                true = f"({true} or {above})"
            elif operator in ("<", "<="):
                false = f"({false} or {above})"
        return _Truth(f"({there} and {true})", f"({there} and {false})")

    def _among(self, value: _Value, listed: Sequence[exp.Expr]) -> _Truth:
        """A value is in a list; with NULL in the list nothing is surely not."""
        found = self._constants(value, listed)
        there = f"{value.column} is not None"
        name = self._named(frozenset(one for one in found if one is not None))
        false = "False" if None in found else f"({there} and {value.source} not in {name})"
        return _Truth(f"({there} and {value.source} in {name})", false)

    def _value(self, node: exp.Expr) -> _Value:
        cls = type(node)
        if cls is exp.Paren:
            return self._value(_only(node, "this"))
        if cls is exp.Length:
            inner = self._value(_only(node, "this"))
            if kind(inner.type) != "string" or inner.source != inner.column:
                raise _Unknown
            return _Value(f"len({inner.source})", inner.column, pa.int64())
        if not isinstance(node, exp.Column) or len(node.parts) > 1:
            raise _Unknown
        at = self._schema.position(node.name)
        column = f"r[{at}]"
        return _Value(column, column, self._schema.columns[at].type)

    def _constants(self, value: _Value, nodes: Sequence[exp.Expr]) -> list[Any]:
        """What the constants are beside the column, exactly; None for NULL."""
        given = [constant(node, ()) for node in nodes]
        known: list[Constant] = [one for one in given if one is not None]
        if len(known) < len(given) or kind(value.type) not in (*_PLAIN, "float"):
            raise _Unknown
        spans = place_constants(value.type, [one for one in known if one != NULL])
        if spans is None or any(type(one.low) is not type(one.high) for one in spans):
            raise _Unknown
        if not all(one.low == one.high for one in spans):  # NaN is not equal to itself either
            raise _Unknown
        values = iter(spans)
        return [None if one == NULL else next(values).low for one in known]

    def _named(self, value: Any) -> str:
        name = f"k{len(self.constants)}"
        self.constants[name] = value
        return name


def _only(node: exp.Expr, name: str) -> exp.Expr:
    _known(node, name)
    inner: exp.Expr = node.args[name]
    return inner


def _known(node: exp.Expr, *names: str) -> None:
    if any(value for name, value in node.args.items() if name not in names):
        raise _Unknown

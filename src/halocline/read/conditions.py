"""What the conjuncts of a statement ask of single columns, for indexes.

    conjuncts --conditions_of--> column id -> Condition        index/condition.py

A conjunct counts if it compares one column with constants: =, <, BETWEEN, IN, IS NULL, LIKE
'prefix%' and their like, or several of them about one column under OR. Of several conjuncts about
one column one that fixes it to values counts, else lower and upper bounds are taken together. The
rest is left out: what an index names is looked at again under the whole condition, so too little
said is slow and never wrong. Constants become bounds of stored values as they do for zonemaps
(constant.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from sqlglot import exp

from halocline.index import Condition, ValueSpan
from halocline.index.condition import OPEN
from halocline.read.constant import NAN, NULL, Constant, ConstantSpan, place_constants
from halocline.read.prune import Operands, chain, is_plain
from halocline.schema.schema import Schema, TableColumn
from halocline.schema.types import kind

_MIRRORED: Final[dict[type[exp.Expr], type[exp.Expr]]] = {
    exp.LT: exp.GT,
    exp.GT: exp.LT,
    exp.LTE: exp.GTE,
    exp.GTE: exp.LTE,
    exp.EQ: exp.EQ,
    exp.NullSafeEQ: exp.NullSafeEQ,
}


def conditions_of(
    trees: Sequence[exp.Expr], params: Sequence[Any], schema: Schema
) -> dict[int, Condition]:
    """What must hold of single columns where all of these trees are true."""
    reader = _Conditions(params, schema)
    found: dict[int, Condition] = {}
    for tree in trees:
        for part in chain(tree, exp.And):
            condition = reader.read(part)
            if condition is not None:
                known = found.get(condition.column)
                found[condition.column] = condition if known is None else _both(known, condition)
    return found


def _both(one: Condition, other: Condition) -> Condition:
    """What two conditions on one column leave, or all that the narrower of them does."""
    for each in (one, other):
        if all(span.is_point for span in each.spans):
            return each
    plain = len(one.spans) == len(other.spans) == 1 and not (one.nulls or other.nulls)
    if not plain:
        return one
    (a,), (b,) = one.spans, other.spans
    if a.prefix is not None or b.prefix is not None:
        return one if a.prefix is not None else other
    if a.low is OPEN and b.high is OPEN:
        a, b = b, a
    if a.high is OPEN and b.low is OPEN:
        span = ValueSpan(a.low, b.high, a.without_low, b.without_high)
        return Condition(one.column, [span])
    return one


class _Conditions:
    """One pass over a conjunct."""

    __slots__ = ("_spans", "column", "value")

    def __init__(self, params: Sequence[Any], schema: Schema) -> None:
        operands = Operands(params, schema)
        self.column, self.value, self._spans = operands.column, operands.value, operands.spans

    def read(self, node: exp.Expr) -> Condition | None:
        """The condition that a tree is, on one column; None when it is none."""
        while type(node) is exp.Paren:
            node = node.this
        if not is_plain(node):
            return None
        match node:
            case exp.Or():
                return self._any(node)
            case exp.Column():
                column = self.column(node)
                flag = column is not None and kind(column.type) == "bool"
                return _condition(column, [ValueSpan(True, True)]) if flag else None
            case exp.Between():
                return self._between(node)
            case exp.In():
                return self._inside(node)
            case exp.Is():
                return self._identity(node)
            case exp.Like() | exp.StartsWith() | exp.Anonymous():
                return self._text(node)
        return self._comparison(node) if type(node) in _MIRRORED else None

    def _any(self, node: exp.Expr) -> Condition | None:
        parts = [self.read(part) for part in chain(node, exp.Or)]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts) or len({part.column for part in known}) > 1:
            return None
        spans = [span for part in known for span in part.spans]
        return Condition(known[0].column, spans, any(part.nulls for part in known))

    def _comparison(self, node: exp.Expr) -> Condition | None:
        operator, column, given = type(node), self.column(node.this), self.value(node.expression)
        if column is None:
            operator = _MIRRORED[operator]
            column, given = self.column(node.expression), self.value(node.this)
        if column is None or given is None:
            return None
        if given is NULL:
            return Condition(int(column.id), nulls=operator is exp.NullSafeEQ)
        placed = place_constants(column.type, [given])
        if placed is None:
            return None
        span = _compared(operator, placed[0])
        return None if span is None else _condition(column, [span])

    def _between(self, node: exp.Expr) -> Condition | None:
        column = self.column(node.this)
        ends = [self.value(node.args["low"]), self.value(node.args["high"])]
        spans = self._spans(column, ends)
        if column is None or spans is None or len(spans) < 2 or NAN in spans:
            return None
        return _condition(column, [ValueSpan(spans[0].low, spans[1].high)])

    def _inside(self, node: exp.Expr) -> Condition | None:
        column = self.column(node.this)
        items: list[Constant | None] = [self.value(item) for item in node.expressions]
        spans = self._spans(column, items)
        if column is None or spans is None or not items:
            return None
        return _condition(column, [_point(span) for span in spans])

    def _identity(self, node: exp.Expr) -> Condition | None:
        column, asked = self.column(node.this), node.expression
        if column is None or type(asked) not in (exp.Null, exp.Boolean):
            return None
        if type(asked) is exp.Null:
            return Condition(int(column.id), nulls=True)
        flag = bool(asked.this)
        return _condition(column, [ValueSpan(flag, flag)]) if kind(column.type) == "bool" else None

    def _text(self, node: exp.Expr) -> Condition | None:
        """LIKE 'abc%', and the functions that mean the same."""
        sides = [*node.expressions] or [node.this, node.expression]
        if type(node) is exp.Anonymous and str(node.this).lower() != "prefix":
            return None
        column = self.column(sides[0])
        pattern = self.value(sides[1]) if len(sides) == 2 else None
        if column is None or kind(column.type) != "string":
            return None
        if pattern is None or pattern.kind != "text":
            return None
        text = pattern.value
        if type(node) is exp.Like:
            signs = [at for at in map(text.find, "%_") if at >= 0]
            if not signs:
                return _condition(column, [ValueSpan(text, text)])
            text = text[: min(signs)]
        return _condition(column, [ValueSpan(prefix=text)]) if text else None


def _condition(column: TableColumn | None, spans: Sequence[ValueSpan]) -> Condition | None:
    return None if column is None else Condition(int(column.id), spans)


def _point(span: ConstantSpan) -> ValueSpan:
    if span is NAN:
        return ValueSpan(math.nan, math.nan)
    return ValueSpan(span.low, span.high)


def _compared(operator: type[exp.Expr], span: ConstantSpan) -> ValueSpan | None:
    """The values for which column <operator> constant is true."""
    if operator in (exp.EQ, exp.NullSafeEQ):
        return _point(span)
    if span is NAN:
        return None
    exact = bool(span.low == span.high)
    if operator in (exp.LT, exp.LTE):
        return ValueSpan(high=span.high, without_high=exact and operator is exp.LT)
    return ValueSpan(low=span.low, without_low=exact and operator is exp.GT)

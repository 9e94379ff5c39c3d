"""Predicates: a `where` text, its parameters and a schema become a small tree with known meaning.

    text --parse_where--> DuckDB's text --sqlglot--> syntax tree --read_predicate--> Node

What the tree says is what DuckDB will do with that very text, or less: a comparison of a column
with constants, IN, BETWEEN, LIKE 'prefix%', IS NULL and their like become leaves; whatever else
there is (functions, casts of columns, two columns) becomes `ANYTHING`, which may be true, false or
null. Zonemaps (prune.py) and key ranges (keyrange.py) are both read off this tree.

    a >= 5 and not (s like 'ab%' or f(b))   ->   All(Negation(Less a 5),
                                                     Negation(AnyOf(Prefix s 'ab', ANYTHING)))

Three-valued logic: x > c is Negation(x <= c) and x <> c is Negation(x = c), in SQL as here, because
null stays null under NOT and the order of every type is total (NaN is above all other numbers).

Invariants
- A node is understood only if each argument that it has is one we know: a flag that a later
  version of the parser adds (as `negate` of LIKE once was) makes it `ANYTHING`, not wrong.
- Parameters are numbered by their place in the text DuckDB gets, not by their place in the tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import sqlglot
from sqlglot import exp

from halocline.errors import SchemaError
from halocline.read.constant import NAN, NULL, Constant, ConstantSpan, constant, place_constants
from halocline.read.statement import parse_where, part_casts
from halocline.schema.schema import Schema
from halocline.schema.types import kind

# What a predicate can be for a row. A set of these is a mask.
FALSE: Final = 1
UNKNOWN: Final = 2
TRUE: Final = 4


@dataclass(frozen=True, slots=True)
class Fixed:
    """One of the results in `mask`, whatever the row."""

    mask: int


@dataclass(frozen=True, slots=True)
class All:
    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Negation:
    part: Condition


@dataclass(frozen=True, slots=True)
class Holds:
    """`part IS TRUE`: null becomes false."""

    part: Condition


@dataclass(frozen=True, slots=True)
class Less:
    """Column at `at` < span, or <=."""

    at: int
    span: ConstantSpan
    or_equal: bool


@dataclass(frozen=True, slots=True)
class OneOf:
    """Column IN constants: spans sorted by both bounds; `or_null`: the list holds a null."""

    at: int
    spans: tuple[ConstantSpan, ...]
    or_null: bool


@dataclass(frozen=True, slots=True)
class Prefix:
    """Column LIKE 'text%'; with `more`, the pattern goes on, and a row may still fail it."""

    at: int
    text: str
    more: bool


@dataclass(frozen=True, slots=True)
class IsNull:
    at: int


@dataclass(frozen=True, slots=True)
class IsNaN:
    """True for NaN, false for other numbers, null for null."""

    at: int


Condition = Fixed | All | AnyOf | Negation | Holds | Less | OneOf | Prefix | IsNull | IsNaN

ANYTHING: Final = Fixed(TRUE | FALSE | UNKNOWN)
ALWAYS_NULL: Final = Fixed(UNKNOWN)
_MIRRORED: Final[dict[type[exp.Expr], type[exp.Expr]]] = {
    exp.EQ: exp.EQ,
    exp.NEQ: exp.NEQ,
    exp.LT: exp.GT,
    exp.GT: exp.LT,
    exp.LTE: exp.GTE,
    exp.GTE: exp.LTE,
    exp.NullSafeEQ: exp.NullSafeEQ,
    exp.NullSafeNEQ: exp.NullSafeNEQ,
}


def read_predicate(where: str, params: Sequence[Any], schema: Schema, table: str = "") -> Condition:
    """The tree of a `where=` text over a table; UsageError when the text is none."""
    tree = _parse(parse_where(where, schema, table))
    return ANYTHING if tree is None else _Reader(params, schema).read(tree)


def read_conjuncts(parts: Sequence[exp.Expr], params: Sequence[Any], schema: Schema) -> Condition:
    """The tree of a conjunction whose parts are parsed already, parameters numbered."""
    read = _Reader(params, schema).read
    nodes = [read(part) for part in parts]
    flat = [one for node in nodes for one in (node.parts if isinstance(node, All) else (node,))]
    return All(tuple(flat))


@lru_cache(maxsize=512)
def _parse(text: str) -> exp.Expr | None:
    """The syntax tree of DuckDB's own text, each `?` numbered; None when that fails."""
    numbered = number_parameters(text)
    if numbered is None:
        return None
    try:
        select = sqlglot.parse_one(f"select 1 from t where {numbered}", read="duckdb")
    except (sqlglot.errors.SqlglotError, RecursionError):
        return None
    where = select.args.get("where")
    return where.this if isinstance(where, exp.Where) else None


def number_parameters(text: str) -> str | None:
    """The text with every `?` replaced by `$1`, `$2` and so on; None when it has both kinds."""
    try:
        text = part_casts(text)
        tokens = sqlglot.tokenize(text, read="duckdb")
    except sqlglot.errors.SqlglotError:
        return None
    marks = [token for token in tokens if token.token_type is sqlglot.TokenType.PLACEHOLDER]
    if marks and any(token.text == "$" for token in tokens):
        return None
    for number in range(len(marks), 0, -1):
        at = marks[number - 1].start
        if text[at] != "?":
            return None
        text = f"{text[:at]}${number} {text[at + 1 :]}"
    return text


class _Reader:
    """One pass over a syntax tree."""

    __slots__ = ("params", "schema")

    def __init__(self, params: Sequence[Any], schema: Schema) -> None:
        self.params = params
        self.schema = schema

    def read(self, node: exp.Expr) -> Condition:
        while type(node) is exp.Paren:
            node = node.this
        rule = _RULES.get(type(node))
        if rule is None:
            return ANYTHING
        method, known = rule
        if any(value for name, value in node.args.items() if name not in known):
            return ANYTHING
        return method(self, node)

    # Connectives

    def both(self, node: exp.Expr) -> Condition:
        parts: list[Condition] = []
        for part in [self.read(part) for part in _chain(node)]:
            parts += part.parts if isinstance(part, All) else (part,)
        return All(tuple(parts))

    def either(self, node: exp.Expr) -> Condition:
        return AnyOf(tuple([self.read(part) for part in _chain(node)]))

    def negation(self, node: exp.Expr) -> Condition:
        return Negation(self.read(node.this))

    def truth(self, node: exp.Expr) -> Condition:
        return Fixed(TRUE if node.this else FALSE)

    def null(self, node: exp.Expr) -> Condition:
        return ALWAYS_NULL

    def column(self, node: exp.Expr) -> Condition:
        at = self.place(node)
        if at is None or kind(self.schema.columns[at].type) != "bool":
            return ANYTHING
        return OneOf(at, (ConstantSpan(True, True),), False)

    # Comparisons

    def comparison(self, node: exp.Expr) -> Condition:
        operator, at, given = type(node), self.place(node.this), self.value(node.expression)
        if at is None:
            operator = _MIRRORED[operator]
            at, given = self.place(node.expression), self.value(node.this)
        if at is None or given is None:
            return ANYTHING
        safe = operator in (exp.NullSafeEQ, exp.NullSafeNEQ)
        if given is NULL:
            leaf: Condition = IsNull(at) if safe else ALWAYS_NULL
        else:
            spans = self.spans(at, [given])
            if spans is None:
                return ANYTHING
            leaf = _compare(operator, at, spans[0])
            leaf = Holds(leaf) if safe else leaf
        return Negation(leaf) if operator in (exp.NEQ, exp.NullSafeNEQ) else leaf

    def between(self, node: exp.Expr) -> Condition:
        at = self.place(node.this)
        ends = [self.value(node.args["low"]), self.value(node.args["high"])]
        known = [given for given in ends if given is not None and given is not NULL]
        spans = None if at is None or None in ends else self.spans(at, known)
        if at is None or spans is None:
            return ANYTHING
        placed = iter(spans)
        operators = (exp.GTE, exp.LTE)
        return All(
            tuple(
                ALWAYS_NULL if given is NULL else _compare(operator, at, next(placed))
                for operator, given in zip(operators, ends, strict=True)
            )
        )

    def inside(self, node: exp.Expr) -> Condition:
        at = self.place(node.this)
        items = [self.value(item) for item in node.expressions]
        known = [given for given in items if given is not None and given is not NULL]
        spans = None if at is None or None in items or not items else self.spans(at, known)
        if at is None or spans is None:
            return ANYTHING
        plain = sorted({span for span in spans if span is not NAN})
        leaf = OneOf(at, tuple(plain), NULL in items)
        return AnyOf((leaf, IsNaN(at))) if NAN in spans else leaf

    def identity(self, node: exp.Expr) -> Condition:
        """IS NULL, IS TRUE, IS FALSE."""
        wanted = node.expression
        if type(wanted) is exp.Null:
            at = self.place(node.this)
            return ANYTHING if at is None else IsNull(at)
        if type(wanted) is not exp.Boolean:
            return ANYTHING
        part = self.read(node.this)
        return Holds(part if wanted.this else Negation(part))

    def like(self, node: exp.Expr) -> Condition:
        pattern = self.value(node.expression)
        if pattern is None or pattern.kind != "text":
            return ANYTHING
        ends = [place for place in map(pattern.value.find, "%_") if place >= 0]
        if not ends:
            return self.text_leaf(node.this, lambda at: _equal(at, pattern.value))
        prefix, rest = pattern.value[: min(ends)], pattern.value[min(ends) :]
        return self.text_leaf(node.this, lambda at: Prefix(at, prefix, rest.strip("%") != ""))

    def starts(self, node: exp.Expr) -> Condition:
        return self.starts_with(node.this, node.expression)

    def function(self, node: exp.Expr) -> Condition:
        """`prefix(s, 'a')`, which the parser has no name for."""
        named = str(node.this).lower() == "prefix" and len(node.expressions) == 2
        return self.starts_with(*node.expressions) if named else ANYTHING

    def starts_with(self, column: exp.Expr, text: exp.Expr) -> Condition:
        prefix = self.value(text)
        if prefix is None or prefix.kind != "text":
            return ANYTHING
        return self.text_leaf(column, lambda at: Prefix(at, prefix.value, False))

    # Operands

    def text_leaf(self, node: exp.Expr, leaf: Callable[[int], Condition]) -> Condition:
        at = self.place(node)
        if at is None or kind(self.schema.columns[at].type) != "string":
            return ANYTHING
        return leaf(at)

    def place(self, node: exp.Expr) -> int | None:
        """The position of a plain column; None for everything else."""
        while type(node) is exp.Paren:
            node = node.this
        if type(node) is not exp.Column or any(
            value for name, value in node.args.items() if name != "this"
        ):
            return None
        try:
            return self.schema.position(node.name)
        except SchemaError:
            return None

    def value(self, node: exp.Expr) -> Constant | None:
        return constant(node, self.params)

    def spans(self, at: int, constants: Sequence[Constant]) -> list[ConstantSpan] | None:
        return place_constants(self.schema.columns[at].type, constants)


_Rule = tuple[Callable[[_Reader, Any], Condition], frozenset[str]]
_BINARY: Final = frozenset(["this", "expression"])
_RULES: Final[dict[type[exp.Expr], _Rule]] = {
    exp.And: (_Reader.both, _BINARY),
    exp.Or: (_Reader.either, _BINARY),
    exp.Not: (_Reader.negation, frozenset(["this"])),
    exp.Boolean: (_Reader.truth, frozenset(["this"])),
    exp.Null: (_Reader.null, frozenset()),
    exp.Column: (_Reader.column, frozenset(["this"])),
    exp.Between: (_Reader.between, frozenset(["this", "low", "high"])),
    exp.In: (_Reader.inside, frozenset(["this", "expressions"])),
    exp.Is: (_Reader.identity, _BINARY),
    exp.Like: (_Reader.like, _BINARY),
    exp.StartsWith: (_Reader.starts, _BINARY),
    exp.Anonymous: (_Reader.function, frozenset(["this", "expressions"])),
    **dict.fromkeys(_MIRRORED, (_Reader.comparison, _BINARY)),
}


def _chain(node: exp.Expr) -> list[exp.Expr]:
    """The parts of a and b and c, without recursion: chains can be thousands long."""
    parts: list[exp.Expr] = []
    waiting, connective = [node], type(node)
    while waiting:
        part = waiting.pop()
        if type(part) is connective:
            waiting += [part.args["expression"], part.this]
        else:
            parts.append(part)
    return parts


def _equal(at: int, value: Any) -> Condition:
    return OneOf(at, (ConstantSpan(value, value),), False)


def _compare(operator: type[exp.Expr], at: int, span: ConstantSpan) -> Condition:
    """Column <operator> constant; for <> and its like the equality, which the caller negates."""
    if span is NAN:
        return _compare_nan(operator, at)
    if operator in (exp.LT, exp.GTE):
        leaf = Less(at, span, False)
    elif operator in (exp.LTE, exp.GT):
        leaf = Less(at, span, True)
    else:
        return OneOf(at, (span,), False)
    return Negation(leaf) if operator in (exp.GT, exp.GTE) else leaf


def _compare_nan(operator: type[exp.Expr], at: int) -> Condition:
    """NaN equals itself and is above every other number."""
    if operator is exp.LT:
        return Negation(IsNaN(at))
    if operator is exp.GT:
        return All((IsNaN(at), Negation(IsNaN(at))))
    if operator is exp.LTE:
        return AnyOf((IsNaN(at), Negation(IsNaN(at))))
    return IsNaN(at)

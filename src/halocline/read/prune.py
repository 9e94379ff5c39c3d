"""Pruning: which objects, row groups or blocks can hold a row that a condition wants.

    syntax tree --judge_of--> Judge --zonemaps--> which of TRUE, FALSE, UNKNOWN it can be there
    conjuncts   --Predicate.may_match(zonemaps)--> read these rows, or leave them

A zonemap says of one column of some rows: the smallest and largest value, how many nulls there are
and how many NaN. From it each part of a condition gets the *set* of results it may have
for those rows (a mask of TRUE, FALSE, UNKNOWN), and AND, OR, NOT combine sets by SQL's three-valued
logic, pair by pair. Rows are left unread only when TRUE is not in the set, so an answer can be too
careful but never wrong; NOT over something undecided stays undecided.

    a in [3, 7], no nulls      a < 5: {TRUE, FALSE}      a < 2: {FALSE}    not a < 2: {TRUE}
    a in [3, 7], some nulls    a < 2: {FALSE, UNKNOWN}   not a < 2: {TRUE, UNKNOWN}

What a judge says is what DuckDB will do with that very text, or less: a comparison of a column
with constants, IN, BETWEEN, LIKE 'prefix%', IS NULL and their like are understood; whatever else
there is (functions, casts of columns, two columns) may be true, false or null. x > c is read as
NOT x <= c and x <> c as NOT x = c, in SQL as here, because null stays null under NOT and the order
of every type is total (NaN is above all other numbers).

Bounds need not be values that occur: those of long strings are cut, the lower one as it is and the
upper one after its last character was raised. A bound of None is no bound. NaN counts for neither
and lies above the upper one.

Invariants
- If any of the rows satisfies the predicate in DuckDB, `may_match` is true.
- A node is understood only if each argument that it has is one we know: a flag that a later
  version of the parser adds (as `negate` of LIKE once was) makes it undecided, not wrong.

Not here: which parts of a statement count (predicate.py), what a constant means beside a column
(constant.py), bloom filters (objects/).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, Protocol

from sqlglot import exp

from halocline.errors import SchemaError
from halocline.ids import ColumnId
from halocline.read.constant import NAN, NULL, Constant, ConstantSpan, constant, place_constants
from halocline.schema.schema import Schema, TableColumn
from halocline.schema.types import kind


class Zone(Protocol):
    """What pruning asks of a zonemap: one column of some rows. Bounds are canonical values."""

    @property
    def min(self) -> Any: ...
    @property
    def max(self) -> Any: ...
    @property
    def nulls(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def nans(self) -> int: ...


Zones = Mapping[int, Zone]
Judge = Callable[[Zones], int]
"""Which results a condition can have for the rows of some zonemaps, as a mask."""
Test = Callable[[Zone], int]
"""Which of TRUE and FALSE a comparison can be for the values between the bounds of a zone."""

# What a condition can be for a row. A set of these is a mask.
FALSE: Final = 1
UNKNOWN: Final = 2
TRUE: Final = 4
_RANKS: Final = (FALSE, UNKNOWN, TRUE)
"""AND of two results is the lower one in this order, OR the higher one, in SQL as well."""


class Predicate:
    """Conditions that all must hold, understood once and asked about many objects.

    Measured: 0.25 us for `a = 5`, 0.8 us for three comparisons, 2 us for seven, per object.
    """

    __slots__ = ("_judges",)

    def __init__(self, judges: Sequence[Judge]) -> None:
        self._judges = tuple(judges)

    def may_match(self, zones: Zones) -> bool:
        """Can any row match? Columns without a zonemap are undecided."""
        try:
            for judge in self._judges:
                if not judge(zones) & TRUE:
                    return False
        except TypeError:
            # Bounds written when the column had another type that does not compare with this one.
            return True
        return True


def judge_of(tree: exp.Expr, params: Sequence[Any], schema: Schema) -> Judge:
    """Understand the syntax tree of a condition, its columns unqualified, parameters numbered."""
    return _Reader(params, schema).read(tree)


# Judges, as closures: a walk over a tree of nodes costs 3x more.


def _combined(pick: Callable[[int, int], int]) -> tuple[int, ...]:
    """For each pair of masks (left * 8 + right) the results that pairs of their members have."""
    table = []
    for left in range(8):
        for right in range(8):
            pairs = [pick(a, b) for a in _RANKS if a & left for b in _RANKS if b & right]
            table.append(sum(set(pairs)))
    return tuple(table)


_AND: Final = _combined(min)
_OR: Final = _combined(max)
_NOT: Final = tuple(m & UNKNOWN | (m & TRUE and FALSE) | (m & FALSE and TRUE) for m in range(8))
_HOLDS: Final = tuple(m & TRUE | (m & (FALSE | UNKNOWN) and FALSE) for m in range(8))


def _fixed(mask: int) -> Judge:
    """One of the results in the mask, whatever the rows."""
    return lambda zones: mask


ANYTHING: Final = _fixed(TRUE | FALSE | UNKNOWN)
ALWAYS_NULL: Final = _fixed(UNKNOWN)


def _connected(parts: Sequence[Judge], table: tuple[int, ...]) -> Judge:
    """AND or OR of all parts."""
    first, rest = parts[0], tuple(parts[1:])

    def judge(zones: Zones) -> int:
        mask = first(zones)
        for part in rest:
            mask = table[mask * 8 + part(zones)]
        return mask

    return judge


def _not(part: Judge) -> Judge:
    return lambda zones: _NOT[part(zones)]


def _holds(part: Judge) -> Judge:
    """`part IS TRUE`: null becomes false."""
    return lambda zones: _HOLDS[part(zones)]


def _is_null(column: ColumnId) -> Judge:
    def judge(zones: Zones) -> int:
        zone = zones.get(column)
        if zone is None:
            return TRUE | FALSE
        nulls = zone.nulls
        return FALSE if not nulls else TRUE if nulls >= zone.rows else TRUE | FALSE

    return judge


def _on_values(column: ColumnId, test: Test, of_nan: int) -> Judge:
    """A comparison: null for nulls, `of_nan` for NaN, and whatever `test` says for other values."""

    def judge(zones: Zones) -> int:
        zone = zones.get(column)
        if zone is None:
            return TRUE | FALSE | UNKNOWN
        nulls, nans = zone.nulls, zone.nans
        if not nulls and not nans:
            return test(zone)
        mask = UNKNOWN if nulls else 0
        if nans:
            mask |= of_nan
        return mask | test(zone) if nulls + nans < zone.rows else mask

    return judge


# Tests


def _below(span: ConstantSpan) -> Test:
    low, high = span

    def test(zone: Zone) -> int:
        least, most = zone.min, zone.max
        mask = TRUE if least is None or least < high else 0
        return mask | FALSE if most is None or most >= low else mask

    return test


def _at_most(span: ConstantSpan) -> Test:
    low, high = span

    def test(zone: Zone) -> int:
        least, most = zone.min, zone.max
        mask = TRUE if least is None or least <= high else 0
        return mask | FALSE if most is None or most > low else mask

    return test


def _one_of(spans: Sequence[ConstantSpan], otherwise: int = FALSE) -> Test:
    """Any of the constants within the bounds? Both lists of bounds ascend, so one search tells."""
    lows = [span.low for span in spans]
    # Spans of rounded constants may enclose one another; a wider one is always safe.
    highs = list(accumulate([span.high for span in spans], max))
    count = len(lows)

    def test(zone: Zone) -> int:
        least, most = zone.min, zone.max
        if least is None or most is None:
            return TRUE | otherwise
        at = bisect_left(highs, least)
        if at == count or lows[at] > most:
            return otherwise
        alone = least == most == lows[at] == highs[at]
        return TRUE if alone else TRUE | otherwise

    return test


def _prefixed(text: str, more: bool) -> Test:
    """LIKE 'text%'; with `more`, the pattern goes on, and a row may still fail it.

    Strings that start with `text` lie side by side; Python orders them as UTF-8 bytes do.
    """
    size = len(text)

    def test(zone: Zone) -> int:
        least, most = zone.min, zone.max
        if least is None or most is None:
            return TRUE | FALSE
        if least[:size] > text or most < text:
            return FALSE
        inside = not more and least[:size] == text == most[:size]
        return TRUE if inside else TRUE | FALSE

    return test


def _compared(operator: type[exp.Expr], column: ColumnId, span: ConstantSpan) -> Judge:
    """Column <operator> constant; for <> and its like the equality, which the caller negates."""
    if span is NAN:
        of_values, of_nan = _BESIDE_NAN.get(operator, (FALSE, TRUE))
        return _on_values(column, lambda zone: of_values, of_nan)
    if operator in (exp.LT, exp.GTE):
        below = _on_values(column, _below(span), FALSE)
        return below if operator is exp.LT else _not(below)
    if operator in (exp.LTE, exp.GT):
        at_most = _on_values(column, _at_most(span), FALSE)
        return at_most if operator is exp.LTE else _not(at_most)
    return _on_values(column, _one_of([span]), FALSE)


_BESIDE_NAN: Final[dict[type[exp.Expr], tuple[int, int]]] = {
    exp.LT: (TRUE, FALSE),
    exp.GT: (FALSE, FALSE),
    exp.LTE: (TRUE, TRUE),
}
"""What other values and NaN are beside NaN, which equals itself and is above every number."""
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


class _Reader:
    """One pass over a syntax tree."""

    __slots__ = ("params", "schema")

    def __init__(self, params: Sequence[Any], schema: Schema) -> None:
        self.params = params
        self.schema = schema

    def read(self, node: exp.Expr) -> Judge:
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

    def connective(self, node: exp.Expr) -> Judge:
        parts = [self.read(part) for part in chain(node, type(node))]
        return _connected(parts, _AND if type(node) is exp.And else _OR)

    def negation(self, node: exp.Expr) -> Judge:
        return _not(self.read(node.this))

    def truth(self, node: exp.Expr) -> Judge:
        return _fixed(TRUE if node.this else FALSE)

    def null(self, node: exp.Expr) -> Judge:
        return ALWAYS_NULL

    def flag(self, node: exp.Expr) -> Judge:
        """A bool column by itself."""
        column = self.column(node)
        if column is None or kind(column.type) != "bool":
            return ANYTHING
        return _on_values(column.id, _one_of([ConstantSpan(True, True)]), FALSE)

    # Comparisons

    def comparison(self, node: exp.Expr) -> Judge:
        operator, column, given = type(node), self.column(node.this), self.value(node.expression)
        if column is None:
            operator = _MIRRORED[operator]
            column, given = self.column(node.expression), self.value(node.this)
        if column is None or given is None:
            return ANYTHING
        safe = operator in (exp.NullSafeEQ, exp.NullSafeNEQ)
        if given is NULL:
            judge = _is_null(column.id) if safe else ALWAYS_NULL
        else:
            spans = place_constants(column.type, [given])
            if spans is None:
                return ANYTHING
            judge = _compared(operator, column.id, spans[0])
            judge = _holds(judge) if safe else judge
        return _not(judge) if operator in (exp.NEQ, exp.NullSafeNEQ) else judge

    def between(self, node: exp.Expr) -> Judge:
        column = self.column(node.this)
        ends = [self.value(node.args["low"]), self.value(node.args["high"])]
        spans = self.spans(column, ends)
        if column is None or spans is None:
            return ANYTHING
        placed = iter(spans)
        both = [
            ALWAYS_NULL if given is NULL else _compared(operator, column.id, next(placed))
            for operator, given in zip((exp.GTE, exp.LTE), ends, strict=True)
        ]
        return _connected(both, _AND)

    def inside(self, node: exp.Expr) -> Judge:
        column = self.column(node.this)
        items = [self.value(item) for item in node.expressions]
        spans = self.spans(column, items)
        if column is None or spans is None or not items:
            return ANYTHING
        plain = sorted({span for span in spans if span is not NAN})
        otherwise = UNKNOWN if NULL in items else FALSE
        return _on_values(column.id, _one_of(plain, otherwise), TRUE if NAN in spans else otherwise)

    def identity(self, node: exp.Expr) -> Judge:
        """IS NULL, IS TRUE, IS FALSE."""
        wanted = node.expression
        if type(wanted) is exp.Null:
            column = self.column(node.this)
            return ANYTHING if column is None else _is_null(column.id)
        if type(wanted) is not exp.Boolean:
            return ANYTHING
        part = self.read(node.this)
        return _holds(part if wanted.this else _not(part))

    def like(self, node: exp.Expr) -> Judge:
        pattern = self.value(node.expression)
        if pattern is None or pattern.kind != "text":
            return ANYTHING
        signs = [at for at in map(pattern.value.find, "%_") if at >= 0]
        if not signs:
            same = ConstantSpan(pattern.value, pattern.value)
            return self.on_text(node.this, _one_of([same]))
        prefix, rest = pattern.value[: min(signs)], pattern.value[min(signs) :]
        return self.on_text(node.this, _prefixed(prefix, rest.strip("%") != ""))

    def starts(self, node: exp.Expr) -> Judge:
        return self.starts_with(node.this, node.expression)

    def function(self, node: exp.Expr) -> Judge:
        """`prefix(s, 'a')`, which the parser has no name for."""
        named = str(node.this).lower() == "prefix" and len(node.expressions) == 2
        return self.starts_with(*node.expressions) if named else ANYTHING

    def starts_with(self, column: exp.Expr, text: exp.Expr) -> Judge:
        prefix = self.value(text)
        if prefix is None or prefix.kind != "text":
            return ANYTHING
        return self.on_text(column, _prefixed(prefix.value, False))

    # Operands

    def on_text(self, node: exp.Expr, test: Test) -> Judge:
        column = self.column(node)
        if column is None or kind(column.type) != "string":
            return ANYTHING
        return _on_values(column.id, test, FALSE)

    def column(self, node: exp.Expr) -> TableColumn | None:
        """A plain column; None for everything else."""
        while type(node) is exp.Paren:
            node = node.this
        if type(node) is not exp.Column or any(
            value for name, value in node.args.items() if name != "this"
        ):
            return None
        try:
            return self.schema.columns[self.schema.position(node.name)]
        except SchemaError:
            return None

    def value(self, node: exp.Expr) -> Constant | None:
        return constant(node, self.params)

    def spans(
        self, column: TableColumn | None, items: Sequence[Constant | None]
    ) -> list[ConstantSpan] | None:
        """Spans of the constants that are not null; None when one of them is not understood."""
        known = [given for given in items if given is not None and given is not NULL]
        if column is None or None in items:
            return None
        return place_constants(column.type, known)


_Rule = tuple[Callable[[_Reader, Any], Judge], frozenset[str]]
_BINARY: Final = frozenset(["this", "expression"])
_RULES: Final[dict[type[exp.Expr], _Rule]] = {
    exp.And: (_Reader.connective, _BINARY),
    exp.Or: (_Reader.connective, _BINARY),
    exp.Not: (_Reader.negation, frozenset(["this"])),
    exp.Boolean: (_Reader.truth, frozenset(["this"])),
    exp.Null: (_Reader.null, frozenset()),
    exp.Column: (_Reader.flag, frozenset(["this"])),
    exp.Between: (_Reader.between, frozenset(["this", "low", "high"])),
    exp.In: (_Reader.inside, frozenset(["this", "expressions"])),
    exp.Is: (_Reader.identity, _BINARY),
    exp.Like: (_Reader.like, _BINARY),
    exp.StartsWith: (_Reader.starts, _BINARY),
    exp.Anonymous: (_Reader.function, frozenset(["this", "expressions"])),
    **dict.fromkeys(_MIRRORED, (_Reader.comparison, _BINARY)),
}


def chain(node: exp.Expr, connective: type[exp.Expr]) -> list[exp.Expr]:
    """The parts of a and (b and c), without recursion: chains can be thousands long."""
    parts: list[exp.Expr] = []
    waiting = [node]
    while waiting:
        part = waiting.pop()
        if type(part) is connective:
            waiting += [part.args["expression"], part.this]
        elif type(part) is exp.Paren:
            waiting.append(part.this)
        else:
            parts.append(part)
    return parts

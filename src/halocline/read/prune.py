"""Pruning: which objects, row groups or blocks can hold a row that a predicate wants.

    where, params, schema --compile_where--> Predicate --may_match(zonemaps)--> read it, or leave it

A zonemap says of one column of some rows: the smallest and largest value, how many nulls there are
and how many NaN. From it each part of a predicate gets the *set* of results it may have
for those rows (a mask of TRUE, FALSE, UNKNOWN), and AND, OR, NOT combine sets by SQL's three-valued
logic, pair by pair. Rows are left unread only when TRUE is not in the set, so an answer can be too
careful but never wrong; NOT over something undecided stays undecided.

    a in [3, 7], no nulls      a < 5: {TRUE, FALSE}      a < 2: {FALSE}    not a < 2: {TRUE}
    a in [3, 7], some nulls    a < 2: {FALSE, UNKNOWN}   not a < 2: {TRUE, UNKNOWN}

Bounds need not be values that occur: those of long strings are cut, the lower one as it is and the
upper one after its last character was raised. A bound of None is no bound. NaN counts for neither
and lies above the upper one.

Invariants
- If any of the rows satisfies the predicate in DuckDB, `may_match` is true.

Not here: what a text means (predicate.py), key ranges (keyrange.py), bloom filters (objects/).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, Protocol

from sqlglot import exp

from halocline.ids import ColumnId
from halocline.read.constant import ConstantSpan
from halocline.read.keyrange import KeyBounds, bounds_of
from halocline.read.predicate import (
    FALSE,
    TRUE,
    UNKNOWN,
    All,
    AnyOf,
    Condition,
    Fixed,
    Holds,
    IsNaN,
    IsNull,
    Less,
    Negation,
    OneOf,
    Prefix,
    read_conjuncts,
    read_predicate,
)
from halocline.read.statement import check_params
from halocline.schema.schema import Schema


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

_MAYBE: Final = TRUE | FALSE | UNKNOWN
_RANKS: Final = (FALSE, UNKNOWN, TRUE)
"""AND of two results is the lower one in this order, OR the higher one, in SQL as well."""


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


@dataclass(frozen=True, slots=True, eq=False)
class Predicate:
    """A `where` that has been understood once and is asked about many objects.

    Measured: 0.25 us for `a = 5`, 0.8 us for three comparisons, 2 us for seven, per object.
    """

    bounds: KeyBounds
    """What it says about the primary key."""
    columns: frozenset[ColumnId]
    """The columns whose zonemaps can make a difference; none: it never prunes."""
    _judges: tuple[Judge, ...]

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


def compile_where(
    where: str | None, params: Sequence[Any] | None, schema: Schema, table: str = ""
) -> Predicate:
    """Understand a `where=` once. UsageError for a text that is not a predicate."""
    values = check_params(params)
    if where is None:
        return _compile(Fixed(TRUE), schema)
    return _compile(read_predicate(where, values, schema, table), schema)


def compile_tree(parts: Sequence[exp.Expr], params: Sequence[Any], schema: Schema) -> Predicate:
    """Understand the conjuncts of a statement that is parsed already."""
    return _compile(read_conjuncts(parts, params, schema), schema)


def _compile(node: Condition, schema: Schema) -> Predicate:
    parts = node.parts if isinstance(node, All) else (node,)
    ids = [column.id for column in schema.columns]
    return Predicate(
        bounds=bounds_of(node, schema),
        columns=frozenset(ids[at] for at in _places(node)),
        _judges=tuple([judge_of(part, ids) for part in parts]),
    )


def _places(node: Condition) -> set[int]:
    if isinstance(node, All | AnyOf):
        return set().union(*[_places(part) for part in node.parts])
    if isinstance(node, Negation | Holds):
        return _places(node.part)
    return set() if isinstance(node, Fixed) else {node.at}


def judge_of(node: Condition, ids: Sequence[ColumnId]) -> Judge:
    """The function that answers for one node, as closures: a walk over the tree costs 3x more."""
    if isinstance(node, Fixed):
        mask = node.mask
        return lambda zones: mask
    if isinstance(node, All | AnyOf):
        table = _AND if isinstance(node, All) else _OR
        return _connective([judge_of(part, ids) for part in node.parts], table)
    if isinstance(node, Negation | Holds):
        table = _NOT if isinstance(node, Negation) else _HOLDS
        part = judge_of(node.part, ids)
        return lambda zones: table[part(zones)]
    column = ids[node.at]
    if isinstance(node, IsNull):
        return _is_null(column)
    return _on_values(column, *_test_of(node))


def _connective(parts: Sequence[Judge], table: tuple[int, ...]) -> Judge:
    first, rest = parts[0], tuple(parts[1:])

    def judge(zones: Zones) -> int:
        mask = first(zones)
        for part in rest:
            mask = table[mask * 8 + part(zones)]
        return mask

    return judge


def _is_null(column: ColumnId) -> Judge:
    def judge(zones: Zones) -> int:
        zone = zones.get(column)
        if zone is None:
            return TRUE | FALSE
        nulls = zone.nulls
        return FALSE if not nulls else TRUE if nulls >= zone.rows else TRUE | FALSE

    return judge


Test = Callable[[Zone], int]
"""Which of TRUE and FALSE a comparison can be for the values between the bounds of a zone."""


def _on_values(column: ColumnId, test: Test, of_nan: int) -> Judge:
    """A comparison: null for nulls, `of_nan` for NaN, and whatever `test` says for other values."""

    def judge(zones: Zones) -> int:
        zone = zones.get(column)
        if zone is None:
            return _MAYBE
        nulls, nans = zone.nulls, zone.nans
        if not nulls and not nans:
            return test(zone)
        mask = UNKNOWN if nulls else 0
        if nans:
            mask |= of_nan
        return mask | test(zone) if nulls + nans < zone.rows else mask

    return judge


def _test_of(node: Less | OneOf | Prefix | IsNaN) -> tuple[Test, int]:
    """The test for values, and the result for NaN, which is above and unlike all constants."""
    if isinstance(node, Less):
        return (_at_most(*node.span) if node.or_equal else _below(*node.span)), FALSE
    if isinstance(node, OneOf):
        otherwise = UNKNOWN if node.or_null else FALSE
        return _one_of(node.spans, otherwise), otherwise
    if isinstance(node, Prefix):
        return _prefixed(node.text, node.more), FALSE
    return (lambda zone: FALSE), TRUE


def _below(low: Any, high: Any) -> Test:
    def test(zone: Zone) -> int:
        least, most = zone.min, zone.max
        mask = TRUE if least is None or least < high else 0
        return mask | FALSE if most is None or most >= low else mask

    return test


def _at_most(low: Any, high: Any) -> Test:
    def test(zone: Zone) -> int:
        least, most = zone.min, zone.max
        mask = TRUE if least is None or least <= high else 0
        return mask | FALSE if most is None or most > low else mask

    return test


def _one_of(spans: Sequence[ConstantSpan], otherwise: int) -> Test:
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
    """Strings that start with `text` lie side by side; Python orders them as UTF-8 bytes do."""
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

"""Key ranges: what a predicate says about the primary key, so that reads can start from keys.

    id = 7                       -> equalities (7,)                      point reads
    id in (3, 9) and id > 4      -> equalities (9,)
    id >= 5 and id < 8           -> low 5, high 8                        a range read
    a = 1 and b > 'x'            -> low (1, 'x\\0'), high (2,)            key (a, b): a prefix
    a in (1, 2) and b = 5        -> equalities ((1, 5), (2, 5)), low (1, 5), high (2, 6)

Ranges are half-open, low <= key < high, and their ends are canonical keys or prefixes of composite
keys (a tuple that is shorter sorts before all that it begins). That is always possible: every type
that can be a key is discrete, so `id > 4` starts at 5 and `s > 'x'` at 'x\\0'. Ends are found per
key column first, and then joined: equal columns at the front, then one column with a range.

Invariants
- Every row that satisfies the predicate has a key in `equalities` (if not None) and in the range.
- The converse does not hold: the predicate still has to be applied to what is read.
"""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple

import pyarrow as pa

from halocline.read.constant import ConstantSpan
from halocline.read.predicate import (
    FALSE,
    TRUE,
    All,
    AnyOf,
    Condition,
    Fixed,
    Holds,
    Less,
    Negation,
    OneOf,
    Prefix,
)
from halocline.schema.keys import encoder
from halocline.schema.schema import Schema
from halocline.schema.types import INT_BITS, kind

EQUALITIES_MAX: Final = 10_000
"""More keys than this are a range, not a list of point reads."""


class KeyBounds(NamedTuple):
    """low <= key < high, None for no bound; `equalities`: all keys that can match, ascending."""

    low: Any
    high: Any
    equalities: tuple[Any, ...] | None

    @property
    def empty(self) -> bool:
        """Can no key match?"""
        return self.equalities == ()


class Allowed(NamedTuple):
    """Values of one key column: `points` if they are few and known, else low <= value < high."""

    low: Any
    high: Any
    points: tuple[Any, ...] | None = None


UNBOUNDED: Final = KeyBounds(None, None, None)
NO_KEY: Final = KeyBounds(None, None, ())
_FULL: Final = Allowed(None, None)
_EMPTY: Final = Allowed(None, None, ())


def bounds_of(node: Condition, schema: Schema) -> KeyBounds:
    """What a predicate says about the key of a schema; unbounded when there is no key."""
    steps = [_Steps(schema.columns[at].type) for at in schema.key_positions]
    columns = [
        _allowed(node, at, step, False)
        for at, step in zip(schema.key_positions, steps, strict=True)
    ]
    if not columns:
        return UNBOUNDED
    if any(column.points == () for column in columns):
        return NO_KEY
    low, high = _join(columns, steps)
    if len(columns) == 1:
        return KeyBounds(low[0] if low else None, high[0] if high else None, columns[0].points)
    return KeyBounds(tuple(low) or None, tuple(high) or None, _product(columns))


def byte_range(bounds: KeyBounds, schema: Schema) -> tuple[bytes, bytes | None]:
    """Bounds as key bytes, low <= key < high; None for no upper end."""
    types = [schema.columns[at].type for at in schema.key_positions]
    high = bounds.high
    return (
        b"" if bounds.low is None else _prefix_bytes(types, bounds.low),
        None if high is None else _prefix_bytes(types, high),
    )


def _prefix_bytes(types: Sequence[Any], key: Any) -> bytes:
    if len(types) == 1:
        return encoder(types)(key)
    # A closing bool makes even one part encode as part of a composite key; it is one byte long.
    return encoder([*types[: len(key)], pa.bool_()])((*key, False))[:-1]


def _join(columns: Sequence[Allowed], steps: Sequence[_Steps]) -> tuple[list[Any], list[Any]]:
    """Ends of the range: columns with one value each, then the first that has several."""
    low: list[Any] = []
    for column, step in zip(columns, steps, strict=True):
        if column.points is None or len(column.points) > 1:
            first, last = _ends(column, step)
            start = low if first is None else [*low, first]
            end = _after(low, steps) if last is None else [*low, last]
            return start, end
        low.append(column.points[0])
    return low, _after(low, steps)


def _ends(column: Allowed, step: _Steps) -> tuple[Any, Any]:
    if column.points is None:
        return column.low, column.high
    return column.points[0], step.after(column.points[-1])


def _after(prefix: Sequence[Any], steps: Sequence[_Steps]) -> list[Any]:
    """The least prefix above all keys that begin with this one; empty when there is none."""
    for size in range(len(prefix), 0, -1):
        following = steps[size - 1].after(prefix[size - 1])
        if following is not None:
            return [*prefix[: size - 1], following]
    return []


def _product(columns: Sequence[Allowed]) -> tuple[Any, ...] | None:
    points = [column.points for column in columns if column.points is not None]
    if len(points) < len(columns) or math.prod(map(len, points)) > EQUALITIES_MAX:
        return None
    return tuple(itertools.product(*points))


# One column


def _allowed(node: Condition, at: int, step: _Steps, negated: bool) -> Allowed:
    """The values with which a node (or its negation) can be true. Key columns are never null."""
    if isinstance(node, Fixed):
        return _FULL if node.mask & (FALSE if negated else TRUE) else _EMPTY
    if isinstance(node, Negation):
        return _allowed(node.part, at, step, not negated)
    if isinstance(node, Holds):
        return _FULL if negated else _allowed(node.part, at, step, False)
    if isinstance(node, All | AnyOf):
        parts = [_allowed(part, at, step, negated) for part in node.parts]
        join = _meet if isinstance(node, All) is not negated else _unite
        result = parts[0]
        for part in parts[1:]:
            result = join(result, part, step)
        return result
    if node.at != at:
        return _FULL
    if isinstance(node, Less):
        return _less(node, step, negated)
    if isinstance(node, OneOf) and not negated:
        return _one_of(node.spans, step)
    if isinstance(node, Prefix) and not negated:
        return Allowed(node.text, _after_prefix(node.text))
    return _FULL


def _less(node: Less, step: _Steps, negated: bool) -> Allowed:
    edge = step.after if node.or_equal else step.up
    if not negated:
        return _from_range(None, edge(node.span.high), step)
    low = edge(node.span.low)
    return _EMPTY if low is None else _from_range(low, None, step)


def _one_of(spans: Sequence[ConstantSpan], step: _Steps) -> Allowed:
    if len(spans) > EQUALITIES_MAX or any(span.low != span.high for span in spans):
        if not spans:
            return _EMPTY
        low, high = step.up(min(span.low for span in spans)), max(span.high for span in spans)
        return _EMPTY if low is None else _from_range(low, step.after(high), step)
    points = {point for span in spans if (point := step.up(span.low)) == span.low}
    return Allowed(None, None, tuple(sorted(points)))


def _from_range(low: Any, high: Any, step: _Steps) -> Allowed:
    first = step.least if low is None else low
    if high is not None and high <= first:
        return _EMPTY
    return Allowed(None, None, (first,)) if step.after(first) == high else Allowed(low, high)


def _meet(left: Allowed, right: Allowed, step: _Steps) -> Allowed:
    for some, other in ((left, right), (right, left)):
        if some.points is not None:
            return Allowed(None, None, tuple([p for p in some.points if _admits(other, p)]))
    return _from_range(
        _tighter(left.low, right.low, max), _tighter(left.high, right.high, min), step
    )


def _tighter(left: Any, right: Any, pick: Callable[[Any, Any], Any]) -> Any:
    return right if left is None else left if right is None else pick(left, right)


def _admits(allowed: Allowed, value: Any) -> bool:
    if allowed.points is not None:
        return value in allowed.points
    return (allowed.low is None or allowed.low <= value) and (
        allowed.high is None or value < allowed.high
    )


def _unite(left: Allowed, right: Allowed, step: _Steps) -> Allowed:
    if left.points == ():
        return right
    if right.points == ():
        return left
    if left.points is not None and right.points is not None:
        both = {*left.points, *right.points}
        if len(both) <= EQUALITIES_MAX:
            return Allowed(None, None, tuple(sorted(both)))
    (low, high), (other_low, other_high) = _ends(left, step), _ends(right, step)
    return Allowed(
        None if low is None or other_low is None else min(low, other_low),
        None if high is None or other_high is None else max(high, other_high),
    )


def _after_prefix(text: str) -> str | None:
    """The least string above all that start with `text`."""
    while text:
        code = ord(text[-1]) + 1
        if code <= 0x10FFFF:
            # Surrogates are no characters: what follows U+D7FF is U+E000.
            return text[:-1] + chr(0xE000 if 0xD800 <= code <= 0xDFFF else code)
        text = text[:-1]
    return None


# Types


class _Steps:
    """The steps between the values of a type.

    `up(x)`: the least value >= x, `after(x)`: the least value > x; None when there is none. `x` may
    be any number for numbers; for other types it is a value of the type.
    """

    __slots__ = ("after", "least", "up")

    def __init__(self, type: Any) -> None:
        family = kind(type)
        self.up: Callable[[Any], Any] = lambda value: value
        self.after: Callable[[Any], Any]
        if family == "int":
            half = 1 << INT_BITS[type] - 1
            self.least, self.up, self.after = _number_steps(0, half - 1, -half, int)
        elif family == "decimal":
            most = 10**type.precision - 1
            places = type.scale
            self.least, self.up, self.after = _number_steps(
                places, most, -most, lambda n: Decimal(n).scaleb(-places, _EXACT)
            )
        else:
            self.least, self.after = _OTHER_STEPS[family]


def _number_steps(
    places: int, most: int, least: int, make: Callable[[int], Any]
) -> tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]:
    """Steps of integers that are shown with some of their digits behind a decimal point."""

    def clip(number: int) -> Any:
        return None if number > most else make(max(number, least))

    def step(value: Any, strictly: bool) -> Any:
        if type(value) is int and not places:
            return clip(value + strictly)  # Long lists of integers come this way: 0.3 us, not 10.
        if value in (math.inf, -math.inf):
            return None if value > 0 else make(least)
        exact = Decimal(value).scaleb(places, _EXACT)
        return clip(math.floor(exact) + 1 if strictly else math.ceil(exact))

    return make(least), lambda value: step(value, False), lambda value: step(value, True)


# Wide enough for the exact digits of every double: nothing is ever rounded.
_EXACT: Final = decimal.Context(prec=1200, Emin=-999999, Emax=999999, traps=[decimal.Inexact])
_TICK: Final = dt.timedelta(microseconds=1)


def _calendar_after(tick: dt.timedelta) -> Callable[[Any], Any]:
    def after(value: Any) -> Any:
        try:
            return value + tick
        except OverflowError:
            return None

    return after


def _time_after(value: dt.time) -> dt.time | None:
    following = dt.datetime.combine(dt.date(1970, 1, 1), value) + _TICK
    return None if following.day > 1 else following.time()


_OTHER_STEPS: Final[dict[str, tuple[Any, Callable[[Any], Any]]]] = {
    "string": ("", lambda value: value + "\0"),
    "binary": (b"", lambda value: value + b"\0"),
    "bool": (False, lambda value: None if value else True),
    "date": (dt.date.min, _calendar_after(dt.timedelta(1))),
    "time": (dt.time.min, _time_after),
    "timestamp": (dt.datetime(1, 1, 1), _calendar_after(_TICK)),
    "timestamptz": (dt.datetime(1, 1, 1, tzinfo=dt.UTC), _calendar_after(_TICK)),
}

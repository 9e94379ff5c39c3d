"""Kind `sorted`: the keys of an object in their order, and where each row is.

    columns of one object --build--> (_key, _position), sorted
    conditions ------------ranges--> a few ranges of keys --> positions

Answers =, IN, ranges, prefixes of composite keys, LIKE 'abc%' and IS NULL; of several columns as
far as each but the last is fixed to some values. The keys come from keys.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from halocline.index.condition import OPEN, Condition, ValueSpan
from halocline.index.keys import (
    Beyond,
    after,
    is_exact,
    is_ordered,
    key_bytes,
    key_order,
    low_part,
    part_of,
    prefix_part,
)
from halocline.objects.columns import INDEX_KEY, POSITION

POINTS_MAX: Final = 1000
"""More values than this, of all columns together, are not looked up one by one."""

KeyRange = tuple[bytes, bytes | None]
"""Keys from the first to below the second; None: to the end."""


class Sorted:
    """The kind itself; it has no state."""

    name: Final = "sorted"
    number: Final = 1
    in_order: Final = True

    def why_not(self, types: Sequence[Any]) -> str:
        """Why columns of these types cannot be indexed; empty when they can."""
        wrong = [str(type) for type in types if not is_ordered(type)]
        return f"{wrong[0]} has no order" if wrong else ""

    def build(self, columns: Sequence[Any]) -> pa.Table:
        """The content of an index object, of the columns of its data object in file order."""
        keys = key_bytes(columns)
        order = key_order(columns, keys)
        positions = pa.array(order.to_numpy().astype(np.int32))
        return pa.table({INDEX_KEY: keys.take(order), POSITION: positions})

    def ranges(
        self, columns: Sequence[tuple[int, Any]], conditions: Mapping[int, Condition]
    ) -> list[KeyRange] | None:
        """Where the keys that conditions allow lie; None when this kind cannot say.

        `columns`: id and type of each. What it gives may be too much, never too little.
        """
        if columns[0][0] not in conditions:
            return None
        heads = [b""]
        for id, type in columns:
            found = conditions.get(id)
            if found is None:
                break
            parts = _points(type, found)
            if parts is None or len(parts) * len(heads) > POINTS_MAX:
                ends = _spans(type, found)
                return _merged([_joined(head, low, high) for head in heads for low, high in ends])
            heads = [head + part for head in heads for part in parts]
        return _merged([(head, after(head)) for head in heads])


def _points(type: Any, condition: Condition) -> list[bytes] | None:
    """The parts of a column that may only have some values; None when there are ranges."""
    parts = [part_of(type, None)] if condition.nulls else []
    for span in condition.spans:
        if span.prefix is not None or not span.is_point:
            return None
        try:
            if is_exact(type, span.low) or isinstance(span.low, (str, bytes)):
                parts.append(part_of(type, span.low))
        except Beyond:
            continue  # no value of this column is that
    return sorted(set(parts))


def _spans(type: Any, condition: Condition) -> list[tuple[bytes, bytes | None]]:
    """Ranges of parts; the upper end is the first part that is not in it."""
    null = part_of(type, None)
    found: list[tuple[bytes, bytes | None]] = [(null, after(null))] if condition.nulls else []
    for span in condition.spans:
        try:
            found.append(_span(type, span))
        except Beyond:
            continue
    return found


def _span(type: Any, span: ValueSpan) -> tuple[bytes, bytes | None]:
    if span.prefix is not None:
        head = prefix_part(span.prefix)
        return head, after(head)
    low, high = b"\1", b"\2"
    if span.low is not OPEN:
        low = low_part(type, span.low)
        if span.without_low and is_exact(type, span.low):
            low = after(low) or b"\2"
    if span.high is not OPEN:
        last = part_of(type, span.high)
        open_end = span.without_high and is_exact(type, span.high)
        high = last if open_end else after(last) or b"\2"
    return low, high


def _joined(head: bytes, low: bytes, high: bytes | None) -> KeyRange:
    return head + low, after(head) if high is None else head + high


def _merged(ranges: Sequence[KeyRange]) -> list[KeyRange]:
    """Ranges in their order, without those that are empty or overlap."""
    kept: list[KeyRange] = []
    for low, high in sorted(ranges, key=lambda one: one[0]):
        if high is not None and high <= low:
            continue
        if kept and (kept[-1][1] is None or low <= kept[-1][1]):
            first, last = kept[-1]
            kept[-1] = first, None if last is None or high is None else max(last, high)
        else:
            kept.append((low, high))
    return kept

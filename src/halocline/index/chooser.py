"""Chooser: for one data object, whether an index answers, which, and with which rows.

    conditions, index objects --ranges, counted--> few rows: their positions
                                              '--> many, or no index object: scan

The only place that decides. An index is worth it when the rows that it names lie in fewer than a
third of the blocks of the object, because each block is read by itself; one block is always worth
it. Of several indexes the most selective one leads, and those that name not many more rows narrow
it down. An index object that is damaged is not used, and noted for the builder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from halocline.catalog import IndexEntry, ObjectEntry
from halocline.errors import CorruptionError
from halocline.index.build import file_of
from halocline.index.condition import Condition
from halocline.index.content import IndexContent
from halocline.index.registry import kind_of
from halocline.index.sorted import KeyRange
from halocline.objects import Shelf
from halocline.objects.read import Numbers
from halocline.objects.write import BLOCK_ROWS_MAX
from halocline.rows.tier import Tier
from halocline.schema.schema import Schema

WORTH: Final = 3
"""At most one block in so many."""
NARROWING: Final = 8
"""A further index may name so many times the rows of the first."""


class Asked(NamedTuple):
    """An index that understands the conditions, and the keys that they mean in it."""

    definition: IndexEntry
    ranges: Sequence[KeyRange]


class Answer(NamedTuple):
    """Rows of one data object, by position, ascending, and who named them."""

    positions: Numbers
    names: tuple[str, ...]
    blocks: int
    """How many blocks they lie in."""


class _Hit(NamedTuple):
    rows: int
    entry: ObjectEntry
    definition: IndexEntry
    content: IndexContent
    spread: Sequence[range]


def ask(
    schema: Schema, indexes: Sequence[IndexEntry], conditions: Mapping[int, Condition]
) -> list[Asked]:
    """The indexes of a table that can say something about these conditions."""
    types: dict[int, Any] = {int(column.id): column.type for column in schema.columns}
    found = []
    for index in indexes:
        kind = kind_of(index.kind)
        if kind is None or not set(index.columns) <= types.keys():
            continue
        ranges = kind.ranges([(id, types[id]) for id in index.columns], conditions)
        if ranges is not None:
            found.append(Asked(index, ranges))
    return found


def answer(
    shelf: Shelf, tier: Tier, entry: ObjectEntry, asked: Sequence[Asked], ts: int
) -> Answer | None:
    """The rows that the conditions can mean in one data object; None: scan it."""
    hits = [hit for one in asked if (hit := _hit(shelf, tier, entry, one, ts)) is not None]
    if not hits:
        return None
    hits.sort(key=lambda hit: hit.rows)
    if not hits[0].rows:
        hits = hits[:1]
    elif hits[0].rows > max(BLOCK_ROWS_MAX, entry.stats.rows // WORTH):
        return None  # wherever they lie, it is too much
    hits = [hit for hit in hits if hit.rows <= NARROWING * hits[0].rows]
    found = [_positions(shelf, hit) for hit in hits]
    positions = next((one for one in found if one is not None), None)
    if positions is None:
        return None
    for other in found:
        if other is not None and other is not positions:
            positions = np.intersect1d(positions, other)
    touched = _touched(shelf, entry, positions)
    if touched < 0:
        return None
    saved = entry.stats.rows - len(positions)
    for hit in hits:
        shelf.note_use(hit.definition.id, saved)
    return Answer(positions, tuple(hit.definition.name for hit in hits), touched)


def _hit(shelf: Shelf, tier: Tier, entry: ObjectEntry, asked: Asked, ts: int) -> _Hit | None:
    found = tier.index_object(entry.id, asked.definition.id, ts)
    if found is None:
        return None
    content = IndexContent(shelf, file_of(found))
    try:
        spread = content.spread(asked.ranges)
    except CorruptionError as error:
        shelf.damaged[found.id] = str(error)
        return None
    return _Hit(sum(map(len, spread)), found, asked.definition, content, spread)


def _positions(shelf: Shelf, hit: _Hit) -> Numbers | None:
    try:
        return np.sort(hit.content.positions(hit.spread))
    except CorruptionError as error:
        shelf.damaged[hit.entry.id] = str(error)
        return None


def _touched(shelf: Shelf, entry: ObjectEntry, positions: Numbers) -> int:
    """How many blocks hold these rows; -1 if they are too many to be read one by one."""
    if not len(positions):
        return 0
    with shelf.reader.tail(file_of(entry)) as tail:
        directory = tail.directory
        touched = len(np.unique(directory.blocks_of(positions)))
        return touched if touched <= max(1, directory.blocks // WORTH) else -1

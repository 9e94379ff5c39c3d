"""Chooser: for one data object, whether an index answers, which, and with which rows.

    conditions, index objects --ranges, counted--> few rows: their positions
                                              '--> many, or no index object: scan

The only place that decides. An index is worth it when the rows that it names lie in fewer than a
third of the blocks of the object (or in one), and to take them costs clearly less than a scan. A
block that is in memory costs a hundredth of one that must be decoded with all its columns, which
takes longer than a scan of twenty. So an index that finds its blocks in memory answers, and a part
of what it saves, or would have saved, is credit of the object; blocks are read out of that. A
query of blocks that are not in memory costs little more than a scan, and what is asked often
becomes fast.

Of several indexes the most selective one leads, and those that name not many more rows narrow it
down. An index object that is damaged is not used, and noted for the builder.
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
# Microseconds of a processor.
SCAN_US: Final = 300.0
"""To scan an object: to open it, and one column of each block."""
SCAN_BLOCK_US: Final = 15.0
TAKE_US: Final = 60.0
"""To take rows out of an object, and out of each block in memory."""
TAKE_BLOCK_US: Final = 20.0
DECODE_US: Final = 150.0
"""To read a block, and to decode each full column of it."""
DECODE_COLUMN_US: Final = 100.0
CLEARLY: Final = 0.75
"""What an index costs, of what a scan does, to be worth it."""
SAVED: Final = 0.1
"""How much of what is saved may be spent on reading blocks."""
CREDIT_FIRST_US: Final = 1000.0
CREDIT_MAX_US: Final = 5000.0


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
    ids: tuple[int, ...] = ()
    """Of the indexes that have named them."""
    near_us: float = 0.0
    """What it costs to take them when their blocks are in memory, in processor time."""
    read_us: float = 0.0
    """What it costs to read those blocks that are not."""


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
    shelf: Shelf,
    schema: Schema,
    tier: Tier,
    entry: ObjectEntry,
    asked: Sequence[Asked],
    ts: int,
    hidden: Sequence[str],
) -> Answer | None:
    """The rows that the conditions can mean in one data object, and the cost; None: scan it.

    `hidden` are the columns that will be read of them, beside those of the schema.
    """
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
    names = tuple(hit.definition.name for hit in hits)
    ids = tuple(hit.definition.id for hit in hits)
    if not touched:
        return Answer(positions, names, 0, ids)
    missing = shelf.gather.missing(file_of(entry), schema, positions, hidden=hidden)
    read = missing * _decode_us(entry.stats.rows, len(schema.columns) + len(hidden))
    return Answer(positions, names, touched, ids, TAKE_US + TAKE_BLOCK_US * touched, read)


def _hit(shelf: Shelf, tier: Tier, entry: ObjectEntry, asked: Asked, ts: int) -> _Hit | None:
    found = tier.index_object(entry.id, asked.definition.id, ts)
    if found is None:
        return None
    content = IndexContent(shelf, file_of(found))
    try:
        missing = content.missing(asked.ranges)
        if missing and not _pay(
            shelf, entry, _scan_us(entry) - TAKE_US, missing * _decode_us(found.stats.rows, 2)
        ):
            return None
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


def chosen(
    shelf: Shelf, found: Sequence[tuple[ObjectEntry, Answer]]
) -> list[tuple[ObjectEntry, Answer]]:
    """Of the objects of one query those that indexes answer for; the others are scanned.

    If most would be scanned, all are: a few less save next to nothing.
    """
    kept = [one for one in found if not one[1].blocks]
    near = [one for one in found if one[1].blocks and _us(one) <= CLEARLY * _scan_us(one[0])]
    far = [one for one in found if one[1].blocks and _us(one) > CLEARLY * _scan_us(one[0])]
    saving = [_save(shelf, one) for one in found]
    credit = shelf.reader.credit
    if all(saving) and all(one.read_us <= credit.get(file_of(at).id, 0.0) for at, one in far):
        for entry, one in far:
            _pay(shelf, entry, 0.0, one.read_us)
        near += far
    if 2 * (len(kept) + len(near)) >= len(found):
        kept += near
    for entry, one in kept:
        for id in one.ids:
            shelf.note_use(id, entry.stats.rows - len(one.positions))
    return kept


def _us(one: tuple[ObjectEntry, Answer]) -> float:
    return one[1].near_us + one[1].read_us


def _save(shelf: Shelf, one: tuple[ObjectEntry, Answer]) -> bool:
    """Add to the credit what the index saves once blocks are in memory; False if it never does."""
    entry, found = one
    saved = _scan_us(entry) - found.near_us
    _pay(shelf, entry, saved)
    return not found.blocks or found.near_us <= CLEARLY * _scan_us(entry)


def _pay(shelf: Shelf, entry: ObjectEntry, saved_us: float, price_us: float = 0.0) -> bool:
    """Add a part of what is saved to the credit, and pay for blocks if there is enough."""
    credits, id = shelf.reader.credit, file_of(entry).id
    credit = min(CREDIT_MAX_US, credits.get(id, CREDIT_FIRST_US) + SAVED * max(0.0, saved_us))
    paid = price_us <= credit
    credits[id] = credit - price_us if paid else credit
    return paid


def _scan_us(entry: ObjectEntry) -> float:
    return SCAN_US + SCAN_BLOCK_US * entry.stats.rows / BLOCK_ROWS_MAX


def _decode_us(rows: int, columns: int) -> float:
    """To read a block of an object of so many rows."""
    return DECODE_US + DECODE_COLUMN_US * columns * min(1.0, rows / BLOCK_ROWS_MAX)

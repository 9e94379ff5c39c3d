"""Identity: keys for rows that come without one, each given out once and never again.

    row or table without keys --fill--> KeyBlocks.draw --its block is used up--> reserve_keys
                                        (this process)                           (at the owner)

A process draws from a block of its own. The owner logs the end of a block, and waits for the disk,
before anybody draws from it; so whatever a crash cuts off, no key of it is drawn by anyone else,
with durability="async" too. What is left of a block when its process ends is a gap. Blocks are
small at first and grow with what is drawn.

Keys rise within a process in the order of drawing; keys of different processes have no order. A key
that a caller has given moves the sequence up: the next one lies above it. If it lies in the block
of another process, that process passes it over when it comes to it; if both are in the middle of
it, the primary key decides, and one of them gets a ConflictError as for any other key.

Invariants
- A key that was drawn is below `start` of its block, and at or below a ceiling that is durable.
- The lock of the blocks is taken before the commit lock, never after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from halocline.errors import SchemaError, UsageError
from halocline.read.point import find
from halocline.rows.sequence import KeySequence
from halocline.rows.state import TableState
from halocline.schema import convert
from halocline.schema.compiled import Row
from halocline.schema.schema import Schema
from halocline.txn.taken_keys import SortedKeys, taken_places

if TYPE_CHECKING:
    from halocline.txn.core import Core
    from halocline.txn.workspace import TableChanges

FIRST_BLOCK: Final = 16
GROWTH: Final = 4
Reserve = Callable[[TableState, int, int], tuple[int, int]]
"""Reserve about so many keys above a number: the first and the last of them."""


class KeyBlocks:
    """The blocks of this process. Thread-safe."""

    def __init__(self, reserve: Reserve, block_max: int) -> None:
        self._reserve = reserve
        self._block_max = block_max
        self._lock = Lock()
        self._closed = False
        self._blocks: dict[int, tuple[int, int]] = {}
        """By table: the next key, and the end of its block."""
        self._sizes: dict[int, int] = {}

    def draw(self, state: TableState, count: int, above: int = 0) -> int:
        """The first of `count` keys in a row, all of them above a number."""
        sequence, table_id = sequence_of(state), state.table_id
        with self._lock:
            if self._closed:
                raise UsageError("the database is closed")
            start, stop = self._blocks.get(table_id, (0, 0))
            top = sequence.top
            # Others draw from blocks above ours. Only what no block holds, or ours, was given.
            if top > above and (top > sequence.ceiling or start <= top < stop):
                above = top
            start = max(start, above + 1)
            if start + count > stop:
                size = self._sizes.get(table_id, min(FIRST_BLOCK, self._block_max))
                first, last = self._reserve(state, count + size, above)
                if first != stop:
                    start = first
                stop = last + 1
                self._sizes[table_id] = min(size * GROWTH, self._block_max)
            if start + count > stop:
                column = state.schema.primary_key[0]
                raise SchemaError("its keys are used up: the highest has been given", column=column)
            self._blocks[table_id] = (start + count, stop)
        return start

    def close(self) -> dict[int, tuple[int, int]]:
        """End drawing; returns what is left, by table."""
        with self._lock:
            self._closed = True
            return {id: block for id, block in self._blocks.items() if block[0] < block[1]}


def sequence_of(state: TableState) -> KeySequence:
    """The sequence of a table that has an identity column."""
    assert state.sequence is not None, "no identity column"
    return state.sequence


def with_key(core: Core, state: TableState, row: Row, snapshot: int) -> Row:
    """A row with its key, for a transaction that has written nothing yet."""
    at = state.schema.identity
    if at is None or row[at] is not None:
        return row
    blocks, top = core.writing.keys, sequence_of(state)
    while True:
        key = blocks.draw(state, 1)
        if key > top.top or not any(find(state, key, ts) for ts in (snapshot, core.newest_ts())):
            return (*row[:at], key, *row[at + 1 :])


def fill_rows(
    core: Core, changes: TableChanges, rows: Sequence[Row], snapshot: int
) -> Sequence[Row]:
    """Checked rows, with keys for those that have none."""
    at = changes.schema.identity
    if at is None:
        return rows
    lacking = [place for place, row in enumerate(rows) if row[at] is None]
    if not lacking:
        return rows
    above = max((row[at] for row in rows if row[at] is not None), default=0)
    filled = list(rows)
    first = _free_keys(core, changes, len(lacking), snapshot, above)
    for key, place in enumerate(lacking, first):
        filled[place] = (*rows[place][:at], key, *rows[place][at + 1 :])
    return filled


def fill_table(core: Core, changes: TableChanges, table: pa.Table, snapshot: int) -> pa.Table:
    """A canonical table, with keys for the rows that have none."""
    schema = changes.schema
    at = schema.identity
    if at is None or not table.column(at).null_count:
        return table
    column = table.column(at)
    count = column.null_count
    above = pc.max(column).as_py() or 0
    first = _free_keys(core, changes, count, snapshot, above)
    values = pc.fill_null(column, 0).to_numpy().copy()
    values[column.is_null().to_numpy()] = np.arange(first, first + count, dtype=np.int64)
    return table.set_column(at, schema.arrow.field(at), pa.array(values))


def complete(
    core: Core, changes: TableChanges, rows: Sequence[Mapping[str, Any]], snapshot: int
) -> Sequence[Mapping[str, Any]]:
    """Dicts for an upsert, with keys for those that have none: these are new rows."""
    schema = changes.schema
    at = schema.identity
    if at is None:
        return rows
    name, given, lacking = schema.names[at], [0], list[int]()
    for place, values in enumerate(rows):
        checked = schema.partial(values)
        if at in checked:
            given.append(checked[at])
        else:
            schema.row(values)  # nothing is drawn for rows that do not fit
            lacking.append(place)
    if not lacking:
        return rows
    first = _free_keys(core, changes, len(lacking), snapshot, max(given))
    filled = list(rows)
    for key, place in enumerate(lacking, first):
        filled[place] = {**rows[place], name: key}
    return filled


def without_keys(schema: Schema, rows: Any) -> tuple[Any, bool]:
    """The input of an upsert, and whether it lacks the identity column: then all rows are new."""
    if schema.identity is None:
        return rows, False
    opened = schema.opened(rows)
    if isinstance(opened, (Mapping, list, tuple)):
        name = schema.primary_key[0].lower()
        plain = [opened] if isinstance(opened, Mapping) else opened
        dicts = [row for row in plain if isinstance(row, Mapping)]
        return opened, not any(str(one).lower() == name for row in dicts for one in row)
    if convert.is_rows(opened):
        return opened, False
    if hasattr(opened, "read_batches"):
        return opened, not schema.gives_key(opened.schema.empty_table())
    table = convert.read(opened)
    return table, not schema.gives_key(table)


def _free_keys(core: Core, changes: TableChanges, count: int, snapshot: int, above: int) -> int:
    """The first of so many keys that nobody has, all of them above a number."""
    state, schema = changes.home, changes.schema
    above = max(above, changes.top)
    if changes.objects is not None:
        own = KeySequence()
        for entry in changes.objects.data:
            own.see_object(entry.stats.key_max)
        above = max(above, own.top)
    while True:
        first = core.writing.keys.draw(state, count, above)
        if first > sequence_of(state).top:
            return first
        column = pa.array(np.arange(first, first + count, dtype=np.int64))
        keys = SortedKeys(schema, pa.table([column], names=list(schema.primary_key)))
        moments = {snapshot, max(snapshot, core.newest_ts())}
        taken = [place for ts in moments for place in taken_places(changes, keys, ts).tolist()]
        if not taken:
            return first
        above = first + max(taken)

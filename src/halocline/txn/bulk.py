"""Bulk inserts: what exceeds `object_rows_min` or `object_bytes_min` becomes objects at once.

    table  --> sort by key --> refuse what is taken --> data objects of equal size
    stream --> the same for each chunk of `object_rows` rows

A stream is taken an object at a time, so it may be larger than memory. Its objects may overlap,
and a key that stands in two of them is found by asking the earlier ones.

Each function checks everything first and changes the workspace last: a call that raises leaves the
transaction as it was.

Not here: updates and deletes (bulk_ends.py), files and RowIDs (writer.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import pyarrow as pa

from halocline.errors import DuplicateKeyError, SchemaError
from halocline.objects.order import Ordered, cuts, key_order, repeats
from halocline.options import MIB
from halocline.read.guard import check_table
from halocline.rows.nodes import key_run
from halocline.schema import convert
from halocline.schema.batches import BoolArray, Int64Array
from halocline.txn.taken_keys import SortedKeys, in_objects, taken_keys, written
from halocline.txn.workspace import Part, TableChanges
from halocline.txn.writer import THREADS, Writer

if TYPE_CHECKING:
    from halocline.txn.commits import Commits

CHUNK_BYTES: Final = 256 * MIB
"""A chunk of a stream becomes an object when it has this size, or `object_rows` rows."""
SHOWN: Final = 10


def insert(committer: Commits, changes: TableChanges, table: pa.Table, snapshot: int) -> int:
    """Insert a canonical table, together with the parts that were inserted before it."""
    order: Int64Array | None = None
    check_table(changes.schema, table, changes.entry.name, first=0)
    if changes.schema.primary_key:
        order, _ = _checked(committer, changes, table, snapshot)
    _write_waiting(committer, changes, table, order)
    return int(table.num_rows)


def insert_new(
    committer: Commits, changes: TableChanges, table: pa.Table, order: Int64Array | None = None
) -> None:
    """Insert rows whose keys are known to be free: as objects, or in memory if they are few.

    `order`: their positions in key order, if the caller knows them.
    """
    if is_bulk(committer, changes, table.num_rows, table.nbytes):
        _write(committer, changes, table, order_of(changes, table) if order is None else order)
    else:
        changes.add_part(Part(table=table, run=key_run(table, changes.schema)))


def insert_stream(
    committer: Commits, changes: TableChanges, chunks: Iterator[pa.Table], snapshot: int
) -> int:
    """Insert canonical tables one after the other, none of which need fit beside another."""
    schema = changes.schema
    total = 0
    with Writer(committer, changes) as writer:
        ranges: list[tuple[bytes, bytes]] = []
        for chunk in chunks:
            order: Int64Array | None = None
            check_table(schema, chunk, changes.entry.name, first=total)
            if schema.primary_key:
                order, mine = _checked(committer, changes, chunk, snapshot)
                if any(low <= mine.high_bytes and high >= mine.low_bytes for low, high in ranges):
                    writer.drain()
                    twice = in_objects(changes, mine, writer.entries)
                    if len(twice):
                        raise DuplicateKeyError(
                            changes.entry.name,
                            mine.keys_at(twice[:SHOWN]),
                            inside=True,
                            total=len(twice),
                        )
                ranges.append((mine.low_bytes, mine.high_bytes))
            writer.rows(chunk, order)
            total += chunk.num_rows
        writer.drain()
    writer.parts.add(inserts=writer.entries)
    return total


def read_ahead(
    committer: Commits, changes: TableChanges, data: Any
) -> tuple[pa.Table | None, Iterator[pa.Table] | None]:
    """A stream that ends soon, as a table; or a longer one, as canonical chunks for objects."""
    arrow, batches = convert.stream(data)
    head: list[Any] = []
    for batch in batches:
        head.append(batch)
        rows, size_bytes = sum(one.num_rows for one in head), sum(one.nbytes for one in head)
        if is_bulk(committer, changes, rows, size_bytes):
            return None, _chunks(committer, changes, chain(head, batches))
    return pa.Table.from_batches(head, schema=arrow), None


def _chunks(
    committer: Commits, changes: TableChanges, batches: Iterable[Any]
) -> Iterator[pa.Table]:
    """Batches as canonical tables, each large enough for an object."""
    done = 0
    for chunk in gathered(batches, committer.engine.options.object_rows):
        yield conformed(changes, chunk, done)
        done += chunk.num_rows


def gathered(batches: Iterable[Any], rows_max: int) -> Iterator[pa.Table]:
    """Batches as tables of so many rows, or of `CHUNK_BYTES` if they are wide."""
    waiting: list[Any] = []
    for batch in batches:
        waiting.append(batch)
        held = sum(one.num_rows for one in waiting)
        while held >= rows_max or (held and sum(one.nbytes for one in waiting) >= CHUNK_BYTES):
            whole = pa.Table.from_batches(waiting)
            cut = min(held, rows_max)
            yield whole.slice(0, cut)
            held -= cut
            waiting = whole.slice(cut).to_batches()
    if any(one.num_rows for one in waiting):
        yield pa.Table.from_batches(waiting)


def conformed(
    changes: TableChanges, chunk: pa.Table, done: int, columns: Literal["all", "given"] = "all"
) -> pa.Table:
    """A chunk as a canonical table; an error names the row of the whole stream."""
    try:
        return changes.schema.table(chunk, columns=columns)
    except SchemaError as error:
        row = None if error.row is None else error.row + done
        raise SchemaError(error.reason, column=error.column, row=row) from None


def written_rows(changes: TableChanges, table: pa.Table) -> BoolArray:
    """Which rows of a table, whose keys all differ, have a key this transaction has written."""
    mask = np.zeros(table.num_rows, dtype=np.bool_)
    if not (changes.own or changes.parts or changes.objects) or not table.num_rows:
        return mask
    keys = table.select(list(changes.schema.primary_key))
    order = order_of(changes, keys)
    mine = SortedKeys(changes.schema, keys if order is None else keys.take(pa.array(order)))
    places = written(changes, mine)
    mask[places if order is None else order[places]] = True
    return mask


def spill(committer: Commits, tables: Iterable[TableChanges]) -> None:
    """Write rows that were inserted one by one and have become many. Called before the commit."""
    for changes in tables:
        few = len(changes.rows) <= committer.engine.options.bulk_rows
        if few or not is_bulk(committer, changes, len(changes.rows)):
            continue
        table = changes.schema.to_table(list(changes.rows.values()))
        _write_waiting(committer, changes, table, order_of(changes, table))
        changes.rows = {}
        changes.own = {key: row_id for key, row_id in changes.own.items() if row_id > 0}


def is_bulk(committer: Commits, changes: TableChanges, rows: int, size_bytes: int = 0) -> bool:
    """Do so many further rows, or bytes, make this transaction's inserts into the table objects?"""
    options = committer.engine.options
    waiting = [part for part in changes.parts if part.is_insert]
    if rows + sum(len(part) for part in waiting) > options.object_rows_min:
        return True
    held: int = sum(part.table.nbytes for part in waiting if part.table is not None)
    return size_bytes + held > options.object_bytes_min


def _write(
    committer: Commits, changes: TableChanges, table: pa.Table, order: Int64Array | None
) -> None:
    threads = THREADS if table.num_rows > committer.engine.options.object_rows else 0
    with Writer(committer, changes, threads=threads) as writer:
        writer.rows(table, order)
    writer.parts.add(inserts=writer.entries)


def _write_waiting(
    committer: Commits, changes: TableChanges, table: pa.Table, order: Int64Array | None
) -> None:
    """Write rows, together with the parts that were inserted before them."""
    waiting = [part for part in changes.parts if part.is_insert]
    if waiting:
        kept = [part.table.take(pa.array(part.kept())) for part in waiting if part.table]
        table = pa.concat_tables([*kept, table])
        order = order_of(changes, table)
    _write(committer, changes, table, order)
    changes.parts = [part for part in changes.parts if not part.is_insert]


def _checked(
    committer: Commits, changes: TableChanges, table: pa.Table, snapshot: int
) -> tuple[Int64Array | None, SortedKeys]:
    """Key order, and the last object's worth of keys.

    DuplicateKeyError when a key stands twice in the table, or is taken. Keys are looked at an
    object's worth at a time.
    """
    schema = changes.schema
    keys = table.select(list(schema.primary_key))
    order = key_order(keys, schema)
    ordered = Ordered(keys, order)
    taken: list[Any] = []
    repeated: dict[Any, None] = {}
    for start, stop in cuts(keys.num_rows, committer.engine.options.object_rows):
        part = ordered.take(max(start - 1, 0), stop)  # the last key before may be the first here
        twice = repeats(part, schema)
        if twice.num_rows:
            repeated |= dict.fromkeys(schema.keys_of(twice))
        mine = SortedKeys(schema, part.slice(1) if start else part)
        if not repeated:
            taken += taken_keys(changes, mine, snapshot)
    if repeated:
        raise DuplicateKeyError(changes.entry.name, list(repeated), inside=True)
    if taken:
        raise DuplicateKeyError(changes.entry.name, taken, total=len(taken))
    return order, mine


def order_of(changes: TableChanges, table: pa.Table) -> Int64Array | None:
    return key_order(table, changes.schema) if changes.schema.primary_key else None

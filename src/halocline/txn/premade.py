"""Objects that others have made become part of a transaction: the tasks of a write, on Spark.

    insert   entries --key columns, an object at a time--> taken? in two of them? --> workspace
    upsert   entries --key columns, an object at a time--> in two of them? --> the versions that
             they take the place of --> tombstone objects --> a blind job (blind.py)

The same checks as for rows that arrive as a stream (bulk.py), for rows that never pass through
here: of each object only the keys are read, and only to be looked up.

An object of an upsert holds new rows and successors side by side: its task did not ask which are
which. To a blind job that brings whole rows they are the same: what others did to a key meanwhile
decides whether a version ends for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from halocline.catalog.entries import ObjectEntry
from halocline.errors import DuplicateKeyError
from halocline.objects.columns import ROWID
from halocline.objects.order import Ordered, key_order, repeats
from halocline.read.locate import locate_many
from halocline.rows.page import Int64Array
from halocline.txn.blind import Blind
from halocline.txn.bulk import SHOWN
from halocline.txn.objectparts import ObjectParts, file_of
from halocline.txn.taken import SortedKeys, in_objects, taken_keys
from halocline.txn.workspace import TableChanges
from halocline.txn.writer import Writer

if TYPE_CHECKING:
    from halocline.txn.commit import Committer


def insert_objects(changes: TableChanges, entries: Sequence[ObjectEntry], snapshot: int) -> None:
    """Insert the rows of these objects into a table that the transaction has not written yet.

    DuplicateKeyError when a key is taken, or stands in two of them; then nothing is kept.
    """
    assert changes.objects is None, "the first change of its table"
    if changes.schema.primary_key:
        for _, keys in _keys(changes, entries):
            taken = taken_keys(changes, keys, snapshot)
            if taken:
                raise DuplicateKeyError(changes.entry.name, taken, total=len(taken))
    changes.objects = _parts(changes, entries)
    changes.objects.add(inserts=entries)


def upsert_objects(
    committer: Committer,
    changes: TableChanges,
    entries: Sequence[ObjectEntry],
    rest: Iterable[pa.Table],
    snapshot: int,
) -> None:
    """Upsert the whole rows of these objects, and of canonical tables beside them.

    DuplicateKeyError when a key comes twice. Others never make it fail; in return nothing else of
    this transaction may touch the table.
    """
    assert changes.objects is None, "the first change of its table"
    assert changes.state is changes.home, "which is not truncated either"
    schema = changes.schema
    changes.objects = parts = _parts(changes, entries)
    with Writer(committer, changes) as writer:
        for table in rest:
            writer.rows(table, _order(changes, table))
        writer.drain()
        every = [*entries, *writer.entries]
        ends = [_met(changes, *pair, snapshot) for pair in _keys(changes, every)]
        changed = frozenset(range(len(schema.columns))) - schema.key_set
        ended = pa.concat_tables([keys for keys, _ in ends])
        after = np.concatenate([rowids for _, rowids in ends])
        order = np.argsort(ended.column(ROWID).to_numpy())
        endings = []
        if len(order):
            endings = writer.tombstones(ended.take(pa.array(order)), after[order], changed)
    met = [bool(len(rowids)) for _, rowids in ends]
    parts.add(
        inserts=[entry for entry, some in zip(every, met, strict=True) if not some],
        successors=[entry for entry, some in zip(every, met, strict=True) if some],
        endings=endings,
    )
    changes.blind = Blind("upsert", parts, changed)


def _parts(changes: TableChanges, entries: Sequence[ObjectEntry]) -> ObjectParts:
    """Room for these objects. What the transaction writes itself belongs to a job of its own: no
    other attempt to commit can mean the same file."""
    parts = ObjectParts(changes.home)
    parts.spans += [(one.stats.rowid_min, one.stats.rowid_max + 1) for one in entries]
    return parts


def _order(changes: TableChanges, table: pa.Table) -> Int64Array | None:
    """Key order; DuplicateKeyError when a key comes twice."""
    keys = table.select(list(changes.schema.primary_key))
    order = key_order(keys, changes.schema)
    _refuse(changes, repeats(Ordered(keys, order).take(0, keys.num_rows), changes.schema))
    return order


def _keys(
    changes: TableChanges, entries: Sequence[ObjectEntry]
) -> Iterator[tuple[ObjectEntry, SortedKeys]]:
    """The keys of each object; at the end DuplicateKeyError when one stands in two of them."""
    schema, reader = changes.schema, changes.home.shelf.reader
    ints: list[Int64Array] = []
    for place, entry in enumerate(entries):
        rows = reader.read(file_of(entry), schema, columns=list(schema.primary_key), hidden=())
        keys = SortedKeys(schema, rows)
        if keys.ints is not None:
            ints.append(keys.ints)
        else:
            _refuse(changes, keys.table.take(pa.array(in_objects(changes, keys, entries[:place]))))
        yield entry, keys
    if ints:
        # All at once: to ask each object for the keys of each other would take a square of time.
        every = np.sort(np.concatenate(ints))
        twice = every[1:][every[1:] == every[:-1]]
        if len(twice):
            raise _repeated(changes, twice[:SHOWN].tolist(), len(twice))


def _refuse(changes: TableChanges, twice: pa.Table) -> None:
    if twice.num_rows:
        shown = changes.schema.keys_of(twice.slice(0, SHOWN))
        raise _repeated(changes, shown, twice.num_rows)


def _repeated(changes: TableChanges, keys: list[Any], total: int) -> DuplicateKeyError:
    return DuplicateKeyError(changes.entry.name, keys, inside=True, total=total)


def _met(
    changes: TableChanges, entry: ObjectEntry, keys: SortedKeys, snapshot: int
) -> tuple[pa.Table, Int64Array]:
    """The versions that rows of an object take the place of, with their keys; and these rows."""
    wanted = keys.plain if keys.ints is None else keys.ints
    rowids = locate_many(changes.state, wanted, snapshot, table=keys.table).rowids
    known = np.flatnonzero(rowids)
    targets = pa.array(rowids[known])
    ended = keys.table.take(pa.array(known)).add_column(0, ROWID, targets)
    return ended, known + entry.stats.rowid_min

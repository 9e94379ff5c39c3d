"""Task objects: the one door through which others hand in files that they have written.

    start    a job for tasks is logged; it ends with the transaction
    join     what Spark tasks, or another process, have checked already --> workspace
    insert   data objects --their keys, an object at a time--> taken? in two of them? --> join
    upsert   data objects --their keys, an object at a time--> in two of them? --> the versions
             that they take the place of --> tombstone objects --> join

Rows of these files never pass through here: of each object only the keys are read, and only to be
looked up. What a transaction writes itself belongs to a job of its own, so no other attempt to
commit can mean the same file.

A job has one of two policies. Usually whoever commits first wins, and the other fails. A *blind*
job (blind.py) never fails for what others do to single rows: it decides at its commit. It may do
nothing else to the table in its transaction.

An object of an upsert holds new rows and successors side by side: its task did not ask which are
which. To a blind job that brings whole rows they are the same: what others did to a key meanwhile
decides whether a version ends for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from halocline.catalog.entries import ObjectEntry
from halocline.errors import CorruptionError, DuplicateKeyError
from halocline.objects.columns import CHANGED, ROWID, SUCCESSOR, tombstone_schema
from halocline.objects.order import Ordered, key_order, repeats
from halocline.read.guard import check_table
from halocline.read.locate import locate_many
from halocline.rows.state import TableState
from halocline.rows.system import JobNode
from halocline.schema.batches import Int64Array
from halocline.txn.blind import Blind, Mode
from halocline.txn.bulk import SHOWN
from halocline.txn.ends import Ends
from halocline.txn.objectparts import Ending, ObjectParts, file_of
from halocline.txn.taken_keys import SortedKeys, in_objects, taken_keys
from halocline.txn.workspace import TableChanges
from halocline.txn.writer import Writer

if TYPE_CHECKING:
    from halocline.txn.commits import Commits


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFiles:
    """Files that a job hands in, by what is in them."""

    data: Sequence[ObjectEntry] = ()
    """Rows that the table has not."""
    successor: Sequence[ObjectEntry] = ()
    """Rows that take the place of others."""
    tombstone: Sequence[ObjectEntry] = ()
    """The versions that end."""
    held: Sequence[ObjectEntry] = ()
    """Of a blind job: keys that the table has and the job ignores, or deletes. Joins no table."""
    absent: Sequence[ObjectEntry] = ()
    """Of a blind job: keys to be deleted that the table has not. Joins no table."""


def start(committer: Commits, changes: TableChanges, *, rows: int) -> JobNode:
    """Log a job for tasks, with RowIDs for so many rows; it is over when the transaction is.

    Without a lease: the job lives in this process, so it is dead as soon as another owns the
    database, and what it wrote goes with the next GC.
    """
    job = committer.start_job(changes.home, rows=rows)
    _parts(changes).handed_in.append(job)
    return job


def join(
    changes: TableChanges,
    files: TaskFiles,
    *,
    jobs: Sequence[JobNode] = (),
    blind: Mode | None = None,
    changed: frozenset[int] = frozenset(),
    written: Iterable[int] = (),
) -> None:
    """Make files that others have written part of a transaction.

    `jobs` are theirs; those without a lease end with the transaction. `blind` is the policy, None
    when the first to commit wins; `changed` are the positions of the columns that an upsert writes,
    `written` the ids of those that the job has values for, if not all of them.
    """
    parts = _parts(changes)
    parts.handed_in += jobs
    check_objects(changes, (*files.data, *files.successor))
    parts.written |= set(written)
    endings = [read_ending(changes.home, entry) for entry in files.tombstone]
    if blind is None:
        # A conflict may be looked for under the lock, where no file should be read.
        endings = [Ending(one.entry, one.ends) for one in endings]
    parts.add(inserts=files.data, successors=files.successor, endings=endings)
    if blind is not None:
        changes.blind = Blind(blind, parts, changed, absent=files.absent, held=files.held)


def check_objects(changes: TableChanges, entries: Iterable[ObjectEntry]) -> None:
    """CheckError when a row in files of others breaks a check. Reads the columns concerned.

    The writer may not have asked, so the commit does.
    """
    schema, reader = changes.schema, changes.home.shelf.reader
    if not schema.checks:
        return
    ids = {id for check in schema.checks for id in check.ids}
    names = [c.name for c in schema.columns if c.id in ids or c.name in schema.primary_key]
    for entry in entries:
        for table in reader.scan(file_of(entry), schema, columns=names, hidden=()):
            check_table(schema, table, changes.entry.name)


def read_ending(state: TableState, entry: ObjectEntry) -> Ending:
    """A tombstone object that others have written; it is read when somebody asks what is in it."""
    return Ending(entry, None, partial(_read_ends, state, entry))


def _read_ends(state: TableState, entry: ObjectEntry) -> Ends:
    schema, file = state.schema, file_of(entry)
    table = state.shelf.reader.read(
        file, tombstone_schema(schema), columns=[SUCCESSOR, CHANGED], hidden=[ROWID]
    )
    targets = np.ascontiguousarray(table.column(ROWID).to_numpy())
    after = table.column(SUCCESSOR)
    if after.null_count:
        return Ends(targets)
    ids = set(pc.unique(pc.list_flatten(table.column(CHANGED))).to_pylist())
    changed = frozenset(at for at, column in enumerate(schema.columns) if column.id in ids)
    if len(changed) < len(ids):
        raise CorruptionError(file.path, "it names a column that the table has not")
    return Ends(targets, successors=np.ascontiguousarray(after.to_numpy()), changed=changed)


def insert(changes: TableChanges, entries: Sequence[ObjectEntry], snapshot: int) -> None:
    """Insert the rows of these objects into a table that the transaction has not written yet.

    DuplicateKeyError when a key is taken, or stands in two of them; then nothing is kept.
    """
    if changes.schema.primary_key:
        for _, keys in _keys(changes, entries):
            taken = taken_keys(changes, keys, snapshot)
            if taken:
                raise DuplicateKeyError(changes.entry.name, taken, total=len(taken))
    join(changes, TaskFiles(data=entries))


def upsert(
    committer: Commits,
    changes: TableChanges,
    entries: Sequence[ObjectEntry],
    rest: Iterable[pa.Table],
    snapshot: int,
) -> None:
    """Upsert the whole rows of these objects, and of canonical tables beside them.

    DuplicateKeyError when a key comes twice. Others never make it fail; in return nothing else of
    this transaction may touch the table.
    """
    assert changes.state is changes.home, "which is not truncated either"
    schema, parts = changes.schema, _parts(changes)
    with Writer(committer, changes) as writer:
        for table in rest:
            writer.rows(table, _order(changes, table))
        writer.drain()
        every = [*entries, *writer.entries]
        check_objects(changes, every)
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


def _parts(changes: TableChanges) -> ObjectParts:
    if changes.objects is None:
        changes.objects = ObjectParts(changes.home)
    assert not changes.objects, "the first objects of its table"
    return changes.objects


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

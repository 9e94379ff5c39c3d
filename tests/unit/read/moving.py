"""Background work by hand, one step at a time: for tests that say exactly when what moves.

    move    rows of L0 below a RowID -> data objects       flush   tombstones -> a tombstone object
    let_go  memory forgets what objects hold               merge   all objects -> one set, dead gone
    bulk_insert, bulk_delete, truncate                     commits of users that bring objects

Each of them goes the way of the engine: a job, files, one commit of reshapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from halocline import Database, Options
from halocline.catalog.entries import ObjectEntry
from halocline.ids import NEVER
from halocline.objects import ObjectFile
from halocline.objects.columns import tombstone_columns, tombstone_schema
from halocline.objects.shelf import object_key
from halocline.read.locate import locate_many
from halocline.rows.deletes import Tombstone
from halocline.rows.reshape import Reshape, new_entry
from halocline.rows.state import TableState
from halocline.rows.system import JobNode
from halocline.rows.trim import trim
from halocline.txn.commit import Committer
from halocline.txn.jobs import commit_reshapes
from tests.unit.objects.files import write_data, write_tombstones

TINY = Options(
    page_rows=4,
    bulk_rows=8,
    object_rows=16,
    row_group_rows=8,
    object_rows_min=12,
    log_file_bytes=65536,
    log_file_bytes_first=8192,
    sequence_block=1024,
    background=False,
)


def state_of(db: Database, name: str) -> TableState:
    with db.begin() as txn:
        return txn.changes_of(name).state


def committer_of(db: Database) -> Committer:
    committer = db.core.committer
    assert isinstance(committer, Committer)
    return committer


def move(db: Database, name: str, end: int = NEVER) -> None:
    """Rows of L0 with a RowID below `end` become data objects."""
    state = state_of(db, name)
    tables, rowids = [], [np.zeros(0, np.int64)]
    for page, count in state.shape.counted():
        ids = page.rowid_array(count)
        table = pa.Table.from_batches([page.batch(count)])
        table = table.append_column("_rowid", pa.array(ids))
        table = table.append_column("_commit_ts", pa.array(page.stamp_array(count)))
        tables.append(table.filter(pa.array(ids < end)))
        rowids.append(ids[ids < end])
    moved = np.concatenate(rowids)
    if not len(moved):
        return
    job = committer_of(db).start_job(state)
    table = _sorted(state, pa.concat_tables(tables))
    entries = _write(state, job, table, moved=True)
    # From where the last move ended: replay may have rows there that GC had removed here.
    ranges = [(max(1, state.moved_rowid), int(moved[-1]) + 1)]
    _commit(db, Reshape(state.table_id, created=entries, ranges=ranges, job_id=job.job_id))


def flush(db: Database, name: str) -> None:
    """Every tombstone that is only in memory goes into an object too."""
    state = state_of(db, name)
    until = db.visible_ts
    since = state.deletes.since(state.flushed_ts)
    found = [(rowid, one) for rowid, one in since if one.commit_ts <= until]
    if found:
        job = committer_of(db).start_job(state)
        table = _tombstones(state, found)
        table = table.append_column("_commit_ts", pa.array([one.commit_ts for _, one in found]))
        entries = _write_tombstones(state, job, table, moved=True)
        node = Reshape(state.table_id, created=entries, flushed_ts=until, job_id=job.job_id)
        _commit(db, node)


def let_go(db: Database, name: str, bound: int = 0) -> None:
    """Memory forgets what objects hold and nobody older than `bound` can need."""
    trim(state_of(db, name), bound or db.visible_ts, committer_of(db).lock)


def merge(db: Database, name: str) -> None:
    """All data objects become new ones without what has ended; tombstones of that go too."""
    state = state_of(db, name)
    ts = db.visible_ts
    data, tombstones = state.shape.tier.at(ts)
    if not data:
        return
    job = committer_of(db).start_job(state)
    reader, schema = state.shelf.reader, state.schema
    rows = pa.concat_tables([reader.read(_file(entry), schema) for entry in data])
    rowids = rows.column("_rowid").to_numpy()
    ended = {rowid for rowid, one in state.deletes.since(0) if one.commit_ts <= ts}
    stones = _read_tombstones(state, tombstones)
    if stones is not None:
        ended |= set(stones.column("_rowid").to_pylist())
    gone = np.isin(rowids, np.array(sorted(ended), dtype=np.int64))
    kept = rows.filter(pa.array(~gone))
    created = _write(state, job, _sorted(state, kept), level=2)
    if stones is not None:
        mask = np.isin(stones.column("_rowid").to_numpy(), rowids[gone])
        left = stones.filter(pa.array(~mask))
        created += _write_tombstones(state, job, left, first=len(created))
    node = Reshape(
        state.table_id,
        created=created,
        ended=[entry.id for entry in (*data, *tombstones)],
        job_id=job.job_id,
    )
    _commit(db, node)


def bulk_insert(db: Database, name: str, rows: Sequence[dict[str, Any]]) -> int:
    """A commit that brings rows as objects which were written before it."""
    state = state_of(db, name)
    job = committer_of(db).start_job(state, rows=len(rows))
    table = state.schema.table(list(rows))
    ids = np.arange(job.first_rowid, job.first_rowid + len(rows))
    table = table.append_column("_rowid", pa.array(ids))
    entries = _write(state, job, _sorted(state, table))
    return _commit(db, Reshape(state.table_id, created=entries, job_id=job.job_id))


def bulk_delete(db: Database, name: str, keys: Sequence[Any]) -> int:
    """A commit that ends rows of objects by a tombstone object."""
    state = state_of(db, name)
    job = committer_of(db).start_job(state)
    plain = [state.schema.key(key) for key in keys]
    rowids = locate_many(state, plain, db.visible_ts).rowids
    assert rowids.all()
    assert not any(state.row(rowid) for rowid in rowids.tolist()), "rows of L0 end in memory"
    found = [
        (rowid, Tombstone(0, 0, (), key)) for rowid, key in zip(rowids.tolist(), plain, strict=True)
    ]
    entries = _write_tombstones(state, job, _tombstones(state, found))
    return _commit(db, Reshape(state.table_id, created=entries, job_id=job.job_id))


def truncate(db: Database, name: str) -> int:
    """A commit that ends all objects, of a table that has nothing in L0."""
    state = state_of(db, name)
    assert not state.shape.counted()
    return _commit(db, Reshape(state.table_id, truncate=True))


def _commit(db: Database, node: Reshape) -> int:
    commit_ts = commit_reshapes(committer_of(db), [node], still=lambda: True)
    assert commit_ts
    return commit_ts


def _file(entry: ObjectEntry) -> Any:
    assert entry.file is not None
    return entry.file


def _sorted(state: TableState, table: pa.Table) -> pa.Table:
    names = [*state.schema.primary_key, "_rowid"]
    return table.sort_by([(name, "ascending") for name in names])


def _write(
    state: TableState, job: JobNode, table: pa.Table, *, level: int = 1, moved: bool = False
) -> list[ObjectEntry]:
    entries = []
    for number, start in enumerate(range(0, table.num_rows, TINY.object_rows)):
        key = object_key(state.table_id, job.job_id, number)
        part = table.slice(start, TINY.object_rows)
        stats = write_data(state.shelf.objects, key, part, state.schema, options=TINY)
        entries.append(new_entry(ObjectFile(key, stats), level=level, moved=moved))
    return entries


def _write_tombstones(
    state: TableState, job: JobNode, table: pa.Table, *, first: int = 0, moved: bool = False
) -> list[ObjectEntry]:
    entries = []
    table = table.sort_by("_rowid")
    for number, start in enumerate(range(0, table.num_rows, TINY.object_rows), first):
        key = object_key(state.table_id, job.job_id, number)
        part = table.slice(start, TINY.object_rows)
        stats = write_tombstones(state.shelf.objects, key, part, state.schema, options=TINY)
        entries.append(new_entry(ObjectFile(key, stats), moved=moved))
    return entries


def _tombstones(state: TableState, found: Sequence[tuple[int, Any]]) -> pa.Table:
    """RowIDs and tombstones as columns, all but `_commit_ts`."""
    columns = {"_rowid": pa.array([rowid for rowid, _ in found], pa.int64())}
    if state.schema.primary_key:
        keys = state.schema.key_table([one.key for _, one in found])
        columns |= {name: keys.column(name) for name in state.schema.primary_key}
    columns["_successor"] = pa.array([one.successor or None for _, one in found], pa.int64())
    columns["_changed"] = pa.array([list(one.changed) for _, one in found], pa.list_(pa.int32()))
    return pa.table(columns)


def _read_tombstones(state: TableState, entries: Sequence[ObjectEntry]) -> pa.Table | None:
    tables = [
        state.shelf.reader.read(_file(entry), tombstone_schema(state.schema)) for entry in entries
    ]
    names = [column.name for column in tombstone_columns(state.schema, committed=True)]
    return pa.concat_tables(tables).select(names) if tables else None

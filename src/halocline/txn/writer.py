"""Writer: how a transaction puts rows and tombstones into objects before its commit.

    tables --encode (threads)--> bytes --put, in order (JobWriter)--> entries, for the workspace
             '-- RowIDs were reserved by the job, which is in the log before the first file is

Encoding releases the interpreter, so two threads do it at once; files are put from the thread of
the caller, one after the other, so that the sequence of operations on the store never depends on
chance. At most three tables are in flight.

Nothing joins the workspace here: a call that fails half-way leaves files that nobody refers to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from halocline.catalog.entries import ObjectEntry
from halocline.errors import UnavailableError
from halocline.objects import JobWriter
from halocline.objects.columns import ROWID
from halocline.objects.jobwriter import EncodedObject, tombstone_table, with_rowids
from halocline.objects.order import Ordered, cuts
from halocline.rows.reshape import new_entry
from halocline.schema.batches import Int64Array
from halocline.txn.ends import Ends
from halocline.txn.objectparts import Ending, ObjectParts
from halocline.txn.workspace import TableChanges

if TYPE_CHECKING:
    from halocline.txn.commits import Commits

THREADS: Final = 2
Task = Callable[[], EncodedObject]


class Writer:
    """Writes the objects of one call of one transaction, in the order they are given."""

    def __init__(
        self, committer: Commits, changes: TableChanges, *, threads: int = THREADS
    ) -> None:
        if changes.objects is None:
            changes.objects = ObjectParts(changes.home)
        self.parts = changes.objects
        self.entries: list[ObjectEntry] = []
        """Files that are in the store, in the order they were given."""
        self.options = committer.engine.options
        self._committer = committer
        self._schema = changes.schema
        self._window: deque[Future[EncodedObject]] = deque()
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        try:
            if kind is None:
                self.drain()
        finally:
            if self._pool is not None:
                self._pool.shutdown(cancel_futures=True)

    def reserve(self, rows: int) -> int:
        """Reserve RowIDs for so many rows; returns the first. Durable when this returns."""
        parts = self.parts
        if parts.job is not None and not rows:
            return 0
        known = 0 if parts.job is None else parts.job.job_id
        parts.job = self._committer.start_job(parts.state, rows=rows, job_id=known)
        return parts.job.first_rowid

    def rows(self, table: pa.Table, order: Int64Array | None) -> int:
        """Write all rows of a canonical table, in that order; returns the first RowID."""
        first = self.reserve(table.num_rows)
        ordered = Ordered(table, order)
        for start, stop in cuts(table.num_rows, self.options.object_rows, table.nbytes):
            self._submit(partial(self._encode_rows, ordered, start, stop, first))
        return first

    def tombstones(
        self, table: pa.Table, successors: Int64Array | None, changed: frozenset[int]
    ) -> list[Ending]:
        """Write tombstones of the versions in `_rowid`, ascending, with their keys beside them."""
        self.reserve(0)
        self.drain()
        done, pieces = len(self.entries), cuts(table.num_rows, self.options.object_rows)
        after = [None if successors is None else successors[a:b] for a, b in pieces]
        parts = [table.slice(start, stop - start) for start, stop in pieces]
        ids = self._schema.ids_of(changed)
        for part, following in zip(parts, after, strict=True):
            whole = tombstone_table(part, following, ids)
            self._submit(partial(self._files.encode_tombstones, whole))
        self.drain()
        targets = [np.ascontiguousarray(part.column(ROWID).to_numpy()) for part in parts]
        return [
            Ending(entry, Ends(ended, successors=following, changed=changed))
            for entry, ended, following in zip(self.entries[done:], targets, after, strict=True)
        ]

    def drain(self) -> None:
        """Wait until everything that was given is in the store."""
        while self._window:
            self._put(self._window.popleft().result())

    @property
    def _files(self) -> JobWriter:
        """The writer of the transaction's own job, which goes on from call to call."""
        parts = self.parts
        if parts.writer is None:
            assert parts.job is not None, "files belong to a job"
            state, job_id = parts.state, parts.job.job_id
            objects, table_id = state.shelf.objects, state.table_id
            parts.writer = JobWriter(
                objects, self._schema, self.options, table_id=table_id, job_id=job_id
            )
        return parts.writer

    def _submit(self, task: Task) -> None:
        if not self._threads:
            self._put(task())
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="halocline-bulk")
        self._window.append(self._pool.submit(task))
        if len(self._window) > self._threads:
            self._put(self._window.popleft().result())

    def _put(self, encoded: EncodedObject) -> None:
        try:
            self.entries.append(new_entry(self._files.put(encoded)))
        except OSError as error:
            raise UnavailableError(f"an object cannot be written: {error}") from error

    def _encode_rows(self, ordered: Ordered, start: int, stop: int, first: int) -> EncodedObject:
        return self._files.encode_rows(with_rowids(ordered.take(start, stop), first + start))

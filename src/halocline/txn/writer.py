"""Writer: how a transaction puts rows and tombstones into objects before its commit.

    tables --encode (threads)--> bytes --put, in order--> store --> entries, for the workspace
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
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from halocline.catalog.entries import ObjectEntry
from halocline.errors import UnavailableError
from halocline.objects import ObjectStats
from halocline.objects.columns import CHANGED, HIDDEN, ROWID, SUCCESSOR
from halocline.objects.order import Int64Array, Ordered, cuts
from halocline.objects.write import encode_data, encode_tombstones
from halocline.rows.reshape import new_entry
from halocline.schema.schema import Schema
from halocline.txn.jobs import start_job
from halocline.txn.objectparts import Ending, ObjectParts
from halocline.txn.workspace import TableChanges

if TYPE_CHECKING:
    from halocline.txn.commit import Committer

THREADS: Final = 2
Task = Callable[[], tuple[bytes, ObjectStats]]


class Writer:
    """Writes the objects of one call of one transaction, in the order they are given."""

    def __init__(
        self, committer: Committer, changes: TableChanges, *, threads: int = THREADS
    ) -> None:
        if changes.objects is None:
            changes.objects = ObjectParts(changes.home)
        self.parts = changes.objects
        self.entries: list[ObjectEntry] = []
        """Files that are in the store, in the order they were given."""
        self.options = committer.engine.options
        self._committer = committer
        self._schema: Schema = changes.schema
        self._window: deque[Future[tuple[bytes, ObjectStats]]] = deque()
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self.drain()
        finally:
            if self._pool is not None:
                self._pool.shutdown(cancel_futures=True)

    def reserve(self, rows: int) -> int:
        """RowIDs for so many rows; returns the first. Durable when this returns."""
        parts = self.parts
        if parts.job is not None and not rows:
            return 0
        known = 0 if parts.job is None else parts.job.job_id
        job = start_job(self._committer, parts.state, rows=rows, job_id=known)
        parts.job = job
        if rows:
            parts.spans.append((job.first_rowid, job.first_rowid + rows))
        return job.first_rowid

    def rows(self, table: pa.Table, order: Int64Array | None) -> int:
        """All rows of a canonical table, in that order, as objects; returns the first RowID."""
        first = self.reserve(table.num_rows)
        ordered = Ordered(table, order)
        for start, stop in cuts(table.num_rows, self.options.object_rows, table.nbytes):
            self._submit(partial(self._encode_rows, ordered, start, stop, first))
        return first

    def tombstones(
        self, table: pa.Table, successors: Int64Array | None, changed: frozenset[int]
    ) -> list[Ending]:
        """Tombstones of the versions in `_rowid`, ascending, beside which stand their keys."""
        self.reserve(0)
        self.drain()
        done = len(self.entries)
        pieces = cuts(table.num_rows, self.options.object_rows)
        after = [None if successors is None else successors[a:b] for a, b in pieces]
        parts = [table.slice(start, stop - start) for start, stop in pieces]
        for part, following in zip(parts, after, strict=True):
            whole = tombstone_table(part, following, self._schema.ids_of(changed))
            self._submit(partial(self._encode_tombstones, whole))
        self.drain()
        return [
            Ending(entry, np.ascontiguousarray(part.column(ROWID).to_numpy()), following, changed)
            for entry, part, following in zip(self.entries[done:], parts, after, strict=True)
        ]

    def drain(self) -> None:
        """Wait until everything that was given is in the store."""
        while self._window:
            self._put(self._window.popleft().result())

    def _submit(self, task: Task) -> None:
        if not self._threads:
            self._put(task())
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="halocline-bulk")
        self._window.append(self._pool.submit(task))
        if len(self._window) > self._threads:
            self._put(self._window.popleft().result())

    def _put(self, encoded: tuple[bytes, ObjectStats]) -> None:
        data, stats = encoded
        state = self.parts.state
        number, key = self.parts.next_file()
        try:
            state.shelf.objects.put(key, data)
        except OSError as error:
            raise UnavailableError(f"object {key} cannot be written: {error}") from error
        self.entries.append(new_entry(state.table_id, number, key, stats))

    def _encode_rows(
        self, ordered: Ordered, start: int, stop: int, first: int
    ) -> tuple[bytes, ObjectStats]:
        part = ordered.take(start, stop)
        rowids = np.arange(first + start, first + stop, dtype=np.int64)
        part = part.append_column(ROWID, pa.array(rowids))
        return encode_data(part, self._schema, options=self.options)

    def _encode_tombstones(self, table: pa.Table) -> tuple[bytes, ObjectStats]:
        return encode_tombstones(table, self._schema, options=self.options)


def tombstone_table(
    table: pa.Table, successors: Int64Array | None, changed: tuple[int, ...]
) -> pa.Table:
    """`_rowid` and key columns, with what follows each version beside them."""
    count = table.num_rows
    if successors is None:
        return table.append_column(SUCCESSOR, pa.nulls(count, pa.int64())).append_column(
            CHANGED, pa.nulls(count, HIDDEN[CHANGED].type)
        )
    return table.append_column(SUCCESSOR, pa.array(successors)).append_column(
        CHANGED, _repeated_list(changed, count)
    )


def _repeated_list(values: tuple[int, ...], count: int) -> Any:
    """The same list of column ids, `count` times."""
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(len(values))
    items = np.tile(np.array(values, dtype=np.int32), count)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(items))

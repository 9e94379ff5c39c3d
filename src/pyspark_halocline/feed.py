"""The change feed as a stream: every version that began or ended, batch by batch.

    offsets     {"timestamp": ts}: everything up to there has been delivered; -1 is the very start
    -1 -> S     the rows of snapshot S, as inserts at S; none when only changes are wanted
    S -> E      db.changes(table, since=S, until=E)

What a batch holds follows from its two offsets alone, so a batch that is run again, after a restart
or a crash, holds the same rows: moves, compaction and GC do not change the feed. The offset of a
batch's end is in Spark's checkpoint before its rows are; the offset it begins with is the end of
the one before, or -1. That is why the first snapshot is an end and not a beginning.

The process that answers these questions lives as long as the query and pins the last committed
offset: GC waits for a running stream. One that was stopped for longer than the retention time gets
SnapshotExpiredError; a named snapshot keeps what it needs.

    few changes    read here, and travel inside the partitions
    more           each executor reads the commits of its partition itself, from a handle of its own

A stream keeps the columns that it began with while the table is altered; one that was added appears
when the query starts again. It stops where that cannot be: a column was dropped, or changed.

Not here: reading changes (read/changes.py), rows of the first snapshot (parts.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from halocline import Database
from halocline.errors import SnapshotExpiredError, UsageError
from halocline.read.changes import changes_schema, read_events
from halocline.read.duck import as_schema
from halocline.schema.batches import Int64Array
from halocline.schema.evolve import cast
from halocline.schema.schema import Schema
from halocline.spark.types import spark_schema
from halocline.txn.core import Pin
from pyspark_halocline.connect import open_to_read
from pyspark_halocline.options import Address, Settings
from pyspark_halocline.parts import (
    BATCH_ROWS,
    ScanPart,
    from_stream,
    pieces,
    plan_parts,
    read_part,
    to_stream,
)

Offset = dict[str, int]
START: Final = -1
KEY: Final = "timestamp"
ROWS_ALONG_MAX: Final = 100_000
"""More changes than this in one batch are read by executors."""
QUIET: Final = timedelta(minutes=10)
"""A table in which nothing happens moves its stream on all the same after this long, so that the
stream does not hold the history of other tables."""


@dataclass
class First(InputPartition):
    """Rows of the first snapshot, as inserts at its timestamp."""

    part: ScanPart


@dataclass
class Along(InputPartition):
    """Changes that travel with the partition, as an Arrow stream."""

    data: bytes


@dataclass
class ChangeRange(InputPartition):
    """Changes in (since, until] that an executor reads for itself."""

    address: Address
    table: str
    since: int
    until: int
    shown: dict[str, Any]
    """The schema of the table when the stream began, as a wire."""


class ChangeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the changes of one table."""

    def __init__(self, settings: Settings, schema: StructType) -> None:
        settings.check_stream_read()
        self._settings = settings
        self._schema = schema
        # Opened by the first question: this object also travels to executors.
        self._db: Database | None = None
        self._table: Schema | None = None
        """The table as it was when the stream was opened: its columns are those of the stream."""
        self._pin: Pin | None = None
        self._target: int | None = None

    # Questions of Spark, in the process of the query.

    def initialOffset(self) -> Offset:  # noqa: N802
        """Where a new query begins. The same answer each time: Spark asks again after a crash."""
        start = self._settings.starting_timestamp
        if start is None or start == "latest":
            return {KEY: START}
        return {KEY: self._resolve(start)}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Where the next batch ends; `start` itself when there is nothing to read."""
        db = self._open()
        newest = self._newest(db)
        since = _of(start)
        if since == START:
            return {KEY: self._first(newest)}
        if since >= newest:
            self._check_past(since, db)
            return start
        self._hold(since)
        stamps = self._stamps(db, since, newest)
        if not len(stamps):
            quiet = db.wall_of(newest) - db.wall_of(since) > QUIET
            return {KEY: newest} if quiet else start
        return {KEY: self._limited(stamps, newest, limit)}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limits of the options. Spark has no word for commits: to it they are files."""
        if self._settings.max_rows is not None:
            return ReadMaxRows(self._settings.max_rows)
        if self._settings.max_commits is not None:
            return ReadMaxFiles(self._settings.max_commits)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        """What Spark shows as the newest offset there is."""
        return {KEY: self._newest(self._open())}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """The query ends with what is there now."""
        self._target = self._refreshed(self._open())

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Share out the rows of one batch, which its offsets alone determine."""
        since, until = _of(start), _of(end)
        if since >= until:
            return []
        if since == START:
            return self._first_rows(until)
        db = self._open()
        self._hold(since)
        stamps = self._stamps(db, since, until)
        if len(stamps) > ROWS_ALONG_MAX:
            address, table = self._settings.address, self._settings.table
            shown, spans = self._shown.to_wire(), _spans(stamps, since, until)
            return [ChangeRange(address, table, *pair, shown) for pair in spans]
        changes = _changes(db, self._settings.table, (since, until), self._shown, self._schema)
        return [Along(to_stream(piece)) for piece in pieces(changes)]

    def commit(self, end: Offset) -> None:
        """Everything up to `end` has been delivered: GC may have it."""
        if _of(end) != START:
            self._hold(_of(end))

    def stop(self) -> None:
        """The query has ended."""
        if self._pin is not None:
            self._pin.close()
        if self._db is not None:
            self._db.close()

    # Rows, in executors.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition."""
        target = to_arrow_schema(self._schema, timezone="UTC")
        if isinstance(partition, First):
            yield from _first_batches(partition.part, self._schema, target)
            return
        if isinstance(partition, ChangeRange):
            with open_to_read(partition.address) as db:
                span, shown = (partition.since, partition.until), Schema.from_wire(partition.shown)
                table = _changes(db, partition.table, span, shown, self._schema)
        else:
            assert isinstance(partition, Along)
            table = from_stream(partition.data)
        yield from as_schema(table, target).to_batches(max_chunksize=BATCH_ROWS)

    # Private.

    def _open(self) -> Database:
        if self._db is None:
            self._db = open_to_read(self._settings.address)
            with self._db.begin() as txn:
                self._table = txn.state_of(self._settings.table).schema
            _check_schema(self._table, self._schema)
        return self._db

    @property
    def _shown(self) -> Schema:
        assert self._table is not None, "it has been opened"
        return self._table

    def _refreshed(self, db: Database) -> int:
        """The newest timestamp, after a look at the log."""
        with db.begin() as txn:
            return int(txn.snapshot)

    def _newest(self, db: Database) -> int:
        newest = self._refreshed(db)
        return newest if self._target is None else min(newest, self._target)

    def _resolve(self, moment: Any) -> int:
        with self._open().begin(at=moment) as txn:
            return int(txn.snapshot)

    def _first(self, newest: int) -> int:
        """The snapshot that a new query begins with."""
        chosen = self._settings.starting_snapshot
        return newest if chosen is None or chosen == "latest" else self._resolve(chosen)

    def _first_rows(self, ts: int) -> list[InputPartition]:
        if self._settings.starting_timestamp is not None:
            return []  # only changes
        with self._open().begin(at=ts) as txn:
            state = txn.state_of(self._settings.table).at_version(self._shown.version)
            self._hold(ts)
            names = tuple(self._schema.names[:-2])
            found = plan_parts(state, ts, names, address=self._settings.address)
            return [First(part) for part in found]

    def _hold(self, ts: int) -> None:
        """Pin a timestamp instead of the last one. The pin comes first, then the floor is asked."""
        db = self._open()
        old, self._pin = self._pin, Pin(db.core.pins, ts)
        if old is not None:
            old.close()
        self._refreshed(db)
        if ts < db.floor:
            raise SnapshotExpiredError(ts, db.floor)

    def _stamps(self, db: Database, since: int, until: int) -> Int64Array:
        """The timestamp of each change in (since, until], ascending."""
        with db.begin(at=until) as txn:
            state = txn.state_of(self._settings.table)
            _brought(state.schema.arrow.empty_table(), state.schema, self._shown, self._schema)
            return read_events(state, since, until).stamps

    def _limited(self, stamps: Int64Array, newest: int, limit: ReadLimit) -> int:
        """The last commit of a batch. A commit is never cut, so one may exceed `max_rows`."""
        if isinstance(limit, ReadAllAvailable):
            return newest
        commits, counts = np.unique(stamps, return_counts=True)
        take = len(commits)
        if self._settings.max_rows is not None:
            inside = np.cumsum(counts) <= self._settings.max_rows
            take = min(take, max(1, int(inside.sum())))
        if self._settings.max_commits is not None:
            take = min(take, self._settings.max_commits)
        return newest if take == len(commits) else int(commits[take - 1])

    def _check_past(self, ts: int, db: Database) -> None:
        if self._target is None and ts > db.visible_ts:
            raise UsageError(
                f"the stream has read up to {ts}, the database has only come to {db.visible_ts}: "
                "it is another one, or an older copy; start a new query with a new checkpoint"
            )


def _of(offset: Mapping[str, Any]) -> int:
    ts = offset.get(KEY)
    if type(ts) is not int or ts < START:
        raise UsageError(f"{dict(offset)!r} is not an offset of this source")
    return ts


def _check_schema(schema: Schema, given: StructType) -> None:
    """UsageError unless a stream can have these columns."""
    every = spark_schema(changes_schema(schema))
    fields = {field.name: field for field in every}
    is_feed = given.fields[-2:] == every.fields[-2:]
    if not is_feed or any(fields.get(field.name) != field for field in given):
        raise UsageError(
            "the columns of the table are no longer those of the stream: start the query again, "
            "and leave .schema(...) out"
        )


def _changes(
    db: Database, name: str, span: tuple[int, int], shown: Schema, given: StructType
) -> pa.Table:
    """The changes of a span in the columns that the stream began with."""
    since, until = span
    changes = db.changes(name, since=since, until=until)
    with db.begin(at=until) as txn:
        return _brought(changes, txn.state_of(name).schema, shown, given)


def _brought(rows: pa.Table, schema: Schema, shown: Schema, given: StructType) -> pa.Table:
    """Rows of one version of the schema as a stream shows them that was opened with another.

    A column is its id: one that was renamed goes on under its old name, one that was added since is
    left out. UsageError for one that was dropped, or whose type has changed.
    """
    there, found = {column.id: column for column in schema.columns}, []
    own = [name for name in given.names if name in shown.names]
    for column in (shown.columns[shown.position(name)] for name in own):
        now = there.get(column.id)
        if now is None and column.since > schema.version:
            found.append(column.filled(rows.num_rows))
            continue
        if now is None or (now.type != column.type and schema.version > shown.version):
            what = "was dropped" if now is None else f"has become {now.type_name}"
            raise UsageError(
                f"column {column.name!r} of the table {what}, and the stream began with it: start "
                "the query again, if need be with a new checkpoint"
            )
        found.append(cast(rows.column(now.name), column.type))
    rest = given.names[len(own) :]
    if rows.num_columns > len(schema.columns):  # changes, not rows
        found += [rows.column(name) for name in rest]
        own = [*own, *rest]
    return pa.table(found, names=own)


def _spans(stamps: Int64Array, since: int, until: int) -> Iterator[tuple[int, int]]:
    """(since, until] in pieces of whole commits, of about ROWS_ALONG_MAX changes each."""
    commits, counts = np.unique(stamps, return_counts=True)
    groups = np.cumsum(counts) // ROWS_ALONG_MAX
    last = [int(commits[groups == group].max()) for group in np.unique(groups)]
    ends = [*last[:-1], until]
    yield from zip([since, *ends[:-1]], ends, strict=True)


def _first_batches(
    part: ScanPart, schema: StructType, target: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Rows of a snapshot with `_change` and `_commit_ts`."""
    for batch in read_part(part, StructType(schema.fields[:-2])):
        kinds = pa.array(["insert"]).take(pa.array(np.zeros(batch.num_rows, dtype=np.int64)))
        stamps = pa.array(np.full(batch.num_rows, part.wanted.ts, dtype=np.int64))
        yield pa.RecordBatch.from_arrays([*batch.columns, kinds, stamps], schema=target)

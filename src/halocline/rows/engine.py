"""EngineState: the whole database in memory, and the one fold of a commit record into it.

    log --Record--> fold_record --decode--> fold --> TableState, Catalog, Tokens, Times
                    (recovery, followers)    ^
    txn/commit.py ---------- nodes ----------'

The transaction node folds the nodes it has just encoded; everyone else folds the nodes decoded from
the same bytes. What becomes of the rows of a table is decided in one place: `TableState.fold`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace

from halocline.catalog import Catalog, TableEntry
from halocline.catalog.names import name_key
from halocline.errors import CorruptionError
from halocline.log.record import (
    DML_A,
    DML_D,
    DML_U,
    EPOCH,
    FLOOR,
    JOB,
    ROOT,
    SEQUENCE,
    SNAPSHOT,
    Info,
    Record,
    Serial,
    decode_body,
)
from halocline.objects import Shelf
from halocline.options import Options
from halocline.rows.nodes import RowNode, check_rows_of_each, decode_node, table_of, version_of
from halocline.rows.reshape import KINDS as OBJECT_NODES
from halocline.rows.reshape import Reshape, decode_reshapes
from halocline.rows.sequence import KeySequence
from halocline.rows.state import TableState
from halocline.rows.system import (
    CheckpointNode,
    EpochNode,
    FloorNode,
    JobNode,
    SequenceNode,
    SnapshotNode,
)
from halocline.rows.tokens import Serials, Token, Tokens

TIMES_MIN = 4096
"""Fewer commit times than this are not worth being forgotten."""
CHECKPOINTS_KEPT = 2
RETENTION_US = 86_400_000_000
"""A day: the retention time until somebody has named one."""


class Times:
    """commit_ts and wall clock of every commit: what `at=datetime` looks up."""

    __slots__ = ("stamps", "walls")

    def __init__(self) -> None:
        self.stamps = array("q")
        self.walls = array("q")

    def extend(self, stamps: Sequence[int], walls: Sequence[int]) -> None:
        self.walls.extend(walls)
        self.stamps.extend(stamps)

    def at(self, wall_us: int) -> int:
        """The newest commit_ts at or before that moment, 0 when there was none."""
        place = bisect_right(self.walls, wall_us, 0, len(self.stamps))
        return self.stamps[place - 1] if place else 0

    def wall_of(self, commit_ts: int) -> int:
        """The wall clock of that commit; of one that GC has forgotten, an upper bound."""
        place = bisect_right(self.stamps, commit_ts)
        return self.walls[max(place, 1) - 1] if self.stamps else 0

    def since(self, floor: int) -> Times:
        """The times that can still be asked for: of those up to the floor the newest is enough.

        Another value when that is worth it, as readers may be looking at this one.
        """
        first = bisect_right(self.stamps, floor) - 1
        if first < max(TIMES_MIN, len(self.stamps) // 2):
            return self
        kept = Times()
        kept.stamps, kept.walls = self.stamps[first:], self.walls[first:]
        return kept


class EngineState:
    """Tables, catalog, tokens, commit times, floor, jobs and ceilings of one database."""

    def __init__(self, options: Options, shelf: Shelf | None = None) -> None:
        self.options = options
        self.shelf = Shelf.in_memory() if shelf is None else shelf
        self.catalog = Catalog()
        self.tables: dict[int, TableState] = {}
        self.folded: set[int] = set()
        """Tables that were changed since a follower last tidied up."""
        self.sequences: dict[int, KeySequence] = {}
        """Of tables with an identity column, by id; those that are only being created, too."""
        self.tokens = Tokens()
        self.serials = Serials()
        self.times = Times()
        self.jobs: dict[int, JobNode] = {}
        """Jobs that may still write files, by id."""
        self.last_job_id = 0
        self.snapshots: dict[str, SnapshotNode] = {}
        """Named snapshots, by the key of their name: `Orders` and `orders` are one."""
        self.checkpoints: tuple[CheckpointNode, ...] = ()
        """The newest two, newest first: the second is there in case the first is damaged."""
        self.kept_files: set[str] = set()
        """Keys of the files that checkpoints refer to: GC keeps them. Swapped, never changed."""
        self.last_ts = 0
        self.wall_us = 0
        self.floor = 0
        """The oldest snapshot that may be opened."""
        self.bound = 0
        """The oldest snapshot that is open or may be opened: what one at or above it can see is
        kept. At most the floor; a pin that GC met below it holds it back (checkpoint/gc.py)."""
        self.retention_us = RETENTION_US
        """How long the past stays readable: a word of the database, not of whoever owns it."""
        self.epoch = 0
        self.ts_ceiling = 0
        self.rowid_ceiling = 0
        self.first_rowid = 1
        """Where the row sequence of a table that is created now begins."""

    def fold(
        self,
        info: Info,
        nodes: Iterable[RowNode],
        reshapes: Sequence[Reshape] = (),
        walls: Sequence[int] = (),
    ) -> None:
        """Apply one committed record. Caller holds the commit lock.

        `walls`: the wall clock of each of its transactions, where they differ.
        """
        self.fold_nodes(info.first_ts, info.commits, nodes, reshapes)
        self.stamp(info.first_ts, info.commits, info.wall_us, info.token, walls, info.serials)

    def fold_nodes(
        self, ts: int, count: int, nodes: Iterable[RowNode], reshapes: Sequence[Reshape] = ()
    ) -> None:
        """Apply what a record says of rows and objects."""
        for reshape in reshapes:
            self._reshape(reshape, ts)
        for node in nodes:
            self.tables[node.table_id].fold(node, ts, count)
            self.folded.add(node.table_id)

    def stamp(
        self,
        ts: int,
        count: int,
        wall_us: int,
        token: Token | None = None,
        walls: Sequence[int] = (),
        serials: Sequence[Serial] = (),
    ) -> None:
        """Note what every commit leaves behind besides rows."""
        times = self.times
        if count == 1:
            times.walls.append(wall_us)
            times.stamps.append(ts)
        else:
            times.extend(range(ts, ts + count), walls or (wall_us,) * count)
        self.wall_us = wall_us
        self.last_ts = ts + count - 1
        if token is not None:
            self.tokens.add(token, ts, wall_us)
        for at, serial in enumerate(serials, ts):
            self.serials.add(serial, at)

    def _reshape(self, reshape: Reshape, ts: int) -> None:
        state = self.tables[reshape.table_id]
        self.folded.add(reshape.table_id)
        if reshape.changes_rows:
            state.last_ts = ts
        state.reshape(reshape, ts)
        for job_id in reshape.jobs:
            self.jobs.pop(job_id, None)

    def fold_record(self, record: Record) -> None:
        """Apply one record as the log has it: recovery, followers."""
        info = record.info
        if info is None:
            self._fold_system(record)
            return
        nodes: list[RowNode] = []
        objects: list[tuple[int, bytes]] = []
        for kind, payload in record.nodes:
            if kind in (DML_A, DML_D, DML_U):
                state = self._known(table_of(payload))
                node = decode_node(kind, payload, state.schema_at(version_of(payload)))
                nodes.append(node)
            elif kind in OBJECT_NODES:
                objects.append((kind, payload))
            else:
                self.define(self.catalog.apply(kind, payload, info.first_ts), info.first_ts)
        if info.commits > 1:
            check_rows_of_each(info, nodes, len(record.nodes))
        reshapes = decode_reshapes(objects) if objects else ()
        for reshape in reshapes:
            self._known(reshape.table_id)
        for node in nodes:
            self.tables[node.table_id].open_page(node.version)
        self.fold(info, nodes, reshapes)

    def define(self, entry: TableEntry, ts: int) -> None:
        """What the catalog says of a table since a commit at `ts`."""
        self.add_table(entry).end_indexes(ts)

    def add_table(self, entry: TableEntry) -> TableState:
        """A table the catalog knows now; a dropped one keeps its state until it is forgotten."""
        state = self.tables.get(entry.id)
        longest = self.options.key_bytes_max
        if entry.schema.key_bytes_max != longest:
            entry = replace(entry, schema=replace(entry.schema, key_bytes_max=longest))
        if state is None:
            state = self.new_table(entry)
            self.tables[entry.id] = state
        elif entry.schema.version > state.schema.version:
            state = self.tables[entry.id] = state.succeed(entry)
        else:
            state.set_entry(entry)
        return state

    def new_table(self, entry: TableEntry) -> TableState:
        """The state of a table that has no rows yet."""
        state = TableState(
            entry,
            page_rows=self.options.page_rows,
            first_rowid=self.first_rowid,
            shelf=self.shelf,
        )
        if entry.schema.identity is not None:
            state.sequence = self.sequence_of(entry.id)
        return state

    def sequence_of(self, table_id: int) -> KeySequence:
        """The sequence of a table, which outlives TRUNCATE."""
        return self.sequences.setdefault(table_id, KeySequence())

    def skip_rowids(self, ceiling: int) -> None:
        """No RowID up to the ceiling is issued again, in any table."""
        self.first_rowid = max(self.first_rowid, ceiling + 1)
        for state in self.tables.values():
            state.skip_to(ceiling + 1)

    def _known(self, table_id: int) -> TableState:
        state = self.tables.get(table_id)
        if state is None:
            raise CorruptionError("log", f"a record names unknown table {table_id}")
        return state

    def _fold_system(self, record: Record) -> None:
        for kind, payload in record.nodes:
            if kind == EPOCH:
                self.open_epoch(decode_body(payload, EpochNode))
            elif kind == FLOOR:
                self.raise_floor(decode_body(payload, FloorNode))
            elif kind == JOB:
                self.start_job(decode_body(payload, JobNode))
            elif kind == SNAPSHOT:
                self.keep_snapshot(decode_body(payload, SnapshotNode))
            elif kind == SEQUENCE:
                self.promise_keys(decode_body(payload, SequenceNode))
            elif kind == ROOT:
                self.keep_checkpoint(decode_body(payload, CheckpointNode))

    def open_epoch(self, node: EpochNode) -> None:
        if node.epoch != self.epoch:
            # A new writer: it begins above everything its predecessor was promised.
            self.skip_rowids(self.rowid_ceiling)
            self.epoch = node.epoch
            # A job without a lease lived in the process that opened the epoch before.
            self.jobs = {id: job for id, job in self.jobs.items() if job.lease_us}
        self.ts_ceiling = node.ts_ceiling
        self.rowid_ceiling = node.rowid_ceiling

    def raise_floor(self, node: FloorNode) -> None:
        self.floor = max(self.floor, node.floor)
        if node.retention_us is not None:
            self.retention_us = node.retention_us

    def keep_snapshot(self, node: SnapshotNode) -> None:
        if node.dropped:
            self.snapshots.pop(name_key(node.name), None)
        else:
            self.snapshots[name_key(node.name)] = node

    def promise_keys(self, node: SequenceNode) -> None:
        self.sequence_of(node.table_id).ceiling = node.ceiling

    def keep_checkpoint(self, node: CheckpointNode) -> None:
        self.checkpoints = (node, *self.checkpoints[: CHECKPOINTS_KEPT - 1])
        self.jobs.pop(node.job_id, None)

    def start_job(self, job: JobNode) -> None:
        self.last_job_id = max(self.last_job_id, job.job_id)
        if job.ended:
            self.jobs.pop(job.job_id, None)
            return
        self.jobs[job.job_id] = job
        state = self.tables.get(job.table_id)
        if state is not None and job.rows:
            state.skip_to(job.first_rowid + job.rows)

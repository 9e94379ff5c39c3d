"""Random lives of a database with objects, checkpoints and openings, and what is compared.

Life.step --> one operation, chosen by a seed: commits of all kinds, moves, flushes, merges, GC,
              DDL, tokens, names, checkpoints, openings
compare   --> two engine states that no reader can tell apart
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from halocline import Database, Options
from halocline.catalog.entries import ObjectEntry
from halocline.log import Place, Recovery
from halocline.log.recover import read_log
from halocline.objects import Shelf
from halocline.objects.columns import tombstone_schema
from halocline.rows import EngineState, TableState
from halocline.rows.tidy import tidy
from halocline.rows.undo import collect
from tests.clock import ManualClock
from tests.roles import maintenance_of
from tests.store.faulty import FaultyFiles
from tests.unit.read import moving as by_hand

TINY = Options(
    page_rows=4,
    bulk_rows=8,
    object_rows=16,
    row_group_rows=8,
    object_rows_min=1000,
    log_file_bytes=16384,
    log_file_bytes_first=4096,
    sequence_block=64,
    background=False,
)
NAMES = ("a", "b", "c")
KEYS = 40


def open_on(files: FaultyFiles, clock: ManualClock | None = None, **options: Any) -> Database:
    clock = clock or ManualClock(3, wall_us=1_800_000_000_000_000)
    return Database(files, "simulated", retention="30s", options=TINY, clock=clock, **options)


def shelf_on(files: FaultyFiles) -> Shelf:
    return Shelf(files.objects, memory_bytes=64 << 20)


def reading(files: FaultyFiles) -> Callable[[Place | None], Recovery]:
    return lambda start: read_log(files, TINY, start)


class Life:
    """One database and the operations that a seed has chosen for it."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.clock = ManualClock(seed)
        self.files = FaultyFiles()
        self.db = open_on(self.files, self.clock)
        self.count = 0
        self.steps: list[str] = []
        for name in NAMES[:2]:
            self.create(name)

    @property
    def engine(self) -> EngineState:
        return self.db.core.engine

    def step(self) -> str:
        """One operation; returns its name."""
        verbs = [self.write] * 12 + [self.move, self.flush] * 3 + [self.let_go, self.merge] * 2
        verbs += [self.bulk_insert, self.bulk_delete, self.collect, self.name, self.define]
        verbs += [self.checkpoint] * 3 + [self.reopen]
        verb = self.chance.choice(verbs)
        self.clock.advance(self.chance.choice((0, 0.01, 1)))
        verb()
        self.steps.append(verb.__name__)
        return verb.__name__

    def write(self) -> None:
        """A transaction with a few changes, or with so many that they travel as Arrow."""
        self.count += 1
        token: Any = self.chance.choice((None, f"t{self.count}", ("app", self.count)))
        with self.db.begin(token=token) as txn:
            for name in self.chance.sample(txn.tables(), min(2, len(txn.tables()))):
                many = self.chance.random() < 0.3
                keys = self.chance.sample(range(KEYS), 14 if many else self.chance.randint(1, 4))
                rows = [{"id": key, "text": f"{self.count} {key}", "n": self.count} for key in keys]
                if self.chance.random() < 0.6:
                    txn.upsert(name, pa.Table.from_pylist(rows) if many else rows)
                elif many:
                    txn.delete(name, where="id % 3 = ?", params=[self.count % 3])
                elif self.chance.random() < 0.5:
                    txn.update(name, where="id = ?", params=[keys[0]], set={"n": -self.count})
                else:
                    for key in keys:
                        txn.delete(name, key)

    def create(self, name: str) -> None:
        self.db.create_table(name, {"id": int, "text": str, "n": int}, primary_key="id")

    def define(self) -> None:
        name = self.chance.choice(NAMES)
        if name in self.db.tables():
            self.db.drop_table(name)
        else:
            self.create(name)

    def any_table(self) -> str | None:
        names = self.db.tables()
        return self.chance.choice(names) if names else None

    def move(self) -> None:
        name = self.any_table()
        if name:
            state, lock = by_hand.state_of(self.db, name), by_hand.committer_of(self.db).lock
            # What replay has brought back from below the floor must not get into an object: its
            # tombstone may have been forgotten before the last flush.
            with lock:
                state.close_page()
            tidy(state, lock)
            collect(state, self.engine.floor, lock)
            rowids = [r for page, n in state.shape.counted() for r in page.rowid_array(n).tolist()]
            if rowids:
                end = self.chance.choice([rowids[-1] + 1, self.chance.choice(rowids) + 1])
                by_hand.move(self.db, name, end)

    def flush(self) -> None:
        name = self.any_table()
        if name:
            by_hand.flush(self.db, name)

    def let_go(self) -> None:
        name = self.any_table()
        if name:
            by_hand.let_go(self.db, name)

    def merge(self) -> None:
        name = self.any_table()
        if name:
            by_hand.merge(self.db, name)

    def bulk_insert(self) -> None:
        name = self.any_table()
        if name:
            self.count += 1
            keys = range(1000 * self.count, 1000 * self.count + 20)
            by_hand.bulk_insert(self.db, name, [{"id": k, "text": "bulk", "n": 0} for k in keys])

    def bulk_delete(self) -> None:
        name = self.any_table()
        if name:
            state = by_hand.state_of(self.db, name)
            with self.db.begin() as txn:
                keys = txn.scan(name, columns=["id"], where="id > 999").column("id").to_pylist()
                moved = [k for k in keys if state.tree.newest(k) == 0][:7]
            if moved:
                by_hand.bulk_delete(self.db, name, moved)

    def collect(self) -> None:
        self.clock.advance(self.chance.choice((1, 20, 60)))
        self.db.gc()

    def name(self) -> None:
        names = [snapshot.name for snapshot in self.db.snapshots()]
        if names and self.chance.random() < 0.5:
            self.db.drop_snapshot(self.chance.choice(names))
        elif len(names) < 3:
            self.db.snapshot(f"s{self.count}_{len(self.steps)}")

    def checkpoint(self) -> None:
        assert maintenance_of(self.db).checkpoints is not None
        maintenance_of(self.db).checkpoints.run(everything=False)

    def reopen(self) -> None:
        if self.chance.random() < 0.5:
            self.db.close()
        else:
            self.files = self.files.crash_image(all=True)
        self.db = open_on(self.files, self.clock)


Rows = list[tuple[int, int, tuple[Any, ...]]]
"""RowID, commit_ts, values."""
_CONTENT: dict[tuple[str, bytes, int], Rows] = {}


class Table:
    """All versions of a table, from memory and files, to be judged one by one."""

    def __init__(self, state: TableState, floor: int) -> None:
        tier = state.shape.tier
        # Of what ended at or before the floor the files are gone.
        self.tier = tier.without([e.id for e in tier.by_id.values() if e.deleted_at <= floor])
        self.rows: Rows = []
        for page, count in state.shape.counted():
            values = (tuple(row.values()) for row in page.batch(count).to_pylist())
            rowids, stamps = page.rowid_array(count).tolist(), page.stamp_array(count).tolist()
            self.rows += zip(rowids, stamps, values, strict=True)
        self.ended = [(rowid, one.commit_ts) for rowid, one in state.deletes.since(0)]
        names = state.schema.arrow.names
        self.objects = {entry.id: _content(state, entry, names) for entry in self.tier.data}
        self.stones = {entry.id: _content(state, entry, []) for entry in self.tier.tombstones}

    def at(self, ts: int) -> Rows:
        """The rows that are visible at `ts`."""
        data, stones = self.tier.at(ts)
        ended = {rowid for rowid, stamp in self.ended if stamp <= ts}
        for entry in stones:
            ended |= {rowid for rowid, stamp, _ in self.stones[entry.id] if stamp <= ts}
        rows = [*self.rows, *(row for entry in data for row in self.objects[entry.id])]
        return sorted(row for row in rows if row[1] <= ts and row[0] not in ended)


def _content(state: TableState, entry: ObjectEntry, names: list[str]) -> Rows:
    """What a file holds; files never change, so each is read once."""
    file = entry.file
    assert file is not None
    known = (*file.id, file.commit_ts)
    if known not in _CONTENT:
        schema = state.schema if entry.kind == "data" else tombstone_schema(state.schema)
        table = state.shelf.reader.read(file, schema)
        rowids, stamps = (table.column(n).to_pylist() for n in ("_rowid", "_commit_ts"))
        values = [tuple(row[name] for name in names) for row in table.to_pylist()]
        _CONTENT[known] = list(zip(rowids, stamps, values, strict=True))
    return _CONTENT[known]


def compare(live: EngineState, other: EngineState, label: str) -> None:
    """Nothing that a reader or writer can ask at or above the floor tells the two apart.

    GC forgets tables, objects and tokens in memory only, so `other` may know more of those.
    """
    for name in ("last_ts", "wall_us", "floor", "epoch", "ts_ceiling", "rowid_ceiling"):
        assert getattr(live, name) == getattr(other, name), f"{name}: {label}"
    for name in ("first_rowid", "last_job_id", "jobs", "snapshots"):
        assert getattr(live, name) == getattr(other, name), f"{name}: {label}"
    assert live.catalog.last_ddl_ts == other.catalog.last_ddl_ts, label
    stamps = list(range(live.floor, live.last_ts + 1))
    tokens, versions = live.tokens.written_down()
    theirs, their_versions = other.tokens.written_down()
    assert set(tokens) <= set(theirs), f"tokens: {label}"
    assert sorted(versions) == sorted(their_versions), f"versions: {label}"
    for ts in stamps:
        assert live.times.wall_of(ts) == other.times.wall_of(ts), f"wall of {ts}: {label}"
        assert live.catalog.tables(ts) == other.catalog.tables(ts), f"catalog at {ts}: {label}"
    for table_id, state in live.tables.items():
        if state.dropped_at <= live.floor:
            continue
        _compare_tables(state, other.tables[table_id], stamps, f"table {table_id}: {label}")


def _compare_tables(live: TableState, other: TableState, stamps: list[int], label: str) -> None:
    for name in ("next_rowid", "last_ts", "moved_rowid", "flushed_ts", "created_at", "dropped_at"):
        assert getattr(live, name) == getattr(other, name), f"{name}: {label}"
    theirs = other.shape.tier.by_id
    for entry in live.shape.tier.by_id.values():
        assert theirs[entry.id] == entry, label
        assert theirs[entry.id].file == entry.file, label
        assert theirs[entry.id].stats == entry.stats, label
    ours, others = Table(live, stamps[0]), Table(other, stamps[0])
    for ts in stamps:
        assert ours.at(ts) == others.at(ts), f"at {ts}: {label}"
    for rowid, _, values in ours.at(stamps[-1]):
        if live.row(rowid) is not None:
            key = values[0]
            assert other.tree.newest(key) == rowid == live.tree.newest(key), f"{key}: {label}"

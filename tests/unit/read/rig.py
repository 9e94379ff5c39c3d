"""A table in two tiers without a database: random commits, moves, bulk objects and rewrites.

    Story (tests/unit/rows/rig.py) --commit--> L0
    Tiers --move, flush, bulk, rewrite, trim--> objects       at random, as background work would
          --rows_at(ts)--> what every snapshot must see

Nothing is ever collected here, so all snapshots stay readable.
"""

from __future__ import annotations

from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa

from halocline.catalog import ObjectEntry
from halocline.ids import NEVER
from halocline.objects import ObjectFile
from halocline.objects.columns import COMMIT_TS, ROWID, tombstone_columns
from halocline.objects.shelf import object_key
from halocline.options import Options
from halocline.rows.nodes import Delete
from halocline.rows.reshape import Reshape, new_entry
from halocline.rows.tidy import tidy
from halocline.rows.trim import trim
from tests.unit.objects.files import write_data, write_tombstones
from tests.unit.rows.rig import Story, Version

SMALL = Options(page_rows=4, row_group_rows=8, object_rows=4096)


class Tiers(Story):
    """A story whose rows leave L0."""

    job = 0

    def step(self) -> None:
        """A commit, and sometimes work in the background."""
        self.commit()
        tidy(self.live, Lock())
        chance = self.rng.random()
        if chance < 0.15:
            self.move()
        elif chance < 0.3:
            self.flush()
        elif chance < 0.4:
            self.bulk()
        elif chance < 0.5:
            self.rewrite()
        if self.rng.random() < 0.3:
            trim(self.live, self.rng.randrange(self.ts + 1), Lock())

    def move(self) -> None:
        """Rows of some closed pages, and all tombstones, into objects."""
        state = self.live
        closed = [page for page in state.shape.pages if len(page)]
        if not closed:
            return
        count = self.rng.randrange(1, len(closed) + 1)
        rowids = np.concatenate([page.rowid_array(len(page)) for page in closed[:count]])
        versions = [self.versions[rowid] for rowid in rowids.tolist()]
        self.ts += 1
        self.job += 1
        created = [self._data(versions, 0, moved=True), *self._tombstones(1)]
        ranges = [(page.start, page.end) for page in closed[:count]]
        self._reshape(Reshape(state.table_id, created, ranges=ranges, flushed_ts=self.ts - 1))

    def flush(self) -> None:
        """All tombstones into one more object."""
        self.ts += 1
        self.job += 1
        created = self._tombstones(0)
        if created:
            self._reshape(Reshape(self.live.table_id, created, flushed_ts=self.ts - 1))

    def bulk(self) -> None:
        """A commit whose rows, or tombstones, were written as objects before it."""
        self.ts += 1
        self.job += 1
        live = [v for v in self.versions.values() if v.ended == NEVER]
        gone = [v for v in live if self.rng.random() < 0.3]
        first = self.live.next_rowid
        fresh: list[Any] = []
        for number in range(self.rng.randrange(1, 12)):
            row = self._row(self.rng.randrange(10_000, 99_999), number)
            key = self._key(row)
            if key is None or all(v.key != key for v in [*live, *fresh]):
                fresh.append(Version(first + number, key, row, self.ts, NEVER))
        created = [self._data(fresh, 0, committed=False)]
        if gone:
            created.append(self._dead(gone, [0] * len(gone), 1, committed=False))
        for version in gone:
            self.versions[version.rowid] = version._replace(ended=self.ts)
        self.versions.update({version.rowid: version for version in fresh})
        self.live.last_ts = self.ts
        self._reshape(Reshape(self.live.table_id, created))
        if gone:  # rows in L0 have their tombstones in memory, whoever ended them
            resident = _split(v for v in gone if self.live.row(v.rowid))
            self.live.fold(Delete(self.live.table_id, *resident), self.ts)

    def rewrite(self) -> None:
        """Some data objects become one, without the versions that ended by now."""
        state = self.live
        current = [e for e in state.shape.tier.data if e.deleted_at == NEVER]
        if not current:
            return
        chosen = self.rng.sample(current, self.rng.randrange(1, len(current) + 1))
        kept = [self.versions[rowid] for entry in chosen for rowid in self._rowids(entry)]
        kept = [version for version in kept if version.ended > self.ts][:64]
        if not kept or sum(e.stats.rows for e in chosen) > 64:
            return
        self.ts += 1
        self.job += 1
        ended = [int(entry.id) for entry in chosen]
        self._reshape(Reshape(state.table_id, [self._data(kept, 0)], ended))

    def _reshape(self, node: Reshape) -> None:
        self.live.reshape(node, self.ts)

    def _rowids(self, entry: ObjectEntry) -> list[int]:
        assert entry.file is not None
        reader = self.live.shelf.reader
        table = reader.read(entry.file, self.schema, columns=[], hidden=[ROWID])
        rowids: list[int] = table.column(ROWID).to_pylist()
        return rowids

    def _data(
        self, versions: list[Version], number: int, *, committed: bool = True, moved: bool = False
    ) -> ObjectEntry:
        ordered = sorted(versions, key=lambda v: (v.key if v.key is not None else 0, v.rowid))
        table = self.schema.to_table([version.row for version in ordered])
        table = table.append_column(ROWID, pa.array([v.rowid for v in ordered], pa.int64()))
        if committed:
            stamps = pa.array([v.began for v in ordered], pa.int64())
            table = table.append_column(COMMIT_TS, stamps)
        key = object_key(self.live.table_id, self.job, number)
        stats = write_data(self.live.shelf.objects, key, table, self.schema, options=SMALL)
        return new_entry(ObjectFile(key, stats), moved=moved)

    def _tombstones(self, number: int) -> list[ObjectEntry]:
        """Everything memory holds up to the last timestamp."""
        rowids, _, successors, _ = self.live.deletes.between(0, self.ts - 1)
        if not len(rowids):
            return []
        after = dict(zip(rowids.tolist(), successors.tolist(), strict=True))
        versions = [self.versions[rowid] for rowid in sorted(after)]
        return [self._dead(versions, [after[v.rowid] for v in versions], number)]

    def _dead(
        self, versions: list[Version], successors: list[int], number: int, *, committed: bool = True
    ) -> ObjectEntry:
        pairs = sorted(zip(versions, successors, strict=True), key=lambda pair: pair[0].rowid)
        rows = self.schema.to_table([version.row for version, _ in pairs])
        columns: dict[str, Any] = {name: rows.column(name) for name in self.schema.names}
        columns[ROWID] = pa.array([v.rowid for v, _ in pairs], pa.int64())
        columns[COMMIT_TS] = pa.array([v.ended for v, _ in pairs], pa.int64())
        columns["_successor"] = pa.array([after or None for _, after in pairs], pa.int64())
        columns["_changed"] = pa.array([[] for _ in pairs], pa.list_(pa.int32()))
        wanted = tombstone_columns(self.schema, committed=committed)
        table = pa.table({column.name: columns[column.name] for column in wanted})
        key = object_key(self.live.table_id, self.job, number)
        stats = write_tombstones(self.live.shelf.objects, key, table, self.schema, options=SMALL)
        return new_entry(ObjectFile(key, stats), moved=committed)


def _split(versions: Any) -> tuple[list[int], list[Any]]:
    found = list(versions)
    return [version.rowid for version in found], [version.key for version in found]

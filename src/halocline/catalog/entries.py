"""What the catalog knows of a table, and what a table knows of one of its objects.

              created_at                    dropped_at / deleted_at
    ...............|==========================|............................> time
       not there   |   counts for snapshots   |  soft-deleted: older snapshots still see it;
                                                 hard-deleted once the floor has passed it

An entry is frozen; `created_at` and its end are stamped by the commit that made or ended it, so an
entry that a transaction has not committed yet carries NEVER in both. A thing that is still there
ends at NEVER, which lets one comparison, `ts < ended`, serve the live and the ended alike.

Objects have one rule more. The mover writes rows that committed long before their object did and
keeps every version that an old snapshot may need, so such a *moved* object also stands for
snapshots older than itself, back to the oldest commit it holds. An object that compaction or a
bulk commit wrote does not: older snapshots go on reading what it replaced.

Invariants
- Ids are never used twice, so an id names one generation of a name for ever.
- `next_column_id` only grows: a column added later never takes the id of a dropped one.

Not here: who may change an entry (tables.py), bytes in the log (nodes.py), which objects a table
has (rows/tier.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from halocline.catalog.indexes import IndexEntry, stamped_indexes
from halocline.ids import NEVER, ColumnId, ObjectId, TableId
from halocline.objects import ObjectFile, ObjectStats

if TYPE_CHECKING:
    from halocline.schema.schema import Schema

ObjectKind = Literal["data", "tombstone", "index", "checkpoint"]


class SchemaVersion(NamedTuple):
    """A schema and a name that a table has or had, since when, and what changed with them."""

    schema: Schema
    name: str
    commit_ts: int = NEVER
    change: str = ""
    place: int = 0
    """Tells the order in which one commit altered tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEntry:
    """One generation of a table. Dropping and creating a name again makes another one."""

    id: TableId
    name: str
    schema: Schema = field(hash=False)
    layout: str
    options: Mapping[str, Any] = field(hash=False)
    next_column_id: ColumnId
    created_at: int = NEVER
    dropped_at: int = NEVER
    altered: tuple[SchemaVersion, ...] = field(default=(), hash=False)
    """Every version that the table has had, the newest last; empty if it never was altered.

    None is forgotten while the table lives: rows in the log and in files name theirs."""
    indexes: tuple[IndexEntry, ...] = field(default=(), hash=False)
    """Those that the table has, in the order in which they were created."""

    def stamped(self, created_at: int, ended_at: int, altered_at: int = NEVER) -> TableEntry:
        """The entry with the commits that made, altered and ended it.

        When it was made is settled once: a table that is renamed keeps that.
        """
        if self.created_at != NEVER:
            created_at = self.created_at
        known = not self.altered or self.altered[-1].commit_ts != NEVER
        if known and (self.created_at, self.dropped_at) == (created_at, ended_at):
            return self  # one of the many that the newest commit did not change
        altered = [
            one._replace(commit_ts=altered_at) if one.commit_ts == NEVER else one
            for one in self.altered
        ]
        if altered:  # the first came with the table
            altered[0] = altered[0]._replace(commit_ts=created_at)
        indexes = stamped_indexes(self.indexes, altered_at)
        return replace(
            self,
            created_at=created_at,
            dropped_at=ended_at,
            altered=tuple(altered),
            indexes=indexes,
        )

    def with_schema(
        self, schema: Schema, change: str, name: str = "", place: int = 0
    ) -> TableEntry:
        """The entry of the altered table, under its name or another, not yet committed."""
        assert schema.version == self.schema.version + 1, "versions follow one another"
        next_version = SchemaVersion(schema, name or self.name, change=change, place=place)
        return replace(
            self,
            name=next_version.name,
            schema=schema,
            next_column_id=ColumnId(schema.last_id + 1),
            altered=(*self.versions(), next_version),
        )

    def versions(self) -> tuple[SchemaVersion, ...]:
        """Every schema that the table has had, the newest last."""
        return self.altered or (SchemaVersion(self.schema, self.name, self.created_at),)

    @property
    def committed_name(self) -> str:
        """The name that others know, when a transaction has given it another."""
        return next(one.name for one in reversed(self.versions()) if one.commit_ts != NEVER)

    def schema_at(self, version: int) -> Schema | None:
        """The schema of a version, None when there is none."""
        if version == self.schema.version:
            return self.schema
        return self.altered[version].schema if version < len(self.altered) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectEntry:
    """An immutable file and the timestamps it stands for: ([min, max], [created, deleted])."""

    id: ObjectId
    table_id: TableId
    kind: ObjectKind = "data"
    level: int = 1
    moved: bool = False
    truncated: bool = False
    """Ended by TRUNCATE: its rows ended with it. Any other end left them in another object."""
    commit_ts_min: int = NEVER
    commit_ts_max: int = NEVER
    created_at: int = NEVER
    deleted_at: int = NEVER
    target: int = 0
    """Of an index object, the data object that it belongs to."""
    index_id: int = 0
    """Of an index object, its index."""
    file: ObjectFile | None = field(default=None, compare=False, repr=False)
    """Where it is and what the catalog knows of its content; always there for a real file."""

    @property
    def stats(self) -> ObjectStats:
        assert self.file is not None, "an object without a file"
        return self.file.stats

    @property
    def key(self) -> str:
        """Its name in the object store."""
        assert self.file is not None, "an object without a file"
        return self.file.key

    def stamped(self, created_at: int, ended_at: int) -> ObjectEntry:
        """A copy of the entry with the commits that made and ended it.

        Rows of a file that was written before its commit have no timestamp of their own: they get
        that of the entry.
        """
        if self.file is None or self.file.stats.committed:
            return replace(self, created_at=created_at, deleted_at=ended_at)
        return replace(
            self,
            created_at=created_at,
            deleted_at=ended_at,
            commit_ts_min=created_at,
            commit_ts_max=created_at,
            file=ObjectFile(self.file.key, self.file.stats, created_at),
        )

    def counts_at(self, ts: int) -> bool:
        """Does this file stand for its table at `ts`? Rows inside are then judged one by one."""
        if self.deleted_at <= ts:
            return False
        return self.created_at <= ts or (self.moved and self.commit_ts_min <= ts)

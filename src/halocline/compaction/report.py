"""What a compaction did: measured before and after, for people and for tests."""

from __future__ import annotations

from dataclasses import dataclass

from halocline.compaction.plan import CompactReason, Group, Job
from halocline.compaction.shape import ObjectShape
from halocline.show import report_html


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReport:
    """One group that was rewritten and committed."""

    reason: CompactReason
    job: Job | None
    """Which of the jobs of a three-level tree it was; None for tombstones alone."""
    commit_ts: int
    tasks: int
    """Tasks that Spark ran for it; 0 when this process did it."""
    objects_in: int
    objects_out: int
    rows_in: int
    rows_dropped: int
    tombstones_dropped: int
    bytes_read: int
    bytes_written: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """One group that stays as it is for now, and why."""

    reason: CompactReason
    objects: int
    size_bytes: int
    why: str

    @classmethod
    def of(cls, group: Group, why: str) -> Left:
        objects = len(group.inputs) + len(group.tombstones)
        return cls(reason=group.reason, objects=objects, size_bytes=group.size_bytes, why=why)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCompaction:
    """One table, before and after."""

    name: str
    before: ObjectShape
    after: ObjectShape
    done: tuple[GroupReport, ...]
    deferred: tuple[Left, ...]
    """They need a tombstone object that another job has taken: the next compaction has them."""
    too_large: tuple[Left, ...]
    """Above `compact_local_bytes`: work for Spark."""
    lost: int
    """Groups whose objects were ended by others meanwhile: another compaction, or TRUNCATE."""

    @property
    def bytes_read(self) -> int:
        return sum(done.bytes_read for done in self.done)

    @property
    def bytes_written(self) -> int:
        return sum(done.bytes_written for done in self.done)

    def __str__(self) -> str:
        before, after = self.before, self.after
        if not (self.done or self.deferred or self.too_large or self.lost):
            return f"{self.name}: nothing to do"
        lines = [
            f"{self.name}: {len(self.done)} groups rewritten, {self.lost} lost",
            f"  overlap depth      {before.depth_max} -> {after.depth_max}",
            f"  data objects       {before.data_objects} -> {after.data_objects}",
            f"  tombstone objects  {before.tombstone_objects} -> {after.tombstone_objects}",
            f"  tombstones         {before.tombstones} -> {after.tombstones}",
            f"  dead rows          {before.dead_rows} -> {after.dead_rows}",
            f"  bytes              {before.size_bytes} -> {after.size_bytes}",
            f"  read and written   {self.bytes_read} and {self.bytes_written} bytes",
        ]
        left = [("deferred", one) for one in self.deferred]
        left += [("left for Spark", one) for one in self.too_large]
        lines += [
            f"  {word}: {one.reason}, {one.objects} objects, {one.size_bytes} bytes: {one.why}"
            for word, one in left
        ]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactReport:
    """What a compaction did to each table."""

    tables: tuple[TableCompaction, ...]

    def __getitem__(self, name: str) -> TableCompaction:
        return next(table for table in self.tables if table.name == name)

    @property
    def groups(self) -> int:
        return sum(len(table.done) for table in self.tables)

    @property
    def rows_dropped(self) -> int:
        return sum(done.rows_dropped for table in self.tables for done in table.done)

    @property
    def bytes_read(self) -> int:
        return sum(table.bytes_read for table in self.tables)

    @property
    def bytes_written(self) -> int:
        return sum(table.bytes_written for table in self.tables)

    def __str__(self) -> str:
        return "\n".join(map(str, self.tables)) or "no tables"

    __repr__ = __str__
    _repr_html_ = report_html

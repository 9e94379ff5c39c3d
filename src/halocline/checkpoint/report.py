"""What GC and checkpoints say they have done: numbers for programs, reasons for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from halocline.show import report_html


def _field(report: object, name: str) -> Any:
    """A field of a report by its name: `report["floor"]`."""
    if not hasattr(report, name):
        raise KeyError(name)
    return getattr(report, name)


@dataclass(frozen=True, slots=True)
class Kept:
    """Something that GC left where it is, and why."""

    what: str
    reason: str

    def __str__(self) -> str:
        return f"{self.what} - {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GcReport:
    """What one run of GC removed and what it kept. `report["floor"]` works as `report.floor`."""

    floor: int
    """The oldest timestamp that can still be read."""
    versions: int
    """Row versions that left memory."""
    tables: int
    """Dropped tables that were forgotten."""
    tokens: int
    """Idempotency tokens that were forgotten."""
    objects: int
    """Objects that left the catalog."""
    files: int
    """Files that were deleted: those objects, and what dead jobs had left."""
    bytes_freed: int
    log_files: int
    """Log files that a checkpoint has made superfluous."""
    kept: tuple[Kept, ...] = ()

    def __str__(self) -> str:
        done = (
            f"{self.files} files deleted ({self.bytes_freed:,} bytes), {self.objects} objects, "
            f"{self.log_files} log files, {self.versions:,} row versions, {self.tables} tables; "
            f"timestamps from {self.floor} on are readable"
        )
        return "\n".join([done, *(f"  kept: {one}" for one in self.kept)])

    __repr__ = __str__
    __getitem__ = _field
    _repr_html_ = report_html


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReport:
    """What a checkpoint has done."""

    ts: int
    """The newest commit that is in it."""
    flushed: int
    """Tables whose L0 was moved into objects for it."""
    files: int
    """Files written: the root, and object lists of tables that had changed."""
    bytes_written: int
    log_files: int
    """Log files that were deleted, because they are no longer needed."""
    tail_bytes: int
    """Bytes of log that an opening reads now."""

    def __str__(self) -> str:
        return (
            f"checkpoint at {self.ts}: {self.files} files ({self.bytes_written:,} bytes), "
            f"{self.flushed} tables flushed, {self.log_files} log files deleted, "
            f"{self.tail_bytes:,} bytes of log left to replay"
        )

    __repr__ = __str__
    __getitem__ = _field
    _repr_html_ = report_html

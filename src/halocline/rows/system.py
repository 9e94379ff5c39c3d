"""System nodes of the log (group 3): epochs, floors, jobs, named snapshots, checkpoints.

    EPOCH     a writer opened: timestamps and RowIDs up to these ceilings are its own
    FLOOR     snapshots below this timestamp are not readable any more; the retention time
    JOB       a writer of files reserved an id and a range of RowIDs, before its first file exists
    SNAPSHOT  a timestamp got a name, or lost it
    SEQUENCE  keys of an identity column up to this one were promised to somebody
    ROOT      a checkpoint is complete: its root file, and where replay begins (type CKP)

Each has a body (log/record.py), which is a map. A ceiling is logged before the first number
above the old one is used, and the next epoch starts above it: whatever a crash has cut off, no
timestamp or RowID that anybody may have seen is issued twice. A clean close logs the exact numbers,
so that the next epoch goes on without a gap.
"""

from __future__ import annotations

import msgspec


class EpochNode(msgspec.Struct, frozen=True, kw_only=True):
    """Ceilings that an epoch may use up to; `closed` when it used exactly these."""

    epoch: int
    ts_ceiling: int
    rowid_ceiling: int
    closed: bool = False


class FloorNode(msgspec.Struct, frozen=True, kw_only=True):
    """The oldest readable timestamp, and how long the past stays readable from now on."""

    floor: int
    retention_us: int | None = None
    """None: as it was."""


class JobNode(msgspec.Struct, frozen=True, kw_only=True):
    """A bulk or background writer: its RowIDs and the wall clock at which its lease ends.

    A job of the owner's own process has no lease (0): it ends with the epoch at the latest.
    """

    job_id: int
    table_id: int
    first_rowid: int = 0
    rows: int = 0
    lease_us: int = 0
    ended: bool = False


class SnapshotNode(msgspec.Struct, frozen=True, kw_only=True):
    """A named snapshot; it holds the horizon until it is dropped."""

    name: str
    ts: int
    created_us: int
    dropped: bool = False


class SequenceNode(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of a table up to the ceiling were given to a process, or taken back from one that has
    not used them. The last node of a table counts."""

    table_id: int
    ceiling: int


class CheckpointNode(msgspec.Struct, frozen=True, kw_only=True):
    """A complete checkpoint; its job is over with this record."""

    job_id: int
    key: str
    """Its root file in the object store."""
    size_bytes: int
    digest: bytes
    order: int
    """Everything up to this entry is in it, but for the rows and tombstones of L0."""
    ts: int
    """The newest commit it knows."""
    start_file: int
    """The oldest log file that it needs."""

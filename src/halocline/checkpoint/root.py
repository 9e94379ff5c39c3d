"""The root file of a checkpoint: everything but rows, in one sealed msgpack map.

    Root = where (order, start) + sequences + catalog + tokens + commit times + per table: bounds,
           and the files that list its objects (objectlist.py, indexlist.py)

docs/formats/checkpoint.md has every field. Bytes from a store are hostile until checked: the digest
comes from the log, decoders are typed, and lengths never allocate more than the bytes that are
there, but for commit times, whose pieces have a fixed size.

Not here: taking these values from a running database (capture.py), making a database of them again
(load.py).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from halocline.catalog.history import Definition
from halocline.checkpoint.seal import seal, unseal
from halocline.errors import CorruptionError
from halocline.ids import NEVER
from halocline.log import Place
from halocline.rows.system import CheckpointNode, JobNode, SnapshotNode

MAGIC: Final = b"HALO-CKP"
VERSION: Final = 2
PIECE: Final = 65536
"""Commit times in one compressed piece."""

_encode = msgspec.msgpack.Encoder().encode


NUMBERS: Final = (
    "wall_us",
    "epoch",
    "ts_ceiling",
    "rowid_ceiling",
    "first_rowid",
    "floor",
    "retention_us",
    "last_job_id",
)
"""Numbers that an engine state and a root have by the same names."""


class FileRef(msgspec.Struct, frozen=True, array_like=True):
    """A file in the object store."""

    key: str
    size_bytes: int
    digest: bytes


class TableWire(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One table: what of it is in objects, and which objects those are."""

    table_id: int
    need_ts: int = NEVER
    moved_rowid: int
    flushed_ts: int
    next_rowid: int
    last_ts: int
    objects: FileRef | None = None
    """None when it has none."""
    indexes: FileRef | None = None
    """Index objects; None when it has none."""


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """Some commit times: differences from one to the next, int64, zstd."""

    count: int
    stamps: bytes
    walls: bytes


class Root(msgspec.Struct, frozen=True, kw_only=True):
    """A database at one moment, less the rows and tombstones of L0."""

    uuid: bytes
    order: int
    """The last log entry that is in it."""
    here: Place
    """Behind that entry."""
    start: Place
    """Where replay begins: at `here`, or earlier if a table had rows in L0 only."""
    start_ts: int = 0
    """All commits behind `start` are newer than this."""
    ts: int
    wall_us: int
    epoch: int
    ts_ceiling: int
    rowid_ceiling: int
    first_rowid: int
    floor: int
    last_job_id: int
    jobs: list[JobNode]
    snapshots: list[SnapshotNode]
    checkpoints: list[CheckpointNode]
    """Those before this one, newest first."""
    previous_files: list[str] = []
    """Keys of all files of the one before."""
    definitions: list[Definition] = []
    next_table_id: int
    last_ddl_ts: int
    catalog_floor: int
    tokens: list[tuple[str, int, int]] = []
    """Token, commit_ts, wall clock."""
    versions: list[tuple[str, int, int]] = []
    """Application, newest version, commit_ts."""
    serials: list[tuple[int, int, int]] = []
    """Sequence, number of its newest commit, commit_ts; those of late last."""
    sequences: list[tuple[int, int, int]] = []
    """Table, ceiling and highest key of its identity column."""
    times: list[Piece] = []
    tables: list[TableWire]
    retention_us: int


_decode = msgspec.msgpack.Decoder(Root).decode


def encode_root(root: Root) -> bytes:
    return seal(MAGIC, VERSION, _encode(root))


def decode_root(data: bytes, key: str) -> Root:
    """What `encode_root` wrote; CorruptionError for anything else."""
    try:
        return _decode(unseal(MAGIC, VERSION, data, key))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptionError(key, f"it cannot be decoded: {error}") from error


def pack_times(stamps: Sequence[int], walls: Sequence[int], start: int, count: int) -> list[Piece]:
    """Commit times `start` to `count` of two arrays that may grow meanwhile."""
    pieces = []
    before = (0, 0)
    for begin in range(start, count, PIECE):
        end = min(begin + PIECE, count)
        # Slices are copies: a view of a growing array would stop its owner from appending.
        columns = (np.array(stamps[begin:end]), np.array(walls[begin:end]))
        packed = [_pack(column, first) for column, first in zip(columns, before, strict=True)]
        pieces.append(Piece(end - begin, *packed))
        before = (int(columns[0][-1]), int(columns[1][-1]))
    return pieces


def unpack_times(pieces: Sequence[Piece], key: str) -> tuple[array[int], array[int]]:
    """The two arrays again; CorruptionError for times that fall."""
    stamps, walls = array("q"), array("q")
    before = (0, 0)
    for piece in pieces:
        if not 0 < piece.count <= PIECE:
            raise CorruptionError(key, f"a piece of {piece.count} commit times")
        columns = [
            _unpack(data, piece.count, first, key)
            for data, first in zip((piece.stamps, piece.walls), before, strict=True)
        ]
        before = (int(columns[0][-1]), int(columns[1][-1]))
        stamps.frombytes(columns[0].tobytes())
        walls.frombytes(columns[1].tobytes())
    return stamps, walls


def _pack(column: Any, before: int) -> bytes:
    differences = np.diff(column.astype(np.int64), prepend=np.int64(before))
    data: bytes = pa.compress(differences.tobytes(), codec="zstd", asbytes=True)
    return data


def _unpack(data: bytes, count: int, before: int, key: str) -> Any:
    try:
        raw = pa.decompress(data, decompressed_size=count * 8, codec="zstd", asbytes=True)
    except (OSError, pa.ArrowException) as error:
        raise CorruptionError(key, f"commit times cannot be read: {error}") from error
    differences = np.frombuffer(raw, dtype=np.int64)
    if len(differences) != count or (differences < 0).any():
        raise CorruptionError(key, "commit times fall")
    return np.cumsum(differences) + before

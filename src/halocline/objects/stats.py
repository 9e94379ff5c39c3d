"""What the catalog keeps of an object: enough to skip it, to find rows in it and to trust it.

    write.py --ObjectStats--> catalog entry --ObjectFile--> read.py, finder.py

Two digests (xxh3-128): one over the whole file, for readers of all of it (DuckDB, checks, jobs
that rewrite rows); one over its tail, which is bloom filters, page index, block directory and
footer, for readers of single blocks. The tail in turn holds a digest of every page.

Ranges are closed. Keys are order-preserving bytes (schema/keys.py); an object of a table without a
primary key has empty ones. Those of an index object are the bytes of its `_key`; it has no RowIDs
and no commit timestamps, which are all 0. An object that was written before its commit has no range
of commit timestamps: all its rows carry the created_at of its entry.

Not here: which snapshots an object counts for (catalog/entries.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from halocline.objects.columns import Order
from halocline.objects.zonemap import Zonemap

VERSION: Final = 3
DIGEST_BYTES: Final = 16
VECTOR_ROWS: Final = 2048
"""So many rows of a file DuckDB decodes at a time, however wide they are."""

FileKind = Literal["data", "tombstone", "index"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStats:
    """One object, as its writer saw it."""

    kind: FileKind
    order: Order
    """What its rows are sorted by: the primary key, or the RowID."""
    rows: int
    size_bytes: int
    vector_bytes: int
    """Most bytes of rows that an SQL engine has decoded at once: VECTOR_ROWS, or a block if that is
    more, all columns together."""
    tail_bytes: int
    digest: bytes
    tail_digest: bytes
    key_min: bytes
    key_max: bytes
    rowid_min: int
    rowid_max: int
    commit_ts_min: int | None
    commit_ts_max: int | None
    schema_version: int = 0
    """The version of the table's schema whose columns it has, by the names of that version."""
    extras: tuple[int, ...] = ()
    """Ids of columns beside these, which older snapshots see (schema/evolve.py)."""
    zonemaps: Mapping[int, Zonemap] = field(hash=False)
    """By column id."""

    @property
    def committed(self) -> bool:
        """Has it a `_commit_ts` of its own for every row?"""
        return self.commit_ts_min is not None

    def to_wire(self) -> list[Any]:
        """Plain values, for msgpack."""
        zones = {int(id): zone.to_wire() for id, zone in self.zonemaps.items()}
        plain = [getattr(self, name) for name in _PLAIN]
        return [VERSION, *plain, list(self.extras), zones]

    @classmethod
    def from_wire(cls, wire: Any) -> ObjectStats:
        """What `to_wire` wrote; ValueError for anything else."""
        if not isinstance(wire, (list, tuple)) or not wire or wire[0] != VERSION:
            raise ValueError("object statistics of an unknown version")
        if len(wire) != len(_PLAIN) + 3 or not isinstance(wire[-1], Mapping):
            raise ValueError("object statistics with parts missing")
        plain = dict(zip(_PLAIN, wire[1:-2], strict=True))
        extras = wire[-2]
        if not isinstance(extras, (list, tuple)) or not all(type(one) is int for one in extras):
            raise ValueError("object statistics with wrong columns")
        for name, value in plain.items():
            if not _fits(name, value):
                raise ValueError(f"{value!r} is not the {name} of an object")
        zones = {id: Zonemap.from_wire(zone) for id, zone in wire[-1].items()}
        return cls(**plain, extras=tuple(extras), zonemaps=zones)


_PLAIN: Final = tuple(name for name in ObjectStats.__slots__ if name not in ("extras", "zonemaps"))


def _fits(name: str, value: Any) -> bool:
    if name in ("kind", "order"):
        return value in get_args(FileKind if name == "kind" else Order)
    if name in ("digest", "tail_digest"):
        return type(value) is bytes and len(value) == DIGEST_BYTES
    if name in ("key_min", "key_max"):
        return type(value) is bytes
    if name in ("commit_ts_min", "commit_ts_max") and value is None:
        return True
    return type(value) is int and value >= 0


def object_path(key: str) -> str:
    """Where a person finds a file of the store, from the database's directory on."""
    return f"objects/{key}"


@dataclass(frozen=True, slots=True)
class ObjectFile:
    """One object to be read: its key in the store, its statistics, and the timestamp of rows
    that carry none of their own (the entry's created_at)."""

    key: str
    stats: ObjectStats = field(hash=False, compare=False)
    commit_ts: int = 0
    id: tuple[str, bytes] = field(init=False)
    """Names the content, not just the key: what is cached for one never serves another."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", (self.key, self.stats.digest))

    def to_wire(self) -> list[Any]:
        """Plain values, for msgpack."""
        return [self.key, self.commit_ts, self.stats.to_wire()]

    @classmethod
    def from_wire(cls, wire: Any) -> ObjectFile:
        """What `to_wire` wrote; ValueError for statistics that make no sense."""
        key, commit_ts, stats = wire
        return cls(key, ObjectStats.from_wire(stats), commit_ts)

    @property
    def path(self) -> str:
        """Where a person finds it, from the database's directory on."""
        return object_path(self.key)

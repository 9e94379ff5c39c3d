"""Reshape: what a commit record says about the objects of one table, in memory and as bytes.

    mover, compaction, bulk commits --> Reshape --encode--> OBJ_C, OBJ_D, PAGE_M nodes --> log
                                           |                                                |
                                           '----------------> fold <-----decode, joined-----'

    OBJ_C   table, job, per object: id, store key, kind, level, moved, commit_ts range, statistics
    OBJ_D   table, ids of objects that end; or everything that is current, by TRUNCATE
    PAGE_M  table, RowID ranges that left L0, commit_ts up to which tombstones are in objects

What an index object belongs to is in its key (objects/shelf.py). Whether it joins the table is
decided by the fold, see rows/tier.py.

Each has a body (log/record.py), which is an array. The nodes of one table in one record are folded
as one value: a reader must never see rows in both tiers, or in neither.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from halocline.catalog.entries import ObjectEntry, ObjectKind
from halocline.errors import CorruptionError
from halocline.ids import NEVER, ObjectId, TableId
from halocline.log.record import OBJ_C, OBJ_D, PAGE_M, decode_body, encode_body
from halocline.objects import ObjectFile, ObjectStats
from halocline.objects.shelf import job_in, object_id, parse_key

KINDS: Final = frozenset({OBJ_C, OBJ_D, PAGE_M})


@dataclass(slots=True)
class Reshape:
    """Objects that come and go, and rows that leave L0, of one table in one commit."""

    table_id: int
    created: list[ObjectEntry] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    truncate: bool = False
    """End all data objects that are current when the record is folded; `ended` is then empty."""
    ranges: list[tuple[int, int]] = field(default_factory=list)
    """start <= RowID < end, ascending."""
    flushed_ts: int = 0
    """All tombstones up to this commit_ts are in objects; 0: says nothing."""
    job_id: int = 0
    """The job that wrote the files; it is over with this commit. 0: none but those that the ids
    of the files tell, which are over as well."""

    @property
    def jobs(self) -> set[int]:
        """All jobs that are over with this commit."""
        return {self.job_id, *(job_in(entry.id) for entry in self.created)}

    @property
    def changes_rows(self) -> bool:
        """Do readers of a newer snapshot see other rows? Moves and rewrites change none."""
        return self.truncate or any(not entry.stats.committed for entry in self.created)


class _Objects(msgspec.Struct, frozen=True, array_like=True):
    table_id: int
    job_id: int
    objects: tuple[tuple[int, str, ObjectKind, int, bool, int, int, Any], ...]


class _Ends(msgspec.Struct, frozen=True, array_like=True):
    table_id: int
    truncate: bool
    ids: tuple[int, ...]


class _Moves(msgspec.Struct, frozen=True, array_like=True):
    table_id: int
    ranges: tuple[tuple[int, int], ...]
    flushed_ts: int


def encode_reshape(node: Reshape) -> list[tuple[int, bytes]]:
    """(node type, payload) for the log, in the order PAGE_M, OBJ_D, OBJ_C."""
    nodes: list[tuple[int, bytes]] = []
    if node.ranges or node.flushed_ts:
        moves = _Moves(node.table_id, tuple(node.ranges), node.flushed_ts)
        nodes.append((PAGE_M, encode_body(moves)))
    if node.ended or node.truncate:
        ends = _Ends(node.table_id, node.truncate, tuple(node.ended))
        nodes.append((OBJ_D, encode_body(ends)))
    if node.created or node.job_id:
        wires = tuple(entry_to_wire(entry) for entry in node.created)
        nodes.append((OBJ_C, encode_body(_Objects(node.table_id, node.job_id, wires))))
    return nodes


def decode_reshapes(nodes: Iterable[tuple[int, bytes]]) -> list[Reshape]:
    """The reshapes of one record, one per table; CorruptionError for what makes no sense."""
    found: dict[int, Reshape] = {}
    for kind, payload in nodes:
        try:
            _join(found, kind, payload)
        except (ValueError, TypeError) as error:
            raise CorruptionError(
                "log", f"object node of type {kind} cannot be decoded: {error}"
            ) from error
    return list(found.values())


def _join(found: dict[int, Reshape], kind: int, payload: bytes) -> None:
    if kind == PAGE_M:
        moves = decode_body(payload, _Moves)
        node = found.setdefault(moves.table_id, Reshape(moves.table_id))
        if any(not 0 < start < end for start, end in moves.ranges):
            raise ValueError("a range of RowIDs is empty")
        node.ranges += moves.ranges
        node.flushed_ts = max(node.flushed_ts, moves.flushed_ts)
    elif kind == OBJ_D:
        ends = decode_body(payload, _Ends)
        node = found.setdefault(ends.table_id, Reshape(ends.table_id))
        node.ended += ends.ids
        node.truncate |= ends.truncate
    else:
        objects = decode_body(payload, _Objects)
        node = found.setdefault(objects.table_id, Reshape(objects.table_id))
        node.created += [entry_from_wire(objects.table_id, wire) for wire in objects.objects]
        node.job_id = node.job_id or objects.job_id


def entry_to_wire(entry: ObjectEntry) -> tuple[Any, ...]:
    """Plain values for msgpack; created_at and deleted_at are the record's business."""
    return (
        entry.id,
        entry.key,
        entry.kind,
        entry.level,
        entry.moved,
        entry.commit_ts_min,
        entry.commit_ts_max,
        entry.stats.to_wire(),
    )


def entry_from_wire(table_id: int, wire: tuple[Any, ...]) -> ObjectEntry:
    """What `entry_to_wire` wrote; ValueError for statistics that make no sense."""
    number, key, kind, level, moved, low, high, stats = wire
    name = parse_key(key)
    if (kind == "index") is not bool(name.index_id):
        raise ValueError(f"{key!r} is not the name of an object of kind {kind!r}")
    return ObjectEntry(
        id=ObjectId(number),
        table_id=TableId(table_id),
        kind=kind,
        level=level,
        moved=moved,
        commit_ts_min=low,
        commit_ts_max=high,
        target=name.target,
        index_id=name.index_id,
        file=ObjectFile(key, ObjectStats.from_wire(stats)),
    )


def new_entry(file: ObjectFile, *, level: int = 1, moved: bool = False) -> ObjectEntry:
    """The entry of a file that was just written; the commit stamps it."""
    stats = file.stats
    name = parse_key(file.key)
    return ObjectEntry(
        id=ObjectId(object_id(name.job_id, name.number)),
        table_id=TableId(name.table_id),
        kind=stats.kind,
        level=level,
        moved=moved,
        commit_ts_min=NEVER if stats.commit_ts_min is None else stats.commit_ts_min,
        commit_ts_max=NEVER if stats.commit_ts_max is None else stats.commit_ts_max,
        target=name.target,
        index_id=name.index_id,
        file=file,
    )

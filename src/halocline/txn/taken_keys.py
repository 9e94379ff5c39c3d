"""Which keys of a large input are taken, in the table or by the transaction itself.

    sorted keys of one object --> L0: are any of its keys among them?   --few--> look these up
                              --> objects whose key range meets theirs  --find_many, alive?
                              --> own rows, own parts, own objects

A batch of a million keys is not looked up in L0; L0, which is smaller, is looked up in the batch.
Objects are asked only where key ranges meet, so loading new keys behind the old ones asks nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from halocline.catalog.entries import ObjectEntry
from halocline.objects.keybytes import key_bytes
from halocline.read.locate import locate_many
from halocline.rows.members import distinct, is_among
from halocline.rows.memtree import MemTree
from halocline.schema.batches import Int64Array
from halocline.schema.schema import Schema
from halocline.txn.objectparts import file_of, meeting
from halocline.txn.workspace import TableChanges


class SortedKeys:
    """Keys of a canonical table in key order, each once."""

    def __init__(self, schema: Schema, table: pa.Table) -> None:
        assert table.num_rows, "no keys"
        self.schema = schema
        self.table = table.select(list(schema.primary_key)).combine_chunks()
        ends = self.table.take(pa.array([0, table.num_rows - 1]))
        self.low_bytes, self.high_bytes = key_bytes(ends, schema.primary_key).to_pylist()
        self.low, self.high = schema.keys_of(ends)

    @cached_property
    def ints(self) -> Int64Array | None:
        return self.schema.int_keys(self.table) if self.schema.int_key else None

    @cached_property
    def plain(self) -> list[Any]:
        return self.schema.keys_of(self.table)

    @cached_property
    def _places(self) -> dict[Any, int]:
        return {key: place for place, key in enumerate(self.plain)}

    def places_of(self, keys: Sequence[Any] | Int64Array) -> Int64Array:
        """Where those of `keys` stand that are among ours."""
        if self.ints is not None:
            wanted = np.asarray(keys, dtype=np.int64)
            wanted = wanted[(wanted >= self.low) & (wanted <= self.high)]
            places: Int64Array = np.searchsorted(self.ints, wanted)
            hits: Int64Array = places[self.ints[places] == wanted]
            return hits
        low, high = self.low, self.high
        near = [key for key in keys if low <= key <= high]
        found = (self._places.get(key, -1) for key in near) if near else ()
        return np.array([place for place in found if place >= 0], dtype=np.int64)

    def keys_at(self, places: Int64Array) -> list[Any]:
        """Canonical keys, by their places."""
        return self.schema.keys_of(self.table.take(pa.array(places)))


def taken_keys(changes: TableChanges, keys: SortedKeys, snapshot: int) -> list[Any]:
    """Those of the keys that the transaction sees a row of."""
    places = taken_places(changes, keys, snapshot)
    return keys.keys_at(places) if len(places) else []


def taken_places(changes: TableChanges, keys: SortedKeys, snapshot: int) -> Int64Array:
    """Places of those of the keys that the transaction sees a row of, ascending."""
    return distinct(np.concatenate([_in_table(changes, keys, snapshot), written(changes, keys)]))


def written(changes: TableChanges, keys: SortedKeys) -> Int64Array:
    """Places of keys whose row the transaction has written itself."""
    hits = [keys.places_of(list(changes.own)), *_in_parts(changes, keys)]
    if changes.objects is not None:
        hits.append(in_objects(changes, keys, changes.objects.data))
    return np.concatenate(hits)


def in_objects(
    changes: TableChanges, keys: SortedKeys, entries: Sequence[ObjectEntry]
) -> Int64Array:
    """Places of keys that stand in own objects and have not been ended since."""
    finder = changes.state.finder
    near = meeting(entries, keys.low_bytes, keys.high_bytes)
    if not near or finder is None:
        return np.zeros(0, dtype=np.int64)
    batch = finder.batch(keys.table)
    hits = [finder.find_many(file_of(entry), batch) for entry in near]
    places = np.concatenate([hit.positions for hit in hits])
    rowids = np.concatenate([hit.rowids for hit in hits])
    return places[~is_among(rowids, changes.ended())] if len(places) else places


def _in_table(changes: TableChanges, keys: SortedKeys, snapshot: int) -> Int64Array:
    state = changes.state
    places = [keys.places_of(part) for part in _known_keys(state.tree)]
    tier = state.shape.tier
    near = [e for e in tier.meeting(keys.low_bytes, keys.high_bytes) if e.counts_at(snapshot)]
    places += [_within(keys, entry) for entry in near]
    candidates = distinct(np.concatenate([np.zeros(0, dtype=np.int64), *places]))
    if not len(candidates):
        return candidates
    table = keys.table.take(pa.array(candidates))
    wanted = keys.ints[candidates] if keys.ints is not None else keys.schema.keys_of(table)
    rowids = locate_many(state, wanted, snapshot, table=table).rowids
    rowids[is_among(rowids, changes.ended())] = 0
    return candidates[rowids > 0]


def _known_keys(tree: MemTree) -> Iterable[Sequence[Any] | Int64Array]:
    """All keys of L0, visible or not."""
    # list() of a dict copies without giving up the interpreter: commits cannot interfere.
    yield list(tree.recent)
    for run in tree.runs:
        yield run.keys


def _within(keys: SortedKeys, entry: ObjectEntry) -> Int64Array:
    """Places of the keys that lie in the key range of an object."""
    if keys.ints is None:
        return np.arange(keys.table.num_rows)
    finder_low, finder_high = (_to_int(b) for b in (entry.stats.key_min, entry.stats.key_max))
    start = int(np.searchsorted(keys.ints, finder_low, "left"))
    stop = int(np.searchsorted(keys.ints, finder_high, "right"))
    return np.arange(start, stop)


def _to_int(key: bytes) -> int:
    """The integer behind the key bytes of an integer key."""
    return int.from_bytes(key, "big") - (1 << 63)


def _in_parts(changes: TableChanges, keys: SortedKeys) -> list[Int64Array]:
    hits = []
    for part in changes.parts:
        if part.table is not None and part.run is not None:
            places = keys.places_of(part.run.keys)
            if part.dropped and len(places):
                alive = [part.find(key) >= 0 for key in keys.keys_at(places)]
                places = places[np.array(alive, dtype=np.bool_)]
            hits.append(places)
    return hits

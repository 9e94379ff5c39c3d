"""Load a checkpoint: an engine state as it was, and what is still to be folded into it.

    root file --> EngineState: catalog, tiers, tokens, times, sequences      (all but L0)
                     '-- Replay --redo--> rows and tombstones of L0, up to the checkpoint's order
                                --fold--> everything behind it

Data objects are not read here: an opening costs the checkpoint and the tail, however large the
tables are. Object lists are read and compared with their digests, so that a checkpoint with a
damaged file is found out now, while another one can still stand in for it.
"""

from __future__ import annotations

from collections.abc import Iterable

import xxhash

from halocline.catalog.history import restore as restore_catalog
from halocline.checkpoint.indexlist import IndexList
from halocline.checkpoint.objectlist import decode_objects
from halocline.checkpoint.root import NUMBERS, FileRef, Root, TableWire, decode_root, unpack_times
from halocline.errors import CorruptionError
from halocline.ids import NEVER
from halocline.log.format import CKP, Entry
from halocline.log.record import decode_record
from halocline.objects import Shelf
from halocline.objects.stats import object_path
from halocline.options import Options
from halocline.rows.engine import EngineState
from halocline.rows.redo import Bounds, redo
from halocline.rows.row_run import RowRun
from halocline.rows.system import CheckpointNode
from halocline.rows.tier import Tier
from halocline.store import Objects


class Replay:
    """An engine state on its way to the end of the log."""

    def __init__(self, engine: EngineState, root: Root | None = None, key: str = "") -> None:
        """From a checkpoint, or with an empty engine and none from the beginning of the log."""
        self.engine = engine
        self.root = root
        self.key = key
        self.tiers = {state.table_id: state.shape.tier for state in engine.tables.values()}
        """The objects as the checkpoint lists them."""
        self.met: set[int] = set()
        """Orders of the checkpoints whose CKP entries have been folded."""
        self._redone_ts = 0 if root is None else root.start_ts
        self._redoing = root is not None
        self._run = RowRun(engine)
        tables = () if root is None else root.tables
        self._bounds = {
            table.table_id: Bounds(table.need_ts, table.moved_rowid, table.flushed_ts)
            for table in tables
        }

    def fold(self, entry: Entry) -> None:
        """The next entry of the log."""
        root = self.root
        if root is not None and entry.order <= root.order:
            self._redone_ts = max(
                self._redone_ts, redo(self.engine, decode_record(entry), self._bounds)
            )
            return
        if self._redoing:
            self._resume()
        self._run.fold(entry)
        if entry.type == CKP and self.engine.checkpoints:
            self.met.add(self.engine.checkpoints[0].order)

    def settle(self) -> int:
        """Fold all that was taken; returns the newest commit so far."""
        self._run.flush()
        return self._redone_ts if self._redoing else self.engine.last_ts

    def finish(self, known: Iterable[CheckpointNode] = ()) -> EngineState:
        """The log has ended; CorruptionError if it ended before the CKP entry of a checkpoint
        that is known to have been durable: our own, and others that somebody knows of."""
        self.settle()
        for state in self.engine.tables.values():
            state.open_page(state.schema.version)
        first = 0 if self.root is None else self.root.order
        named = {} if self.root is None else {self.key: first}
        named |= {node.key: node.order for node in known if node.order > first}
        for key, order in named.items():
            if order not in self.met:
                path = object_path(key)
                raise CorruptionError("log", f"it ends before the entry that names {path}")
        return self.engine

    def _resume(self) -> None:
        """L0 is as it was: the sequences go on where they were."""
        self._redoing = False
        assert self.root is not None
        for table in self.root.tables:
            state = self.engine.tables[table.table_id]
            state.moved_rowid = table.moved_rowid
            state.flushed_ts = table.flushed_ts
            state.last_ts = table.last_ts
            state.next_rowid = max(state.next_rowid, table.next_rowid)


def read_root(objects: Objects, node: CheckpointNode) -> Root:
    """The root file that a CKP entry names; CorruptionError if it is not what was written."""
    root = decode_root(
        _read(objects, node.key, node.size_bytes, node.digest), object_path(node.key)
    )
    if root.order != node.order or root.start.number != node.start_file:
        raise CorruptionError(object_path(node.key), "it is not the checkpoint that the log names")
    return root


def files_of(root: Root, key: str) -> list[str]:
    """The keys of all files of a checkpoint."""
    refs = [ref for table in root.tables for ref in (table.objects, table.indexes)]
    return [key, *(ref.key for ref in refs if ref is not None)]


def find_damage(objects: Objects, node: CheckpointNode) -> list[str]:
    """Every file of a checkpoint that is not what was written, for `check`."""
    try:
        root = read_root(objects, node)
    except (CorruptionError, OSError) as error:
        return [str(error)]
    problems = []
    for table in root.tables:
        try:
            if table.objects is not None:
                tier = _tier(objects, table)
                problems += _unfound(objects, table, tier)
        except (CorruptionError, OSError) as error:
            problems.append(str(error))
    return problems


def load(node: CheckpointNode, options: Options, shelf: Shelf) -> Replay:
    """Everything that the checkpoint holds."""
    root = read_root(shelf.objects, node)
    engine = EngineState(options, shelf)
    try:
        restore_catalog(
            engine.catalog,
            root.definitions,
            root.next_table_id,
            root.last_ddl_ts,
            root.catalog_floor,
        )
    except CorruptionError as error:
        raise CorruptionError(object_path(node.key), f"its catalog: {error.reason}") from error
    for table in root.tables:
        entry = engine.catalog.table_by_id(table.table_id)
        if entry is None:
            raise CorruptionError(
                object_path(node.key), f"table {table.table_id} is not in its catalog"
            )
        state = engine.add_table(entry)
        if table.objects is not None:
            state.shape = state.shape._replace(tier=_tier(shelf.objects, table))
    _take_over(engine, root, object_path(node.key))
    return Replay(engine, root, node.key)


def _tier(objects: Objects, table: TableWire) -> Tier:
    file = table.objects
    assert file is not None
    data = _read(objects, file.key, file.size_bytes, file.digest)
    tier = decode_objects(data, table.table_id, object_path(file.key))
    if table.indexes is None:
        return tier
    listed = index_list(objects, table.indexes, table.table_id)
    return Tier([*tier.everything(), *listed.entries()])


def index_list(objects: Objects, file: FileRef, table_id: int) -> IndexList:
    """The index objects of a table as a checkpoint lists them."""
    data = _read(objects, file.key, file.size_bytes, file.digest)
    return IndexList(data, table_id, object_path(file.key))


def _unfound(objects: Objects, table: TableWire, tier: Tier) -> list[str]:
    """Index objects of a checkpoint that looking them up does not find."""
    if table.indexes is None:
        return []
    listed = index_list(objects, table.indexes, table.table_id)
    return [
        f"{object_path(table.indexes.key)}: it does not find {entry.key}"
        for pair, entry in tier.indexed.items()
        if entry.deleted_at == NEVER and listed.find(*pair) != entry
    ]


def _take_over(engine: EngineState, root: Root, path: str) -> None:
    """Numbers, tokens, times, jobs, names."""
    engine.last_ts = root.ts
    for name in NUMBERS:
        setattr(engine, name, getattr(root, name))
    engine.jobs = {job.job_id: job for job in root.jobs}
    engine.checkpoints = tuple(root.checkpoints)
    for snapshot in root.snapshots:
        engine.keep_snapshot(snapshot)
    for table_id, ceiling, top in root.sequences:
        sequence = engine.sequence_of(table_id)
        sequence.ceiling, sequence.top = ceiling, top
    engine.tokens.restore(root.tokens, root.versions)
    engine.serials.restore(root.serials)
    engine.times.stamps, engine.times.walls = unpack_times(root.times, path)


def _read(objects: Objects, key: str, size_bytes: int, digest: bytes) -> bytes:
    try:
        data = objects.read(key, 0, size_bytes + 1)
    except FileNotFoundError:
        raise CorruptionError(object_path(key), "a file of the checkpoint is missing") from None
    if len(data) != size_bytes or xxhash.xxh3_128_digest(data) != digest:
        raise CorruptionError(object_path(key), "its digest is not the one that was written down")
    return data

"""A workspace on its way to the owner, and what the owner makes of it.

    compute node                                          owner
    workspace --prepare--> record with blanks --Commit--> nodes --> workspace --> ordinary commit

The commit record already says all that a transaction does to rows and objects, so it is what
travels; the owner fills its tables of changes from the nodes, in a transaction that has the
snapshot of the sender, and commits that like one of its own: conflicts are found by the same code,
and what others did meanwhile is rebased onto in the same way. Beside the record go only the reads
of a serializable transaction, and what of objects the record does not tell.

Targets and successors of tombstone objects are read from the files themselves, whose digests are in
the record.

Invariants
- Nothing here changes the state of the owner: a parcel that makes no sense raises before that.
- A file that is committed belongs to a live job which the same session has started, or to one with
  a lease, which goes on without the session that started it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from halocline.catalog.entries import ObjectEntry
from halocline.errors import ConflictError, CorruptionError, UsageError
from halocline.ids import NEVER
from halocline.log.record import DML_A, DML_D, DML_U
from halocline.node.limits import Nodes
from halocline.node.session import Session
from halocline.node.wire import BlindNotes, Commit, ObjectNotes, TableReads
from halocline.objects.shelf import job_in
from halocline.read.guard import check_rows, check_table
from halocline.rows.nodes import Append, Delete, RowNode, Update, decode_node, table_of, version_of
from halocline.rows.reshape import KINDS as OBJECT_NODES
from halocline.rows.reshape import Reshape, decode_reshapes, entry_from_wire, entry_to_wire
from halocline.rows.state import TableState
from halocline.schema import types
from halocline.schema.schema import Schema
from halocline.txn import Core, Transaction
from halocline.txn.altered import check_files, conflict
from halocline.txn.blind import ABSENT, HELD, Blind
from halocline.txn.ends import Ends
from halocline.txn.reads import Reads
from halocline.txn.since import find_version
from halocline.txn.task_objects import TaskFiles, join
from halocline.txn.workspace import Part, TableChanges, Workspace

# -- at the sender -------------------------------------------------------------------------------


def pack_reads(txn: Workspace, states: Mapping[int, TableState]) -> tuple[TableReads, ...] | None:
    """What a transaction has read that must not have changed; None when there is nothing."""
    if not txn.reads:
        return None
    packed = []
    for table_id, reads in txn.reads.items():
        if table_id not in states:  # a table of its own: nobody else can have changed it
            continue
        schema = states[table_id].schema
        keyed = bool(schema.primary_key)
        ranges = tuple(
            tuple(None if end is None else schema.encode_keys([end]) for end in ends)
            for ends in reads.ranges
        )
        keys = schema.encode_keys(reads.keys) if keyed else b""
        packed.append(TableReads(table_id, keys, ranges, reads.whole))  # type: ignore[arg-type]
    return tuple(packed)


def pack_objects(tables: Mapping[int, TableChanges]) -> tuple[ObjectNotes, ...]:
    """What the record does not say of the files that were written."""
    notes = []
    for table_id, changes in tables.items():
        parts, blind = changes.objects, changes.blind
        if parts is not None and (parts or blind):
            ids = tuple(entry.id for entry in parts.successors)
            told = None if blind is None else _pack_blind(changes.schema, blind)
            jobs = tuple(job.job_id for job in parts.started)
            written = tuple(sorted(parts.written))
            notes.append(ObjectNotes(table_id, jobs, ids, told, written))
    return tuple(notes)


def _pack_blind(schema: Schema, blind: Blind) -> BlindNotes:
    sides = [
        tuple(entry_to_wire(entry) for entry, found in blind.files if found == kind)
        for kind in (ABSENT, HELD)
    ]
    return BlindNotes(blind.mode, schema.ids_of(blind.changed), *sides)


# -- at the owner --------------------------------------------------------------------------------


def unpack(
    core: Core, session: Session, commit: Commit, nodes: Nodes, txn: Transaction
) -> list[int]:
    """Fill a transaction that has just begun at the sender's snapshot; which tables it needs."""
    states = _States(core, session, commit)
    changes: dict[int, TableChanges] = {}
    reshapes = decode_reshapes([node for node in nodes if node[0] in OBJECT_NODES])
    shapes = {reshape.table_id: reshape for reshape in reshapes}
    notes = {one.table_id: one for one in commit.objects}
    for table_id in {**shapes, **notes}:  # a blind job may have no file that joins the table
        reshape = shapes.get(table_id) or Reshape(table_id)
        found = _with_objects(core, states, reshape, notes.get(table_id), session)
        if found.truncated and txn.snapshot < found.home.valid_from < NEVER:
            raise conflict(found.home)  # altered since
        changes[table_id] = found
    for kind, payload in nodes:
        if kind in OBJECT_NODES:
            continue
        if kind not in (DML_A, DML_D, DML_U):
            raise CorruptionError("request", f"node type {kind} does not belong into a workspace")
        state = states.find(table_of(payload))
        state.check_version(version_of(payload))
        table = changes.get(state.table_id)
        if table is None:
            table = changes[state.table_id] = TableChanges(state)
        _add(table, decode_node(kind, payload, state.schema, amounts=True), state)
    for table in changes.values():
        check_arrived(table)
    reads = {one.table_id: _reads(core, one) for one in commit.reads or ()}
    work = txn.workspace
    work.changes, work.created, work.dropped = changes, states.created, frozenset(commit.dropped)
    work.ddl = session.ddl(commit.ddl) if commit.ddl else None
    work.reads = reads
    work.serial = commit.serial if commit.serial[0] else None
    return [*changes, *reads]


def check_arrived(changes: TableChanges) -> None:
    """CheckError when a row breaks a check, whatever the sender has asked. Files: see `join`."""
    schema, name = changes.schema, changes.entry.name
    if schema.checks:
        rows = [*changes.rows.values(), *(intent.row for intent in changes.updates.values())]
        check_rows(schema, rows, name)
        for part in changes.parts:
            if part.table is not None:
                check_table(schema, part.table, name)


class _States:
    """The tables that a parcel may speak of."""

    def __init__(self, core: Core, session: Session, commit: Commit) -> None:
        self._tables = core.engine.tables
        self.created: dict[int, TableState] = {}
        for table_id in commit.created:
            self.created[table_id] = session.nascent(core, commit.ddl, table_id)

    def find(self, table_id: int) -> TableState:
        return known_table(self.created.get(table_id) or self._tables.get(table_id))


def known_table(state: TableState | None) -> TableState:
    """ConflictError for a table that is gone, whatever the snapshot of the sender is."""
    if state is None or state.dropped_at != NEVER:
        raise ConflictError("the table was dropped by another transaction")
    return state


def _add(changes: TableChanges, node: RowNode, state: TableState) -> None:
    """One node becomes changes, by the methods that a local transaction uses."""
    key_of = state.key_of
    if isinstance(node, Append):
        if node.table is not None:
            changes.add_part(Part(table=node.table, run=node.run))
            return
        for row in node.rows:
            changes.insert(None if key_of is None else key_of(row), row)
        return
    check_targets(state, node.targets)
    if isinstance(node, Delete):
        if isinstance(node.targets, np.ndarray):
            changes.add_part(Part(ends=Ends(node.targets, keys=node.keys)))
            return
        for target, key in zip(node.targets, node.keys, strict=True):
            changes.delete(target, key)
        return
    changed = positions_of(state.schema, tuple(map(abs, node.changed)))
    if node.amounts:
        _add_amounts(changes, node, set(changed), state)
        return
    if isinstance(node.targets, np.ndarray):
        ends = Ends(node.targets, keys=node.keys, changed=frozenset(changed))
        part = Part(table=node.table, run=node.run, ends=ends)
        changes.add_part(part)
        return
    for target, row in zip(node.targets, node.rows, strict=True):
        changes.update(target, None if key_of is None else key_of(row), row, set(changed))


def _add_amounts(changes: TableChanges, node: Update, changed: set[int], state: TableState) -> None:
    """Updates that hold amounts: the sums are made here, from the rows that they speak of."""
    schema, key_of = state.schema, state.key_of
    added = positions_of(schema, tuple(-id for id in node.changed if id < 0))
    if any(types.kind(schema.columns[at].type) not in types.NUMBERS for at in added):
        raise CorruptionError("request", "something is added to a column that has no numbers")
    rows = node.rows if node.table is None else schema.from_table(node.table)
    for target, row in zip(node.targets, rows, strict=True):
        key = None if key_of is None else key_of(row)
        old, sums = find_version(state, key, int(target)), list(row)
        if old is None:
            raise CorruptionError("request", "a row that is to be added to is not there")
        if any(row[at] is None for at in added):
            raise CorruptionError("request", "a row adds nothing to a column that it adds to")
        for at in added:
            sums[at] = schema.plus(at, old[at], row[at])
        amounts = {at: row[at] for at in added}
        changes.update(int(target), key, tuple(sums), set(changed), amounts)


def check_targets(state: TableState, targets: Any) -> None:
    """Versions that end must have begun."""
    if len(targets) and not 0 < min(targets) <= max(targets) < state.next_rowid:
        raise CorruptionError("request", "a row that is to end has never begun")


def positions_of(schema: Schema, ids: tuple[int, ...]) -> list[int]:
    places = {column.id: place for place, column in enumerate(schema.columns)}
    try:
        return [places[id] for id in ids]  # type: ignore[index]
    except KeyError as error:
        raise CorruptionError("request", f"there is no column {error}") from None


def _reads(core: Core, one: TableReads) -> Reads:
    reads = Reads()
    reads.whole = one.whole
    state = core.engine.tables.get(one.table_id)
    if state is not None and state.schema.primary_key:
        decode = state.schema.decode_keys
        reads.keys = set(decode(one.keys))
        for low, high in one.ranges:
            ends = [None if end is None else decode(end)[0] for end in (low, high)]
            reads.ranges.append((ends[0], ends[1]))
    return reads


# Objects.


def _with_objects(
    core: Core, states: _States, reshape: Reshape, notes: ObjectNotes | None, session: Session
) -> TableChanges:
    """The workspace of a table in which files are committed, or that is truncated."""
    if reshape.ended or reshape.ranges or reshape.flushed_ts:
        raise CorruptionError("request", "a workspace neither moves rows nor ends objects")
    state = states.find(reshape.table_id)
    changes = TableChanges(state)
    if reshape.truncate:
        changes = TableChanges(core.engine.new_table(state.entry))
        changes.home = state
        changes.truncated = True
    if reshape.created and notes is None:
        raise UsageError("a workspace with files comes with notes on them")
    if notes is not None:
        _join(core, changes, reshape, notes, session)
    return changes


def _join(
    core: Core, changes: TableChanges, reshape: Reshape, notes: ObjectNotes, session: Session
) -> None:
    state, blind = changes.home, notes.blind
    wanted = {*notes.jobs, *(job_in(entry.id) for entry in reshape.created)}
    jobs = []
    for job_id in sorted(wanted):
        job = session.job(core, job_id)
        if job is None or job_id not in core.engine.jobs or job.table_id != state.table_id:
            reason = "the job that wrote its files is not live any more"
            raise ConflictError(reason, table=state.entry.name)
        jobs.append(job)
    follow = set(notes.successors)
    kinds: dict[str, list[ObjectEntry]] = {"data": [], "successor": [], "tombstone": []}
    for entry in reshape.created:
        if entry.kind == "index":
            raise UsageError("index objects are built by the process that owns the database")
        kinds["successor" if entry.id in follow else entry.kind].append(entry)
    check_files(state, [*kinds["data"], *kinds["successor"]], notes.written)
    files = TaskFiles(**kinds)
    if blind is None:
        join(changes, files, jobs=jobs, written=notes.written)
        return
    held, absent = (_side_files(state.table_id, wires) for wires in (blind.held, blind.absent))
    files = TaskFiles(**kinds, held=held, absent=absent)
    changed = frozenset(positions_of(state.schema, blind.changed))
    join(changes, files, jobs=jobs, blind=blind.mode, changed=changed, written=notes.written)


def _side_files(table_id: int, wires: tuple[Any, ...]) -> list[ObjectEntry]:
    try:
        return [entry_from_wire(table_id, wire) for wire in wires]
    except (TypeError, ValueError) as error:
        raise CorruptionError("request", f"a side file makes no sense: {error}") from error

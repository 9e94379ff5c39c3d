"""Commits of single rows: one inserted or updated row each, without a workspace.

    rows of one table, each from a snapshot of its own
      '-> encode (no lock) --> commit lock: check each, log the plain ones as one entry

Most transactions write one row. Such a commit makes one node, encodes it, and ends in the tail that
every commit has (`Committer.log_record`). A row that is not plain, because it, its table or the
catalog has changed since the snapshot, is left to the general way, before anything was done.

Rows that several processes insert at the same moment share an entry of the log (log/record.py).
Each stays a transaction: it has its own timestamp, its own checks and its own outcome, and may be
seen without the others. An update has an entry of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from halocline.errors import DuplicateKeyError
from halocline.log.record import DML_A, DML_U, INFO, NODES_AT, Serial, encode_commit
from halocline.read.guard import check_rows
from halocline.read.point import find
from halocline.rows.engine import EngineState
from halocline.rows.nodes import HEAD, ROWS, VERSION, Append, Update, encode_node
from halocline.rows.row_run import FRONT, array_head
from halocline.rows.state import TableState
from halocline.schema.codec import encode as encode_rows
from halocline.txn.identity import with_key
from halocline.txn.record import ROWID_IN_NODE
from halocline.txn.returning import Returning, returned_row
from halocline.txn.row_update import Addition, Single

if TYPE_CHECKING:
    from halocline.txn.commit import Committer
    from halocline.txn.core import Core

_ROWID_AT: Final = NODES_AT + ROWID_IN_NODE
_INFO_BYTES, _HEAD_BYTES = INFO.size, HEAD.size
_pack_front = FRONT.pack
patch_rowid = Struct("<Q").pack_into


def first_row(
    core: Core, state: TableState, values: Mapping[str, Any], snapshot: int, returning: Returning
) -> tuple[Single, Any]:
    """A row that a transaction inserts first of all, to be kept aside (see commit_single), and what
    its caller gets."""
    row = state.schema.row(values)
    if state.sequence is not None:
        row = with_key(core, state, row, snapshot)
    if state.schema.checks:
        check_rows(state.schema, (row,), state.entry.name)
    key = state.schema.key_of(row)
    if find(state, key, snapshot):
        raise DuplicateKeyError(state.entry.name, [key])
    shown = 1 if returning is False else returned_row(state.schema, row, returning)
    return (state, key, row, 0, ()), shown


def row_node(single: Single, body: bytes = b"") -> Append | Update:
    """The node of one row; `body` are its bytes, if they are there already."""
    state, key, row, target, changed = single
    if not target:
        body, version = body or encode_rows((row,)), state.schema.version
        return Append(state.table_id, (row,), None, None, 0, (key,), body, version)
    schema = state.schema
    ids = schema.ids_of(changed) if len(changed) > 1 else (schema.columns[changed[0]].id,)
    body = body or encode_rows((ids, (target,), (row,)))
    node = Update(state.table_id, (target,), ids, (row,), None, (key,), None, 0, body)
    node.version = schema.version
    return node


def encode_row(node: Append | Update, txn_id: int, epoch: int) -> bytearray:
    """The payload of a commit of one row that has its bytes, without timestamp and RowID.

    It is what `encode_commit` and `encode_node` give, in one step: 0.30 us instead of 0.81 of an
    insert that takes 8, where a commit that does not wait for the disk has no half us to spare.
    """
    body = node.body
    kind = DML_A if type(node) is Append else DML_U
    # fmt: off
    front = _pack_front(
        txn_id, _INFO_BYTES, 0, 0, epoch, 1, 0, 1, kind, _HEAD_BYTES + len(body),
        VERSION, ROWS, 0, node.table_id, node.version, 0, 1,
    )
    # fmt: on
    return bytearray(front + body)


def commit_row(
    committer: Committer, snapshot: int, single: Single, wait: bool = True, ticket: int = 0
) -> int:
    """Commit one inserted or updated row; 0 when the general way must decide.

    Without `wait` it is durable and visible only after the next `sync`. `ticket` tells whose turn
    it is at a contended row.
    """
    engine, log, state = committer.engine, committer.log, single[0]
    if committer.turns.rows and _is_contended(committer, single, ticket):
        return 0
    node = row_node(single)
    payload = encode_row(node, next(committer.ids), log.epoch)

    def fold(commit_ts: int) -> None:
        node.first_rowid = rowid = state.next_rowid
        patch_rowid(payload, _ROWID_AT, rowid)
        state.fold(node, commit_ts)

    with committer.lock:
        # The row was made from this very state: only what came since can stand in its way.
        touched = state.last_ts > snapshot or engine.catalog.last_ddl_ts > snapshot
        if committer.stopped or (touched and not _is_plain(engine, single, snapshot)):
            return 0
        if state.next_rowid >= engine.rowid_ceiling:
            committer.promise_rowids(state.next_rowid + 1)
        order, commit_ts = committer.log_record(payload, fold)
    if wait:
        if ticket:
            committer.turns.end(ticket)
        log.wait(order)
    return commit_ts


def commit_rows(
    committer: Committer,
    singles: Sequence[Single],
    snapshots: Sequence[int],
    bodies: Sequence[bytes],
    serials: Sequence[Serial] = (),
    tickets: Sequence[int] = (),
) -> list[int]:
    """Commit rows that others bring, with their bytes: inserts into one table, or one update.

    They become one entry of the log. Returns the commit_ts of each, 0 where the general way must
    decide. They are durable and visible after the next `sync`. `serials`, one for each, tell which
    of them have been committed before, and `tickets` which of them have their turn.
    """
    state, given = singles[0][0], [0] * len(singles)
    with committer.lock:
        places = [] if committer.stopped else _plain(committer.engine, singles, snapshots)
        if committer.turns.rows:
            mine = tickets or [0] * len(singles)
            places = [at for at in places if not _is_contended(committer, singles[at], mine[at])]
        find = committer.engine.serials.find
        places = [at for at in places if not (serials and find(serials[at]))]
        count = len(places)
        if not count:
            return given
        node = _node([singles[at] for at in places], [bodies[at] for at in places])
        nodes = (encode_node(node, None),)
        payload = encode_commit(next(committer.ids), committer.log.epoch, nodes, count=count)

        def fold(first_ts: int) -> None:
            node.first_rowid = rowid = state.next_rowid
            patch_rowid(payload, _ROWID_AT, rowid)
            state.fold(node, first_ts, count)

        committer.promise_rowids(state.next_rowid + count)
        chosen = [serials[at] for at in places] if serials else ()
        _, first_ts = committer.log_record(payload, fold, count, serials=chosen)
    for commit_ts, at in enumerate(places, first_ts):
        given[at] = commit_ts
    return given


def commit_addition(
    committer: Committer,
    snapshot: int,
    addition: Addition,
    wait: bool = True,
    ticket: int = 0,
) -> int:
    """Commit an addition; 0 when the general way must decide.

    Without `wait` it is durable and visible only after the next `sync`. `ticket` tells whose turn
    it is at a contended row.
    """
    log, state = committer.log, addition.state
    if committer.turns.rows and _is_turn_of_another(committer, state, addition.key, ticket):
        return 0
    node = addition.on_newest()

    def fold(commit_ts: int) -> None:
        assert node is not None
        node.first_rowid = rowid = state.next_rowid
        patch_rowid(payload, _ROWID_AT, rowid)
        state.fold(node, commit_ts)

    payload = bytearray() if node is None else encode_row(node, next(committer.ids), log.epoch)
    with committer.lock:
        if committer.stopped or not _is_known(committer, state, snapshot):
            return 0
        if node is None or state.deletes.find(node.targets[0]) is not None:
            node = addition.on_newest()
            if node is None:
                return 0
            payload = encode_row(node, next(committer.ids), log.epoch)
        committer.promise_rowids(state.next_rowid + 1)
        order, commit_ts = committer.log_record(payload, fold)
    if wait:
        if ticket:
            committer.turns.end(ticket)
        log.wait(order)
    return commit_ts


def _is_known(committer: Committer, state: TableState, snapshot: int) -> bool:
    """Is all that came since the snapshot in the memory of the table? Caller holds the lock."""
    ddl_ts, bulk_ts = committer.engine.catalog.last_ddl_ts, state.shape.tier.last_bulk_ts
    return max(ddl_ts, bulk_ts) <= snapshot <= committer.engine.last_ts


def _is_contended(committer: Committer, single: Single, ticket: int) -> bool:
    return _is_turn_of_another(committer, single[0], single[1], ticket)


def _is_turn_of_another(committer: Committer, state: TableState, key: Any, ticket: int) -> bool:
    """Is it the turn of another transaction at this row?"""
    return committer.turns.blocks(ticket, (state.table_id, state.schema.key_bytes(key)))


def _is_plain(engine: EngineState, single: Single, snapshot: int) -> bool:
    """Does nothing stand in the way of this row? Caller holds the commit lock."""
    state, key, _, target, _ = single
    known = engine.catalog.last_ddl_ts <= snapshot <= engine.last_ts
    return known and _untouched(state, key, target, snapshot)


def _node(singles: Sequence[Single], bodies: Sequence[bytes]) -> Append | Update:
    """One node for rows of as many transactions, put together from the bytes of each."""
    if len(singles) == 1:
        return row_node(singles[0], bodies[0])
    keys, rows = [one[1] for one in singles], [one[2] for one in singles]
    body = b"".join((array_head(len(rows)), *(one[1:] for one in bodies)))
    state = singles[0][0]
    return Append(state.table_id, rows, keys=keys, body=body, version=state.schema.version)


def _plain(engine: EngineState, singles: Sequence[Single], snapshots: Sequence[int]) -> list[int]:
    """Places of the rows that nothing stands in the way of, each key once."""
    seen: set[Any] = set()
    places = []
    for place, single in enumerate(singles):
        if _is_plain(engine, single, snapshots[place]) and single[1] not in seen:
            seen.add(single[1])
            places.append(place)
    return places


def _untouched(state: TableState, key: Any, target: int, snapshot: int) -> bool:
    """Has nobody written this row, whatever else happened in its table?"""
    if state.shape.tier.last_bulk_ts > snapshot:
        return False  # objects have come that only the general way looks into
    if target:
        return state.deletes.find(target) is None
    newest = state.tree.newest(key)
    return not newest or state.deletes.find(newest) is not None

"""Single rows at the owner: most of what other processes commit is one inserted or updated row.

    requests of one moment --read--> rows, by table --commit_rows--> an outcome for each

What `Transaction` does for a row of this process, without one, and without the wait. Inserts into
one table share an entry of the log. What is not plain has the outcome None here, and is left to the
general way (dispatch.py).

The snapshot of an insert may be older than that of its transaction (lazy_begin.py): it is what the
sender had folded when it looked for the key. From there on the owner has to look.
"""

from __future__ import annotations

from collections.abc import Sequence

from halocline.errors import (
    ConflictError,
    CorruptionError,
    DuplicateKeyError,
    HaloclineError,
)
from halocline.ids import NEVER
from halocline.log.record import Serial
from halocline.node.limits import read_record
from halocline.node.wire import Commit
from halocline.node.workspace_wire import check_targets, positions_of
from halocline.read.guard import check_rows
from halocline.rows.nodes import HEAD, Delete, Update, decode_node, read_head
from halocline.rows.state import TableState
from halocline.txn import Core
from halocline.txn.row_commit import commit_rows
from halocline.txn.row_update import Single

Answerable = tuple[int, list[TableState]]
"""commit_ts, and the tables to tidy up when it is durable."""
RowAnswer = Answerable | Exception | None


def log_rows(core: Core, commits: Sequence[Commit], tickets: Sequence[int]) -> list[RowAnswer]:
    """Fold and log those that are plain, or say why not; None for those that have to go alone.

    `tickets` are those of their turns, 0 for none. The turns of those that are logged or refused
    are over.
    """
    found: list[RowAnswer] = [None] * len(commits)
    rows: dict[int, tuple[Single, bytes]] = {}
    groups: dict[tuple[int, int], list[int]] = {}
    pin = object()
    core.pins[id(pin)] = min([commit.snapshot for commit in commits])
    try:
        for place, commit in enumerate(commits):
            try:
                rows[place] = single, _ = _read(core, commit)
            except HaloclineError as error:
                found[place] = error
                continue
            state, _, _, target, _ = single  # inserts of a table together, an update alone
            groups.setdefault((state.table_id, place if target else -1), []).append(place)
        for places in groups.values():
            singles = [rows[place][0] for place in places]
            snapshots = [commits[place].snapshot for place in places]
            bodies = [rows[place][1] for place in places]
            serials = [commits[place].serial for place in places]
            mine = [tickets[place] for place in places]
            for place, outcome in zip(
                places, _commit(core, singles, snapshots, bodies, serials, mine), strict=True
            ):
                found[place] = outcome
    finally:
        core.pins.pop(id(pin), None)
    for ticket, answer in zip(tickets, found, strict=True):
        if ticket and answer is not None:
            core.own.end_turns(ticket)
    return found


def _read(core: Core, commit: Commit) -> tuple[Single, bytes]:
    """The row of a commit and its bytes, if it may be committed from that snapshot."""
    nodes, _ = read_record(commit.record)
    if len(nodes) != 1:
        raise CorruptionError("request", f"a single row cannot be {len(nodes)} nodes")
    ((kind, payload),) = nodes
    _, table_id, _, _, version = read_head(payload)
    state = core.engine.tables.get(table_id)
    if state is None or state.dropped_at != NEVER:
        raise ConflictError("the table was dropped by another transaction")
    if version != state.schema.version:
        state.check_version(version)
    node = decode_node(kind, payload, state.schema)
    if isinstance(node, Delete) or len(node.rows) != 1 or state.key_of is None:
        raise CorruptionError("request", "a single row is an insert or an update by key")
    (row,) = node.rows
    key, target = state.key_of(row), 0
    changed: tuple[int, ...] = ()
    core.check_writable(commit.snapshot, (state.table_id,))
    if isinstance(node, Update):
        check_targets(state, node.targets)
        target, changed = node.targets[0], tuple(positions_of(state.schema, node.changed))
    elif state.locate(key, commit.snapshot):  # whatever the sender says
        raise DuplicateKeyError(state.entry.name, [key])
    if state.schema.checks:  # whatever the sender has checked
        check_rows(state.schema, (row,), state.entry.name)
    return (state, key, row, target, changed), payload[HEAD.size :]


def _commit(
    core: Core,
    singles: list[Single],
    snapshots: list[int],
    bodies: list[bytes],
    serials: list[Serial],
    tickets: list[int],
) -> list[RowAnswer]:
    state = singles[0][0]
    try:
        stamps = commit_rows(core.own, singles, snapshots, bodies, serials, tickets)
    except Exception as error:  # noqa: BLE001 those of other tables may have been logged
        return [error] * len(singles)
    return [(ts, [state] if state.owes else []) if ts else None for ts in stamps]

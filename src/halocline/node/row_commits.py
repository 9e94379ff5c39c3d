"""Single rows at the owner: most of what other processes commit is one inserted or updated row.

    requests of one moment --read--> rows, by table --commit_rows--> an outcome for each

What `Transaction` does for a row of this process, without one, and without the wait. Inserts into
one table share an entry of the log. What is not plain has the outcome None here, and is left to the
general way (answers.py).

The snapshot of an insert may be older than that of its transaction (ahead.py): it is what the
sender had folded when it looked for the key. From there on the owner has to look.
"""

from __future__ import annotations

from collections.abc import Sequence

from halocline.errors import DuplicateKeyError, HaloclineError
from halocline.node.parcel import read_single
from halocline.node.wire import Commit
from halocline.rows.state import TableState
from halocline.txn import Core
from halocline.txn.row_commit import commit_rows
from halocline.txn.workspace import Single

Logged = tuple[int, list[TableState]]
"""commit_ts, and the tables to tidy up when it is durable."""
Outcome = Logged | Exception | None


def log_rows(core: Core, commits: Sequence[Commit]) -> list[Outcome]:
    """Fold and log those that are plain, or say why not; None for those that have to go alone."""
    found: list[Outcome] = [None] * len(commits)
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
            for place, outcome in zip(
                places, _commit(core, singles, snapshots, bodies), strict=True
            ):
                found[place] = outcome
    finally:
        core.pins.pop(id(pin), None)
    return found


def _read(core: Core, commit: Commit) -> tuple[Single, bytes]:
    """The row of a commit and its bytes, if it may be committed from that snapshot."""
    single, body = read_single(core.engine.tables, commit.record)
    state, key, _, target, _ = single
    core.check_writable(commit.snapshot, (state.table_id,))
    if not target and state.locate(key, commit.snapshot):  # whatever the sender says
        raise DuplicateKeyError(state.entry.name, [key])
    return single, body


def _commit(
    core: Core, singles: list[Single], snapshots: list[int], bodies: list[bytes]
) -> list[Outcome]:
    state = singles[0][0]
    try:
        stamps = commit_rows(core.writing, singles, snapshots, bodies)
    except Exception as error:  # noqa: BLE001 those of other tables may have been logged
        return [error] * len(singles)
    return [(ts, [state] if state.owes else []) if ts else None for ts in stamps]

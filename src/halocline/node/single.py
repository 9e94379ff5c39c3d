"""Single rows at the owner: most of what other processes commit is one inserted or updated row.

    one      check it, fold it, log it: `log_row`
    several  that came in one turn of the desk: inserts of one table in one entry, `log_rows`

What `Transaction` does for a row of this process, without one, and without the wait: 30 us of the
owner instead of 39, at best. Whatever is not plain is 0 here, and left to the general way.

The snapshot of an insert may be older than that of its transaction (ahead.py): it is what the
sender had folded when it looked for the key. From there on the owner has to look.
"""

from __future__ import annotations

from collections.abc import Sequence

from halocline.errors import DuplicateKeyError, HaloclineError
from halocline.node.parcel import read_single
from halocline.node.wire import Commit
from halocline.rows.onerow import read_inserts
from halocline.rows.state import TableState
from halocline.txn import Core
from halocline.txn.together import commit_inserts

Stamped = tuple[int, TableState]
"""commit_ts and table."""
Outcome = Stamped | Exception | None


def log_row(core: Core, commit: Commit) -> Stamped:
    """Fold and log one row; 0 when the general way must decide."""
    single = read_single(core.engine.tables, commit.record)
    state, key, _, target, _ = single
    if not target and state.locate(key, commit.snapshot):  # whatever the sender says
        raise DuplicateKeyError(state.entry.name, [key])
    pin = object()
    core.pins[id(pin)] = commit.snapshot
    try:
        core.check_writable(commit.snapshot, (state.table_id,))
        return core.own.commit_single(commit.snapshot, single, False), state
    finally:
        core.pins.pop(id(pin), None)


def log_rows(core: Core, commits: Sequence[Commit]) -> list[Outcome]:
    """Fold and log those that are plainly inserts of new keys, or say why not; None for others:
    they have to go alone."""
    found: list[Outcome] = [None] * len(commits)
    pin = object()
    core.pins[id(pin)] = lowest = min([commit.snapshot for commit in commits])
    try:
        for state, places, rows in read_inserts(core.engine.tables, [c.record for c in commits]):
            try:
                core.check_writable(lowest, (state.table_id,))
            except HaloclineError:
                continue  # one of them is too old: each is looked at alone
            snapshots = [commits[place].snapshot for place in places]
            outcomes: Sequence[Outcome]
            try:
                stamps = commit_inserts(core.own, state, snapshots, rows)
                outcomes = [(commit_ts, state) if commit_ts else None for commit_ts in stamps]
            except Exception as error:  # noqa: BLE001 those of other tables may have been logged
                outcomes = [error] * len(places)
            for place, outcome in zip(places, outcomes, strict=True):
                found[place] = outcome
    finally:
        core.pins.pop(id(pin), None)
    return found

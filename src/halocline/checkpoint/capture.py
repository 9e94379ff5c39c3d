"""Capture: the state of a running database at one moment, taken without stopping it.

    survey (no lock)   what L0 needs of the log, per table
    capture (lock)     references and numbers, O(tables): shapes and entries never change
    root_of (no lock)  encoded, while commits go on

What does a table need of the log? Its rows in L0 and its tombstones that no object holds. Both only
ever leave, and what comes has a newer timestamp: `need_ts` never falls. So it may be found out
before the moment of capture, without a lock: it is then too low at most, and replay reads a little
more than it must.

Tokens and commit times are copied after the lock is free, so they may hold commits that came later.
Those stand in the log in front of the CKP entry, hence are durable if the checkpoint is, and are
folded again on top: adding them twice changes nothing. Commit times are cut at the captured count.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from halocline.catalog.history import History, definitions
from halocline.catalog.history import capture as capture_catalog
from halocline.checkpoint.root import NUMBERS, FileRef, Root, TableWire, pack_times
from halocline.ids import NEVER
from halocline.log import Place
from halocline.rows.engine import Times
from halocline.rows.state import TableState
from halocline.rows.tier import Tier
from halocline.rows.tokens import Serials, Tokens
from halocline.txn import Committer

_NONE: Final = (None, None)


class Needs(NamedTuple):
    """What L0 needs of the log."""

    until: int
    """Found out when this was the newest commit: later ones are needed in any case."""
    tables: dict[int, int]
    """Table id -> commit_ts of the oldest record it needs; NEVER: none."""

    @property
    def oldest(self) -> int:
        """No record with an older commit_ts is needed."""
        return min([self.until + 1, *self.tables.values()])

    def since(self, ts: int) -> list[int]:
        """Ids of the tables that need records up to `ts`."""
        return [table_id for table_id, need in self.tables.items() if need <= ts]


def survey(committer: Committer) -> Needs:
    """What every table needs; a place is noted, so that what comes now can be read from here."""
    engine = committer.engine
    with committer.lock:
        until = engine.last_ts
        committer.log.places.note(committer.log.places.here(), until)
        states = list(engine.tables.values())
    return Needs(until, {state.table_id: need_ts(state, committer) for state in states})


def need_ts(state: TableState, committer: Committer) -> int:
    """commit_ts of the oldest record that L0 of this table needs; NEVER when it needs none."""
    flushed = state.flushed_ts
    oldest = [_oldest_single(state, flushed, committer)]
    for run in state.deletes.runs:
        if run.ts_max > flushed:
            later = run.ts_min if run.ts_min > flushed else run.stamps[run.stamps > flushed].min()
            oldest.append(int(later))
    shape = state.shape
    page = next((page for page in (*shape.pages, shape.active) if len(page)), None)
    if page is not None:
        oldest.append(int(page.stamp_array(1)[0]))
    return min(oldest)


def _oldest_single(state: TableState, flushed: int, committer: Committer) -> int:
    """The oldest tombstone outside of runs that is not in an object; they stand in commit order."""
    ended = state.deletes.ended
    with committer.lock:
        first = next(iter(ended.values()), None)
    if first is None:
        return NEVER
    if first[0] > flushed:
        return first[0]
    return next((one[0] for one in list(ended.values()) if one[0] > flushed), NEVER)


class Moment(NamedTuple):
    """A database when it was captured. Nothing in it changes any more."""

    root: Root
    """What was copied under the lock; `root_of` fills in what takes longer."""
    tiers: dict[int, Tier]
    history: History
    tokens: Tokens
    serials: Serials
    """The live ones: see above."""
    times: Times
    commits: int
    """How many of the commit times there were; their arrays only grow."""


def capture(committer: Committer) -> Moment:
    """Take the state under the commit lock."""
    engine, log = committer.engine, committer.log
    with committer.lock:
        committer.check_running()
        here = log.places.here()
        log.places.note(here, engine.last_ts)
        history = capture_catalog(engine.catalog)
        root = Root(
            uuid=log.uuid,
            order=here.order - 1,
            here=here,
            start=here,
            ts=engine.last_ts,
            jobs=list(engine.jobs.values()),
            snapshots=list(engine.snapshots.values()),
            checkpoints=list(engine.checkpoints),
            next_table_id=history.next_table_id,
            last_ddl_ts=history.last_ddl_ts,
            catalog_floor=history.floor,
            sequences=[(id, one.ceiling, one.top) for id, one in engine.sequences.items()],
            tables=[_table(state) for state in engine.tables.values()],
            **{name: getattr(engine, name) for name in NUMBERS},
        )
        tiers = {int(state.table_id): state.shape.tier for state in engine.tables.values()}
        times = engine.times
        return Moment(root, tiers, history, engine.tokens, engine.serials, times, len(times.stamps))


def _table(state: TableState) -> TableWire:
    return TableWire(
        table_id=state.table_id,
        moved_rowid=state.moved_rowid,
        flushed_ts=state.flushed_ts,
        next_rowid=state.next_rowid,
        last_ts=state.last_ts,
    )


def root_of(
    moment: Moment,
    needs: Needs,
    *,
    start: Place,
    start_ts: int,
    lists: Mapping[int, Sequence[FileRef | None]],
    previous_files: list[str],
) -> Root:
    """The root file of this moment; `lists`: files that list the objects and the index
    objects of tables that have any."""
    root, times, commits = moment.root, moment.times, moment.commits
    known = {table.id for table in moment.history.tables}
    tokens, versions = moment.tokens.written_down()
    # Of the commits up to the floor the newest is enough: nobody may ask for an older one.
    first = max(0, bisect_right(times.stamps, root.floor, 0, commits) - 1)
    return replace(
        root,
        start=start,
        start_ts=start_ts,
        previous_files=previous_files,
        definitions=definitions(moment.history),
        tokens=tokens,
        versions=versions,
        serials=moment.serials.written_down(),
        times=pack_times(times.stamps, times.walls, first, commits),
        tables=[
            replace(
                table,
                need_ts=min(needs.tables.get(table.table_id, NEVER), needs.until + 1),
                objects=lists.get(table.table_id, _NONE)[0],
                indexes=lists.get(table.table_id, _NONE)[1],
            )
            for table in root.tables
            if table.table_id in known
        ],
    )

"""Index builder: index objects for data objects that have none, newest first, in the background.

    gaps --newest object--> job logged --> files --> one commit; the fold takes what has a place
      '-- an index object that was found damaged ends, and its pair is a gap again

It changes no row and ends no object of others, so it conflicts with nobody. If the data object or
the index ends meanwhile, the fold leaves the index object outside (rows/tier.py): its job is over,
nobody refers to the file, and GC removes it. The same holds for two builders of one pair. A build
that is killed leaves files of a dead job and nothing else, and the pair is a gap as before.

What is damaged is never trusted: readers scan its data object instead (index/chooser.py), and note
it for us.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from halocline.catalog import IndexEntry, ObjectEntry
from halocline.clock import Clock
from halocline.errors import UnavailableError
from halocline.ids import NEVER
from halocline.index import kind_of, write_beside
from halocline.objects import JobWriter
from halocline.rows.reshape import Reshape
from halocline.rows.state import TableState
from halocline.txn import Core
from halocline.txn.jobs import commit_reshapes, give_up

LOOK_S: Final = 1.0
"""How often the background looks for something to build."""
REST: Final = 1.0
"""It rests so many times as long as it has worked."""


class Gap(NamedTuple):
    """A data object, and the indexes that have nothing of it."""

    entry: ObjectEntry
    indexes: Sequence[IndexEntry]


class IndexBuilder:
    """Builds what is missing in all tables of one owner. Safe to share between threads."""

    def __init__(
        self, core: Core, states: Callable[[], Iterable[TableState]], clock: Clock
    ) -> None:
        self._core, self._states, self._clock = core, states, clock
        self._again_at = 0.0
        self._stopping = False

    def stop(self) -> None:
        """Break off between two objects: the database is being closed."""
        self._stopping = True

    def step(self) -> bool:
        """Build for one data object, if it is time; True when something was done."""
        began = self._clock.monotonic()
        if began < self._again_at:
            return False
        done = any(self._one(state) for state in self._states() if _is_indexed(state))
        now = self._clock.monotonic()
        self._again_at = now + (REST * (now - began) if done else LOOK_S)
        return done

    def build(self, states: Iterable[TableState]) -> int:
        """Build all that is missing in some tables now; returns for how many data objects."""
        count = 0
        for state in states:
            while self._one(state):
                count += 1
        return count

    def _one(self, state: TableState) -> bool:
        """End what is damaged, and build for the newest data object that lacks something."""
        self._end_damaged(state)
        found = gaps(state)
        if not found or self._stopping:
            return False
        with self._core.pinned():
            self._build(state, found[0])
        return True

    def _build(self, state: TableState, gap: Gap) -> None:
        committer, shelf, schema = self._core.own, state.shelf, state.newest.schema
        job = committer.start_job(state)
        try:
            writer = JobWriter(
                shelf.objects,
                schema,
                self._core.options,
                table_id=state.table_id,
                job_id=job.job_id,
            )
            made = list(write_beside(shelf.reader, schema, writer, gap.indexes, [gap.entry]))
            reshape = Reshape(state.table_id, created=made, job_id=job.job_id)
            if not commit_reshapes(committer, [reshape], still=lambda: _lives(state)):
                give_up(committer, [job])
        except BaseException as error:
            give_up(committer, [job])
            if isinstance(error, OSError):
                raise UnavailableError(f"an index object cannot be written: {error}") from error
            raise

    def _end_damaged(self, state: TableState) -> None:
        damaged = state.shelf.damaged
        here = [id for id in list(damaged) if id in state.shape.tier.index_objects]
        ended = [id for id in here if state.shape.tier.index_objects[id].deleted_at == NEVER]
        if ended:
            reshape = Reshape(state.table_id, ended=ended)
            commit_reshapes(self._core.own, [reshape], still=lambda: _lives(state))
        for id in here:
            damaged.pop(id, None)


def gaps(state: TableState) -> list[Gap]:
    """Data objects of a table that lack an index object, the newest first."""
    tier = state.shape.tier
    known = [one for one in state.newest.entry.indexes if kind_of(one.kind) is not None]
    found = []
    for entry in sorted(tier.data, key=lambda one: one.id, reverse=True):
        if entry.deleted_at == NEVER:
            lacking = [
                one for one in known if tier.index_object(entry.id, one.id, NEVER - 1) is None
            ]
            if lacking:
                found.append(Gap(entry, lacking))
    return found


def _is_indexed(state: TableState) -> bool:
    return bool(state.newest.entry.indexes) and _lives(state)


def _lives(state: TableState) -> bool:
    return state.dropped_at == NEVER

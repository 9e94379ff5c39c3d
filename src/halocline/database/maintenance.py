"""Maintenance: what an open database does to itself when it is asked to.

    db.flush   db.compact   db.checkpoint   db.gc   db.health   db.check
    db.snapshot, snapshots, drop_snapshot
                                      each a short method over a room that does the work

A part of Database, kept in a file of its own: Database adds transactions, tables and reading.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, cast

from halocline.catalog.names import check_name
from halocline.checkpoint import CheckpointReport, Checkpoints, Collector, GcReport, Snapshot
from halocline.checkpoint.load import find_damage
from halocline.checkpoint.snapshots import drop_snapshot, keep_snapshot, list_snapshots
from halocline.clock import Clock
from halocline.compaction import (
    Compactor,
    CompactReport,
    Gatherer,
    LocalRunner,
    Plan,
    Runner,
)
from halocline.compaction.pace import Pace
from halocline.database.check import check_engine
from halocline.database.health import Health, examine
from halocline.database.opening import Reader, readable
from halocline.errors import CorruptionError, HaloclineError, UnavailableError, UsageError
from halocline.ids import NEVER
from halocline.log import Log, read_log
from halocline.mover import Background, Moved, Mover
from halocline.node import Link, ServerLink
from halocline.node.wire import Command, CommandName
from halocline.rows import TableState
from halocline.store import Files
from halocline.txn import Committer, Core, Transaction


class Maintenance:
    """The maintenance calls of a database. `Database` sets these attributes when it opens."""

    path: str
    read_only: bool
    _background: Background | None = None
    _clock: Clock
    _core: Core
    _files: Files
    _link: Link | ServerLink | None = None
    """The way to the owner, of a handle that was not the owner when it opened."""
    _log: Log
    _merging: Background | None = None
    _mover: Mover | None = None
    _reader: Reader | None
    _collector: Collector | None = None
    _compactor: Compactor | None = None
    _gatherer: Gatherer
    _checkpoints: Checkpoints | None = None
    _named_us: int | None = None
    """The retention time that this opening has named, until the database knows it."""

    @property
    def core(self) -> Core:
        """What runners outside this process's transactions, such as Spark jobs, work with."""
        return self._core

    @property
    def files(self) -> Files:
        """The directory, for those who serve it."""
        return self._files

    @property
    def floor(self) -> int:
        """The oldest timestamp that can still be read."""
        if self._link is not None:
            self._refresh()
        return self._core.engine.floor

    def flush(self, table: str | None = None) -> Moved:
        """Move the rows and tombstones of one table, or of all, from memory into objects.

        Nobody has to call it: the background moves rows when they are many or old. Returns how many
        rows and tombstones left memory, and how many objects of how many bytes were written.
        """
        if (moved := self._elsewhere("flush", table, Moved)) is not None:
            return cast(Moved, moved)
        self._owned()
        assert self._mover is not None
        return self._mover.flush(self._states(table))

    def compact(
        self, table: str | None = None, *, runner: Runner | None = None, plan: Plan | None = None
    ) -> CompactReport:
        """Rewrite objects that overlap, are small or hold many ended rows; of one table, or of all.

        No transaction notices. Groups of objects above `compact_local_bytes` are left for Spark;
        the report names them, and measures each table before and after. `hs.compact` calls this
        with a `runner` of its own.
        """
        if (report := self._elsewhere("compact", table, CompactReport, runner)) is not None:
            return cast(CompactReport, report)
        self._owned()
        assert self._compactor is not None
        # What ends while it is being read must not be collected.
        with readable(self.path), self._core.pinned():
            return self._compactor.run(self._states(table), runner, plan)

    def checkpoint(self) -> CheckpointReport:
        """Write the state of the database, so that the next opening has little log to read.

        Rows in memory are moved into objects first; log files that nobody needs are deleted.
        """
        if (report := self._elsewhere("checkpoint", None, CheckpointReport)) is not None:
            return cast(CheckpointReport, report)
        self._owned()
        assert self._checkpoints is not None
        with readable(self.path):
            return self._checkpoints.run()

    def gc(self) -> GcReport:
        """Free what nobody can see any more; the report says what went, what stayed and why.

        The floor rises as far as retention, open transactions, named snapshots and the readers in
        other processes allow. Below it go: versions, dropped tables, ended objects; in any case
        the files that dead jobs have left, and log files behind the checkpoint.
        """
        if (report := self._elsewhere("gc", None, GcReport)) is not None:
            return cast(GcReport, report)
        self._owned()
        assert self._collector is not None
        with readable(self.path):
            return self._collector.run()

    def keep_for(self, retention_us: int) -> bool:
        """From now on the past stays readable for so long; what `open(retention=)` calls."""
        if self._elsewhere("keep_for", str(retention_us), bool) is None:
            self._owned()
            assert self._collector is not None
            self._collector.keep_for(retention_us)
        return True

    def snapshot(self, name: str) -> int:
        """Give the newest state a name; `at="name"` reads it until the name is dropped.

        Returns its timestamp; durable when it returns. AlreadyExistsError when the name is taken.
        """
        check_name("snapshot", name)
        if (ts := self._elsewhere("snapshot", name, int)) is not None:
            return cast(int, ts)
        return keep_snapshot(self._owned(), name)

    def snapshots(self) -> list[Snapshot]:
        """All named snapshots, oldest first: each has `name`, `ts` and `created`."""
        self._core.check_open()
        self._refresh()
        return list_snapshots(list(self._core.engine.snapshots.values()))

    def drop_snapshot(self, name: str) -> None:
        """Forget a named snapshot; what only it held goes with the next GC. NotFoundError."""
        check_name("snapshot", name)
        if self._elsewhere("drop_snapshot", name, bool) is None:
            drop_snapshot(self._owned(), name)

    def health(self) -> Health:
        """Rows and bytes per tier, the shape of all tables, and what maintenance is owed and why.

        `print(db.health())` shows a table. Only statistics are read: `check` verifies files.
        """
        if (health := self._elsewhere("health", None, Health)) is not None:
            return cast(Health, health)
        threads = [one for one in (self._background, self._merging) if one is not None]
        mover, collector, checkpoints = self._mover, self._collector, self._checkpoints
        with self._pinned() as ts, readable(self.path):
            return examine(
                self._core,
                self._gatherer,
                ts,
                l0_budget_bytes=None if mover is None else mover.pressure.budget_bytes,
                horizon=None if collector is None else collector.horizon(),
                tail_bytes=None if checkpoints is None else checkpoints.tail_bytes(),
                fresh_bytes=0 if checkpoints is None else checkpoints.bytes_since(),
                troubles={name: why for one in threads for name, why in one.troubles.items()},
            )

    def check(self) -> list[str]:
        """Verify the database; returns every problem found, none when all is well."""
        self._core.check_open()
        with self._pinned() as ts:
            problems = check_engine(self._core.engine, ts)
        engine = self._core.engine
        for node in engine.checkpoints:
            found = find_damage(engine.shelf.objects, node)
            self._refresh()
            if node in engine.checkpoints:  # no newer one has taken its place meanwhile
                problems += found
        try:
            with readable(self.path):
                for _ in read_log(self._files, self._core.options).entries():
                    pass
        except CorruptionError as error:
            problems.append(str(error))
        return problems

    def _owned(self) -> Committer:
        """The committer of the one writer; UnavailableError for everybody else."""
        self._core.check_open()
        if self._core.committer is None:
            raise UnavailableError("the database is open read-only")
        return self._core.committer

    def _states(self, table: str | None) -> list[TableState]:
        """The table of that name, or all there are."""
        if table is None:
            return sorted(_living(self._core), key=lambda state: state.entry.name)
        with Transaction(self._core, self._core.newest_ts(), read_only=True) as txn:
            return [txn.state_of(table)]

    @contextmanager
    def _pinned(self) -> Iterator[int]:
        """`Core.pinned`, for read-only openers too: publish the pin, then look at the floor."""
        while True:
            self._refresh()
            with self._core.pinned() as ts:
                self._refresh()
                if ts >= self._core.engine.floor:
                    yield ts
                    return

    def _refresh(self) -> None:
        """Whoever is not the owner folds what the owner has published meanwhile."""

    def _elsewhere(
        self, name: CommandName, argument: str | None, kind: Any, runner: Runner | None = None
    ) -> Any:
        """Ask the owner, if that is another process; None if it is this one."""
        self._core.check_open()
        if self._link is None or self._reader is None:
            return None
        if not isinstance(runner, (LocalRunner, type(None))):
            raise UsageError(f"{name}: Spark works for the process that owns the database")
        return self._link.ask(Command(name, argument), kind)

    def _maintain(self, l0_bytes: int) -> None:
        """Start what keeps the database healthy while it is open for writing."""
        core, log, checkpoints = self._core, self._log, self._checkpoints
        committer = core.committer
        assert committer is not None
        assert checkpoints is not None
        self._mover = mover = Mover(core, l0_bytes)
        checkpoints.flush = lambda state: mover.flush([state])
        self._collector = Collector(core, committer, self._files, drop_log=checkpoints.drop_log)
        if self._named_us is not None:  # before the first GC
            self._collector.keep_for(self._named_us)
            self._named_us = None
        self._compactor = Compactor(core, self._gatherer)
        if not core.options.background:
            return
        background = Background(self._clock, lambda: not core.closed and log.failed is None)
        background.add("move", mover.step)
        background.add("checkpoint", checkpoints.step)
        background.add("collect", self._collector.step)
        self._mover.pressure.wake = background.wake
        committer.after_tidy = self._mover.pressure.after_commit
        background.start(self)
        self._background = background
        if self._compactor is not None:
            # A thread of its own: a large merge must not keep rows from leaving L0.
            pace = Pace(self._compactor, partial(_living, core), self._clock)
            self._merging = Background(self._clock, lambda: not core.closed and log.failed is None)
            self._merging.add("compact", pace.step)
            self._merging.start(self)

    def _rest(self) -> None:
        """Stop all that: what runs is finished first. Leave little to read for the next opening."""
        if self._compactor is not None:
            self._compactor.stop()
        for background in (self._merging, self._background):
            if background is not None:
                background.stop()
        if self._mover is not None:
            self._mover.pressure.stop()
        if self._checkpoints is not None and self._log.failed is None:
            # What fails here is no loss: all of it is in the log.
            with suppress(HaloclineError, OSError):
                self._checkpoints.close()


def _living(core: Core) -> list[TableState]:
    """Tables that have not been dropped."""
    return [state for state in list(core.engine.tables.values()) if state.dropped_at == NEVER]

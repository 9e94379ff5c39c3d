"""Maintenance: what an owner does to its database, when it is asked to and in the background.

run          flush, compact, settle, build_indexes, checkpoint, gc, snapshots, health: by the rooms
             that do it
background   move, checkpoint, collect in one thread; compact and build indexes in another
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any, Final

from halocline.checkpoint import Checkpoints, Collector
from halocline.checkpoint.pins import ProcessPin
from halocline.checkpoint.snapshots import drop_snapshot, keep_snapshot
from halocline.compaction import Compactor, CompactReport, Gatherer, Plan, Runner
from halocline.compaction.indexes import IndexBuilder
from halocline.compaction.pace import Pace
from halocline.database.health import Health, examine
from halocline.database.opening import readable
from halocline.database.role import Setting
from halocline.errors import HaloclineError, UnavailableError, UsageError
from halocline.ids import NEVER
from halocline.mover import Background, Mover
from halocline.node.wire import Command
from halocline.options import DURATION_MAX
from halocline.read.scan import take_plan, why_inexact
from halocline.rows import TableState
from halocline.txn import Committer, Core, Transaction

SETTLE_TRIES: Final = 8


class Maintenance:
    """The maintenance of one owner, from its opening to its end."""

    def __init__(
        self,
        setting: Setting,
        core: Core,
        committer: Committer,
        checkpoints: Checkpoints,
        retention_us: int | None,
    ) -> None:
        """Start what keeps the database healthy. A retention time that is named is the database's
        from now on."""
        self._path, self._files = setting.path, setting.files
        self._core, self._committer = core, committer
        self.checkpoints = checkpoints
        self.mover = mover = Mover(core, setting.l0_bytes)
        checkpoints.flush = lambda state: mover.flush([state])
        self.collector = Collector(core, committer, setting.files, drop_log=checkpoints.drop_log)
        if retention_us is not None:  # before the first GC
            self.collector.keep_for(retention_us)
        self.gatherer = Gatherer()
        self.compactor = Compactor(core, self.gatherer)
        self.builder = IndexBuilder(core, partial(_living, core), setting.clock)
        self.background: Background | None = None
        self.merging: Background | None = None
        if core.options.background:
            self._start(setting)

    def _start(self, setting: Setting) -> None:
        core, log = self._core, self._committer.log

        def usable() -> bool:
            return not core.closed and log.failed is None

        self.background = background = Background(setting.clock, usable)
        background.add("publish", log.mend_page)
        background.add("move", self.mover.step)
        background.add("checkpoint", self.checkpoints.step)
        background.add("collect", self.collector.step)
        self.mover.pressure.wake = background.wake
        self._committer.after_tidy = self.mover.pressure.after_commit
        background.start(self)
        # A thread of its own: a large merge must not keep rows from leaving L0.
        pace = Pace(self.compactor, partial(_living, core), setting.clock)
        self.merging = Background(setting.clock, usable)
        self.merging.add("compact", pace.step)
        self.merging.add("index", self.builder.step)
        self.merging.start(self)

    def run(self, command: Command) -> Any:
        """Carry out what this process, or another, asks for; returns the report."""
        argument = command.argument
        with readable(self._path):
            match command.name:
                case "flush":
                    return self.mover.flush(self._states(argument))
                case "compact":
                    return self.compact(argument)
                case "settle":
                    return self.settle(argument)
                case "checkpoint":
                    return self.checkpoints.run()
                case "gc":
                    return self.collector.run()
                case "health":
                    return self.health()
                case "snapshot" if argument is not None:
                    return keep_snapshot(self._committer, argument)
                case "drop_snapshot" if argument is not None:
                    drop_snapshot(self._committer, argument)
                    return True
                case "build_indexes":
                    return self.builder.build(self._states(argument))
                case "keep_for" if argument is not None:
                    self.collector.keep_for(_retention(argument))
                    return True
        raise UsageError(f"{command.name} needs a name")

    def compact(
        self, table: str | None, runner: Runner | None = None, plan: Plan | None = None
    ) -> CompactReport:
        """Bring a table, or all, into shape, here or by a runner of the caller's."""
        # What ends while it is being read must not be collected.
        with readable(self._path), self._core.pinned():
            return self.compactor.run(self._states(table), runner, plan)

    def settle(self, table: str | None, runner: Runner | None = None) -> int:
        """Bring a table, or all, into a state that files alone tell; returns its timestamp."""
        why = ""
        for _ in range(SETTLE_TRIES):
            with readable(self._path), self._core.pinned():
                states = self._states(table)
                self.mover.flush(states)
                report = self.compactor.run(states, runner, settle=True)
            with readable(self._path), self._core.pinned() as ts:
                reasons = {s.entry.name: why_inexact(s, take_plan(s, ts)) for s in states}
            why = ", ".join(f"{name}: {reason}" for name, reason in reasons.items() if reason)
            if not why:
                return ts
            large = [one.name for one in report.tables if one.too_large and reasons[one.name]]
            if large:
                raise UnavailableError(
                    f"{large[0]} has objects above compact_local_bytes with rows that have ended: "
                    f"run hs.settle(session, db, {large[0]!r}) on Spark"
                )
        raise UnavailableError(f"others change what is being settled; {why}")

    def health(self) -> Health:
        threads = [one for one in (self.background, self.merging) if one is not None]
        troubles = {name: why for one in threads for name, why in one.troubles.items()}
        failed = self._committer.log.failed
        if failed is not None:
            troubles["log"] = f"{type(failed).__name__}: {failed}; close the database and open it"
        else:
            troubles |= self._place_troubles()
        horizon, others = None, list[ProcessPin]()
        try:
            horizon, others = self.collector.horizon(), self.collector.pins()
        except (HaloclineError, OSError) as error:  # above all, a folder that is not there any more
            troubles["folder"] = str(error)
        with self._core.pinned() as ts, readable(self._path):
            return examine(
                self._core,
                self.gatherer,
                ts,
                l0_budget_bytes=self.mover.pressure.budget_bytes,
                horizon=horizon,
                tail_bytes=self.checkpoints.tail_bytes(),
                fresh_bytes=self.checkpoints.bytes_since(),
                troubles=troubles,
                others=others,
            )

    def _place_troubles(self) -> dict[str, str]:
        """What the next commit would meet: the folder or the log file is not where it was."""
        for name, check in (
            ("folder", self._files.check_root),
            ("log", self._committer.log.check_place),
        ):
            try:
                check()
            except OSError as error:
                return {name: str(error)}
        return {}

    def rest(self) -> None:
        """Stop all that: what runs is finished first. Leave little to read for the next opening."""
        self.compactor.stop()
        self.builder.stop()
        for background in (self.merging, self.background):
            if background is not None:
                background.stop()
        self.mover.pressure.stop()
        if self._committer.log.failed is None:
            # What fails here is no loss: all of it is in the log.
            with suppress(HaloclineError, OSError):
                self.checkpoints.close()

    def _states(self, table: str | None) -> list[TableState]:
        """The table of that name, or all there are."""
        if table is None:
            return sorted(_living(self._core), key=lambda state: state.entry.name)
        with Transaction(self._core, self._core.newest_ts(), read_only=True) as txn:
            return [txn.state_of(table)]


def _retention(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) <= DURATION_MAX * 1e6):
        raise UsageError(f"{text[:40]!r} is not a retention time")
    return int(text)


def _living(core: Core) -> list[TableState]:
    """Tables that have not been dropped."""
    return [state for state in list(core.engine.tables.values()) if state.dropped_at == NEVER]

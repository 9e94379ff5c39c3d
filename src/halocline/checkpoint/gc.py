"""Garbage collection: raise the floor, then free what no snapshot at or above it can see.

    horizon --FLOOR record, durable--> floor --pins read again--> bound
                                                                    |
        versions in L0, catalog, tokens, times <--------------------|
        entries of ended objects leave their tables <---------------'
        their files, and those of dead jobs, are deleted

The floor never falls, whatever retention is set later or the clock does: it is logged before
anything is dropped, and rises only. It rises under the commit lock, where named snapshots are taken
too. A reader publishes its pin and then looks at the floor; we publish the floor and then look at
the pins. So either the reader has seen the new floor, or we see its pin: then the floor lies above
a snapshot that is open, and the bound below it. Everything that is dropped goes by the bound.

Why a crash leaves nothing wrong. The floor is durable before an entry is forgotten, entries are
forgotten before files go. What a crash leaves is a file that nothing refers to, or an entry that
ended below the floor and whose file is gone: no reader may ask for it, replay forgets it again
(`settle`), and the next sweep removes the file.

Invariants
- Nothing is removed that a snapshot at or above the bound can see, or a live job may commit.
- A missing file is no error here: another sweep was faster, or a crash came between.

Not here: which files a sweep may take (sweep.py), who holds the horizon (horizon.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from threading import Lock

from halocline.catalog.entries import ObjectEntry
from halocline.checkpoint.horizon import Holder, find_holders, horizon_of
from halocline.checkpoint.leases import read_leases
from halocline.checkpoint.pins import EVERYTHING, ProcessPin, read_pins
from halocline.checkpoint.report import GcReport, Kept
from halocline.checkpoint.sweep import Verdict, end_lapsed_jobs, judge, list_files
from halocline.errors import UnavailableError
from halocline.ids import NEVER
from halocline.log.record import FLOOR, encode_body
from halocline.options import parse_duration
from halocline.rows.system import FloorNode
from halocline.rows.undo import collect, forget_objects
from halocline.store import Files
from halocline.store.files import TEMPORARY
from halocline.txn import Committer, Core
from halocline.txn.jobs import give_up

STEP_S = 30.0
"""How often the background looks whether time has made something collectable."""
SWEEP_S = 600.0
"""How often it lists the object store."""
FOREIGN_MAX = 20
"""Files of others that a report names one by one."""


class Collector:
    """The garbage collector of one owner."""

    def __init__(
        self,
        core: Core,
        committer: Committer,
        files: Files,
        drop_log: Callable[[], int] | None = None,
    ) -> None:
        self._core = core
        self._committer = committer
        self._files = files
        self._drop_log = drop_log
        """Deletes log files behind the checkpoint; returns how many."""
        self._opened = (core.engine.wall_us or core.clock.wall_us(), core.clock.monotonic())
        self._turn = Lock()
        self._all_pinned = False
        self._next_step = self._next_sweep = 0.0
        self._settle()

    def run(self) -> GcReport:
        """Free all that can be freed now."""
        with self._turn:
            try:
                return self._run(sweep=True)
            except UnavailableError:
                # A full disk has no room even for the floor: free what is below the old one first.
                if not self._free_dead():
                    raise
                return self._run(sweep=True)

    def step(self) -> GcReport | None:
        """Collect now and then, for the background; None when it is not time."""
        now = self._core.clock.monotonic()
        if now < self._next_step or not self._turn.acquire(blocking=False):
            return None
        try:
            self._next_step = now + STEP_S
            sweep = now >= self._next_sweep
            if sweep:
                self._next_sweep = now + SWEEP_S
            engine = self._core.engine
            if not sweep and self.horizon() <= engine.bound:
                return None
            return self._run(sweep=sweep)
        finally:
            self._turn.release()

    def keep_for(self, retention_us: int) -> None:
        """Set how long the past stays readable from now on, for later owners too."""
        committer, engine = self._committer, self._core.engine
        with committer.lock:
            if engine.retention_us == retention_us:
                return
            committer.check_running()
            node = encode_body(FloorNode(floor=engine.floor, retention_us=retention_us))
            try:
                order = committer.append_system(FLOOR, node)
            except UnavailableError:
                # A full disk: GC may free it, by the new time. The next checkpoint writes it down.
                engine.retention_us = retention_us
                return
            engine.retention_us = retention_us
        committer.log.sync(order)

    def horizon(self) -> int:
        """The oldest timestamp that must stay readable now."""
        return horizon_of(self._holders(self.pins()))

    def _run(self, *, sweep: bool) -> GcReport:
        core, committer, engine = self._core, self._committer, self._core.engine
        committer.check_running()
        listed, unlisted = self._list() if sweep else ([], [])  # first of all: see sweep.py
        holders = self._raise_floor()
        bound = engine.bound
        versions = sum(collect(s, bound, committer.lock) for s in list(engine.tables.values()))
        ended = self._forget_objects(bound)
        tables, orphans = self._forget_tables(bound)
        ended += orphans
        now_us = core.clock.wall_us()
        with committer.lock:
            engine.times = engine.times.since(bound)
        token_us = int(parse_duration(engine.options.token_retention) * 1e6)
        tokens = engine.tokens.expire(self._surely_us(now_us) - token_us)
        give_up(committer, ())
        end_lapsed_jobs(committer, now_us)
        if self._all_pinned:
            listed = []  # somebody may be loading a checkpoint that we would take for garbage
        verdict = judge(committer, {*listed, *(entry.key for entry in ended)})
        files, freed, stuck = self._delete(verdict.dead, ended)
        return GcReport(
            floor=engine.floor,
            versions=versions,
            tables=tables,
            tokens=tokens,
            objects=len(ended),
            files=files,
            bytes_freed=freed,
            log_files=self._drop_log() if self._drop_log is not None else 0,
            kept=(*self._held(holders), *_left(verdict), *unlisted, *stuck),
        )

    def _surely_us(self, now_us: int) -> int:
        """The wall clock, unless it is ahead of what the last owner saw plus the time since.

        A clock that is years ahead must not make us forget tokens, for they keep writes from
        happening twice. So time passes for them only while the database is open.
        """
        wall_us, began = self._opened
        return min(now_us, wall_us + int((self._core.clock.monotonic() - began) * 1e6))

    def _free_dead(self) -> int:
        """Delete files that need no word in the log to go; returns how many went."""
        self._raise_bound()
        listed, _ = self._list()
        ended = self._forget_objects(self._core.engine.bound)
        if self._all_pinned:
            listed = []
        verdict = judge(self._committer, {*listed, *(entry.key for entry in ended)})
        return self._delete(verdict.dead, ended)[0]

    def _list(self) -> tuple[list[str], list[Kept]]:
        """All files in the store. While it is out of reach, memory can be freed all the same."""
        try:
            return list_files(self._core.engine.shelf.objects), []
        except OSError as error:
            return [], [Kept("files of dead jobs", f"the store cannot be listed: {error}")]

    def _raise_floor(self) -> list[Holder]:
        """Raise the floor to the horizon, durably, then the bound; returns who holds them."""
        committer, engine = self._committer, self._core.engine
        pins = self.pins()
        order = 0
        with committer.lock:
            committer.check_running()
            holders = self._holders(pins)
            floor = horizon_of(holders)
            if floor > engine.floor:
                node = encode_body(FloorNode(floor=floor))
                order = committer.append_system(FLOOR, node, last=True)
                engine.floor = floor
        if order:
            committer.log.sync(order)
        self._raise_bound()
        return holders

    def _raise_bound(self) -> None:
        """Lower the bound to pins that were set before the new floor could be seen."""
        engine = self._core.engine
        pins = [pin.ts for pin in self.pins()]
        self._all_pinned = EVERYTHING in pins
        engine.bound = min([engine.floor, *list(self._core.pins.values()), *pins])

    def pins(self) -> list[ProcessPin]:
        """Snapshots that others hold: with a lock, or with a lease."""
        return [*read_pins(self._files), *read_leases(self._files, self._core.clock)]

    def _holders(self, pins: Sequence[ProcessPin]) -> list[Holder]:
        core = self._core
        return find_holders(
            core.engine,
            list(core.pins.values()),
            pins,
            until_us=core.clock.wall_us() - core.engine.retention_us,
            visible_ts=self._committer.log.visible_ts,
        )

    def _settle(self) -> None:
        """After recovery: entries and tables that GC had forgotten are forgotten again."""
        self._raise_bound()
        self._forget_objects(self._core.engine.bound)
        self._forget_tables(self._core.engine.bound)

    def _forget_objects(self, bound: int) -> list[ObjectEntry]:
        engine, lock = self._core.engine, self._committer.lock
        ended: list[ObjectEntry] = []
        for state in list(engine.tables.values()):
            ended += forget_objects(state, bound, lock)
        return ended

    def _forget_tables(self, bound: int) -> tuple[int, list[ObjectEntry]]:
        """Forget tables that were dropped at or before the bound, with all their objects."""
        core, engine = self._core, self._core.engine
        gone = engine.catalog.compact(bound)
        orphans: list[ObjectEntry] = []
        for entry in gone:
            state = engine.tables.get(entry.id)
            if state is not None:
                orphans += state.shape.tier.everything()
        core.forget(entry.id for entry in gone)
        return len(gone), orphans

    def _delete(
        self, keys: Iterable[str], ended: Iterable[ObjectEntry]
    ) -> tuple[int, int, list[Kept]]:
        """Delete these files: how many were there, their bytes, and what could not be deleted."""
        shelf = self._core.engine.shelf
        sizes: dict[str, int] = {}
        for entry in ended:
            sizes[entry.key] = entry.stats.size_bytes
            if entry.file is not None:
                shelf.reader.forget(entry.file)
        count = freed = 0
        stuck = []
        for key in keys:
            try:
                size = 0 if key.endswith(TEMPORARY) else sizes.get(key) or shelf.objects.size(key)
                shelf.objects.delete(key)
            except FileNotFoundError:
                continue
            except OSError as error:
                stuck.append(Kept(key, f"cannot be deleted: {error}"))
                continue
            count += 1
            freed += size
        return count, freed, stuck

    def _held(self, holders: Sequence[Holder]) -> list[Kept]:
        """The holders that keep something from being collected, the oldest snapshot first."""
        engine = self._core.engine
        ended = [
            entry
            for state in list(engine.tables.values())
            for entry in state.shape.tier.everything()
            if entry.deleted_at < NEVER
        ]
        kept = []
        for holder in sorted(holders, key=lambda one: one.ts):
            held = [entry for entry in ended if entry.deleted_at > holder.ts]
            size = sum(entry.stats.size_bytes for entry in held)
            if held:
                what = f"{len(held)} ended objects, {size:,} bytes"
                kept.append(Kept(what, f"{holder.reason}, from {holder.ts} on"))
            elif holder.ts < self._committer.log.visible_ts:
                kept.append(Kept(f"history from {holder.ts} on", holder.reason))
        return kept


def _left(verdict: Verdict) -> list[Kept]:
    kept = [Kept(key, "not a file of this database") for key in verdict.foreign[:FOREIGN_MAX]]
    more = len(verdict.foreign) - FOREIGN_MAX
    if more > 0:
        kept.append(Kept(f"{more} more files", "not files of this database"))
    if verdict.live:
        kept.append(Kept(f"{len(verdict.live)} files", "their jobs are running"))
    return kept

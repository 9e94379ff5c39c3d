"""Replica: the state of a process that follows the log of an owner, for reading.

    log files, or a server --Follower--> fold --> engine --> core: what transactions work with

A reader and a compute node have one each. While an owner is at work, only what it has published
counts: what lies behind that may still be lost. A log that nobody owns counts up to its last valid
entry, as it will for its next owner.

It begins with the newest checkpoint. A replica that looks so seldom that the owner has deleted the
log it wanted next begins again with the newest: `engine` and `core` are then others, and
transactions that are open keep the old.

Invariants
- `core` is that of `engine` whenever nobody is inside `refresh`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Lock as ThreadLock

from halocline.checkpoint import Pins
from halocline.checkpoint.restore import join, restore
from halocline.clock import Clock
from halocline.errors import HaloclineError, SnapshotExpiredError, UnavailableError
from halocline.ids import NEVER
from halocline.log import Follower, Place, Recovery
from halocline.log.follow import LogGone
from halocline.log.published import Published
from halocline.log.recover import read_log
from halocline.objects import Shelf
from halocline.options import Options
from halocline.read.duck import Duck
from halocline.rows import EngineState
from halocline.rows.row_run import RowRun
from halocline.rows.tidy import tidy
from halocline.rows.trim import may_trim, trim
from halocline.rows.undo import collect, forget_objects
from halocline.store import Files
from halocline.txn import Core

OWNER_STARTS_TRIES = 500
EXPLAIN_S = 0.1
PAGE_S = 0.5
"""An owner looks as often whether others still find what it publishes. So often, too, a replica
looks whether its folder is still where it was opened."""
PAGE_TRIES = 300


class Replica:
    """What a process that is not the owner has of a database; `refresh` brings it up to date."""

    def __init__(
        self,
        files: Files,
        path: str,
        options: Options,
        clock: Clock,
        shelf: Shelf,
        duck: Duck,
        pins: Pins,
    ) -> None:
        self._files = files
        self._path = path
        self.pins = pins
        """What this process reads."""
        self._options = options
        self._clock = clock
        self._shelf = shelf
        self._lock = ThreadLock()
        self._look: Callable[[], None] | None = getattr(files, "look", None)
        """Asks an owner far away what is new."""
        self._torn = False
        """A fold was broken off (Ctrl-C): what it left cannot be gone on with."""
        self._page_due = 0.0
        self._freed: EngineState | None = None
        self._freed_floor = 0
        """The state, and its floor, that expired things were last taken out of."""
        shelf.reader.vanished = self._explain
        self.engine, self._follower = self._begin()
        self.core = Core(self.engine, None, duck, clock, pins)
        """What transactions that begin now work with."""
        self.refresh()

    def _begin(self) -> tuple[EngineState, Follower]:
        files, options = self._files, self._options

        def find_log(start: Place | None) -> Recovery:
            return read_log(files, options, start)

        with self.pins.everything():
            for _ in range(OWNER_STARTS_TRIES):
                if not files.is_locked("LOCK"):
                    restored = restore(files, options, self._shelf, find_log)
                    return restored.engine, Follower(files, after=restored.recovery)
                if Follower(files).is_published():
                    joined = join(files, options, self._shelf)
                    if joined is not None:
                        return joined
                self._clock.sleep(0.01)
        raise UnavailableError("the database is just being opened by another process: try again")

    def is_current(self) -> bool:
        """Is there nothing to fold? 1.5 us; of an owner far away only `refresh` finds out."""
        now = self._clock.monotonic()
        if now >= self._page_due:
            if self._look is None:
                self._files.check_root()  # before the next look is put off: it is told each time
            self._page_due = now + PAGE_S
            self._follower.look_for_page()
        return self._look is None and self._freed is not None and self._follower.is_current()

    def ahead(self) -> Published | None:
        """The newest position, if one may begin there and fold up to it later (lazy_begin.py)."""
        if self._look is not None or self._freed is None or self._torn:
            return None
        return self._follower.ahead()

    def refresh(self) -> None:
        """Fold everything that became durable since the last look; free what has expired.

        UnavailableError when the log cannot be read.
        """
        if self.is_current() and self.core.engine is self.engine:
            return  # the second half: another thread may just have loaded a new state
        try:
            self._fold()
        except HaloclineError:
            raise  # one that is both says by itself what there is to say
        except OSError as error:
            text = f"{self._path} cannot be read or opened: {error}"
            raise UnavailableError(text) from error

    def close(self) -> None:
        """Let go of the log and of the pins. Whoever made the replica does so."""
        with self._lock:
            self._follower.close()
        self.pins.close()

    def _fold(self) -> None:
        if self._look is not None:
            self._look()
            known = self._freed is not None and self.core.engine is self.engine
            if known and self._follower.is_current():
                return
        with self._lock:
            try:
                if self._torn:
                    raise LogGone(0)
                self._torn = True
                engine = self.engine
                run = RowRun(engine)
                self._await_page()
                for entry in self._follower.poll(run.flush):
                    run.fold(entry)
            except LogGone:
                self._follower.close()
                self.engine, self._follower = self._begin()
            self._torn = False
            engine = self.engine
            tidy_all(engine)
            if self.core.engine is not engine:
                # Transactions that are open keep the old core, and with it what they see.
                self.core = self.core.renewed(engine)
                if self.core.committer is not None:
                    self.core.committer.engine = engine
            if self._freed is not engine or self._freed_floor != engine.floor:
                self._freed, self._freed_floor = engine, engine.floor
                self._free()

    def _await_page(self) -> None:
        """The published position may have been taken away: its owner says it again."""
        for _ in range(PAGE_TRIES):
            if self._follower.is_published() or not self._files.is_locked("LOCK"):
                return
            self._clock.sleep(0.01)
        text = f"{self._path}: `published` was removed or replaced, and its owner does not mend it"
        raise UnavailableError(text)

    def _free(self) -> None:
        """What GC does for the owner, in memory only. The floor is known, now look at the pins."""
        engine, nobody = self.engine, ThreadLock()
        engine.bound = bound = min([engine.floor, *list(self.pins.values())])
        for state in list(engine.tables.values()):
            collect(state, bound, nobody, follows=True)
            for entry in forget_objects(state, bound, nobody):
                if entry.file is not None:
                    engine.shelf.reader.forget(entry.file)
        self.core.forget([entry.id for entry in engine.catalog.compact(bound)])

    def _explain(self, key: str) -> None:
        """A file is missing: SnapshotExpiredError if the owner was right to delete it.

        That happens to a reader that could not publish its pins, and to no other.
        """
        if self._lock.acquire(timeout=EXPLAIN_S):  # or another thread is about to find out
            self._lock.release()
            with suppress(HaloclineError, OSError):
                self.refresh()
        oldest = min(list(self.pins.values()), default=NEVER)
        if oldest < self.engine.floor:
            raise SnapshotExpiredError(oldest, self.engine.floor)


def tidy_all(engine: EngineState) -> None:
    """Freeze, merge and trim what a replay has left. Only the caller changes the tables meanwhile.

    Nobody has begun to write, so what has moved is needed in memory by no commit. Tables in which
    nothing has happened are not looked at: a follower does this before every transaction.
    """
    while engine.folded:
        state = engine.tables.get(engine.folded.pop())
        if state is not None:
            if state.owes:
                tidy(state, ThreadLock())
            if may_trim(state, engine.last_ts):
                trim(state, engine.last_ts, ThreadLock())

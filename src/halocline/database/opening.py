"""Opening a database: directory, lock, recovery, and the two ways to stay up to date.

Owner      holds the lock, recovers, starts an epoch, commits
Follower   read-only: folds what the owner has published, or what a closed database left

Both begin with the newest checkpoint and fold the log behind it (checkpoint/restore.py).
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock as ThreadLock
from typing import cast

from halocline.checkpoint import Checkpoints, PinFile, Pins
from halocline.checkpoint.pins import read_pins
from halocline.checkpoint.pointer import POINTER_PATH
from halocline.checkpoint.restore import join, restore
from halocline.clock import Clock
from halocline.errors import (
    CorruptionError,
    HaloclineError,
    NotFoundError,
    SnapshotExpiredError,
    UnavailableError,
    UsageError,
)
from halocline.ids import NEVER
from halocline.log import (
    Follower,
    Log,
    LogGone,
    Place,
    Recovery,
    read_log,
    recover,
)
from halocline.log.published import Published, claim
from halocline.node import NobodyError
from halocline.objects import Shelf
from halocline.options import Durability, Options
from halocline.rows import EngineState
from halocline.rows.row_run import RowRun
from halocline.rows.tidy import tidy
from halocline.rows.trim import may_trim, trim
from halocline.rows.undo import collect, forget_objects
from halocline.store import (
    Files,
    LocalFiles,
    LocalObjects,
    Lock,
    LockedError,
    MemoryObjects,
    Objects,
)
from halocline.store.files import HOLDER_BYTES_MAX
from halocline.txn import Committer

_logger = logging.getLogger("halocline")

LOG_FILE = re.compile(r"\d{8,}\.log|" + Path(POINTER_PATH).name)
OWNER_STARTS_TRIES = 500
EXPLAIN_S = 0.1
KNOWN = frozenset(
    {"LOCK", "endpoint", "published", "log", "pins", "spill", "staging", "objects", "tls"}
)


def local_files(path: str | os.PathLike[str], *, read_only: bool) -> LocalFiles:
    """The database directory, made if it may be; UsageError when it is something else."""
    root = _root(path)
    if root.exists() and not root.is_dir():
        raise UsageError(f"{root} is a file, not a database directory")
    names = {entry.name for entry in root.iterdir()} if root.is_dir() else set()
    in_log = {entry.name for entry in (root / "log").iterdir()} if "log" in names else set()
    is_ours = any(LOG_FILE.fullmatch(name) for name in in_log)
    known = all(name.removesuffix(".tmp") in KNOWN for name in names)
    if not is_ours and not (known and all(name.endswith(".tmp") for name in in_log)):
        raise UsageError(f"{root} is not a Halocline database: it holds other files")
    if read_only and not is_ours:
        raise NotFoundError("database", str(root))
    return LocalFiles(root)


def shelf_for(files: Files, objects: Objects | None, memory_bytes: int) -> Shelf:
    """The object store of a database: beside its log, unless the caller brings another."""
    # A store that crashes on demand has objects of its own, in the same sequence of operations.
    objects = objects or getattr(files, "objects", None)
    if objects is not None:
        return Shelf(objects, memory_bytes=memory_bytes, root=getattr(objects, "folder", ""))
    if isinstance(files, LocalFiles):
        folder = str(Path(files.root, "objects"))
        store = LocalObjects(files, "objects")
        check_root = files.check_root
        return Shelf(store, memory_bytes=memory_bytes, root=folder, check_root=check_root)
    return Shelf(MemoryObjects(), memory_bytes=memory_bytes)


def spill_folder(files: Files) -> str:
    """Where queries may put what outgrows memory; empty when the database is not on a disk."""
    return str(Path(files.root, "spill")) if isinstance(files, LocalFiles) else ""


def make_folder(files: Files, path: str) -> None:
    """Make a folder inside the database, in the very one that was opened."""
    files.makedirs(os.path.relpath(path, cast(LocalFiles, files).root))


def sweep_spill(files: Files) -> None:
    """Folders that compute nodes spilled into and left behind when they were killed.

    They are named by process. A node has its pin before its first query makes the folder: one that
    is listed, and has no pin now, belongs to nobody.
    """
    if not isinstance(files, LocalFiles):
        return
    folders = [name for name in files.list("spill") if "-" in name]
    alive = {pin.pid for pin in read_pins(files)} if folders else set()
    for folder in folders:
        pid = folder.partition("-")[0]
        if pid.isdecimal() and not alive & {0, int(pid)}:
            files.remove_tree("spill", folder)


def _root(path: str | os.PathLike[str]) -> Path:
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise UsageError(f"a database is opened by the path of its directory, not {path!r}")
    if "://" in str(path):
        raise UsageError(f"{path!r} is a URI: the log must be on a local disk, give a directory")
    try:
        str(Path(path).resolve()).encode()
    except UnicodeEncodeError:
        text = f"{path!r} is not a path in UTF-8: DuckDB and Spark could not open files there"
        raise UsageError(text) from None
    return Path(path).absolute()


def lock_for_writing(files: Files, clock: Clock, *, serve: bool) -> Lock:
    """The one writer's lock; NobodyError that names the holder and says whether it serves."""
    holder = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since_us": clock.wall_us(),
        "serve": serve,
    }
    try:
        files.makedirs("log")
        folder = list(files.identity()) if isinstance(files, LocalFiles) else None
        before = _folder_before(files)
        lock = files.lock("LOCK", json.dumps({**holder, "folder": folder}).encode())
    except LockedError as error:
        raise NobodyError(*_describe(error.holder)) from None
    # The inode alone: the number of a device may be another after the machine was started again.
    if folder is not None and before is not None and before[1] != folder[1]:
        _logger.warning(
            "%s is a copy of another folder: it goes on as a database of its own, and neither "
            "knows what is committed in the other",
            cast(LocalFiles, files).root,
        )
    return lock


def _folder_before(files: Files) -> tuple[int, int] | None:
    """Device and inode of the folder that was locked with this very file the last time."""
    try:
        device, inode = json.loads(files.read("LOCK", HOLDER_BYTES_MAX))["folder"]
    except (OSError, CorruptionError, ValueError, LookupError, TypeError):
        return None
    return device, inode


def start_owner(
    files: Files, options: Options, clock: Clock, durability: Durability, shelf: Shelf
) -> tuple[Committer, Checkpoints]:
    """Recover, then start a new epoch. Caller holds the lock."""

    def find_log(start: Place | None) -> Recovery:
        return recover(files, options=options, clock=clock, start=start)

    claim(files)
    replay, recovery, places = restore(files, options, shelf, find_log)
    engine = replay.engine
    tidy_all(engine)
    log = Log.start(files, recovery, options=options, clock=clock, durability=durability)
    try:
        log.places.learn(places, engine.last_ts)
        log.set_visible(engine.last_ts)
        engine.skip_rowids(engine.rowid_ceiling)
        committer = Committer(engine, log, clock)
        committer.open_epoch()
        checkpoints = Checkpoints(committer, files)
        if replay.root is not None:
            checkpoints.adopt(replay.root, replay.key, replay.tiers)
    except BaseException:
        log.close()
        raise
    return committer, checkpoints


def reader_pins(files: Files, clock: Clock) -> Pins:
    """Pins that the owner can see; of a directory that we may not write to, pins of our own."""
    try:
        return Pins(PinFile(files, clock, os.getpid()))
    except OSError:
        return Pins(None)


@contextmanager
def readable(path: str) -> Iterator[None]:
    """An error of the operating system while opening or reading becomes "try later"."""
    try:
        yield
    except HaloclineError:
        raise  # one that is both says by itself what there is to say
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: str, error: OSError) -> UnavailableError:
    """What callers are told."""
    return UnavailableError(f"{path} cannot be read or opened: {error}")


class Reader:
    """A read-only opener's state: folds what is new whenever a transaction begins.

    While an owner is at work, only what it has published counts: what lies behind that may still
    be lost. A log that nobody owns counts up to its last valid entry, as it will for its next
    owner.

    It begins with the newest checkpoint. One that looks so seldom that the owner has deleted the
    log it wanted next begins again with the newest: `engine` is then another one, and transactions
    that are open keep the old.
    """

    def __init__(
        self, files: Files, options: Options, clock: Clock, shelf: Shelf, pins: Pins
    ) -> None:
        self._files = files
        self._pins = pins
        self._options = options
        self._clock = clock
        self._shelf = shelf
        self._lock = ThreadLock()
        self._look: Callable[[], None] | None = getattr(files, "look", None)
        """Asks an owner far away what is new."""
        self._torn = False
        """A fold was broken off (Ctrl-C): what it left cannot be gone on with."""
        self._freed: EngineState | None = None
        self._freed_floor = 0
        """The state, and its floor, that expired things were last taken out of."""
        shelf.reader.vanished = self._explain
        self.engine, self._follower = self._begin()
        self.refresh()

    def _begin(self) -> tuple[EngineState, Follower]:
        files, options = self._files, self._options

        def find_log(start: Place | None) -> Recovery:
            return read_log(files, options, start)

        with self._pins.everything():
            for _ in range(OWNER_STARTS_TRIES):
                if not files.is_locked("LOCK"):
                    restored = restore(files, options, self._shelf, find_log)
                    return restored.engine, Follower(files, options, after=restored.recovery)
                if Follower(files, options).is_published():
                    joined = join(files, options, self._shelf)
                    if joined is not None:
                        return joined
                self._clock.sleep(0.01)
        raise UnavailableError("the database is just being opened by another process: try again")

    @property
    def visible_ts(self) -> int:
        return self.engine.last_ts

    def is_current(self) -> bool:
        """Is there nothing to fold? 0.7 us; of an owner far away only `refresh` finds out."""
        return self._look is None and self._freed is not None and self._follower.is_current()

    def ahead(self) -> Published | None:
        """The newest position, if one may begin there and fold up to it later (node/ahead.py)."""
        if self._look is not None or self._freed is None or self._torn:
            return None
        return self._follower.ahead()

    def refresh(self) -> list[int]:
        """Fold everything that became durable since the last look; free what has expired.

        Returns the ids of tables that were forgotten.
        """
        if self._look is not None:
            self._look()
            if self._freed is not None and self._follower.is_current():
                return []
        with self._lock:
            try:
                if self._torn:
                    raise LogGone(0)
                self._torn = True
                engine = self.engine
                run = RowRun(engine)
                for entry in self._follower.poll(run.flush):
                    run.fold(entry)
            except LogGone:
                self._follower.close()
                self.engine, self._follower = self._begin()
            self._torn = False
            engine = self.engine
            tidy_all(engine)
            if self._freed is engine and self._freed_floor == engine.floor:
                return []
            self._freed, self._freed_floor = engine, engine.floor
            return self._free()

    def _free(self) -> list[int]:
        """What GC does for the owner, in memory only. The floor is known, now look at the pins."""
        engine, nobody = self.engine, ThreadLock()
        engine.bound = bound = min([engine.floor, *list(self._pins.values())])
        for state in list(engine.tables.values()):
            collect(state, bound, nobody, follows=True)
            for entry in forget_objects(state, bound, nobody):
                if entry.file is not None:
                    engine.shelf.reader.forget(entry.file)
        gone: list[int] = [entry.id for entry in engine.catalog.compact(bound)]
        for table_id in gone:
            engine.tables.pop(table_id, None)
        return gone

    def _explain(self, key: str) -> None:
        """A file is missing: SnapshotExpiredError if the owner was right to delete it.

        That happens to a reader that could not publish its pins, and to no other.
        """
        if self._lock.acquire(timeout=EXPLAIN_S):  # or another thread is about to find out
            self._lock.release()
            with suppress(HaloclineError, OSError):
                self.refresh()
        oldest = min(list(self._pins.values()), default=NEVER)
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


def _describe(holder: bytes) -> tuple[str, bool]:
    """Who has the lock, and whether it may be asked; one that has said nothing yet may."""
    try:
        facts = json.loads(holder)
        return f"process {facts['pid']} on {facts['host']}", bool(facts["serve"])
    except (ValueError, KeyError, TypeError):
        return "another process", True

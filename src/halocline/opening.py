"""Opening a database: directory, lock, recovery, and the two ways to stay up to date.

Owner      holds the lock, recovers, starts an epoch, commits
Follower   read-only: folds what the owner has published, or what a closed database left
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock as ThreadLock

from halocline.clock import Clock
from halocline.config import Durability, Options
from halocline.errors import NotFoundError, UnavailableError, UsageError
from halocline.log import Follower, Log, LogGone, read_log, recover, transactions
from halocline.log.replay import Parts
from halocline.rows import EngineState
from halocline.rows.tidy import tidy
from halocline.rows.undo import collect
from halocline.store import Files, LocalFiles, Lock, LockedError
from halocline.txn import Committer

LOG_FILE = re.compile(r"\d{8}\.log")
OWNER_STARTS_TRIES = 500
KNOWN = frozenset({"LOCK", "endpoint", "published", "log", "pins", "spill", "objects"})


def local_files(path: str | os.PathLike[str], *, read_only: bool) -> LocalFiles:
    """The database directory, made if it may be; UsageError when it is something else."""
    root = _root(path)
    if root.exists() and not root.is_dir():
        raise UsageError(f"{root} is a file, not a database directory")
    names = {entry.name for entry in root.iterdir()} if root.is_dir() else set()
    in_log = {entry.name for entry in (root / "log").iterdir()} if "log" in names else set()
    is_ours = any(LOG_FILE.fullmatch(name) for name in in_log)
    if not is_ours and not (names <= KNOWN and all(name.endswith(".tmp") for name in in_log)):
        raise UsageError(f"{root} is not a Halocline database: it holds other files")
    if read_only and not is_ours:
        raise NotFoundError("database", str(root))
    return LocalFiles(root)


def _root(path: str | os.PathLike[str]) -> Path:
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path) or "\0" in str(path):
        raise UsageError(f"a database is opened by the path of its directory, not {path!r}")
    if "://" in str(path):
        raise UsageError(f"{path!r} is a URI: the log must be on a local disk, give a directory")
    return Path(path).absolute()


def lock_for_writing(files: Files, path: str, clock: Clock) -> Lock:
    """The one writer's lock; UnavailableError that names the holder."""
    holder = {"pid": os.getpid(), "host": socket.gethostname(), "since_us": clock.wall_us()}
    try:
        files.makedirs("log")
        return files.lock("LOCK", json.dumps(holder).encode())
    except LockedError as error:
        raise UnavailableError(
            f"{path} is open for writing in {_describe(error.holder)}; "
            "close it there, or open it here with read_only=True"
        ) from None


def start_owner(
    files: Files, options: Options, clock: Clock, durability: Durability
) -> tuple[EngineState, Log, Committer]:
    """Recover, then start a new epoch. Caller holds the lock."""
    recovery = recover(files, options=options, clock=clock)
    engine = EngineState(options)
    for record in transactions(recovery.entries()):
        engine.fold_record(record)
    tidy_all(engine)
    log = Log.start(files, recovery, options=options, clock=clock, durability=durability)
    try:
        log.set_visible(engine.last_ts)
        engine.skip_rowids(engine.rowid_ceiling)
        committer = Committer(engine, log, clock)
        committer.open_epoch()
    except BaseException:
        log.close()
        raise
    return engine, log, committer


@contextmanager
def readable(path: str) -> Iterator[None]:
    """An error of the operating system while opening or reading becomes "try later"."""
    try:
        yield
    except OSError as error:
        raise UnavailableError(f"{path} cannot be read or opened: {error}") from error


class Reader:
    """A read-only opener's state: folds what is new whenever a transaction begins.

    While an owner is at work, only what it has published counts: what lies behind that may still
    be lost. A log that nobody owns counts up to its last valid entry, as it will for its next
    owner.
    """

    def __init__(self, files: Files, options: Options, clock: Clock) -> None:
        self._files = files
        self._options = options
        self._lock = ThreadLock()
        self._parts: Parts = {}
        """Parts of transactions whose last entry has not arrived yet."""
        self.engine = EngineState(options)
        self._follower = self._begin(clock)
        self.refresh()

    def _begin(self, clock: Clock) -> Follower:
        for _ in range(OWNER_STARTS_TRIES):
            if not self._files.is_locked("LOCK"):
                recovery = read_log(self._files, self._options)
                for record in transactions(recovery.entries()):
                    self.engine.fold_record(record)
                return Follower(self._files, self._options, after=recovery)
            follower = Follower(self._files, self._options)
            if follower.is_published():
                return follower
            clock.sleep(0.01)
        raise UnavailableError("the database is just being opened by another process: try again")

    @property
    def visible_ts(self) -> int:
        return self.engine.last_ts

    def refresh(self, pins: Collection[int] = ()) -> None:
        """Fold everything that became durable since the last look; free what has expired."""
        with self._lock:
            floor = self.engine.floor
            try:
                for record in transactions(self._follower.poll(), self._parts):
                    self.engine.fold_record(record)
            except LogGone:
                raise UnavailableError(
                    "the log has moved on beyond this reader: open the database again"
                ) from None
            tidy_all(self.engine)
            if self.engine.floor > floor:
                bound = min([self.engine.floor, *list(pins)])
                for state in list(self.engine.tables.values()):
                    collect(state, bound, ThreadLock())


def tidy_all(engine: EngineState) -> None:
    """Freeze and merge what a replay has left. Only the caller changes the tables meanwhile."""
    for state in engine.tables.values():
        if state.owes:
            tidy(state, ThreadLock())


def _describe(holder: bytes) -> str:
    try:
        facts = json.loads(holder)
        return f"process {facts['pid']} on {facts['host']}"
    except (ValueError, KeyError, TypeError):
        return "another process"

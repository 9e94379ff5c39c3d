"""Opening a database: directory, lock, recovery, and the two ways to stay up to date.

Owner      holds the lock, recovers, starts an epoch, commits
Follower   read-only: folds what the owner has published, or what a closed database left
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock as ThreadLock

from halocline.clock import Clock
from halocline.config import Durability, Options
from halocline.errors import NotFoundError, UnavailableError, UsageError
from halocline.log import Follower, Log, LogGone, recover, transactions
from halocline.rows import EngineState
from halocline.store import Files, LocalFiles, Lock, LockedError
from halocline.txn import Committer

KNOWN = frozenset({"LOCK", "endpoint", "published", "log", "pins", "spill", "objects"})


def local_files(path: str | os.PathLike[str], *, read_only: bool) -> LocalFiles:
    """The database directory, made if it may be; UsageError when it is something else."""
    root = Path(path).absolute()
    if root.exists() and not root.is_dir():
        raise UsageError(f"{root} is a file, not a database directory")
    if root.is_dir():
        names = set(os.listdir(root))
        if names and "log" not in names and not names <= KNOWN:
            raise UsageError(f"{root} is not a Halocline database: it holds other files")
        if read_only and "log" not in names:
            raise NotFoundError("database", str(root))
    elif read_only:
        raise NotFoundError("database", str(root))
    return LocalFiles(root)


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
    """A read-only opener's state: folds what is new whenever a transaction begins."""

    def __init__(self, files: Files, options: Options) -> None:
        self._files = files
        self._options = options
        self._lock = ThreadLock()
        self.engine = EngineState(options)
        self._follower = Follower(files, options)
        self.refresh()

    @property
    def visible_ts(self) -> int:
        return self.engine.last_ts

    def refresh(self) -> None:
        """Fold everything that became durable since the last look."""
        with self._lock:
            try:
                for record in transactions(self._follower.poll()):
                    self.engine.fold_record(record)
            except LogGone:
                raise UnavailableError(
                    "the log has moved on beyond this reader: open the database again"
                ) from None


def _describe(holder: bytes) -> str:
    try:
        facts = json.loads(holder)
        return f"process {facts['pid']} on {facts['host']}"
    except (ValueError, KeyError, TypeError):
        return "another process"

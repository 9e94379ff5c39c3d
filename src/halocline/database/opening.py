"""Opening a database: its directory, its objects, its lock, and the recovery of an owner.

Whoever opens begins with the newest checkpoint and folds the log behind it (checkpoint/restore.py).
Those who follow an owner go on with node/replica.py.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

from halocline.checkpoint import Checkpoints, PinFile, Pins
from halocline.checkpoint.leases import read_leases
from halocline.checkpoint.pins import EVERYTHING, read_pins
from halocline.checkpoint.pointer import POINTER_PATH
from halocline.checkpoint.restore import restore
from halocline.checkpoint.sweep import make_room
from halocline.clock import Clock
from halocline.errors import (
    CorruptionError,
    HaloclineError,
    NotFoundError,
    UnavailableError,
    UsageError,
)
from halocline.log import Log, Place, Recovery, recover
from halocline.log.names import path_of
from halocline.log.published import claim
from halocline.node import LockHeldError
from halocline.node.replica import tidy_all
from halocline.objects import Shelf
from halocline.options import Durability, Options
from halocline.rows import EngineState
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
from halocline.store.sharing import group_id, share
from halocline.txn import Committer

_logger = logging.getLogger("halocline")

LOG_FILE = re.compile(r"\d{8,}\.log|" + Path(POINTER_PATH).name)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
LOG_BYTES_SMALL = 16 * 1024
"""A log file for a disk that is full: enough for GC to say what it will free."""
KNOWN = frozenset({"LOCK", "endpoint", "published", "log", "pins", "spill", "objects", "tls"})


def local_files(
    path: str | os.PathLike[str], *, read_only: bool, group: str | None = None
) -> LocalFiles:
    """The database directory, made if it may be; UsageError when it is something else.

    With `group` it is shared with these users from now on.
    """
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
    if group is None:
        return LocalFiles(root, shared=None if is_ours else False)
    if read_only:
        raise UsageError("group= is for those who write: leave out read_only=True")
    number = group_id(group)
    with closing(LocalFiles(root)) as files:
        in_use = is_ours and files.is_locked("LOCK")
    share(root.resolve(), number, in_use=in_use)
    return LocalFiles(root, shared=True)


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


def drop_spill_folder(files: Files) -> None:
    """Remove the folder for what outgrows memory, unless a compute node has something in it."""
    if isinstance(files, LocalFiles):
        files.remove_empty("spill")


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
    """The one writer's lock; LockHeldError that names the holder and says whether it serves."""
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
        raise LockHeldError(*_describe(error.holder)) from None
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

    claim(files, clock)
    replay, recovery, places = restore(files, options, shelf, find_log)
    engine = replay.engine
    tidy_all(engine)
    log = _start_log(files, recovery, options, clock, durability, engine)
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


def _start_log(
    files: Files,
    recovery: Recovery,
    options: Options,
    clock: Clock,
    durability: Durability,
    engine: EngineState,
) -> Log:
    """Begin a new log file; on a full disk make room first, and be content with a small one."""

    def start(chosen: Options) -> Log:
        return Log.start(files, recovery, options=chosen, clock=clock, durability=durability)

    try:
        return start(options)
    except UnavailableError as error:
        begun = files.exists(path_of(recovery.tail.number + 1))
        if begun or getattr(error.__cause__, "errno", None) not in FULL:
            raise  # a file that was begun is for the next recovery to look at
    pins = [pin.ts for pin in [*read_pins(files), *read_leases(files, clock)]]
    if EVERYTHING not in pins:  # else somebody may be loading what we would take for garbage
        gone = make_room(engine, min([engine.floor, *pins]))
        _logger.warning("the disk is full: %d files that nothing needs were deleted", gone)
    try:
        return start(options)
    except UnavailableError:
        small = min(LOG_BYTES_SMALL, options.log_file_bytes_first)
        return start(replace(options, log_file_bytes_first=small))


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


def _describe(holder: bytes) -> tuple[str, bool]:
    """Who has the lock, and whether it may be asked; one that has said nothing yet may."""
    try:
        facts = json.loads(holder)
        return f"process {facts['pid']} on {facts['host']}", bool(facts["serve"])
    except (ValueError, KeyError, TypeError):
        return "another process", True

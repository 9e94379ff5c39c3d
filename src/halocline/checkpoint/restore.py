"""Restore: the state of a database from its newest valid checkpoint and the tail of its log.

    pointer --> newest checkpoint --> log from its start on --> engine state
        |            | damaged
        |            '--> the one before, if the log still reaches back to its start
        '--none works--> CKP entries of the log, newest first
                              '--none works--> the whole log, if it begins with file 1

All ways lead to the same state, some take longer. Only when none is left is it CorruptionError, for
the file that the best way has stumbled over. A shorter history is never an answer: whichever way is
taken, the log must reach the CKP entries of all checkpoints that the pointer names, for the pointer
is written after them.

Owner and read-only opener differ in how they come by the log, so that is given: a function from the
place where reading begins (None: the oldest file) to the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from halocline.checkpoint.load import Replay, load
from halocline.checkpoint.pointer import read_pointer
from halocline.errors import CorruptionError
from halocline.log import Follower, Place, Recovery
from halocline.log.follow import LogGone
from halocline.log.format import CKP, Entry
from halocline.log.names import log_numbers, path_of
from halocline.log.record import ROOT, decode_body, decode_record
from halocline.objects import Shelf
from halocline.objects.stats import object_path
from halocline.options import Options
from halocline.rows.engine import EngineState
from halocline.rows.system import CheckpointNode
from halocline.store import Files


class Restored(NamedTuple):
    """A database as its log and checkpoints have it."""

    replay: Replay
    recovery: Recovery
    places: list[tuple[int, Place]]
    """Beginnings of the files that were read, with the newest commit before each."""

    @property
    def engine(self) -> EngineState:
        return self.replay.engine


def restore(
    files: Files, options: Options, shelf: Shelf, find_log: Callable[[Place | None], Recovery]
) -> Restored:
    """The newest state there is; CorruptionError when no way leads to it."""
    pointer = read_pointer(files)
    failed: dict[str, CorruptionError] = {}

    def attempt(node: CheckpointNode) -> Restored | None:
        if node.key in failed:
            return None
        try:
            replay = load(node, options, shelf)
            assert replay.root is not None
            restored = _replay(replay, find_log(replay.root.start))
        except CorruptionError as error:
            failed[node.key] = error
            return None
        return settled(restored)

    def settled(restored: Restored) -> Restored:
        mine = pointer is not None and pointer.uuid == restored.recovery.uuid
        restored.replay.finish(pointer.checkpoints if pointer is not None and mine else ())
        # What is damaged is no checkpoint any more, whatever the log says.
        engine = restored.engine
        engine.checkpoints = tuple(n for n in engine.checkpoints if n.key not in failed)
        return restored

    for node in pointer.checkpoints if pointer is not None else ():
        if (restored := attempt(node)) is not None:
            return restored
    recovery = find_log(None)
    if recovery.checkpoint is not None:
        for node in reversed(list(checkpoint_nodes(recovery.entries()))):
            if (restored := attempt(node)) is not None:
                return restored
    if recovery.spans and recovery.spans[0].header.number != 1:
        raise next(iter(failed.values()), CorruptionError(path_of(1), "the log file is missing"))
    return settled(_replay(Replay(EngineState(options, shelf)), recovery))


def checkpoint_nodes(entries: Iterator[Entry]) -> Iterator[CheckpointNode]:
    """What the CKP entries among these say, in their order."""
    for entry in entries:
        if entry.type == CKP:
            for kind, payload in decode_record(entry).nodes:
                if kind == ROOT:
                    yield decode_body(payload, CheckpointNode)


def _replay(replay: Replay, recovery: Recovery) -> Restored:
    """Fold the log, and note where its files begin."""
    root = replay.root
    if root is not None and root.uuid != recovery.uuid:
        raise CorruptionError(object_path(replay.key), "the checkpoint belongs to another database")
    files = [place for _, place in recovery.parts()]
    places = [(replay.settle(), place) for place in files[:1]]
    ahead = iter(files[1:])
    following = next(ahead, None)
    for entry in recovery.entries():
        while following is not None and entry.order >= following.order:
            places.append((replay.settle(), following))
            following = next(ahead, None)
        replay.fold(entry)
    while following is not None:
        places.append((replay.settle(), following))
        following = next(ahead, None)
    replay.settle()
    return Restored(replay, recovery, places)


def join(files: Files, options: Options, shelf: Shelf) -> tuple[EngineState, Follower] | None:
    """The state that an owner at work has published, and a follower that goes on from there.

    None when its log has moved on meanwhile: look again. A checkpoint is deleted when there are
    two newer ones, so whoever is slow may find that the one it has begun with is gone. If that is
    not why its files cannot be read, it is CorruptionError.
    """
    pointer = read_pointer(files)
    nodes = list(pointer.checkpoints) if pointer is not None else []
    failed: list[CorruptionError] = []
    try:
        if not nodes:
            nodes = list(checkpoint_nodes(Follower(files).poll()))[::-1]
        for node in nodes:
            try:
                return _join(load(node, options, shelf), files, options)
            except CorruptionError as error:
                failed.append(error)
        if log_numbers(files)[:1] == [1]:
            return _join(Replay(EngineState(options, shelf)), files, options)
    except LogGone:
        return None
    if failed and read_pointer(files) == pointer:
        raise failed[0]
    return None


def _join(replay: Replay, files: Files, options: Options) -> tuple[EngineState, Follower]:
    start = None if replay.root is None else replay.root.start
    follower = Follower(files, start=start)
    for entry in follower.poll():
        replay.fold(entry)
    if replay.root is not None and replay.root.uuid != follower.uuid:
        raise CorruptionError(object_path(replay.key), "the checkpoint belongs to another database")
    return replay.finish(), follower

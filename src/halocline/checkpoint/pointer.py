"""The pointer: a small file beside the log that says where the newest checkpoints are.

    log/checkpoint  = sealed {uuid, CheckpointNode, CheckpointNode}      newest first

Each checkpoint has its CKP entry in the log, and nothing but that makes it one. But finding the
last CKP entry of a log means reading the log, which is what a checkpoint is meant to spare. So the
pointer is written once the entry is durable, and before anything that only an older checkpoint
needs is deleted: what it names exists. A crash in between leaves a pointer to the checkpoint
before, which is as good, only farther from the end.

A pointer that is missing, damaged or of another database is no error: the log is read instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from halocline.checkpoint.seal import seal, unseal
from halocline.errors import CorruptionError, UsageError
from halocline.rows.system import CheckpointNode
from halocline.store import Files
from halocline.store.files import NotAFileError

POINTER_PATH: Final = "log/checkpoint"
MAGIC: Final = b"HALO-PTR"
VERSION: Final = 1


class Pointer(msgspec.Struct, frozen=True, kw_only=True):
    """The newest checkpoints, newest first."""

    uuid: bytes
    checkpoints: tuple[CheckpointNode, ...]


def write_pointer(files: Files, uuid: bytes, checkpoints: Sequence[CheckpointNode]) -> None:
    """Durable when it returns; a crash leaves the old pointer or the new one."""
    pointer = Pointer(uuid=uuid, checkpoints=tuple(checkpoints))
    files.write(POINTER_PATH, seal(MAGIC, VERSION, msgspec.msgpack.encode(pointer)))


def read_pointer(files: Files) -> Pointer | None:
    """The pointer, if there is one that can be believed."""
    try:
        body = unseal(MAGIC, VERSION, files.read(POINTER_PATH), POINTER_PATH)
        return msgspec.msgpack.decode(body, type=Pointer)
    except (
        FileNotFoundError,
        NotAFileError,
        CorruptionError,
        UsageError,
        msgspec.MsgspecError,
    ):
        return None

"""The endpoint file: how a process finds the owner of a database on its machine.

    <database>/endpoint   JSON, 0600: socket, token, pid, host, epoch
    <temporary>/halocline-xxxxxxxx/socket   0700: only this user gets there

A socket's path may have 107 bytes, and a database's path be much longer; a directory that holds a
socket cannot be copied by every tool either. So the socket lives in a short private directory and
the database only names it. Whoever may read the file may write the database: both need the user
that owns it. The token is compared in constant time all the same, so that knowing the path of the
socket is not enough.

The file is written by the holder of the lock and removed by it; should it be damaged or deleted
meanwhile, the holder writes it again. One that was left by a killed owner
names a socket on which nobody listens: the next owner removes both.
"""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from halocline.clock import SystemClock

NAME: Final = "endpoint"
PREFIX: Final = "halocline-"
SOCKET: Final = "socket"
TOKEN_BYTES: Final = 32
FILE_BYTES_MAX: Final = 4096
PATH_BYTES_MAX: Final = 100


class Endpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the owner listens and what it wants to hear."""

    version: int
    socket: str
    token: str
    pid: int
    host: str
    epoch: int

    @property
    def secret(self) -> bytes:
        return bytes.fromhex(self.token)


class DamagedEndpointError(OSError):
    """There is an endpoint file that makes no sense."""

    def __init__(self, root: str) -> None:
        text = f"the file {Path(root, NAME)} is damaged. It is safe to delete it: the process that "
        super().__init__(f"{text}has the database open writes it again within seconds")


def listen(backlog: int) -> tuple[socket.socket, str]:
    """A listening socket in a private directory of its own, and its path."""
    folder = tempfile.mkdtemp(prefix=PREFIX)
    if len(os.fsencode(folder)) + len(SOCKET) + 1 > PATH_BYTES_MAX:
        os.rmdir(folder)
        folder = tempfile.mkdtemp(prefix=PREFIX, dir="/tmp")
    path = f"{folder}/{SOCKET}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        listener.listen(backlog)
    except BaseException:
        listener.close()
        remove_socket(path)
        raise
    return listener, path


def new_token() -> str:
    """Never from a clock that tests turn by hand: nobody may guess it."""
    return SystemClock().random_bytes(TOKEN_BYTES).hex()


def write_endpoint(root: str, endpoint: Endpoint) -> None:
    """Replace the file. Not synced: after a crash there is nobody to find."""
    temporary = Path(root, f"{NAME}.tmp")
    with suppress(FileNotFoundError):
        temporary.unlink()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    fd = os.open(temporary, flags, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(msgspec.json.encode(endpoint))
    temporary.replace(Path(root, NAME))


def read_endpoint(root: str) -> Endpoint | None:
    """What the owner has written; None when there is nothing that can be believed."""
    try:
        fd = os.open(Path(root, NAME), os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
        with os.fdopen(fd, "rb") as file:
            facts = os.fstat(fd)
            if not stat.S_ISREG(facts.st_mode) or facts.st_size > FILE_BYTES_MAX:
                return None
            endpoint = msgspec.json.decode(file.read(FILE_BYTES_MAX), type=Endpoint)
        return endpoint if len(endpoint.secret) == TOKEN_BYTES else None
    except (OSError, ValueError):
        return None


def remove_endpoint(root: str, mine: Endpoint | None = None) -> None:
    """Called by the holder of the lock: the file, and the socket that it names.

    One that takes its leave names what is its own: somebody else's file stays.
    """
    found = read_endpoint(root)
    if mine is None or found == mine:
        with suppress(OSError):
            Path(root, NAME).unlink()
    gone = mine or found
    if gone is not None:
        remove_socket(gone.socket)


def remove_socket(path: str) -> None:
    """The socket and its directory, if it is one of ours."""
    place = Path(path)
    if place.name == SOCKET and place.parent.name.startswith(PREFIX):
        with suppress(OSError):
            if stat.S_ISSOCK(place.lstat().st_mode):
                place.unlink()
        with suppress(OSError):
            place.parent.rmdir()

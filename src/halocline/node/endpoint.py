"""The endpoint file: how a process finds the owner of a database on its machine.

    <database>/endpoint   JSON, 0600: socket, token, pid, host, epoch, the folder it is for
    <temporary>/halocline-xxxxxxxx/socket   0700: only this user gets there

    0660, 0770 and 0660 for the socket in a database that is shared with a group (store/sharing.py)

A socket's path may have 107 bytes, and a database's path be much longer; a directory that holds a
socket cannot be copied by every tool either. So the socket lives in a short private directory and
the database only names it. Whoever may read the file may write the database: both need the user
that owns it, or a member of the group that it is shared with. The token is compared in constant
time all the same, so that knowing the path of the socket is not enough.

The file is written by the holder of the lock and removed by it; should it be damaged or deleted
meanwhile, the holder writes it again. One that was left by a killed owner
names a socket on which nobody listens: the next owner removes both.

A folder may be copied while its owner is at work, and the file with it. So it says which folder it
was written for, and in another one it is nobody's: not believed, and what it names stays.

Invariants
- Nothing is read, written or removed in a folder that is not the one the endpoint belongs to.
- A socket on which somebody listens is removed by nobody but its owner.
"""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from halocline.clock import SystemClock
from halocline.store.sharing import FILE_MODE, FOLDER_MODE, give_to_group, is_shared

NAME: Final = "endpoint"
TEMPORARY: Final = f"{NAME}.tmp"
PREFIX: Final = "halocline-"
SOCKET: Final = "socket"
TOKEN_BYTES: Final = 32
FILE_BYTES_MAX: Final = 4096
PATH_BYTES_MAX: Final = 100
ANSWER_S: Final = 0.2


class Endpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the owner listens and what it wants to hear."""

    version: int
    socket: str
    token: str
    pid: int
    host: str
    epoch: int
    folder: tuple[int, int]
    """Device and inode of the database's folder."""

    @property
    def secret(self) -> bytes:
        return bytes.fromhex(self.token)


class DamagedEndpointError(OSError):
    """There is an endpoint file that makes no sense."""

    def __init__(self, root: str) -> None:
        text = f"the file {Path(root, NAME)} is damaged. It is safe to delete it: the process that "
        super().__init__(f"{text}has the database open writes it again within seconds")


def listen(backlog: int, root: str) -> tuple[socket.socket, str]:
    """A listening socket for a database in a private directory of its own, and its path."""
    with _folder(root) as (database, _):
        group = os.fstat(database).st_gid if is_shared(database) else None
    folder = tempfile.mkdtemp(prefix=PREFIX)
    if len(os.fsencode(folder)) + len(SOCKET) + 1 > PATH_BYTES_MAX:
        os.rmdir(folder)
        folder = tempfile.mkdtemp(prefix=PREFIX, dir="/tmp")
    path = f"{folder}/{SOCKET}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        if group is not None:
            for place, mode in ((path, FILE_MODE), (folder, FOLDER_MODE & 0o777)):
                os.chown(place, -1, group)
                Path(place).chmod(mode)
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
    """Replace the file. Not synced: after a crash there is nobody to find.

    OSError when the path leads to another folder now.
    """
    with _folder(root) as (folder, identity):
        if identity != endpoint.folder:
            raise FileNotFoundError(f"{root} is not the folder that was opened")
        with suppress(FileNotFoundError):
            os.unlink(TEMPORARY, dir_fd=folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        fd = os.open(TEMPORARY, flags, 0o600, dir_fd=folder)
        try:
            if is_shared(folder):
                give_to_group(fd)
            os.write(fd, msgspec.json.encode(endpoint))
        finally:
            os.close(fd)
        os.replace(TEMPORARY, NAME, src_dir_fd=folder, dst_dir_fd=folder)


def read_endpoint(root: str) -> Endpoint | None:
    """What the owner of this very folder has written; None when nothing can be believed."""
    try:
        with _folder(root) as (folder, identity):
            # A pipe must not make us wait for somebody who writes into it.
            fd = os.open(NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
            try:  # no file object: Ctrl-C before its `with` would leave it open, and say so
                facts = os.fstat(fd)
                if not stat.S_ISREG(facts.st_mode) or facts.st_size > FILE_BYTES_MAX:
                    return None
                endpoint = msgspec.json.decode(os.read(fd, FILE_BYTES_MAX), type=Endpoint)
            finally:
                os.close(fd)
        whole = len(endpoint.secret) == TOKEN_BYTES and endpoint.folder == identity
        return endpoint if whole else None
    except (OSError, ValueError):
        return None


def remove_endpoint(root: str, mine: Endpoint | None = None) -> None:
    """Called by the holder of the lock: removes the file, and the socket that it names.

    One that takes its leave names what is its own: somebody else's file stays. One that comes
    removes what a killed owner of this folder has left, and the copy of another folder's file.
    """
    found = read_endpoint(root)
    if mine is None or found == mine:
        with suppress(OSError), _folder(root) as (folder, _):
            os.unlink(NAME, dir_fd=folder)
    if mine is not None:
        remove_socket(mine.socket)
    elif found is not None and not _answers(found.socket):
        remove_socket(found.socket)


def identity_of(root: str) -> tuple[int, int]:
    """Device and inode of a folder, for its endpoint."""
    with _folder(root) as (_, identity):
        return identity


@contextmanager
def _folder(root: str) -> Iterator[tuple[int, tuple[int, int]]]:
    """A descriptor of the folder, with its device and inode."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        facts = os.fstat(fd)
        yield fd, (facts.st_dev, facts.st_ino)
    finally:
        os.close(fd)


def _answers(path: str) -> bool:
    """Does a server listen there?"""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(ANSWER_S)
        try:
            caller.connect(path)
        except (FileNotFoundError, ConnectionRefusedError, ValueError):
            return False
        except OSError:  # not now: then it is not ours to judge
            return True
        return True


def remove_socket(path: str) -> None:
    """The socket and its directory, if it is one of ours."""
    place = Path(path)
    if place.name == SOCKET and place.parent.name.startswith(PREFIX):
        with suppress(OSError):
            if stat.S_ISSOCK(place.lstat().st_mode):
                place.unlink()
        with suppress(OSError):
            place.parent.rmdir()

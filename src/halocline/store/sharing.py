"""Sharing: a database that a group of users of one machine may read and write.

    open(path, group="analysts") --> share --> root and folders 2770, files 0660, group analysts
    every other open             --> is_shared: the folder says so itself

A database belongs to the user who made it, and no other user may enter. One that is shared belongs
to a group as well. Nothing is written down about it: the set-group-id bit, together with rights to
write for the group, is on every folder of a shared database, so that files made later get the
group from the system and the mode from us, whichever member makes them.

A folder that somebody prepared with that bit is not shared for it: what counts is the folder `log`,
which is always made by us.

Invariants
- `tls` stays private: a key for TLS is its server's.
- Either all files can be given to the group or none is touched.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from halocline.errors import UsageError

if sys.platform != "win32":
    import grp

FOLDER_MODE: Final = 0o2770
FILE_MODE: Final = 0o660
PRIVATE: Final = frozenset({"tls"})
_BITS: Final = stat.S_ISGID | stat.S_IRWXG
_NO_LINK: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


def is_shared(folder: int) -> bool:
    """Is this open folder, a database or a part of one, shared with its group?"""
    if not _for_group(os.fstat(folder)):
        return False
    try:
        return _for_group(os.stat("log", dir_fd=folder, follow_symlinks=False))
    except FileNotFoundError:
        return True


def give_to_group(fd: int) -> None:
    """Let the group of a shared folder write a file that was just made in it."""
    facts = os.fstat(fd)
    if facts.st_uid == os.geteuid() and facts.st_mode & FILE_MODE != FILE_MODE:
        os.fchmod(fd, FILE_MODE)


def group_id(name: object) -> int:
    """The number of a group that this process may share with; UsageError."""
    if not isinstance(name, str):
        raise UsageError(f"group must be the name of a group of this machine, not {name!r}")
    try:
        found = grp.getgrnam(name).gr_gid
    except (KeyError, ValueError):
        raise UsageError(f"there is no group {name!r} on this machine") from None
    if os.geteuid() != 0 and found not in (os.getegid(), *os.getgroups()):
        raise UsageError(f"you are not a member of the group {name!r}")
    return found


def share(root: Path, group: int, *, in_use: bool) -> None:
    """Give a database to a group, making its folder if there is none.

    UsageError when it has files of somebody else, or is in use and not shared yet.
    """
    wanted = list(_unshared(root, group)) if root.exists() else []
    strange = [path for path, owner in wanted if os.geteuid() not in (0, owner)]
    if strange:
        text = f"{strange[0]} belongs to another user"
        raise UsageError(f"{text}: only that user, or root, can share the database with a group")
    if wanted and in_use:
        raise UsageError(f"{root} is open for writing: close it there before it is shared")
    missing = [] if root.exists() else [root]
    while missing and not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for folder in reversed(missing):
        folder.mkdir(0o700)
    for path in (*reversed(missing), *(path for path, _ in wanted)):
        _give(path, group)


def _unshared(root: Path, group: int) -> Iterator[tuple[Path, int]]:
    """What the group has no part in yet, from the bottom up, and whose it is."""
    for place, folders, names, fd in os.fwalk(root, topdown=True, follow_symlinks=False):
        folders[:] = [name for name in folders if Path(place) != root or name not in PRIVATE]
        for name in (*names, "."):
            facts = os.stat(name, dir_fd=fd, follow_symlinks=False)
            is_folder = stat.S_ISDIR(facts.st_mode)
            bits = _BITS if is_folder else FILE_MODE
            known = is_folder or stat.S_ISREG(facts.st_mode)
            if known and (facts.st_gid != group or facts.st_mode & bits != bits & 0o7777):
                yield Path(place, name), facts.st_uid


def _give(path: Path, group: int) -> None:
    fd = os.open(path, os.O_RDONLY | _NO_LINK)
    try:
        kind = os.fstat(fd).st_mode
        os.fchown(fd, -1, group)
        os.fchmod(fd, FOLDER_MODE if stat.S_ISDIR(kind) else FILE_MODE)
    finally:
        os.close(fd)


def _for_group(facts: os.stat_result) -> bool:
    return stat.S_ISDIR(facts.st_mode) and facts.st_mode & _BITS == _BITS

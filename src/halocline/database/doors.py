"""The front door: `open` for a directory, `connect` for a database that another machine serves.

    open(path)    --> Files of the directory           --> Database
    connect(uri)  --> a link; its files and objects    --> Database

Not here: which role the handle gets (database.py).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

import halocline.database.read_files  # noqa: F401 (from here on `hc.read` can be called)
from halocline.clock import SystemClock
from halocline.database.database import Database
from halocline.database.opening import local_files, readable
from halocline.errors import UsageError
from halocline.node import FarRoute, Link
from halocline.node.remote_files import RemoteFiles, RemoteObjects
from halocline.options import Durability, Options
from halocline.store import Files


def open(
    path: str | os.PathLike[str],
    read_only: bool = False,
    durability: Durability = "sync",
    retention: str | float | None = None,
    memory: str | int = "1GB",
    objects: str | None = None,
    options: Options | None = None,
    group: str | None = None,
) -> Database:
    """Open the database in a directory, creating it if it does not exist.

    durability: "sync" acknowledges a commit when it is on disk; "async" when the operating system
    has it, and syncs every 50 ms. retention: how long old snapshots stay readable, from now on and
    whoever opens the database next; a day until somebody has named it. group: the name of a group
    of users of this machine who may read and write it too, from now on.
    """
    if objects is not None:
        raise UsageError("objects= is not available in this version: leave it out")
    with readable(str(path)):
        files = local_files(path, read_only=read_only, group=group)
    return Database(
        files,
        files.root,
        read_only=read_only,
        durability=durability,
        retention=retention,
        memory=memory,
        options=options,
    )


def connect(
    uri: str,
    token: str,
    *,
    read_only: bool = False,
    memory: str | int = "1GB",
    tls_roots: str | None = None,
    options: Options | None = None,
) -> Database:
    """Connect to a database that another machine serves at `halocline://host:port`.

    The same Database: it reads for itself, prepares its transactions here and has the owner commit
    them. `tls_roots` is the path of a PEM file: with the certificate of the server itself, or with
    those that may have signed it; without one it must be signed by an authority that this machine
    trusts. Only a loopback address without `tls_roots` is spoken to without TLS.
    """
    if not isinstance(token, str) or not token:
        raise UsageError("connect needs the token that the server was started with")
    roots = None
    if tls_roots is not None:
        with readable(tls_roots):
            roots = Path(tls_roots).read_text("ascii", "replace")
    link = Link(FarRoute(uri, token, roots), SystemClock())
    files = RemoteFiles(link.ask)
    objects = RemoteObjects(link.ask)
    try:
        return Database(
            cast(Files, files),
            uri,
            read_only=read_only,
            memory=memory,
            options=options,
            objects=objects,
            link=link,
        )
    except BaseException:
        link.close()
        objects.close()
        raise

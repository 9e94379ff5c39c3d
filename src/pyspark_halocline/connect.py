"""Opening the database in a process of Spark's.

    to read    read-only: follows the log beside the owner of the database, or reads a closed one
    to write   `halocline.open`: through the owner, or as the owner while the commit lasts
    by uri     `halocline.connect`, for both

A read never starts a database and never takes its lock, however many plans are made at once. A
process that becomes the owner for the length of a commit does nothing else: when rows move is for
those to say who own the database at other times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import halocline
from halocline.clock import SystemClock
from halocline.errors import UnavailableError
from pyspark_halocline.options import Address

PATIENCE_S: Final = 30.0
"""How long a commit waits for a database that is just changing hands."""
PAUSE_S: Final = 0.2
T = TypeVar("T")


def open_to_read(address: Address) -> halocline.Database:
    """A read-only handle; NotFoundError where there is no database."""
    if address.uri:
        return _connect(address, read_only=True)
    return halocline.open(address.path, read_only=True)


def open_to_write(address: Address) -> halocline.Database:
    """A handle that can commit; NotFoundError where there is no database, which is not made."""
    if address.uri:
        return _connect(address, read_only=False)
    open_to_read(address).close()
    quiet = halocline.Options(background=False)
    return halocline.open(address.path, options=quiet)


def _connect(address: Address, *, read_only: bool) -> halocline.Database:
    return halocline.connect(
        address.uri, address.token, read_only=read_only, tls_roots=address.tls_roots
    )


def at_owner(address: Address, work: Callable[[halocline.Database], T]) -> T:
    """Do something that may be done twice, with a handle that can commit.

    Such as a commit with a token: an owner that goes away in the middle leaves the question whether
    it has committed; the token answers it, so trying again is always right.
    """
    clock = SystemClock()
    until = clock.monotonic() + PATIENCE_S
    while True:
        try:
            with open_to_write(address) as db:
                return work(db)
        except UnavailableError:
            if clock.monotonic() > until:
                raise
            clock.sleep(PAUSE_S)

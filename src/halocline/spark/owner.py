"""What the Spark room asks of an open database.

The room stands above the front door, so it knows a Database only by this shape.
"""

from __future__ import annotations

from os import PathLike
from typing import Any, Protocol

from halocline.errors import UsageError
from halocline.txn import Core, Transaction


class SparkOwner(Protocol):
    """An open database, seen from a job."""

    path: str
    read_only: bool

    @property
    def core(self) -> Core: ...

    def begin(self, at: Any = None, *, token: Any = None) -> Transaction: ...

    def flush(self, table: str | None = None) -> Any: ...

    def compact(self, table: str | None = None, *, runner: Any = None, plan: Any = None) -> Any: ...

    def settle(self, table: str | None = None, *, runner: Any = None) -> int: ...


def check_owner(db: object) -> SparkOwner:
    """UsageError for anything that is not an open database."""
    core = getattr(db, "core", None)
    if not isinstance(core, Core):
        hint = ": open it first, halocline.open(path)" if isinstance(db, (str, PathLike)) else ""
        raise UsageError(f"expected an open database, not {type(db).__name__}{hint}")
    core.check_open()
    return db  # type: ignore[return-value]


def check_writer(db: object) -> SparkOwner:
    """UsageError when the database cannot be written through this handle."""
    owner = check_owner(db)
    if owner.core.committer is None:
        raise UsageError("the database is open read-only: jobs that write need the owner")
    return owner


def check_here(db: object) -> SparkOwner:
    """UsageError unless the database is open for writing in this very process."""
    owner = check_writer(db)
    if owner.core.owned is None:
        raise UsageError(
            "another process has the database open: compaction on Spark runs there, "
            "or here once that one has closed it"
        )
    return owner

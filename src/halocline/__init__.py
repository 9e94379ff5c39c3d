"""Halocline: transactions on top, analytics underneath, one copy of the data.

import halocline as hc

with hc.open("shop") as db:
    db.create_table("orders", {"id": int, "status": str}, primary_key="id")
    with db.begin() as txn:
        txn.insert("orders", {"id": 1, "status": "new"})
    db.sql("select status, count(*) from orders group by 1")

The engine is loaded when one of its names is first used, so that `import halocline` costs next to
nothing (docs/decisions/0018-quick-start.md).
"""

from importlib import import_module
from typing import TYPE_CHECKING

from halocline.errors import (
    AlreadyExistsError,
    CheckError,
    ConflictError,
    CorruptionError,
    DuplicateKeyError,
    HaloclineError,
    NotFoundError,
    SchemaError,
    SnapshotExpiredError,
    UnavailableError,
    UsageError,
)
from halocline.version import __version__

__all__ = [
    "AlreadyExistsError",
    "CheckError",
    "Column",
    "ConflictError",
    "CorruptionError",
    "Database",
    "DuplicateKeyError",
    "HaloclineError",
    "NotFoundError",
    "Options",
    "SchemaError",
    "SnapshotExpiredError",
    "Table",
    "Transaction",
    "UnavailableError",
    "UsageError",
    "__version__",
    "add",
    "connect",
    "expr",
    "now",
    "open",
    "read",
    "uuid",
]

if TYPE_CHECKING:
    from halocline.database.database import Database
    from halocline.database.doors import connect, open
    from halocline.database.read_files import read
    from halocline.database.table import Table
    from halocline.options import Options
    from halocline.schema.column import Column, now, uuid
    from halocline.schema.terms import add, expr
    from halocline.txn.transaction import Transaction
else:
    _LAZY = {
        "Column": "halocline.schema.column",
        "Database": "halocline.database.database",
        "Options": "halocline.options",
        "Table": "halocline.database.table",
        "Transaction": "halocline.txn.transaction",
        "add": "halocline.schema.terms",
        "connect": "halocline.database.doors",
        "expr": "halocline.schema.terms",
        "now": "halocline.schema.column",
        "open": "halocline.database.doors",
        "read": "halocline.database.read_files",
        "uuid": "halocline.schema.column",
    }

    def __getattr__(name):
        """Load the file that a lazy name lives in; from then on the name is a plain one."""
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value = getattr(import_module(_LAZY[name]), name)
        return value

    def __dir__():
        """All names, those too that are not loaded yet."""
        return sorted({*globals(), *_LAZY})

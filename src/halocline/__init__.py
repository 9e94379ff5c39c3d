"""Halocline: transactions on top, analytics underneath, one copy of the data.

import halocline as hc

with hc.open("shop") as db:
    db.create_table("orders", {"id": int, "status": str}, primary_key="id")
    with db.begin() as txn:
        txn.insert("orders", {"id": 1, "status": "new"})
    db.sql("select status, count(*) from orders group by 1")
"""

from halocline.database.database import Database, connect, open
from halocline.database.table import Table
from halocline.errors import (
    AlreadyExistsError,
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
from halocline.options import Options
from halocline.txn import Transaction
from halocline.version import __version__

__all__ = [
    "AlreadyExistsError",
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
    "connect",
    "open",
]

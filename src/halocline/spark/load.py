"""Load, delete and update a table from a DataFrame, all or nothing.

    load     rows; a key that the table has is an error, is ignored, or its row is updated
    delete   keys; those that the table has not are fine, and those that come twice
    update   keys and values; NotFoundError for a key that the table has not

Not here: how a job runs (job.py), conditions (merge.py).
"""

from __future__ import annotations

from typing import Any, Final, Literal, get_args

from pyspark.sql import DataFrame

from halocline.errors import UsageError
from halocline.spark.job import LoadReport, Spec, write
from halocline.spark.task import Absent, Matched

OnConflict = Literal["error", "ignore", "upsert"]
_MATCHED: Final[dict[str, Matched]] = {"error": "error", "ignore": "ignore", "upsert": "update"}


def load(
    df: DataFrame, db: Any, table: str, on_conflict: OnConflict = "error", token: Any = None
) -> LoadReport:
    """Insert the rows of a DataFrame; a key that exists is an error, is ignored or is updated."""
    if on_conflict not in get_args(OnConflict):
        raise UsageError(f"on_conflict is error, ignore or upsert, not {on_conflict!r}")
    return _write(df, db, table, _MATCHED[on_conflict], "insert", token)


def delete(df: DataFrame, db: Any, table: str, token: Any = None) -> LoadReport:
    """Delete the rows whose keys the DataFrame holds, as `DELETE ... WHERE key IN (...)` does.

    Keys that do not exist are fine, and so are keys that come more than once.
    """
    return _write(df, db, table, "delete", "ignore", token)


def update(df: DataFrame, db: Any, table: str, token: Any = None) -> LoadReport:
    """Write the DataFrame's columns into the rows with its keys; NotFoundError if one is absent."""
    return _write(df, db, table, "update", "error", token)


def _write(
    df: DataFrame, db: Any, table: str, matched: Matched, absent: Absent, token: Any
) -> LoadReport:
    return write(df, db, table, lambda _: Spec(matched=matched, absent=absent), token)

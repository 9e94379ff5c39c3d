"""Streams that end in a job of ours: `df.writeStream.foreachBatch(hs.foreach_batch(...))`.

    micro-batch --Spark calls, in the driver--> load (or any job) with token (query, batch)

Spark may hand over a micro-batch twice: after a crash, and whenever the query is restarted before
it had written down that the batch was done. The token makes the second time a no-op. Spark keeps
the query's id in its checkpoint; with another checkpoint it is another query.

The data source is a sink as well (`writeStream.format("halocline")`); this is for merges, for large
upserts of some of the columns, and for work of the caller's own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from pyspark.sql import DataFrame

from halocline.errors import UsageError
from halocline.spark.owner import check_writer
from halocline.spark.writes import load
from halocline.txn.lenient import OnConflict

QUERY_ID = "sql.streaming.queryId"
BatchWork = Callable[[DataFrame, Any, tuple[str, int]], Any]


def foreach_batch(
    db: Any, table: str, on_conflict: OnConflict = "upsert", work: BatchWork | None = None
) -> Callable[[DataFrame, int], None]:
    """A function for `foreachBatch` that writes each micro-batch into a table exactly once.

    `db` is an open database, or the path of one that is opened for each batch. Instead of `load`,
    `work(df, db, token)` may do what it likes; it must commit with that token.
    """
    is_path = isinstance(db, str) or hasattr(db, "__fspath__")
    if not is_path:
        check_writer(db)

    def write(df: DataFrame, batch: int) -> None:
        query = df.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        if not query:
            raise UsageError("foreach_batch is for writeStream.foreachBatch(...)")
        token = stream_token(query, table, batch)
        with _opened(db) if is_path else nullcontext(db) as opened:
            if work is None:
                load(df, opened, table, on_conflict, token)
            else:
                work(df, opened, token)

    return write


def stream_token(query: str, table: str, batch: int) -> tuple[str, int]:
    """The token of a micro-batch: a batch that is not above the last one has been committed."""
    return f"spark stream {query} into {table.lower()}", batch


def _opened(path: Any) -> Any:
    # The front door stands above this room; the data source stands on the front door.
    from pyspark_halocline.connect import open_to_write
    from pyspark_halocline.options import Address

    return open_to_write(Address(path=os.fspath(path)))

"""Leased files: rows that a plan needs and that are in no object.

    small   travel inside the plan (createDataFrame from Arrow)
    large   become a Parquet file among the table's objects, written by a job with a lease

The file belongs to no table: when its snapshot is released, or the lease is over, the job is dead
and GC removes it. Executors on other machines find it where they find the objects.

A handle that only reads can log no job, so there all rows travel inside the plan.
"""

from __future__ import annotations

import io
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from halocline.errors import UsageError
from halocline.objects.jobwriter import JobWriter
from halocline.options import parse_duration
from halocline.rows.state import TableState
from halocline.rows.system import JobNode
from halocline.spark.files import read_files
from halocline.spark.pins import LEASE
from halocline.spark.types import spark_schema
from halocline.txn import Core

GROUP_ROWS: Final = 122_880


class LeasedFiles:
    """Writes the files of one plan."""

    def __init__(self, core: Core, state: TableState, jobs: list[JobNode]) -> None:
        self._core = core
        self._state = state
        self._jobs = jobs
        """The jobs that have written for the plan, for the caller to end with it."""
        self._writer: JobWriter | None = None

    def frame(self, session: SparkSession, rows: pa.Table, *, max_rows: int) -> DataFrame:
        """The rows as a DataFrame."""
        schema = spark_schema(rows.schema)
        if not rows.num_rows:
            # PySpark fails on a list or struct column that has no chunk at all: here it has one.
            empty = [pa.array([], field.type) for field in rows.schema]
            rows = pa.Table.from_arrays(empty, schema=rows.schema)
        if rows.num_rows <= max_rows or self._core.committer is None:
            return session.createDataFrame(rows, schema=schema)
        return read_files(session, [self._write(rows)], schema)

    def _write(self, rows: pa.Table) -> str:
        shelf, core = self._state.shelf, self._core
        if not shelf.root:
            raise UsageError("the objects of this database are in memory: Spark cannot read them")
        if self._writer is None:
            assert core.committer is not None
            lease_us = core.clock.wall_us() + int(parse_duration(LEASE) * 1e6)
            job = core.committer.start_job(self._state, lease_us=lease_us)
            self._jobs.append(job)
            self._writer = JobWriter(
                shelf.objects,
                self._state.schema,
                core.options,
                table_id=job.table_id,
                job_id=job.job_id,
            )
        sink = io.BytesIO()
        pq.write_table(
            rows,
            sink,
            compression="zstd",
            # Written once and read a few times: building dictionaries costs three times the rest.
            use_dictionary=False,
            row_group_size=GROUP_ROWS,
            write_page_checksum=True,
        )
        return f"{shelf.root}/{self._writer.put_bytes(sink.getvalue())}"

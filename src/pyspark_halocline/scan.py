"""Batch reads: which snapshot, which columns, and who reads what.

    at given     fixed: planned once, kept by a lease                 partitions are parts
    at missing   live: each run of the query plans for itself         one partition (live.py)
    by uri       fixed: there is no folder for plans

Filters of Spark's are not taken: Spark 4.3 keeps the plan that it made with the filters of one
query, uses it for the next query of the same DataFrame, and that lacks rows. `where` is safe.

Not here: what a part is (parts.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from halocline.clock import SystemClock
from halocline.errors import SchemaError
from halocline.schema.schema import Schema
from halocline.spark.types import spark_schema, spark_type
from pyspark_halocline.connect import open_to_read
from pyspark_halocline.live import Live, LiveView, live_parts
from pyspark_halocline.options import Settings
from pyspark_halocline.parts import ScanPart, Wanted, hold, plan_parts, read_part

LATEST: Final = "latest"
"""`at=latest`: the snapshot that is the newest when the read is planned."""


class TableReader(DataSourceReader):
    """Reads one table."""

    def __init__(self, settings: Settings, schema: StructType) -> None:
        self._settings = settings
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """In the planner: share out the files of a snapshot, or leave that to each run."""
        settings = self._settings
        at = None if settings.at == LATEST else settings.at
        fixed = settings.at is not None or bool(settings.address.uri)
        with open_to_read(settings.address) as db, db.begin(at=at) as txn:
            state = txn.state_of(settings.table)
            columns = shown_columns(state.schema, self._schema)
            where, address = settings.where, settings.address
            parts = list(plan_parts(state, txn.snapshot, columns, where, address))
            if fixed:
                hold(db, txn.snapshot, settings.lease_s)
            path, table = db.path, state.entry.name
        if fixed:
            # Spark makes a partition of its own when there is none; this one reads as no rows.
            return list(parts) or [ScanPart(Wanted("", {}, 0, ()))]
        name = SystemClock().random_bytes(12).hex()
        return [Live(LiveView(path, table, columns, where, settings.lease_s, name))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In an executor: the rows of one partition."""
        if isinstance(partition, Live):
            for part in live_parts(partition.view):
                yield from read_part(part, self._schema)
        else:
            assert isinstance(partition, ScanPart)
            yield from read_part(partition, self._schema)


def table_schema(settings: Settings) -> StructType:
    """The columns that a read or a stream gives, in Spark's types."""
    at = None if settings.at == LATEST else settings.at
    with open_to_read(settings.address) as db, db.begin(at=at) as txn:
        schema = txn.state_of(settings.table).schema
    if settings.changes:
        from halocline.read.changes import changes_schema

        return spark_schema(changes_schema(schema))
    names = settings.columns or schema.names
    fields = [schema.arrow.field(schema.position(name)) for name in names]
    return spark_schema(pa.schema(fields))


def shown_columns(schema: Schema, wanted: StructType) -> tuple[str, ...]:
    """The columns of the table that a schema names; SchemaError when their types are others."""
    names = []
    for field in wanted.fields:
        name = schema.names[schema.position(field.name)]
        here = spark_type(schema.arrow.field(name).type)
        if name != field.name or here != field.dataType:
            raise SchemaError(
                f"the table has {name} {here.simpleString()}, "
                f"not {field.name} {field.dataType.simpleString()}: leave .schema(...) out",
                column=name,
            )
        names.append(name)
    return tuple(names)

"""The data source itself: which class does what, and nothing imported before Spark asks for it.

    read     schema -> reader.partitions (one process) -> reader.read (executors)
    write    writer -> writer.write (executors) -> writer.commit (one process)
    streams  the same with offsets and batch ids

An import that fails here would only show as "data source not found".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_halocline.options import Settings


class DefaultSource(DataSource):
    """Tables of a Halocline database as a source and a sink of Spark."""

    @classmethod
    def name(cls) -> str:
        return "halocline"

    def schema(self) -> StructType:
        """The columns of the table; of a stream, see `streamReader`."""
        from pyspark_halocline.scan import table_schema

        return table_schema(self._settings())

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read of the table at one snapshot."""
        from pyspark_halocline.scan import TableReader

        settings = self._settings()
        settings.check_batch_read()
        return TableReader(settings, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch write: append, or overwrite the whole table."""
        from pyspark_halocline.sink import BatchWriter

        return BatchWriter(self._settings(), schema, overwrite=overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """The change feed of the table."""
        from pyspark_halocline.feed import ChangeReader

        return ChangeReader(self._settings(), schema)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """A sink that takes every micro-batch exactly once."""
        from pyspark_halocline.sink import StreamWriter

        return StreamWriter(self._settings(), schema, overwrite=overwrite)

    def _settings(self) -> Settings:
        from pyspark_halocline.options import read_options

        return read_options(self.options)

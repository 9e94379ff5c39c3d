"""DuckDB as the local executor: SQL over Arrow tables, in a sandbox.

One instance per database, made on first use (a new one costs 20-60 ms), one cursor per query. It
may not open files, load extensions, see Python variables or change its own configuration; tables
are handed in as Arrow, zero-copy, under the names the query uses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from threading import Lock

import duckdb
import pyarrow as pa

from halocline.errors import UnavailableError, UsageError

_SETTINGS = (
    # What outgrows memory= is an error, not a file in whatever directory the program runs in.
    "set temp_directory=''",
    "set enable_external_access=false",
    # Global, because a cursor is a session of its own.
    "set global python_enable_replacements=false",
    "set autoinstall_known_extensions=false",
    "set autoload_known_extensions=false",
    "set global TimeZone='UTC'",
)


class Duck:
    """The SQL engine of one database."""

    def __init__(self, *, memory_bytes: int, threads: int = 0) -> None:
        self._memory_bytes = memory_bytes
        self._threads = threads
        self._lock = Lock()
        self._instance: duckdb.DuckDBPyConnection | None = None

    def query(
        self, text: str, params: Sequence[object], tables: Mapping[str, pa.Table], quoted: str = ""
    ) -> pa.Table:
        """Run one SELECT to the end; `quoted` is tried when DuckDB cannot parse the text."""
        cursor = self._cursor()
        try:
            result = self._relation(cursor, text, params, tables, quoted).to_arrow_table()
            return result.cast(_canonical(result.schema)) if _is_nested(result.schema) else result
        except duckdb.Error as error:
            raise _translate(error) from error
        finally:
            cursor.close()

    def stream(
        self, text: str, params: Sequence[object], tables: Mapping[str, pa.Table], quoted: str = ""
    ) -> pa.RecordBatchReader:
        """The same, batch by batch; the cursor lives until the reader is done or dropped."""
        cursor = self._cursor()
        try:
            relation = self._relation(cursor, text, params, tables, quoted)
            reader = relation.to_arrow_reader(65536)
        except duckdb.Error as error:
            cursor.close()
            raise _translate(error) from error

        schema = _canonical(reader.schema)

        def batches() -> Iterator[pa.RecordBatch]:
            try:
                for batch in reader:
                    yield batch.cast(schema) if _is_nested(schema) else batch
            except (duckdb.Error, OSError, pa.ArrowException) as error:
                raise _translate(error) from error
            finally:
                cursor.close()

        return pa.RecordBatchReader.from_batches(schema, batches())

    def close(self) -> None:
        with self._lock:
            if self._instance is not None:
                self._instance.close()
                self._instance = None

    def _relation(
        self,
        cursor: duckdb.DuckDBPyConnection,
        text: str,
        params: Sequence[object],
        tables: Mapping[str, pa.Table],
        quoted: str,
    ) -> duckdb.DuckDBPyRelation:
        for name, table in tables.items():
            cursor.register(name, table)
        values = list(params) if params else None
        try:
            relation = cursor.sql(text, params=values)
        except duckdb.ParserException:
            # A column called `at`, say: a keyword here, a plain name to everybody else.
            if not quoted:
                raise
            relation = cursor.sql(quoted, params=values)
        assert relation is not None, "a SELECT always has a result"
        return relation

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        with self._lock:
            if self._instance is None:
                self._instance = self._start()
            return self._instance.cursor()

    def _start(self) -> duckdb.DuckDBPyConnection:
        instance = duckdb.connect(":memory:")
        for setting in _SETTINGS:
            instance.execute(setting)
        instance.execute(f"set memory_limit='{self._memory_bytes // 1024}KiB'")
        if self._threads:
            instance.execute(f"set threads={self._threads}")
        instance.execute("set lock_configuration=true")
        return instance


def _is_nested(schema: pa.Schema) -> bool:
    return any(pa.types.is_nested(field.type) for field in schema)


def _canonical(schema: pa.Schema) -> pa.Schema:
    """DuckDB calls the values of a list `l`, everybody else calls them `item`."""
    return pa.schema([field.with_type(_plain(field.type)) for field in schema])


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(pa.field("item", _plain(kind.value_type), kind.value_field.nullable))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind.fields])
    return kind


def _translate(error: Exception) -> UsageError | UnavailableError:
    """What the caller can do about it: fix the query, or give it more memory."""
    text = str(error).strip()
    if isinstance(error, duckdb.OutOfMemoryException) or "Out of Memory" in text:
        return UnavailableError(f"the query needs more memory: {text}; open with a larger memory=")
    return UsageError(text)

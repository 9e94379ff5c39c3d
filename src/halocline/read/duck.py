"""DuckDB as the local executor: SQL over Arrow tables and Parquet files, in a sandbox.

    tables by name (pa.Table or Source) --attach--> cursor --query, stream--> Arrow

One instance per database, made on first use (a new one costs 20-60 ms), one cursor per query. It
may open files in the folder of the objects and nowhere else, and may not load extensions, see
Python variables or change its own configuration. Tables are handed in under the names the query
uses: Arrow zero-copy, objects as temporary views over their files (source.py).

DuckDB decodes 2048 rows at a time, however wide they are, and reads whole row groups ahead: a few
wide rows are more than a small memory. A query that has run out of memory is run once more in an
instance of its own, which reads with one thread and nothing ahead, and whose limit has room for the
widest rows of its tables beside. Such queries come one after the other. A stream cannot begin again
once it has given rows, so the widths decide beforehand where it runs.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

import pyarrow as pa

from halocline.errors import HaloclineError, UnavailableError, UsageError
from halocline.objects.stats import VECTOR_ROWS
from halocline.read.ctrlc import stoppable
from halocline.read.source import Source, literal
from halocline.schema.batches import widest

if TYPE_CHECKING:
    import duckdb

Tables = Mapping[str, pa.Table | Source]

_SETTINGS = (
    "set enable_external_access=false",
    # Objects never change, so their footers are read once.
    "set parquet_metadata_cache=true",
    # Global, because a cursor is a session of its own.
    "set global python_enable_replacements=false",
    "set autoinstall_known_extensions=false",
    "set autoload_known_extensions=false",
    "set global TimeZone='UTC'",
)
_MAKE_FOLDER = partial(os.makedirs, mode=0o700, exist_ok=True)
_INTERRUPTED = ("Query interrupted", "failed: KeyboardInterrupt:", "Interrupted!")
"""How DuckDB's errors end when it was Ctrl-C that stopped it."""
_QUERY_TEXTS = ("Conversion Error", "Invalid Input Error", "Out of Range Error", "Binder Error")


STREAM_ROWS = 65536
"""Most rows in a batch of a stream."""
_VECTORS = 4
"""So many times the widest rows a query holds at once: encoded, decoded, being sorted, sorted."""
_PASSED_BY = ("set disable_parquet_prefetching=true", "set enable_external_file_cache=false")
"""What is read ahead or kept for later takes the memory that wide rows need now."""
_GROUP_ROWS = 122_880
"""Rows of a row group, which are read ahead together."""

_OPEN: WeakSet[Duck | Generator[pa.RecordBatch, None, None]] = WeakSet()


def _close_all() -> None:
    """A program ends that has closed neither database nor stream: DuckDB would print a warning."""
    for one in list(_OPEN):
        with suppress(Exception):
            one.close()


atexit.register(_close_all)


class Duck:
    """The SQL engine of one database. `folder` holds its objects; empty when DuckDB cannot.

    What outgrows its memory goes into files in `spill`, while a query runs; without such a folder
    it is an error, never a file in whatever directory the program runs in.
    """

    def __init__(
        self,
        memory_bytes: int,
        threads: int = 0,
        folder: str = "",
        spill: str = "",
        make_folder: Callable[[str], None] = _MAKE_FOLDER,
    ) -> None:
        self._memory_bytes = memory_bytes
        self._threads = threads
        self._folder = folder
        self._spill = spill
        self._make_folder = make_folder
        self._lock = Lock()
        self._one_wide = Lock()
        self._wide_numbers = count(1)
        self._instance: duckdb.DuckDBPyConnection | None = None
        _OPEN.add(self)

    def query(
        self, text: str, params: Sequence[object], tables: Tables, quoted: str = ""
    ) -> pa.Table:
        """Run one SELECT to the end; `quoted` is tried when DuckDB cannot parse the text."""
        asked = partial(self._result, text, params, tables, quoted)
        try:
            with closing(self._cursor()) as cursor:
                return asked(cursor)
        except UnavailableError as error:
            if not tables or not _ran_out(error.__cause__):
                raise
        with self._one_wide, self._wide(tables) as cursor:
            return asked(cursor)

    def stream(
        self, text: str, params: Sequence[object], tables: Tables, quoted: str = ""
    ) -> pa.RecordBatchReader:
        """Run one SELECT batch by batch; the cursor lives until the reader is done or dropped."""
        width = _vector_bytes(tables)
        room = self._memory_bytes // 2
        batch_rows = min(STREAM_ROWS, max(1, room // max(width, 1)) * VECTOR_ROWS)
        held = ExitStack()
        try:
            if (self._threads or os.cpu_count() or 1) * _scan_bytes(tables) > room:
                cursor = held.enter_context(self._wide(tables))
            else:
                cursor = held.enter_context(closing(self._cursor()))
            with self._errors(tables), stoppable(cursor):
                relation = self._relation(cursor, text, params, tables, quoted)
                reader = relation.to_arrow_reader(batch_rows)
        except BaseException:
            held.close()
            raise

        schema = _canonical(reader.schema)

        def batches() -> Generator[pa.RecordBatch, None, None]:
            try:
                while True:
                    with self._errors(tables), stoppable(cursor):
                        batch = next(reader, None)
                    if batch is None:
                        _check_root(tables)
                        return
                    yield as_schema(batch, schema)
            finally:
                held.close()

        going = batches()
        _OPEN.add(going)
        return pa.RecordBatchReader.from_batches(schema, going)

    def spill_into(self, folder: str) -> None:
        """Another folder for what outgrows memory; before the first query."""
        self._spill = folder

    def close(self) -> None:
        with self._lock:
            if self._instance is not None:
                self._instance.close()
                self._instance = None

    def _result(
        self,
        text: str,
        params: Sequence[object],
        tables: Tables,
        quoted: str,
        cursor: duckdb.DuckDBPyConnection,
    ) -> pa.Table:
        with self._errors(tables), stoppable(cursor):
            result = self._relation(cursor, text, params, tables, quoted).to_arrow_table()
        _check_root(tables)  # what DuckDB has opened meanwhile was still ours
        return as_schema(result, _canonical(result.schema))

    def _relation(
        self,
        cursor: duckdb.DuckDBPyConnection,
        text: str,
        params: Sequence[object],
        tables: Tables,
        quoted: str,
    ) -> duckdb.DuckDBPyRelation:
        for number, (name, table) in enumerate(tables.items()):
            if isinstance(table, Source):
                table.attach(cursor, name, number)
            else:
                cursor.register(name, table)
        import duckdb

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

    @contextmanager
    def _wide(self, tables: Tables) -> Iterator[duckdb.DuckDBPyConnection]:
        """A cursor of an instance that ends with it and has room for rows as wide as these."""
        # Two instances must not spill into one folder. It is named by process: see `sweep_spill`.
        name = f"{os.getpid()}-{next(self._wide_numbers)}"
        spill = str(Path(self._spill, name)) if self._spill else ""
        memory_bytes = self._memory_bytes + _VECTORS * _vector_bytes(tables)
        instance = self._make(memory_bytes, 1, spill, _PASSED_BY)
        try:
            with closing(instance.cursor()) as cursor:
                yield cursor
        finally:
            instance.close()
            if spill:
                with suppress(OSError):
                    Path(spill).rmdir()

    def _start(self) -> duckdb.DuckDBPyConnection:
        return self._make(self._memory_bytes, self._threads, self._spill)

    def _make(
        self, memory_bytes: int, threads: int, spill: str, settings: Sequence[str] = ()
    ) -> duckdb.DuckDBPyConnection:
        import duckdb  # here, and not above: whoever only writes never waits for it

        instance = duckdb.connect(":memory:")
        if spill:  # DuckDB would let everybody look into it
            try:
                self._make_folder(spill)
            except OSError as error:  # no room for the folder, or no right to make it
                text = f"queries have no folder for what outgrows memory: {error}"
                raise UnavailableError(text) from error
        instance.execute(f"set temp_directory={literal(spill)}")
        if self._folder:
            instance.execute(f"set allowed_directories=[{literal(self._folder)}]")
        for setting in (*_SETTINGS, *settings):
            instance.execute(setting)
        instance.execute(f"set memory_limit='{memory_bytes // 1024}KiB'")
        if threads:
            instance.execute(f"set threads={threads}")
        instance.execute("set lock_configuration=true")
        return instance

    @contextmanager
    def _errors(self, tables: Tables) -> Iterator[None]:
        """Errors of DuckDB become ours, and Ctrl-C stays Ctrl-C."""
        import duckdb

        try:
            yield
        except (duckdb.Error, OSError, pa.ArrowException, RuntimeError) as error:
            if str(error).strip().endswith(_INTERRUPTED):
                raise KeyboardInterrupt from error
            raise self._translate(error, tables) from error

    def _translate(self, error: Exception, tables: Tables) -> HaloclineError:
        """What the caller can do about it: restore a file, give more memory, or fix the query."""
        import duckdb

        text = str(error).strip()
        if isinstance(error, (duckdb.FatalException, duckdb.InternalException)):
            self._restart()
        if _ran_out(error):
            first = text.partition("\n")[0]  # the rest is advice that only DuckDB's user can follow
            return UnavailableError(
                f"the query needs more memory: {first}; open with a larger memory="
            )
        # A broken file shows itself in many ways, an error of the query in a few known ones.
        query_errors = (duckdb.ProgrammingError, duckdb.DataError, duckdb.NotSupportedError)
        of_files = not isinstance(error, query_errors) and not text.startswith(_QUERY_TEXTS)
        sources = [table for table in tables.values() if isinstance(table, Source)]
        try:
            for source in sources:
                source.blame(text, anyway=of_files)
        except HaloclineError as better:
            return better
        return UsageError(text)

    def _restart(self) -> None:
        """After an error of its own the instance may refuse everything: the next query starts
        another. Cursors that are open keep the old one alive."""
        with self._lock:
            self._instance = None


def _check_root(tables: Tables) -> None:
    """MovedError when files were read by their paths, and those lead elsewhere by now."""
    for table in tables.values():
        if isinstance(table, Source) and table.files:
            table.shelf.check_root()


def _ran_out(error: BaseException | None) -> bool:
    """Is this DuckDB's limit on memory?"""
    import duckdb

    return isinstance(error, duckdb.OutOfMemoryException) or "Out of Memory" in str(error)


def _vector_bytes(tables: Tables) -> int:
    """Bytes of the widest rows that a query over all these tables has decoded at once."""
    in_files = sum(one.vector_bytes for one in tables.values() if isinstance(one, Source))
    in_memory = [one for one in tables.values() if isinstance(one, pa.Table)]
    return in_files + sum(widest(one, VECTOR_ROWS) for one in in_memory)


def _scan_bytes(tables: Tables) -> int:
    """Bytes that one thread needs for these tables: the widest rows, and what is read ahead."""
    ahead = [
        file.stats.size_bytes * min(file.stats.rows, _GROUP_ROWS) // file.stats.rows
        for one in tables.values()
        if isinstance(one, Source)
        for file in one.files
    ]
    return _VECTORS * _vector_bytes(tables) + max(ahead, default=0)


Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)


def as_schema(rows: Rows, schema: pa.Schema) -> Rows:
    """Give rows the exact types of a schema, of which DuckDB's differ in names and nullability
    inside lists and structs. Nothing is copied."""
    if rows.schema == schema and not _is_nested(schema):
        return rows
    columns = [_viewed(rows.column(at), field.type) for at, field in enumerate(schema)]
    return type(rows).from_arrays(columns, schema=schema)


def _viewed(column: Any, kind: pa.DataType) -> Any:
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([_viewed(chunk, kind) for chunk in column.chunks], kind)
    # A cast would refuse a null struct with a field that must not be null.
    if pa.types.is_struct(kind):
        parts = [_viewed(column.field(at), field.type) for at, field in enumerate(kind)]
        mask = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=mask)
    if pa.types.is_list(kind):
        items = _viewed(column.values, kind.value_type)
        parts = column.buffers()[:2]
        return pa.Array.from_buffers(
            kind, len(column), parts, column.null_count, column.offset, [items]
        )
    return column.cast(kind)


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

"""Incoming data: anything that exports Arrow, made into a canonical table or refused.

    pandas, Polars, DuckDB, pyarrow, files --read--> pa.Table --conform--> columns of the schema, in
                                           (validated)         its order and types, chunk by chunk

Columns are matched by name without regard to case, in any order. Every chunk is converted on its
own, so input that is canonical already is handed on without a copy. When a chunk is refused, the
first offending row is found by halving it: the slow way is walked only on the way to an error.

Invariants
- Every chunk that came from outside passes `validate(full=True)` before any other kernel sees it:
  a wrong offset or length kills the process otherwise.
- What becomes part of a table is never written to again. Arrow data is immutable by contract and
  shared; a pandas frame exports memory that its owner may go on changing, so it is copied.
- Nothing is dropped silently: an unknown column is an error. The one exception is the index that
  pandas adds, unless it bears the name of a column of the table that is not given otherwise.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from halocline.errors import SchemaError, UsageError
from halocline.schema.cast import WrongType, exact_cast
from halocline.schema.compiled import ColumnLike
from halocline.schema.names import ColumnNames
from halocline.schema.types import kind
from halocline.schema.values import Unfit, checker

PARSED: Final = frozenset(["int", "decimal", "date"])
"""Kinds that files read as text and Arrow parses: DuckDB rounds 1.7 to an integer without a word.
"""
SINGLY: Final = 64
_OF_PYTHON: Final = frozenset(["bool", "int", "float", "decimal", "string", "binary", "date"])
"""Kinds whose values Python holds as they are."""
CHUNK_BYTES_MAX: Final = 1 << 30
"""Chunks that must change their type are cut to this: plain strings end at 2 GiB."""


class Misfit(NamedTuple):
    """A row that does not fit, or a line that is none."""

    row: int | None
    """Its number in the input, from 0; None for a line that is no row."""
    column: str | None
    reason: str
    values: Any


def refuse_spark(data: Any) -> None:
    """Refuses a Spark DataFrame, which is not data yet: reading it is a job."""
    if _comes_from("pyspark", data):
        raise UsageError(
            "this is a Spark DataFrame: load it with "
            "`from halocline import spark as hs; hs.load(df, db, table)`"
        )


def opened(data: Any, table: Any = None, *, rows: bool = True) -> Any:
    """The input itself, or what a path, a dataset or a lazy frame stands for.

    `table`: the pa.Schema that a file without types is read by. Without `rows` a lazy frame is
    asked for its columns only.
    """
    if isinstance(data, (str, os.PathLike)):
        from halocline.schema import files

        data = files.read(data) if files.is_path(data) else data
    if table is not None and hasattr(data, "typed_by"):
        return data.typed_by(table)
    if type(data).__module__ == "pyarrow._dataset":
        return (data.scanner() if hasattr(data, "scanner") else data).to_reader()
    if _comes_from("polars", data) and hasattr(data, "collect_batches"):
        if rows:
            return pa.RecordBatchReader.from_stream(data.collect_batches())
        return data.clear().collect()
    return data


def exports_arrow(data: Any) -> bool:
    """Does it speak the Arrow C data interface (or is it pyarrow's own)?"""
    return hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__")


def is_stream(data: Any) -> bool:
    """Does it hand out batches one after the other, without holding all of them?"""
    if isinstance(data, (pa.Table, pa.RecordBatch)) or not hasattr(data, "__arrow_c_stream__"):
        return False
    return not _comes_from("pandas", data) and not _comes_from("polars", data)


def stream(data: Any) -> tuple[Any, Iterator[Any]]:
    """The pa.Schema and the batches of a stream; they are not validated yet."""
    name = type(data).__name__
    if hasattr(data, "read_batches"):  # a file: its errors are ours already
        return data.schema, data.read_batches()
    try:
        reader = pa.RecordBatchReader.from_stream(data)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise SchemaError(f"{name} cannot be read as a table: {_reason(error)}") from error
    return reader.schema, _batches(reader, name)


def _batches(reader: Any, name: str) -> Iterator[Any]:
    with reader:
        while True:
            try:
                batch = reader.read_next_batch()
            except StopIteration:
                return
            except (pa.ArrowException, TypeError, ValueError) as error:
                raise SchemaError(f"{name} cannot be read as a table: {_reason(error)}") from error
            yield batch


def _reason(error: Exception) -> str:
    """What is wrong, without the trace that Arrow adds to an error of the caller's code."""
    return str(error).partition(". Detail: Python exception")[0]


def is_rows(data: Any) -> bool:
    """Rows one by one: a mapping, or any iterable of mappings that is not a frame."""
    return not exports_arrow(data) and (
        isinstance(data, Mapping)
        or (isinstance(data, Iterable) and not isinstance(data, (str, bytes, bytearray)))
    )


def read(data: Any) -> Any:
    """Reads any input as one pa.Table, every chunk validated, the pandas index still in it."""
    try:
        table = _read(data)
    except (pa.ArrowException, TypeError, ValueError) as error:
        name = type(data).__name__
        raise SchemaError(f"{name} cannot be read as a table: {_reason(error)}") from error
    for field, column in zip(table.schema, table.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowException as error:
            raise SchemaError(f"invalid Arrow data: {error}", column=field.name) from error
    return _owned(table) if _comes_from("pandas", data) else table


def _owned(table: Any) -> Any:
    """A copy of the columns whose memory the caller can still write to. 0.5 ms a megabyte."""
    for at, field in enumerate(table.schema):
        if pa.types.is_primitive(field.type):
            chunks = [pa.concat_arrays([chunk]) for chunk in table.column(at).chunks]
            table = table.set_column(at, field, pa.chunked_array(chunks, field.type))
    return table


def _comes_from(package: str, data: Any) -> bool:
    """Is it an object of that package? Told by its class: the package may not be installed."""
    return any(cls.__module__.split(".")[0] == package for cls in type(data).__mro__)


def _read(data: Any) -> Any:
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if hasattr(data, "read_batches"):
        return pa.Table.from_batches(data.read_batches(), schema=data.schema)
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data).read_all()
    if hasattr(data, "__arrow_c_array__"):
        return pa.Table.from_batches([pa.record_batch(data)])
    raise TypeError("pass a dict, a list of dicts, or anything that exports Arrow")


def index_columns(schema: Any) -> frozenset[str]:
    """The columns that pandas made of its index, as its own metadata tells."""
    try:
        listed = json.loads((schema.metadata or {})[b"pandas"])["index_columns"]
        return frozenset(name for name in listed if isinstance(name, str))
    except (KeyError, TypeError, ValueError):
        return frozenset()


def match(schema: Any, names: ColumnNames) -> dict[int, int]:
    """Which column of a table is which column of some input: position -> index in the input."""
    index = index_columns(schema)
    given: dict[int, int] = {}
    for source, name in enumerate(schema.names):
        if name in index:
            continue
        at = names.position(name)
        if at in given:
            raise SchemaError("is given twice", column=names.names[at])
        given[at] = source
    for source, name in enumerate(schema.names):
        if name in index and name in names:
            given.setdefault(names.position(name), source)
    return given


def check_rows(data: Iterable[Any], check: Callable[[Any], Any]) -> list[Any]:
    """Passes every row through a check; an error names the row."""
    checked: list[Any] = []
    for at, values in enumerate(data):
        try:
            checked.append(check(values))
        except SchemaError as error:
            raise SchemaError(error.reason, column=error.column, row=at) from None
    return checked


def from_partial(rows: Sequence[Mapping[int, Any]], arrow: Any) -> Any:
    """Rows of some columns, all of the same ones, as a table of these."""
    for at, row in enumerate(rows):
        if row.keys() != rows[0].keys():
            raise SchemaError("names other columns than the first row", row=at)
    fields = [arrow.field(at) for at in sorted(rows[0])]
    arrays = [
        pa.array([row[at] for row in rows], field.type)
        for at, field in zip(sorted(rows[0]), fields, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def conform(
    table: Any, columns: Sequence[ColumnLike], arrow: Any, given: Mapping[int, int], absent: bool
) -> Any:
    """The table in canonical form. `given` maps positions of the schema to positions of `table`.

    With `absent`, columns that are not given get their default, else null; without it they are
    left out.
    """
    arrays, fields = [], []
    for at, column in enumerate(columns):
        if at in given:
            arrays.append(_conform_column(table.column(given[at]), column))
        elif absent:
            arrays.append(_absent_column(table.num_rows, column))
        else:
            continue
        fields.append(arrow.field(at))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def sift(
    table: Any, columns: Sequence[ColumnLike], arrow: Any, given: Mapping[int, int], absent: bool
) -> tuple[Any, dict[int, tuple[str, str]]]:
    """The table in canonical form, and of each row that does not fit: the column, and why.

    In these rows the result has nulls. Texts of files become what they were read for.
    """
    arrays, fields, wrong = [], [], dict[int, tuple[str, str]]()
    for at, column in enumerate(columns):
        if at in given:
            values, reasons = _sift_column(table.column(given[at]), column)
            arrays.append(values)
            for row, reason in reasons.items():
                wrong.setdefault(row, (column.name, reason))
        elif absent:
            arrays.append(_absent_column(table.num_rows, column))
        else:
            continue
        fields.append(arrow.field(at))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields)), wrong


def _sift_column(values: Any, column: ColumnLike) -> tuple[Any, dict[int, str]]:
    from halocline.schema.files import parse, unparsed

    kept: list[Any] = []
    wrong: dict[int, str] = {}
    start = 0
    for chunk in values.chunks or [pa.array([], values.type)]:
        if kind(chunk.type) == "string" and kind(column.type) in PARSED:
            made, bad = parse(chunk, column.type)
            for at in pc.indices_nonzero(bad).to_pylist():
                wrong[start + at] = unparsed(chunk[at], column.type)
        else:
            made = pa.concat_arrays(_sift_chunk(chunk, column, start, wrong))
        if not column.nullable and made.null_count:
            for at in pc.indices_nonzero(made.is_null()).to_pylist():
                wrong.setdefault(start + at, "must not be null")
        kept.append(made)
        start += len(chunk)
    return pa.chunked_array(kept, column.type), wrong


def _sift_chunk(chunk: Any, column: ColumnLike, start: int, wrong: dict[int, str]) -> list[Any]:
    """The chunk in pieces, null where a value does not fit: halved until a piece is small."""
    try:
        return [_cast(chunk, column)]
    except WrongType as error:
        raise SchemaError(error.reason, column=column.name) from None
    except Unfit as error:
        if len(chunk) == 1:
            wrong[start] = _described(chunk[0], error.reason)
            return [pa.nulls(1, column.type)]
    if len(chunk) <= SINGLY and kind(chunk.type) in _OF_PYTHON:
        return [_sift_values(chunk.to_pylist(), column, start, wrong)]
    half = len(chunk) // 2
    first = _sift_chunk(chunk[:half], column, start, wrong)
    return [*first, *_sift_chunk(chunk[half:], column, start + half, wrong)]


def _sift_values(
    values: Sequence[Any], column: ColumnLike, start: int, wrong: dict[int, str]
) -> Any:
    """A few values one by one: 1 us each, while a cast of one takes 30."""
    check = checker(column.type) if column.domain is None else column.domain.check
    made = list[Any]()
    for at, value in enumerate(values):
        try:
            made.append(None if value is None else check(value))
        except Unfit as error:
            made.append(None)
            wrong[start + at] = error.reason
    return pa.array(made, column.type)


def _absent_column(rows: int, column: ColumnLike) -> Any:
    if column.default is not None:
        return column.default.many(rows)
    if not (column.nullable or column.identity) and rows:
        raise SchemaError("must not be null, and no value is given", column=column.name)
    return pa.chunked_array([pa.nulls(rows, column.type)], column.type)


def _conform_column(values: Any, column: ColumnLike) -> Any:
    chunks: list[Any] = []
    start = 0
    for chunk in values.chunks or [pa.array([], values.type)]:
        chunks += _conform_chunk(chunk, column, start)
        start += len(chunk)
    if not column.nullable:
        _refuse_nulls(chunks, column)
    return pa.chunked_array(chunks, column.type)


def _conform_chunk(chunk: Any, column: ColumnLike, start: int) -> list[Any]:
    if chunk.type != column.type and chunk.nbytes > CHUNK_BYTES_MAX and len(chunk) > 1:
        half = len(chunk) // 2
        return [
            *_conform_chunk(chunk.slice(0, half), column, start),
            *_conform_chunk(chunk.slice(half), column, start + half),
        ]
    try:
        return [_cast(chunk, column)]
    except WrongType as error:
        raise SchemaError(error.reason, column=column.name) from None
    except Unfit:
        at, reason = _first_unfit(chunk, column)
        raise SchemaError(reason, column=column.name, row=start + at) from None


def _cast(chunk: Any, column: ColumnLike) -> Any:
    return exact_cast(chunk, column.type) if column.domain is None else column.domain.fit(chunk)


def _first_unfit(chunk: Any, column: ColumnLike) -> tuple[int, str]:
    """The first row that is refused, and why: halve the chunk until one row is left."""
    low, high = 0, len(chunk)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            _cast(chunk.slice(low, middle - low), column)
            low = middle
        except Unfit:
            high = middle
    try:
        _cast(chunk.slice(low, 1), column)
    except Unfit as error:
        return low, _described(chunk[low], error.reason)
    raise AssertionError("a refused chunk has a refused row")


def _described(scalar: Any, reason: str) -> str:
    """The value in front of the reason. Values by their own words only: some cannot be printed."""
    try:
        text = str(scalar)
    except Exception:  # noqa: BLE001 (a message must not fail, whatever it shows)
        text = f"a value of type {scalar.type}"
    return f"{text if len(text) <= 60 else text[:57] + '...'} {reason}"


def _refuse_nulls(chunks: Sequence[Any], column: ColumnLike) -> None:
    start = 0
    for chunk in chunks:
        if chunk.null_count:
            row = start + pc.index(chunk.is_null(), True).as_py()
            raise SchemaError("must not be null", column=column.name, row=row)
        start += len(chunk)

"""Files as input: Parquet, CSV and JSON, read as Arrow batches one after the other.

    hc.read("orders.csv") --FileInput--> schema, batches --> insert, upsert, create_table, frames

Parquet has types, and pyarrow hands them on as they are. CSV and JSON are read by a DuckDB of
their own, which guesses the types from the first rows; `types=` overrules it, and so does the table
that the rows are inserted into where it can only gain: "007" stays a text in a column of text, and
"12.10" becomes that very decimal. Nothing is read before somebody asks, and the file is read anew
each time it is asked for.

Several files may be one input: a folder, or a path with `*`, as long as all have one format and
the same columns.

Invariants
- No network: what DuckDB would fetch or install for a path is switched off.
- An error names the file, and the line or row where it is known.
- Text becomes an integer, a decimal or a date by Arrow, which refuses what DuckDB would round. A
  number of JSON has been a double before we see it; a decimal of more digits stands there as text.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from halocline.errors import NotFoundError, SchemaError, UsageError
from halocline.schema.define import read_type
from halocline.schema.typenames import type_text
from halocline.schema.types import TIME, TIMESTAMP, TIMESTAMPTZ, kind
from halocline.show import cell_text

BATCH_ROWS: Final = 65536
_FORMATS: Final = {
    suffix: format
    for format, suffixes in {
        "parquet": "parquet pq",
        "csv": "csv tsv",
        "json": "json ndjson jsonl",
    }.items()
    for suffix in suffixes.split()
}
_PACKED: Final = (".gz", ".zst")
_DUCK: Final = {
    pa.bool_(): "BOOLEAN",
    pa.float32(): "REAL",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    TIME: "TIME",
    TIMESTAMP: "TIMESTAMP",
    TIMESTAMPTZ: "TIMESTAMPTZ",
}
_PARSED: Final = frozenset(["int", "decimal", "date"])
"""Kinds that are read as text and parsed here: DuckDB rounds 1.7 to an integer without a word."""
_GAINS: Final = frozenset([("timestamp", "timestamptz"), ("date", "timestamp")])
_SETTINGS: Final[dict[str, Any]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "temp_directory": "",
    "threads": "2",
    "memory_limit": "512MB",
}


def read(
    path: str | os.PathLike[str],
    format: str | None = None,
    types: Mapping[str, Any] | None = None,
    **options: Any,
) -> FileInput:
    """Name a Parquet, CSV or JSON file as input for `insert`, `upsert`, `create_table` or a frame.

    path: a file, a folder of files, or a path with `*`. format: "parquet", "csv" or "json", if the
    name does not say it; `.gz` and `.zst` are unpacked. types: column -> type, as in a definition,
    for columns of CSV and JSON whose type DuckDB would guess otherwise. options: those of DuckDB's
    `read_csv` and `read_json`, such as `delimiter=";"` or `na_values="-"`.

    NotFoundError when there is no such file, SchemaError naming file and line when one cannot be
    read, UsageError when the format is unknown.

        >>> rows = hc.read("orders.csv", types={"zip": str})
        >>> db.create_table("orders", rows, primary_key="id")
        >>> db.run(lambda txn: txn.insert("orders", rows))
    """
    paths = _paths(os.fspath(path))
    found = {format or _format_of(one) for one in paths}
    if len(found) > 1 or not found <= {*_FORMATS.values()}:
        raise UsageError(f"format= is 'parquet', 'csv' or 'json', and one for all, not {found}")
    chosen = {name: read_type(type, name)[0] for name, type in (types or {}).items()}
    return FileInput(paths, found.pop(), chosen, options)


class FileInput:
    """One or several files as a table: its `schema`, and its rows for whoever reads Arrow."""

    def __init__(
        self,
        paths: Sequence[str],
        format: str,
        types: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> None:
        if format == "parquet" and (types or options):
            raise UsageError("a Parquet file has types of its own: leave types= and options out")
        if bad := [name for name, type in types.items() if not _duck_type(type)]:
            raise UsageError(f"types= cannot read {bad[0]!r} as {type_text(types[bad[0]])}")
        self.paths, self.format = list(paths), format
        self._types, self._options = dict(types), dict(options)

    def __repr__(self) -> str:
        more = f" and {len(self.paths) - 1} more" if len(self.paths) > 1 else ""
        return f"<{self.format} {self.paths[0]}{more}>"

    @cached_property
    def schema(self) -> pa.Schema:
        """Columns and types, as a pa.Schema."""
        if self.format == "parquet":
            from pyarrow import parquet

            return _told(self.paths[0], lambda: parquet.read_schema(self.paths[0]))
        with _duck() as duck:
            found = _told(self._name, lambda: self._relation(duck).limit(0).to_arrow_table())
        for at, field in enumerate(found.schema):
            if (wanted := self._types.get(field.name)) is not None:
                found = found.set_column(at, field.with_type(wanted), pa.nulls(0, wanted))
        return found.schema

    def read_batches(self) -> Iterator[pa.RecordBatch]:
        """All rows, some at a time."""
        return self._parquet() if self.format == "parquet" else self._text()

    def typed_by(self, fields: pa.Schema) -> FileInput:
        """The input with its columns read as these types, where nobody has said otherwise."""
        if self.format == "parquet":
            return self
        wanted = {field.name.casefold(): field.type for field in fields}
        types = {
            field.name: wanted[field.name.casefold()]
            for field in self.schema
            if field.name not in self._types
            and field.name.casefold() in wanted
            and _gains(field.type, wanted[field.name.casefold()])
        }
        return FileInput(self.paths, self.format, {**types, **self._types}, self._options)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        reader = pa.RecordBatchReader.from_batches(self.schema, self.read_batches())
        return reader.__arrow_c_stream__(requested_schema)

    def _parquet(self) -> Iterator[pa.RecordBatch]:
        from pyarrow import parquet

        for path in self.paths:
            with _told(path, lambda path=path: parquet.ParquetFile(path)) as file:
                if not file.schema_arrow.equals(self.schema):
                    raise SchemaError(f"{path} has other columns than {self.paths[0]}")
                yield from _told_each(path, file.iter_batches(BATCH_ROWS))

    def _text(self) -> Iterator[pa.RecordBatch]:
        with _duck() as duck:
            reader = _told(self._name, lambda: self._relation(duck).to_arrow_reader(BATCH_ROWS))
            done = 0
            for batch in _told_each(self._name, reader):
                yield self._parsed(batch, done)
                done += batch.num_rows

    def _parsed(self, batch: pa.RecordBatch, done: int) -> pa.RecordBatch:
        """The batch with texts made into what they were read for."""
        columns = []
        for field, column in zip(self.schema, batch.columns, strict=True):
            if kind(field.type) in _PARSED and kind(column.type) == "string":
                column, bad = parse(column, field.type)
                if (at := pc.index(bad, True).as_py()) >= 0:
                    text = cell_text(batch.column(field.name)[at].as_py())
                    reason = f"{self._name}: {text!r} is not {type_text(field.type)}"
                    raise SchemaError(reason, column=field.name, row=done + at)
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    @property
    def _name(self) -> str:
        return self.paths[0] if len(self.paths) == 1 else f"{self.paths[0]} and others"

    def _relation(self, duck: Any) -> Any:
        named = {name: _duck_type(type) for name, type in self._types.items()}
        if self.format == "csv":
            return duck.read_csv(self.paths, dtype=named or None, **self._options)
        found = duck.read_json(self.paths, **self._options)
        if not named:
            return found
        columns = dict(zip(found.columns, map(str, found.types), strict=True)) | named
        return duck.read_json(self.paths, columns=columns, **self._options)


def parse(texts: pa.Array, type: Any) -> tuple[pa.Array, pa.Array]:
    """Texts as integers, decimals or dates; those that are none are null, and marked."""
    texts = pc.utf8_trim_whitespace(texts)
    try:
        return pc.cast(texts, type), pa.repeat(False, len(texts))
    except pa.ArrowInvalid:
        if len(texts) == 1:
            return pa.nulls(1, type), pa.array([True])
    half = len(texts) // 2
    parts = [parse(texts.slice(0, half), type), parse(texts.slice(half), type)]
    return pa.concat_arrays([one for one, _ in parts]), pa.concat_arrays([bad for _, bad in parts])


def _gains(found: Any, wanted: Any) -> bool:
    """Is it better to read a column as the table's type than as the one that was guessed?"""
    source, target = kind(found), kind(wanted)
    if not _duck_type(wanted) or found == wanted:
        return False
    return "string" in (source, target) or target == "decimal" or (source, target) in _GAINS


def is_path(given: str | os.PathLike[str]) -> bool:
    """Does it name a file, or a file that could be there? Any other text is a mistake."""
    if isinstance(given, os.PathLike):
        return True
    return _suffix(given) in _FORMATS or os.path.exists(given)


def _paths(path: str) -> list[str]:
    """The files that a path means, in order."""
    if os.path.isfile(path):
        return [path]
    if os.path.isdir(path):
        files = sorted(one for one in Path(path).rglob("*") if one.is_file())
        found = [str(one) for one in files if not one.name.startswith((".", "_"))]
    else:
        found = sorted(glob.glob(path)) if glob.has_magic(path) else []
    if not found:
        raise NotFoundError("file", path)
    return found


def _format_of(path: str) -> str:
    suffix = _suffix(path)
    if suffix not in _FORMATS:
        endings = ", ".join(f".{one}" for one in _FORMATS)
        raise UsageError(f"{path} does not end in {endings}: say format='parquet', 'csv' or 'json'")
    return _FORMATS[suffix]


def _suffix(path: str) -> str:
    name = path.lower()
    for packed in _PACKED:
        name = name.removesuffix(packed)
    return name.rpartition(".")[2]


def _duck_type(type: Any) -> str:
    """What DuckDB reads a canonical type as; empty for nested ones and bytes."""
    return "VARCHAR" if kind(type) in _PARSED else _DUCK.get(type, "")


def _duck() -> Any:
    import duckdb

    duck = duckdb.connect(":memory:", config=_SETTINGS)
    duck.execute("set TimeZone = 'UTC'")
    return duck


def _told(path: str, step: Any) -> Any:
    """Take a step that reads a file; what goes wrong is told with the file's name."""
    try:
        return step()
    except FileNotFoundError:
        raise NotFoundError("file", path) from None
    except Exception as error:
        raise _trouble(path, error) from error


def _told_each(path: str, batches: Any) -> Iterator[Any]:
    steps = iter(batches)
    while (batch := _told(path, lambda: next(steps, None))) is not None:
        yield batch


def _trouble(path: str, error: Exception) -> Exception:
    """An error of pyarrow or DuckDB in our words: file, line and reason, without its advice."""
    text = str(error)
    if isinstance(error, TypeError) or "argument" in text:
        return UsageError(f"{path}: {text}")
    line = re.search(r"CSV Error on Line: (\d+)\n(?:Original Line: (.*)\n)?(.*)", text)
    if line is None:
        return SchemaError(f"{path}: {text.partition(chr(10))[0]}")
    file = re.search(r"^\s*file = (.*)$", text, re.MULTILINE)
    column = re.search(r'column "(.*?)"', line[3])
    where = f"{file[1] if file else path}, line {line[1]}"
    return SchemaError(f"{where}: {line[3]}", column=column[1] if column else None)

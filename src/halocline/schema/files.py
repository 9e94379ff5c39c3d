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

import codecs
import glob
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from halocline.errors import HaloclineError, NotFoundError, SchemaError, UsageError
from halocline.schema.convert import PARSED, Misfit
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
_GAINS: Final = frozenset([("timestamp", "timestamptz"), ("date", "timestamp")])
_ENCODINGS: Final = {"utf-8": "utf-8", "iso8859-1": "latin-1", "utf-16": "utf-16"}
"""Those of DuckDB, by the name that Python has for them."""
_SQL_NAMES: Final = {
    "sep": "delim",
    "delimiter": "delim",
    "dtype": "types",
    "na_values": "nullstr",
    "skiprows": "skip",
    "quotechar": "quote",
    "escapechar": "escape",
    "lineterminator": "new_line",
    "decimal": "decimal_separator",
}
"""What SQL calls the options of DuckDB's function of Python, where the two differ."""
_QUOTES_ARE_TEXT: Final = "quotechar='' says that quotes are text"
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
    `read_csv` and `read_json`, such as `delimiter=";"` or `na_values="-"`; of CSV also
    `encoding=`: "utf-8", "latin-1" or "utf-16".

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
        if all(os.path.getsize(path) == 0 for path in self.paths):
            raise SchemaError(f"{self._name}: the file is empty")
        with _duck() as duck:
            found = _told(self._name, lambda: self._relation(duck).limit(0).to_arrow_table())
        for at, field in enumerate(found.schema):
            if (wanted := self._types.get(field.name)) is not None:
                found = found.set_column(at, field.with_type(wanted), pa.nulls(0, wanted))
        return found.schema

    def read_batches(self, misfits: list[Misfit] | None = None) -> Iterator[pa.RecordBatch]:
        """All rows, some at a time.

        With a list for misfits, lines of a CSV file that cannot be read go there, and texts are
        left for `sift` to parse.
        """
        return self._parquet() if self.format == "parquet" else self._text(misfits)

    def typed_by(self, fields: pa.Schema) -> FileInput:
        """The input with its columns read as these types, where nobody has said otherwise."""
        if self.format == "parquet":
            return self
        wanted = {field.name.casefold(): field.type for field in fields}
        # A broken line among the first must not keep the columns from being found.
        further = {"ignore_errors": True} if self.format == "csv" else {}
        guessed = FileInput(self.paths, self.format, self._types, {**further, **self._options})
        types = {
            field.name: wanted[field.name.casefold()]
            for field in guessed.schema
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

    def _text(self, misfits: list[Misfit] | None) -> Iterator[pa.RecordBatch]:
        with _duck() as duck:
            keeps = {"store_rejects": True} if misfits is not None and self.format == "csv" else {}
            relation = _told(self._name, lambda: self._relation(duck, keeps))
            reader = _told(self._name, lambda: relation.to_arrow_reader(BATCH_ROWS))
            done = 0
            for read in _told_each(self._name, reader):
                batch = self._quoted(read, done, misfits) if self.format == "csv" else read
                yield batch if misfits is not None else self._parsed(batch, done)
                done += batch.num_rows
            if misfits is not None and keeps:
                misfits += _rejected(duck)

    def _quoted(
        self, batch: pa.RecordBatch, done: int, misfits: list[Misfit] | None
    ) -> pa.RecordBatch:
        """The batch without rows in which a quote was opened and not closed.

        Where DuckDB meets one it takes the quotes of the whole file for text. A file that it finds
        quotes in is read as it should be, and may have a text that begins with one.
        """
        if "quotechar" in self._options:
            return batch
        keep = None
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if kind(column.type) != "string" or not pc.any(pc.starts_with(column, '"')).as_py():
                continue
            odd = pc.equal(pc.bit_wise_and(pc.count_substring(column, '"'), 1), 1)
            bad = pc.fill_null(pc.and_(pc.starts_with(column, '"'), odd), False)
            if pc.any(bad).as_py() and self._has_quotes:
                return batch
            for at in np.flatnonzero(np.asarray(bad)).tolist():
                reason = f"{self._name}: a quote is opened and not closed; {_QUOTES_ARE_TEXT}"
                if misfits is None:
                    raise SchemaError(reason, column=name, row=done + at)
                if keep is None or keep[at].as_py():
                    misfits.append(Misfit(None, name, reason, batch.slice(at, 1).to_pylist()[0]))
            keep = pc.invert(bad) if keep is None else pc.and_(keep, pc.invert(bad))
        return batch if keep is None else batch.filter(keep)

    @cached_property
    def _has_quotes(self) -> bool:
        """Does DuckDB find quotes in every file?"""
        named = {_SQL_NAMES.get(key, key): value for key, value in self._options.items()}
        told = "".join(f", {key}={_sql(value)}" for key, value in named.items())
        with _duck() as duck:
            texts = [f"select quote from sniff_csv({_sql(path)}{told})" for path in self.paths]
            return all(_told(self._name, duck.execute(text).fetchone)[0] == '"' for text in texts)

    def _parsed(self, batch: pa.RecordBatch, done: int) -> pa.RecordBatch:
        """The batch with texts made into what they were read for."""
        columns = []
        for field, column in zip(self.schema, batch.columns, strict=True):
            if kind(field.type) in PARSED and kind(column.type) == "string":
                column, bad = parse(column, field.type)
                if (at := pc.index(bad, True).as_py()) >= 0:
                    reason = f"{self._name}: {unparsed(batch.column(field.name)[at], field.type)}"
                    raise SchemaError(reason, column=field.name, row=done + at)
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    @property
    def _name(self) -> str:
        return self.paths[0] if len(self.paths) == 1 else f"{self.paths[0]} and others"

    def _relation(self, duck: Any, further: Mapping[str, Any] = {}) -> Any:
        named = {name: _duck_type(type) for name, type in self._types.items()}
        if self.format == "csv":
            options = {**self._options, **further} | ({"dtype": named} if named else {})
            if "encoding" in options:
                return duck.sql(_csv_query(self.paths, options))
            return duck.read_csv(self.paths, **options)
        found = duck.read_json(self.paths, **self._options)
        if not named:
            return found
        columns = dict(zip(found.columns, map(str, found.types), strict=True)) | named
        return duck.read_json(self.paths, columns=columns, **self._options)


def _csv_query(paths: Sequence[str], options: Mapping[str, Any]) -> str:
    """`read_csv` as SQL: DuckDB's function of Python knows no encoding but UTF-8."""
    name = str(options["encoding"])
    try:
        encoding = _ENCODINGS[codecs.lookup(name).name]
    except LookupError:
        known = ", ".join(map(repr, _ENCODINGS.values()))
        raise UsageError(f"encoding= is one of {known}, not {name!r}: convert the file") from None
    named = {_SQL_NAMES.get(key, key): value for key, value in options.items()}
    given = {**named, "encoding": encoding}
    if bad := [key for key in given if not key.isidentifier()]:
        raise UsageError(f"{bad[0]!r} is no option of read_csv")
    told = "".join(f", {key}={_sql(value)}" for key, value in given.items())
    return f"from read_csv({_sql(list(paths))}{told})"


def _sql(value: Any) -> str:
    """A Python value as a constant of SQL."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_sql(str(key))}: {_sql(one)}" for key, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_sql, value)) + "]"
    if value is None or isinstance(value, (bool, int, float)):
        return "null" if value is None else str(value)
    return "'" + str(value).replace("'", "''") + "'"


def parse(texts: Any, type: Any) -> tuple[Any, Any]:
    """Texts as integers, decimals or dates; those that are none are null, and marked.

    What looks right is cast at once, and of the rest every text once: dirt repeats itself.
    """
    texts = pc.utf8_trim_whitespace(texts)
    try:
        return pc.cast(texts, type), pa.repeat(False, len(texts))
    except pa.ArrowInvalid:
        sure = pc.fill_null(pc.match_substring_regex(texts, _sure(type)), True)
    found = pc.cast(pc.if_else(sure, texts, None), type)
    rest = pc.unique(pc.filter(texts, pc.invert(sure)))
    parsed = pa.array([_parsed_or_none(text, type) for text in rest], type)
    at = pc.index_in(texts, rest)
    found = pc.coalesce(found, parsed.take(at))
    return found, pc.and_(pc.is_null(found), pc.is_valid(texts))


def _sure(type: Any) -> str:
    """What every text of that shape can be cast from."""
    if kind(type) == "date":
        return "^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])$"
    if kind(type) == "int":
        return f"^-?[0-9]{{1,{(type.bit_width - 1) * 3 // 10}}}$"
    whole, scale = type.precision - type.scale, type.scale
    return f"^-?[0-9]{{1,{max(whole, 1)}}}([.][0-9]{{1,{scale}}})?$" if scale and whole else "^0$"


def _parsed_or_none(text: Any, type: Any) -> Any:
    try:
        return pc.cast(text, type)
    except pa.ArrowInvalid:
        return None


def unparsed(text: Any, type: Any) -> str:
    """Why a text was not parsed."""
    return f"{cell_text(text.as_py())!r} is not {type_text(type)}"


def _rejected(duck: Any) -> list[Misfit]:
    """The lines that DuckDB could not read, each once."""
    found = duck.execute(
        "select file_path, line, column_name, csv_line, error_message from reject_errors "
        "join reject_scans using (scan_id, file_id) order by file_path, line, column_idx"
    ).fetchall()
    once = {(path, line): rest for path, line, *rest in reversed(found)}
    return [
        Misfit(None, column, f"{path}, line {line}: {text}", {"line": csv_line})
        for (path, line), (column, csv_line, text) in reversed(once.items())
    ]


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
    return "VARCHAR" if kind(type) in PARSED else _DUCK.get(type, "")


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
    except HaloclineError:
        raise
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

"""Source: one table as DuckDB is to see it, files and memory under one name.

    ScanPlan --source_of--> Source --attach--> a temporary view in the cursor of the query

        select columns from read_parquet([clean files])
        union all select columns from read_parquet([dirty files]) join words on _rowid >> 6 = word
                  where the word says that _rowid is alive    many rows (mask.py)
        union all select columns from read_parquet([dirty files]) anti join dead on _rowid
        union all select columns from read_parquet([late files]) anti join ... where _commit_ts <= S
        union all select columns from memory                  L0 and rows of the transaction itself

Files from before the table was altered are read by the ids of their columns, all versions in one
scan. Where DuckDB would be wrong or fail so, they are read by the names that they have, one scan
for each version, and a projection shows them in the shape of today.

DuckDB opens the files itself, reads only the columns and row groups a query needs, and pushes
filters through the union and the joins into each scan. It never sees a file whose digest has
not been compared with the catalog's: a damaged Parquet file may be answered with wrong rows.

A store without local paths is read through the verified reader into Arrow instead. So is one whose
path has characters that DuckDB takes for a pattern.

Invariants
- Names and literals enter generated SQL through `quote` and `literal` alone.
- The view has the columns of the table in their order, then `_rowid` if that was asked for.

Not here: which objects, and what is dead in them (plan.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from halocline.catalog import ObjectEntry, SchemaVersion
from halocline.errors import UnavailableError
from halocline.objects import ObjectFile, Shelf
from halocline.objects.columns import COMMIT_TS, HIDDEN, ROWID
from halocline.objects.stats import VECTOR_ROWS
from halocline.read.mask import JOIN, Mask, Words, split_dirty, words_of
from halocline.read.plan import NONE, ScanPlan
from halocline.read.scan import scan_objects
from halocline.schema.batches import Int64Array, widest
from halocline.schema.evolve import KEPT, is_wider
from halocline.schema.schema import Schema
from halocline.schema.types import kind

if TYPE_CHECKING:
    import duckdb

_TYPES: Final = {
    "bool": "boolean",
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "integer",
    "int64": "bigint",
    "float": "float",
    "double": "double",
    "string": "varchar",
    "binary": "blob",
    "date32[day]": "date",
    "time64[us]": "time",
    "timestamp[us]": "timestamp",
    "timestamp[us, tz=UTC]": "timestamptz",
}
PATTERNS: Final = frozenset("*?[")
"""In a file name these make DuckDB look for other files as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Rows in memory and verified files that together are one table."""

    columns: tuple[str, ...]
    memory: pa.Table
    shelf: Shelf
    schema: Schema
    versions: Sequence[SchemaVersion] = ()
    """Every schema that the table has had: files from before an alter have those of then."""
    clean: tuple[ObjectFile, ...] = ()
    dirty: tuple[ObjectFile, ...] = ()
    late: tuple[ObjectFile, ...] = ()
    masks: tuple[Mask, ...] = ()
    """Dirty files as well, but with the dead as bits."""
    dead: Int64Array = field(default_factory=lambda: NONE)
    ts: int = 0

    @property
    def vector_bytes(self) -> int:
        """Most bytes of rows that DuckDB has decoded at once: VECTOR_ROWS, or a block of a file."""
        held = max((file.stats.vector_bytes for file in self.files), default=0)
        return max(held, widest(self.memory, VECTOR_ROWS))

    @property
    def files(self) -> tuple[ObjectFile, ...]:
        masked = [_file(entry) for mask in self.masks for entry in mask.entries]
        return (*self.clean, *masked, *self.dirty, *self.late)

    def attach(self, cursor: duckdb.DuckDBPyConnection, name: str, number: int) -> None:
        """Make the table known to a cursor under this name."""
        if not self.files:
            cursor.register(name, self.memory)
            return
        self.shelf.check_root()  # DuckDB opens files by their path
        memory, dead = f"_memory_{number}", f"_dead_{number}"
        if self.memory.num_rows:
            cursor.register(memory, self.memory)
        if len(self.dead) and (self.dirty or self.late):
            cursor.register(dead, pa.table({ROWID: pa.array(self.dead)}))
        words = {f"_words_{number}_{at}": words_of(mask) for at, mask in enumerate(self.masks)}
        for table, one in words.items():
            # A table of its own, not Arrow: DuckDB knows the bounds of its columns.
            cursor.register("_words", one.table())
            cursor.execute(f"create temp table {table} as select * from _words")
            cursor.unregister("_words")
        cursor.execute(f"create temp view {quote(name)} as {self.text(memory, dead, words)}")

    def text(self, memory: str, dead: str, words: Mapping[str, Words]) -> str:
        """The SELECT behind the view, over tables of these names."""
        shown = ", ".join(quote(column) for column in self.columns)
        less = ""
        if len(self.dead):
            less = f" as f anti join {quote(dead)} as d on f.{ROWID} = d.{ROWID}"
        parts = [
            f"select {shown} from {self._files(files, hidden)}{tail}"
            for files, hidden, tail in (
                (self.clean, [ROWID], ""),
                (self.dirty, [ROWID], less),
                (self.late, [ROWID, COMMIT_TS], f"{less} where {COMMIT_TS} <= {int(self.ts)}"),
            )
            if files
        ]
        parts += map(self._masked, self.masks, words, words.values())
        if self.memory.num_rows:
            parts.append(f"select {shown} from {quote(memory)}")
        return " union all ".join(parts)

    def _masked(self, mask: Mask, table: str, words: Words) -> str:
        """The SELECT of a group of files less the rows that are dead in a table of words."""
        shown = ", ".join(quote(column) for column in self.columns)
        files = self._files(map(_file, mask.entries))
        return f"select {shown} from {files} join {table} on {JOIN} where {words.test}"

    def blame(self, message: str, *, anyway: bool) -> None:
        """After an error: raise what is wrong with a file that it names, or with any (`anyway`)."""
        self.shelf.check_root()
        paths = {self.shelf.path_of(file): file for file in self.files}
        named = [file for path, file in paths.items() if path in message]
        for file in named or (paths.values() if anyway else ()):
            self.shelf.reader.verify(file, again=True)
        if named and anyway:
            raise UnavailableError(f"{named[0].key} cannot be read: {message}")

    def _files(self, files: Iterable[ObjectFile], hidden: Sequence[str] = (ROWID,)) -> str:
        """Files as a table with the columns of today, and hidden ones."""
        alike: dict[tuple[int, tuple[int, ...]], list[str]] = {}
        for file in files:
            stats, path = file.stats, literal(self.shelf.path_of(file))
            is_new = stats.schema_version == self.schema.version
            likeness = (stats.schema_version, () if is_new else stats.extras)
            alike.setdefault(likeness, []).append(path)
        older = [
            (self.versions[one].schema, extras)
            for one, extras in alike
            if one != self.schema.version
        ]
        # A folder called "year=2024" must not become a column.
        always = "hive_partitioning = false"
        if all(may_go_by_id(*one, self.schema) for one in older):
            paths = ", ".join(path for group in alike.values() for path in group)
            ids = f"schema = {by_id(self.schema, hidden)}, " if older else ""
            return f"read_parquet([{paths}], {ids}{always})"
        parts = []
        for (version, extras), group in alike.items():
            written = self.versions[version].schema
            shown = ", ".join([*projection(written, extras, self.schema), *hidden])
            parts.append(f"select {shown} from read_parquet([{', '.join(group)}], {always})")
        return f"({' union all '.join(parts)})"


def source_of(
    shelf: Shelf,
    schema: Schema,
    plan: ScanPlan,
    memory: pa.Table,
    *,
    rowids: bool = False,
    versions: Sequence[SchemaVersion] = (),
) -> Source:
    """A plan and its rows in memory, ready for DuckDB."""
    columns = (*schema.names, *([ROWID] if rowids else []))
    if not plan.objects:
        return Source(columns=columns, memory=memory, shelf=shelf, schema=schema)
    if not readable_by_others(shelf):
        tables = list(scan_objects(shelf, schema, plan, rowids=rowids))
        memory = pa.concat_tables([*(table.cast(memory.schema) for table in tables), memory])
        return Source(columns=columns, memory=memory, shelf=shelf, schema=schema)
    masks, rest = split_dirty(plan.dirty, plan.dead) if plan.dirty else ([], ())
    for mask in masks:
        _verified(shelf, mask.entries)
    return Source(
        columns=columns,
        memory=memory,
        shelf=shelf,
        schema=schema,
        versions=versions,
        clean=_verified(shelf, plan.clean),
        dirty=_verified(shelf, rest),
        late=_verified(shelf, plan.late),
        masks=tuple(masks),
        dead=plan.dead,
        ts=plan.ts,
    )


def projection(written: Schema, extras: Sequence[int], shown: Schema) -> list[str]:
    """The columns of one version out of a file that was written in another, as SQL.

    A narrower type is tried: rows that do not fit are newer than every snapshot that asks for it.
    """
    names = {column.id: (column.name, column.type) for column in written.columns}
    found = []
    for column in shown.columns:
        name, type = names.get(column.id, ("", None))
        if not name and column.id in extras:
            name = f"{KEPT}{column.id}"
        if not name:
            text = constant_sql(column.absent and column.absent.value, column.type)
        elif type == column.type:
            text = quote(name)
        else:
            text = f"try_cast({quote(name)} as {type_sql(column.type)})"
        found.append(f"{text} as {quote(column.name)}")
    return found


def may_go_by_id(written: Schema, extras: Sequence[int], shown: Schema) -> bool:
    """Can DuckDB itself show files of one version in another, by the ids of their columns?

    It fails at a value that does not fit a narrower type, and fields of nested types have no ids.
    """
    types = {column.id: column.type for column in written.columns}
    for column in shown.columns:
        type = types.get(column.id)
        if pa.types.is_nested(column.type) or (type is None and column.id in extras):
            return False
        if type not in (None, column.type) and not is_wider(type, column.type):
            return False
    return True


def by_id(shown: Schema, hidden: Sequence[str]) -> str:
    """The columns of a version and hidden ones by id, as read_parquet takes them.

    What a file lacks is given as text, because all these values must have one type.
    """
    columns = [*shown.columns, *(HIDDEN[name] for name in hidden)]
    fields = []
    for column in columns:
        absent = "null::varchar"
        if column.absent:
            absent = f"cast({constant_sql(column.absent.value, column.type)} as varchar)"
        name, type = literal(column.name), literal(type_sql(column.type))
        fields.append(f"{{name: {name}, type: {type}, default_value: {absent}}}")
    # Two lists take DuckDB less time to read than pairs do: half a millisecond for six columns.
    ids = ", ".join(str(int(column.id)) for column in columns)
    return f"map([{ids}], [{', '.join(fields)}])"


def type_sql(type: pa.DataType) -> str:
    """A canonical type as DuckDB names it."""
    family = kind(type)
    if family == "list":
        return f"{type_sql(type.value_type)}[]"
    if family == "struct":
        fields = [type.field(at) for at in range(type.num_fields)]
        return f"struct({', '.join(f'{quote(one.name)} {type_sql(one.type)}' for one in fields)})"
    if family == "decimal":
        return f"decimal({int(type.precision)}, {int(type.scale)})"
    return _TYPES[str(type)]


def constant_sql(value: Any, type: pa.DataType) -> str:
    """A canonical value as a constant of its type, whatever is in it."""
    family = kind(type)
    if value is None:
        text = "null"
    elif family == "list":
        text = f"[{', '.join(constant_sql(one, type.value_type) for one in value)}]"
    elif family == "struct":
        fields = [type.field(at) for at in range(type.num_fields)]
        named = [f"{quote(one.name)}: {constant_sql(value[one.name], one.type)}" for one in fields]
        text = f"{{{', '.join(named)}}}"
    elif family in ("string", "binary"):
        octets = value.encode() if family == "string" else value
        text = f"from_hex('{octets.hex()}')"
        text = f"decode({text})" if family == "string" else text
    else:
        shown = format(value, "f") if family == "decimal" else str(value)
        text = literal(shown)
    return f"cast({text} as {type_sql(type)})"


def readable_by_others(shelf: Shelf) -> bool:
    """Can DuckDB open the objects by their path?"""
    return bool(shelf.root) and PATTERNS.isdisjoint(shelf.root)


def _verified(shelf: Shelf, entries: Sequence[ObjectEntry]) -> tuple[ObjectFile, ...]:
    files = tuple(map(_file, entries))
    for file in files:
        shelf.reader.verify(file)
    return files


def _file(entry: ObjectEntry) -> ObjectFile:
    assert entry.file is not None
    return entry.file


def quote(identifier: str) -> str:
    """Puts a name into generated SQL."""
    return '"' + identifier.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Puts a text into generated SQL."""
    return "'" + text.replace("'", "''") + "'"

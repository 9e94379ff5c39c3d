"""Definitions: what a caller writes when creating a table, and what the catalog keeps of it.

    {"id": int, "amount": "decimal(12,2) not null"} | pa.Schema | any frame | path of a file
        --read_definition--> [(name, canonical type, nullable, ...), ...]

A dict maps names to Python types, type names, Arrow types, or a Column (column.py) around one of
them; its columns are nullable unless a type name or the Column says otherwise. A pa.Schema keeps
its `nullable` flags. Of a frame or a file only the schema is taken, never a row, and the index that
pandas adds is dropped.

A key names columns that exist, none twice, and no floats, lists or structs: NaN has no place in an
order, and nested values have none that all engines share. Names: see names.py.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from halocline.errors import SchemaError
from halocline.schema.checks import RowCheck, stored_checks
from halocline.schema.column import (
    Column,
    Default,
    check_comment,
    read_default,
    stored_default,
)
from halocline.schema.compression import ZSTD, check_codec
from halocline.schema.convert import index_columns, opened, refuse_spark
from halocline.schema.domains import Domain, read_domain
from halocline.schema.names import ColumnNames, check_names
from halocline.schema.typenames import parse_type, type_text
from halocline.schema.types import TIME, TIMESTAMP, canonical, kind

_PYTHON_TYPES: Final[dict[Any, Any]] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    dt.date: pa.date32(),
    dt.datetime: TIMESTAMP,
    dt.time: TIME,
}
_NO_KEY: Final = frozenset(["float", "list", "struct"])


class Defined(NamedTuple):
    """One column of a definition."""

    name: str
    type: Any
    nullable: bool
    domain: Domain | None = None
    default: Default | None = None
    comment: str = ""
    since: int = 0
    absent: Default | None = None
    identity: bool = False
    compression: str = ""


class Stored(NamedTuple):
    """A schema as the catalog keeps it."""

    ids: list[int]
    columns: list[Defined]
    key: tuple[int, ...]
    last_id: int
    version: int
    comment: str
    checks: tuple[RowCheck, ...]
    compression: str


class Properties(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What a stored column has besides its type; what is absent it has not."""

    constant: bytes | None = None
    """The default, as rows of one column (codec.py)."""
    function: str = ""
    """The function that makes the default."""
    comment: str = ""
    since: Annotated[int, msgspec.Meta(ge=0)] = 0
    """The version of the schema that added it."""
    absent: bytes | None = None
    """What older rows show, as the default."""
    identity: bool = False
    codec: str = ""
    """Of its pages in objects; empty: that of the table."""


class _Wire(msgspec.Struct, forbid_unknown_fields=True):
    """`Schema.to_wire`: id, name, type text, nullable and properties of each column; ids of the
    key; name, text, columns and state of each check."""

    columns: list[tuple[int, str, str, bool, Properties]]
    key: list[int]
    last_id: Annotated[int, msgspec.Meta(le=2**31 - 1)]
    version: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)] = 0
    comment: str = ""
    checks: list[tuple[str, list[str], list[int], bool]] = []
    codec: str = ZSTD


def read_definition(definition: Any) -> list[Defined]:
    """The columns of any definition, names checked and types canonical."""
    refuse_spark(definition)
    if isinstance(definition, Mapping):
        items = list(definition.items())
        check_names([name for name, _ in items])
        return [_defined(str(name), given) for name, given in items]
    schema = _arrow_schema(definition)
    dropped = index_columns(schema)
    fields = [field for field in schema if field.name not in dropped]
    check_names([field.name for field in fields])
    return [
        Defined(field.name, type, field.nullable, domain)
        for field in fields
        for type, _, domain in [read_type(field.type, field.name)]
    ]


def _defined(name: str, given: Any) -> Defined:
    """One column of a dict: a type, or a Column with one."""
    if not isinstance(given, Column):
        return Defined(name, *read_type(given, name))
    type, nullable, domain = read_type(given.type, name)
    nullable = nullable and given.nullable
    default = read_default(given.default, name, type, domain, nullable=nullable)
    return Defined(name, type, nullable, domain, default, given.comment, identity=given.identity)


def _arrow_schema(definition: Any) -> Any:
    if isinstance(definition, pa.Schema):
        return definition
    definition = opened(definition, rows=False)
    if isinstance(getattr(definition, "schema", None), pa.Schema):
        return definition.schema
    try:
        if hasattr(definition, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(definition).schema
        if hasattr(definition, "__arrow_c_schema__"):
            return pa.schema(definition)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise SchemaError(f"this definition cannot be read: {error}") from error
    raise SchemaError(
        "a definition is a dict of types, a pa.Schema, a frame or the path of a file, "
        f"not {type(definition).__name__}"
    )


def read_type(given: Any, column: str) -> tuple[Any, bool, Domain | None]:
    """The canonical type of a definition, whether it may be null, and its domain if it has one."""
    if (found := read_domain(given, column)) is not None:
        return pa.string(), found[1], found[0]
    if isinstance(given, str):
        return *parse_type(given, column=column), None
    if isinstance(given, pa.DataType):
        return canonical(given, column=column), True, None
    if given is Decimal:
        reason = "a Decimal needs digits and decimals: write it as 'decimal(12,2)'"
        raise SchemaError(reason, column=column)
    try:
        return _PYTHON_TYPES[given], True, None
    except (KeyError, TypeError):
        reason = f"{given!r} is not a type: use a Python type, a type name or an Arrow type"
        raise SchemaError(reason, column=column) from None


def read_stored(wire: Any) -> Stored:
    """What `Schema.to_wire` wrote. It comes from disk, so every rule is checked again."""
    try:
        read = msgspec.convert(wire, _Wire)
    except msgspec.ValidationError as error:
        raise SchemaError(f"the stored schema cannot be read: {error}") from error
    check_names([name for _, name, _, _, _ in read.columns])
    ids = [id for id, *_ in read.columns]
    if len(set(ids)) < len(ids) or not all(1 <= id <= read.last_id for id in ids):
        raise SchemaError("the stored schema has wrong column ids")
    columns = [
        _stored(name, text, nullable, properties)
        for _, name, text, nullable, properties in read.columns
    ]
    names = {id: column.name for id, column in zip(ids, columns, strict=True)}
    if not names.keys() >= set(read.key):
        raise SchemaError("the stored schema has a wrong primary key")
    key = read_key([names[id] for id in read.key] or None, columns)
    if any(columns[at].nullable for at in key):
        raise SchemaError("the stored schema has a nullable primary key")
    if any(column.since > read.version for column in columns):
        raise SchemaError("the stored schema has a column of a later version")
    check_identity(columns, key)
    comment = check_comment(read.comment)
    checks = stored_checks(read.checks)
    if not all(names.keys() >= set(check.ids) for check in checks):
        raise SchemaError("the stored schema has a check over a column that is not there")
    return Stored(
        ids=ids,
        columns=columns,
        key=key,
        last_id=read.last_id,
        version=read.version,
        comment=comment,
        checks=checks,
        compression=check_codec(read.codec),
    )


def _stored(name: str, text: str, nullable: bool, properties: Properties) -> Defined:
    type, _, domain = read_type(text, name)
    default = stored_default(properties.constant, properties.function, name, type, domain)
    absent = stored_default(properties.absent, "", name, type, domain)
    return Defined(
        name,
        type,
        nullable,
        domain,
        default,
        check_comment(properties.comment),
        properties.since,
        absent,
        identity=properties.identity,
        compression=properties.codec and check_codec(properties.codec, column=name),
    )


def read_key(primary_key: Any, columns: Sequence[Defined]) -> tuple[int, ...]:
    """The positions of the key columns, in key order."""
    if primary_key is None:
        return ()
    names = [primary_key] if isinstance(primary_key, str) else primary_key
    if not isinstance(names, (list, tuple)) or not names:
        raise SchemaError("primary_key is a column name, a list of them, or None")
    known = ColumnNames([column.name for column in columns])
    positions = [known.position(name) for name in names]
    if len(set(positions)) < len(positions):
        raise SchemaError(f"the primary key {list(names)!r} names a column twice")
    for at in positions:
        if kind(columns[at].type) in _NO_KEY:
            reason = f"{type_text(columns[at].type)} cannot be a primary key"
            raise SchemaError(reason, column=columns[at].name)
    return tuple(positions)


def check_identity(columns: Sequence[Defined], key: Sequence[int]) -> None:
    """SchemaError unless the column that has an identity, if one does, is the primary key."""
    for at, column in enumerate(columns):
        if not column.identity:
            continue
        if column.type != pa.int64():
            shown = type_text(column.type)
            reason = f"an identity column is of int (int64), not of {shown}"
            raise SchemaError(reason, column=column.name)
        if list(key) != [at]:
            reason = "an identity column is the primary key of its table, alone: say primary_key="
            raise SchemaError(f"{reason}{column.name!r}", column=column.name)

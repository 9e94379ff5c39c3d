"""Schema: the columns of a table, and everything that depends on nothing else.

    definition --define--> Schema --row / key / table-----> canonical values from what callers give
                             |------encode / decode_rows--> msgpack (codec.py)
                             |------to / from_arrow-------> Arrow batches (batches.py), cells.py
                             '------key_bytes, int_keys --> the order of keys (keys.py)

A Schema is a value: immutable, compared by content, safe to share between threads. What it needs
for speed (generated functions, typed decoders) is made on first use and kept.

Canonical values are described in values.py. Nested ones are lists and dicts, which a caller could
change: code that hands out rows of a schema with `nested` positions copies those (`as_dict` does).

Every column has a permanent id; `last_id` is the highest ever given, so that none is used again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite, isinf
from operator import itemgetter
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from halocline.errors import SchemaError, UsageError
from halocline.ids import ColumnId
from halocline.schema import batches, codec, convert, keys
from halocline.schema.cells import Cells
from halocline.schema.checks import RowCheck
from halocline.schema.column import Default, check_comment
from halocline.schema.compiled import (
    Row,
    column_checks,
    compile_checks,
    compile_dict,
    compile_key,
    compile_row,
)
from halocline.schema.compression import ZSTD, Codec, read_compression
from halocline.schema.define import (
    Defined,
    check_identity,
    read_definition,
    read_key,
    read_stored,
)
from halocline.schema.domains import Domain
from halocline.schema.names import ColumnNames
from halocline.schema.typenames import type_text
from halocline.schema.types import INT_BITS, NUMBERS, kind
from halocline.schema.values import CheckValue, decimal_context, show

_SUMS: Final = decimal_context(80)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumn:
    """One column: its permanent id, its name of today, its canonical type."""

    id: ColumnId
    name: str
    type: Any
    nullable: bool
    domain: Domain | None = None
    """Which texts a column of text takes, if not all."""
    default: Default | None = None
    """What rows get that do not name it; None: NULL."""
    comment: str = ""
    since: int = 0
    """The version of the schema that added it: what is older has no value of it."""
    absent: Default | None = None
    """The constant that rows show which are older than the column; None: NULL."""
    identity: bool = False
    """Are keys drawn for rows that do not name it?"""
    compression: str = ""
    """The codec of its pages; empty: that of the table."""

    @property
    def type_name(self) -> str:
        """The type as a definition names it."""
        return type_text(self.type) if self.domain is None else str(self.domain)

    def properties(self) -> dict[str, Any]:
        """What it has besides its type, as the catalog keeps it."""
        found: dict[str, Any] = {"comment": self.comment} if self.comment else {}
        if self.since:
            found["since"] = self.since
        if self.absent is not None:
            found["absent"] = self.absent.to_wire()["constant"]
        if self.identity:
            found["identity"] = True
        if self.compression:
            found["codec"] = self.compression
        return found if self.default is None else found | self.default.to_wire()

    def filled(self, rows: int) -> pa.ChunkedArray:
        """What so many rows show that are older than the column."""
        if self.absent is not None:
            return self.absent.many(rows)
        return pa.chunked_array([pa.nulls(rows, self.type)], self.type)


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The columns of one table and its primary key."""

    columns: tuple[TableColumn, ...]
    key_positions: tuple[int, ...]
    last_id: int
    comment: str = ""
    key_bytes_max: int = keys.KEY_BYTES_MAX
    version: int = 0
    """How often the table had been altered; evolve.py makes the next."""
    checks: tuple[RowCheck, ...] = ()
    """What must hold for every row; read/guard.py asks."""
    compression: str = ZSTD
    """The codec of columns that have none of their own."""

    @classmethod
    def define(
        cls,
        definition: Any,
        primary_key: str | Sequence[str] | None = None,
        *,
        comment: str = "",
        codec: Codec = None,
        key_bytes_max: int = keys.KEY_BYTES_MAX,
    ) -> Schema:
        """A new schema from a dict of types, a pa.Schema, a frame or a schema; ids are 1..n."""
        whole = isinstance(definition, cls)
        defined = _copied(definition) if whole else read_definition(definition)
        positions = read_key(primary_key, defined)
        check_identity(defined, positions)
        compression, special = read_compression(codec, [column.name for column in defined])
        if keys.least_bytes([defined[at].type for at in positions]) > key_bytes_max:
            raise SchemaError(f"keys of these columns take more than {key_bytes_max} bytes")
        columns = tuple(
            TableColumn(
                id=ColumnId(at + 1),
                name=column.name,
                type=column.type,
                nullable=column.nullable and at not in positions,
                domain=column.domain,
                default=column.default,
                comment=column.comment,
                identity=column.identity,
                compression=special.get(at, column.compression),
            )
            for at, column in enumerate(defined)
        )
        return cls(
            columns=columns,
            key_positions=positions,
            last_id=len(columns),
            comment=check_comment(comment),
            compression=compression,
            key_bytes_max=key_bytes_max,
        )

    # Names and positions

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @cached_property
    def primary_key(self) -> tuple[str, ...]:
        return tuple(self.names[at] for at in self.key_positions)

    @cached_property
    def identity(self) -> int | None:
        """The position of the identity column, which is the primary key."""
        return next((at for at, column in enumerate(self.columns) if column.identity), None)

    @cached_property
    def key_set(self) -> frozenset[int]:
        return frozenset(self.key_positions)

    @cached_property
    def arrow(self) -> Any:
        """The pa.Schema of a canonical table."""
        return pa.schema([pa.field(c.name, c.type, nullable=c.nullable) for c in self.columns])

    @cached_property
    def nested(self) -> tuple[int, ...]:
        """Positions of columns whose values are lists or dicts."""
        return tuple(at for at, t in enumerate(self._types) if kind(t) in ("list", "struct"))

    def position(self, name: str) -> int:
        """The position of a column in a row, by its name in any case."""
        return self._names.position(name)

    def check_text(self, check: RowCheck, *, quoted: bool = False) -> str:
        """The expression of a check; quoted for those that parse it."""
        return check.text({column.id: column.name for column in self.columns}, quoted=quoted)

    def columns_of(self, check: RowCheck) -> list[str]:
        """Names of the columns that a check reads."""
        return [column.name for column in self.columns if column.id in check.ids]

    @cached_property
    def companions(self) -> dict[int, frozenset[int]]:
        """By position: the columns that stand in a check with a column, itself among them."""
        places: dict[int, int] = {column.id: at for at, column in enumerate(self.columns)}
        found: dict[int, frozenset[int]] = {}
        for check in self.checks:
            together = frozenset(places[id] for id in check.ids)
            found |= {at: found.get(at, frozenset()) | together for at in together}
        return found

    @cached_property
    def made(self) -> dict[str, Any]:
        """What other rooms have made of this schema once and keep with it."""
        return {}

    def ids_of(self, positions: Iterable[int]) -> tuple[int, ...]:
        """Permanent ids of some columns, ascending."""
        return tuple(sorted([self.columns[at].id for at in positions]))

    # Rows

    @cached_property
    def row(self) -> Callable[[Mapping[str, Any]], Row]:
        """`row(values)`: checked, canonical, in column order; absent columns get their default.

        An identity column that is absent is None, for txn/identity.py to draw it.
        """
        return compile_row(self.columns, self._checks, self._general_row, self._limit)

    def partial(self, values: Mapping[str, Any]) -> dict[int, Any]:
        """Check some columns of a row: position -> canonical value.

        A key that is changed in part is too long only as a whole: see `check_key`.
        """
        if type(values) is not dict and not isinstance(values, Mapping):
            raise SchemaError(f"values by column name are wanted, not {type(values).__name__}")
        checks, exact = self._fast_checks, self._names.exact
        checked = {}
        for name, value in values.items():
            at = exact.get(name)
            if at is None:  # another spelling, or no column at all
                placed = self._names.by_position(values)
                return {at: checks[at](value) for at, value in placed.items()}
            checked[at] = checks[at](value)
        return checked

    def amount(self, at: int, amount: Any) -> Any:
        """What may be added to a column, in its own type; SchemaError when it is no number."""
        column = self.columns[at]
        if kind(column.type) not in NUMBERS:
            reason = f"{type_text(column.type)} is no number: nothing can be added to it"
            raise SchemaError(reason, column=column.name)
        checked = self._fast_checks[at](amount)
        if checked is None:
            raise SchemaError("hc.add needs a number", column=column.name)
        return checked

    def plus(self, at: int, value: Any, amount: Any) -> Any:
        """A number of a column and what is added to it; SchemaError when that does not fit."""
        if value is None:
            return None
        if kind(self._types[at]) == "decimal":
            return self._fast_checks[at](_SUMS.add(value, amount))
        total = value + amount
        if isinstance(total, float) and isinf(total) and isfinite(value) and isfinite(amount):
            raise SchemaError("the sum is out of range", column=self.names[at])
        return self._fast_checks[at](total)

    @cached_property
    def as_dict(self) -> Callable[[Row], dict[str, Any]]:
        """`as_dict(row)`: what callers get to see; nested values are copies."""
        plain, names, nested = compile_dict(self.names), self.names, self.nested

        def copied(row: Row) -> dict[str, Any]:
            values = plain(row)
            for at in nested:
                values[names[at]] = copy.deepcopy(row[at])
            return values

        return copied if nested else plain

    # Keys

    @cached_property
    def key(self) -> Callable[[Any], Any]:
        """`key(value)`: a caller's key in canonical form; UsageError when it cannot be one."""
        if not self.key_positions:
            return self._no_key
        columns = [self.columns[at] for at in self.key_positions]
        checks = [self._checks[at] for at in self.key_positions]
        return compile_key(columns, checks, self._spread_key, self._key_limit)

    @cached_property
    def key_of(self) -> Callable[[Row], Any]:
        """`key_of(row)`: the key inside a canonical row."""
        if not self.key_positions:
            return self._no_key
        return itemgetter(*self.key_positions)  # of one position a value, of more a tuple

    def key_of_partial(self, values: Mapping[int, Any]) -> Any:
        """The key inside the result of `partial`; SchemaError when a part of it is missing."""
        self._require_key(values)
        key = tuple([values[at] for at in self.key_positions])
        self._key_limit(key)
        return key if len(key) > 1 else key[0]

    @cached_property
    def key_bytes(self) -> Callable[[Any], bytes]:
        """`key_bytes(key)`: bytes that sort as the canonical keys do."""
        if not self.key_positions:
            return self._no_key
        return keys.encoder([self._types[at] for at in self.key_positions])

    def check_key(self, key: Any) -> None:
        """Refuse a canonical key that is too long."""
        self._key_limit(key if len(self.key_positions) > 1 else (key,))

    @cached_property
    def int_key(self) -> bool:
        """Is the key one column of int8..int64?"""
        return len(self.key_positions) == 1 and self._types[self.key_positions[0]] in INT_BITS

    def int_keys(self, table: Any) -> npt.NDArray[np.int64]:
        """The keys of a canonical table, when `int_key` holds."""
        assert self.int_key, "only a single integer key has int_keys"
        return keys.int_keys(table, self.primary_key[0])

    def key_column(self, table: Any) -> keys.KeyColumn | None:
        """Keys as int64 with converters, for one key column of ints, dates, times or timestamps."""
        return keys.key_column(table, self.primary_key)

    def keys_of(self, table: Any) -> list[Any]:
        """The canonical keys of a canonical table or batch."""
        return keys.keys_of(table, self.primary_key)

    def first_duplicates(self, table: Any) -> list[Any]:
        """Up to ten keys that a canonical table holds more than once."""
        return keys.first_duplicates(table, self.primary_key) if self.key_positions else []

    # Tables

    def table(self, data: Any, *, columns: Literal["all", "given"] = "all") -> Any:
        """Any data as a canonical pa.Table; SchemaError names the column and row that do not fit.

        Columns that are not given get their default, else null, an identity column too; with
        columns="given" they are left out. Rows start at 0.
        """
        convert.refuse_spark(data)
        data = self.opened(data)
        if convert.is_rows(data):
            return self._table_of_rows([data] if isinstance(data, Mapping) else data, columns)
        table = convert.read(data)
        given = convert.match(table.schema, self._names)
        self._require_key(given, new=columns == "all")
        result = convert.conform(table, self.columns, self.arrow, given, columns == "all")
        self._limit.check_table(result)
        return result

    def gives_key(self, data: pa.Table) -> bool:
        """Does a table have all columns of the key?"""
        return convert.match(data.schema, self._names).keys() >= self.key_set

    def sift(
        self, data: pa.Table, *, columns: Literal["all", "given"] = "all"
    ) -> tuple[pa.Table, dict[int, tuple[str, str]]]:
        """A table in canonical form, and of each row that does not fit: the column, and why.

        What is wrong with whole columns is a SchemaError, as in `table`.
        """
        data = convert.read(data)
        given = convert.match(data.schema, self._names)
        self._require_key(given, new=columns == "all")
        table, wrong = convert.sift(data, self.columns, self.arrow, given, columns == "all")
        sizes = self._limit.sizes(table)
        if sizes is not None:
            for at in pc.indices_nonzero(pc.greater(sizes, self.key_bytes_max)).to_pylist():
                error = self._limit.error(sizes[at].as_py())
                wrong.setdefault(at, (self.primary_key[0], error.reason))
        return table, wrong

    def opened(self, data: Any) -> Any:
        """What a path, a dataset or a lazy frame stands for; other data as it is."""
        return convert.opened(data, self.arrow)

    def to_arrow(self, rows: Sequence[Row]) -> Any:
        """Canonical rows as one RecordBatch."""
        return batches.to_arrow(rows, self.arrow)

    def to_table(self, rows: Sequence[Row]) -> Any:
        """Canonical rows as a canonical pa.Table."""
        return pa.Table.from_batches([self.to_arrow(rows)], schema=self.arrow)

    def from_table(self, table: Any) -> list[Row]:
        """The canonical rows of a canonical pa.Table."""
        return [row for batch in table.to_batches() for row in batches.from_arrow(batch)]

    def key_table(self, keys: Sequence[Any]) -> Any:
        """Canonical keys as a pa.Table of the key columns."""
        return pa.Table.from_batches([batches.to_arrow(self._key_rows(keys), self.key_fields)])

    def _key_rows(self, keys: Iterable[Any]) -> list[Row]:
        return [(key,) for key in keys] if len(self.key_positions) == 1 else list(keys)

    @cached_property
    def cells(self) -> Callable[[Any], Callable[[int], Row]]:
        """`cells(batch)` -> `reader(i)`: single rows out of a canonical RecordBatch."""
        return Cells(self._types)

    # Bytes

    encode_rows = staticmethod(codec.encode)
    """`encode_rows(rows)`: canonical rows as msgpack."""

    @cached_property
    def decode_rows(self) -> Callable[[Any], list[Row]]:
        """`decode_rows(data)`: msgspec.DecodeError or ValidationError for anything but rows."""
        return codec.compile_decode(list(self.arrow))

    def encode_keys(self, keys: Iterable[Any]) -> bytes:
        """Canonical keys as msgpack, each as a row of the key columns."""
        return codec.encode(self._key_rows(keys))

    def decode_keys(self, data: Any) -> list[Any]:
        """Read what `encode_keys` wrote; errors are those of `decode_rows`."""
        rows = self._decode_key_rows(data)
        return [row[0] for row in rows] if len(self.key_positions) == 1 else rows

    def to_wire(self) -> dict[str, Any]:
        """A dict of plain values, for the catalog."""
        return {
            "columns": [
                [c.id, c.name, c.type_name, c.nullable, c.properties()] for c in self.columns
            ],
            "key": [self.columns[at].id for at in self.key_positions],
            "last_id": self.last_id,
            "version": self.version,
            **({"comment": self.comment} if self.comment else {}),
            **({"checks": [one.to_wire() for one in self.checks]} if self.checks else {}),
            **({"codec": self.compression} if self.compression != ZSTD else {}),
        }

    @classmethod
    def from_wire(
        cls, wire: Mapping[str, Any], *, key_bytes_max: int = keys.KEY_BYTES_MAX
    ) -> Schema:
        """The schema that `to_wire` wrote down; SchemaError for anything else."""
        stored = read_stored(wire)
        columns = tuple(
            TableColumn(id=ColumnId(id), **c._asdict())
            for id, c in zip(stored.ids, stored.columns, strict=True)
        )
        return cls(
            columns=columns,
            key_positions=stored.key,
            last_id=stored.last_id,
            comment=stored.comment,
            compression=stored.compression,
            key_bytes_max=key_bytes_max,
            version=stored.version,
            checks=stored.checks,
        )

    # What the functions above are made of

    @cached_property
    def _types(self) -> tuple[Any, ...]:
        return tuple(column.type for column in self.columns)

    @cached_property
    def key_fields(self) -> Any:
        return pa.schema([self.arrow.field(at) for at in self.key_positions])

    @cached_property
    def _decode_key_rows(self) -> Callable[[Any], list[Row]]:
        return codec.compile_decode(list(self.key_fields))

    @cached_property
    def _names(self) -> ColumnNames:
        return ColumnNames(self.names)

    @cached_property
    def _required(self) -> frozenset[str]:
        """Names of columns that every new row has to give."""
        return frozenset(
            c.name for c in self.columns if not (c.nullable or c.identity) and c.default is None
        )

    @cached_property
    def defaults(self) -> dict[str, Default]:
        """The defaults of columns that have one, by name."""
        return {c.name: c.default for c in self.columns if c.default is not None}

    @cached_property
    def _checks(self) -> tuple[CheckValue, ...]:
        return column_checks(self.columns, frozenset(self.key_positions))

    @cached_property
    def _fast_checks(self) -> tuple[CheckValue, ...]:
        return compile_checks(self.columns, self._checks)

    @cached_property
    def _limit(self) -> keys.Limit:
        return self._limit_at(self.key_positions)

    @cached_property
    def _key_limit(self) -> keys.Limit:
        return self._limit_at(range(len(self.key_positions)))

    def _limit_at(self, positions: Sequence[int]) -> keys.Limit:
        types = [self._types[at] for at in self.key_positions]
        return keys.Limit.of(self.primary_key, types, positions, self.key_bytes_max)

    def _no_key(self, _: Any) -> Any:
        raise UsageError("this table has no primary key; use where= instead")

    def _general_row(self, values: Any, cells: Callable[[Sequence[Any]], Row]) -> Row:
        """Rows that are not a dict of exactly all columns: other mappings, other case, absences."""
        if type(values) is not dict:
            if not isinstance(values, Mapping):
                given = type(values).__name__
                raise SchemaError(f"a row is a mapping of column names to values, not {given}")
            values = dict(values)
        values = self._names.spelled(values)
        if not values.keys() >= self._required:
            missing = next(name for name in self.names if name in self._required - values.keys())
            raise SchemaError("must not be null, and no value is given", column=missing)
        for name, default in self.defaults.items():
            if name not in values:
                values = {**values, name: default.one()}
        at = self.identity
        if at is None or self.names[at] in values:
            return cells([values.get(name) for name in self.names])
        row = cells([0 if place == at else values.get(n) for place, n in enumerate(self.names)])
        return (*row[:at], None, *row[at + 1 :])

    def _spread_key(self, value: Any) -> Sequence[Any]:
        """A key that is not a tuple of the right length: a list, a dict by names, or a mistake."""
        if isinstance(value, Mapping):
            placed = self._names.by_position(value)
            if placed.keys() == set(self.key_positions):
                return [placed[at] for at in self.key_positions]
        elif isinstance(value, (list, tuple)) and len(value) == len(self.key_positions):
            return value
        shown = ", ".join(self.primary_key)
        raise UsageError(f"{show(value)} is not a key: give a value for each of ({shown})")

    def _table_of_rows(self, data: Iterable[Any], columns: str) -> Any:
        if columns == "all":
            return self.to_table(convert.check_rows(data, self.row))
        rows = convert.check_rows(data, self.partial)
        if not rows:
            return self.arrow.empty_table()
        self._require_key(rows[0])
        table = convert.from_partial(rows, self.arrow)
        self._limit.check_table(table)
        return table

    def _require_key(self, given: Container[int], *, new: bool = False) -> None:
        """Rows that are `new` may get parts of their key from a default."""
        text = "is part of the primary key and must be given"
        for at in self.key_positions:
            column = self.columns[at]
            made = new and (column.identity or column.default is not None)
            if at not in given and not made:
                raise SchemaError(text, column=self.names[at])


def _copied(schema: Schema) -> list[Defined]:
    """The columns of a schema for a new table, which has no rows from before one of them."""
    return [
        Defined(
            column.name,
            column.type,
            column.nullable,
            column.domain,
            column.default,
            column.comment,
            identity=column.identity,
            compression=column.compression,
        )
        for column in schema.columns
    ]

"""Primary keys: bytes that sort like the keys, a limit on their length, keys of whole tables.

    (7, "ab") --key_bytes--> 80 00 00 00 00 00 00 07 | 61 62 00 00

    int8..int64   8 bytes, big-endian, sign bit flipped (one width, so that widening a column
                  leaves its keys as they are)
    decimal       the scaled integer, 16 bytes, the same way
    date          4 bytes: its ordinal
    time          8 bytes: microseconds since midnight
    timestamps    8 bytes: microseconds since 1970, as an int
    bool          1 byte
    string        UTF-8, whose order is that of code points, as Python's
    binary        as it is

In a composite key, string and binary parts escape 00 as 00 FF and end in 00 00, so a part that is
a prefix of another sorts first and no part can run into the next.

Invariants
- For canonical keys a and b of one schema: a < b exactly when key_bytes(a) < key_bytes(b).
- Keys are never null and never NaN: key columns are not nullable, and floats cannot be keys.

Not here: checking a caller's key (compiled.py), duplicates against the table (read/).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from halocline.errors import SchemaError
from halocline.options import Options
from halocline.schema.batches import column_values, int64_values
from halocline.schema.types import EPOCH, EPOCH_ORDINAL, EPOCH_UTC, INT_BITS, kind
from halocline.schema.values import decimal_context

KEY_BYTES_MAX: Final = Options().key_bytes_max
DUPLICATES_SHOWN: Final = 10

Encode = Callable[[Any], bytes]

_SIGN64: Final = 1 << 63
_SIGN128: Final = 1 << 127
_WIDTHS: Final = {
    "bool": 1,
    "int": 8,
    "decimal": 16,
    "date": 4,
    "time": 8,
    "timestamp": 8,
    "timestamptz": 8,
}
_TEXTS: Final = ("string", "binary")
_ORDERS: Final[dict[str, Callable[[Any], int]]] = {
    "int": int,
    "date": lambda v: int(v.toordinal()) - EPOCH_ORDINAL,
    "time": lambda v: _micros(dt.datetime.combine(EPOCH, v) - EPOCH),
    "timestamp": lambda v: _micros(v - EPOCH),
    "timestamptz": lambda v: _micros(v - EPOCH_UTC),
}


class KeyColumn(NamedTuple):
    """The keys of a table as integers in key order, and the way from a key to its integer."""

    values: npt.NDArray[np.int64]
    to_int: Callable[[Any], int]


def encoder(types: Sequence[Any]) -> Callable[[Any], bytes]:
    """`key_bytes` for keys of these types: one value, or a tuple of several."""
    if len(types) == 1:
        return _part(types[0], composite=False)
    parts = [_part(type, composite=True) for type in types]

    def encode(key: Any) -> bytes:
        return b"".join([part(value) for part, value in zip(parts, key, strict=True)])

    return encode


def _part(type: Any, *, composite: bool) -> Encode:
    family = kind(type)
    if family == "string":
        return (lambda v: _escaped(v.encode())) if composite else (lambda v: v.encode())
    if family == "binary":
        return _escaped if composite else (lambda v: v)
    if family == "bool":
        return lambda v: b"\1" if v else b"\0"
    if family == "date":
        return lambda v: v.toordinal().to_bytes(4, "big")
    if family == "decimal":
        return _decimal_part(type.scale)
    order = _ORDERS[family]
    return lambda v: (order(v) + _SIGN64).to_bytes(8, "big")


def least_bytes(types: Sequence[Any]) -> int:
    """What a composite key of these types takes at least: widths, and ends of texts."""
    return sum(_WIDTHS.get(kind(type), 2) for type in types)


def _decimal_part(scale: int) -> Encode:
    context = decimal_context(80)

    def encode(value: Decimal) -> bytes:
        return (int(value.scaleb(scale, context)) + _SIGN128).to_bytes(16, "big")

    return encode


def _escaped(data: bytes) -> bytes:
    return data.replace(b"\0", b"\0\xff") + b"\0\0"


def _micros(delta: dt.timedelta) -> int:
    return (delta.days * 86400 + delta.seconds) * 1_000_000 + delta.microseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The longest key a table takes, for rows, single keys and whole columns.

    `parts` are the positions of texts inside what is checked; a text of at most `length`
    characters cannot break the limit, however it is encoded.
    """

    names: tuple[str, ...]
    types: tuple[Any, ...]
    positions: tuple[int, ...]
    bytes_max: int
    parts: tuple[int, ...]
    length: int

    @classmethod
    def of(
        cls, names: Sequence[str], types: Sequence[Any], positions: Sequence[int], bytes_max: int
    ) -> Limit:
        texts = [kind(type) in _TEXTS for type in types]
        fixed = least_bytes(types)
        # A character has at most four bytes in UTF-8, and an escaped zero byte has two.
        length = max(0, bytes_max - fixed) // (4 * max(1, sum(texts)))
        return cls(
            names=tuple(names),
            types=tuple(types),
            positions=tuple(positions),
            bytes_max=bytes_max,
            parts=tuple(at for at, text in zip(positions, texts, strict=True) if text),
            length=length,
        )

    def __call__(self, row: Sequence[Any]) -> None:
        """Measure the key inside a row (or the key itself, by positions 0..n), if it is long."""
        if all(len(row[at]) <= self.length for at in self.parts):
            return
        values = [row[at] for at in self.positions]
        size = len(encoder(self.types)(values[0] if len(values) == 1 else values))
        if size > self.bytes_max:
            raise self.error(size)

    def error(self, size: int, row: int | None = None) -> SchemaError:
        reason = f"the primary key takes {size} bytes, at most {self.bytes_max} are allowed"
        return SchemaError(reason, column=self.names[0], row=row)

    def check_table(self, table: Any) -> None:
        """Refuse a canonical table with a key that is too long."""
        sizes = self.sizes(table)
        if sizes is not None and pc.max(sizes).as_py() > self.bytes_max:
            at = pc.index(pc.greater(sizes, self.bytes_max), True).as_py()
            raise self.error(sizes[at].as_py(), at)

    def sizes(self, table: Any) -> Any:
        """Bytes of the keys of a canonical table; None when none of them can be too long."""
        columns = [table.column(name) for name in self.names]
        texts = [c for c in columns if kind(c.type) in _TEXTS]
        composite = len(columns) > 1
        if not texts or not table.num_rows:
            return None
        sizes: Any = sum(_WIDTHS.get(kind(c.type), 2 * composite) for c in columns)
        for column in texts:
            sizes = pc.add(pc.binary_length(column), sizes)
            if composite:
                sizes = pc.add(sizes, pc.count_substring(column, "\0"))
        return sizes


def keys_of(table: Any, names: Sequence[str]) -> list[Any]:
    """The keys of a canonical table or batch: plain values, or tuples when there are several."""
    columns = [_values(table.column(name)) for name in names]
    return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))


def _values(column: Any) -> list[Any]:
    if not isinstance(column, pa.ChunkedArray):
        return column_values(column)
    return [value for chunk in column.chunks for value in column_values(chunk)]


def key_column(table: Any, names: Sequence[str]) -> KeyColumn | None:
    """Keys that are integers at heart (ints, date, time, timestamps) as int64; None for others."""
    if len(names) != 1:
        return None
    column = table.column(names[0])
    family = kind(column.type)
    if family not in _ORDERS:
        return None
    return KeyColumn(int_keys(table, names[0]), _ORDERS[family])


def int_keys(table: Any, name: str) -> npt.NDArray[np.int64]:
    """One integer-like key column as int64, without a copy where it is int64 in one chunk."""
    column = table.column(name)
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    if len(chunks) == 1:
        return int64_values(chunks[0])
    return np.concatenate([np.empty(0, np.int64), *(int64_values(chunk) for chunk in chunks)])


def first_duplicates(table: Any, names: Sequence[str]) -> list[Any]:
    """Up to ten keys that occur more than once in a table, in no order that matters."""
    if table.num_rows < 2:
        return []
    if len(names) == 1 and table.schema.field(names[0]).type in INT_BITS:
        return _int_duplicates(int_keys(table, names[0]))
    # Names of our own: a key column may be called like the column of counts.
    aliases = [f"k{at}" for at in range(len(names))]
    keys = pa.Table.from_arrays([table.column(name) for name in names], names=aliases)
    counts = keys.group_by(aliases).aggregate([([], "count_all")])
    if counts.num_rows == keys.num_rows:
        return []
    repeated = counts.filter(pc.greater(counts.column("count_all"), 1))
    return keys_of(repeated.slice(0, DUPLICATES_SHOWN), aliases)


def _int_duplicates(keys: npt.NDArray[np.int64]) -> list[Any]:
    # Most bulk input arrives sorted: 0.03 ms for 50,000 keys; unsorted it takes 0.4 ms.
    if bool(np.all(keys[1:] > keys[:-1])):
        return []
    ordered = np.sort(keys)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    shown: list[Any] = np.unique(repeated)[:DUPLICATES_SHOWN].tolist()
    return shown

"""Columns with properties: what `hc.Column` says of a column besides its type.

    {"at": hc.Column("timestamptz", default=hc.now)} --read_default--> Default --fill--> values

A default is a constant, checked once against the type of its column, or a function of a closed
list that is evaluated at the insert. A column that the input does not name gets it; an explicit
None writes NULL. `now` is one moment for each batch that comes as Arrow, and one for each row that
comes as a dict.

Not here: which columns an input names (schema.py, convert.py).
"""

from __future__ import annotations

import copy
import datetime as dt
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from halocline.clock import SystemClock
from halocline.errors import SchemaError
from halocline.schema import codec
from halocline.schema.domains import Domain
from halocline.schema.types import EPOCH, UTC, kind
from halocline.schema.values import Unfit, checker, is_null, show

COMMENT_CHARS_MAX: Final = 10_000
_CLOCK: Final = SystemClock()
_UUIDS: Final = 1 << 20
"""UUIDs that are made at once."""
_UUID_CHARS: Final = 36
_DIGITS: Final = np.array([at for at in range(_UUID_CHARS) if at not in (8, 13, 18, 23)])
_HEX: Final = np.array([list(b"%02x" % octet) for octet in range(256)], dtype=np.uint8)
_UNSET: Final[Any] = type("Unset", (), {"__repr__": lambda self: "..."})()


class Function:
    """A function that makes a default when a row is inserted."""

    __slots__ = ("kinds", "name")

    def __init__(self, name: str, kinds: tuple[str, ...]) -> None:
        self.name = name
        self.kinds = kinds
        """Kinds of columns that take what it makes."""

    def __repr__(self) -> str:
        return f"hc.{self.name}"


now: Final = Function("now", ("timestamp", "timestamptz", "date"))
"""The moment of the insert, in UTC: a default of columns of dates and timestamps."""

uuid: Final = Function("uuid", ("string",))
"""A random UUID (version 4) for every row: a default of columns of uuids or text."""

_FUNCTIONS: Final = {function.name: function for function in (now, uuid)}


class Column:
    """A column of a new table, with what its type does not say.

    `default`: a constant, `hc.now` or `hc.uuid`, for rows that do not name the column; an explicit
    None writes NULL. `identity`: whole numbers that are given out once each, for the primary key.
    `comment`: a text for people.
    """

    __slots__ = ("comment", "default", "identity", "nullable", "type")

    def __init__(
        self,
        type: Any,
        nullable: bool = True,
        default: Any = _UNSET,
        identity: bool = False,
        comment: str = "",
    ) -> None:
        if isinstance(type, Column):
            raise SchemaError("hc.Column takes a type, not another hc.Column")
        for name, flag in (("nullable", nullable), ("identity", identity)):
            if not isinstance(flag, bool):
                raise SchemaError(f"{name}= of hc.Column is True or False, not {show(flag)}")
        if identity and default is not _UNSET:
            raise SchemaError("a column has an identity or a default, not both: leave one of them")
        self.type = type
        self.identity = identity
        self.nullable = nullable
        self.default = default
        self.comment = check_comment(comment)

    def __repr__(self) -> str:
        return (
            f"hc.Column({self.type!r}, nullable={self.nullable}, default={self.default!r}, "
            f"identity={self.identity}, comment={self.comment!r})"
        )


@dataclass(frozen=True, slots=True)
class Default:
    """What a column gets that an input does not name: what a function makes, or a constant."""

    value: Any
    """A canonical value, or a Function."""
    type: Any

    def __str__(self) -> str:
        return repr(self.value) if self.is_function else show(self.value)

    @property
    def is_function(self) -> bool:
        """Is it made for each row, or one constant for all?"""
        return isinstance(self.value, Function)

    def one(self) -> Any:
        """The value of one row."""
        if self.value is now:
            return _moment(self.type)
        if self.value is uuid:
            return _uuid_text(_CLOCK.random_bytes(16))
        return copy.deepcopy(self.value) if kind(self.type) in ("list", "struct") else self.value

    def many(self, rows: int) -> pa.ChunkedArray:
        """The values of so many rows."""
        if self.value is uuid:
            sizes = [min(_UUIDS, rows - start) for start in range(0, rows, _UUIDS)]
            made = [_uuids(_CLOCK.random_bytes(16 * size)) for size in sizes]
            return pa.chunked_array(made, self.type)
        if pa.types.is_nested(self.type):
            array = pa.array([self.value], self.type).take(pa.repeat(0, rows))
        else:
            array = pa.repeat(pa.scalar(self.one(), self.type), rows)
        return pa.chunked_array([array], self.type)

    def widened(self, type: Any) -> Default:
        """This default for a column whose type has become wider."""
        value = self.value
        if kind(type) == "timestamp" and kind(self.type) == "date" and not self.is_function:
            value = dt.datetime(value.year, value.month, value.day)
        return Default(value, type)

    def to_wire(self) -> dict[str, Any]:
        """The name of a function, or a constant as the rows of the log have it."""
        if self.is_function:
            return {"function": self.value.name}
        return {"constant": codec.encode([(self.value,)])}


def _moment(type: Any) -> dt.date:
    moment = EPOCH + dt.timedelta(microseconds=_CLOCK.wall_us())
    moment = moment.replace(tzinfo=UTC)
    if kind(type) == "date":
        return moment.date()
    return moment if kind(type) == "timestamptz" else moment.replace(tzinfo=None)


def _uuid_text(chance: bytes) -> str:
    """Sixteen random bytes as the text of a UUID of version 4 (RFC 9562): 1 us, as an array 10."""
    octets = bytearray(chance)
    octets[6] = octets[6] & 0x0F | 0x40
    octets[8] = octets[8] & 0x3F | 0x80
    text = octets.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _uuids(chance: bytes) -> pa.Array:
    """Random bytes, sixteen each, as the texts of as many UUIDs: 0.2 us each."""
    octets = np.frombuffer(chance, dtype=np.uint8).reshape(-1, 16).copy()
    octets[:, 6] = octets[:, 6] & 0x0F | 0x40
    octets[:, 8] = octets[:, 8] & 0x3F | 0x80
    rows = len(octets)
    texts = np.full((rows, _UUID_CHARS), ord("-"), dtype=np.uint8)
    texts[:, _DIGITS] = _HEX[octets].reshape(rows, 32)
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(_UUID_CHARS)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(texts)]
    return pa.Array.from_buffers(pa.string(), rows, buffers)


def read_default(
    given: Any, name: str, type: Any, domain: Domain | None, *, nullable: bool
) -> Default | None:
    """The default that `hc.Column` was given, checked; None when there is none, or NULL."""
    if given is _UNSET:
        return None
    if is_null(given):
        if not nullable:
            raise SchemaError("must not be null, and its default is", column=name)
        return None
    if isinstance(given, Function):
        fits = kind(type) in given.kinds
        if not fits or (given is uuid and domain is not None and str(domain) != "uuid"):
            wanted = "text or uuid" if given is uuid else "a date or a timestamp"
            raise SchemaError(f"{given!r} is a default of columns of {wanted}", column=name)
        return Default(given, type)
    if callable(given):
        raise SchemaError("a default is a constant, hc.now or hc.uuid", column=name)
    try:
        check = checker(type) if domain is None else domain.check
        return Default(check(given), type)
    except Unfit as error:
        raise SchemaError(f"its default does not fit: {error.reason}", column=name) from None


def stored_default(
    constant: bytes | None, function: str, name: str, type: Any, domain: Domain | None
) -> Default | None:
    """What `Default.to_wire` wrote; SchemaError for anything else."""
    if function:
        if constant is not None or function not in _FUNCTIONS:
            raise SchemaError("the stored default is of no known kind", column=name)
        return read_default(_FUNCTIONS[function], name, type, domain, nullable=False)
    if constant is None:
        return None
    try:
        ((value,),) = codec.compile_decode([pa.field(name, type)])(constant)
    except (msgspec.MsgspecError, ValueError) as error:
        raise SchemaError(f"the stored default cannot be read: {error}", column=name) from error
    return read_default(value, name, type, domain, nullable=False)


def check_comment(comment: Any) -> str:
    """A comment of a table or a column; SchemaError when it is none."""
    if not isinstance(comment, str):
        raise SchemaError(f"a comment is a text, not {type(comment).__name__}")
    if len(comment) > COMMENT_CHARS_MAX:
        raise SchemaError(f"a comment has at most {COMMENT_CHARS_MAX} characters")
    try:
        comment.encode()
    except UnicodeEncodeError:
        raise SchemaError("a comment is valid Unicode text (no lone surrogates)") from None
    return str(comment)

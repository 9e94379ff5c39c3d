"""Type names: what people write in a definition, and how the catalog writes a type down.

    "bigint not null", "decimal(12,2)", "int[]", "struct<a: int, b: string>"
        --parse_type--> (Arrow type, nullable) --type_text--> "int64", "decimal(12,2)", ...

One grammar serves both: every text that `type_text` writes is read back as the same type, so the
catalog needs no second format for types.

    type  := base { "[]" } [ "not" "null" | "null" ]
    base  := name [ "(" number { "," number } ")" ] | list "<" type ">" | struct "<" fields ">"
    field := ( word | '"' any text, quotes doubled '"' ) ":" type

Names are those of SQL, DuckDB, Spark and Arrow, without regard to case. Where they disagree the
wider one wins, so that nothing is lost by a guess: `float` is 64 bits (`real` and `float32` are
32), `int8` has 8 bits (PostgreSQL's is `bigint`). A length, as in `varchar(20)`, is refused: it
would not be enforced, and a check of the table says the same.
"""

from __future__ import annotations

import re
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as pt

from halocline.errors import SchemaError
from halocline.schema.types import (
    DECIMAL_DIGITS_MAX,
    DEPTH_MAX,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    canonical,
    check_field_names,
)

TEXT_MAX: Final = 1 << 20
"""Longest type text that is read, so that a hostile catalog cannot keep the parser busy."""

_NAMES: Final[dict[str, Any]] = {
    name: type
    for names, type in (
        ("bool boolean", pa.bool_()),
        ("int8 tinyint", pa.int8()),
        ("int16 smallint int2 short", pa.int16()),
        ("int32 int integer int4", pa.int32()),
        ("int64 bigint long", pa.int64()),
        ("uint8", pa.uint8()),
        ("uint16", pa.uint16()),
        ("uint32", pa.uint32()),
        ("uint64", pa.uint64()),
        ("float32 real float4", pa.float32()),
        ("float64 double float float8", pa.float64()),
        ("string text varchar str", pa.string()),
        ("binary blob bytea varbinary bytes", pa.binary()),
        ("date date32", pa.date32()),
        ("time", TIME),
        ("timestamp datetime timestamp_ntz", TIMESTAMP),
        ("timestamptz", TIMESTAMPTZ),
    )
    for name in names.split()
}
_TEXTS: Final[dict[Any, str]] = {
    pa.bool_(): "bool",
    pa.int8(): "int8",
    pa.int16(): "int16",
    pa.int32(): "int32",
    pa.int64(): "int64",
    pa.float32(): "float32",
    pa.float64(): "float64",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    TIME: "time",
    TIMESTAMP: "timestamp",
    TIMESTAMPTZ: "timestamptz",
}
_SIZED: Final = frozenset(["varchar", "string", "text", "binary", "varbinary"])
_TOKEN: Final = re.compile(r'\s*(?:(\w+)|"((?:[^"]|"")*)"|(\S))', re.UNICODE)


def parse_type(text: str, *, column: str | None = None) -> tuple[Any, bool]:
    """Read a type name: the canonical Arrow type, and whether null is allowed."""
    if len(text) > TEXT_MAX:
        raise SchemaError("the type name is too long", column=column)
    parser = _Parser(text, column)
    type, nullable = parser.type(0)
    if parser.peek() is not None:
        raise parser.error()
    return canonical(type, column=column), nullable


def type_text(type: Any) -> str:
    """Write a canonical type as text that `parse_type` reads back."""
    if type in _TEXTS:
        return _TEXTS[type]
    if pt.is_decimal(type):
        return f"decimal({type.precision},{type.scale})"
    if pt.is_list(type):
        return f"list<{_field_text(type.value_field)}>"
    if pt.is_struct(type):
        fields = (type.field(at) for at in range(type.num_fields))
        inner = ", ".join(f"{_quoted(field.name)}: {_field_text(field)}" for field in fields)
        return f"struct<{inner}>"
    return str(type)


def _field_text(field: Any) -> str:
    return type_text(field.type) + ("" if field.nullable else " not null")


def _quoted(name: str) -> str:
    if re.fullmatch(r"\w+", name):
        return name
    return '"' + name.replace('"', '""') + '"'


class _Parser:
    """Recursive descent over the tokens of one type name."""

    def __init__(self, text: str, column: str | None) -> None:
        self._text = text
        self._column = column
        self._tokens = [
            # A quoted word is marked by its quote, so that it can never be taken for a keyword.
            match[1] or (f'"{match[2]}' if match[2] is not None else match[3])
            for match in _TOKEN.finditer(text.strip())
        ]
        self._at = 0

    def error(self, hint: str = "") -> SchemaError:
        shown = self._text if len(self._text) <= 80 else self._text[:77] + "..."
        reason = hint or "write it like 'bigint', 'decimal(12,2)', 'int[]' or 'struct<a: int>'"
        return SchemaError(f"{shown!r} is not a type: {reason}", column=self._column)

    def peek(self) -> str | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def take(self) -> str:
        token = self.peek()
        if token is None:
            raise self.error()
        self._at += 1
        return token

    def accept(self, *words: str) -> bool:
        """Step over these words if they come next, in any case of letters."""
        found = [token.lower() for token in self._tokens[self._at : self._at + len(words)]]
        if found != list(words):
            return False
        self._at += len(words)
        return True

    def expect(self, token: str) -> None:
        if not self.accept(token):
            raise self.error()

    def type(self, depth: int) -> tuple[Any, bool]:
        if depth > DEPTH_MAX:
            raise self.error(f"it nests deeper than {DEPTH_MAX} levels")
        type = self._base(depth)
        while self.accept("[", "]"):
            depth += 1
            if depth > DEPTH_MAX:
                raise self.error(f"it nests deeper than {DEPTH_MAX} levels")
            type = pa.list_(type)
        if self.accept("not", "null"):
            return type, False
        self.accept("null")
        return type, True

    def _base(self, depth: int) -> Any:
        name = self.take().lower()
        if name in ("list", "array") and self.accept("<"):
            item, nullable = self.type(depth + 1)
            self.expect(">")
            return pa.list_(pa.field("item", item, nullable=nullable))
        if name == "struct" and self.accept("<"):
            return self._struct(depth)
        if name in ("decimal", "numeric", "dec", "decimal128"):
            return self._decimal()
        if name in ("timestamp", "time"):
            return self._moment(name)
        if name == "double":
            self.accept("precision")
        if name not in _NAMES:
            raise self.error()
        if name in _SIZED and self.peek() == "(":
            check = 'checks={"short": "length(name) <= 20"}'
            raise self.error(f"texts have no length here: leave it out, and give the table {check}")
        return _NAMES[name]

    def _struct(self, depth: int) -> Any:
        fields = []
        while True:
            name = self.take()
            if name.startswith('"'):
                name = name[1:].replace('""', '"')
            elif not re.fullmatch(r"\w+", name):
                raise self.error()
            self.expect(":")
            type, nullable = self.type(depth + 1)
            fields.append(pa.field(name, type, nullable=nullable))
            if self.accept(">"):
                break
            self.expect(",")
        check_field_names([field.name for field in fields], self._column)
        return pa.struct(fields)

    def _decimal(self) -> Any:
        numbers = self._numbers() if self.peek() == "(" else []
        precision, scale = (*numbers, 0)[:2] if len(numbers) in (1, 2) else (0, 0)
        if not (1 <= precision <= DECIMAL_DIGITS_MAX and scale <= precision):
            hint = f"give digits and decimals, as in 'decimal(12,2)', at most {DECIMAL_DIGITS_MAX}"
            raise self.error(hint)
        return pa.decimal128(precision, scale)

    def _moment(self, name: str) -> Any:
        if self.accept("with", "time", "zone"):
            if name == "time":
                raise self.error("a time of day has no zone here; use 'time' or 'timestamptz'")
            return TIMESTAMPTZ
        self.accept("without", "time", "zone")
        return _NAMES[name]

    def _numbers(self) -> list[int]:
        """The numbers between parentheses."""
        self.expect("(")
        numbers = []
        while True:
            token = self.take()
            if not re.fullmatch("[0-9]{1,9}", token):
                raise self.error()
            numbers.append(int(token))
            if self.accept(")"):
                return numbers
            self.expect(",")

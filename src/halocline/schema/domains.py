"""Domains: columns of text that take some texts only. uuid, json, and enum with its list.

    "uuid not null", "json", "enum('new', 'paid')" --read_domain--> Domain over string
    a value --check--> text      an array --fit--> array of string      Unfit: not in the domain

The type of such a column is string, in memory, in files, in DuckDB and in Spark, and all of them
compare and print it alike: neither Spark nor Parquet's readers know more than a text here. What the
domain adds is the check, on every way in, and one spelling per value: a uuid is kept as 36
characters in lower case.

    uuid   uuid.UUID, text in any case, arrow.uuid (16 bytes)
    json   text that is JSON, kept as it is written; of a row also a dict or a list; arrow.json
    enum   one of its texts, or a member of a Python enum whose value is one

Invariant: `check` and `fit` agree on every value.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from halocline.errors import SchemaError
from halocline.schema.cast import exact_cast
from halocline.schema.values import Unfit, checker, show

VALUES_MAX: Final = 10_000
_UUID: Final = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
_TEXT: Final = re.compile(
    r"\s*(uuid|json|enum\s*\((.*)\))(?:\s+(not\s+)?null)?\s*", re.IGNORECASE | re.DOTALL
)
_LITERAL: Final = re.compile(r"\s*'((?:[^']|'')*)'\s*(,|$)")
_is_json = msgspec.json.Decoder(msgspec.Raw).decode
"""It reads the text to the end, as strictly as JSON is defined, and builds nothing: 0.2 us."""
_text = checker(pa.string())


class Domain(NamedTuple):
    """Which texts a column takes."""

    name: str
    values: tuple[str, ...] = ()
    """The list of an enum."""

    def __str__(self) -> str:
        if not self.values:
            return self.name
        quoted = ", ".join("'" + value.replace("'", "''") + "'" for value in self.values)
        return f"enum({quoted})"

    def check(self, value: Any) -> str:
        """The text of one value that is not null; raises Unfit."""
        if self.name == "uuid":
            text = str(value) if type(value).__name__ == "UUID" else _text(value)
            if not re.fullmatch(_UUID, text := text.lower()):
                raise Unfit(f"{show(value)} is not a uuid")
            return str(text)
        if self.name == "json":
            return _json_of(value)
        text = _text(value.value if isinstance(value, enum.Enum) else value)
        if text not in self.values:
            raise Unfit(f"{show(text)} is not one of {self}")
        return str(text)

    def fit(self, array: Any) -> Any:
        """An array as texts of this domain; raises Unfit when one of them is not."""
        if self.name == "uuid" and isinstance(array.type, pa.UuidType):
            return _uuid_texts(array.storage)
        texts = exact_cast(array, pa.string())
        if self.name == "uuid":
            texts = pc.ascii_lower(texts)
            wrong = pc.invert(pc.match_substring_regex(texts, _UUID))
        elif self.name == "json":
            return _refuse_other_than_json(texts)
        else:
            wrong = pc.and_(pc.is_valid(texts), pc.invert(pc.is_in(texts, pa.array(self.values))))
        if pc.any(wrong).as_py():
            raise Unfit(f"is not {'a uuid' if self.name == 'uuid' else f'one of {self}'}")
        return texts


def read_domain(given: Any, column: str) -> tuple[Domain, bool] | None:
    """The domain that somebody wrote for a column, and whether null is allowed; or None."""
    if isinstance(given, str):
        found = _TEXT.fullmatch(given)
        if found is None:
            return None
        domain = Domain(found[1].lower()) if found[2] is None else _enum(_listed(found[2]), column)
        return domain, not found[3]
    if isinstance(given, pa.DataType):
        names = {"arrow.uuid": "uuid", "arrow.json": "json"}
        name = names.get(getattr(given, "extension_name", ""))
        return None if name is None else (Domain(name), True)
    if isinstance(given, type) and issubclass(given, enum.Enum):
        return _enum([member.value for member in given], column), True
    if (getattr(given, "__module__", ""), getattr(given, "__name__", "")) == ("uuid", "UUID"):
        return Domain("uuid"), True
    return None


def _listed(text: str) -> list[str]:
    """The texts between the parentheses; none when they are not written as such."""
    values, at = [], 0
    while at < len(text):
        found = _LITERAL.match(text, at)
        if found is None:
            return []
        values.append(found[1].replace("''", "'"))
        at = found.end()
    return values


def _enum(values: Sequence[Any], column: str) -> Domain:
    if not values or len(values) > VALUES_MAX or len(set(values)) < len(values):
        reason = f"an enum lists 1 to {VALUES_MAX} different texts, as in enum('new', 'paid')"
        raise SchemaError(reason, column=column)
    try:
        return Domain("enum", tuple(_text(value) for value in values))
    except Unfit as error:
        raise SchemaError(f"an enum lists texts: {error.reason}", column=column) from None


def _json_of(value: Any) -> str:
    try:
        if isinstance(value, (dict, list)):
            value = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text = str(_text(value))
        _is_json(text)
    except (msgspec.DecodeError, RecursionError, TypeError, ValueError):
        raise Unfit(f"{show(value)} is not JSON") from None
    return text


def _refuse_other_than_json(texts: Any) -> Any:
    try:
        for text in texts.to_pylist():  # a loop, but of 0.25 us a row
            if text is not None:
                _is_json(text)
    except (msgspec.DecodeError, RecursionError):
        raise Unfit("is not JSON") from None
    return texts


def _uuid_texts(storage: Any) -> Any:
    """16 bytes each as 36 characters, all at once."""
    count, nulls = len(storage), storage.is_null()
    storage = pc.fill_null(storage, pa.scalar(bytes(16), storage.type))
    data = storage.buffers()[1][16 * storage.offset : 16 * (storage.offset + count)]
    digits = np.frombuffer(data.to_pybytes().hex().encode(), np.uint8).reshape(count, 32)
    shown = np.insert(digits, [8, 12, 16, 20], ord("-"), axis=1)
    offsets = np.arange(0, 36 * count + 1, 36, dtype=np.int32)
    made = pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(shown.tobytes()))
    return pc.if_else(nulls, None, made)

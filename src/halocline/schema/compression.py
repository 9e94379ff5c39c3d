"""Compression: the codec of a table's columns in its objects, `codec=` of create_table.

    "lz4" | {"note": "zstd", "photo": "none"} --read_compression--> of the table, of some columns

A column that is added later has the codec of the table. What hardly shrinks is left as it is,
whatever the codec (objects/columns.py). Spark, DuckDB and pyarrow read all of them; files of older
codecs stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from halocline.errors import SchemaError
from halocline.schema.names import ColumnNames
from halocline.schema.values import show

ZSTD: Final = "zstd"
CODECS: Final = (ZSTD, "lz4", "none")
Codec = str | Mapping[str, str] | None


def read_compression(codec: Any, names: Sequence[str]) -> tuple[str, dict[int, str]]:
    """The codec of the table, and those of columns that have another, by position."""
    if not isinstance(codec, Mapping):
        return check_codec(ZSTD if codec is None else codec), {}
    known, found = ColumnNames(names), dict[int, str]()
    for name, given in codec.items():
        if not isinstance(name, str):
            raise SchemaError("codec= names columns by strings", column=show(name))
        at = known.position(name)
        if at in found:
            raise SchemaError("has two codecs: name it once", column=names[at])
        found[at] = check_codec(given, column=names[at])
    return ZSTD, found


def check_codec(codec: Any, column: str | None = None) -> str:
    """One of the codecs; SchemaError for anything else."""
    if not isinstance(codec, str) or codec not in CODECS:
        reason = f"codec= is one of {', '.join(CODECS)}, or a dict of columns to these"
        raise SchemaError(f"{reason}, not {show(codec)}", column=column)
    return codec

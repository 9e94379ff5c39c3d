"""A small Parquet file around some pages of a large one.

    object:  [dict a][a0][a1][a2]...[dict b][b0][b1][b2]...   footer
                  \\___   |            ______/    /
    spliced: PAR1 [dict a][a1]  [dict b][b1]   footer of one row group  PAR1

pyarrow decodes whole column chunks: to read one row it would unpack 122,880. A page with the
dictionary of its chunk is complete in itself, though, and Parquet says nothing about where a chunk
came from. So a block is read by writing a footer around its pages, 80 us, and giving the result to
pyarrow's own decoder, 1 ms for eight columns: there is no second implementation of encodings,
levels and nested types.

Invariants
- All columns of a splice hold the same blocks, hence the same rows.
- Nothing of the object's footer is used but what the directory repeats: schema elements and the
  constant part of each leaf's metadata.

Not here: choosing pages and checking their digests (read.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from halocline.objects.footer import FileColumn
from halocline.objects.thrift import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    blob,
    fields,
    items,
    number,
    struct,
)

_MAGIC: Final = b"PAR1"
_FORMAT: Final = 2


@dataclass(frozen=True, slots=True)
class Chunk:
    """The pages of one leaf, in order: its dictionary if there is one, then data."""

    dictionary: memoryview | None
    pages: Sequence[memoryview]
    values: int


def splice(columns: Sequence[FileColumn], chunks: Sequence[Chunk], rows: int) -> bytes:
    """The bytes of a file of one row group: one chunk for each leaf of the columns."""
    parts: list[bytes | memoryview] = [_MAGIC]
    metas: list[bytes] = []
    at = len(_MAGIC)
    constants = [leaf for column in columns for leaf in column.leaves]
    for constant, chunk in zip(constants, chunks, strict=True):
        first = at
        if chunk.dictionary is not None:
            parts.append(chunk.dictionary)
            at += len(chunk.dictionary)
        data = at
        parts += chunk.pages
        at += sum(map(len, chunk.pages))
        metas.append(_chunk_meta(constant, chunk, first, data, at))
    footer = _footer(columns, metas, rows, at)
    parts += [footer, len(footer).to_bytes(4, "little"), _MAGIC]
    return b"".join(parts)


def decode(columns: Sequence[FileColumn], chunks: Sequence[Chunk], rows: int) -> Any:
    """The rows of these chunks as a pa.Table, its columns in the order given."""
    file = pq.ParquetFile(pa.BufferReader(splice(columns, chunks, rows)))
    return file.read(use_threads=rows > 16384)


def _chunk_meta(constant: bytes, chunk: Chunk, first: int, data: int, end: int) -> bytes:
    variable = [
        (5, I64, number(chunk.values)),
        # The size after decompression is a hint that the decoder does not use.
        (6, I64, number(end - first)),
        (7, I64, number(end - first)),
        (9, I64, number(data)),
    ]
    if chunk.dictionary is not None:
        variable.append((11, I64, number(first)))
    meta = constant + fields(variable, after=4) + b"\0"
    return struct([(2, I64, number(0)), (3, STRUCT, meta)])


def _footer(columns: Sequence[FileColumn], metas: Sequence[bytes], rows: int, size: int) -> bytes:
    root = struct([(4, BINARY, blob(b"schema")), (5, I32, number(len(columns)))])
    elements = [root, *(column.schema for column in columns)]
    count = 1 + sum(column.elements for column in columns)
    schema = items(STRUCT, [b""] * count) + b"".join(elements)
    group = struct(
        [(1, LIST, items(STRUCT, metas)), (2, I64, number(size)), (3, I64, number(rows))]
    )
    return struct(
        [
            (1, I32, number(_FORMAT)),
            (2, LIST, schema),
            (3, I64, number(rows)),
            (4, LIST, items(STRUCT, [group])),
        ]
    )

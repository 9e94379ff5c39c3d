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

from halocline.objects import thrift
from halocline.objects.footer import FileColumn

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
        (5, thrift.I64, thrift.number(chunk.values)),
        # The size after decompression is a hint that the decoder does not use.
        (6, thrift.I64, thrift.number(end - first)),
        (7, thrift.I64, thrift.number(end - first)),
        (9, thrift.I64, thrift.number(data)),
    ]
    if chunk.dictionary is not None:
        variable.append((11, thrift.I64, thrift.number(first)))
    meta = constant + thrift.fields(variable, after=4) + b"\0"
    return thrift.struct([(2, thrift.I64, thrift.number(0)), (3, thrift.STRUCT, meta)])


def _footer(columns: Sequence[FileColumn], metas: Sequence[bytes], rows: int, size: int) -> bytes:
    root = thrift.struct(
        [(4, thrift.BINARY, thrift.blob(b"schema")), (5, thrift.I32, thrift.number(len(columns)))]
    )
    elements = [root, *(column.schema for column in columns)]
    count = 1 + sum(column.elements for column in columns)
    schema = thrift.items(thrift.STRUCT, [b""] * count) + b"".join(elements)
    group = thrift.struct(
        [
            (1, thrift.LIST, thrift.items(thrift.STRUCT, metas)),
            (2, thrift.I64, thrift.number(size)),
            (3, thrift.I64, thrift.number(rows)),
        ]
    )
    return thrift.struct(
        [
            (1, thrift.I32, thrift.number(_FORMAT)),
            (2, thrift.LIST, schema),
            (3, thrift.I64, thrift.number(rows)),
            (4, thrift.LIST, thrift.items(thrift.STRUCT, [group])),
        ]
    )

"""What a finished Parquet file says about itself: columns, row groups, pages, bloom filters.

    file --read_layout--> Layout --> directory.py
           (only files that this process has just written)

pyarrow writes offset indexes and shows nothing of them, so their thrift is read here, once, when
the file has been written: 5 ms for a million rows of eight columns. Readers of objects never come
here: they find the result in the block directory.

Invariants
- Every leaf of a layout has the same blocks: a file whose pages do not start at the same rows in
  all columns is refused, because a block is "the same rows in every column".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from halocline.objects.thrift import BINARY, I32, LIST, ThriftStruct, blob, fields, items, number
from halocline.objects.thrift import read_struct as read

END_BYTES: Final = 8
"""Behind the footer: its length and the magic."""

_REPEATED: Final = 2
_DATA_PAGE_HEADER: Final = 5


class ParquetPage(NamedTuple):
    """Where a page lies, its header included, and how many values it holds, nulls included."""

    offset: int
    size: int
    values: int


class BloomColumn(NamedTuple):
    """The column that has bloom filters: its id, physical type, and width if that is fixed."""

    id: int
    type: int
    width: int


NO_PAGE: Final = ParquetPage(0, 0, 0)
NO_BLOOM: Final = BloomColumn(0, 0, 0)


class FileColumn(msgspec.Struct, array_like=True, frozen=True):
    """One column at the top level: its id, its schema elements, and per leaf what is the same in
    the metadata of all its chunks (type, encodings, path and codec: fields 1 to 4)."""

    id: int
    schema: bytes
    elements: int
    leaves: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """All of it. Pages and dictionaries are by leaf; blocks are counted through all groups."""

    columns: tuple[FileColumn, ...]
    group_rows: tuple[int, ...]
    pages: list[list[ParquetPage]]
    dictionaries: list[list[ParquetPage]]
    blooms: tuple[tuple[int, int], ...]
    bloom_column: BloomColumn
    tail_start: int
    footer_start: int


def footer_start(data: memoryview) -> int:
    """Where the footer begins in a file, or in the last part of one."""
    return len(data) - END_BYTES - int.from_bytes(data[-END_BYTES:-4], "little")


def block_counts(group_rows: Sequence[int], block_rows: int) -> list[int]:
    """Blocks in each row group."""
    return [-(-rows // block_rows) for rows in group_rows]


def read_layout(data: memoryview, block_rows: int) -> Layout:
    """The layout of a file that has just been written with blocks of so many rows."""
    start = footer_start(data)
    raw = data[start:-END_BYTES]
    footer = read(raw)
    groups: list[ThriftStruct] = footer[4]
    spans = _column_spans(footer[2])
    repeated = [_is_repeated(span) for span in spans for part in span if _is_leaf(part)]
    group_rows = tuple(group[3] for group in groups)
    pages: list[list[ParquetPage]] = [[] for _ in repeated]
    dictionaries: list[list[ParquetPage]] = [[] for _ in repeated]
    for group in groups:
        for leaf, chunk in enumerate(group[1]):
            starts = range(0, group[3], block_rows)
            pages[leaf] += _pages(data, chunk[4], starts, group[3], repeated[leaf])
            dictionaries[leaf].append(_dictionary(chunk[3]))
    blooms = tuple((c[3][14], c[3][15]) for group in groups for c in group[1] if 14 in c[3])
    indexes = [c[at] for group in groups for c in group[1] for at in (4, 6) if at in c]
    return Layout(
        columns=_columns(raw, spans, groups[0][1]),
        group_rows=group_rows,
        pages=pages,
        dictionaries=dictionaries,
        blooms=blooms,
        bloom_column=_bloom_column(spans, groups[0][1]),
        tail_start=min(indexes + [offset for offset, _ in blooms]),
        footer_start=start,
    )


def _column_spans(elements: Sequence[ThriftStruct]) -> list[list[ThriftStruct]]:
    """The schema elements of each column; they stand in depth-first order behind the root."""
    spans: list[list[ThriftStruct]] = []
    open_nodes = 0
    for element in elements[1:]:
        if not open_nodes:
            spans.append([])
            open_nodes = 1
        spans[-1].append(element)
        open_nodes += element.get(5, 0) - 1
    return spans


def _is_leaf(element: ThriftStruct) -> bool:
    return not element.get(5, 0)


def _is_repeated(span: Sequence[ThriftStruct]) -> bool:
    return any(element.get(3) == _REPEATED for element in span)


def _columns(
    raw: memoryview, spans: Sequence[Sequence[ThriftStruct]], chunks: Sequence[ThriftStruct]
) -> tuple[FileColumn, ...]:
    columns: list[FileColumn] = []
    at = 0
    for span in spans:
        count = sum(map(_is_leaf, span))
        leaves = tuple(_constant_part(chunk[3]) for chunk in chunks[at : at + count])
        schema = bytes(raw[span[0].start : span[-1].end])
        columns.append(FileColumn(id=span[0][9], schema=schema, elements=len(span), leaves=leaves))
        at += count
    return tuple(columns)


def _constant_part(meta: ThriftStruct) -> bytes:
    return fields(
        [
            (1, I32, number(meta[1])),
            (2, LIST, items(I32, [number(encoding) for encoding in meta[2]])),
            (3, LIST, items(BINARY, [blob(name) for name in meta[3]])),
            (4, I32, number(meta[4])),
        ]
    )


def _bloom_column(
    spans: Sequence[Sequence[ThriftStruct]], chunks: Sequence[ThriftStruct]
) -> BloomColumn:
    leaves = [(span[0], part) for span in spans for part in span if _is_leaf(part)]
    for (top, element), chunk in zip(leaves, chunks, strict=True):
        if 14 in chunk[3]:
            return BloomColumn(top[9], element[1], element.get(2, 0))
    return NO_BLOOM


def _pages(
    data: memoryview, at: int, starts: range, rows: int, repeated: bool
) -> list[ParquetPage]:
    """The pages of one chunk, by its offset index."""
    locations: list[ThriftStruct] = read(data, at)[1]
    found = [location[3] for location in locations]
    assert found == list(starts), f"pages start at rows {found[:4]}, not at {starts}"
    pages = []
    for location in locations:
        offset, size, first = location[1], location[2], location[3]
        values = min(starts.step, rows - first)
        if repeated:
            # Only the page itself knows how many values its lists hold.
            values = read(data, offset)[_DATA_PAGE_HEADER][1]
        pages.append(ParquetPage(offset, size, values))
    return pages


def _dictionary(meta: ThriftStruct) -> ParquetPage:
    if 11 not in meta:
        return NO_PAGE
    return ParquetPage(meta[11], meta[9] - meta[11], 0)

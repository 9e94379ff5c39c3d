"""Write one object: a sorted Arrow table becomes a Parquet file and its statistics.

    pa.Table --encode_data / encode_tombstones / encode_index--> bytes, ObjectStats

    row group (<= 122,880 rows) = column chunks = pages of one block (<= 8192 rows) each

What makes blocks line up in all columns, found by experiment with pyarrow 26: `max_rows_per_page`
and `write_batch_size` both equal to the block, no limit on the bytes of a page, one contiguous
Arrow chunk per row group, and no dictionaries inside lists. A dictionary that overflows ends its
page at the end of a write batch; if that is not the end of a block, all later pages are shifted.
`read_layout` makes sure of it for every file.

Wide rows make blocks smaller, by halves, until none has more than `block_bytes`: who reads a row by
key reads its whole block. The size is the same in the whole file, so a few cells that are larger
than all else must not make a block of every row: there are at most BLOCKS_FACTOR times as many as
rows and bytes ask for, unless a page would come near Parquet's limit of 2 GiB. Row groups end early
where they would have more than GROUP_BYTES_MAX.

A million rows of eight columns take 0.28 s of processor time, 0.23 of them in pyarrow.

Invariants
- Rows are sorted as the statistics say: by key, or by RowID. It is checked, as point reads would
  silently miss rows otherwise.
- The bytes are a function of table, schema and options: no time, no chance.

Not here: sorting (mover/, compaction/), files and their names (jobwriter.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from halocline.objects.columns import (
    COMMIT_TS,
    INDEX_KEY,
    PK64,
    ROWID,
    Order,
    choose_encodings,
    data_columns,
    file_schema,
    index_columns,
    is_composite,
    leaf_paths,
    leaf_types,
    tombstone_columns,
)
from halocline.objects.directory import encode_directory
from halocline.objects.footer import read_layout
from halocline.objects.keybytes import is_sorted, key_bytes, pk64, range_of
from halocline.objects.stats import VECTOR_ROWS, FileKind, ObjectStats
from halocline.objects.zonemap import zonemap
from halocline.options import MIB, Options
from halocline.schema.batches import VARIED, widest
from halocline.schema.compression import ZSTD
from halocline.schema.evolve import extra_ids
from halocline.schema.schema import Schema, TableColumn
from halocline.schema.types import kind as family

BLOCK_ROWS_MAX: Final = 8192
BLOCKS_FACTOR: Final = 4
GROUP_BYTES_MAX: Final = 128 * MIB
PAGE_BYTES_MAX: Final = 1024 * MIB
BLOOM_FALSE_POSITIVES: Final = 0.01
DICTIONARY_BYTES_MAX: Final = 256 * 1024
_NO_LIMIT: Final = 1 << 40


def encode_data(
    table: Any, schema: Schema, *, order: Order = "key", options: Options | None = None
) -> tuple[bytes, ObjectStats]:
    """A canonical table with `_rowid`, and `_commit_ts` unless its commit is still to come.

    It is sorted by key, or by `_rowid` with order="rowid" (as tables without a key always are).
    `_pk64` is added where it belongs and is missing.
    """
    if not schema.key_positions:
        order = "rowid"
    if is_composite(schema) and PK64 not in table.column_names:
        table = table.append_column(PK64, pa.array(pk64(table, schema.primary_key)))
    columns = data_columns(schema, committed=COMMIT_TS in table.column_names)
    return _encode(table, schema, columns, "data", order, options or Options())


def encode_tombstones(
    table: Any, schema: Schema, *, options: Options | None = None
) -> tuple[bytes, ObjectStats]:
    """A table of `_rowid`, the key columns, `_commit_ts` unless its commit is still to come,
    `_successor` and `_changed`, sorted by `_rowid`."""
    columns = tombstone_columns(schema, committed=COMMIT_TS in table.column_names)
    return _encode(table, schema, columns, "tombstone", "rowid", options or Options())


def encode_index(
    table: Any, schema_version: int, *, options: Options | None = None
) -> tuple[bytes, ObjectStats]:
    """A table of `_key` and `_position`, sorted by key: the content of an index object."""
    options, columns = options or Options(), index_columns()
    arrays = [table.column(column.name) for column in columns]
    table = pa.Table.from_arrays(arrays, schema=file_schema(columns))
    keys = table.column(INDEX_KEY)
    assert is_sorted([keys]), f"not sorted by {INDEX_KEY}"
    block_rows = _block_rows(table, min(options.page_rows, BLOCK_ROWS_MAX), options.block_bytes)
    groups = _groups(table, options.row_group_rows, block_rows)
    raw = _parquet(table, columns, [INDEX_KEY], None, block_rows, groups, ZSTD)
    data, tail_bytes = _with_directory(raw, table, [INDEX_KEY], block_rows)
    return data, ObjectStats(
        kind="index",
        order="key",
        rows=table.num_rows,
        size_bytes=len(data),
        tail_bytes=tail_bytes,
        digest=xxhash.xxh3_128_digest(data),
        tail_digest=xxhash.xxh3_128_digest(memoryview(data)[-tail_bytes:]),
        key_min=keys[0].as_py(),
        key_max=keys[-1].as_py(),
        rowid_min=0,
        rowid_max=0,
        commit_ts_min=0,
        commit_ts_max=0,
        schema_version=schema_version,
        vector_bytes=0,
        zonemaps={},
    )


def _encode(
    table: Any,
    schema: Schema,
    columns: Sequence[TableColumn],
    kind: FileKind,
    order: Order,
    options: Options,
) -> tuple[bytes, ObjectStats]:
    arrays = [table.column(column.name) for column in columns]
    table = pa.Table.from_arrays(arrays, schema=file_schema(columns))
    assert 0 < table.num_rows <= options.object_rows, "an object has 1 to object_rows rows"
    sorted_by = list(schema.primary_key) if order == "key" else [ROWID]
    assert is_sorted([table.column(name) for name in sorted_by]), f"not sorted by {sorted_by}"
    block_rows = _block_rows(table, min(options.page_rows, BLOCK_ROWS_MAX), options.block_bytes)
    groups = _groups(table, options.row_group_rows, block_rows)
    bloom = _bloom_name(columns, schema, kind)
    raw = _parquet(table, columns, sorted_by, bloom, block_rows, groups, schema.compression)
    data, tail_bytes = _with_directory(raw, table, sorted_by, block_rows)
    parts = [table.slice(start, stop - start) for start, stop in groups]
    vector_bytes = max(widest(part, max(VECTOR_ROWS, block_rows)) for part in parts)
    return data, _stats(table, schema, kind, order, data, tail_bytes, vector_bytes)


def _parquet(
    table: Any,
    columns: Sequence[TableColumn],
    sorted_by: Sequence[str],
    bloom: str | None,
    block_rows: int,
    groups: Sequence[tuple[int, int]],
    codec: str,
) -> memoryview:
    encodings = choose_encodings(table, columns)
    leaves = [column.name for column in columns for _ in leaf_paths(column)]
    rows = max(stop - start for start, stop in groups)
    filters = {bloom: {"ndv": rows, "fpp": BLOOM_FALSE_POSITIVES}} if bloom else None
    codecs = {
        path: "none" if path in encodings.raw else column.compression or codec
        for column in columns
        for path in leaf_paths(column)
    }
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression=codecs,
        compression_level={path: 1 for path, codec in codecs.items() if codec == "zstd"},
        use_dictionary=encodings.dictionary,
        column_encoding=encodings.special,
        dictionary_pagesize_limit=DICTIONARY_BYTES_MAX,
        data_page_size=_NO_LIMIT,
        write_batch_size=block_rows,
        max_rows_per_page=block_rows,
        write_statistics=_with_statistics(table, columns),
        write_page_index=True,
        write_page_checksum=True,
        sorting_columns=[pq.SortingColumn(leaves.index(name)) for name in sorted_by],
        bloom_filter_options=filters,
        store_decimal_as_integer=True,
        # We read by column id and cast; all that other tools need is in Parquet's own schema.
        store_schema=False,
    ) as writer:
        for start, stop in groups:
            part = table.slice(start, stop - start).combine_chunks()
            writer.write_table(part, row_group_size=stop - start)
    return memoryview(sink.getvalue()).cast("B")


def _with_statistics(table: Any, columns: Sequence[TableColumn]) -> list[str]:
    """Leaves that get minimum and maximum in the file.

    Parquet leaves NaN out of them, and DuckDB then takes a column for free of NaN: `isnan(v)` found
    nothing. So a column that holds one has none; our own zonemaps count NaN.
    """
    kept = []
    for column in columns:
        paths = leaf_paths(column)
        if family(column.type) in ("list", "struct"):
            kept += [
                path
                for path, leaf in zip(paths, leaf_types(column), strict=True)
                if not pa.types.is_floating(leaf)
            ]
        elif not pa.types.is_floating(column.type) or not _has_nan(table.column(column.name)):
            kept += paths
    return kept


def _has_nan(values: Any) -> bool:
    return bool(pc.any(pc.is_nan(values)).as_py())


def _bloom_name(columns: Sequence[TableColumn], schema: Schema, kind: FileKind) -> str | None:
    """The column whose values the bloom filters hold; Parquet has none for bool."""
    if kind == "tombstone":
        return ROWID
    if not schema.key_positions:
        return None
    name = PK64 if is_composite(schema) else schema.primary_key[0]
    column = next(column for column in columns if column.name == name)
    paths = [path for column in columns for path in leaf_paths(column)]
    return name if family(column.type) != "bool" and paths.count(name) == 1 else None


def _block_rows(table: Any, rows: int, bytes_max: int) -> int:
    """So many rows, or fewer by halves, that no block has more bytes, as far as that pays off."""
    if table.nbytes <= bytes_max:
        return rows
    wide = [column for column in table.columns if family(column.type) in VARIED]
    others = [column.nbytes for column in table.columns if family(column.type) not in VARIED]
    narrow = sum(others) / table.num_rows
    blocks_max = BLOCKS_FACTOR * (table.num_rows / rows + table.nbytes / bytes_max)
    while rows > 1:
        starts = range(0, table.num_rows, rows)
        most = max(sum(one.slice(at, rows).nbytes for one in wide) for at in starts)
        enough = 2 * len(starts) > blocks_max and most <= PAGE_BYTES_MAX
        if most + narrow * rows <= bytes_max or enough:
            break
        rows //= 2
    return rows


def _groups(table: Any, rows: int, block_rows: int) -> list[tuple[int, int]]:
    """First and last + 1 row of each row group: so many rows, or fewer where those are wide."""
    edges = [0]
    for start in range(0, table.num_rows, rows):
        stop = min(start + rows, table.num_rows)
        if table.slice(start, stop - start).nbytes > GROUP_BYTES_MAX:
            held = 0
            for at in range(start, stop, block_rows):
                size = table.slice(at, min(block_rows, stop - at)).nbytes
                if held and held + size > GROUP_BYTES_MAX:
                    edges.append(at)
                    held = 0
                held += size
        edges.append(stop)
    return list(pairwise(edges))


def _with_directory(
    raw: memoryview, table: Any, sorted_by: Sequence[str], block_rows: int
) -> tuple[bytes, int]:
    """The finished file, and the length of its tail."""
    layout = read_layout(raw, block_rows)
    starts: list[int] = []
    first = 0
    for rows in layout.group_rows:
        starts += range(first, first + rows, block_rows)
        first += rows
    heads = table.select(list(sorted_by)).take(pa.array(starts, pa.int64()))
    first_keys = key_bytes(heads, sorted_by).to_pylist()
    section = encode_directory(raw, layout, block_rows=block_rows, first_keys=first_keys)
    at = layout.footer_start
    data = b"".join([raw[:at], section, raw[at:]])
    return data, len(data) - layout.tail_start


def _stats(
    table: Any,
    schema: Schema,
    kind: FileKind,
    order: Order,
    data: bytes,
    tail_bytes: int,
    vector_bytes: int,
) -> ObjectStats:
    key_min, key_max = _key_range(table, schema, order)
    rowid_min, rowid_max = _int_range(table, ROWID)
    stamps = _int_range(table, COMMIT_TS) if COMMIT_TS in table.column_names else (None, None)
    return ObjectStats(
        kind=kind,
        order=order,
        rows=table.num_rows,
        size_bytes=len(data),
        vector_bytes=vector_bytes,
        tail_bytes=tail_bytes,
        digest=xxhash.xxh3_128_digest(data),
        tail_digest=xxhash.xxh3_128_digest(memoryview(data)[-tail_bytes:]),
        key_min=key_min,
        key_max=key_max,
        rowid_min=rowid_min,
        rowid_max=rowid_max,
        commit_ts_min=stamps[0],
        commit_ts_max=stamps[1],
        schema_version=schema.version,
        extras=tuple(extra_ids(schema)),
        zonemaps={
            column.id: zonemap(table.column(column.name))
            for column in schema.columns
            if column.name in table.column_names
        },
    )


def _key_range(table: Any, schema: Schema, order: Order) -> tuple[bytes, bytes]:
    names = schema.primary_key
    if not names:
        return b"", b""
    if order == "key":
        ends = table.select(list(names)).take(pa.array([0, table.num_rows - 1], pa.int64()))
        low, high = key_bytes(ends, names).to_pylist()
        return low, high
    return range_of(key_bytes(table, names))


def _int_range(table: Any, name: str) -> tuple[int, int]:
    bounds = pc.min_max(table.column(name))
    return bounds["min"].as_py(), bounds["max"].as_py()

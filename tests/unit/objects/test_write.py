"""Objects on disk: the shape that every file has, and the statistics that go into the catalog."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import xxhash
from hypothesis import given

from halocline.objects import write
from halocline.objects.columns import (
    CHANGED,
    COMMIT_TS,
    HIDDEN,
    PK64,
    ROWID,
    SUCCESSOR,
)
from halocline.objects.stats import ObjectStats
from halocline.objects.thrift import read_struct
from halocline.objects.write import encode_data, encode_tombstones
from halocline.objects.zonemap import zonemap
from halocline.options import Options
from halocline.schema.schema import Schema
from halocline.store.objects import MemoryObjects
from tests.unit.objects.files import write_data, write_tombstones
from tests.unit.objects.rig import ORDERS, SMALL, footer_of, keyed_tables, orders, plain
from tests.unit.schema.pools import few


def offset_indexes(data: bytes) -> list[tuple[Any, Any, Any]]:
    """Per row group: its rows, and per leaf the first rows and offsets of its pages."""
    groups = []
    for group in footer_of(data)[4]:
        indexes = [read_struct(data, chunk[4])[1] for chunk in group[1]]
        starts = [[page[3] for page in index] for index in indexes]
        offsets = [[page[1] for page in index] for index in indexes]
        groups.append((group[3], starts, offsets))
    return groups


def test_l14_a_block_is_the_same_8192_rows_in_every_column() -> None:
    data, stats = encode_data(orders(20_000), ORDERS, options=Options(row_group_rows=17_000))
    found = [(rows, starts) for rows, starts, _ in offset_indexes(data)]
    assert found == [
        (17_000, [[0, 8192, 16_384]] * 8),
        (3_000, [[0]] * 8),
    ]
    assert stats.rows == 20_000


@pytest.mark.slow
@given(keyed_tables())
@few()
def test_l14_blocks_line_up_whatever_the_columns_are(case: tuple[Schema, Any]) -> None:
    schema, table = case
    data, _ = encode_data(table, schema, options=SMALL)
    for rows, starts, _ in offset_indexes(data):
        assert all(leaf == list(range(0, rows, 4)) for leaf in starts)


def test_l14_blocks_line_up_when_a_dictionary_overflows() -> None:
    rows = 30_000
    schema = Schema.define({"id": int, "word": str, "words": "varchar[]"}, "id")
    # 1,800 distinct words are worth a dictionary, and too long for one.
    words = [f"{k % 1800:0200d}" for k in range(rows)]
    lists = [[word] * (at % 5) for at, word in enumerate(words)]
    table = pa.table({"id": range(rows), "word": words, "words": lists, ROWID: range(rows)})
    data, _ = encode_data(table, schema, options=Options(block_bytes=1 << 30))
    assert offset_indexes(data)[0][1] == [list(range(0, rows, 8192))] * 4
    group = plain(data).metadata.row_group(0)
    assert "RLE_DICTIONARY" in group.column(1).encodings
    kinds = [read_struct(data, at)[5][2] for at in offset_indexes(data)[0][2][1]]
    assert set(kinds) == {0, 8}, "some pages by dictionary, the others plain"
    assert plain(data).read().column("word").to_pylist() == words


def test_chunks_of_the_table_do_not_show_in_the_file() -> None:
    table = orders(100)
    pieces = pa.concat_tables([table.slice(0, 7), table.slice(7, 1), table.slice(8)])
    assert encode_data(pieces, ORDERS, options=SMALL) == encode_data(table, ORDERS, options=SMALL)


BODIES = Schema.define({"id": int, "body": str}, "id")


def bodies(sizes: Sequence[int]) -> Any:
    rows = range(len(sizes))
    return pa.table({"id": rows, "body": ["x" * size for size in sizes], ROWID: rows})


def layout(sizes: Sequence[int], **options: int) -> list[tuple[int, list[int]]]:
    """Of each row group: its rows, and where its first blocks start."""
    data, _ = encode_data(bodies(sizes), BODIES, options=Options(**options))
    return [(rows, starts[0][:3]) for rows, starts, _ in offset_indexes(data)]


def test_wide_rows_make_smaller_blocks() -> None:
    sizes = {"page_rows": 256, "row_group_rows": 512}
    assert layout([10] * 1000, block_bytes=10_000, **sizes) == [
        (512, [0, 256]),
        (488, [0, 256]),
    ]
    assert layout([1000] * 1000, block_bytes=10_000, **sizes) == [
        (512, [0, 8, 16]),
        (488, [0, 8, 16]),
    ]


def test_all_columns_of_a_block_count_together() -> None:
    table = bodies([100] * 512)
    schema = Schema.define({"id": int, "body": str, "b": str, "c": str, "d": str}, "id")
    for name in "bcd":
        table = table.append_column(name, table.column("body"))
    options = Options(page_rows=256, block_bytes=30_000)
    ((_, starts, _),) = offset_indexes(encode_data(table, schema, options=options)[0])
    assert starts[0] == list(range(0, 512, 64))


def test_a_few_giants_do_not_make_a_block_of_every_row() -> None:
    sizes = [4_000_000 if key == 5000 else 10 for key in range(10_000)]
    ((rows, starts),) = layout(sizes, page_rows=1000, block_bytes=100_000)
    assert rows == 10_000
    assert 10 < rows // (starts[1] - starts[0]) < 4 * (10 + 45)


def test_row_groups_end_early_where_rows_are_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "GROUP_BYTES_MAX", 100_000)
    sizes = [10_000 if 100 <= key < 120 else 10 for key in range(1000)]
    groups = layout(sizes, page_rows=256, row_group_rows=512, block_bytes=20_000)
    assert sum(rows for rows, _ in groups) == 1000
    assert groups[-1][0] == 488
    assert len(groups) == 4


def test_i07_every_column_has_zonemaps_of_its_blocks() -> None:
    """Except floats that may hold NaN: readers would take their bounds for those of all values."""
    data, _ = encode_data(orders(30), ORDERS, options=SMALL)
    for group in footer_of(data)[4]:
        for chunk in group[1]:
            if 6 not in chunk:
                assert chunk[3][1] in (4, 5), "only floats have none"
                continue
            assert chunk[6] > 0
            index = read_struct(data, chunk[6])
            pages = len(read_struct(data, chunk[4])[1])
            assert len(index[1]) == len(index[2]) == len(index[3]) == pages


def test_i07_the_key_has_a_bloom_filter_in_every_row_group() -> None:
    metadata = plain(encode_data(orders(30), ORDERS, options=SMALL)[0]).metadata
    for group in range(metadata.num_row_groups):
        columns = [metadata.row_group(group).column(at) for at in range(metadata.num_columns)]
        filters = [c.path_in_schema for c in columns if c.bloom_filter_offset is not None]
        assert filters == ["id"]


def test_a_composite_key_has_its_bloom_filter_on_pk64() -> None:
    schema = Schema.define({"a": int, "b": str, "c": float}, ["a", "b"])
    table = pa.table({"a": [1, 1, 2], "b": ["x", "y", ""], "c": [0.5] * 3, ROWID: [4, 5, 6]})
    data, _ = encode_data(table, schema)
    file = plain(data)
    column = file.metadata.row_group(0).column(4)
    assert column.path_in_schema == PK64
    assert column.bloom_filter_offset is not None
    expected = [xxhash.xxh3_64_intdigest(schema.key_bytes(key)) for key in schema.keys_of(table)]
    assert file.read().column(PK64).to_numpy().view(np.uint64).tolist() == expected


def test_keys_without_a_hash_have_no_bloom_filter() -> None:
    flag = Schema.define({"f": bool}, "f")
    data, _ = encode_data(pa.table({"f": [False, True], ROWID: [1, 2]}), flag)
    assert plain(data).metadata.row_group(0).column(0).bloom_filter_offset is None
    none = Schema.define({"x": int})
    data, stats = encode_data(pa.table({"x": [9, 3], ROWID: [1, 2]}), none)
    assert plain(data).metadata.row_group(0).column(0).bloom_filter_offset is None
    assert (stats.order, stats.key_min, stats.key_max) == ("rowid", b"", b"")


def test_columns_carry_their_ids_and_the_order_is_declared() -> None:
    schema = Schema.define({"s": "struct<a: int, b: int>", "id": int}, "id")
    rows = [{"a": 1, "b": 2}]
    table = pa.table({"s": rows, "id": [1], ROWID: [7], COMMIT_TS: [9]})
    table = table.cast(pa.schema([*schema.arrow, *list(table.schema)[2:]]))
    file = plain(encode_data(table, schema)[0])
    ids = {f.name: int(f.metadata[b"PARQUET:field_id"]) for f in file.schema_arrow}
    assert ids == {"s": 1, "id": 2, ROWID: 2_000_000_001, COMMIT_TS: 2_000_000_002}
    (sorting,) = file.metadata.row_group(0).sorting_columns
    assert file.metadata.row_group(0).column(sorting.column_index).path_in_schema == "id"


def test_l17_every_page_is_compressed_and_says_so_without_being_read() -> None:
    data, _ = encode_data(orders(3000), ORDERS)
    group = plain(data).metadata.row_group(0)
    for at in range(group.num_columns):
        column = group.column(at)
        assert column.compression == "ZSTD"
        assert column.total_compressed_size > 0
        assert column.total_uncompressed_size > 0


@pytest.mark.parametrize("codec", ["zstd", "lz4", "none"])
def test_l17_each_column_has_the_codec_that_was_asked_for(codec: str) -> None:
    one = {"status": "lz4", "tags": "none", "ID": "lz4"}
    for asked, wanted in ((codec, {}), (one, {"status": "lz4", "tags": "none", "id": "lz4"})):
        schema = Schema.define(ORDERS.arrow, "id", codec=asked)
        assert Schema.from_wire(schema.to_wire()) == schema
        data, _ = encode_data(orders(3000), schema)
        group = plain(data).metadata.row_group(0)
        for at in range(group.num_columns):
            column = group.column(at)
            name = column.path_in_schema.partition(".")[0]
            rest = codec if asked == codec else "zstd"
            expected = {"zstd": "ZSTD", "lz4": "LZ4", "none": "UNCOMPRESSED"}[
                wanted.get(name, rest)
            ]
            assert column.compression in {expected, "UNCOMPRESSED"}
            assert column.compression == expected or name == "price"


def test_every_page_has_a_checksum() -> None:
    data, _ = encode_data(orders(30), ORDERS, options=SMALL)
    for _, _, leaves in offset_indexes(data):
        for offsets in leaves:
            assert all(4 in read_struct(data, offset) for offset in offsets)


def test_encodings_follow_the_values() -> None:
    group = plain(encode_data(orders(5000), ORDERS)[0]).metadata.row_group(0)
    found = {group.column(at).path_in_schema: group.column(at).encodings for at in range(8)}
    assert "DELTA_BINARY_PACKED" in found[ROWID]
    assert "DELTA_BINARY_PACKED" in found["id"]
    assert "DELTA_BINARY_PACKED" in found["amount"]
    assert "RLE_DICTIONARY" in found["status"]
    assert found["price"] == ("RLE", "PLAIN")
    assert found["tags.list.element"] == ("RLE", "PLAIN")


def test_columns_that_share_a_path_are_written_plainly() -> None:
    fields = [("a.b", pa.int64()), ("a", pa.struct([("b", pa.string())])), ("id", pa.int64())]
    schema = Schema.define(pa.schema(fields), "a.b")
    rows = {"a.b": range(9), "a": [{"b": "x"}] * 9, "id": [1] * 9, ROWID: range(9)}
    table = pa.Table.from_pydict(rows, pa.schema([*schema.arrow, pa.field(ROWID, pa.int64())]))
    data, _ = encode_data(table, schema)
    assert plain(data).read().select(["a.b", "a"]).to_pylist() == table.select([0, 1]).to_pylist()


def test_m02_an_object_before_its_commit_has_no_timestamps() -> None:
    data, stats = encode_data(orders(5).drop_columns([COMMIT_TS]), ORDERS)
    assert COMMIT_TS not in plain(data).schema_arrow.names
    assert not stats.committed
    assert (stats.commit_ts_min, stats.commit_ts_max) == (None, None)


def test_m01_tombstone_objects_hold_the_five_fields_sorted_by_rowid() -> None:
    schema = Schema.define({"a": int, "b": str, "c": float}, ["b", "a"])
    table = pa.table(
        {
            CHANGED: pa.array([[3], None, []], pa.list_(pa.int32())),
            ROWID: [5, 9, 12],
            "b": ["x", "a", "m"],
            "a": [3, 1, 2],
            SUCCESSOR: pa.array([20, None, None], pa.int64()),
            COMMIT_TS: [70, 60, 65],
        }
    )
    data, stats = encode_tombstones(table, schema)
    assert plain(data).schema_arrow.names == [ROWID, "b", "a", COMMIT_TS, SUCCESSOR, CHANGED]
    assert plain(data).read().to_pylist()[0] == {
        ROWID: 5,
        "b": "x",
        "a": 3,
        COMMIT_TS: 70,
        SUCCESSOR: 20,
        CHANGED: [3],
    }
    assert (stats.kind, stats.order) == ("tombstone", "rowid")
    assert (stats.rowid_min, stats.rowid_max) == (5, 12)
    assert (stats.commit_ts_min, stats.commit_ts_max) == (60, 70)
    assert (stats.key_min, stats.key_max) == (
        schema.key_bytes(("a", 1)),
        schema.key_bytes(("x", 3)),
    )
    before, early = encode_tombstones(table.drop_columns([COMMIT_TS]), schema)
    assert plain(before).schema_arrow.names == [ROWID, "b", "a", SUCCESSOR, CHANGED]
    assert early.commit_ts_min is None


def test_m03_statistics_say_what_is_in_the_file() -> None:
    table = orders(30)
    data, stats = encode_data(table, ORDERS, options=SMALL)
    assert (stats.kind, stats.order, stats.rows) == ("data", "key", 30)
    assert stats.size_bytes == len(data)
    assert stats.digest == xxhash.xxh3_128_digest(data)
    assert stats.tail_digest == xxhash.xxh3_128_digest(data[-stats.tail_bytes :])
    assert (stats.key_min, stats.key_max) == (ORDERS.key_bytes(0), ORDERS.key_bytes(58))
    assert (stats.rowid_min, stats.rowid_max) == (1000, 1029)
    assert (stats.commit_ts_min, stats.commit_ts_max) == (50, 59)
    assert stats.zonemaps.keys() == {column.id for column in ORDERS.columns}
    assert stats.zonemaps[4].min == pc.min(table.column("at")).as_py()


def test_statistics_travel_as_plain_values() -> None:
    import msgspec

    for _, stats in (encode_data(orders(30), ORDERS), encode_data(orders(3), ORDERS)):
        wire = msgspec.msgpack.decode(msgspec.msgpack.encode(stats.to_wire()))
        assert ObjectStats.from_wire(wire) == stats


@pytest.mark.parametrize("broken", [None, [], [2], [1, "data"], {"rows": 1}])
def test_statistics_of_an_unknown_shape_are_refused(broken: Any) -> None:
    with pytest.raises(ValueError, match="statistics"):
        ObjectStats.from_wire(broken)


@pytest.mark.parametrize(
    ("at", "value"), [(1, "checkpoint"), (3, -1), (3, "9"), (6, b"short"), (8, "key"), (12, 1.5)]
)
def test_statistics_with_a_wrong_part_are_refused(at: int, value: Any) -> None:
    wire = encode_data(orders(3), ORDERS)[1].to_wire()
    wire[at] = value
    with pytest.raises(ValueError, match="is not the"):
        ObjectStats.from_wire(wire)


def test_the_tail_is_all_behind_the_last_page() -> None:
    data, stats = encode_data(orders(30), ORDERS, options=SMALL)
    start = len(data) - stats.tail_bytes
    group = plain(data).metadata.row_group(2)
    last = group.column(group.num_columns - 1)
    assert start == last.data_page_offset + last.total_compressed_size


def test_rows_that_are_not_sorted_are_refused() -> None:
    table = orders(10)
    backwards = table.take(pa.array(range(9, -1, -1)))
    with pytest.raises(AssertionError, match="not sorted"):
        encode_data(backwards, ORDERS)
    with pytest.raises(AssertionError, match="not sorted"):
        encode_data(backwards, ORDERS, order="rowid")
    with pytest.raises(AssertionError, match="rows"):
        encode_data(table.slice(0, 0), ORDERS)
    with pytest.raises(AssertionError, match="rows"):
        encode_data(table, ORDERS, options=Options(object_rows=9))


def test_a_heap_object_is_in_rowid_order() -> None:
    table = orders(10).take(pa.array([3, 1, 2, 0])).drop_columns([ROWID])
    table = table.append_column(ROWID, pa.array([1, 2, 3, 4]))
    data, stats = encode_data(table, ORDERS, order="rowid")
    assert stats.order == "rowid"
    assert (stats.key_min, stats.key_max) == (ORDERS.key_bytes(0), ORDERS.key_bytes(6))
    (sorting,) = plain(data).metadata.row_group(0).sorting_columns
    assert plain(data).metadata.row_group(0).column(sorting.column_index).path_in_schema == ROWID


def test_writing_puts_the_bytes_into_the_store() -> None:
    objects = MemoryObjects()
    stats = write_data(objects, "1/2-3.parquet", orders(9), ORDERS)
    assert xxhash.xxh3_128_digest(objects.read("1/2-3.parquet")) == stats.digest
    ends = pa.table({ROWID: [1], "id": [2], SUCCESSOR: pa.array([None], pa.int64())})
    ends = ends.append_column(CHANGED, pa.array([None], HIDDEN[CHANGED].type))
    stats = write_tombstones(objects, "1/2-4.parquet", ends, ORDERS)
    assert xxhash.xxh3_128_digest(objects.read("1/2-4.parquet")) == stats.digest


@pytest.mark.parametrize("kind", ["text", "blob"])
def test_bounds_of_texts_are_those_of_the_rows_whatever_parquet_leaves_out(kind: str) -> None:
    rng = random.Random(kind)
    choices = ["", "a", "é", "zz" * 40, "m" * 5000, "\0", None]
    for _ in range(30):
        kinds = rng.sample(choices, rng.randrange(1, 5))
        values = [rng.choice(kinds) for _ in range(40)] + [None] * rng.choice((0, 16))
        if kind == "blob":
            values = [None if value is None else value.encode() for value in values]
        definition = {"id": int, "v": str if kind == "text" else bytes}
        schema = Schema.define(definition, "id")
        table = schema.table(pa.table({"id": range(len(values)), "v": values}, schema=schema.arrow))
        table = table.append_column("_rowid", pa.array(range(1, len(values) + 1)))
        options = Options(object_rows=64, row_group_rows=16, page_rows=4)
        _, stats = encode_data(table, schema, options=options)
        assert stats.zonemaps[2] == zonemap(table.column("v"))

"""Bloom filters: Parquet's own, read and asked by us. No false negative, and DuckDB agrees."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from halocline.errors import CorruptionError
from halocline.objects.batch import KeyBatch
from halocline.objects.bloom import BYTE_ARRAY, INT32, INT64, Bloom, hash_ints, hash_keys, hasher
from halocline.objects.columns import PK64_ID, ROWID
from halocline.objects.footer import BloomColumn
from halocline.objects.thrift import I32, STRUCT, number, struct
from halocline.objects.write import encode_data
from halocline.options import Options
from halocline.schema.schema import Schema
from tests.unit.objects.rig import SMALL, Rig, keyed_tables
from tests.unit.schema.pools import KEY_LEAVES, few, values

LONG = BloomColumn(1, INT64, 0)
INT = BloomColumn(1, INT32, 0)


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_integers_are_hashed_as_their_eight_bytes(numbers: list[int]) -> None:
    expected = [xxhash.xxh64_intdigest(n.to_bytes(8, "little", signed=True)) for n in numbers]
    assert hash_ints(np.array(numbers, np.int64), LONG).tolist() == expected
    key_bytes = Schema.define({"a": int}, "a").key_bytes
    assert hash_keys([key_bytes(n) for n in numbers], LONG).tolist() == expected


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_narrow_integers_are_hashed_as_their_four_bytes(numbers: list[int]) -> None:
    expected = [xxhash.xxh64_intdigest(n.to_bytes(4, "little", signed=True)) for n in numbers]
    assert hash_ints(np.array(numbers, np.int64), INT).tolist() == expected
    key_bytes = Schema.define({"a": "int"}, "a").key_bytes
    assert hash_keys([key_bytes(n) for n in numbers], INT).tolist() == expected


def test_texts_and_hashes_of_composite_keys() -> None:
    assert hasher(BloomColumn(1, BYTE_ARRAY, 0))(b"ab") == xxhash.xxh64_intdigest(b"ab")
    inner = xxhash.xxh3_64_intdigest(b"ab").to_bytes(8, "little")
    assert hasher(BloomColumn(PK64_ID, INT64, 0))(b"ab") == xxhash.xxh64_intdigest(inner)


def slow_may_hold(bits: bytes, key_hash: int) -> bool:
    """The format's own words, without numpy."""
    salts = [0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D]
    salts += [0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31]
    block = (key_hash >> 32) * (len(bits) // 32) >> 32
    for at, salt in enumerate(salts):
        start = block * 32 + at * 4
        word = int.from_bytes(bits[start : start + 4], "little")
        if not word & 1 << ((key_hash & 0xFFFFFFFF) * salt % 2**32 >> 27):
            return False
    return True


@given(st.integers(1, 5), st.integers(0, 2**32), st.lists(st.integers(0, 2**64 - 1), max_size=50))
def test_one_and_many_give_the_answer_of_the_format(
    blocks: int, seed: int, hashes: list[int]
) -> None:
    chance = np.random.default_rng(seed)
    # Nearly full, or every answer would be no.
    words = chance.integers(0, 2**32, blocks * 8, np.uint32) | chance.integers(
        0, 2**32, blocks * 8, np.uint32
    )
    bits = (words | np.roll(words, 1)).tobytes()
    bloom = Bloom(memoryview(bits))
    expected = [slow_may_hold(bits, key_hash) for key_hash in hashes]
    assert [bloom.may_hold(key_hash) for key_hash in hashes] == expected
    assert bloom.probe(np.array(hashes, np.uint64)).tolist() == expected


@given(keyed_tables(others=0))
@few(2)
def test_i06_a_bloom_filter_never_denies_a_key_that_is_there(case: tuple[Schema, Any]) -> None:
    schema, table = case
    rig = Rig.of(table, schema)
    keys = [schema.key_bytes(key) for key in schema.keys_of(table)]
    with rig.reader.tail(rig.file) as tail:
        directory = tail.directory
        if not directory.bloom_column.id:
            assert schema.arrow.field(0).type == pa.bool_()
            return
        for group, rows in enumerate(directory.group_rows):
            start = directory.group_starts[group]
            mine = keys[start : start + rows]
            bloom = tail.bloom(group)
            assert bloom.probe(hash_keys(mine, directory.bloom_column)).all()
            assert all(map(bloom.may_hold, map(hasher(directory.bloom_column), mine)))
            batch = KeyBatch(schema, table.slice(start, rows))
            assert bloom.probe(batch.hashes(directory.bloom_column)).all()


DUCKDB_KEYS: list[tuple[str, list[Any], str]] = [
    ("bigint", [k * 7 - 900 for k in range(300)], "bigint"),
    ("int", [k * 7 - 900 for k in range(300)], "int"),
    ("varchar", [f"wörd-{k:04d}" for k in range(300)], "varchar"),
    ("date", [dt.date(2020, 1, 1) + dt.timedelta(days=2 * k) for k in range(300)], "date"),
    ("timestamp", [dt.datetime(2020, 1, 1, k % 24, k // 24) for k in range(300)], "timestamp"),
]


@pytest.mark.parametrize(("type", "keys", "literal"), DUCKDB_KEYS, ids=[c[0] for c in DUCKDB_KEYS])
def test_duckdb_gives_the_same_answers(
    type: str, keys: list[Any], literal: str, tmp_path: Path
) -> None:
    schema = Schema.define({"k": type}, "k")
    # Every other key is in the table, so half of the questions are about absent ones.
    present = sorted(keys[::2])
    table = schema.key_table(present).append_column(ROWID, pa.array(range(len(present))))
    data, stats = encode_data(table, schema, options=Options(row_group_rows=40))
    (tmp_path / "o.parquet").write_bytes(data)
    rig = Rig(data, stats, schema)
    connection = duckdb.connect()
    with rig.reader.tail(rig.file) as tail:
        column = tail.directory.bloom_column
        groups = range(len(tail.directory.group_rows))
        excluded = 0
        for key in keys[:120]:
            found = connection.execute(
                f"select bloom_filter_excludes from parquet_bloom_probe("
                f"'{tmp_path}/o.parquet', 'k', '{key}'::{literal}) order by row_group_id"
            ).fetchall()
            key_hash = hasher(column)(schema.key_bytes(key))
            ours = [not tail.bloom(group).may_hold(key_hash) for group in groups]
            assert ours == [row[0] for row in found]
            excluded += sum(ours)
        assert excluded > 120


def test_false_positives_are_rare() -> None:
    schema = Schema.define({"k": int}, "k")
    table = pa.table({"k": np.arange(50_000) * 2, ROWID: np.arange(50_000)})
    rig = Rig.of(table, schema, Options())
    with rig.reader.tail(rig.file) as tail:
        absent = hash_ints(np.arange(50_000) * 2 + 1, tail.directory.bloom_column)
        assert tail.bloom(0).probe(absent).mean() < 0.02


@pytest.mark.parametrize("type", [t for t in KEY_LEAVES if t != pa.bool_()], ids=str)
@given(st.data())
@few(5)
def test_every_key_type_is_hashed_as_pyarrow_does(type: Any, data: st.DataObject) -> None:
    schema = Schema.define(pa.schema([pa.field("k", type, nullable=False)]), "k")
    keys = sorted(data.draw(st.lists(values(type), min_size=1, max_size=9, unique=True)))
    table = schema.key_table(keys).append_column(ROWID, pa.array(range(len(keys))))
    rig = Rig.of(table, schema, SMALL)
    with rig.reader.tail(rig.file) as tail:
        key_hash = hasher(tail.directory.bloom_column)
        for at, key in enumerate(keys):
            group = tail.directory.group_of(tail.directory.block_of(at))
            assert tail.bloom(group).may_hold(key_hash(schema.key_bytes(key)))


def header(size: int, *kinds: bytes) -> bytes:
    return struct([(1, I32, number(size)), *((2 + at, STRUCT, k) for at, k in enumerate(kinds))])


KNOWN = struct([(1, STRUCT, b"\0")])
OTHER = struct([(2, STRUCT, b"\0")])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 40,
        header(32, KNOWN, KNOWN, KNOWN),
        header(32, KNOWN, KNOWN, KNOWN) + bytes(31),
        header(32, KNOWN, KNOWN, KNOWN) + bytes(33),
        header(0, KNOWN, KNOWN, KNOWN),
        header(-32, KNOWN, KNOWN, KNOWN) + bytes(32),
        header(33, KNOWN, KNOWN, KNOWN) + bytes(33),
        header(32, OTHER, KNOWN, KNOWN) + bytes(32),
        header(32, KNOWN, KNOWN) + bytes(32),
        header(2**40, KNOWN, KNOWN, KNOWN) + bytes(32),
    ],
)
def test_what_is_no_bloom_filter_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptionError, match=r"o\.parquet"):
        Bloom.parse("o.parquet", memoryview(data))


def test_decimal_keys_of_every_width_are_found() -> None:
    for precision in (4, 9, 10, 18, 19, 30, 38):
        schema = Schema.define({"k": f"decimal({precision},2)"}, "k")
        keys = [Decimal(n).scaleb(-2) for n in (-999, -1, 0, 1, 9999)]
        table = schema.key_table(keys).append_column(ROWID, pa.array(range(5)))
        rig = Rig.of(table, schema)
        assert [len(rig.finder().locate(rig.file, key)) for key in keys] == [1] * 5

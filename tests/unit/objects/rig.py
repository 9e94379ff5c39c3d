"""Small objects and what is needed to read them, for the tests of this room."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from halocline.objects.columns import COMMIT_TS, HIDDEN, ROWID
from halocline.objects.finder import Finder
from halocline.objects.footer import END_BYTES, footer_start
from halocline.objects.pool import Pool
from halocline.objects.read import ObjectReader
from halocline.objects.stats import ObjectFile, ObjectStats
from halocline.objects.thrift import ThriftStruct, read_struct
from halocline.objects.write import encode_data
from halocline.options import Options
from halocline.schema.batches import column_values
from halocline.schema.schema import Schema
from halocline.store.objects import MemoryObjects
from tests.unit.schema.pools import KEY_LEAVES, maybe_null, same, types, values

SMALL = Options(page_rows=4, row_group_rows=10)
"""Blocks of 4 rows, row groups of 10: blocks of 4, 4 and 2."""
KEY = "7/31-1.parquet"

ORDERS = Schema.define(
    {
        "id": "bigint",
        "status": "string",
        "amount": "decimal(12,2)",
        "at": "timestamptz",
        "price": "double",
        "tags": "varchar[]",
    },
    "id",
)


def orders(rows: int, *, step: int = 2, seed: int = 1, first_rowid: int = 1000) -> Any:
    """Rows of ORDERS with even ids, `_rowid` and `_commit_ts`, sorted by id."""
    chance = np.random.default_rng(seed)
    cents = pa.array(chance.integers(0, 10**9, rows)).cast(pa.decimal128(21, 2))
    tags = [[f"t{k}"] * int(k) if k < 3 else None for k in chance.integers(0, 4, rows)]
    table = pa.table(
        {
            "id": np.arange(rows, dtype=np.int64) * step,
            "status": pa.array(np.array(["new", "paid", "sent"])[chance.integers(0, 3, rows)]),
            "amount": cents.cast(pa.decimal128(12, 2)),
            "at": pa.array(chance.integers(0, 10**15, rows)).cast(pa.timestamp("us", "UTC")),
            "price": np.where(chance.random(rows) < 0.1, np.nan, chance.random(rows)),
            "tags": pa.array(tags, pa.list_(pa.string())),
        }
    ).cast(ORDERS.arrow)
    return stamped(table, first_rowid)


def stamped(table: Any, first_rowid: int = 1000) -> Any:
    """The same with RowIDs and timestamps."""
    rows = np.arange(table.num_rows, dtype=np.int64)
    table = table.append_column(hidden(ROWID), pa.array(rows + first_rowid))
    return table.append_column(hidden(COMMIT_TS), pa.array(rows // 3 + 50))


def hidden(name: str) -> Any:
    """The Arrow field of a hidden column."""
    return pa.field(name, HIDDEN[name].type, HIDDEN[name].nullable)


def rows_of(table: Any) -> list[list[Any]]:
    """The canonical values of each column."""
    return [
        [value for chunk in column.chunks for value in column_values(chunk)]
        for column in table.columns
    ]


def equal(found: Any, expected: Any) -> bool:
    """The same schema and the same values, NaN and signs of zero included."""
    return found.schema.equals(expected.schema) and same(rows_of(found), rows_of(expected))


class Rig:
    """One store with one object in it, a reader and a finder."""

    def __init__(self, data: bytes, stats: ObjectStats, schema: Schema, commit_ts: int = 0) -> None:
        self.objects = MemoryObjects()
        self.objects.put(KEY, data)
        self.file = ObjectFile(KEY, stats, commit_ts)
        self.index = Pool("index", 1 << 26)
        self.data = Pool("data", 1 << 26)
        self.reader = ObjectReader(self.objects, self.index)
        self.schema = schema

    @classmethod
    def of(cls, table: Any, schema: Schema = ORDERS, options: Options = SMALL) -> Rig:
        data, stats = encode_data(table, schema, options=options)
        return cls(data, stats, schema)

    def finder(self, schema: Schema | None = None) -> Finder:
        return Finder(self.reader, schema or self.schema, index=self.index, data=self.data)


def footer_of(data: bytes) -> ThriftStruct:
    """The Parquet footer of a file."""
    view = memoryview(data)
    return read_struct(view[footer_start(view) : -END_BYTES])


def plain(data: bytes) -> pq.ParquetFile:
    """The file as pyarrow opens it, knowing nothing of us."""
    return pq.ParquetFile(io.BytesIO(data), page_checksum_verification=True)


@st.composite
def keyed_tables(
    draw: st.DrawFn, *, rows_max: int = 30, others: int = 3, key_types: Sequence[Any] = KEY_LEAVES
) -> tuple[Schema, Any]:
    """A schema of any types with a key of one to three columns, and a sorted table of it.

    Keys repeat now and then: an object may hold several versions of one.
    """
    chosen = draw(st.lists(st.sampled_from(key_types), min_size=1, max_size=3))
    names = [f"k{at}" for at in range(len(chosen))]
    rest = draw(st.lists(types(), max_size=others))
    fields = [pa.field(n, t, nullable=False) for n, t in zip(names, chosen, strict=True)]
    fields += [pa.field(f"c{at}", type) for at, type in enumerate(rest)]
    schema = Schema.define(pa.schema(fields), names)
    parts = [draw(st.lists(values(type), min_size=1, max_size=8)) for type in chosen]
    row = st.tuples(
        *(st.sampled_from(part) for part in parts), *(maybe_null(values(type)) for type in rest)
    )
    rows = draw(st.lists(row, min_size=1, max_size=rows_max))
    rows.sort(key=lambda row: row[: len(names)])
    return schema, stamped(schema.to_table(rows))


def empty(*pools: Pool) -> None:
    """Drive everything out of pools that is not pinned, by something as large as they are."""
    for pool in pools:
        pool.pin("all", lambda pool=pool: (None, pool.budget_bytes)).close()
        pool.drop("all")

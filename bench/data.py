"""The one table that every case uses, and rows for it, the same for every side.

    accounts (id bigint primary key, owner text, balance double, note text)

Rows follow from their id alone, so that two processes make equal rows without talking, and any
side can check what it reads back. A row is about 60 bytes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pyarrow as pa

TABLE = "accounts"
COLUMNS = ("id", "owner", "balance", "note")
SCHEMA = pa.schema(
    [("id", pa.int64()), ("owner", pa.string()), ("balance", pa.float64()), ("note", pa.string())]
)
NOTES = ("opened at the counter", "transferred from savings", "monthly interest", "refund")

Row = tuple[int, str, float, str]


def row(key: int) -> Row:
    """The row of that id."""
    return (key, f"owner-{key % 9973:05d}", (key * 37 % 1_000_003) / 100, NOTES[key % 4])


def rows(start: int, count: int) -> list[Row]:
    """Rows with ids from `start` on."""
    return [row(key) for key in range(start, start + count)]


def dicts(start: int, count: int) -> list[dict[str, object]]:
    """The same rows as dicts, the shape our single-row insert takes."""
    return [dict(zip(COLUMNS, row(key), strict=True)) for key in range(start, start + count)]


def batch(start: int, count: int) -> pa.RecordBatch:
    """The same rows as one Arrow batch."""
    columns = zip(*rows(start, count), strict=True)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def batches(start: int, count: int, size: int) -> Iterator[pa.RecordBatch]:
    """Rows with ids from `start` on, as Arrow batches of `size` rows."""
    for first in range(start, start + count, size):
        yield batch(first, min(size, start + count - first))


def random_keys(start: int, stop: int, draws: int, *, seed: int) -> list[int]:
    """`draws` ids from [start, stop), with repetition; equal for equal seeds."""
    return random.Random(seed).choices(range(start, stop), k=draws)


def random_pairs(start: int, count: int, draws: int, *, seed: int) -> list[tuple[int, int]]:
    """`draws` pairs of different ids from [start, start + count); equal for equal seeds."""
    chance = random.Random(seed * 1_000_003 + start)
    ids = range(start, start + count)
    return [(one, other) for one, other in (chance.sample(ids, 2) for _ in range(draws))]

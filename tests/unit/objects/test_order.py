"""Rows in key order: found, taken in pieces, and cut into objects of equal size."""

from __future__ import annotations

import random
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from halocline.objects import order as module
from halocline.objects.keybytes import key_bytes
from halocline.objects.order import Ordered, cuts, key_order, repeats
from halocline.schema.schema import Schema

TYPES = {
    "int": pa.int32(),
    "date": pa.date32(),
    "text": pa.string(),
    "blob": pa.binary(),
    "decimal": pa.decimal128(12, 2),
    "moment": pa.timestamp("us", "UTC"),
}


def _values(kind: str, rng: random.Random, count: int) -> Any:
    numbers = [rng.randrange(-50, 50) for _ in range(count)]
    if kind == "text":
        return pa.array([chr(ord("a") + n % 7) * (n % 3) + "é" * (n % 2) for n in numbers])
    if kind == "blob":
        return pa.array([bytes([n % 256, 0, n % 5]) for n in numbers])
    if kind == "decimal":
        return pa.array([Decimal(n) / 4 for n in numbers], TYPES[kind])
    width = pa.int64() if kind == "moment" else pa.int32()
    return pa.array(numbers, width).cast(TYPES[kind])


def _table(names: list[str], kinds: list[str], rng: random.Random, count: int) -> Any:
    columns = []
    for kind in kinds:
        values = _values(kind, rng, count)
        columns.append(pa.chunked_array([values.slice(0, count // 3), values.slice(count // 3)]))
    return pa.Table.from_arrays([*columns, pa.array(range(count))], names=[*names, "n"])


@pytest.mark.parametrize("piece_bytes", [1 << 30, 64])
@pytest.mark.parametrize("kinds", [[kind] for kind in TYPES] + [["text", "int"], ["int", "date"]])
def test_rows_come_in_the_order_of_their_key_bytes(
    kinds: list[str], piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", piece_bytes)
    names = [f"key.{at}" for at in range(len(kinds))]
    definition = pa.schema([*zip(names, (TYPES[kind] for kind in kinds), strict=True), ("n", "i8")])
    for seed in range(10):
        rng = random.Random(seed)
        schema = Schema.define(definition, names)
        table = _table(names, kinds, rng, 60)
        order = key_order(table, schema)
        ordered = Ordered(table, order)
        parts = [ordered.take(start, stop) for start, stop in cuts(60, 25)]
        whole = pa.concat_tables(parts)
        keys = key_bytes(whole.combine_chunks(), names).to_pylist()
        assert keys == sorted(key_bytes(table.combine_chunks(), names).to_pylist())
        assert sorted(whole.column("n").to_pylist()) == list(range(60))
        assert key_order(whole, schema) is None
        twice = [after for before, after in pairwise(keys) if before == after]
        found = repeats(whole, schema)
        assert key_bytes(found.combine_chunks(), names).to_pylist() == twice


def test_cuts_are_few_and_equal_and_heed_the_size() -> None:
    assert cuts(0, 10) == []
    assert cuts(10, 10) == [(0, 10)]
    assert cuts(11, 10) == [(0, 5), (5, 11)]
    assert cuts(100, 1000, 3 * module.OBJECT_BYTES) == [(0, 25), (25, 50), (50, 75), (75, 100)]
    sizes = np.diff(np.array(cuts(1_000_003, 65_536)))
    assert sizes.max() - sizes.min() <= 1
    assert sizes.max() <= 65_536

"""Index keys: they sort like values, and single values give the bytes that columns give."""

from __future__ import annotations

import itertools
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import halocline as hc
from halocline.index.condition import Condition, ValueSpan
from halocline.index.keys import after, key_bytes, low_part, part_of
from halocline.index.sorted import Sorted
from tests.unit.index.twins import POOLS

TYPES = {name: hc.Column(type) for name, (type, _) in POOLS.items()}


def column(name: str, tmp_type: Any) -> pa.Array:
    return pa.array(POOLS[name][1], tmp_type)


@pytest.fixture(scope="module")
def types(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with hc.open(tmp_path_factory.mktemp("keys") / "db") as db:
        table = db.create_table("t", {"id": int, **TYPES}, primary_key="id")
        return {field.name: field.type for field in table.schema}


@pytest.mark.parametrize("name", POOLS)
def test_a_value_has_the_bytes_that_its_column_has(types: dict[str, Any], name: str) -> None:
    keys = key_bytes([column(name, types[name])])
    assert keys.to_pylist() == [part_of(types[name], value) for value in POOLS[name][1]]
    whole = key_bytes([column(name, types[name])], cut=False)
    assert whole.to_pylist() == [part_of(types[name], v, cut=False) for v in POOLS[name][1]]


def rank(value: Any) -> Any:
    if value is None:
        return (0, 0)
    if isinstance(value, float) and math.isnan(value):
        return (2, 0)
    return (1, value.encode() if isinstance(value, str) else value)


@pytest.mark.parametrize("name", POOLS)
def test_keys_sort_like_values_with_null_first_and_nan_last(
    types: dict[str, Any], name: str
) -> None:
    for one, other in itertools.combinations(POOLS[name][1], 2):
        left, right = (part_of(types[name], value, cut=False) for value in (one, other))
        assert (left < right) == (rank(one) < rank(other)), (one, other)
        assert (left == right) == (rank(one) == rank(other)), (one, other)


def test_bounds_between_two_values_are_rounded_outwards() -> None:
    kind, two = Sorted(), pa.decimal128(12, 2)
    for type, value in ((pa.int64(), 1.5), (two, Decimal("1.001")), (pa.int64(), Decimal("1.5"))):
        assert part_of(type, value) < low_part(type, value)
        point = {1: Condition(1, [ValueSpan(value, value)])}
        assert kind.ranges([(1, type)], point) == []
    for value in (1e300, math.inf, 10**30):
        assert kind.ranges([(1, pa.int64())], {1: Condition(1, [ValueSpan(low=value)])}) == []
    everything = kind.ranges([(1, pa.int64())], {1: Condition(1, [ValueSpan(high=1e300)])})
    assert everything == [(b"\1", after(part_of(pa.int64(), 2**63 - 1)))]


def test_a_condition_on_a_later_column_alone_says_nothing() -> None:
    columns = [(1, pa.int64()), (2, pa.string())]
    assert Sorted().ranges(columns, {2: Condition(2, [ValueSpan("a", "a")])}) is None

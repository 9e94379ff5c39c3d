"""Zonemaps: bounds that hold, for every type, through cutting, merging and the wire."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halocline.objects.zonemap import Zonemap, cut_high, cut_low, zonemap
from halocline.schema.types import kind
from tests.unit.schema.pools import LEAVES, few, maybe_null, same, types, values


@st.composite
def columns(draw: st.DrawFn) -> tuple[Any, list[Any]]:
    """A canonical type and values of it, nulls among them."""
    type = draw(types())
    return type, draw(st.lists(maybe_null(values(type)), max_size=12))


def is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


@given(columns())
@few()
def test_i08_bounds_hold_for_every_type(case: tuple[Any, list[Any]]) -> None:
    type, cells = case
    zone = zonemap(pa.array(cells, type))
    inside = [cell for cell in cells if cell is not None and not is_nan(cell)]
    assert zone.rows == len(cells)
    assert zone.nulls == cells.count(None)
    assert zone.nans == sum(map(is_nan, cells))
    if kind(type) in ("list", "struct") or not inside:
        assert (zone.min, zone.max) == (None, None)
    else:
        assert (zone.rows - zone.nulls - zone.nans) == len(inside)
        assert zone.min == min(inside)
        assert zone.max == max(inside)


@given(columns())
@few()
def test_zonemaps_travel_as_plain_values(case: tuple[Any, list[Any]]) -> None:
    type, cells = case
    zone = zonemap(pa.array(cells, type))
    back = Zonemap.from_wire(msgspec.msgpack.decode(msgspec.msgpack.encode(zone.to_wire())))
    assert back == zone
    assert same([back.min, back.max], [zone.min, zone.max])


@given(st.data())
@few()
def test_the_zonemap_of_chunks_is_that_of_the_whole(data: st.DataObject) -> None:
    type = data.draw(types())
    one, two = (data.draw(st.lists(maybe_null(values(type)), max_size=8)) for _ in range(2))
    chunked = pa.chunked_array([pa.array(one, type), pa.array(two, type)], type)
    assert zonemap(chunked) == zonemap(pa.array(one + two, type))


@given(st.sampled_from(LEAVES), st.data())
@few()
def test_slices_are_seen_as_slices(type: Any, data: st.DataObject) -> None:
    cells = data.draw(st.lists(maybe_null(values(type)), min_size=2, max_size=12))
    cut = data.draw(st.integers(0, len(cells)))
    assert zonemap(pa.array(cells, type).slice(cut)) == zonemap(pa.array(cells[cut:], type))


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=0, max_size=90))
def test_long_texts_are_cut_to_bounds_that_hold(text: str) -> None:
    low, high = cut_low(text), cut_high(text)
    assert low.encode() <= text.encode()
    assert len(low.encode()) <= 64
    assert high is None or (text <= high and len(high.encode()) <= 64)
    if len(text.encode()) <= 64:
        assert low == high == text


@given(st.binary(max_size=90), st.integers(0, 70))
def test_long_bytes_are_cut_to_bounds_that_hold(data: bytes, full: int) -> None:
    data = b"\xff" * full + data
    low, high = cut_low(data), cut_high(data)
    assert low <= data
    assert len(low) <= 64
    assert high is None or (data <= high and len(high) <= 64)
    assert (high is None) == (len(data) > 64 and data[:64] == b"\xff" * 64)


@pytest.mark.parametrize(
    ("text", "high"),
    [
        ("a" * 65, "a" * 63 + "b"),
        ("a" * 63 + "é", "a" * 62 + "b"),  # The cut would fall into a character.
        ("a" * 61 + "\ud7ffx", "a" * 61 + "\ue000"),  # Over the surrogates.
        ("a" * 60 + "\U0010ffffx", "a" * 59 + "b"),  # Nothing above the last character.
        ("a" * 63 + "\x7fx", "a" * 62 + "b"),  # U+0080 would need a byte that is not there.
        ("\U0010ffff" * 17, None),
    ],
)
def test_upper_bounds_are_rounded_up(text: str, high: str | None) -> None:
    assert cut_high(text) == high
    zone = zonemap(pa.array([text, None]))
    assert zone.max == high
    assert (zone.rows - zone.nulls - zone.nans) == 1


def test_only_nan_bounds_nothing_and_hides_nothing() -> None:
    nan = zonemap(pa.array([math.nan, math.nan]))
    assert (nan.min, nan.max, (nan.rows - nan.nulls - nan.nans)) == (None, None, 0)
    both = zonemap(pa.array([math.nan, math.nan, 1.5, None]))
    assert (both.min, both.max, both.nans, both.nulls, both.rows) == (1.5, 1.5, 2, 1, 4)


@pytest.mark.parametrize(
    "wire",
    [
        None,
        [],
        [2, 1, 0, 0, 1, 1],
        [1, 1, 0, 0, 1],
        [1, 1, 2, 0, None, None],
        [1, 1, 1, 1, None, None],
        [1, -1, 0, 0, None, None],
        [1, True, 0, 0, None, None],
        [1, 1, 0, 0, ["q", 1], 1],
        [1, 1, 0, 0, ["d", 10**12], 1],
        [1, 1, 0, 0, ["z", "x"], 1],
        [1, 1, 0, 0, ["n", "one"], 1],
        [1, 1, 0, 0, [[], 1], 1],
        [1, 1, 0, 0, {"min": 1}, 1],
    ],
)
def test_what_is_no_zonemap_is_refused(wire: Any) -> None:
    with pytest.raises(ValueError, match="zonemap"):
        Zonemap.from_wire(wire)

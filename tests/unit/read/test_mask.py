"""Which dirty objects are worth a mask, and that a mask names the dead and nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halocline.read import mask
from halocline.read.mask import JOIN, ROWS_MIN, SPREAD_MAX, WORD, WORDS_MAX, split_dirty, words_of


@dataclass(frozen=True)
class Dirty:
    """What splitting may know of an object."""

    id: int
    stats: Any


def dirty(number: int, low: int, high: int, rows: int = 0) -> Any:
    return Dirty(
        number, SimpleNamespace(rowid_min=low, rowid_max=high, rows=rows or high - low + 1)
    )


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(":memory:") as opened:
        yield opened


def alive(connection: duckdb.DuckDBPyConnection, found: mask.Mask, rowids: np.ndarray) -> list[int]:
    """The RowIDs that DuckDB finds alive."""
    words = words_of(found)
    connection.register("words", words.table())
    connection.register("rows", pa.table({"_rowid": rowids}))
    text = f"select _rowid from rows join words on {JOIN} where {words.test} order by 1"
    return [row[0] for row in connection.sql(text).fetchall()]


@pytest.mark.parametrize("listed_max", [0, 2, 64])
@given(low=st.integers(0, 300), span=st.integers(1, 400), seed=st.integers(0, 99))
def test_a_mask_names_the_dead_and_nobody_else(
    connection: duckdb.DuckDBPyConnection, listed_max: int, low: int, span: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    dead = np.unique(rng.integers(0, 800, rng.integers(0, 60)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mask, "ROWS_MIN", 1)
        patch.setattr(mask, "LISTED_MAX", listed_max)
        (found,), rest = split_dirty([dirty(1, low, low + span - 1)], dead)
        assert rest == []
        rowids = np.arange(low, low + span)
        assert alive(connection, found, rowids) == np.setdiff1d(rowids, dead).tolist()


def test_neighbours_share_a_mask_in_their_order() -> None:
    half = ROWS_MIN // 2
    objects = [dirty(2, half, 2 * half), dirty(1, 0, half - 1)]
    masks, rest = split_dirty(objects, np.array([7, half + 7]))
    assert rest == []
    assert [found.entries for found in masks] == [tuple(objects)]
    assert (masks[0].rowid_min, masks[0].rowid_max) == (0, 2 * half)


def test_few_rows_and_scattered_rowids_are_left_to_the_join() -> None:
    few = dirty(1, 0, ROWS_MIN - 2)
    sparse = dirty(2, 1 << 40, (1 << 40) + SPREAD_MAX * ROWS_MIN, rows=ROWS_MIN)
    masks, rest = split_dirty([sparse, few], np.array([5]))
    assert (masks, rest) == ([], [sparse, few])


def test_a_gap_and_the_greatest_size_begin_another_mask() -> None:
    wide = (WORDS_MAX - 1) * WORD
    objects = [
        dirty(1, 0, ROWS_MIN - 1),
        dirty(2, 1 << 50, (1 << 50) + wide - 1),
        dirty(3, (1 << 50) + wide, (1 << 50) + wide + ROWS_MIN),
    ]
    masks, rest = split_dirty(objects, np.array([5, 1 << 50]))
    assert rest == []
    assert [found.entries for found in masks] == [(entry,) for entry in objects]
    assert all(words_of(found).table().num_rows <= WORDS_MAX for found in masks)

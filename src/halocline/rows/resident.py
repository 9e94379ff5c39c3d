"""Rows of L0 by RowID: which of many versions have a row there, and these rows as Arrow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from halocline.rows.members import is_among
from halocline.rows.page import FrozenPage
from halocline.rows.state import Shape
from halocline.schema.batches import BoolArray, Int64Array


def take(shape: Shape, rowids: Int64Array, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of these versions as Arrow, in the order given. All must be in these pages."""
    schema = shape.active.schema.arrow
    if columns is not None:
        schema = pa.schema([schema.field(name) for name in columns])
    order = np.argsort(rowids, kind="stable")
    ascending = rowids[order]
    batches = []
    for page, count in shape.counted():
        begin, end = np.searchsorted(ascending, [page.start, page.end])
        if begin < end:
            offsets = page.offsets_of(ascending[begin:end])
            batch = page.batch(count)
            batch = batch if columns is None else batch.select(list(columns))
            batches.append(batch.take(pa.array(offsets)))
    table = pa.Table.from_batches(batches, schema=schema)
    assert table.num_rows == len(rowids), "a version that was found has no row"
    back = np.empty(len(order), dtype=np.int64)
    back[order] = np.arange(len(order))
    return table if np.array_equal(back, np.arange(len(back))) else table.take(pa.array(back))


def resident(shape: Shape, rowids: Int64Array) -> BoolArray:
    """Which of these versions have a row in these pages."""
    order = np.argsort(rowids, kind="stable")
    ascending = rowids[order]
    inside = np.zeros(len(rowids), dtype=np.bool_)
    for page, count in shape.counted():
        begin, end = np.searchsorted(ascending, [page.start, page.start + count])
        if isinstance(page, FrozenPage) and page.rowids is not None:
            begin, end = np.searchsorted(ascending, [page.start, page.end])
            inside[order[begin:end]] = is_among(ascending[begin:end], page.rowids)
        else:
            inside[order[begin:end]] = True
    return inside

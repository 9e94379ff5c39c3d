"""Taking rows out of blocks that are kept: the same rows as the reader takes, and read once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from halocline.objects.columns import COMMIT_TS, ROWID
from halocline.objects.gather import Gather
from halocline.objects.pool import Pool
from halocline.options import MIB
from halocline.schema.column import TableColumn
from halocline.schema.schema import Schema
from tests.unit.objects.rig import ORDERS, Rig, equal, orders

NUMBERS: tuple[list[int], ...] = ([], [0], [3, 4, 29], [9, 10], list(range(30)))


@pytest.mark.parametrize("budget", [0, 4 * MIB])
@pytest.mark.parametrize("numbers", NUMBERS)
def test_rows_are_those_that_the_reader_takes(numbers: list[int], budget: int) -> None:
    rig = Rig.of(orders(30))
    gather, rows = Gather(rig.reader, Pool("data", budget)), np.array(numbers, np.int64)
    for columns, hidden in ((None, []), (["id"], [ROWID, COMMIT_TS]), ([], [ROWID])):
        wanted = rig.reader.take(rig.file, ORDERS, rows, columns=columns, hidden=hidden)
        for _ in range(2):
            found = gather.take(rig.file, ORDERS, rows, columns=columns, hidden=hidden)
            assert found.schema == wanted.schema
            assert equal(found, wanted)


def test_a_block_is_read_once_and_for_these_columns_only() -> None:
    rig = Rig.of(orders(30))
    pool = Pool("data", 4 * MIB)
    gather, rows = Gather(rig.reader, pool), np.array([1, 2, 25])
    missing = gather.missing(rig.file, ORDERS, rows, columns=["id"])
    assert missing > 0
    gather.take(rig.file, ORDERS, rows, columns=["id"])
    assert gather.missing(rig.file, ORDERS, rows, columns=["id"]) == 0
    assert gather.missing(rig.file, ORDERS, rows) == missing
    misses = pool.stats().misses
    gather.take(rig.file, ORDERS, rows, columns=["id"])
    assert pool.stats().misses == misses


def test_columns_that_the_file_has_not_are_filled() -> None:
    rig = Rig.of(orders(30))
    new = TableColumn(id=900, name="new", type=pa.int32(), nullable=True)
    alone = Schema(columns=(new,), key_positions=(), last_id=900)
    both = Schema(columns=(ORDERS.columns[0], new), key_positions=(0,), last_id=900)
    gather, rows = Gather(rig.reader, Pool("data", 4 * MIB)), np.array([1, 25])
    for schema in (alone, both):
        wanted = rig.reader.take(rig.file, schema, rows, hidden=())
        assert gather.take(rig.file, schema, rows).equals(wanted)
        assert wanted.column("new").to_pylist() == [None, None]

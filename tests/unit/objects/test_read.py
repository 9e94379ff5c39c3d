"""Reading: the right rows, by column id, of any part of an object, and only verified bytes."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halocline.errors import CorruptionError, SchemaError, UnavailableError
from halocline.objects import read as read_module
from halocline.objects.columns import COMMIT_TS, PK64, ROWID, tombstone_schema
from halocline.objects.pool import Pool
from halocline.objects.read import ObjectReader
from halocline.objects.stats import ObjectFile
from halocline.objects.write import encode_data
from halocline.schema.schema import Schema, TableColumn
from halocline.store.objects import MemoryObjects, PyarrowObjects
from tests.unit.objects.files import write_data
from tests.unit.objects.rig import KEY, ORDERS, SMALL, Rig, equal, keyed_tables, orders
from tests.unit.schema.pools import few


@pytest.mark.slow
@given(keyed_tables(), st.data())
@few()
def test_any_rows_of_any_columns_come_back(case: tuple[Schema, Any], data: st.DataObject) -> None:
    schema, table = case
    rig = Rig.of(table, schema)
    names = data.draw(st.lists(st.sampled_from(schema.names), unique=True))
    edges = sorted(data.draw(st.lists(st.integers(0, table.num_rows), max_size=6)))
    ranges = [range(a, b) for a, b in zip(edges[::2], edges[1::2], strict=False)]
    expected = table.select([*names, ROWID, COMMIT_TS])
    found = rig.reader.read(rig.file, schema, columns=names)
    assert equal(found, expected)
    found = rig.reader.read(rig.file, schema, columns=names, rows=ranges)
    slices = [expected.slice(r.start, len(r)) for r in ranges]
    assert equal(found, pa.concat_tables([expected.slice(0, 0), *slices]))
    numbers = data.draw(st.lists(st.integers(0, table.num_rows - 1)))
    found = rig.reader.take(rig.file, schema, np.array(numbers, np.int64), columns=names)
    assert found.equals(expected.take(pa.array(numbers, pa.int64())))


def test_everything_is_read_unless_told_otherwise() -> None:
    table = orders(30)
    rig = Rig.of(table)
    assert equal(rig.reader.read(rig.file, ORDERS), table)
    assert [t.num_rows for t in rig.reader.scan(rig.file, ORDERS)] == [10, 10, 10]
    assert rig.reader.read(rig.file, ORDERS, hidden=()).column_names == list(ORDERS.names)
    assert rig.reader.read(rig.file, ORDERS, columns=["ID"], hidden=()).column_names == ["id"]
    with pytest.raises(SchemaError):
        rig.reader.read(rig.file, ORDERS, columns=["nothing"])


def test_no_column_at_all_still_has_rows() -> None:
    rig = Rig.of(orders(30))
    added = Schema(columns=(column(9, "new", pa.int32()),), key_positions=(), last_id=9)
    assert rig.reader.read(rig.file, added, hidden=()).to_pylist() == [{"new": None}] * 30


def test_hidden_columns_of_tombstones_and_composite_keys() -> None:
    schema = Schema.define({"a": int, "b": str}, ["a", "b"])
    table = pa.table({"a": [1, 2], "b": ["x", "y"], ROWID: [5, 6]})
    rig = Rig.of(table, schema)
    found = rig.reader.read(rig.file, schema, columns=["a"], hidden=[PK64, ROWID])
    assert found.column_names == ["a", PK64, ROWID]
    names = tombstone_schema(schema).names
    assert names == (ROWID, "a", "b", "_successor", "_changed")


def column(id: int, name: str, type: Any, nullable: bool = True) -> TableColumn:
    return TableColumn(id=id, name=name, type=type, nullable=nullable)  # type: ignore[arg-type]


def test_columns_are_found_by_id_through_every_change() -> None:
    before = Schema.define(
        {"id": "int", "gone": str, "f": "real", "d": "decimal(5,2)", "l": "int[]"}, "id"
    )
    table = before.to_table([(1, "x", 0.5, Decimal("1.50"), [1, None])])
    rig = Rig.of(table.append_column(ROWID, pa.array([7])), before)
    after = Schema(
        columns=(
            column(5, "gone", pa.list_(pa.int64())),  # The name of a dropped column, used again.
            column(1, "key", pa.int64(), nullable=False),  # Renamed and widened.
            column(6, "added", pa.struct([("a", pa.int32())])),
            column(3, "f", pa.float64()),
            column(4, "d", pa.decimal128(20, 2)),
        ),
        key_positions=(1,),
        last_id=6,
    )
    (found,) = rig.reader.read(rig.file, after).to_pylist()
    assert found == {
        "gone": [1, None],
        "key": 1,
        "added": None,
        "f": 0.5,
        "d": Decimal("1.50"),
        ROWID: 7,
        COMMIT_TS: 0,
    }


def test_a_column_of_an_impossible_type_is_corruption() -> None:
    rig = Rig.of(orders(3))
    other = Schema(columns=(column(6, "tags", pa.int64()),), key_positions=(), last_id=6)
    with pytest.raises(CorruptionError, match="column 6 holds list"):
        rig.reader.read(rig.file, other)


def test_m02_rows_of_an_object_before_its_commit_carry_its_created_at() -> None:
    table = orders(30).drop_columns([COMMIT_TS])
    data, stats = encode_data(table, ORDERS)
    rig = Rig(data, stats, ORDERS, commit_ts=42)
    assert rig.reader.read(rig.file, ORDERS).column(COMMIT_TS).to_pylist() == [42] * 30


def test_only_the_blocks_that_are_wanted_are_read() -> None:
    data, stats = encode_data(orders(20_000), ORDERS)
    objects = MemoryObjects()
    # All but the tail and the first block of `id` is destroyed.
    with_first = bytearray(data)
    first = ObjectReader(objects, Pool("index", 1 << 24))
    objects.put(KEY, data)
    file = ObjectFile(KEY, stats)
    with first.tail(file) as tail:
        offset, _, size, _ = tail.directory.pages[0][0].tolist()
    with_first[:offset] = bytes(offset)
    with_first[offset + size : -stats.tail_bytes] = bytes(
        len(data) - stats.tail_bytes - offset - size
    )
    objects.put(KEY, bytes(with_first))
    reader = ObjectReader(objects, Pool("index", 1 << 24))
    found = reader.read(file, ORDERS, columns=["id"], hidden=(), rows=[range(5, 9)])
    assert found.column("id").to_pylist() == [10, 12, 14, 16]
    with pytest.raises(CorruptionError, match="page"):
        reader.read(file, ORDERS, columns=["id"], hidden=(), rows=[range(8192, 8193)])


def test_neighbours_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    table = orders(100)
    data, stats = encode_data(table, ORDERS, options=SMALL)
    for gap in (0, 50, 1 << 20):
        monkeypatch.setattr(read_module, "GAP_BYTES", gap)
        rig = Rig(data, stats, ORDERS)
        assert equal(rig.reader.read(rig.file, ORDERS), table)
        some = rig.reader.read(rig.file, ORDERS, columns=["price", "id"], rows=[range(3, 90)])
        assert equal(some, table.select(["price", "id", ROWID, COMMIT_TS]).slice(3, 87))


def test_verify_accepts_the_file_and_remembers_it() -> None:
    rig = Rig.of(orders(30))
    rig.reader.verify(rig.file)
    rig.objects.delete(KEY)
    rig.reader.verify(rig.file)
    with pytest.raises(CorruptionError, match="missing"):
        rig.reader.verify(rig.file, again=True)
    rig.reader.forget(rig.file)
    with pytest.raises(CorruptionError, match=KEY):
        rig.reader.verify(rig.file)


def test_what_is_remembered_for_one_content_does_not_serve_another() -> None:
    rig = Rig.of(orders(30))
    rig.reader.verify(rig.file)
    rig.reader.read(rig.file, ORDERS)
    _, other = encode_data(orders(30, seed=2), ORDERS, options=SMALL)
    file = ObjectFile(KEY, other)
    with pytest.raises(CorruptionError, match="digest"):
        rig.reader.verify(file)
    with pytest.raises(CorruptionError, match="tail"):
        rig.reader.read(file, ORDERS)


def test_a_local_folder_is_read_like_memory(tmp_path: Path) -> None:
    objects = PyarrowObjects.open(tmp_path)
    table = orders(300)
    stats = write_data(objects, KEY, table, ORDERS, options=SMALL)
    reader = ObjectReader(objects, Pool("index", 1 << 24))
    file = ObjectFile(KEY, stats)
    reader.verify(file)
    assert equal(reader.read(file, ORDERS), table)
    with (tmp_path / KEY).open("ab") as handle:
        handle.write(b"x")
    with pytest.raises(CorruptionError, match="longer"):
        reader.verify(file, again=True)


def test_a_store_that_fails_is_unavailable_not_corrupt() -> None:
    class Failing(MemoryObjects):
        def read(self, key: str, offset: int = 0, size: int | None = None) -> bytes:
            raise OSError("no route to host")

    _, stats = encode_data(orders(3), ORDERS)
    reader = ObjectReader(Failing(), Pool("index", 1 << 24))
    with pytest.raises(UnavailableError, match="no route"):
        reader.read(ObjectFile(KEY, stats), ORDERS)

"""The two worked examples of index objects and their data objects, with their very numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

import halocline as hc
from halocline.catalog import ObjectEntry
from halocline.checkpoint.indexlist import BLOCK_ROWS, IndexList, encode_indexes
from halocline.errors import CorruptionError
from halocline.ids import NEVER, ObjectId, TableId
from halocline.objects import ObjectFile
from halocline.objects.shelf import FILES_PER_JOB, index_key, object_id, object_key
from halocline.rows.tier import Tier
from tests.roles import maintenance_of
from tests.unit.objects.files import write_data  # noqa: F401 (the files of other tests)

OPTIONS = hc.Options(background=False, page_rows=4, object_rows=64)


def test_i13_five_objects_and_four_index_objects_find_every_row(tmp_path: Path) -> None:
    """Index 1 has objects 1, 2 and 3, index 2 has object 1: the others are scanned."""
    with hc.open(tmp_path / "db", options=OPTIONS) as db:
        db.create_table("t", {"id": int, "a": int, "b": int}, primary_key="id")
        state = None
        for number in range(5):
            rows = [{"id": 40 * number + n, "a": n % 20, "b": n % 20} for n in range(40)]
            db.run(lambda txn, rows=rows: txn.insert("t", rows))  # type: ignore[misc]
            db.flush()
            if number == 0:
                db.create_index("two", "t", ["b"], wait=True)
                two = db.core.catalog.tables(db.visible_ts)[0].indexes[0]
                db.drop_index("two")  # so that later objects get none of it
        db.create_index("one", "t", ["a"])
        db.create_index("two", "t", ["b"])
        assert two.name == "two"
        with db.begin() as txn:
            state = txn.state_of("t").newest
        data = [entry.id for entry in state.shape.tier.data]
        one, again = (index.id for index in state.entry.indexes)
        keep = {(data[0], one), (data[1], one), (data[2], one), (data[0], again)}
        maintenance_of(db).builder.build([state])
        tier = state.shape.tier
        gone = [e.id for e in tier.index_objects.values() if (e.target, e.index_id) not in keep]
        state.shape = state.shape._replace(tier=tier.without(gone))
        assert {pair for pair, entry in state.shape.tier.indexed.items()} == keep
        covered = dict(
            zip(*[db.indexes().column(n).to_pylist() for n in ("name", "covered")], strict=True)
        )
        assert covered == {"one": 3, "two": 1}
        with db.begin() as txn:
            for column, name in (("a", "one"), ("b", "two")):
                found = txn.lookup("t", name, 7)
                assert sorted(found.column("id").to_pylist()) == [
                    40 * number + at for number in range(5) for at in (7, 27)
                ]
                assert txn.scan("t", where=f"{column} = 7").num_rows == 10


def entry(number: int, index_id: int = 0, *, ended: int = NEVER) -> ObjectEntry:
    """Row object `number`, or what an index has of it."""
    target = object_id(1, number)
    id = object_id(2 + index_id, number) if index_id else target
    key = object_key(5, 1, number)
    if index_id:
        key = index_key(5, target, index_id, 2 + index_id, number)
    return ObjectEntry(
        id=ObjectId(id),
        table_id=TableId(5),
        kind="index" if index_id else "data",
        target=target if index_id else 0,
        index_id=index_id,
        commit_ts_min=0,
        commit_ts_max=0,
        created_at=3,
        deleted_at=ended,
        file=ObjectFile(key, _stats(is_index=bool(index_id))),
    )


def _stats(*, is_index: bool) -> object:
    from halocline.objects.stats import ObjectStats

    return ObjectStats(
        kind="index" if is_index else "data",
        order="key",
        rows=10,
        size_bytes=100,
        tail_bytes=10,
        digest=bytes(16),
        tail_digest=bytes(16),
        key_min=b"",
        key_max=b"",
        rowid_min=1,
        rowid_max=10,
        commit_ts_min=0,
        commit_ts_max=0,
        vector_bytes=0,
        zonemaps={},
    )


def test_i17_the_tail_may_have_index_objects_of_what_the_checkpoint_lists() -> None:
    """Checkpoint: objects 0 to 99, index objects (0,1) (0,2) (1,1) (2,1). Tail: objects 100 to 104,
    index objects (80,1) (100,2) (101,1) (102,1)."""
    old = [entry(number) for number in range(100)]
    listed = [entry(0, 1), entry(0, 2), entry(1, 1), entry(2, 1)]
    data = encode_indexes(5, Tier([*old, *listed]))
    checkpoint = IndexList(data, 5, "list")
    tier = Tier([*old, *checkpoint.entries()])
    tail = [entry(80, 1), entry(100, 2), entry(101, 1), entry(102, 1)]
    tier = tier.with_changes(
        [*(entry(number) for number in range(100, 105)), *tail], (), 9, indexes={1, 2}
    )
    expected = {(0, 1), (0, 2), (1, 1), (2, 1), (80, 1), (100, 2), (101, 1), (102, 1)}
    for number in range(105):
        for index_id in (1, 2):
            found = tier.index_object(object_id(1, number), index_id, 10)
            assert (found is not None) == ((number, index_id) in expected), (number, index_id)
            known = checkpoint.find(object_id(1, number), index_id)
            in_list = (number, index_id) in {(0, 1), (0, 2), (1, 1), (2, 1)}
            assert (known is not None) == in_list
            assert known is None or known == found


def test_i14_i15_i16_a_list_of_many_blocks_finds_what_it_has_and_nothing_else() -> None:
    count = 2 * BLOCK_ROWS + 7
    entries = [entry(number, 1) for number in range(0, 2 * count, 2)]
    data = encode_indexes(5, Tier([*(entry(n) for n in range(2 * count)), *entries[::-1]]))
    listed = IndexList(data, 5, "list")
    assert [one.target for one in listed.entries()] == [one.target for one in entries]
    for number in (0, 1, 2, 2 * BLOCK_ROWS - 2, 2 * BLOCK_ROWS, 2 * count - 2, 2 * count - 1):
        found = listed.find(object_id(1, number), 1)
        assert (found is not None) == (number % 2 == 0)
    assert listed.find(FILES_PER_JOB * 99, 1) is None
    assert listed.find(object_id(1, 0), 2) is None
    with pytest.raises(CorruptionError, match="another table"):
        IndexList(data, 6, "list")
    with pytest.raises(CorruptionError):
        IndexList(data[:50], 5, "list")

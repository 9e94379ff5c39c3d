"""Defects that other engines had with secondary indexes, each as a story that ends well here."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

import halocline as hc
from halocline.compaction.indexes import gaps
from halocline.ids import NEVER
from halocline.index import write_beside
from halocline.objects import JobWriter
from halocline.rows.reshape import Reshape
from halocline.rows.state import TableState
from halocline.txn.jobs import commit_reshapes
from tests.roles import committer_of, maintenance_of

OPTIONS = hc.Options(background=False, page_rows=8, object_rows=64, row_group_rows=32)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[hc.Database]:
    with hc.open(tmp_path / "db", retention=0, options=OPTIONS) as found:
        found.create_table("t", {"id": int, "v": int, "f": float}, primary_key="id")
        found.create_index("by_v", "t", ["v"])
        fill(found, 0)
        yield found
        assert found.check() == []


def fill(db: hc.Database, first: int) -> None:
    rows = [{"id": first + n, "v": n % 10, "f": float(n % 4)} for n in range(100)]
    db.run(lambda txn: txn.insert("t", rows))
    db.flush()


def ids(db: hc.Database, where: str) -> list[int]:
    """Ids that a scan finds; a look-up must find the same for `v = n`."""
    with db.begin() as txn:
        found: list[int] = txn.scan("t", ["id"], where=where, order="id").column(0).to_pylist()
        if where.startswith("v = ") and where[4:].isdigit():
            rows = txn.lookup("t", "by_v", int(where[4:])).column("id").to_pylist()
            assert sorted(rows) == found
    return found


def state_of(db: hc.Database) -> TableState:
    with db.begin() as txn:
        return txn.state_of("t").newest


def live(db: hc.Database) -> list[tuple[int, int]]:
    tier = state_of(db).shape.tier
    found = [e for e in tier.index_objects.values() if e.deleted_at == NEVER]
    return [(one.target, one.index_id) for one in found]


def build_by_hand(db: hc.Database) -> tuple[Reshape, TableState]:
    """What a builder has written, before it commits."""
    state, committer = state_of(db), committer_of(db.core)
    (gap, *_) = gaps(state)
    job = committer.start_job(state)
    writer = JobWriter(
        state.shelf.objects, state.schema, OPTIONS, table_id=state.table_id, job_id=job.job_id
    )
    made = list(write_beside(state.shelf.reader, state.schema, writer, gap.indexes, [gap.entry]))
    return Reshape(state.table_id, created=made, job_id=job.job_id), state


def commit(db: hc.Database, reshape: Reshape) -> None:
    assert commit_reshapes(committer_of(db.core), [reshape], still=lambda: True)


def test_old_and_new_value_of_an_updated_row_are_not_both_found(db: hc.Database) -> None:
    db.run(lambda txn: txn.update("t", 13, {"v": 77}))
    for _ in range(3):
        assert 13 not in ids(db, "v = 3")
        assert ids(db, "v = 77") == [13]
        db.flush()
        db.compact()


def test_an_entry_that_was_masked_does_not_come_back_after_a_merge(db: hc.Database) -> None:
    db.run(lambda txn: txn.delete("t", where="v = 3"))
    db.flush()
    db.settle("t")
    assert ids(db, "v = 3") == []
    assert sorted(live(db)) == sorted(
        (e.id, state_of(db).entry.indexes[0].id) for e in state_of(db).shape.tier.current()
    )


def test_a_position_never_refers_to_a_file_that_is_gone(db: hc.Database) -> None:
    before = ids(db, "v = 4")
    db.run(lambda txn: txn.delete("t", where="id % 2 = 1"))
    db.flush()
    db.settle("t")
    db.gc()
    assert ids(db, "v = 4") == [id for id in before if id % 2 == 0]
    shelf = state_of(db).shelf
    beside = [key for key in shelf.objects.list() if key.count(".") > 1]
    assert len(beside) == len(live(db)), "index objects go with their data objects"


def test_bounds_of_blocks_hold_after_entries_are_dropped(db: hc.Database) -> None:
    db.run(lambda txn: txn.delete("t", where="v in (0, 9)"))
    db.flush()
    assert ids(db, "v >= 8") == ids(db, "v = 8")
    assert ids(db, "v < 1") == []


def test_two_versions_of_a_key_in_one_flush_are_one_row(db: hc.Database) -> None:
    for value in (50, 51, 52):
        db.run(lambda txn, value=value: txn.update("t", 20, {"v": value}))  # type: ignore[misc]
    db.flush()
    assert [ids(db, f"v = {value}") for value in (50, 51, 52, 0)][:3] == [[], [], [20]]
    assert 20 not in ids(db, "v = 0")


def test_an_index_object_that_is_committed_after_a_compaction_is_left_out(
    db: hc.Database,
) -> None:
    db.drop_index("by_v")
    db.create_index("by_v", "t", ["v"])
    reshape, _ = build_by_hand(db)
    db.run(lambda txn: txn.delete("t", where="id % 3 = 0"))
    db.flush()
    db.settle("t")  # its data object has ended
    known = live(db)
    commit(db, reshape)
    assert live(db) == known, "it has no place"
    assert ids(db, "v = 5") == [id for id in range(100) if id % 10 == 5 and id % 3]
    db.gc()
    store = state_of(db).shelf.objects
    assert reshape.created[0].key not in store.list(), "its file belongs to nobody"


def test_deleted_rows_do_not_come_back_through_index_and_deletion_combined(
    db: hc.Database,
) -> None:
    db.create_index("by_f", "t", ["f"], wait=True)
    db.run(lambda txn: txn.delete("t", where="id < 50"))
    assert ids(db, "v = 2 and f = 2.0") == [62, 82]
    db.flush()
    assert ids(db, "v = 2 and f = 2.0") == [62, 82]
    txn = db.begin()
    txn.delete("t", 62)
    assert txn.scan("t", ["id"], where="v = 2 and f = 2.0").column(0).to_pylist() == [82]
    txn.rollback()


def test_null_and_nan_are_not_missing_from_a_range(db: hc.Database) -> None:
    db.create_index("by_f", "t", ["f"])
    rows = [{"id": 900, "f": math.nan}, {"id": 901, "f": None}, {"id": 902, "f": -0.0}]
    db.run(lambda txn: txn.insert("t", rows))
    maintenance_of(db).builder.build([state_of(db)])
    for _ in range(2):
        assert ids(db, "f > 1000") == [900], "NaN is above every number"
        assert ids(db, "f is null") == [901]
        assert 902 in ids(db, "f = 0.0")
        with db.begin() as txn:
            assert txn.lookup("t", "by_f", None).column("id").to_pylist() == [901]
            assert txn.lookup("t", "by_f", math.nan).column("id").to_pylist() == [900]
        db.flush()
        db.compact()


def test_two_builders_at_once_leave_one_index_object(db: hc.Database) -> None:
    db.drop_index("by_v")
    db.create_index("by_v", "t", ["v"])
    first, _ = build_by_hand(db)
    second, _ = build_by_hand(db)
    commit(db, first)
    commit(db, second)
    assert len(live(db)) == len(set(live(db))) == 1
    build = maintenance_of(db).builder.build
    builders = [Thread(target=build, args=([state_of(db)],)) for _ in range(3)]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join()
    assert len(live(db)) == len(set(live(db))) == len(state_of(db).shape.tier.data)


def test_an_index_object_that_comes_after_its_index_was_dropped_is_left_out(
    db: hc.Database,
) -> None:
    db.drop_index("by_v")
    db.create_index("by_v", "t", ["v"])
    reshape, _ = build_by_hand(db)
    db.drop_index("by_v")
    db.create_index("by_v", "t", ["v"])
    commit(db, reshape)
    assert live(db) == []
    assert ids(db, "v = 5") == list(range(5, 100, 10))


def test_a_failed_build_leaves_no_index_object_and_is_tried_again(db: hc.Database) -> None:
    db.drop_index("by_v")
    db.create_index("by_v", "t", ["v"])
    reshape, state = build_by_hand(db)
    committer = committer_of(db.core)
    committer.end_job(committer.engine.jobs[reshape.job_id])
    assert not commit_reshapes(committer, [reshape], still=lambda: True)
    assert live(db) == []
    assert ids(db, "v = 5") == list(range(5, 100, 10))
    assert maintenance_of(db).builder.build([state]) == 2
    assert len(live(db)) == 2


def test_a_damaged_index_object_is_not_trusted_and_is_built_again(tmp_path: Path) -> None:
    path = tmp_path / "db"
    with hc.open(path, retention=0, options=OPTIONS) as db:
        db.create_table("t", {"id": int, "v": int, "f": float}, primary_key="id")
        db.create_index("by_v", "t", ["v"])
        fill(db, 0)
        for file in path.glob("objects/*/*.*.*.parquet"):
            data = bytearray(file.read_bytes())
            data[20] ^= 0xFF
            data[-20] ^= 0xFF
            file.chmod(0o600)
            file.write_bytes(bytes(data))
    with hc.open(path, retention=0, options=OPTIONS) as db:
        assert len(db.check()) == 2
        assert ids(db, "v = 5") == list(range(5, 100, 10))
        assert ids(db, "v = 5") == list(range(5, 100, 10))
        assert len(state_of(db).shelf.damaged) == 2
        maintenance_of(db).builder.build([state_of(db)])
        assert db.check() == []
        assert ids(db, "v = 5") == list(range(5, 100, 10))
        assert len(live(db)) == 2

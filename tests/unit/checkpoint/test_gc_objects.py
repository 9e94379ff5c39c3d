"""GC of objects and files: what nobody can see goes, whatever somebody needs stays."""

from __future__ import annotations

import errno
from pathlib import Path

import pyarrow as pa
import pytest

import halocline as hc
from halocline.objects.shelf import object_id, object_key
from halocline.rows.reshape import Reshape
from halocline.txn.jobs import commit_reshapes
from tests.roles import maintenance_of
from tests.unit.checkpoint.rig import HOUR, World, rows, seen
from tests.unit.read.moving import TINY, bulk_insert, committer_of, flush, let_go, merge, move
from tests.unit.read.moving import truncate as truncate_table


def _churn(world: World, value: int, keys: range = range(40)) -> None:
    """New versions of all rows, moved and merged: the objects of before have ended."""
    world.put(dict.fromkeys(keys, value))
    move(world.db, "t")
    flush(world.db, "t")
    merge(world.db, "t")
    let_go(world.db, "t")


# -- ended objects -------------------------------------------------------------------------------


def test_g06_ended_objects_go_when_the_floor_has_passed_their_end() -> None:
    world = World(retention="1h")
    _churn(world, 1)
    old = world.db.visible_ts
    _churn(world, 2)
    ended = [e for e in world.state().shape.tier.by_id.values() if e.deleted_at <= 1 << 60]
    before = world.stored()
    report = world.db.gc()
    assert report.files == report.objects == 0
    assert any(one.reason.startswith("younger than the retention") for one in report.kept)
    assert any("ended objects" in one.what for one in report.kept)
    assert seen(world.db, old) == dict.fromkeys(range(40), 1)
    world.old()
    report = world.db.gc()
    assert report.objects == report.files == len(ended) > 2
    assert report.bytes_freed == sum(e.stats.size_bytes for e in ended)
    assert report["files"] == report.files
    with pytest.raises(KeyError):
        report["nothing"]
    assert len(world.stored()) == len(before) - len(ended)
    assert world.stored() == world.referenced()
    assert seen(world.db) == dict.fromkeys(range(40), 2)
    with pytest.raises(hc.SnapshotExpiredError):
        seen(world.db, old)
    again = world.db.gc()
    assert (again.files, again.objects, again.versions) == (0, 0, 0)
    world.reopen()
    assert seen(world.db) == dict.fromkeys(range(40), 2)
    world.close()


def test_an_object_stays_for_an_open_transaction_and_for_a_named_snapshot() -> None:
    world = World(retention=0)
    _churn(world, 1)
    world.db.snapshot("one")
    _churn(world, 2)
    txn = world.db.begin()
    _churn(world, 3)
    world.old(1)
    for _ in range(2):
        report = world.db.gc()
        assert report.floor == world.db.snapshots()[0].ts
        assert seen(world.db, "one") == dict.fromkeys(range(40), 1)
        assert rows(txn) == dict.fromkeys(range(40), 2)
    reasons = " ".join(one.reason for one in report.kept)
    assert "held by snapshot 'one'" in reasons
    assert "held by an open transaction, stream or Spark view" in reasons
    world.db.drop_snapshot("one")
    report = world.db.gc()
    assert report.files > 0
    assert report.floor == txn.snapshot
    assert rows(txn) == dict.fromkeys(range(40), 2)
    txn.rollback()
    assert world.db.gc().files > 0
    assert seen(world.db) == dict.fromkeys(range(40), 3)
    assert world.stored() == world.referenced()
    world.close()


def test_all_objects_of_a_dropped_table_go_with_it() -> None:
    world = World(retention=0)
    db = world.db
    db.create_table("u", {"id": int, "v": int}, primary_key="id")
    bulk_insert(db, "u", [{"id": key, "v": 1} for key in range(40)])
    _churn(world, 1)
    reader = db.begin()
    db.drop_table("u")
    world.old(1)
    assert db.gc().tables == 0
    assert rows(reader, table="u") == dict.fromkeys(range(40), 1)
    reader.rollback()
    report = db.gc()
    assert report.tables == 1
    assert report.objects >= 3
    assert world.stored() == world.referenced()
    assert db.tables() == ["t"]
    world.reopen()
    assert world.db.tables() == ["t"]
    world.close()


def test_objects_that_a_truncate_ended_go() -> None:
    world = World(retention=0)
    bulk_insert(world.db, "t", [{"id": key, "v": 1} for key in range(40)])
    old = world.db.visible_ts
    truncate_table(world.db, "t")
    world.old(1)
    with world.db.begin(at=old) as txn:
        world.db.gc()
        assert rows(txn) == dict.fromkeys(range(40), 1)
    assert world.db.gc().files == 3
    assert world.stored() == []
    assert seen(world.db) == {}
    world.close()


def test_a_file_that_cannot_be_deleted_is_reported_and_tried_again() -> None:
    world = World(retention=0)
    _churn(world, 1)
    _churn(world, 2)
    world.old(1)
    world.files.fail(1, errno.EACCES, kind="delete")
    report = world.db.gc()
    assert sum("cannot be deleted" in one.reason for one in report.kept) == 1
    assert len(world.stored()) == len(world.referenced()) + 1
    assert world.db.gc().files == 1
    assert world.stored() == world.referenced()
    world.close()


def test_a_store_that_is_out_of_reach_does_not_keep_memory_from_being_freed() -> None:
    world = World(retention=0)
    for value in range(8):
        world.put(dict.fromkeys(range(8), value))
    world.old(1)
    world.files.fail(1, errno.EIO, kind="list", path="")
    report = world.db.gc()
    assert report.versions > 0
    assert report.floor == world.db.visible_ts
    assert any("cannot be listed" in one.reason for one in report.kept)
    assert not world.db.gc().kept
    world.close()


def test_retention_lowered_collected_raised_and_reopened_reads_nothing_wrong() -> None:
    world = World(retention="30d")
    stamps = []
    for value in range(4):
        _churn(world, value)
        stamps.append(world.db.visible_ts)
        world.old(HOUR)
    world.retention = "90m"
    world.reopen()
    floor = world.db.gc().floor
    assert stamps[1] < floor <= stamps[3]
    world.retention = "30d"
    for turn in range(3):
        world.reopen(crash=None if turn else 0)
        world.clock.advance(-10 * HOUR)  # and the clock steps back
        assert world.db.gc().floor == floor == world.db.floor
        for value, ts in enumerate(stamps):
            if ts < floor:
                with pytest.raises(hc.SnapshotExpiredError):
                    world.db.begin(at=ts)
            else:
                assert seen(world.db, ts) == dict.fromkeys(range(40), value)
    world.close()


def test_commits_while_the_clock_is_back_stay_readable() -> None:
    """Wall clocks of commits never fall, so a clock that lies in the past makes nothing old."""
    world = World(retention="1h")
    _churn(world, 1)
    world.clock.advance(-48 * HOUR)
    _churn(world, 2)
    middle = world.db.visible_ts
    _churn(world, 3)
    floor = world.db.gc().floor
    assert floor <= middle
    assert seen(world.db, middle) == dict.fromkeys(range(40), 2)
    world.clock.advance(48 * HOUR + 2 * HOUR)
    assert world.db.gc().floor == world.db.visible_ts
    assert seen(world.db) == dict.fromkeys(range(40), 3)
    world.close()


# -- files of jobs -------------------------------------------------------------------------------


def test_files_of_a_live_job_stay_and_those_of_a_dead_one_go() -> None:
    world = World()
    live, dead = world.job(files=2), world.job(files=3)
    report = world.db.gc()
    assert report.files == 0
    assert any("their jobs are running" in one.reason and "5" in one.what for one in report.kept)
    committer_of(world.db).end_job(dead)
    report = world.db.gc()
    assert report.files == 3
    assert report.bytes_freed == 3 * len(b"half done")
    assert all(f"/{live.job_id}-" in key for key in world.stored())
    world.reopen()  # a job without a lease ends with its epoch
    assert world.db.gc().files == 2
    assert world.stored() == []
    world.close()


def test_files_of_a_large_transaction_go_when_it_has_not_committed() -> None:
    world = World()
    rows = [{"id": key, "v": 1} for key in range(40)]
    for end in ("rollback", "forget"):
        txn = world.db.begin()
        txn.insert("t", pa.Table.from_pylist(rows))
        assert len(world.stored()) == 3
        assert world.db.gc().files == 0
        if end == "rollback":
            txn.rollback()
        del txn
        assert world.db.gc().files == 3, end
    world.close()


def test_a_lease_keeps_files_over_a_restart_until_it_ends() -> None:
    world = World()
    lease_us = world.clock.now_us + HOUR * 1_000_000
    job = world.job(lease_us=lease_us)
    for crash in (None, 0):
        world.reopen(crash=crash)
        assert world.db.gc().files == 0
        assert job.job_id in world.db.core.engine.jobs
    world.clock.advance(HOUR + 1)
    assert world.db.gc().files == 1
    # It cannot commit any more, not even after the power was lost.
    for _ in range(2):
        node = Reshape(world.state().table_id, ended=[1], job_id=job.job_id)
        assert commit_reshapes(committer_of(world.db), [node], still=lambda: True) == 0
        world.files = world.files.crash_image(none=True)
        world.db = world.open()
    world.close()


def test_a_job_that_commits_while_gc_runs_keeps_its_files() -> None:
    """The listing has seen the files of a job that is live; then it commits."""
    world = World(retention=0)
    world.put({1: 1})
    world.old(1)
    done: list[int] = []

    def commit() -> None:
        done.append(bulk_insert(world.db, "t", [{"id": 9, "v": 9}]))

    # The first sync of the log is the floor's: the listing has been made.
    world.files.delay(1, commit, kind="sync", path="log/")
    world.db.gc()
    assert done
    assert seen(world.db) == {1: 1, 9: 9}
    world.db.gc()
    assert seen(world.db) == {1: 1, 9: 9}
    world.close()


def test_files_that_are_not_ours_are_kept_and_named() -> None:
    world = World()
    foreign = ["notes.txt", "1/readme.parquet", "1/01-0.parquet", "x/1-0.parquet", "1/9-9.csv"]
    unknown = object_key(1, 999, 0)
    for key in (*foreign, unknown):
        world.files.objects.put(key, b"not ours")
    report = world.db.gc()
    assert report.files == 0
    named = {one.what for one in report.kept if "not a file of this database" in one.reason}
    assert named == {*foreign, unknown}
    for number in range(100):
        world.files.objects.put(f"many/{number}", b"")
    report = world.db.gc()
    assert len(report.kept) < 40
    assert any("more files" in one.what for one in report.kept)
    assert len(world.stored()) == 106
    world.close()


def test_what_a_killed_writer_left_half_written_goes(tmp_path: Path) -> None:
    path = tmp_path / "db"
    with hc.open(path, options=TINY) as db:
        db.create_table("t", {"id": int, "v": int}, primary_key="id")
        bulk_insert(db, "t", [{"id": 1, "v": 1}])
        (kept,) = (path / "objects").rglob("*.parquet")
        job = db.core.engine.last_job_id
        (kept.parent / f"{kept.name}.tmp").write_bytes(b"again?")
        (kept.parent / f"{job}-7.parquet.tmp").write_bytes(b"half")
        (kept.parent / "strange.tmp").write_bytes(b"whose?")
        report = db.gc()
        assert report.files == 2
        assert sorted(file.name for file in kept.parent.iterdir()) == [kept.name, "strange.tmp"]
        assert any("strange.tmp" in one.what for one in report.kept)
        assert seen(db) == {1: 1}


def test_files_that_checkpoints_refer_to_are_kept() -> None:
    world = World()
    job = world.job()
    (key,) = world.stored()
    engine = world.db.core.engine
    engine.kept_files = {key}
    committer_of(world.db).end_job(job)
    assert world.db.gc().files == 0
    engine.kept_files = set()
    assert world.db.gc().files == 1
    world.close()


def test_ids_and_keys_name_the_same_file() -> None:
    assert object_id(3, 5) == 3 * (1 << 20) + 5
    assert object_key(2, 3, 5) == "2/3-5.parquet"


# -- the background ------------------------------------------------------------------------------


def test_a_step_is_rare_and_does_nothing_when_nothing_is_old() -> None:
    world = World(retention="1h")
    _churn(world, 1)
    _churn(world, 2)
    world.job()
    collector = maintenance_of(world.db).collector
    assert collector is not None
    first = collector.step()
    assert first is not None, "the first look after opening lists the store"
    assert first.files == 0
    assert collector.step() is None
    world.clock.advance(31)
    operations = len(world.files.operations)
    assert collector.step() is None, "nothing is older than retention"
    assert all(one.kind == "list" for one in world.files.operations[operations:])
    world.old()
    report = collector.step()
    assert report is not None
    assert report.files > 0
    world.close()

"""GC on a full disk: what can be freed is freed, though nothing else can be written."""

from __future__ import annotations

import errno
import resource
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

import halocline as hc
from halocline import UnavailableError
from tests.unit.checkpoint.rig import World, seen


def _fill(world: World) -> dict[int, int]:
    """Commit until the log has no room; no file can be made, whatever its size."""
    world.files.fail(1, errno.ENOSPC, kind="create", times=1 << 30)
    world.files.fail(1, errno.ENOSPC, kind="put", times=1 << 30)

    def fill() -> None:
        for key in range(1000, 10_000):
            world.put({key: key})

    with pytest.raises(UnavailableError) as caught:
        fill()
    assert caught.value.outcome == "not_committed"
    return seen(world.db)


def _garbage(world: World) -> None:
    """Objects that compaction has replaced, long enough ago."""
    for value in (1, 2, 3):
        world.put(dict.fromkeys(range(20), value))
        world.db.flush()
    assert world.db.compact().groups
    world.old()


def _goes_on(world: World, rows: dict[int, int]) -> None:
    """Room was made: the database works without opening it, and after opening it again."""
    world.files.clear()
    world.put({5: 55})
    rows = {**rows, 5: 55}
    world.db.flush()
    world.db.checkpoint()
    world.db.gc()
    assert seen(world.db) == rows
    world.reopen()
    assert seen(world.db) == rows
    assert not world.db.check()
    assert set(world.stored()) >= set(world.referenced())
    world.db.close()


@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize("before", ["", "flush", "checkpoint", "compact"])
def test_gc_frees_files_on_a_full_disk(before: str, durability: str) -> None:
    """Also when other upkeep has tried its luck first and got nowhere."""
    world = World(durability=durability)
    _garbage(world)
    rows = _fill(world)
    for _ in range(3 if before in ("flush", "checkpoint") else 0):
        with pytest.raises(UnavailableError):
            getattr(world.db, before)()
    floor, files = world.db.floor, len(world.stored())
    report = world.db.gc()
    assert report.files > 0
    assert report.floor > floor
    assert len(world.stored()) < files
    assert seen(world.db) == rows
    assert not world.db.check()
    _goes_on(world, rows)


def test_what_a_load_left_that_did_not_fit_goes_without_reopening() -> None:
    """Its job cannot even be ended when there is no room: GC tries again."""
    world = World()
    world.put({1: 1})
    world.files.fail(3, errno.ENOSPC, kind="put", times=1 << 30)
    world.files.fail(1, errno.ENOSPC, kind="create", times=1 << 30)
    txn = world.db.begin()
    rows = pa.table({"id": pa.array(range(100, 200)), "v": pa.array(range(100, 200))})
    with pytest.raises(UnavailableError) as caught:
        txn.insert("t", rows)
    assert caught.value.outcome == "not_committed"
    left = _fill(world)
    txn.rollback()
    assert len(world.stored()) > len(world.referenced())
    world.db.gc()
    assert world.stored() == world.referenced()
    assert seen(world.db) == left
    _goes_on(world, left)


def test_a_floor_is_logged_where_no_commit_fits_any_more() -> None:
    """Again and again, in what commits leave of the file; what does not fit is refused."""
    world = World(retention=0)
    _fill(world)
    floors = []
    for _ in range(20):
        with suppress(UnavailableError):
            floors.append(world.db.gc().floor)
    assert floors[0] > 0
    world.reopen(crash=1)
    assert world.db.floor >= floors[-1]
    assert not world.db.check()
    world.db.close()


def test_a_full_disk_is_opened_by_deleting_what_nothing_needs() -> None:
    """A load that did not fit has filled the disk, and its process is gone."""
    world = World()
    world.put({key: key for key in range(40)})
    world.db.flush()
    world.db.checkpoint()
    rows = seen(world.db)
    world.job(files=5)
    leased = world.job(lease_us=world.clock.wall_us() + 10**12)
    kept = set(world.referenced())
    world.files = files = world.files.crash_image(seed=3)
    remove = files.objects.delete

    def delete(key: str) -> None:
        files.clear()  # there is room from now on
        remove(key)

    files.objects.delete = delete  # type: ignore[method-assign]
    files.fail(1, errno.ENOSPC, kind="create", times=1 << 30)
    world.db = world.open()
    assert seen(world.db) == rows
    stored = set(world.stored())
    assert kept <= stored
    assert len(stored - kept) == 1, "what a job with a lease has written stays"
    assert leased.job_id in world.db.core.engine.jobs
    _goes_on(world, rows)


def test_a_full_disk_without_garbage_gets_a_small_log_file(tmp_path: Path) -> None:
    with hc.open(tmp_path / "db") as db:
        db.create_table("t", {"id": int}, primary_key="id")
    # As if so little room were left: no file may become larger than this.
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, before[1]))
    try:
        db = hc.open(tmp_path / "db", options=hc.Options(background=False))
        with db.begin() as txn:
            txn.insert("t", {"id": 1})
        assert db.gc().kept is not None
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert db.table("t").count() == 1
    db.close()
    with hc.open(tmp_path / "db") as db:
        assert db.table("t").count() == 1
        assert db.check() == []

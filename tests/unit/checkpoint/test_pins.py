"""Pins: a reader of another process keeps what it reads, for as long as it lives and no longer."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import halocline as hc
from halocline.checkpoint.pins import (
    EVERYTHING,
    PINS_DIRECTORY,
    PinFile,
    Pins,
    ProcessPin,
    read_pins,
)
from halocline.ids import NEVER
from halocline.store import LocalFiles
from tests.clock import ManualClock
from tests.store.faulty import FaultyFiles
from tests.unit.checkpoint.rig import World, rows, seen
from tests.unit.objects.rig import empty
from tests.unit.read.moving import TINY, let_go, merge, move


@pytest.fixture(params=["memory", "disk"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return FaultyFiles() if request.param == "memory" else LocalFiles(tmp_path)


# -- the file ------------------------------------------------------------------------------------


def test_a_pin_says_the_oldest_snapshot_of_its_process(files: Any) -> None:
    clock = ManualClock()
    assert read_pins(files) == []
    one, two = Pins(PinFile(files, clock, 11)), Pins(PinFile(files, clock, 22))
    # Until it knows better, a reader that opens needs everything.
    assert set(read_pins(files)) == {ProcessPin(11, EVERYTHING), ProcessPin(22, EVERYTHING)}
    with one.everything(), two.everything():
        pass
    assert {pin.ts for pin in read_pins(files)} == {NEVER}
    one[1], one[2], two[1] = 70, 50, 60
    assert sorted(read_pins(files), key=lambda pin: pin.pid) == [
        ProcessPin(11, 50),
        ProcessPin(22, 60),
    ]
    del one[2]
    assert one.pop(3, None) is None
    two.pop(1)
    assert sorted(read_pins(files), key=lambda pin: pin.pid) == [
        ProcessPin(11, 70),
        ProcessPin(22, NEVER),
    ]
    with one.everything():
        assert ProcessPin(11, EVERYTHING) in read_pins(files)
    assert ProcessPin(11, 70) in read_pins(files)
    one.close()
    assert read_pins(files) == [ProcessPin(22, NEVER)]
    assert len(files.list(PINS_DIRECTORY)) == 1
    one[1] = 5  # closed: nobody is told, nothing fails
    two.close()
    assert files.list(PINS_DIRECTORY) == []


def test_a_pin_goes_with_its_transaction_and_comes_with_the_next(files: Any) -> None:
    pins = Pins(PinFile(files, ManualClock(), 11))
    for ts in (5000, 5001, 90_000):
        pins[1] = ts
        assert read_pins(files) == [ProcessPin(11, ts)]
        pins[2] = ts + 1
        pins.pop(1)
        assert read_pins(files) == [ProcessPin(11, ts + 1)]
        pins.pop(2)
        assert read_pins(files) == [ProcessPin(11, NEVER)]
    pins[1] = 90_000
    pins[2] = 4000
    assert read_pins(files) == [ProcessPin(11, 4000)]
    pins.close()


def test_a_pin_that_was_cut_off_counts_as_a_pin_of_everything(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    pin = PinFile(files, ManualClock(), 11)
    (path,) = (tmp_path / PINS_DIRECTORY).iterdir()
    pin.write(50)
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    assert read_pins(files) == [ProcessPin(0, EVERYTHING)]
    path.write_bytes(data)
    assert read_pins(files) == [ProcessPin(11, 50)]
    pin.close()


def test_a_pin_without_a_lock_is_removed(files: Any) -> None:
    pin = PinFile(files, ManualClock(), 11)
    pin.write(50)
    assert read_pins(files) == [ProcessPin(11, 50)]
    pin._lock.release()  # what the operating system does for a process that died
    assert read_pins(files) == []
    assert files.list(PINS_DIRECTORY) == []


def test_a_pin_that_cannot_be_read_counts_as_a_pin_of_everything(files: Any) -> None:
    files.makedirs(PINS_DIRECTORY)
    lock = files.lock(f"{PINS_DIRECTORY}/x.pin", b"?" * 36)
    assert read_pins(files) == [ProcessPin(0, EVERYTHING)]
    lock.release()
    assert read_pins(files) == []
    files.write(f"{PINS_DIRECTORY}/notes.txt", b"somebody else's")
    assert read_pins(files) == []
    assert files.list(PINS_DIRECTORY) == ["notes.txt"]


def test_a_short_pin_counts_as_a_pin_of_everything(tmp_path: Path) -> None:
    """Between the lock and the first write there is nothing in the file."""
    files = LocalFiles(tmp_path)
    files.makedirs(PINS_DIRECTORY)
    lock = files.lock(f"{PINS_DIRECTORY}/x.pin", b"")
    assert read_pins(files) == [ProcessPin(0, EVERYTHING)]
    lock.release()


def test_every_flipped_bit_of_a_pin_is_noticed(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    pin = PinFile(files, ManualClock(), 11)
    pin.write(50)
    (path,) = (tmp_path / PINS_DIRECTORY).iterdir()
    whole = path.read_bytes()
    for bit in range(len(whole) * 8):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        with path.open("r+b") as file:
            file.write(flipped)
        assert read_pins(files) == [ProcessPin(0, EVERYTHING)], bit
    pin.close()


# -- what the page says --------------------------------------------------------------------------


class Page:
    """A pin file that remembers what it was told, and may be interrupted."""

    def __init__(self) -> None:
        self.said: list[int] = []
        self.interrupt = False

    def write(self, ts: int) -> None:
        if self.interrupt:
            self.interrupt = False
            raise KeyboardInterrupt
        self.said.append(ts)


@pytest.mark.parametrize("seed", range(20))
def test_the_page_never_says_more_than_the_truth_and_says_it_in_the_end(seed: int) -> None:
    chance, page = random.Random(seed), Page()
    pins = Pins(page)  # type: ignore[arg-type]
    for now in range(100, 400):
        match chance.randrange(5):
            case 0 | 1:  # a transaction begins, or takes a newer snapshot
                pins[chance.randrange(4)] = now - chance.randrange(20)
            case 2 if pins:
                del pins[chance.choice(list(pins))]
            case 3:
                pins.pop(chance.randrange(4), None)
            case _:
                with pins.everything():
                    assert page.said[-1] == EVERYTHING
        if page.said:
            assert page.said[-1] == min(pins.values(), default=NEVER)
    assert len(page.said) < 300, "it is written only when it changes"


def test_a_newer_pin_of_the_same_holder_raises_the_page() -> None:
    page = Page()
    pins = Pins(page)  # type: ignore[arg-type]
    pins[1] = 50
    pins[1] = 70
    assert page.said == [50, 70]
    pins.pop(1)
    assert page.said == [50, 70, NEVER]


def test_a_transaction_that_is_covered_by_an_older_one_costs_nothing() -> None:
    page = Page()
    pins = Pins(page)  # type: ignore[arg-type]
    pins[1] = 50
    for ts in range(60, 70):
        pins[2] = ts
        pins.pop(2)
    assert page.said == [50]
    pins[2] = 80
    pins.pop(1)
    assert page.said == [50, 80]


def test_ctrl_c_inside_a_pin_is_made_good_by_the_next() -> None:
    page = Page()
    pins = Pins(page)  # type: ignore[arg-type]
    pins[1] = 50
    page.interrupt = True
    with pytest.raises(KeyboardInterrupt):
        pins.pop(1)
    assert page.said == [50]  # less than the truth, for a while
    pins[2] = 60
    assert page.said == [50, 60]
    page.interrupt = True
    with pytest.raises(KeyboardInterrupt):
        pins[3] = 40
    pins.pop(3)
    assert page.said[-1] == 60
    pins.pop(2)
    assert page.said[-1] == NEVER


def test_a_forgotten_transaction_may_end_in_the_middle_of_a_pin() -> None:
    """The collector runs anywhere: also while the page is being written."""

    class Collecting(Page):
        def write(self, ts: int) -> None:
            if 1 in pins:
                pins.pop(1)
            super().write(ts)

    page = Collecting()
    pins = Pins(None)
    pins[1] = 50
    pins._file = page  # type: ignore[assignment]
    pins[2] = 60
    assert page.said[-1] == 60
    pins.pop(2)
    assert page.said[-1] == NEVER
    pins[1] = 30
    assert page.said[-1] == NEVER  # it ended while it began


# -- readers and GC ------------------------------------------------------------------------------


def test_the_open_snapshot_of_a_reader_holds_the_floor() -> None:
    world = World(retention=0)
    world.put(dict.fromkeys(range(40), 1))
    move(world.db, "t")
    reader = world.open(read_only=True)
    txn = reader.begin()
    before = rows(txn)
    for value in range(2, 5):
        world.put(dict.fromkeys(range(0, 40, 2), value) | {value: None})
        world.old(1)
        move(world.db, "t")
        merge(world.db, "t")
        let_go(world.db, "t")
        report = world.db.gc()
        assert report.floor == txn.snapshot
        assert report.files == 0
        assert any(f"pinned by process {os.getpid()}" in one.reason for one in report.kept)
        assert rows(txn) == before
    txn.rollback()
    report = world.db.gc()
    assert report.floor == world.db.visible_ts
    assert report.objects == report.files > 0
    assert report.bytes_freed > 0
    assert not any("pinned" in one.reason for one in report.kept)
    assert world.stored() == world.referenced()
    assert seen(reader) == seen(world.db)
    with pytest.raises(hc.SnapshotExpiredError):
        reader.begin(at=txn.snapshot)
    with pytest.raises(hc.SnapshotExpiredError):
        reader.changes("t", since=txn.snapshot)
    reader.close()
    world.close()


def test_a_reader_that_comes_after_gc_knows_nothing_of_what_went() -> None:
    """Replay brings ended objects and dropped tables back; their files are gone."""
    world = World(retention=0)
    world.db.create_table("u", {"id": int, "v": int}, primary_key="id")
    for table in ("t", "u"):
        world.put(dict.fromkeys(range(20), 1), table)
        move(world.db, table)
        merge(world.db, table)
    world.db.drop_table("u")
    world.old(1)
    assert world.db.gc().files > 1
    for closed in (False, True):
        if closed:
            world.db.close()
        with world.open(read_only=True) as reader:
            assert not reader.check()
            engine = reader.core.engine
            entries = [e for s in engine.tables.values() for e in s.shape.tier.by_id.values()]
            assert sorted(entry.key for entry in entries) == world.referenced()
            assert [state.entry.name for state in engine.tables.values()] == ["t"]
            assert seen(reader) == dict.fromkeys(range(20), 1)
    world.db = world.open()
    world.close()


def test_a_reader_that_only_idles_holds_nothing() -> None:
    world = World(retention=0)
    reader = world.open(read_only=True)
    for value in range(4):
        world.put({1: value})
        assert seen(reader) == {1: value}
        world.old(1)
    assert world.db.gc().floor == world.db.visible_ts
    abandoned = reader.begin()
    floor = abandoned.snapshot
    world.put({1: 9})
    world.old(1)
    assert world.db.gc().floor == floor
    del abandoned  # without a word
    assert world.db.gc().floor == world.db.visible_ts
    reader.close()
    world.close()


def test_a_reader_that_pins_just_before_the_floor_rises_keeps_its_rows() -> None:
    """GC has read the pins and logs the floor; at that moment a reader opens an old snapshot.

    The floor rises above it all the same, but nothing that it needs goes.
    """
    world = World(retention=0)
    world.put(dict.fromkeys(range(20), 1))
    move(world.db, "t")
    old = world.db.visible_ts
    world.put(dict.fromkeys(range(20), 2))
    move(world.db, "t")
    merge(world.db, "t")
    let_go(world.db, "t")
    world.old(1)
    reader = world.open(read_only=True)
    seen(reader)
    held: list[Any] = []
    world.files.delay(1, lambda: held.append(reader.begin(at=old)), kind="sync", path="log/")
    report = world.db.gc()
    (txn,) = held
    assert report.floor > old == txn.snapshot
    assert report.files == 0
    files = len(world.stored())
    for _ in range(2):
        assert world.db.core.oldest_needed() == old
        assert rows(txn) == dict.fromkeys(range(20), 1)
        with pytest.raises(hc.SnapshotExpiredError):
            reader.begin(at=old)
        with pytest.raises(hc.SnapshotExpiredError):
            world.db.begin(at=old)
        # The owner dies; the next one finds the pin too.
        world.db.close()
        world.db = world.open()
        world.db.gc()
        assert len(world.stored()) == files
    txn.rollback()
    assert world.db.gc().files > 0
    assert world.stored() == world.referenced()
    reader.close()
    world.close()


class LatePins(Pins):
    """Something happens just before the next pin is published."""

    meanwhile: Callable[[], object] | None = None

    def __setitem__(self, holder: int, ts: int) -> None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        super().__setitem__(holder, ts)


def test_a_reader_that_pins_too_late_finds_out() -> None:
    world = World(retention=0)
    world.put(dict.fromkeys(range(20), 1))
    reader = world.open(read_only=True)
    old = reader.core.pins
    assert isinstance(old, Pins)
    old.close()
    pins = LatePins(PinFile(world.files, world.clock, 7))
    with pins.everything():
        reader.core.pins = pins

    def pass_by() -> None:
        world.put(dict.fromkeys(range(20), 2))
        world.old(1)
        assert world.db.gc().floor == world.db.visible_ts

    for at in (None, world.db.visible_ts):
        pins.meanwhile = pass_by
        if at is None:
            assert seen(reader) == dict.fromkeys(range(20), 2), "it takes a newer snapshot"
        else:
            with pytest.raises(hc.SnapshotExpiredError):
                reader.begin(at=at)
    pins.close()
    reader.close()
    world.close()


def test_a_local_reader_that_pins_just_before_the_floor_rises_keeps_its_rows() -> None:
    world = World(retention=0)
    world.put(dict.fromkeys(range(20), 1))
    old = world.db.visible_ts
    world.put(dict.fromkeys(range(20), 2))
    world.old(1)
    world.put({1: 3})
    held: list[Any] = []
    taken = world.db.core.committer
    assert taken is not None

    # While the floor is synced it is in memory already: who comes now is told.
    def look() -> None:
        with pytest.raises(hc.SnapshotExpiredError):
            world.db.begin(at=old)
        held.append(world.db.begin())

    world.files.delay(1, look, kind="sync", path="log/")
    world.db.gc()
    assert rows(held[0]) == seen(world.db)
    held[0].rollback()
    world.close()


def test_nothing_goes_while_a_reader_is_opening() -> None:
    world = World(retention=0)
    world.put(dict.fromkeys(range(20), 1))
    move(world.db, "t")
    merge(world.db, "t")
    world.job()
    world.db.close()
    world.db = world.open()  # that job is dead now
    world.old(1)
    pin = PinFile(world.files, world.clock, 77)
    keys = world.stored()
    report = world.db.gc()
    assert report.files == report.objects == 0
    assert world.stored() == keys
    assert any("process 77, which is opening" in one.reason for one in report.kept)
    pin.close()
    assert world.db.gc().files > 1
    assert world.stored() == world.referenced()
    world.close()


def test_a_reader_without_permission_to_pin_gets_an_expired_snapshot(tmp_path: Path) -> None:
    """It reads; and when its files are collected under it, it is told so."""
    path = tmp_path / "db"
    db = hc.open(path, retention=0, options=TINY)
    db.create_table("t", {"id": int, "v": int}, primary_key="id")
    with db.begin() as txn:
        txn.insert("t", [{"id": key, "v": 1} for key in range(40)])
    move(db, "t")
    let_go(db, "t")
    (path / "pins").write_text("a file where the directory would be")
    reader = hc.open(path, read_only=True, options=TINY)
    txn = reader.begin()
    assert txn.get("t", 1) == {"id": 1, "v": 1}
    assert txn.scan("t").num_rows == 40
    with db.begin() as writer:
        writer.upsert("t", [{"id": key, "v": 2} for key in range(40)])
    move(db, "t")
    merge(db, "t")
    let_go(db, "t")
    (path / "pins").unlink()
    assert db.gc().files > 0
    empty(reader.core.engine.shelf.index, reader.core.engine.shelf.data)
    for read in (
        lambda: rows(txn, range(40)),
        lambda: txn.get("t", 1),
        lambda: txn.range("t"),
        lambda: txn.scan("t"),
        lambda: txn.scan("t", where="v = 1", stream=True).read_all(),
        lambda: txn.sql("select sum(v) from t"),
    ):
        with pytest.raises(hc.SnapshotExpiredError) as expired:
            read()
        assert expired.value.ts == txn.snapshot < expired.value.floor
    txn.rollback()
    assert seen(reader) == dict.fromkeys(range(40), 2)
    # A file that is missing for no good reason is still damage.
    for file in (path / "objects").rglob("*.parquet"):
        file.unlink()
    empty(reader.core.engine.shelf.index, reader.core.engine.shelf.data)
    with pytest.raises(hc.CorruptionError, match="missing"):
        seen(reader)
    reader.close()
    db.close()

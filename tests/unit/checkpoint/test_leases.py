"""Leases: a snapshot that is held by nobody's process, for as long as was asked and no longer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from halocline.checkpoint.leases import read_leases, share_lease, write_lease
from halocline.checkpoint.pins import PINS_DIRECTORY, PinFile, ProcessPin, read_pins
from halocline.clock import SystemClock
from halocline.errors import CorruptionError
from halocline.store import LocalFiles
from tests.clock import ManualClock
from tests.store.faulty import FaultyFiles


@pytest.fixture(params=["memory", "disk"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return FaultyFiles() if request.param == "memory" else LocalFiles(tmp_path)


def test_a_lease_holds_its_snapshot_until_it_is_over(files: Any) -> None:
    clock = ManualClock()
    assert read_leases(files, clock) == []
    write_lease(files, clock, 70, 100.0)
    clock.advance(50)
    write_lease(files, clock, 90, 100.0)
    assert {pin.ts for pin in read_leases(files, clock)} == {70, 90}
    clock.advance(49.9)
    assert {pin.ts for pin in read_leases(files, clock)} == {70, 90}
    clock.advance(10.2)
    assert read_leases(files, clock) == [ProcessPin(0, 90)]
    clock.advance(100)
    assert read_leases(files, clock) == []
    assert files.list(PINS_DIRECTORY) == []


def test_leases_of_one_snapshot_at_about_the_same_time_are_one(files: Any) -> None:
    clock = ManualClock()
    for _ in range(100):
        write_lease(files, clock, 70, 100.0)
        clock.advance(0.1)
    assert 1 <= len(files.list(PINS_DIRECTORY)) <= 2
    clock.advance(89)
    assert read_leases(files, clock), "the last of them runs for as long as it was given"


def test_leases_and_locked_pins_leave_each_other_alone(files: Any) -> None:
    clock = ManualClock()
    pin = PinFile(files, clock, 11)
    pin.write(50)
    write_lease(files, clock, 70, 100.0)
    assert read_pins(files) == [ProcessPin(11, 50)]
    assert read_leases(files, clock) == [ProcessPin(0, 70)]
    pin.close()
    assert read_pins(files) == []
    assert read_leases(files, clock) == [ProcessPin(0, 70)]


@pytest.mark.parametrize(
    "name", ["7", "-", "x-9", "7-x", "7-", "1-2-3", "7-\u0663", "7-" + "9" * 40]
)
def test_what_is_no_lease_is_removed(files: Any, name: str) -> None:
    files.makedirs(PINS_DIRECTORY)
    files.write(f"{PINS_DIRECTORY}/{name}.lease", b"")
    assert read_leases(files, ManualClock()) == []
    assert files.list(PINS_DIRECTORY) == []


def test_the_first_to_take_a_name_decides_which_snapshot_it_pins(tmp_path: Path) -> None:
    clock, files = ManualClock(), LocalFiles(tmp_path)
    assert share_lease(str(tmp_path), clock, "view-1", 70, 100.0) == 70
    assert share_lease(str(tmp_path), clock, "view-1", 90, 100.0) == 70
    assert share_lease(str(tmp_path), clock, "view-2", 90, 100.0) == 90
    assert {pin.ts for pin in read_leases(files, clock)} == {70, 90}
    Path(tmp_path, PINS_DIRECTORY, "view-2.named").write_bytes(b"[")
    with pytest.raises(CorruptionError, match="view-2"):
        share_lease(str(tmp_path), clock, "view-2", 90, 100.0)
    clock.advance(120)
    assert read_leases(files, clock) == []
    assert files.list(PINS_DIRECTORY) == []


def test_several_processes_that_take_a_name_at_once_agree(tmp_path: Path) -> None:
    write_lease(LocalFiles(tmp_path), ManualClock(), 1, 100.0)  # the folder is there
    with ThreadPoolExecutor(8) as pool:
        for name in range(20):
            begin = Barrier(8)

            def take(ts: int, name: int = name, begin: Barrier = begin) -> int:
                begin.wait()
                return share_lease(str(tmp_path), SystemClock(), f"view-{name}", ts, 100.0)

            assert len(set(pool.map(take, range(10, 18)))) == 1
    names = [name for name in LocalFiles(tmp_path).list(PINS_DIRECTORY) if name.endswith(".named")]
    assert len(names) == 20, "no draft is left"

"""Staged files: GC removes those of jobs without a lease, the leases first, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from halocline.checkpoint.staging import FOLDER, end_staged, hold_staged, sweep_staged
from halocline.store import LocalFiles
from tests.clock import ManualClock


class Recording(LocalFiles):
    """Remembers what was removed, and may do something just after files were listed."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.removed: list[str] = []
        self.after_list: list[Any] = []

    def remove(self, path: str) -> None:
        super().remove(path)
        self.removed.append(path.removeprefix(f"{FOLDER}/"))

    def list(self, directory: str) -> Any:
        found = super().list(directory)
        if self.after_list:
            self.after_list.pop(0)()
        return found


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def files(tmp_path: Path) -> Recording:
    return Recording(tmp_path)


def _put(root: Path, name: str, size: int = 10) -> None:
    Path(root, FOLDER, name).write_bytes(bytes(size))


def test_files_go_when_the_last_lease_of_their_job_is_over(
    files: Recording, tmp_path: Path, clock: ManualClock
) -> None:
    assert sweep_staged(files, clock) == (0, 0)
    hold_staged(str(tmp_path), clock, "a", 100)
    clock.advance(50)
    hold_staged(str(tmp_path), clock, "a", 100)
    hold_staged(str(tmp_path), clock, "b", 10)
    for name in ("a.1.arrow", "a.2.arrow", "b.plan", "b.x.draft", "c.1.arrow", "b.txt", "c"):
        _put(tmp_path, name)
    assert sweep_staged(files, clock) == (1, 10)  # c has none
    clock.advance(60)
    assert sweep_staged(files, clock) == (2, 20)
    assert files.removed[-3].startswith("b."), "the lease goes first"
    assert files.removed[-3].endswith(".lease")
    clock.advance(60)
    assert sweep_staged(files, clock) == (2, 20)
    assert sorted(files.list(FOLDER)) == ["b.txt", "c"]
    assert sweep_staged(files, clock) == (0, 0)


def test_leases_taken_at_about_the_same_time_are_one_file(
    files: Recording, tmp_path: Path, clock: ManualClock
) -> None:
    for _ in range(50):
        hold_staged(str(tmp_path), clock, "a", 100)
        clock.advance(0.1)
    assert len(files.list(FOLDER)) <= 2


def test_a_job_that_begins_during_the_sweep_keeps_its_files(
    files: Recording, tmp_path: Path, clock: ManualClock
) -> None:
    hold_staged(str(tmp_path), clock, "old", 1)
    clock.advance(10)

    def begin() -> None:
        hold_staged(str(tmp_path), clock, "new", 100)
        _put(tmp_path, "new.1.arrow")

    files.after_list = [begin]
    sweep_staged(files, clock)
    assert "new.1.arrow" in files.list(FOLDER)
    assert not [name for name in files.list(FOLDER) if name.startswith("old")]


def test_a_job_that_ends_takes_its_own_files_only(
    files: Recording, tmp_path: Path, clock: ManualClock
) -> None:
    for job in ("a", "ab"):
        hold_staged(str(tmp_path), clock, job, 100)
        _put(tmp_path, f"{job}.1.arrow")
    assert end_staged(files, "a") == (1, 10)
    assert end_staged(files, "a") == (0, 0)
    assert sorted(name.partition(".")[0] for name in files.list(FOLDER)) == ["ab", "ab"]


@pytest.mark.parametrize("name", ["a.lease", "a.x.lease", "a.-1.lease", "a.9\u0664.lease"])
def test_a_lease_that_makes_no_sense_holds_nothing(
    files: Recording, tmp_path: Path, clock: ManualClock, name: str
) -> None:
    Path(tmp_path, FOLDER).mkdir()
    _put(tmp_path, name)
    _put(tmp_path, "a.1.arrow")
    assert sweep_staged(files, clock) == (1, 10)
    assert files.list(FOLDER) == []

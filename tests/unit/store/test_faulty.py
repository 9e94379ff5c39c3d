"""Crash images of whole stores: acknowledged operations survive every one of them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from halocline.store import LocalFiles
from halocline.store.objects import PyarrowObjects
from tests.store.faulty import FaultyFiles, SimulatedCrash


def _state(files: FaultyFiles) -> dict[str, bytes]:
    state: dict[str, bytes] = {}
    for path, node in files._names.seen.items():
        state[path] = b"directory" if node is None else bytes(node.data)
    for key in files.objects.list():
        state[f"objects/{key}"] = files.objects.read(key)
    return state


class _Workload:
    """Durable operations; `done` tells which of them were acknowledged."""

    def __init__(self, files: FaultyFiles) -> None:
        self.files = files
        self.done: set[str] = set()

    def run(self) -> None:
        files = self.files
        steps: list[tuple[str, Callable[[], object]]] = [
            ("makedirs", lambda: files.makedirs("log/deep")),
            ("create", lambda: files.create("log/1.log", 2048)),
            ("write", lambda: files.write("endpoint", b"a" * 700)),
            ("rewrite", lambda: files.write("endpoint", b"b" * 1300)),
            ("put", lambda: files.objects.put("7/1", b"object")),
            ("rename", lambda: files.rename("log/1.log", "log/2.log")),
            ("move", lambda: files.rename("log/2.log", "log/deep/2.log")),
            ("delete", lambda: files.objects.delete("7/1")),
            ("remove", lambda: files.remove("endpoint")),
        ]
        for name, step in steps:
            step()
            self.done.add(name)


def _check(image: FaultyFiles, done: set[str]) -> None:
    logs = [path for path in ("log/1.log", "log/2.log", "log/deep/2.log") if image.exists(path)]
    assert len(logs) <= 1
    if "makedirs" in done:
        assert image.exists("log/deep")
    if "create" in done:
        assert image.read(logs[0]) == bytes(2048)
    if "rename" in done:
        assert logs[0] != "log/1.log"
    if "move" in done:
        assert logs == ["log/deep/2.log"]
    endpoint = image.read("endpoint") if image.exists("endpoint") else None
    assert endpoint in (None, b"a" * 700, b"b" * 1300)
    if "remove" in done:
        assert endpoint is None
    elif "rewrite" in done:
        assert endpoint == b"b" * 1300 or "delete" in done
    elif "write" in done:
        assert endpoint is not None
    found = image.objects.list()
    assert found in ([], ["7/1"])
    if found:
        assert image.objects.read("7/1") == b"object"
    if "put" in done and "move" not in done:
        assert found
    if "delete" in done:
        assert not found


@pytest.mark.parametrize("when", ["before", "inside", "after"])
def test_acknowledged_operations_survive_a_crash_at_every_operation(when: str) -> None:
    recorded = FaultyFiles()
    _Workload(recorded).run()
    points = recorded.crash_points()
    assert len(points) > 25
    for point in points:
        files = FaultyFiles()
        files.crash(point, when)  # type: ignore[arg-type]
        workload = _Workload(files)
        with pytest.raises(SimulatedCrash):
            workload.run()
        for seed in range(20):
            _check(files.crash_image(seed), workload.done)
        _check(files.crash_image(none=True), workload.done)
        _check(files.crash_image(all=True), workload.done)


def test_without_the_directory_sync_a_file_can_be_lost() -> None:
    """The store would notice if the last step were forgotten."""
    files = FaultyFiles()
    files.crash(1, kind="sync_dir")
    with pytest.raises(SimulatedCrash):
        files.write("endpoint", b"content")
    found = [files.crash_image(seed).exists("endpoint") for seed in range(40)]
    assert any(found)
    assert not all(found)


def test_the_same_seed_gives_the_same_image_and_others_differ() -> None:
    def crashed() -> FaultyFiles:
        files = FaultyFiles()
        file = files.create("file", 8192)
        file.pwrite(b"n" * 8192, 0)
        for name in ("b", "a", "c"):
            files._disk.create(name).pwrite(b"x" * 1000, 0)
        files.objects.put("k", b"old")
        files.crash(1, "inside", kind="put")
        with pytest.raises(SimulatedCrash):
            files.objects.put("k", b"new")
        return files

    files = crashed()
    first = [_state(files.crash_image(seed)) for seed in range(30)]
    assert [_state(files.crash_image(seed)) for seed in range(30)] == first
    assert [_state(crashed().crash_image(seed)) for seed in range(30)] == first
    assert len({tuple(sorted(state.items())) for state in first}) > 15
    assert {state["objects/k"] for state in first} == {b"old", b"new"}


def test_an_image_shares_nothing_with_its_source() -> None:
    files = FaultyFiles()
    file = files.create("file", 4)
    images = [files.crash_image(1), files.crash_image(all=True), files.crash_image(none=True)]
    file.pwrite(b"late", 0)
    file.sync()
    files.objects.put("k", b"late")
    for image in images:
        assert image.read("file") == bytes(4)
        assert image.objects.list() == []
        image.open("file").pwrite(b"mine", 0)
        image.remove("file")
    assert files.read("file") == b"late"


def test_an_image_starts_its_own_sequence_without_faults() -> None:
    files = FaultyFiles()
    files.create("file", 4)
    files.crash(5)
    image = files.crash_image(0)
    assert image.operations == []
    assert not image.crashed
    for _ in range(6):
        image.read("file")
    image.crash(1)
    with pytest.raises(SimulatedCrash):
        image.read("file")
    assert not files.crashed


def test_a_killed_process_leaves_everything_but_nothing_more_durable() -> None:
    files = FaultyFiles()
    files.create("file", 4).pwrite(b"data", 0)
    files._disk.create("unsynced name")
    killed = files.crash_image(all=True)
    assert killed.list("") == ["file", "unsynced name"]
    assert killed.read("file") == b"data"
    power_lost = killed.crash_image(none=True)
    assert power_lost.list("") == ["file"]
    assert power_lost.read("file") == bytes(4)
    # The next process can make it durable without knowing what was left unsynced.
    killed.open("file").sync()
    killed.sync_dir("")
    assert killed.crash_image(none=True).list("") == ["file", "unsynced name"]
    assert killed.crash_image(none=True).read("file") == b"data"


def test_a_directory_left_unsynced_by_a_killed_process_is_made_durable_by_makedirs() -> None:
    files = FaultyFiles()
    files.crash(1, kind="sync_dir")
    with pytest.raises(SimulatedCrash):
        files.makedirs("log")
    killed = files.crash_image(all=True)
    killed.makedirs("log")
    killed.create("log/1.log", 4)
    assert killed.crash_image(none=True).read("log/1.log") == bytes(4)


def test_mapped_memory_survives_in_no_image() -> None:
    files = FaultyFiles()
    files.page("published", 8, writable=True)[0:4] = b"live"
    for image in (
        files.crash_image(0),
        files.crash_image(all=True),
        files.crash_image(none=True),
    ):
        assert bytes(image.page("published", 8, writable=False)[0:8]) == bytes(8)
    assert bytes(files.page("published", 8, writable=False)[0:8]) == b"live" + bytes(4)


def test_objects_are_whole_or_absent_and_durable_when_put_returns() -> None:
    files = FaultyFiles()
    files.objects.put("k", b"whole")
    assert files.crash_image(none=True).objects.read("k") == b"whole"
    files.crash(1, "inside", kind="delete")
    with pytest.raises(SimulatedCrash):
        files.objects.delete("k")
    outcomes = {tuple(files.crash_image(seed).objects.list()) for seed in range(20)}
    assert outcomes == {(), ("k",)}
    assert files.crash_image(all=True).objects.list() == []
    assert files.crash_image(none=True).objects.list() == ["k"]


def test_a_put_that_failed_may_still_surface_after_a_crash() -> None:
    files = FaultyFiles()
    files.fail(1, errno.EIO, kind="put")
    with pytest.raises(OSError, match="Input/output error"):
        files.objects.put("clean", b"x")
    files.tear(1, 1, errno.EIO, kind="put")
    with pytest.raises(OSError, match="Input/output error"):
        files.objects.put("unsure", b"x")
    assert files.objects.list() == []
    outcomes = {tuple(files.crash_image(seed).objects.list()) for seed in range(20)}
    assert outcomes == {(), ("unsure",)}


def test_a_store_moves_to_a_real_directory_and_back(tmp_path: Path) -> None:
    files = FaultyFiles()
    _Workload(files).run()
    files.write("endpoint", b"here")
    files.objects.put("7/31-1.parquet", b"object")
    files.open("log/deep/2.log").pwrite(b"not synced", 5)
    files.materialise(tmp_path / "db")
    local = LocalFiles(tmp_path / "db")
    assert local.read("endpoint") == b"here"
    assert local.read("log/deep/2.log")[5:15] == b"not synced"
    assert PyarrowObjects.open(tmp_path / "db" / "objects").list() == ["7/31-1.parquet"]
    modes = {oct(os.stat(path).st_mode & 0o777) for path in (tmp_path / "db").rglob("*.log")}
    assert modes == {"0o600"}
    loaded = FaultyFiles.load(tmp_path / "db")
    assert _state(loaded) == _state(files)
    assert _state(loaded.crash_image(none=True)) == _state(files)

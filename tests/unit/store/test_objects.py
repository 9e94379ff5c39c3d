"""Objects: whole or absent, in every store."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyarrow import fs

from halocline.errors import UsageError
from halocline.store import local as local_module
from halocline.store.files import TEMPORARY
from halocline.store.objects import MemoryObjects, Objects, PyarrowObjects
from tests.store.faulty import FaultyFiles


@pytest.fixture(params=["local", "uri", "subtree", "move", "memory", "faulty"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    kind = request.param
    if kind == "local":
        return PyarrowObjects.open(tmp_path / "objects")
    if kind == "uri":
        return PyarrowObjects.open((tmp_path / "objects").as_uri())
    if kind == "subtree":
        return PyarrowObjects(fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), "inner")
    if kind == "move":
        return PyarrowObjects(fs._MockFileSystem(), "bucket/folder")
    return MemoryObjects() if kind == "memory" else FaultyFiles().objects


def test_objects_read_back_whole_and_in_ranges(objects: Objects) -> None:
    objects.put("7/31-1.parquet", b"0123456789")
    assert objects.size("7/31-1.parquet") == 10
    assert objects.read("7/31-1.parquet") == b"0123456789"
    assert objects.read("7/31-1.parquet", 3, 4) == b"3456"
    assert objects.read("7/31-1.parquet", 8) == b"89"
    assert objects.read("7/31-1.parquet", 8, 1 << 60) == b"89"
    assert objects.read("7/31-1.parquet", 50, 5) == b""
    objects.put("empty", memoryview(b""))
    assert objects.read("empty") == b""
    objects.put("7/31-1.parquet", bytearray(b"again"))
    assert objects.read("7/31-1.parquet") == b"again"


def test_list_is_sorted_deep_and_by_folder(objects: Objects) -> None:
    assert objects.list() == []
    assert objects.list("7") == []
    for key in ("7/b", "7/a", "70/c", "7/deep/d", "e"):
        objects.put(key, b"x")
    assert objects.list() == ["7/a", "7/b", "7/deep/d", "70/c", "e"]
    assert objects.list("7") == ["7/a", "7/b", "7/deep/d"]
    assert objects.list("7", temporary=True) == []
    objects.delete("7/a")
    assert objects.list("7") == ["7/b", "7/deep/d"]


def test_a_missing_object_is_file_not_found(objects: Objects) -> None:
    for call in (objects.read, objects.size, objects.delete):
        with pytest.raises(FileNotFoundError):
            call("7/none")


@pytest.mark.parametrize("key", ["/etc/passwd", "../up", "a/../../b", "", "a//b", "x.tmp"])
def test_keys_that_leave_the_folder_are_refused(objects: Objects, key: str) -> None:
    with pytest.raises(UsageError):
        objects.put(key, b"")
    for call in (objects.read, objects.size):
        with pytest.raises(UsageError):
            call(key)
    if key != "x.tmp":
        with pytest.raises(UsageError):
            objects.delete(key)
    if key:
        with pytest.raises(UsageError):
            objects.list(key)


def test_a_local_put_is_synced_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = PyarrowObjects.open(tmp_path)
    objects.put("7/first", b"makes the folder")
    steps: list[str] = []
    fdatasync, replace, sync_folder = os.fdatasync, os.replace, local_module._sync_folder
    folder = os.stat(tmp_path / "7")

    def spy_sync(fd: int) -> None:
        steps.append("sync")
        fdatasync(fd)

    def spy_replace(old: str, new: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        assert os.path.samestat(os.fstat(src_dir_fd), folder)
        assert os.path.samestat(os.fstat(dst_dir_fd), folder)
        steps.append(f"rename {old} {new}")
        replace(old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    def spy_folder(fd: int) -> None:
        assert os.path.samestat(os.fstat(fd), folder)
        steps.append("sync 7/")
        sync_folder(fd)

    monkeypatch.setattr(os, "fdatasync", spy_sync)
    monkeypatch.setattr(os, "replace", spy_replace)
    monkeypatch.setattr(local_module, "_sync_folder", spy_folder)
    objects.put("7/second", b"data")
    assert steps == ["sync", "rename second.tmp second", "sync 7/"]
    assert os.stat(tmp_path / "7" / "second").st_mode & 0o777 == 0o600


def test_a_failed_local_put_leaves_the_old_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = PyarrowObjects.open(tmp_path)
    objects.put("key", b"old")

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fdatasync", full)
    with pytest.raises(OSError, match="No space left"):
        objects.put("key", b"new")
    assert objects.read("key") == b"old"
    assert os.listdir(tmp_path) == ["key"]


@pytest.mark.parametrize("kind", ["local", "move"])
def test_what_a_crash_left_half_written_is_hidden_and_can_be_deleted(
    tmp_path: Path, kind: str
) -> None:
    filesystem = fs.LocalFileSystem() if kind == "local" else fs._MockFileSystem()
    folder = str(tmp_path) if kind == "local" else "bucket"
    objects = PyarrowObjects(filesystem, folder)
    objects.put("7/whole", b"whole")
    with filesystem.open_output_stream(f"{folder}/7/half.tmp") as stream:
        stream.write(b"ha")
    assert objects.list() == ["7/whole"]
    assert objects.list(temporary=True) == ["7/half.tmp"]
    objects.delete("7/half.tmp")
    assert objects.list(temporary=True) == []


def test_an_upload_that_fails_is_not_published() -> None:
    objects = PyarrowObjects(fs._MockFileSystem(), "bucket")
    with pytest.raises(TypeError):
        objects.put("key", object())  # type: ignore[arg-type]
    assert objects.list() == []


def test_atomic_stores_upload_straight_to_the_key() -> None:
    class Stream:
        def __init__(self, path: str) -> None:
            self.path = path

        def write(self, data: bytes) -> None:
            written.append((self.path, bytes(data)))

        def close(self) -> None:
            written.append((self.path, b"closed"))

    class Bucket:
        type_name = "s3"
        open_output_stream = Stream

    written: list[tuple[str, bytes]] = []
    PyarrowObjects(Bucket(), "bucket/db").put("7/x", b"data")
    assert written == [("bucket/db/7/x", b"data"), ("bucket/db/7/x", b"closed")]


def test_an_unknown_address_is_a_usage_error_without_its_secrets() -> None:
    with pytest.raises(UsageError) as caught:
        PyarrowObjects.open("ftp://user:secret@host/x")
    assert "secret" not in str(caught.value)


def test_a_name_that_is_taken_is_not_taken_again(tmp_path: Path) -> None:
    for store in (
        PyarrowObjects.open(tmp_path / "objects"),
        PyarrowObjects(fs._MockFileSystem(), "bucket/folder"),
    ):
        store.put_new("7/1-1.parquet", b"first")
        with pytest.raises(FileExistsError):
            store.put_new("7/1-1.parquet", b"second")
        assert store.read("7/1-1.parquet") == b"first"
        assert store.list(temporary=True) == []


def test_a_name_that_somebody_is_about_to_take_is_taken(tmp_path: Path) -> None:
    store = PyarrowObjects.open(tmp_path)
    (tmp_path / "7").mkdir()
    claimed = tmp_path / f"7/1-1.parquet{TEMPORARY}"
    claimed.write_bytes(b"half of")
    with pytest.raises(FileExistsError):
        store.put_new("7/1-1.parquet", b"second")
    assert claimed.read_bytes() == b"half of", "it is not ours"
    # Whoever had the claim has finished between our question and our claim.
    claimed.rename(tmp_path / "7/1-1.parquet")
    with pytest.raises(FileExistsError):
        store.put_new("7/1-1.parquet", b"second")
    assert store.read("7/1-1.parquet") == b"half of"
    assert store.list(temporary=True) == []


def test_of_many_who_want_one_name_one_gets_it(tmp_path: Path) -> None:
    stores = [PyarrowObjects.open(tmp_path) for _ in range(8)]

    def want(place: int) -> int:
        try:
            stores[place].put_new("7/1-1.parquet", bytes([place]) * 100_000)
        except FileExistsError:
            return -1
        return place

    with ThreadPoolExecutor(len(stores)) as pool:
        got = [place for place in pool.map(want, range(len(stores))) if place >= 0]
    assert len(got) == 1
    assert stores[0].read("7/1-1.parquet") == bytes(got) * 100_000

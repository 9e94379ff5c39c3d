"""The order of steps behind every durable operation, the same on the real disk and in memory."""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from halocline.errors import CorruptionError, UsageError
from halocline.store import File, Files, LocalFiles
from halocline.store.durable import DurableFiles
from halocline.store.files import Buffer
from halocline.store.local import LocalDisk
from tests.store.faulty import FaultyFiles

Step = tuple[str, str, int]


class RecordingFile:
    """A real file that tells which steps it took."""

    def __init__(self, file: File, path: str, steps: list[Step]) -> None:
        self._file = file
        self._path = path
        self._steps = steps
        self.pread = file.pread
        self.size = file.size
        self.close = file.close

    def pwrite(self, data: Buffer, offset: int) -> None:
        self._steps.append(("write", self._path, len(data)))
        self._file.pwrite(data, offset)

    def sync(self) -> None:
        self._steps.append(("sync", self._path, 0))
        self._file.sync()

    def truncate(self, size: int) -> None:
        self._steps.append(("truncate", self._path, 0))
        self._file.truncate(size)


class RecordingDisk(LocalDisk):
    """The real disk, telling its steps."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        self.steps: list[Step] = []

    def create(self, path: str) -> File:  # type: ignore[override]
        self.steps.append(("create", path, 0))
        return RecordingFile(super().create(path), path, self.steps)  # type: ignore[return-value]

    def open(self, path: str, *, writable: bool) -> File:  # type: ignore[override]
        opened = super().open(path, writable=writable)
        return RecordingFile(opened, path, self.steps)  # type: ignore[return-value]

    def mkdir(self, path: str) -> None:
        self.steps.append(("mkdir", path, 0))
        super().mkdir(path)

    def rename(self, old: str, new: str) -> None:
        self.steps.append(("rename", f"{old} -> {new}", 0))
        super().rename(old, new)

    def remove(self, path: str) -> None:
        self.steps.append(("remove", path, 0))
        super().remove(path)

    def sync_dir(self, path: str) -> None:
        self.steps.append(("sync_dir", path, 0))
        super().sync_dir(path)


def _steps(files: FaultyFiles) -> list[Step]:
    return [(step.kind, step.path, step.size) for step in files.operations]


@pytest.fixture(params=["local", "faulty"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    files: Files = LocalFiles(tmp_path / "db") if request.param == "local" else FaultyFiles()
    files.makedirs("")
    return files


def _script(files: Files) -> None:
    files.makedirs("log/old")
    file = files.create("log/1.log", 3000)
    file.pwrite(b"x" * 700, 512)
    file.sync()
    file.truncate(2048)
    file.close()
    files.write("endpoint", b"first")
    files.write("endpoint", b"second")
    files.rename("log/1.log", "log/2.log")
    files.rename("log/2.log", "log/old/2.log")
    files.page("published", 64, writable=True)
    files.remove("endpoint")


def test_create_writes_zeros_then_syncs_file_then_directory() -> None:
    files = FaultyFiles()
    files.makedirs("log")
    before = len(files.operations)
    files.create("log/1.log", (1 << 20) + 512)
    assert _steps(files)[before:] == [
        ("create", "log/1.log", 0),
        ("write", "log/1.log", 1 << 20),
        ("write", "log/1.log", 512),
        ("sync", "log/1.log", 0),
        ("sync_dir", "log", 0),
    ]


def test_write_syncs_the_content_before_the_name_and_the_directory_last() -> None:
    files = FaultyFiles()
    files.write("endpoint", b"there")
    assert _steps(files) == [
        ("create", "endpoint.tmp", 0),
        ("write", "endpoint.tmp", 5),
        ("sync", "endpoint.tmp", 0),
        ("rename", "endpoint.tmp -> endpoint", 0),
        ("sync_dir", "", 0),
    ]


def test_rename_between_directories_syncs_the_new_one_first() -> None:
    files = FaultyFiles()
    files.makedirs("a")
    files.makedirs("b")
    files.create("a/x")
    before = len(files.operations)
    files.rename("a/x", "b/y")
    assert _steps(files)[before:] == [
        ("rename", "a/x -> b/y", 0),
        ("sync_dir", "b", 0),
        ("sync_dir", "a", 0),
    ]


def test_makedirs_syncs_top_down_and_again_when_the_directory_exists() -> None:
    files = FaultyFiles()
    files.makedirs("a/b")
    made = [("mkdir", "a", 0), ("sync_dir", "", 0), ("mkdir", "a/b", 0), ("sync_dir", "a", 0)]
    assert _steps(files) == made
    files.makedirs("a/b")
    assert _steps(files) == [*made, ("sync_dir", "a", 0)]


def test_the_real_disk_takes_the_same_steps_as_the_simulated_one(tmp_path: Path) -> None:
    disk = RecordingDisk(tmp_path)
    _script(DurableFiles(disk))
    faulty = FaultyFiles()
    _script(faulty)
    assert disk.steps == _steps(faulty)
    assert len(disk.steps) > 25


def test_both_stores_end_with_the_same_files(tmp_path: Path) -> None:
    local = LocalFiles(tmp_path)
    faulty = FaultyFiles()
    for files in (local, faulty):
        _script(files)
    assert FaultyFiles.load(tmp_path).list("") == faulty.list("") == ["log", "published"]
    assert local.list("log") == faulty.list("log") == ["old"]
    assert local.read("log/old/2.log") == faulty.read("log/old/2.log")
    assert len(local.read("log/old/2.log")) == 2048


def test_files_read_back_what_was_written(files: Files) -> None:
    file = files.create("data", 1000)
    assert file.size() == 1000
    assert file.pread(2000, 0) == bytes(1000)
    file.pwrite(bytearray(b"abc"), 998)
    file.pwrite(memoryview(b"zz"), 1003)
    file.sync()
    assert file.pread(10, 996) == b"\0\0abc\0\0zz"
    assert file.pread(4, 5000) == b""
    file.truncate(999)
    assert file.pread(10, 997) == b"\0a"
    file.close()
    file.close()
    reader = files.open_read("data")
    with pytest.raises(OSError, match="Bad file descriptor") as caught:
        reader.pwrite(b"no", 0)
    assert caught.value.errno == errno.EBADF
    reader.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.pread(1, 0)
    assert files.exists("data")
    assert not files.exists("other")


def test_missing_and_present_files_raise_what_the_system_raises(files: Files) -> None:
    for call in (files.open, files.open_read, files.read, files.remove):
        with pytest.raises(FileNotFoundError):
            call("none")
        with pytest.raises(FileNotFoundError):
            call("no/such/directory")
    with pytest.raises(FileNotFoundError):
        files.rename("none", "other")
    with pytest.raises(FileNotFoundError):
        files.create("no/such/file")
    with pytest.raises(FileNotFoundError):
        files.page("none", 64, writable=False)
    files.create("here").close()
    with pytest.raises(FileExistsError):
        files.create("here")
    with pytest.raises(NotADirectoryError):
        files.create("here/below")
    assert files.list("none") == []
    assert files.list("") == ["here"]


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a/..", "", "a/", "a\0b", "a.tmp"]
)
def test_paths_that_leave_the_root_are_refused(files: Files, path: str) -> None:
    calls = (files.open, files.open_read, files.create, files.read, files.exists)
    for call in calls:
        with pytest.raises(UsageError):
            call(path)
    with pytest.raises(UsageError):
        files.write(path, b"")
    with pytest.raises(UsageError):
        files.rename("a", path)
    with pytest.raises(UsageError):
        files.rename(path, "a")
    with pytest.raises(UsageError):
        files.lock(path, b"")
    with pytest.raises(UsageError):
        files.page(path, 8, writable=True)
    if path:
        for directory_call in (files.list, files.makedirs, files.sync_dir):
            with pytest.raises(UsageError):
                directory_call(path)
    if path != "a.tmp":
        with pytest.raises(UsageError):
            files.remove(path)


def test_a_leftover_temporary_file_is_hidden_and_replaced() -> None:
    files = FaultyFiles()
    files.crash(3, "before")
    with pytest.raises(BaseException, match="stopped"):
        files.write("endpoint", b"never synced")
    image = files.crash_image(all=True)
    assert image.list("") == []
    image.write("endpoint", b"whole")
    assert image.read("endpoint") == b"whole"
    assert image.crash_image(none=True)._disk.list("") == ["endpoint"]


@pytest.mark.parametrize("nth", [1, 2, 3, 4, 5])
def test_create_that_fails_leaves_nothing_behind(nth: int) -> None:
    files = FaultyFiles()
    files.makedirs("log")
    files.fail(nth, errno.ENOSPC)
    with pytest.raises(OSError, match="No space left") as caught:
        files.create("log/1.log", (1 << 20) + 1)
    assert caught.value.errno == errno.ENOSPC
    assert files.list("log") == []
    files.create("log/1.log", 10).close()
    assert files.crash_image(none=True).read("log/1.log") == bytes(10)


@pytest.mark.parametrize("nth", [1, 2, 3, 4, 5])
def test_write_that_fails_keeps_the_old_file(nth: int) -> None:
    files = FaultyFiles()
    files.write("endpoint", b"old")
    files.fail(nth, errno.ENOSPC)
    with pytest.raises(OSError, match="No space left"):
        files.write("endpoint", b"new")
    # Only the last step, the sync of the directory, comes after the new file took its name.
    assert files.read("endpoint") == (b"old" if nth < 5 else b"new")
    assert files._disk.list("") == ["endpoint"]


def test_the_first_error_is_told_when_the_clean_up_fails_too() -> None:
    files = FaultyFiles()
    files.fail(2, errno.ENOSPC)
    files.fail(1, errno.EIO, kind="remove")
    with pytest.raises(OSError, match="No space left"):
        files.create("file", 100)


def test_threads_writing_one_path_never_mix(files: Files) -> None:
    contents = [bytes([letter]) * 5000 for letter in b"abcd"]

    def write(content: bytes) -> None:
        for _ in range(10):
            files.write("shared", content)
            assert files.read("shared") in contents

    with ThreadPoolExecutor(len(contents)) as pool:
        list(pool.map(write, contents))
    assert files.list("") == ["shared"]


def test_a_page_is_shared_and_starts_as_zeros(files: Files) -> None:
    writer = files.page("published", 64, writable=True)
    assert bytes(writer[0:64]) == bytes(64)
    reader = files.page("published", 64, writable=False)
    writer[3:7] = b"work"
    assert bytes(reader[0:8]) == b"\0\0\0work\0"
    with pytest.raises(CorruptionError):
        files.page("published", 128, writable=False)
    larger = files.page("published", 128, writable=True)
    assert bytes(larger[3:7]) == b"work"
